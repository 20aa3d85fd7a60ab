//! How sure an attacker can be of candidates, without the truth.
//!
//! | sign of a record | why |
//! | --- | --- |
//! | searches from other starts, at other settings, found it too | what is not there is found in other places |
//! | its multiplier is large | it carries the weights |
//! | \|Φ\| is the margin, the size most candidates agree on | records with weight lie on the margin |
//! | it lies in the row space of the first layer | training puts nothing else there |

use afterimage_nn::{DType, Tensor};

use crate::margin::{Labels, Reduced, project};
use crate::{AttackError, Model, Reconstruction};

/// Candidates this alike (normalised correlation) are of one record.
pub const ALIKE: f64 = 0.9;
/// Other reconstructions a candidate is looked for in, at most.
const LOOKED_IN: usize = 8;

/// The confidence in each candidate of a reconstruction, in [0, 1]: the geometric
/// mean of the signs above, as far as they can be told from a model's weights.
/// `others` are reconstructions by other searches of the same model.
pub fn confidence(
    model: &Model,
    rebuilt: &Reconstruction,
    others: &[&Reconstruction],
) -> Result<Vec<f64>, AttackError> {
    let count = rebuilt.samples.rows();
    let mut signs: Vec<Vec<f64>> = Vec::new();
    if !others.is_empty() {
        signs.push(agreement(rebuilt, others)?);
    }
    if let Some(coefficients) = &rebuilt.coefficients {
        signs.push(beside_largest(coefficients.to_f64_vec()?.iter().map(|value| value.abs()).collect()));
    }
    let outputs: usize = model.network.output_shape().iter().product();
    if count > 0 && rebuilt.layer.is_none() {
        let theta = &model.theta;
        let x = rebuilt.samples.to_dtype(theta.dtype())?.to_device(theta.device())?;
        let f = model.network.forward(theta, &x)?.to_f64_vec()?;
        signs.push(on_margin(&f.chunks_exact(outputs.max(1)).map(|f| Labels::margin_of(f).0).collect::<Vec<_>>()));
        if let Ok(space) = Reduced::of(&model.network, theta, None, "confidence") {
            let flat = x.reshape(&[count, x.row_len()])?;
            let inside = flat.matmul_transposed(&space.span.basis)?.to_f64_vec()?;
            let flat = flat.to_f64_vec()?;
            let size = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>();
            let rows = flat.chunks_exact(flat.len() / count).zip(inside.chunks_exact(inside.len() / count));
            signs.push(rows.map(|(x, inside)| (size(inside) / size(x).max(f64::MIN_POSITIVE)).min(1.0)).collect());
        }
    }
    let mean = |i: usize| {
        let logs: f64 = signs.iter().map(|sign| sign[i].max(1e-6).ln()).sum();
        (logs / signs.len().max(1) as f64).exp()
    };
    Ok((0..count).map(mean).collect())
}

/// For each candidate, the part of other reconstructions that have one alike.
pub(crate) fn agreement(rebuilt: &Reconstruction, others: &[&Reconstruction]) -> Result<Vec<f64>, AttackError> {
    let step = others.len().div_ceil(LOOKED_IN).max(1);
    let asked: Vec<_> = others.iter().step_by(step).collect();
    let mut found = vec![0.0; rebuilt.samples.rows()];
    for other in &asked {
        for (sum, likeness) in found.iter_mut().zip(likenesses(&rebuilt.samples, &other.samples)?) {
            *sum += f64::from(u8::from(likeness >= ALIKE)) / asked.len() as f64;
        }
    }
    Ok(found)
}

