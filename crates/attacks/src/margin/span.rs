//! Records by their coordinates in a space.

use afterimage_nn::{DType, Tensor};

use crate::{AttackError, Contribution, Term};

/// A space of records: x = c V.
pub(crate) struct Span {
    /// V, one vector a row.
    pub(crate) basis: Tensor,
    /// The shape of one record.
    pub(crate) shape: Vec<usize>,
}

impl Span {
    /// The same in another number type.
    pub(crate) fn to_dtype(&self, dtype: DType) -> Result<Self, AttackError> {
        Ok(Self { basis: self.basis.to_dtype(dtype)?, shape: self.shape.clone() })
    }

    /// x = c V, in the shape of records.
    pub(crate) fn records(&self, coordinates: &Tensor) -> Result<Tensor, AttackError> {
        let shape: Vec<usize> = std::iter::once(coordinates.rows()).chain(self.shape.iter().copied()).collect();
        Ok(coordinates.matmul(&self.basis)?.reshape(&shape)?)
    }
}

/// A term over records, as one over their coordinates (variable 0).
pub(crate) struct Through<'a, T> {
    pub(crate) span: &'a Span,
    pub(crate) term: T,
}

impl<T: Term> Term for Through<'_, T> {
    fn evaluate(&mut self, iteration: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
        let mut records = at.to_vec();
        records[0] = self.span.records(&at[0])?;
        let Contribution { value, mut gradients } = self.term.evaluate(iteration, &records)?;
        if let Some(gradient) = gradients.first_mut().and_then(Option::as_mut) {
            let flat = gradient.reshape(&[gradient.rows(), gradient.row_len()])?;
            *gradient = flat.matmul_transposed(&self.span.basis)?;
        }
        Ok(Contribution { value, gradients })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_nn::Stream;

    #[test]
    fn gradients_are_those_of_coordinates() {
        let basis = Stream::new(1, "basis", 0).normal_tensor(1.0, &[2, 6], DType::F64).unwrap();
        let span = Span { basis, shape: vec![2, 3] };
        let c = Stream::new(1, "c", 0).normal_tensor(1.0, &[4, 2], DType::F64).unwrap();
        assert_eq!(span.records(&c).unwrap().shape(), [4, 2, 3]);
        /// Half the squared size of records.
        struct Size;
        impl Term for Size {
            fn evaluate(&mut self, _: usize, at: &[Tensor]) -> Result<Contribution, AttackError> {
                Ok(Contribution { value: 0.5 * at[0].dot(&at[0])?, gradients: vec![Some(at[0].clone())] })
            }
        }
        crate::objective::check_gradients(&mut Through { span: &span, term: Size }, 0, &[c], 1e-6);
    }
}
