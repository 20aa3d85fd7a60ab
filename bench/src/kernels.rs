//! Tangent kernels of many records: time, and memory beside the result.

use std::error::Error;
use std::time::Instant;

use afterimage_nn::tangent::{self, InfiniteWidth};
use afterimage_nn::zoo::Mlp;
use afterimage_nn::{DType, Init, Network, Stream};

use crate::peak_mb;

const RECORDS: usize = 5000;
const PIXELS: usize = 784;

/// Which kernels are measured, those that take least memory first: a peak hides smaller ones after it.
pub(crate) const KERNELS: [&str; 2] = ["perceptron", "infinite width"];

/// One line of JSON.
pub(crate) fn measured(name: &str, dtype: DType) -> Result<serde_json::Value, Box<dyn Error>> {
    let x = Stream::new(1, "records", 0).normal_tensor(0.3, &[RECORDS, PIXELS], dtype)?;
    let before = peak_mb().unwrap_or(0.0);
    let start = Instant::now();
    let kernel = match name {
        "infinite width" => InfiniteWidth { hidden: 2, weight_std: 1.0 }.between(&x.to_dtype(DType::F64)?, None)?,
        _ => {
            let network = Network::new(Mlp::new(PIXELS, &[1024, 1024], 1).spec())?;
            tangent::kernel(&network, &network.init(&Init::LecunNormal.into(), 1, dtype)?, &x, None)?
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let result_mb = 8.0 * kernel.count() as f64 / 1e6;
    let beyond_mb = peak_mb().unwrap_or(0.0) - before - result_mb;
    Ok(
        serde_json::json!({ "kernel": name, "records": RECORDS, "s": seconds, "result_mb": result_mb, "beyond_mb": beyond_mb }),
    )
}
