//! What several tests of this crate need.

use std::ops::ControlFlow;

use afterimage_attacks::Tick;

use crate::pipeline::Watcher;

/// A run of milliseconds that has every part: a client, a search, controls.
pub(crate) const SMALL_PLAN: &str = r#"
    seed = 1
    data = { source = "builtin:digits-8x8", members = 1, controls = 200 }
    network = { kind = "mlp", hidden = [8], outputs = 10, init = "pytorch" }
    victim = { kind = "federated", loss = "cross-entropy" }
    attack = { kind = "gradinversion", iterations = 2, starts = 1 }
    score = { metrics = ["mse"], criterion = { metric = "mse", below = 1e-2 } }
"#;

/// Lets everything go on.
pub(crate) struct Silent;

impl Watcher for Silent {
    fn stage(&mut self, _: &str) {}

    fn tick(&mut self, _: Tick) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn warn(&mut self, _: &str) {}
}
