//! Times one matching iteration or one training epoch; `bench/compare` runs it beside PyTorch.
//!
//! `afterimage-bench CASE [--dtype f32|f64] [--threads N] [--repeat N] [--side 32] [--device cpu|cuda:0] [--tf32 true]
//! [--form explicit|gram] [--batch 8]`
//! prints one line of JSON. A matching case compares with a gradient of others; `CASE/kkt` with the weights themselves,
//! as that attack does. `kernel-perceptron` and `kernel-infinite` are tangent kernels of 5,000
//! records, with the memory they take beside the result.

mod convolutional;
mod kernels;
mod problem;

use std::error::Error;
use std::time::Instant;

use afterimage_nn::{DType, Device, Form, Tensor};
use convolutional::{Convolved, GradientMatching};
use problem::{PRODUCTS, Problem, Product, Training, case, perceptron};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Args {
    case: String,
    dtype: DType,
    device: Device,
    threads: usize,
    side: usize,
    repeat: usize,
    tf32: bool,
    form: Form,
    batch: usize,
}

fn parse() -> Result<Args, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let case = args.next().ok_or("usage: afterimage-bench CASE [--dtype f32|f64] [--threads N] [--repeat N]")?;
    let mut parsed = Args {
        case,
        dtype: DType::F32,
        device: Device::Cpu,
        threads: 2,
        side: 32,
        repeat: 9,
        tf32: false,
        form: Form::Cheaper,
        batch: 8,
    };
    while let Some(flag) = args.next() {
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--dtype" => parsed.dtype = if value == "f64" { DType::F64 } else { DType::F32 },
            "--threads" => parsed.threads = value.parse()?,
            "--side" => parsed.side = value.parse()?,
            "--repeat" => parsed.repeat = value.parse()?,
            "--device" => parsed.device = value.parse()?,
            "--form" => {
                parsed.form = match value.as_str() {
                    "explicit" => Form::Explicit,
                    "gram" => Form::Gram,
                    "cheaper" => Form::Cheaper,
                    _ => return Err(format!("no form {value}; explicit, gram or cheaper").into()),
                }
            }
            "--batch" => parsed.batch = value.parse()?,
            "--tf32" => parsed.tf32 = value.parse()?,
            _ => return Err(format!("unknown option {flag}").into()),
        }
    }
    Ok(parsed)
}

fn norm(tensor: &Tensor) -> afterimage_nn::Result<f64> {
    Ok(tensor.to_f64_vec()?.iter().map(|x| x * x).sum::<f64>().sqrt())
}

/// The most memory this process has held, in megabytes, where the system says so.
fn peak_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kilobytes| kilobytes / 1e3)
}

/// Counts the most memory from here on, where the system can.
fn forget_peak() {
    // Making the problem takes more than solving it; what is left of that is handed back in a moment.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Median milliseconds of `repeat` runs after two that do not count.
fn median_ms(repeat: usize, mut run: impl FnMut() -> afterimage_nn::Result<()>) -> Result<f64, Box<dyn Error>> {
    let mut times = Vec::with_capacity(repeat);
    for index in 0..repeat + 2 {
        let start = Instant::now();
        run()?;
        if index >= 2 {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = parse()?;
    afterimage_nn::allow_tf32(args.tf32);
    // Inside the pool, so that the thread that hands out work does its share of it.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads).build()?;
    pool.install(|| measure(&args)).map_err(Into::into)
}

fn measure(args: &Args) -> Result<(), String> {
    run(args).map_err(|error| error.to_string())
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    if args.case == "product" {
        for (m, n, k) in PRODUCTS {
            let product = Product::new((m, n, k), args.dtype)?;
            let giga = 2.0 * (m * n * k) as f64 / 1e6;
            let transposed = median_ms(args.repeat, || product.transposed().map(drop))?;
            let both = median_ms(args.repeat, || product.both().map(drop))?;
            println!("{m} x {n} x {k}: {:.0} GF/s transposed, {:.0} both", giga / transposed, 2.0 * giga / both);
        }
        return Ok(());
    }
    if args.case == "train" {
        let mut training = Training::new(args.dtype, args.device)?;
        let loss = training.epoch()?;
        let ms = median_ms(args.repeat, || training.epoch().map(drop))?;
        println!("{}", serde_json::json!({ "loss": loss, "ms": ms }));
        return Ok(());
    }
    if let Some(kernel) = args.case.strip_prefix("kernel-") {
        println!("{}", kernels::measured(kernel, args.dtype)?);
        return Ok(());
    }
    if let Some(convolved) = Convolved::new(&args.case, args.dtype, args.device)? {
        let mut result = serde_json::Map::new();
        for (index, tensor) in convolved.run()?.iter().enumerate() {
            result.insert(format!("norm{index}"), norm(tensor)?.into());
        }
        result.insert("ms".into(), median_ms(args.repeat, || convolved.run().map(drop))?.into());
        println!("{}", serde_json::Value::Object(result));
        return Ok(());
    }
    if let Some(matching) = GradientMatching::new(&args.case, [args.batch, args.side], args.dtype, args.device)? {
        let (loss, x) = matching.iterate()?;
        let ms = median_ms(args.repeat, || matching.iterate().and_then(|(_, x)| norm(&x)).map(drop))?;
        println!("{}", serde_json::json!({ "loss": loss, "x_norm": norm(&x)?, "ms": ms, "peak_mb": peak_mb() }));
        return Ok(());
    }
    let (name, own) = args.case.strip_suffix("/kkt").map_or((args.case.as_str(), false), |name| (name, true));
    let sizes = case(name).ok_or_else(|| format!("no case {}", args.case))?;
    let network = perceptron(sizes)?;
    let mut problem = Problem::new(&network, sizes, args.dtype, args.device, args.form, own)?;
    forget_peak();
    let (loss, x, c) = problem.iterate()?;
    // The loss is read in every iteration, after all else that was asked of the device.
    let ms = median_ms(args.repeat, || problem.iterate().map(drop))?;
    let result = serde_json::json!({
        "loss": loss, "x_norm": norm(&x)?, "c_norm": norm(&c)?, "ms": ms, "peak_mb": peak_mb()
    });
    println!("{result}");
    Ok(())
}
