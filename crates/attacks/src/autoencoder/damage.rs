//! What may have happened to samples: for each kind of damage, the two steps of the search that know of it.
//!
//! y = H x + ε. One step finds the x nearest to ṽ that explains y (equation 12), the other what of x is left in y
//! (equation 19). Everything else of the method is the same for all of them.

use afterimage_nn::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::blur::Blur;
use crate::AttackError;
use crate::conjugate::Conjugate;

/// What happened to the samples. A known kernel, which comes with them, is a blur whatever is said here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Damage {
    /// Pixels were lost, nobody knows which: they are zero.
    #[default]
    Erasure,
    /// Squares of pixels were lost, all channels of a square together.
    Blocks,
    /// Nothing was lost: there is noise alone.
    Noise,
}

/// H, or Θ, which is taken for it.
#[derive(Debug, Clone)]
pub(super) enum Operator {
    /// Pixels are kept (1) or lost (0), each sample's.
    Kept(Tensor),
    /// Pixels ran into each other.
    Blurred(Blur),
}

impl Operator {
    /// Of some samples alone.
    pub(super) fn of(&self, rows: &[usize]) -> Result<Self, AttackError> {
        match self {
            Operator::Kept(kept) => Ok(Operator::Kept(kept.select_rows(rows)?)),
            Operator::Blurred(_) => Ok(self.clone()),
        }
    }

    /// H x.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor, AttackError> {
        match self {
            Operator::Kept(kept) => Ok(x.multiply(kept)?),
            Operator::Blurred(blur) => blur.apply(x),
        }
    }

    /// Hᵀ r.
    pub(super) fn transposed(&self, r: &Tensor) -> Result<Tensor, AttackError> {
        match self {
            Operator::Kept(kept) => Ok(r.multiply(kept)?),
            Operator::Blurred(blur) => blur.transposed(r),
        }
    }

    /// H x − y where anything of a sample was kept.
    pub(super) fn off(&self, x: &Tensor, y: &Tensor) -> Result<Tensor, AttackError> {
        match self {
            Operator::Kept(kept) => Ok(x.combine(1.0, y, -1.0)?.multiply(kept)?),
            Operator::Blurred(blur) => Ok(blur.apply(x)?.combine(1.0, y, -1.0)?),
        }
    }

    /// argmin_x ‖Hx − y‖² + γ/2 ‖x − ṽ‖². Of an H that keeps or loses, equation 17 with ṽ, where v̂ is printed, is
    /// ṽ + H (y − ṽ) / (1 + γ/2); otherwise x = ṽ + s with (HᵀH + γ/2 I) s = Hᵀ(y − Hṽ), equation 28.
    pub(super) fn explain(&self, y: &Tensor, v: &Tensor, gamma: f64) -> Result<Tensor, AttackError> {
        let nearer = self.off(v, y)?;
        let Operator::Blurred(blur) = self else {
            return Ok(v.combine(1.0, &nearer, -1.0 / (1.0 + gamma / 2.0))?);
        };
        let pull = blur.transposed(&nearer)?.scale(-1.0)?.to_dtype(DType::F64)?;
        let solve = Conjugate { steps: 100, tolerance: 1e-20 };
        let step = solve.solve(&pull, |s| Ok(blur.transposed(&blur.apply(s)?)?.combine(1.0, s, gamma / 2.0)?))?;
        Ok(v.combine(1.0, &step.to_dtype(v.dtype())?, 1.0)?)
    }
}

/// A kind of damage of which Θ is not known, with the height and width of a square that is lost as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Damaged {
    pub(super) damage: Damage,
    pub(super) block: usize,
}

impl Damaged {
    /// Θ of equation 19: 1 where x explains y no worse than nothing does, (x − y)² ≤ y²; of blocks, in sum over one.
    pub(super) fn kept(self, x: &Tensor, y: &Tensor) -> Result<Tensor, AttackError> {
        let (xs, ys) = (x.to_f64_vec()?, y.to_f64_vec()?);
        let loss: Vec<f64> = xs.iter().zip(&ys).map(|(x, y)| x * (x - 2.0 * y)).collect();
        self.told_by(&loss, x)
    }

    /// Θ as y itself tells it: what is more than noise is there.
    pub(super) fn visible(self, y: &Tensor, noise: f64) -> Result<Tensor, AttackError> {
        // A block of which anything is there was not lost: what is zero in it is so in truth.
        let seen = if self.damage == Damage::Blocks { f64::NEG_INFINITY } else { -1.0 };
        let loss: Vec<f64> =
            y.to_f64_vec()?.into_iter().map(|y| if y.abs() > 3.0 * noise { seen } else { 1.0 }).collect();
        self.told_by(&loss, y)
    }