/// How much of a model's squared weights the candidates of a reconstruction explain, by the
/// conditions of a largest margin and the best multipliers: from 0 to 1, without the truth.
pub fn explained(model: &Model, rebuilt: &Reconstruction) -> Result<f64, AttackError> {
    let theta = &model.theta;
    let total = theta.norm_squared()?;
    if rebuilt.samples.rows() == 0 || rebuilt.layer.is_some() || total <= 0.0 {
        return Ok(0.0);
    }
    let x = rebuilt.samples.to_dtype(theta.dtype())?.to_device(theta.device())?;
    let f = model.network.forward(theta, &x)?.to_f64_vec()?;
    let outputs = f.len() / x.rows();
    let classes: Vec<usize> = match &rebuilt.labels {
        Some(labels) => labels.clone(),
        None => f.chunks_exact(outputs).map(|f| Labels::margin_of(f).1).collect(),
    };
    let labels = match outputs {
        1 => Labels::Signs(classes.iter().map(|&class| if class > 0 { 1.0 } else { -1.0 }).collect()),
        _ => Labels::Classes { classes, outputs },
    };
    let (_, left) = project(&model.network, theta, &x, &labels, &vec![1.0; theta.values().len()])?;
    Ok((1.0 - left / total).clamp(0.0, 1.0))
}

/// Several reconstructions of one model as one: candidates that are alike once, the
/// surest of them. A candidate is `confident` as its reconstruction says.
pub fn merged(parts: &[Reconstruction]) -> Result<Option<Reconstruction>, AttackError> {
    let Some(first) = parts.first() else { return Ok(None) };
    let samples: Vec<&Tensor> = parts.iter().map(|part| &part.samples).collect();
    let all = Tensor::concat_rows(&samples)?;
    let confidence: Vec<f64> = parts.iter().flat_map(|part| part.confidence.iter().copied()).collect();
    let mut order: Vec<usize> = (0..all.rows()).collect();
    order.sort_by(|&a, &b| confidence[b].total_cmp(&confidence[a]));
    let rows = Rows::of(&[&all])?;
    let mut kept: Vec<usize> = Vec::new();
    for index in order {
        if !kept.iter().any(|&other| rows.likeness(index, other) >= ALIKE) {
            kept.push(index);
        }
    }
    let labels: Option<Vec<usize>> =
        parts.iter().map(|part| part.labels.clone()).collect::<Option<Vec<_>>>().map(|labels| labels.concat());
    let coefficients: Vec<Tensor> = parts.iter().filter_map(|part| part.coefficients.clone()).collect();
    let coefficients = match coefficients.len() == parts.len() {
        true => Some(Tensor::concat_rows(&coefficients.iter().collect::<Vec<_>>())?.select_rows(&kept)?),
        false => None,
    };
    let mut notes =
        vec![format!("{} candidates of {} searches, {} after merging", all.rows(), parts.len(), kept.len())];
    notes.extend(first.notes.iter().cloned());
    Ok(Some(Reconstruction {
        samples: all.select_rows(&kept)?,
        labels: labels.map(|labels| kept.iter().map(|&i| labels[i]).collect()),
        coefficients,
        confidence: kept.iter().map(|&i| confidence[i]).collect(),
        certified: vec![false; kept.len()],
        iterations: parts.iter().map(|part| part.iterations).sum(),
        trace: Vec::new(),
        dropped: None,
        notes,
        ..first.clone()
    }))
}

fn beside_largest(sizes: Vec<f64>) -> Vec<f64> {
    let largest = sizes.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    sizes.iter().map(|size| size / largest).collect()
}

/// How near each size is to their median: 1 there, 1/2 at half or twice of it.
fn on_margin(sizes: &[f64]) -> Vec<f64> {
    let mut sorted = sizes.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0).max(f64::MIN_POSITIVE);
    sizes.iter().map(|size| (size / median).min(median / size.max(f64::MIN_POSITIVE))).collect()
}

/// For each row of `a`, its largest likeness to a row of `b`.
fn likenesses(a: &Tensor, b: &Tensor) -> Result<Vec<f64>, AttackError> {
    let (rows, first) = (Rows::of(&[a, b])?, a.rows());
    if b.rows() == 0 {
        return Ok(vec![-1.0; first]);
    }
    if rows.length.is_some() {
        let best = |i: usize| (0..b.rows()).map(|j| rows.likeness(i, first + j)).fold(-1.0, f64::max);
        return Ok((0..first).map(best).collect());
    }
    let (of_a, of_b) = rows.values.split_at(first * rows.row);
    let tensor = |values: &[f64]| Tensor::from_f64(values, &[values.len() / rows.row, rows.row], DType::F32);
    let products = tensor(of_a)?.matmul_transposed(&tensor(of_b)?)?.to_f64_vec()?;
    Ok(products.chunks_exact(b.rows()).map(|row| row.iter().copied().fold(-1.0, f64::max)).collect())
}

