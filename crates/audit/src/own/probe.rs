//! Does the imported network compute what its owner's does? And if not, why?
//!
//! Every doubt is a hypothesis that is computed: the first under which the probe's numbers come out is named.

use afterimage_nn::io::TensorFile;
use afterimage_nn::{
    DType, Gradients, LayerKind, Loss, Mode, Network, Objective, Params, Reduction, Seed, Targets, Tensor, Want,
};

use super::fit::observations;
use super::folder::Exported;
use crate::Result;
use crate::findings::{dropped_out, of_gradient};

/// Largest relative difference between the probe's numbers and ours, in single precision.
pub const TOLERANCE: f64 = 1e-4;

/// Largest relative difference of a gradient that rounding explains, in a network with kinks.
const KINKS: f64 = 1e-2;

/// One thing that was compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// What.
    pub what: String,
    /// ‖ours − theirs‖ / ‖theirs‖.
    pub difference: f64,
}

/// What came of a probe.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Checked {
    /// What was compared and is the same.
    pub agrees: Vec<Compared>,
    /// Why the import cannot be relied on: what differs first, its likely cause, and what to do.
    pub obstacle: Option<String>,
    /// What should be known and stands in nobody's way.
    pub notes: Vec<String>,
}

/// Recomputes a folder's probe.
pub fn check(exported: &Exported) -> Result<Checked> {
    let Some(probe) = &exported.probe else {
        let obstacle = "there is no probe.safetensors, so that nobody knows whether this network is the one that was \
                        trained. Do this: export the model again with the script of `afterimage init pytorch`, or save \
                        `inputs` and `outputs` of a few samples there";
        return Ok(Checked { obstacle: Some(obstacle.into()), ..Checked::default() });
    };
    // In double precision: so differences are those of the import, not of rounding.
    let theta = exported.probed.as_ref().unwrap_or(&exported.theta).to_dtype(DType::F64)?;
    Checker { exported, probe, network: &exported.network, theta: &theta }.run()
}

struct Checker<'a> {
    exported: &'a Exported,
    probe: &'a TensorFile,
    network: &'a Network,
    theta: &'a Params,
}

