//! Where tensors live.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The processor, or a CUDA device of a build with the feature `cuda`.
///
/// ```
/// use afterimage_nn::Device;
/// let device: Device = "cpu".parse()?;
/// assert_eq!(device, Device::Cpu);
/// assert!("gpu".parse::<Device>().is_err());
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Device {
    /// Main memory.
    #[default]
    Cpu,
    /// The n-th CUDA device.
    Cuda(usize),
}

impl Device {
    /// The backend's handle.
    pub(crate) fn open(self) -> Result<candle_core::Device> {
        match self {
            Device::Cpu => Ok(candle_core::Device::Cpu),
            Device::Cuda(index) => cuda(index),
        }
    }
}

/// CUDA handles are made once for each device: tensors of two handles cannot be combined.
#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<candle_core::Device> {
    use std::collections::HashMap;
    use std::sync::{Mutex, OnceLock, PoisonError};
    static OPEN: OnceLock<Mutex<HashMap<usize, candle_core::Device>>> = OnceLock::new();
    let mut open = OPEN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = open.get(&index) {
        return Ok(device.clone());
    }
    let device = candle_core::Device::new_cuda(index).map_err(|error| Error::Device {
        device: Device::Cuda(index).to_string(),
        problem: format!("cannot be opened ({error}); is the driver loaded and the device free?"),
    })?;
    open.insert(index, device.clone());
    Ok(device)
}

#[cfg(not(feature = "cuda"))]
fn cuda(index: usize) -> Result<candle_core::Device> {
    Err(Error::Device {
        device: Device::Cuda(index).to_string(),
        problem: "this build has no CUDA support; build with `--features cuda` or use the device `cpu`".into(),
    })
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => write!(f, "cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::Device { device: text.into(), problem: "not a device; use `cpu` or `cuda:0`".into() };
        match text {
            "cpu" => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(0)),
            _ => {
                let index = text.strip_prefix("cuda:").ok_or_else(wrong)?;
                index.parse().map(Device::Cuda).map_err(|_| wrong())
            }
        }
    }
}
