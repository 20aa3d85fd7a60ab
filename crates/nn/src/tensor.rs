//! Dense tensors of `f32` or `f64`: a newtype over candle's, with its types kept private.

use std::fmt;
use std::ops::{Deref, Range};

use candle_core::{CpuStorage, Storage};
use serde::{Deserialize, Serialize};

use crate::device::in_the_open;
use crate::kernel::element::Element;
use crate::kernel::reduce;
use crate::{Device, Error, Result, ops};

/// Number type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit floating point.
    #[default]
    F32,
    /// 64-bit floating point.
    F64,
}

impl DType {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 => size_of::<f32>(),
            DType::F64 => size_of::<f64>(),
        }
    }

    pub(crate) fn backend(self) -> candle_core::DType {
        match self {
            DType::F32 => candle_core::DType::F32,
            DType::F64 => candle_core::DType::F64,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
        })
    }
}

/// Runs a block once for the element type of a dtype: `on_host!(dtype, T => …)`.
macro_rules! on_host {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
        }
    };
}
pub(crate) use on_host;

/// Number of elements of a shape, unless it overflows.
fn checked_count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |product, &side| product.checked_mul(side))
}

/// Number of elements of a shape that can exist in memory.
pub(crate) fn addressable(shape: &[usize]) -> Result<usize> {
    let fits = |count: &usize| count.checked_mul(size_of::<f64>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    checked_count(shape).filter(fits).ok_or_else(|| Error::shape("tensor", "a size that can be addressed", shape))
}

/// An immutable, dense, row-major tensor. Cloning shares the memory.
///
/// ```
/// use afterimage_nn::{DType, Tensor};
/// let x = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// assert_eq!(x.shape(), [2, 2]);
/// assert_eq!(x.dtype(), DType::F32);
/// assert_eq!(x.transpose()?.to_f64_vec()?, [1.0, 3.0, 2.0, 4.0]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor(pub(crate) candle_core::Tensor);

impl Tensor {
    /// A tensor of the given shape from its elements in row-major order, in main memory.
    pub fn from_vec<T: Element>(data: Vec<T>, shape: &[usize]) -> Result<Self> {
        if checked_count(shape) != Some(data.len()) {
            return Err(Error::shape(format!("{} elements", data.len()), shape, &[data.len()]));
        }
        candle_core::Tensor::from_vec(data, shape, &candle_core::Device::Cpu)
            .map(Tensor)
            .map_err(Error::backend("making a tensor"))
    }

    /// A tensor from doubles, rounded to `dtype`, in main memory.
    pub fn from_f64(data: &[f64], shape: &[usize], dtype: DType) -> Result<Self> {
        on_host!(dtype, T => Self::from_vec(data.iter().map(|&x| T::of(x)).collect::<Vec<T>>(), shape))
    }

    /// All elements the same.
    pub fn full(value: f64, shape: &[usize], dtype: DType, device: Device) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(index) = device {
            return crate::cuda::full(value, shape, dtype, index);
        }
        let count = addressable(shape)?;
        on_host!(dtype, T => Self::from_vec(vec![T::of(value); count], shape))?.to_device(device)
    }

    /// All zero.
    pub fn zeros(shape: &[usize], dtype: DType, device: Device) -> Result<Self> {
        Self::full(0.0, shape, dtype, device)
    }

    /// All zero, otherwise like `self`.
    pub fn zeros_like(&self) -> Result<Self> {
        Self::zeros(self.shape(), self.dtype(), self.device())
    }

    /// Length of each axis.
    pub fn shape(&self) -> &[usize] {
        self.0.dims()
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.0.elem_count()
    }

    /// Length of the first axis: the batch. A scalar counts as one.
    pub fn rows(&self) -> usize {
        self.shape().first().copied().unwrap_or(1)
    }

    /// Elements in one row: the product of all axes but the first.
    pub fn row_len(&self) -> usize {
        self.shape().iter().skip(1).product()
    }

    /// Number type.
    pub fn dtype(&self) -> DType {
        match self.0.dtype() {
            candle_core::DType::F64 => DType::F64,
            // The constructors admit f32 and f64 alone.
            _ => DType::F32,
        }
    }

    /// Where the elements are.
    pub fn device(&self) -> Device {
        match self.0.device().location() {
            candle_core::DeviceLocation::Cuda { gpu_id } => Device::Cuda(gpu_id),
            _ => Device::Cpu,
        }
    }

    pub(crate) fn on_cpu(&self) -> bool {
        self.0.device().is_cpu()
    }

    /// The elements in row-major order, as doubles.
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        let host = self.to_device(Device::Cpu)?;
        on_host!(host.dtype(), T => Ok(host.host::<T>()?.iter().map(|x| x.wide()).collect()))
    }

    /// The one element of a tensor that has one.
    pub fn to_scalar(&self) -> Result<f64> {
        match self.to_f64_vec()?.as_slice() {
            [value] => Ok(*value),
            _ => Err(Error::shape("a scalar", [1], self.shape())),
        }
    }

    /// The same elements in another shape.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        if checked_count(shape) != Some(self.count()) {
            return Err(Error::shape("reshape", shape, self.shape()));
        }
        self.0.reshape(shape).map(Tensor).map_err(Error::backend("reshape"))
    }

    /// The same values in another number type.
    pub fn to_dtype(&self, dtype: DType) -> Result<Self> {
        in_the_open("changing the number type")?;
        self.0.to_dtype(dtype.backend()).map(Tensor).map_err(Error::backend("changing the number type"))
    }

    /// The same values on another device.
    pub fn to_device(&self, device: Device) -> Result<Self> {
        if device == self.device() {
            return Ok(self.clone());
        }
        in_the_open("moving a tensor")?;
        self.0.to_device(&device.open()?).map(Tensor).map_err(Error::backend("moving a tensor"))
    }

    /// The transpose of a matrix.
    pub fn transpose(&self) -> Result<Self> {
        in_the_open("transpose")?;
        let t = self.0.t().and_then(|t| t.contiguous());
        t.map(Tensor).map_err(Error::backend("transpose"))
    }

    /// Rows `range` of the first axis.
    pub fn slice_rows(&self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.rows() {
            return Err(Error::shape(format!("rows {range:?}"), "at least that many rows", self.shape()));
        }
        let part = self.0.narrow(0, range.start, range.len()).and_then(|part| part.contiguous());
        part.map(Tensor).map_err(Error::backend("taking rows"))
    }

    /// The rows at `indices`, in that order.
    pub fn select_rows(&self, indices: &[usize]) -> Result<Self> {
        if let Some(index) = indices.iter().find(|&&index| index >= self.rows()) {
            return Err(Error::shape(format!("row {index}"), "a row that exists", self.shape()));
        }
        let indices: Vec<u32> = indices.iter().map(|&index| index as u32).collect();
        in_the_open("selecting rows")?;
        candle_core::Tensor::new(indices, self.0.device())
            .and_then(|indices| self.0.index_select(&indices, 0))
            .map(Tensor)
            .map_err(Error::backend("selecting rows"))
    }

    /// Tensors stacked along the first axis.
    pub fn concat_rows(parts: &[&Tensor]) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Some(first) = parts.first().filter(|first| !first.on_cpu()) {
            ops::same_rows("stacking rows", parts)?;
            let rows = parts.iter().map(|part| part.rows()).sum();
            let shape: Vec<usize> = std::iter::once(rows).chain(first.shape().iter().skip(1).copied()).collect();
            return crate::cuda::concat_rows(parts, &shape);
        }
        let parts: Vec<&candle_core::Tensor> = parts.iter().map(|part| &part.0).collect();
        candle_core::Tensor::cat(&parts, 0).map(Tensor).map_err(Error::backend("stacking rows"))
    }

    /// α · self + β · other, element by element.
    ///
    /// ```
    /// use afterimage_nn::Tensor;
    /// let (a, b) = (Tensor::from_vec(vec![1.0, 2.0], &[2])?, Tensor::from_vec(vec![3.0, 5.0], &[2])?);
    /// assert_eq!(a.combine(2.0, &b, -1.0)?.to_f64_vec()?, [-1.0, -1.0]);
    /// assert_eq!(a.dot(&b)?, 13.0);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn combine(&self, alpha: f64, other: &Self, beta: f64) -> Result<Self> {
        ops::combine(alpha, self, beta, other)
    }

    /// a ⊙ b, element by element.
    ///
    /// ```
    /// use afterimage_nn::Tensor;
    /// let a = Tensor::from_vec(vec![1.0, -2.0], &[2])?;
    /// assert_eq!(a.multiply(&a)?.to_f64_vec()?, [1.0, 4.0]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn multiply(&self, other: &Self) -> Result<Self> {
        ops::mul(self, other)
    }

    /// factor · self.
    pub fn scale(&self, factor: f64) -> Result<Self> {
        ops::scale(factor, self)
    }

    /// The matrix product self · other.
    ///
    /// ```
    /// use afterimage_nn::Tensor;
    /// let (a, b) = (Tensor::from_vec(vec![1.0, 2.0], &[1, 2])?, Tensor::from_vec(vec![3.0, 5.0], &[1, 2])?);
    /// assert_eq!(a.matmul(&b.transpose()?)?.to_f64_vec()?, [13.0]);
    /// assert_eq!(a.matmul_transposed(&b)?.to_f64_vec()?, [13.0]);
    /// assert!(a.matmul(&b).is_err());
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn matmul(&self, other: &Self) -> Result<Self> {
        ops::matmul(ops::Factor::plain(self), ops::Factor::plain(other))
    }

    /// The matrix product self · otherᵀ.
    pub fn matmul_transposed(&self, other: &Self) -> Result<Self> {
        ops::matmul(ops::Factor::plain(self), ops::Factor::transposed(other))
    }

    /// Σ self · other over all elements.
    pub fn dot(&self, other: &Self) -> Result<f64> {
        ops::dot(self, other)
    }

    /// Σ self · other over each row, in double precision.
    ///
    /// ```
    /// use afterimage_nn::Tensor;
    /// let a = Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], &[2, 2])?;
    /// assert_eq!(a.dot_rows(&a)?, [5.0, 25.0]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn dot_rows(&self, other: &Self) -> Result<Vec<f64>> {
        ops::dot_rows(self, other)
    }

    /// Each row plus its own factor times the row of `other`.
    ///
    /// ```
    /// use afterimage_nn::Tensor;
    /// let a = Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], &[2, 2])?;
    /// assert_eq!(a.add_rows(&[0.0, -1.0], &a)?.to_f64_vec()?, [1.0, 2.0, 0.0, 0.0]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn add_rows(&self, factors: &[f64], other: &Self) -> Result<Self> {
        ops::add_rows(self, factors, other)
    }

    /// f of every element. Computed in main memory in double precision: for what is small or rare.
    pub fn map(&self, f: impl Fn(f64) -> f64) -> Result<Self> {
        let mapped: Vec<f64> = self.to_f64_vec()?.into_iter().map(f).collect();
        Self::from_f64(&mapped, self.shape(), self.dtype())?.to_device(self.device())
    }

    /// How far each element lies outside the range of its place in a row: nothing inside it.
    ///
    /// ```
    /// use afterimage_nn::Tensor;
    /// let x = Tensor::from_vec(vec![-0.5, 0.5, 3.0, 2.0], &[2, 2])?;
    /// let (low, high) = (Tensor::from_vec(vec![0.0, 0.0], &[2])?, Tensor::from_vec(vec![1.0, 2.0], &[2])?);
    /// assert_eq!(x.excess(&low, &high)?.to_f64_vec()?, [-0.5, 0.0, 2.0, 0.0]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn excess(&self, low: &Self, high: &Self) -> Result<Self> {
        ops::excess(self, low, high)
    }

    /// Every element moved into a range; what is no number stays so.
    ///
    /// ```
    /// use afterimage_nn::Tensor;
    /// let x = Tensor::from_vec(vec![-0.5, 0.5, 3.0], &[3])?;
    /// assert_eq!(x.clamp(0.0, 1.0)?.to_f64_vec()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn clamp(&self, low: f64, high: f64) -> Result<Self> {
        ops::clamp(self, low, high)
    }

    /// Every element moved into the range of its place in a row.
    ///
    /// ```
    /// use afterimage_nn::Tensor;
    /// let x = Tensor::from_vec(vec![-0.5, 0.5, 3.0, 2.0], &[2, 2])?;
    /// let (low, high) = (Tensor::from_vec(vec![0.0, 0.0], &[2])?, Tensor::from_vec(vec![1.0, 2.0], &[2])?);
    /// assert_eq!(x.clamp_rows(&low, &high)?.to_f64_vec()?, [0.0, 0.5, 1.0, 2.0]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn clamp_rows(&self, low: &Self, high: &Self) -> Result<Self> {
        ops::clamp_rows(self, low, high)
    }

    /// −1, 0 or 1 for each element; what is no number stays so.
    ///
    /// ```
    /// use afterimage_nn::Tensor;
    /// let x = Tensor::from_vec(vec![-0.5, 0.0, 3.0], &[3])?;
    /// assert_eq!(x.signs()?.to_f64_vec()?, [-1.0, 0.0, 1.0]);
    /// # Ok::<(), afterimage_nn::Error>(())
    /// ```
    pub fn signs(&self) -> Result<Self> {
        ops::signs(self)
    }

    /// Fails, naming `what`, unless every element is finite.
    pub fn check_finite(&self, what: &str) -> Result<()> {
        Self::check_all_finite(&[(self, what)])
    }

    /// The same for several tensors, with one reading of the device they may be on.
    pub(crate) fn check_all_finite(tensors: &[(&Self, &str)]) -> Result<()> {
        #[cfg(feature = "cuda")]
        {
            let away = tensors.iter().filter(|(tensor, _)| !tensor.on_cpu());
            let sums = away.map(|(tensor, _)| crate::cuda::finite(tensor, None)).collect::<Result<_>>()?;
            // 0 · x summed where it is: zero unless something is not finite. Only then is it worth moving.
            if ops::Total::read_all(sums)?.iter().all(|&sum| sum == 0.0) {
                let mut here = tensors.iter().filter(|(tensor, _)| tensor.on_cpu());
                return here.try_for_each(|(tensor, what)| tensor.check_here(what));
            }
        }
        tensors.iter().try_for_each(|(tensor, what)| tensor.check_here(what))
    }

    fn check_here(&self, what: &str) -> Result<()> {
        let host = self.to_device(Device::Cpu)?;
        on_host!(host.dtype(), T => {
            let data = host.host::<T>()?;
            match reduce::first_non_finite(&data) {
                None => Ok(()),
                Some(index) => Err(Error::NonFinite { what: what.into(), index, value: data[index].wide() }),
            }
        })
    }

    /// The elements in main memory.
    pub(crate) fn host<T: Element>(&self) -> Result<impl Deref<Target = [T]> + '_> {
        let (storage, layout) = self.0.storage_and_layout();
        let (start, end) = layout
            .contiguous_offsets()
            .ok_or_else(|| Error::Backend { operation: "reading a tensor", problem: "it is not contiguous".into() })?;
        let host = Host { storage, range: start..end, element: std::marker::PhantomData };
        host.get().map_err(Error::backend("reading a tensor"))?;
        Ok(host)
    }
}

/// Borrowed elements of a tensor in main memory.
struct Host<Guard, T> {
    storage: Guard,
    range: Range<usize>,
    element: std::marker::PhantomData<T>,
}

impl<Guard: Deref<Target = Storage>, T: Element> Host<Guard, T> {
    fn get(&self) -> candle_core::Result<&[T]> {
        match &*self.storage {
            Storage::Cpu(storage) => CpuStorage::as_slice::<T>(storage).map(|data| &data[self.range.clone()]),
            _ => Err(candle_core::Error::msg("the tensor is not in main memory")),
        }
    }
}

impl<Guard: Deref<Target = Storage>, T: Element> Deref for Host<Guard, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // `Tensor::host` has seen this succeed, and nothing about it can change since.
        self.get().unwrap_or(&[])
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?} on {})", self.dtype(), self.shape(), self.device())
    }
}