impl Checker<'_> {
    fn run(&self) -> Result<Checked> {
        let mut checked = Checked { notes: dropped_out(self.network).into_iter().collect(), ..Checked::default() };
        checked.notes.extend(observations(self.exported)?.iter().flat_map(of_gradient));
        let (Some(inputs), Some(outputs)) = (self.probe.tensors.get("inputs"), self.probe.tensors.get("outputs"))
        else {
            let problem = "probe.safetensors holds no `inputs` and `outputs`. Do this: export the model again";
            return Ok(Checked { obstacle: Some(problem.into()), ..checked });
        };
        let fits = inputs.rows() > 0
            && inputs.row_len() == self.network.input_shape().iter().product::<usize>()
            && outputs.rows() == inputs.rows()
            && outputs.row_len() == self.network.output_shape().iter().product::<usize>();
        if !fits {
            let problem = format!(
                "the probe's inputs have shape {:?} and its outputs {:?}; the network takes {:?} and gives {:?}. Do this: \
                 export network and probe together",
                inputs.shape(),
                outputs.shape(),
                self.network.input_shape(),
                self.network.output_shape()
            );
            return Ok(Checked { obstacle: Some(problem), ..checked });
        }
        let x = inputs.reshape(&self.network.batch_shape(inputs.rows()))?.to_dtype(self.theta.dtype())?;
        if let Some(obstacle) = self.normalisation(&x)? {
            return Ok(Checked { obstacle: Some(obstacle), ..checked });
        }
        let difference = relative(&self.outputs(self.network, self.theta, &x)?, outputs)?;
        // What is no number agrees with nothing.
        if difference.is_nan() || difference > TOLERANCE {
            let cause = self.why_outputs(&x, outputs)?;
            let obstacle = format!("outputs differ from the probe's by {difference:.1e} of their size: {cause}");
            return Ok(Checked { obstacle: Some(obstacle), ..checked });
        }
        checked.agrees.push(Compared { what: format!("outputs of {} samples", x.rows()), difference });
        let Some(objective) = self.objective(&x, self.exported.loss(), self.exported.training.reduction)? else {
            if self.exported.gradient.is_some() {
                let problem = "the probe has no gradient, so that nobody knows whether the loss and its reduction are the client's. \
                               Do this: export the model again, with labels";
                checked.obstacle = Some(problem.into());
            }
            return Ok(checked);
        };
        let lacking = self.theta.names().find(|name| !self.probe.tensors.contains_key(&format!("grad.{name}")));
        if let Some(name) = lacking {
            let problem = format!("the probe has no gradient of `{name}`. Do this: export network and probe together");
            return Ok(Checked { obstacle: Some(problem), ..checked });
        }
        let found = self.gradient(self.network, self.theta, &x, &objective)?;
        let (difference, worst) = self.off(&found, 1.0)?;
        if (TOLERANCE..=KINKS).contains(&difference) {
            checked.notes.push(format!(
                "the gradient differs from the probe's by {difference:.1e} of its size: a probe in single precision does, where \
                 rounding decides on which side of its kink a unit is"
            ));
        }
        if difference.is_nan() || difference > KINKS {
            let cause = self.why_gradient(&x, &found)?;
            let obstacle = format!(
                "the gradient differs from the probe's by {difference:.1e} of its size, most in `{worst}`: {cause}"
            );
            return Ok(Checked { obstacle: Some(obstacle), ..checked });
        }
        checked.agrees.push(Compared { what: "gradient of their loss".into(), difference });
        Ok(checked)
    }

    /// Whether mean and standard deviation are those that the probe's inputs were made with.
    fn normalisation(&self, x: &Tensor) -> Result<Option<String>> {
        let preprocess = self.exported.preprocessing.constants()?;
        let said = "normalisation: preprocessing.toml does not say what the inputs were normalised with";
        let hint =
            "Do this: give `mean` and `std` as the training code has them, and `range` as pixels are before them";
        if let Some(pixels) = self.probe.tensors.get("pixels").filter(|pixels| pixels.count() == x.count()) {
            let pixels = pixels.reshape(x.shape())?.to_dtype(x.dtype())?;
            let difference = relative(&preprocess.apply(&pixels)?, x)?;
            if difference > TOLERANCE {
                return Ok(Some(format!(
                    "{said} (normalised, its pixels differ from its inputs by {difference:.1e}). {hint}"
                )));
            }
        }
        let [low, high] = preprocess.range;
        let values = preprocess.undo(x)?.to_f64_vec()?;
        let slack = 0.02 * (high - low);
        let outside = values.iter().filter(|value| **value < low - slack || **value > high + slack).count();
        if outside * 100 > values.len() {
            let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
            return Ok(Some(format!(
                "normalisation: `mean`, `std` and `range` of preprocessing.toml do not go with the inputs (undone, the probe's inputs lie \
                 between {least:.2} and {most:.2}, and `range` says {low} to {high}). {hint}; of a table, `range` is the least and the most \
                 of its values"
            )));
        }
        Ok(None)
    }

    fn outputs(&self, network: &Network, theta: &Params, x: &Tensor) -> Result<Tensor> {
        let outputs = network.forward(theta, x)?;
        Ok(outputs.reshape(&[x.rows(), outputs.row_len()])?)
    }

    /// What would make our outputs the probe's.
    fn why_outputs(&self, x: &Tensor, expected: &Tensor) -> Result<String> {
        let same = |network: &Network, theta: &Params, x: &Tensor| -> bool {
            let found = self.outputs(network, theta, x);
            found.and_then(|found| relative(&found, expected)).is_ok_and(|difference| difference <= TOLERANCE)
        };
        let preprocess = self.exported.preprocessing.constants()?;
        if same(self.network, self.theta, &preprocess.apply(x)?) {
            return Ok(
                "normalisation: the probe's inputs are pixels, and the model was given them normalised. Do this: pass \
                       `inputs` as the model is fed with them"
                    .into(),
            );
        }
        if same(self.network, self.theta, &preprocess.undo(x)?) {
            return Ok("normalisation: the model was given pixels, not normalised inputs. Do this: take `mean` and `std` out of \
                       preprocessing.toml"
                .into());
        }
        if same(&self.network.in_mode(Mode::Train), self.theta, x) {
            return Ok(
                "train/eval mode: the probe's outputs are those of model.train(). Do this: call model.eval() before \
                       exporting"
                    .into(),
            );
        }
        for (place, spec) in self.theta.specs().iter().enumerate() {
            let square = matches!(spec.shape[..], [rows, columns] if rows == columns && rows > 1);
            if square && same(self.network, &self.transposed(place)?, x) {
                return Ok(format!(
                    "transposed weight: with `{}` transposed they agree. Do this: save it as PyTorch does, one row for each output",
                    spec.name
                ));
            }
        }
        if relative(&softmax(&self.outputs(self.network, self.theta, x)?)?, expected)? <= TOLERANCE {
            return Ok(
                "softmax: the model ends with one. Do this: export it without, losses here take the numbers before it"
                    .into(),
            );
        }
        Ok(format!(
            "neither normalisation, nor train/eval mode, nor a transposed weight explains it. Do this: compare {} with the \
             model's own layers and weights",
            if self.exported.weights.extension().is_some_and(|ending| ending == "onnx") {
                "model.onnx"
            } else {
                "network.toml"
            }
        ))
    }

    fn transposed(&self, place: usize) -> Result<Params> {
        let mut at = 0;
        Ok(self.theta.map(|value| {
            at += 1;
            if at == place + 1 { value.transpose() } else { Ok(value.clone()) }
        })?)
    }

    /// The loss of the probe, if it has a gradient.
    fn objective(&self, x: &Tensor, loss: Loss, reduction: Reduction) -> Result<Option<Objective>> {
        if !self.probe.tensors.keys().any(|name| name.starts_with("grad.")) {
            return Ok(None);
        }
        let outputs: Vec<usize> =
            std::iter::once(x.rows()).chain(self.network.output_shape().iter().copied()).collect();
        let classes = self.probe.integers.get("labels").filter(|labels| labels.values.len() == x.rows());
        let targets = match (loss, classes, self.probe.tensors.get("labels")) {
            (Loss::CrossEntropy, Some(labels), _) => Targets::Classes(
                labels.values.iter().map(|&label| usize::try_from(label).unwrap_or(usize::MAX)).collect(),
            ),
            // PyTorch's labels of a binary loss are 0 and 1, ours −1 and 1.
            (Loss::Logistic, Some(labels), _) => {
                let signs: Vec<f64> = labels.values.iter().map(|&label| 2.0 * label as f64 - 1.0).collect();
                Targets::Values(Tensor::from_f64(&signs, &outputs, x.dtype())?)
            }
            (Loss::Logistic, None, Some(values)) => {
                let signs: Vec<f64> = values.to_f64_vec()?.iter().map(|label| 2.0 * label - 1.0).collect();
                Targets::Values(Tensor::from_f64(&signs, &outputs, x.dtype())?)
            }
            (_, _, Some(values)) => Targets::Values(values.reshape(&outputs)?.to_dtype(x.dtype())?),
            (Loss::Mse | Loss::HalfSquared, Some(labels), _) => {
                let values = crate::victim::values_of(
                    &labels.values.iter().map(|&label| usize::try_from(label).unwrap_or(0)).collect::<Vec<_>>(),
                    outputs[1..].iter().product(),
                );
                Targets::Values(Tensor::from_f64(&values, &outputs, x.dtype())?)
            }
            _ if self.exported.autoencodes() => Targets::Values(x.reshape(&outputs)?),
            _ => return Ok(None),
        };
        Ok(Some(Objective::new(loss, reduction, targets)))
    }

    fn gradient(&self, network: &Network, theta: &Params, x: &Tensor, objective: &Objective) -> Result<Params> {
        let Gradients { weights, .. } =
            network.pass(theta, x)?.backward(Seed::Loss(objective.clone()), Want::Weights)?;
        Ok(weights.map_or_else(|| theta.zeros_like(), Ok)?)
    }

    /// How far a multiple of a gradient is from the probe's, and the parameter that differs most.
    fn off(&self, found: &Params, factor: f64) -> Result<(f64, String)> {
        let (mut total, mut size, mut worst) = (0.0, 0.0, (0.0, String::new()));
        for (name, value) in found.iter() {
            let Some(expected) = self.probe.tensors.get(&format!("grad.{name}")) else { continue };
            let expected = expected.to_dtype(value.dtype())?.reshape(value.shape())?;
            let difference = value.combine(factor, &expected, -1.0)?;
            let part = difference.dot(&difference)?;
            if part > worst.0 {
                worst = (part, name.to_owned());
            }
            total += part;
            size += expected.dot(&expected)?;
        }
        let relative = if size > 0.0 { (total / size).sqrt() } else { f64::from(u8::from(total > 0.0)) };
        Ok((relative, worst.1))
    }

    /// What would make our gradient the probe's.
    fn why_gradient(&self, x: &Tensor, found: &Params) -> Result<String> {
        let near = |params: &Params, factor: f64| self.off(params, factor).is_ok_and(|(off, _)| off <= TOLERANCE);
        let samples = x.rows() as f64;
        let other = match self.exported.training.reduction {
            Reduction::Mean => (samples, "sum"),
            Reduction::Sum => (1.0 / samples, "mean"),
        };
        if near(found, other.0) {
            return Ok(format!(
                "loss reduction: it is that of a {} over the batch. Do this: set reduction = \"{0}\" in training.toml",
                other.1
            ));
        }
        for loss in [Loss::CrossEntropy, Loss::Logistic, Loss::Mse, Loss::HalfSquared] {
            let Ok(Some(objective)) = self.objective(x, loss, self.exported.training.reduction) else { continue };
            if self.gradient(self.network, self.theta, x, &objective).is_ok_and(|found| near(&found, 1.0)) {
                return Ok(format!(
                    "another loss: it is that of {loss}. Do this: set loss = \"{loss}\" in training.toml"
                ));
            }
        }
        if let Ok(Some(objective)) = self.objective(x, self.exported.loss(), self.exported.training.reduction) {
            let trained = self.gradient(&self.network.in_mode(Mode::Train), self.theta, x, &objective);
            if trained.is_ok_and(|found| near(&found, 1.0)) {
                return Ok("train/eval mode: it is that of model.train(). Do this: take the probe's gradient after model.eval()".into());
            }
        }
        let normalised =
            self.network.spec().layers.iter().any(|layer| matches!(layer.kind, LayerKind::BatchNorm { .. }));
        if !normalised && self.exported.weights.extension().is_some_and(|ending| ending == "onnx") {
            return Ok("batch normalisation may have been folded into convolutions by the exporter, which leaves outputs as they \
                       are and changes gradients. Do this: export with optimize=False"
                .into());
        }
        Ok("neither the loss, nor its reduction, nor train/eval mode explains it. Do this: take the probe's gradient of the loss \
            that training.toml names, without regularisation"
            .into())
    }
}

