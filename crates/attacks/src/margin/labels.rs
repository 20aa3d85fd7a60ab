//! What candidates are candidates for.

/// What candidates are candidates for.
#[derive(Debug, Clone)]
pub(crate) enum Labels {
    /// y = ±1 of the one output.
    Signs(Vec<f64>),
    /// A class of several outputs.
    Classes { classes: Vec<usize>, outputs: usize },
}

impl Labels {
    /// Half of the candidates −1, half +1, or all +1 where multipliers have signs of
    /// their own; of several outputs each class in turn.
    pub(crate) fn new(candidates: usize, outputs: usize, free_signs: bool) -> Self {
        match outputs {
            0 | 1 => Labels::Signs(
                (0..candidates).map(|i| if free_signs || 2 * i >= candidates { 1.0 } else { -1.0 }).collect(),
            ),
            _ => Labels::Classes { classes: (0..candidates).map(|i| i % outputs).collect(), outputs },
        }
    }

    /// The class of a candidate with this multiplier, as data have it.
    pub(crate) fn class(&self, candidate: usize, lambda: f64) -> usize {
        match self {
            Labels::Signs(signs) => {
                usize::from(signs[candidate] * lambda > 0.0 || (lambda == 0.0 && signs[candidate] > 0.0))
            }
            Labels::Classes { classes, .. } => classes[candidate],
        }
    }

    /// |Φ| and the class it speaks for: of one output its size and sign, of several the
    /// distance of the largest from the next.
    pub(crate) fn margin_of(f: &[f64]) -> (f64, usize) {
        match f {
            [] => (0.0, 0),
            [one] => (one.abs(), usize::from(*one > 0.0)),
            several => {
                let mut order: Vec<usize> = (0..several.len()).collect();
                order.sort_by(|&a, &b| several[b].total_cmp(&several[a]));
                (several[order[0]] - several[order[1]], order[0])
            }
        }
    }

    /// The seeds, where they do not depend on the outputs.
    pub(crate) fn fixed_seeds(&self) -> Option<&[f64]> {
        match self {
            Labels::Signs(signs) => Some(signs),
            Labels::Classes { .. } => None,
        }
    }

    /// s_ik: of one output y_i; of several 1 at the class and −1 at the strongest other, so
    /// that Σ_k s_ik f_k is the margin.
    pub(crate) fn seeds(&self, f: &[f64]) -> Vec<f64> {
        match self {
            Labels::Signs(signs) => signs.clone(),
            Labels::Classes { classes, outputs } => {
                let mut seeds = vec![0.0; f.len()];
                for (i, (row, &class)) in f.chunks_exact(*outputs).zip(classes).enumerate() {
                    let others = (0..*outputs).filter(|k| *k != class);
                    let strongest = others.max_by(|&a, &b| row[a].total_cmp(&row[b]));
                    seeds[i * outputs + class] = 1.0;
                    if let Some(strongest) = strongest {
                        seeds[i * outputs + strongest] = -1.0;
                    }
                }
                seeds
            }
        }
    }
}