/// Candidates as they are compared: pictures by normalised correlation, records of few
/// numbers by their distance.
struct Rows {
    /// Of pictures with mean 0 and length 1.
    values: Vec<f64>,
    row: usize,
    /// The usual length of records of few numbers.
    length: Option<f64>,
}

/// With fewer numbers than this, unlike records correlate.
const FEW: usize = 16;

impl Rows {
    fn of(parts: &[&Tensor]) -> Result<Self, AttackError> {
        let row = parts.first().map_or(1, |part| part.row_len()).max(1);
        let mut values = Vec::new();
        for part in parts {
            values.extend(part.to_f64_vec()?);
        }
        if row < FEW {
            let squares: f64 = values.iter().map(|value| value * value).sum();
            let length = (squares / (values.len() / row).max(1) as f64).sqrt().max(f64::MIN_POSITIVE);
            return Ok(Self { values, row, length: Some(length) });
        }
        for record in values.chunks_exact_mut(row) {
            let mean = record.iter().sum::<f64>() / row as f64;
            record.iter_mut().for_each(|value| *value -= mean);
            let size = record.iter().map(|value| value * value).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
            record.iter_mut().for_each(|value| *value /= size);
        }
        Ok(Self { values, row, length: None })
    }

    /// 1 for the same, less for others.
    fn likeness(&self, a: usize, b: usize) -> f64 {
        let at = |i: usize| &self.values[i * self.row..(i + 1) * self.row];
        let pairs = at(a).iter().zip(at(b));
        match self.length {
            Some(length) => 1.0 - pairs.map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt() / length,
            None => pairs.map(|(a, b)| a * b).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rebuilt(values: Vec<f64>, confidence: &[f64]) -> Reconstruction {
        let samples = Tensor::from_vec(values, &[confidence.len(), 3]).unwrap();
        let labels = Some((0..confidence.len()).collect());
        Reconstruction { confidence: confidence.to_vec(), labels, ..Reconstruction::finished(samples, 0.0, false) }
    }

    #[test]
    fn what_is_alike_is_kept_once_by_the_surest() {
        let one = rebuilt(vec![1.0, 2.0, 3.0, 3.0, 1.0, 2.0], &[0.2, 0.9]);
        let two = rebuilt(vec![1.0, 2.0, 3.1], &[0.5]);
        let all = merged(&[one, two]).unwrap().unwrap();
        assert_eq!(all.samples.to_f64_vec().unwrap(), [3.0, 1.0, 2.0, 1.0, 2.0, 3.1]);
        assert_eq!((all.confidence, all.labels), (vec![0.9, 0.5], Some(vec![1, 0])));
        assert!(merged(&[]).unwrap().is_none());
    }

    #[test]
    fn likeness_and_margin_lie_between_nothing_and_one() {
        let (a, b) = (rebuilt(vec![1.0, 2.0, 3.0], &[0.0]), rebuilt(vec![3.0, 2.0, 1.0, 1.0, 2.0, 3.2], &[0.0, 0.0]));
        let found = likenesses(&a.samples, &b.samples).unwrap();
        assert!((found[0] - 0.947).abs() < 1e-3, "{found:?}");
        // Pictures are alike up to brightness and contrast.
        let ramp: Vec<f64> = (0..16).map(f64::from).collect();
        let brighter = ramp.iter().map(|x| 2.0 * x + 5.0).collect();
        let [one, other] = [ramp, brighter].map(|values| Tensor::from_vec(values, &[1, 16]).unwrap());
        assert!((likenesses(&one, &other).unwrap()[0] - 1.0).abs() < 1e-6);
        assert_eq!(on_margin(&[2.0, 4.0, 8.0]), [0.5, 1.0, 0.5]);
    }
}
