//! Tangent kernels of many records: time, and memory beside the result.

use std::error::Error;
use std::time::Instant;

use afterimage_nn::tangent::{self, InfiniteWidth};
use afterimage_nn::zoo::Mlp;
use afterimage_nn::{DType, Init, Network, Stream};

use crate::peak_mb;

const RECORDS: usize = 5000;
const PIXELS: usize = 784;

/// One line of JSON; one kernel a process, since a peak hides what comes after it.
pub(crate) fn measured(name: &str, dtype: DType) -> Result<serde_json::Value, Box<dyn Error>> {
    let x = Stream::new(1, "records", 0).normal_tensor(0.3, &[RECORDS, PIXELS], dtype)?;
    let before = peak_mb().unwrap_or(0.0);
    let start = Instant::now();
    let kernel = match name {
        "infinite" => InfiniteWidth { hidden: 2, weight_std: 1.0 }.between(&x.to_dtype(DType::F64)?, None)?,
        "perceptron" => {
            let network = Network::new(Mlp::new(PIXELS, &[1024, 1024], 1).spec())?;
            tangent::kernel(&network, &network.init(&Init::LecunNormal.into(), 1, dtype)?, &x, None)?
        }
        other => return Err(format!("no kernel {other}").into()),
    };
    let seconds = start.elapsed().as_secs_f64();
    let result_mb = 8.0 * kernel.count() as f64 / 1e6;
    let beyond_mb = peak_mb().unwrap_or(0.0) - before - result_mb;
    Ok(
        serde_json::json!({ "kernel": name, "records": RECORDS, "s": seconds, "result_mb": result_mb, "beyond_mb": beyond_mb }),
    )
}
