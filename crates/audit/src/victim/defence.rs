//! What a client does to its gradient before it shares it.

use afterimage_attacks::{Defence, Quantise};
use afterimage_nn::{Params, Stream, Tensor};

use crate::plan::Rounding;
use crate::{AuditError, Result};

/// Fails, naming the key, if a number is out of range.
pub(super) fn check(defence: Defence) -> Result<()> {
    match defence.fault() {
        None => Ok(()),
        Some((key, value, hint)) => {
            Err(AuditError::plan(&format!("victim.defence.{key}"), format!("is {value}"), hint))
        }
    }
}

/// The gradient as it is shared: clipped, then noisy, then pruned, then rounded.
pub(super) fn defended(gradient: &Params, defence: Defence, seed: u64) -> Result<Params> {
    let Defence { clip, noise, prune, noise_by_parameter, quantise } = defence;
    let mut shared = gradient.clone();
    let norm = shared.norm_squared()?.sqrt();
    if let Some(clip) = clip.filter(|clip| norm > *clip) {
        shared = shared.scale(clip / norm)?;
    }
    if noise > 0.0 {
        let whole = (shared.norm_squared()? / shared.count().max(1) as f64).sqrt();
        let mut stream = Stream::new(seed, "victim/defence", 0);
        shared = shared.map(|value| {
            let unit = match noise_by_parameter {
                true => (value.dot(value)? / value.shape().iter().product::<usize>().max(1) as f64).sqrt(),
                false => whole,
            };
            let noise = stream.normal_tensor(noise * unit, value.shape(), value.dtype())?;
            value.combine(1.0, &noise, 1.0)
        })?;
    }
    if prune > 0.0 {
        let mut sizes: Vec<f64> = Vec::with_capacity(shared.count());
        for value in shared.values() {
            sizes.extend(value.to_f64_vec()?.iter().map(|x| x.abs()));
        }
        let dropped = ((prune * sizes.len() as f64) as usize).min(sizes.len().saturating_sub(1));
        let (_, line, _) = sizes.select_nth_unstable_by(dropped, f64::total_cmp);
        let line = *line;
        shared = shared.map(|value| value.map(|x| if x.abs() < line { 0.0 } else { x }))?;
    }
    match quantise {
        Some(to) => Ok(shared.map(|value| rounded(value, to))?),
        None => Ok(shared),
    }
}

/// Weights as they are released.
pub(super) fn released(theta: &Params, rounding: Option<Rounding>) -> Result<Params> {
    Ok(match rounding {
        None => theta.clone(),
        Some(Rounding::Int8) => theta.map(|value| rounded(value, Quantise::Int8))?,
        // To the nearest, ties to even: half of what is cut off is added, and what the last kept bit is.
        Some(Rounding::Bf16) => theta.map(|value| {
            value.map(|x| {
                let bits = (x as f32).to_bits();
                let kept = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
                f64::from(f32::from_bits(kept))
            })
        })?,
    })
}

/// One parameter's numbers in few bits.
fn rounded(value: &Tensor, to: Quantise) -> afterimage_nn::Result<Tensor> {
    let numbers = value.to_f64_vec()?;
    match to {
        Quantise::Int8 => {
            let step = numbers.iter().fold(0.0_f64, |most, x| most.max(x.abs())) / 127.0;
            value.map(|x| if step > 0.0 { (x / step).round() * step } else { 0.0 })
        }
        Quantise::Sign => {
            let size = numbers.iter().map(|x| x.abs()).sum::<f64>() / numbers.len().max(1) as f64;
            value.map(|x| if x == 0.0 { 0.0 } else { size * x.signum() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterimage_nn::zoo::Mlp;
    use afterimage_nn::{DType, Init, Network};

    fn numbers(params: &Params) -> Vec<f64> {
        params.values().iter().flat_map(|value| value.to_f64_vec().unwrap()).collect()
    }

    #[test]
    fn gradients_are_clipped_made_noisy_and_pruned() {
        let network = Network::new(Mlp::new(20, &[30], 4).spec()).unwrap();
        let gradient = network.init(&Init::Pytorch.into(), 1, DType::F64).unwrap();
        let norm = |params: &Params| params.norm_squared().unwrap().sqrt();
        let run = |defence| defended(&gradient, defence, 1).unwrap();
        let clipped = run(Defence { clip: Some(0.5), ..Defence::default() });
        assert!((norm(&clipped) - 0.5).abs() < 1e-12);
        assert_eq!(numbers(&run(Defence { clip: Some(1e9), ..Defence::default() })), numbers(&gradient));
        let noisy = run(Defence { noise: 0.1, ..Defence::default() });
        let off = norm(&noisy.sub(&gradient).unwrap()) / norm(&gradient);
        assert!((off - 0.1).abs() < 0.01, "{off}");
        let pruned = numbers(&run(Defence { prune: 0.9, ..Defence::default() }));
        let kept: Vec<f64> = pruned.iter().copied().filter(|x| *x != 0.0).collect();
        assert!((kept.len() as f64 / pruned.len() as f64 - 0.1).abs() < 0.01);
        let smallest = kept.iter().fold(f64::INFINITY, |smallest, x| smallest.min(x.abs()));
        let beyond = numbers(&gradient).iter().filter(|x| x.abs() > smallest).count();
        assert!(beyond < kept.len(), "the largest are kept");
        let coarse = run(Defence { quantise: Some(Quantise::Int8), ..Defence::default() });
        let off = norm(&coarse.sub(&gradient).unwrap()) / norm(&gradient);
        assert!(off > 1e-4 && off < 0.01, "{off}");
        let signs = run(Defence { quantise: Some(Quantise::Sign), ..Defence::default() });
        for (signs, gradient) in signs.values().iter().zip(gradient.values()) {
            let (signs, gradient) = (signs.to_f64_vec().unwrap(), gradient.to_f64_vec().unwrap());
            assert!(signs.iter().all(|x| (x.abs() - signs[0].abs()).abs() < 1e-15));
            assert!(signs.iter().zip(&gradient).all(|(a, b)| a.signum() == b.signum()));
        }
        let off = |to| norm(&released(&gradient, to).unwrap().sub(&gradient).unwrap()) / norm(&gradient);
        assert_eq!(off(None), 0.0);
        assert!((5e-4..3e-3).contains(&off(Some(Rounding::Bf16))), "{}", off(Some(Rounding::Bf16)));
        assert!((5e-4..1e-2).contains(&off(Some(Rounding::Int8))), "{}", off(Some(Rounding::Int8)));
        for wrong in [
            Defence { clip: Some(0.0), ..Defence::default() },
            Defence { noise: -1.0, ..Defence::default() },
            Defence { prune: 1.0, ..Defence::default() },
        ] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }
}
