//! What may have happened to samples: for each kind of damage, the two steps of the search that know of it.
//!
//! y = H x + ε. One step finds the x nearest to ṽ that explains y (equation 12), the other what of x is left in y
//! (equation 19). Everything else of the method is the same for all of them.

use afterimage_nn::Tensor;
use serde::{Deserialize, Serialize};

use crate::AttackError;

/// What happened to the samples.
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

/// A kind of damage, with the height and width of a square that is lost as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Damaged {
    pub(super) damage: Damage,
    pub(super) block: usize,
}

impl Damaged {
    /// argmin_x ‖Θx − y‖² + γ/2 ‖x − ṽ‖² for Θ that keeps or loses: equation 17 with ṽ, where v̂ is printed, is
    /// ṽ + Θ (y − ṽ) / (1 + γ/2).
    pub(super) fn explain(y: &Tensor, kept: &Tensor, v: &Tensor, gamma: f64) -> Result<Tensor, AttackError> {
        let nearer = y.combine(1.0, v, -1.0)?.multiply(kept)?;
        Ok(v.combine(1.0, &nearer, 1.0 / (1.0 + gamma / 2.0))?)
    }

    /// Θ of equation 19: 1 where x explains y no worse than nothing does, (x − y)² ≤ y²; of blocks, in sum over one.
    pub(super) fn kept(self, x: &Tensor, y: &Tensor) -> Result<Tensor, AttackError> {
        let (xs, ys) = (x.to_f64_vec()?, y.to_f64_vec()?);
        let loss: Vec<f64> = xs.iter().zip(&ys).map(|(x, y)| x * (x - 2.0 * y)).collect();
        self.told_by(&loss, x)
    }

    /// Θ as y itself tells it: what is more than noise is there.
    pub(super) fn visible(self, y: &Tensor, noise: f64) -> Result<Tensor, AttackError> {
        let hidden =
            |y: f64| if y.abs() > 3.0 * noise { -1.0 } else { f64::from(u8::from(self.damage != Damage::Noise)) };
        let loss: Vec<f64> = y.to_f64_vec()?.into_iter().map(hidden).collect();
        match self.damage {
            // A block of which anything is there was not lost: what is zero in it is so in truth.
            Damage::Blocks => {
                self.told_by(&loss.iter().map(|l| if *l < 0.0 { -1e9 } else { *l }).collect::<Vec<_>>(), y)
            }
            _ => self.told_by(&loss, y),
        }
    }

    /// 1 where what keeping costs is no more than 0.
    fn told_by(self, loss: &[f64], like: &Tensor) -> Result<Tensor, AttackError> {
        let keep = |loss: f64| f64::from(u8::from(loss <= 0.0));
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
            let x = Damaged::explain(&y, &kept, &v, gamma).unwrap().to_f64_vec().unwrap();
            for ((x, y), (kept, v)) in x.iter().zip([0.3, 0.0, 0.9]).zip([(1.0, 0.5), (0.0, 0.2), (1.0, -0.4)]) {
                let expected = (kept * y + gamma / 2.0 * v) / (kept * kept + gamma / 2.0);
                assert!((x - expected).abs() < 1e-15);
            }
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