/// ‖a − b‖ / ‖b‖, of as many numbers.
fn relative(a: &Tensor, b: &Tensor) -> Result<f64> {
    let (a, b) = (a.to_f64_vec()?, b.to_f64_vec()?);
    let sum = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let off = sum(&mut a.iter().zip(&b).map(|(a, b)| a - b));
    Ok(off / sum(&mut b.iter().copied()).max(f64::MIN_POSITIVE))
}

fn softmax(outputs: &Tensor) -> Result<Tensor> {
    let values = outputs.to_f64_vec()?;
    let rows = values.chunks_exact(outputs.row_len().max(1)).flat_map(|row| {
        let most = row.iter().copied().fold(f64::MIN, f64::max);
        let powers: Vec<f64> = row.iter().map(|x| (x - most).exp()).collect();
        let total: f64 = powers.iter().sum();
        powers.into_iter().map(move |power| power / total)
    });
    let rows: Vec<f64> = rows.collect();
    Ok(Tensor::from_f64(&rows, outputs.shape(), outputs.dtype())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn exported(case: &str) -> Exported {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/import").join(case);
        Exported::read(&folder).unwrap()
    }

    fn obstacle(exported: &Exported) -> String {
        check(exported).unwrap().obstacle.unwrap_or_default()
    }

    #[test]
    fn what_was_exported_agrees() {
        for case in ["mlp", "mixed", "autoencoder", "resnet-18", "unet"] {
            let checked = check(&exported(case)).unwrap();
            assert_eq!((checked.obstacle, checked.agrees.len()), (None, 2), "{case}");
        }
    }

    #[test]
    fn each_mistake_is_told_from_the_others() {
        let mut wrong = exported("mlp");
        wrong.preprocessing.mean = vec![0.5];
        wrong.preprocessing.std = vec![0.1];
        // Inputs are in 0 to 1: undone by a wrong mean and deviation they are within it, so pixels must tell.
        let pixels = wrong.probe.as_ref().unwrap().tensors["inputs"].clone();
        wrong.probe.as_mut().unwrap().tensors.insert("pixels".into(), pixels);
        assert!(obstacle(&wrong).starts_with("normalisation:"), "{}", obstacle(&wrong));
        wrong.preprocessing.std = vec![3.0];
        wrong.probe.as_mut().unwrap().tensors.remove("pixels");
        assert!(obstacle(&wrong).contains("undone, the probe's inputs lie between"), "{}", obstacle(&wrong));

        let mut wrong = exported("mlp");
        wrong.training.reduction = Reduction::Sum;
        assert!(obstacle(&wrong).contains("loss reduction: it is that of a mean"), "{}", obstacle(&wrong));
        let mut wrong = exported("autoencoder");
        wrong.training.loss = Some(Loss::HalfSquared);
        assert!(obstacle(&wrong).contains("another loss: it is that of mse"), "{}", obstacle(&wrong));

        // A network whose second layer is square, saved the other way round.
        let mut wrong = exported("rows");
        let turned = wrong.theta.specs().iter().position(|spec| spec.shape == [20, 20]).unwrap();
        let probe = wrong.probe.clone().unwrap();
        let checker = Checker { exported: &wrong, probe: &probe, network: &wrong.network, theta: &wrong.theta };
        let other = checker.transposed(turned).unwrap();
        wrong.theta = other;
        assert!(obstacle(&wrong).contains("transposed weight: with `fc2.weight`"), "{}", obstacle(&wrong));

        let mut wrong = exported("convnet");
        let x = wrong.probe.as_ref().unwrap().tensors["inputs"].clone();
        let trained = wrong.network.in_mode(Mode::Train).forward(&wrong.theta, &x).unwrap();
        wrong.probe.as_mut().unwrap().tensors.insert("outputs".into(), trained);
        assert!(obstacle(&wrong).contains("train/eval mode"), "{}", obstacle(&wrong));

        let mut wrong = exported("mlp");
        wrong.theta = wrong.theta.scale(1.01).unwrap();
        assert!(obstacle(&wrong).contains("neither normalisation"), "{}", obstacle(&wrong));
        wrong.probe = None;
        assert!(obstacle(&wrong).contains("no probe.safetensors"));
    }
}
