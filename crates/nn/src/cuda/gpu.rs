//! One device: its stream, its compiled kernels, and small tables that kernels read.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::cuda_backend::{CudaDevice, cudarc};
use cudarc::cublas::CudaBlas;
use cudarc::driver::{CudaFunction, CudaGraph, CudaModule, CudaSlice, CudaStream, result, sys};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

use super::biased::Biased;
use crate::{DType, Device, Error, Result};

/// The kernels, to be compiled with `Real` defined as the number type.
const KERNELS: [&str; 4] =
    [include_str!("pointwise.cu"), include_str!("reduce.cu"), include_str!("convolve.cu"), include_str!("pool.cu")];

/// A queue of work, and cuBLAS on it.
#[derive(Clone)]
pub(super) struct Lane {
    pub(super) stream: Arc<CudaStream>,
    pub(super) blas: Arc<CudaBlas>,
}

thread_local! {
    /// Where this thread's work goes while it is recorded instead of done.
    static RECORDER: RefCell<Option<Lane>> = const { RefCell::new(None) };
}

/// This thread's work goes to a recorder as long as this lives.
struct Turned;

impl Turned {
    fn onto(lane: Lane) -> Self {
        RECORDER.set(Some(lane));
        Self
    }
}

impl Drop for Turned {
    fn drop(&mut self) {
        RECORDER.set(None);
    }
}

/// Whether this thread's work is being recorded.
pub(crate) fn recording() -> bool {
    RECORDER.with_borrow(Option::is_some)
}

/// A device that is open.
pub(super) struct Gpu {
    pub(super) device: CudaDevice,
    main: Lane,
    biased: Biased,
    /// The lane that work is recorded on, made when first asked for; one recording at a time.
    recorder: Mutex<Option<Lane>>,
    modules: Mutex<HashMap<DType, Arc<CudaModule>>>,
    functions: Mutex<HashMap<(&'static str, DType), CudaFunction>>,
    tables: Mutex<HashMap<Vec<i32>, Arc<CudaSlice<i32>>>>,
}

fn devices() -> &'static Mutex<HashMap<usize, Arc<Gpu>>> {
    static OPEN: OnceLock<Mutex<HashMap<usize, Arc<Gpu>>>> = OnceLock::new();
    OPEN.get_or_init(Mutex::default)
}

/// A lock that a panic elsewhere does not spoil: what it guards is added to, or taken out while it is used.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The backend's handle of a device, made once: tensors of two handles cannot be combined.
pub(crate) fn open(index: usize) -> Result<candle_core::Device> {
    Ok(candle_core::Device::Cuda(Gpu::open(index)?.device.clone()))
}

impl Gpu {
    /// The device of that number, opened when first asked for.
    pub(super) fn open(index: usize) -> Result<Arc<Self>> {
        let mut open = locked(devices());
        if let Some(gpu) = open.get(&index) {
            return Ok(gpu.clone());
        }
        let gpu = Arc::new(Self::new(index)?);
        open.insert(index, gpu.clone());
        Ok(gpu)
    }

    fn new(index: usize) -> Result<Self> {
        let unusable = |error: &dyn Display| Error::Device {
            device: Device::Cuda(index).to_string(),
            problem: format!("cannot be opened ({error}); is the driver loaded and the device free?"),
        };
        let device = CudaDevice::new_with_stream(index).map_err(|error| unusable(&error))?;
        // SAFETY: events order work of several streams. Here work is done on one, no other handle to the device is made,
        // and nothing runs on the one for recordings: they are launched on the first.
        unsafe { device.disable_event_tracking() };
        keep_memory(&device).map_err(|error| unusable(&error))?;
        let main = Lane { stream: device.cuda_stream(), blas: device.cublas_handle() };
        let biased = Biased::new(&main.stream)?;
        let (modules, functions, tables) = (Mutex::default(), Mutex::default(), Mutex::default());
        Ok(Self { device, main, biased, recorder: Mutex::default(), modules, functions, tables })
    }

    pub(super) fn biased(&self) -> &Biased {
        &self.biased
    }

    /// Where work goes: the device's one stream, or whatever records this thread.
    pub(super) fn lane(&self) -> Lane {
        RECORDER.with_borrow(|recorder| recorder.as_ref().unwrap_or(&self.main).clone())
    }

