//! What an attack brings back: attacker-side knowledge only.

use std::path::Path;

use afterimage_nn::io::{Integers, TensorFile};
use afterimage_nn::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::{AttackError, Descended};

/// Why an attack ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Stop {
    /// It is done: a closed form, or nothing left to gain.
    Finished,
    /// All its iterations are used.
    IterationsUsed,
    /// Somebody asked it to stop.
    Interrupted,
    /// The method does not apply to what was seen.
    NotApplicable,
}

/// A point of an attack's own record.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TracePoint {
    /// The iteration.
    pub iteration: usize,
    /// The attacker's objective there.
    pub loss: f64,
}

/// Where a search was after so many iterations, for pictures of it: no score looks at it.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The iteration.
    pub iteration: usize,
    /// The candidates then, as [`Reconstruction::samples`].
    pub samples: Tensor,
    /// What of each damaged sample was taken for kept (1) and for lost (0), where that was estimated.
    pub kept: Option<Tensor>,
}

/// Candidates for training samples, with what the attacker knows about each.
#[derive(Debug, Clone)]
pub struct Reconstruction {
    /// One candidate a row, in the shape and scaling of network inputs.
    pub samples: Tensor,
    /// The layer whose inputs the candidates are, if they are not samples but those.
    pub layer: Option<String>,
    /// Recovered class of each candidate, if classes were recovered.
    pub labels: Option<Vec<usize>>,
    /// Recovered value each output should have had, if values were recovered.
    pub targets: Option<Tensor>,
    /// Recovered weight (λ, dual, residue) of each candidate, if there is one.
    pub coefficients: Option<Tensor>,
    /// Candidates that were given up, for pictures of a search: no score looks at them.
    pub dropped: Option<Tensor>,
    /// The way there, of a search that keeps pictures of it since it was last begun or resumed.
    pub stages: Vec<Stage>,
    /// How sure the attacker is of each, in [0, 1]; computed without the truth.
    pub confidence: Vec<f64>,
    /// Whether each provably explains its part of the observation.
    pub certified: Vec<bool>,
    /// The attacker's objective along the run.
    pub trace: Vec<TracePoint>,
    /// Iterations used.
    pub iterations: usize,
    /// Why it ended.
    pub stop: Stop,
    /// What the attack has to say about its result.
    pub notes: Vec<String>,
}

/// The part of a reconstruction that is kept as text in its file.
#[derive(Serialize, Deserialize)]
struct Text {
    certified: Vec<bool>,
    trace: Vec<TracePoint>,
    iterations: usize,
    stop: Stop,
    notes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    layer: Option<String>,
    /// Iterations of the stages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    stages: Vec<usize>,
}

impl Reconstruction {
    /// A finished one with as much confidence in every candidate.
    pub fn finished(samples: Tensor, confidence: f64, certified: bool) -> Self {
        let count = samples.rows();
        Self {
            samples,
            layer: None,
            labels: None,
            targets: None,
            coefficients: None,
            dropped: None,
            stages: Vec::new(),
            confidence: vec![confidence; count],
            certified: vec![certified; count],
            trace: Vec::new(),
            iterations: 0,
            stop: Stop::Finished,
            notes: Vec::new(),
        }
    }

    /// What a descent over candidates found: they are the variable at `place`.
    /// Nothing is known yet about how sure the attacker is of each.
    pub fn descended(found: Descended, place: usize) -> Result<Self, AttackError> {
        let Descended { values, trace, iterations, stop, .. } = found;
        let samples = values
            .get(place)
            .ok_or_else(|| AttackError::File { file: "descent".into(), problem: format!("has no variable {place}") })?;
        let samples = samples.to_device(Device::Cpu)?;
        Ok(Self { trace, iterations, stop, ..Self::finished(samples, 0.0, false) })
    }

