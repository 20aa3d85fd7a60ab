//! A list of layers that is being written down.

use crate::spec::{LayerKind, LayerSpec, NetworkSpec};

/// Layers so far; what convolutional networks repeat has a name here.
pub(super) struct Layers(NetworkSpec);

impl Layers {
    pub(super) fn new(input: &[usize]) -> Self {
        Self(NetworkSpec { input: input.to_vec(), layers: Vec::new() })
    }

    /// A layer named by its place.
    pub(super) fn push(&mut self, kind: LayerKind) {
        self.0.layers.push(LayerSpec::new(kind));
    }

    /// A layer with a name.
    pub(super) fn named(&mut self, name: impl Into<String>, kind: LayerKind) {
        self.0.layers.push(LayerSpec::new(kind).named(name));
    }

    /// A layer with a name that reads others.
    pub(super) fn reading(&mut self, name: impl Into<String>, inputs: &[&str], kind: LayerKind) {
        self.0.layers.push(LayerSpec::new(kind).named(name).reading(inputs));
    }

    /// A convolution with square kernels.
    pub(super) fn conv(
        &mut self,
        name: impl Into<String>,
        outputs: usize,
        kernel: usize,
        stride: usize,
        padding: usize,
        bias: bool,
    ) {
        self.named(name, LayerKind::conv(outputs, kernel, stride, padding, bias));
    }

    pub(super) fn linear(&mut self, name: impl Into<String>, outputs: usize) {
        self.named(name, LayerKind::Linear { outputs, bias: true });
    }

    /// The name of the last layer, by which others may read it.
    pub(super) fn last(&self) -> String {
        match self.0.layers.last() {
            None => "input".into(),
            Some(layer) => layer.name.clone().unwrap_or_else(|| (self.0.layers.len() - 1).to_string()),
        }
    }

    pub(super) fn finish(self) -> NetworkSpec {
        self.0
    }
}
