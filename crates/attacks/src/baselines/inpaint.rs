//! Lost pixels filled in smoothly: what can be had of a damaged sample without any network.
//!
//! *Threat model.* Damaged samples, and nothing else. Whatever an attack on the autoencoder gives beyond this, the
//! autoencoder gave away. Biharmonic inpainting (see Damelin & Hoang, "On surface completion and image inpainting by
//! biharmonic functions", 2018): of all pictures with the pixels that are left, the one whose Laplacian L x has the
//! smallest sum of squares.

use afterimage_nn::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::conjugate::Conjugate;
use crate::{Attack, AttackError, Card, DegradedSeen, Parameter, Reconstruction, Session};

/// min ‖L x‖² over the lost pixels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Inpaint {
    /// Most steps of conjugate gradients.
    pub iterations: usize,
}

impl Default for Inpaint {
    fn default() -> Self {
        Self { iterations: 2000 }
    }
}

const NAME: &str = "inpaint";

impl Attack for Inpaint {
    const CARD: Card = Card {
        name: NAME,
        summary: "Fills in lost pixels smoothly, without the network; a baseline.",
        attacker: "Anybody who has damaged samples.",
        method: "The lost pixels are chosen so that the picture bends as little as possible. What else an attack on \
                 the autoencoder brings back, it owes to the autoencoder.",
        needs: "Damaged samples, and which of their pixels were lost; if that is not shared, those that are zero.",
        limits: "It knows nothing of the records: it is here to be beaten. It does not undo a blur.",
        citation: "S. B. Damelin, N. S. Hoang. On surface completion and image inpainting by biharmonic functions: \
                   numerical aspects. IJMMS 2018.",
        defences: &["Do not publish damaged copies of records from which too little was taken."],
        parameters: &[Parameter {
            name: "iterations",
            default: "2000",
            purpose: "most steps of conjugate gradients",
            range: "1 or more",
        }],
    };

    type Sees = DegradedSeen;

    fn reconstruct(&self, seen: &DegradedSeen, _: &mut Session<'_>) -> Result<Reconstruction, AttackError> {
        if self.iterations == 0 {
            return Err(AttackError::setting("iterations", 0, "must be 1 or more"));
        }
        if seen.blur.is_some() {
            let reason = "the samples are blurred, and nothing of them is lost".into();
            let hint = "`autoencoder` undoes a blur".into();
            return Err(AttackError::NotApplicable { attack: NAME, reason, hint });
        }
        let y = &seen.degraded;
        y.check_finite("damaged samples")?;
        let values = y.to_f64_vec()?;
        let noise = seen.noise.unwrap_or(0.0);
        let lost: Vec<bool> = match &seen.mask {
            Some(mask) => mask.to_f64_vec()?.iter().cycle().zip(&values).map(|(kept, _)| *kept == 0.0).collect(),
            None => values.iter().map(|value| value.abs() <= 3.0 * noise).collect(),
        };
        let grid = Grid::of(&y.shape()[1..]);
        let held =
            |values: Vec<f64>| values.into_iter().zip(&lost).map(|(x, lost)| if *lost { x } else { 0.0 }).collect();
        let bent = |x: &[f64]| -> Vec<f64> { held(grid.laplacian(&grid.laplacian(x))) };
        let known: Vec<f64> = values.iter().zip(&lost).map(|(y, lost)| if *lost { 0.0 } else { *y }).collect();
        let rows = |values: &[f64]| Tensor::from_f64(values, &[y.rows(), y.row_len()], DType::F64);
        let pull = rows(&bent(&known))?.scale(-1.0)?;
        let solve = Conjugate { steps: self.iterations, tolerance: 1e-16 };
        // A sample of which nothing is left has nothing to pull at: it stays dark.
        let filled = solve.solve(&pull, |s| Ok(rows(&bent(&s.to_f64_vec()?))?))?.to_f64_vec()?;
        let samples: Vec<f64> = known.iter().zip(&filled).map(|(known, filled)| known + filled).collect();
        Ok(Reconstruction::finished(Tensor::from_f64(&samples, y.shape(), y.dtype())?, 0.0, false))
    }
}

/// Pictures, one after another.
struct Grid {
    height: usize,
    width: usize,
}

impl Grid {
    /// Of samples of this shape; rows of numbers are pictures of one line.
    fn of(sample: &[usize]) -> Self {
        match *sample {
            [_, height, width] => Self { height, width },
            _ => Self { height: 1, width: sample.iter().product() },
        }
    }

    /// Σ (neighbour − pixel) over the neighbours that there are: symmetric.
    fn laplacian(&self, x: &[f64]) -> Vec<f64> {
        let (height, width) = (self.height, self.width);
        let mut sums = vec![0.0; x.len()];
        let pictures = x.chunks_exact((height * width).max(1)).zip(sums.chunks_exact_mut((height * width).max(1)));
        for (picture, sums) in pictures {
            let mut between = |a: usize, b: usize| {
                sums[a] += picture[b] - picture[a];
                sums[b] += picture[a] - picture[b];
            };
            for place in 0..height * width {
                if place % width + 1 < width {
                    between(place, place + 1);
                }
                if place / width + 1 < height {
                    between(place, place + width);
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use afterimage_nn::zoo::Mlp;
    use afterimage_nn::{DType, Init, Network};

    use super::*;
    use crate::{Model, Quiet};

    fn filled(values: Vec<f64>, shape: &[usize], mask: Option<Vec<f64>>) -> Vec<f64> {
        let network = Network::new(Mlp::new(3, &[], 3).spec()).unwrap();
        let theta = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
        let model = Model { network, theta, loss: None, preprocess: None };
        let mask = mask.map(|mask| Tensor::from_vec(mask, &shape[1..]).unwrap());
        let degraded = Tensor::from_vec(values, shape).unwrap();
        let seen = DegradedSeen { model, degraded, mask, blur: None, noise: Some(0.0) };
        let found = Inpaint::default().reconstruct(&seen, &mut Session::new(1, &mut Quiet)).unwrap();
        found.samples.to_f64_vec().unwrap()
    }

    /// What bends nowhere is a straight line.
    #[test]
    fn a_slope_is_carried_on_over_what_was_lost() {
        let found = filled(vec![0.2, 0.3, 0.0, 0.0, 0.6, 0.7], &[1, 6], None);
        // The outermost pixels have one neighbour: the slope shows there, whatever is filled in.
        for (found, expected) in found.iter().zip([0.2, 0.3, 0.4, 0.5, 0.6, 0.7]) {
            assert!((found - expected).abs() < 1e-7, "{found} for {expected}");
        }
    }

    #[test]
    fn flat_pictures_stay_flat_and_true_zeros_are_not_touched() {
        let mask: Vec<f64> = (0..16).map(|place| f64::from(place % 3 != 1)).collect();
        let picture: Vec<f64> = mask.iter().map(|kept| 0.5 * kept).collect();
        for found in filled(picture, &[1, 1, 4, 4], Some(mask)) {
            assert!((found - 0.5).abs() < 1e-7, "{found}");
        }
        let zero = filled(vec![0.4, 0.0, 0.4], &[1, 3], Some(vec![1.0, 1.0, 0.0]));
        assert_eq!(zero[1], 0.0);
        assert_eq!(filled(vec![0.0; 3], &[1, 3], None), [0.0; 3]);
    }
}