    /// Writes a safetensors file: `samples`, `confidence`, and `labels`, `targets`,
    /// `coefficients`, `dropped` and `stage.N.samples`, `stage.N.kept` where they exist; the rest as metadata.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), AttackError> {
        let mut file = TensorFile::default();
        file.tensors.insert("samples".into(), self.samples.clone());
        let confidence = Tensor::from_vec(self.confidence.clone(), &[self.confidence.len()])?;
        file.tensors.insert("confidence".into(), confidence);
        let optional = [("coefficients", &self.coefficients), ("targets", &self.targets), ("dropped", &self.dropped)];
        for (name, values) in optional {
            file.tensors.extend(values.clone().map(|values| (name.to_owned(), values)));
        }
        for (place, stage) in self.stages.iter().enumerate() {
            let [samples, kept] = stage_names(place);
            file.tensors.insert(samples, stage.samples.clone());
            file.tensors.extend(stage.kept.clone().map(|mask| (kept, mask)));
        }
        if let Some(labels) = &self.labels {
            let values = labels.iter().map(|&label| label as i64).collect();
            file.integers.insert("labels".into(), Integers { shape: vec![labels.len()], values });
        }
        let text = Text {
            certified: self.certified.clone(),
            trace: self.trace.clone(),
            iterations: self.iterations,
            stop: self.stop,
            notes: self.notes.clone(),
            layer: self.layer.clone(),
            stages: self.stages.iter().map(|stage| stage.iteration).collect(),
        };
        let text = serde_json::to_string(&text).map_err(|error| AttackError::File {
            file: path.as_ref().display().to_string(),
            problem: error.to_string(),
        })?;
        file.metadata.insert("reconstruction".into(), text);
        Ok(file.write(path)?)
    }

    /// Reads what [`write`](Self::write) wrote.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, AttackError> {
        let path = path.as_ref();
        let wrong = |problem: &str| AttackError::File { file: path.display().to_string(), problem: problem.into() };
        let mut file = TensorFile::read(path)?;
        let text = file.metadata.get("reconstruction").ok_or_else(|| wrong("holds no reconstruction"))?;
        let text: Text = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        let samples = file.tensors.remove("samples").ok_or_else(|| wrong("has no `samples`"))?;
        let confidence = file.tensors.remove("confidence").ok_or_else(|| wrong("has no `confidence`"))?;
        let confidence = confidence.to_f64_vec()?;
        if confidence.len() != samples.rows() || text.certified.len() != samples.rows() {
            return Err(wrong("does not have one confidence and certificate for each sample"));
        }
        let mut stages = Vec::new();
        for (place, &iteration) in text.stages.iter().enumerate() {
            let [own, kept] = stage_names(place);
            let own = file.tensors.remove(&own).filter(|own| own.shape() == samples.shape());
            let kept = file.tensors.remove(&kept);
            match (own, kept.as_ref().is_none_or(|kept| kept.shape() == samples.shape())) {
                (Some(samples), true) => stages.push(Stage { iteration, samples, kept }),
                _ => return Err(wrong(&format!("has no stage {place} that fits its samples"))),
            }
        }
        let labels = match file.integers.remove("labels") {
            None => None,
            Some(labels) => {
                let labels: Result<Vec<usize>, _> = labels.values.iter().map(|&label| usize::try_from(label)).collect();
                Some(labels.map_err(|_| wrong("has a negative label"))?)
            }
        };
        Ok(Self {
            samples,
            layer: text.layer,
            labels,
            targets: file.tensors.remove("targets"),
            coefficients: file.tensors.remove("coefficients"),
            dropped: file.tensors.remove("dropped"),
            stages,
            confidence,
            certified: text.certified,
            trace: text.trace,
            iterations: text.iterations,
            stop: text.stop,
            notes: text.notes,
        })
    }
}

/// Names of a stage's candidates and mask in a file.
fn stage_names(place: usize) -> [String; 2] {
    ["samples", "kept"].map(|part| format!("stage.{place}.{part}"))
}