    /// 1 where what keeping costs is no more than 0.
    fn told_by(self, loss: &[f64], like: &Tensor) -> Result<Tensor, AttackError> {
        let keep = |loss: f64| if loss <= 0.0 { 1.0 } else { 0.0 };
        let kept: Vec<f64> = match (self.damage, like.shape()) {
            (Damage::Noise, _) => vec![1.0; loss.len()],
            (Damage::Blocks, &[_, channels, height, width]) => {
                let mut kept = vec![0.0; loss.len()];
                for block in blocks(like.rows(), [channels, height, width], self.block.max(1)) {
                    let value = keep(block.iter().map(|&place| loss[place]).sum());
                    block.iter().for_each(|&place| kept[place] = value);
                }
                kept
            }
            _ => loss.iter().map(|loss| keep(*loss)).collect(),
        };
        Ok(Tensor::from_f64(&kept, like.shape(), like.dtype())?.to_device(like.device())?)
    }
}

/// The places of every square of every image.
fn blocks(images: usize, [channels, height, width]: [usize; 3], side: usize) -> Vec<Vec<usize>> {
    let mut found = Vec::new();
    for image in 0..images {
        for (top, left) in
            (0..height).step_by(side).flat_map(|top| (0..width).step_by(side).map(move |left| (top, left)))
        {
            let rows = top..(top + side).min(height);
            let place = |channel: usize, y: usize, x: usize| ((image * channels + channel) * height + y) * width + x;
            let columns = left..(left + side).min(width);
            let square = (0..channels).flat_map(|c| rows.clone().map(move |y| (c, y)));
            found.push(square.flat_map(|(c, y)| columns.clone().map(move |x| place(c, y, x))).collect());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[f64]) -> Tensor {
        Tensor::from_vec(values.to_vec(), &[1, values.len()]).unwrap()
    }

    /// Equation 12 solved directly: (ΘᵀΘ + γ/2 I) x = Θᵀy + γ/2 ṽ.
    #[test]
    fn the_closed_form_is_the_direct_solution() {
        let (y, kept, v) = (row(&[0.3, 0.0, 0.9]), row(&[1.0, 0.0, 1.0]), row(&[0.5, 0.2, -0.4]));
        for gamma in [0.1, 1.0, 3.0] {
            let x = Operator::Kept(kept.clone()).explain(&y, &v, gamma).unwrap().to_f64_vec().unwrap();
            for ((x, y), (kept, v)) in x.iter().zip([0.3, 0.0, 0.9]).zip([(1.0, 0.5), (0.0, 0.2), (1.0, -0.4)]) {
                let expected = (kept * y + gamma / 2.0 * v) / (kept * kept + gamma / 2.0);
                assert!((x - expected).abs() < 1e-15);
            }
        }
    }

    /// Where equation 12 has its minimum the slope 2 Hᵀ(Hx − y) + γ (x − ṽ) is zero.
    #[test]
    fn of_a_blur_the_solution_has_no_slope() {
        let blur = Operator::Blurred(Blur::new(&row(&[0.25, 0.5, 0.25]), &[1, 6]).unwrap());
        let (y, v) = (row(&[0.1, 0.9, 0.3, 0.2, 0.6, 0.4]), row(&[0.5, -0.2, 0.4, 0.8, 0.1, 0.0]));
        for gamma in [0.1, 2.0] {
            let x = blur.explain(&y, &v, gamma).unwrap();
            let pull = blur.transposed(&blur.off(&x, &y).unwrap()).unwrap().scale(2.0).unwrap();
            let slope = pull.combine(1.0, &x.combine(gamma, &v, -gamma).unwrap(), 1.0).unwrap();
            assert!(slope.dot(&slope).unwrap() < 1e-20);
        }
    }

    #[test]
    fn what_is_kept_minimises_equation_19() {
        let (x, y) = ([0.5, 0.5, -0.1, 0.0, 0.3], [0.4, 0.0, 0.2, 0.0, 0.15]);
        let damaged = Damaged { damage: Damage::Erasure, block: 1 };
        let kept = damaged.kept(&row(&x), &row(&y)).unwrap().to_f64_vec().unwrap();
        assert_eq!(kept, [1.0, 0.0, 0.0, 1.0, 1.0]);
        for ((x, y), kept) in x.iter().zip(y).zip(kept) {
            let cost = |kept: f64| if kept == 1.0 { (x - y) * (x - y) } else { y * y };
            assert!(cost(kept) <= cost(1.0 - kept));
        }
        assert_eq!(damaged.visible(&row(&y), 0.0).unwrap().to_f64_vec().unwrap(), [1.0, 0.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn blocks_are_lost_as_a_whole() {
        let damaged = Damaged { damage: Damage::Blocks, block: 2 };
        let image = |values: Vec<f64>| Tensor::from_vec(values, &[1, 1, 2, 4]).unwrap();
        let x = image(vec![0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]);
        // In the left square one pixel is truly dark; the right one was lost.
        let y = image(vec![0.5, 0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0]);
        let expected = [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0];
        assert_eq!(damaged.kept(&x, &y).unwrap().to_f64_vec().unwrap(), expected);
        assert_eq!(damaged.visible(&y, 0.0).unwrap().to_f64_vec().unwrap(), expected);
    }
}