    /// The stream that everything is done on, in the end.
    pub(super) fn stream(&self) -> &CudaStream {
        &self.main.stream
    }

    /// Records what `f` asks of the device on this thread. It is on a stream of its own, so that
    /// what other threads ask of the device meanwhile is done and not recorded. `None` if something in it
    /// cannot be recorded.
    pub(super) fn record(&self, f: impl FnOnce() -> Result<()>) -> Result<Option<CudaGraph>> {
        const WHAT: &str = "recording";
        let mut recorder = locked(&self.recorder);
        if recorder.is_none() {
            let stream = self.main.stream.context().new_stream().map_err(failed(WHAT))?;
            let blas = Arc::new(CudaBlas::new(stream.clone()).map_err(failed(WHAT))?);
            *recorder = Some(Lane { stream, blas });
        }
        // A recording that goes wrong, by a panic too, leaves no lane behind for the next one.
        let Some(lane) = recorder.take() else { return Ok(None) };
        self.main.stream.synchronize().map_err(failed(WHAT))?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        if lane.stream.begin_capture(mode).is_err() {
            return Ok(None);
        }
        let recorded = {
            let _turned = Turned::onto(lane.clone());
            f()
        };
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        // A copy from main memory, or a wait: not for a graph, but fine without one.
        match (recorded, lane.stream.end_capture(flags)) {
            (Ok(()), Ok(Some(graph))) => {
                *recorder = Some(lane);
                Ok(Some(graph))
            }
            _ => Ok(None),
        }
    }

    /// A kernel for a number type.
    pub(super) fn function(&self, name: &'static str, dtype: DType) -> Result<CudaFunction> {
        let mut functions = locked(&self.functions);
        if let Some(function) = functions.get(&(name, dtype)) {
            return Ok(function.clone());
        }
        let function = self.module(dtype)?.load_function(name).map_err(failed(name))?;
        functions.insert((name, dtype), function.clone());
        Ok(function)
    }

    fn module(&self, dtype: DType) -> Result<Arc<CudaModule>> {
        let mut modules = locked(&self.modules);
        if let Some(module) = modules.get(&dtype) {
            return Ok(module.clone());
        }
        const WHAT: &str = "compiling kernels";
        let stream = self.stream();
        let (major, minor) = stream.context().compute_capability().map_err(failed(WHAT))?;
        let real = match dtype {
            DType::F32 => "float",
            DType::F64 => "double",
        };
        let options = vec![format!("--gpu-architecture=compute_{major}{minor}"), format!("-DReal={real}")];
        let options = CompileOptions { options, ..CompileOptions::default() };
        let ptx = compile_ptx_with_opts(KERNELS.concat(), options).map_err(failed(WHAT))?;
        let module = stream.context().load_module(ptx).map_err(failed(WHAT))?;
        modules.insert(dtype, module.clone());
        Ok(module)
    }

    /// Numbers that a kernel looks up, kept on the device: there are few, and they do not change.
    pub(super) fn table(&self, numbers: Vec<i32>) -> Result<Arc<CudaSlice<i32>>> {
        let mut tables = locked(&self.tables);
        if let Some(table) = tables.get(&numbers) {
            return Ok(table.clone());
        }
        let table = Arc::new(self.device.clone_htod(&numbers).map_err(Error::backend("moving a table"))?);
        tables.insert(numbers, table.clone());
        Ok(table)
    }
}

/// Memory that was freed stays with the process until it ends: by default the driver takes all
/// of it back whenever somebody waits for the device, and every pass asks for it again.
fn keep_memory(device: &CudaDevice) -> std::result::Result<(), result::DriverError> {
    let mut most = u64::MAX;
    let stream = device.cuda_stream();
    // SAFETY: the pool is the device's own, and the attribute is a 64-bit number, as the driver wants it.
    unsafe {
        let pool = result::device::get_default_mem_pool(stream.context().cu_device())?;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        result::mem_pool::set_attribute(pool, attribute, (&raw mut most).cast())
    }
}

/// An error of the driver or one of its libraries.
pub(super) fn failed<E: std::fmt::Debug>(operation: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::Backend { operation, problem: format!("{error:?}") }
}
