//! Where tensors live.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Fails, saying what is missing, if this build or this machine has no such device.
    ///
    /// ```
    /// use afterimage_nn::Device;
    /// assert!(Device::Cpu.check().is_ok());
    /// ```
    pub fn check(self) -> Result<()> {
        self.open().map(drop)
    }

    /// The backend's handle.
    pub(crate) fn open(self) -> Result<candle_core::Device> {
        match self {
            Device::Cpu => Ok(candle_core::Device::Cpu),
            Device::Cuda(index) => cuda(index),
        }
    }
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<candle_core::Device> {
    crate::cuda::open(index)
}

#[cfg(not(feature = "cuda"))]
fn cuda(index: usize) -> Result<candle_core::Device> {
    Err(Error::Device {
        device: Device::Cuda(index).to_string(),
        problem: "this build has no CUDA support; build with `--features cuda` or use the device `cpu`".into(),
    })
}

/// Fails while the work of a device is being recorded: what the tensor backend does on its own account
/// would be done at once and never again.
pub(crate) fn in_the_open(operation: &'static str) -> Result<()> {
    #[cfg(feature = "cuda")]
    if crate::cuda::recording() {
        return Err(Error::Backend { operation, problem: "cannot be recorded".into() });
    }
    let _ = operation;
    Ok(())
}

/// Whether products of `f32` on a device may round their factors to TF32.
static TF32: AtomicBool = AtomicBool::new(false);

/// Lets products of `f32` matrices on a CUDA device round their factors to ten bits of mantissa
/// (TF32) from now on: several times as fast, with relative errors of about 1e-3 where they
/// would be 1e-7. Products in main memory and of `f64` stay as they are.
///
/// ```
/// afterimage_nn::allow_tf32(true);
/// assert!(afterimage_nn::tf32());
/// # afterimage_nn::allow_tf32(false);
/// ```
pub fn allow_tf32(allowed: bool) {
    TF32.store(allowed, Ordering::Relaxed);
}

/// What [`allow_tf32`] was last told; at first, no.
pub fn tf32() -> bool {
    TF32.load(Ordering::Relaxed)
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
