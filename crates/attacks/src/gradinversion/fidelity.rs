//! Batch normalisation saw the real batch: candidates should look alike to it.

use afterimage_nn::{Buffer, Pass, Statistics};
use serde::{Deserialize, Serialize};

use crate::{AttackError, GradientSeen};

/// Where the statistics of the real batch come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchStatistics {
    /// The client's own, if it shares them; else derived from the running statistics it
    /// sent back; else the network's.
    #[default]
    Best,
    /// The client's own.
    Exact,
    /// Derived from the running statistics before and after.
    Derived,
    /// The network's running statistics: those of all its training data.
    Approximate,
}

/// Σ_l ‖μ_l(x) − μ_l‖ + ‖σ²_l(x) − σ²_l‖ over the batch normalisations l, equation 10.
pub(super) struct Fidelity {
    goal: Vec<Statistics>,
}

impl Fidelity {
    /// Towards the statistics of this source; none for a network that has no batch normalisation.
    pub(super) fn new(
        seen: &GradientSeen,
        source: BatchStatistics,
        samples: usize,
    ) -> Result<Option<Self>, AttackError> {
        let (network, theta, client) = (&seen.model.network, &seen.model.theta, &seen.client);
        if network.buffer_names().next().is_none() {
            return Ok(None);
        }
        let absent = |what: &str| {
            let expected = format!("needs {what}, which the client did not share; say \"best\"");
            AttackError::setting("statistics", format!("{source:?}").to_lowercase(), &expected)
        };
        let derived = || client.after.as_ref().map(|after| network.untracked(theta, after, samples)).transpose();
        let goal = match source {
            BatchStatistics::Exact => client.statistics.clone().ok_or_else(|| absent("the batch's statistics"))?,
            BatchStatistics::Derived => derived()?.ok_or_else(|| absent("running statistics after the batch"))?,
            BatchStatistics::Approximate => running(seen),
            BatchStatistics::Best => match &client.statistics {
                Some(statistics) => statistics.clone(),
                None => derived()?.unwrap_or_else(|| running(seen)),
            },
        };
        Ok(Some(Self { goal }))
    }

    /// The distance and its slopes in every statistic.
    pub(super) fn evaluate(&self, pass: &Pass<'_>) -> Result<(f64, Vec<Statistics>), AttackError> {
        let mut value = 0.0;
        let mut slopes = pass.statistics()?;
        for (seen, goal) in slopes.iter_mut().zip(&self.goal) {
            for (seen, goal) in [(&mut seen.mean, &goal.mean), (&mut seen.variance, &goal.variance)] {
                let off = seen.combine(1.0, goal, -1.0)?;
                let norm = off.dot(&off)?.sqrt();
                value += norm;
                *seen = if norm > 0.0 { off.scale(1.0 / norm)? } else { off };
            }
        }
        Ok((value, slopes))
    }
}

/// The network's running statistics.
fn running(seen: &GradientSeen) -> Vec<Statistics> {
    let buffers = seen.model.theta.buffers().chunks_exact(2);
    let layers = seen.model.network.normalisations();
    let one = |((layer, _), pair): ((&str, usize), &[Buffer])| Statistics {
        layer: layer.to_owned(),
        mean: pair[0].value.clone(),
        variance: pair[1].value.clone(),
        count: 0,
    };
    layers.zip(buffers).map(one).collect()
}
