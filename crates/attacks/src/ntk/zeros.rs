//! Records from the zeros of the first layer's change.
//!
//! ΔW₁ = A X holds exactly, with A_ji what training added to unit j for record i: zero wherever
//! the unit was off for the record throughout. So A has zeros where mixtures of its columns have
//! none, as the gradient of a single batch has, and the search of `exact` for the sparsest columns
//! finds records to rounding, with nothing assumed of the layers above. It needs many units for
//! each record, and weights in which the smallest direction of the change is above rounding.
//!
//! Where a search from anywhere finds too few, candidates that are nearly records help: units that
//! are off for a candidate before and after training say where its column vanishes.

use afterimage_nn::{Activation, Params, Tensor};
use faer::Mat;

use super::space::ChangeSpace;
use crate::dense::{DenseLayer, perceptron};
use crate::exact::{Hunt, Outcome};
use crate::factors::{Factors, matrix};
use crate::{AttackError, PairSeen, Session};

/// Fewer units than this for each record that is missing: searches end at mixtures.
const UNITS_A_RECORD: usize = 35;
/// Fewer than this: candidates that are nearly records do not help either.
const FEWEST_UNITS: usize = 4;
/// Searches for each record that is missing.
const SEARCHES: usize = 40;
/// Records whose columns are chosen among all candidates.
const FEW: usize = 64;
/// Share of units that must agree with a record: some change their state on the way.
const CONSISTENT: f64 = 0.9;
/// Of a record that is this consistent no unit that did not change its state disagrees.
const CERTAIN: f64 = 0.97;

/// What the zeros show.
pub(super) struct Shown {
    /// Records, in the shape of inputs.
    pub(super) records: Tensor,
    /// The share of the layer's units whose states agree with each.
    pub(super) agreement: Vec<f64>,
    /// Whether these are all.
    pub(super) complete: bool,
    /// Whether somebody asked to stop.
    pub(super) stopped: bool,
}

impl Shown {
    /// Whether each is as good as proven.
    pub(super) fn certain(&self) -> Vec<bool> {
        self.agreement.iter().map(|agreement| *agreement > CERTAIN).collect()
    }
}

/// The change of a first layer that can have such zeros.
pub(super) struct Zeros<'a> {
    seen: &'a PairSeen,
    first: DenseLayer,
    factors: Factors,
    /// Change of the bias.
    shift: Vec<f64>,
}

impl<'a> Zeros<'a> {
    /// `None` where the layer is not one of ReLU units with a bias, or has too few.
    pub(super) fn of(
        seen: &'a PairSeen,
        space: &ChangeSpace,
        session: &Session<'_>,
    ) -> Result<Option<Self>, AttackError> {
        let Some(first) = perceptron(&seen.model.network).and_then(|layers| layers.into_iter().next()) else {
            return Ok(None);
        };
        let units = seen.before.get(&format!("{}.weight", first.name))?.rows();
        if first.activation != Some(Activation::Relu) || !first.bias || units < FEWEST_UNITS * space.rank {
            return Ok(None);
        }
        let (change, shift) = first.parameters(&seen.model.theta.sub(&seen.before)?)?;
        let factors = Factors::of(&change, Some(space.rank), &mut session.stream("sketch", 0));
        Ok(factors.map(|factors| Self { seen, first, factors, shift }))
    }

    /// Δθ.
    pub(super) fn change(&self) -> Result<Params, AttackError> {
        Ok(self.seen.model.theta.sub(&self.seen.before)?)
    }

    /// A hunt for columns, whose records are told by the states of units so far on the way from
    /// the earlier to the later checkpoint.
    pub(super) fn hunt(&self, way: f64) -> Result<Hunt<'_>, AttackError> {
        let between = self.seen.model.theta.combine(way, &self.seen.before, 1.0 - way)?;
        let (weight, offset) = self.first.parameters(&between)?;
        Ok(Hunt::new(&self.factors, &weight, &offset, &self.shift, 0.0).with_consistent(CONSISTENT))
    }

    /// For each candidate the units that are off for it before and after training.
    pub(super) fn off(&self, near: &Tensor) -> Result<Vec<Vec<bool>>, AttackError> {
        let (before, after) =
            (answers(&self.first, &self.seen.before, near)?, answers(&self.first, &self.seen.model.theta, near)?);
        let off = |record: usize| {
            (0..before.nrows()).map(|unit| before[(unit, record)].max(after[(unit, record)]) < 0.0).collect()
        };
        Ok((0..before.ncols()).map(off).collect())
    }

    /// The records that the zeros of the change show; `None` if units are too few to search for any.
    /// `known` is what candidates led to.
    pub(super) fn shown(
        &self,
        known: Option<&Hunt<'_>>,
        session: &mut Session<'_>,
    ) -> Result<Option<Shown>, AttackError> {
        // States half way stand for those before and after; linearised training has those of its start.
        let half = self.shown_by(0.5, known, session)?;
        if half.as_ref().is_none_or(|shown| shown.complete || shown.stopped) {
            return Ok(half);
        }
        let start = self.shown_by(0.0, known, session)?;
        let count = |shown: &Option<Shown>| shown.as_ref().map_or(0, |shown| shown.agreement.len());
        Ok(if count(&start) > count(&half) { start } else { half })
    }

    /// The same, by the states of units so far on the way.
    fn shown_by(
        &self,
        way: f64,
        known: Option<&Hunt<'_>>,
        session: &mut Session<'_>,
    ) -> Result<Option<Shown>, AttackError> {
        let mut hunt = self.hunt(way)?;
        if let Some(known) = known {
            hunt.adopt(known);
        }
        let missing = hunt.missing();
        if self.shift.len() < UNITS_A_RECORD * missing {
            return Ok(None);
        }
        let (mut searches, mut trace) = (0, Vec::new());
        let budget = SEARCHES * missing.max(1);
        let mut outcome = hunt.gather(budget / 2, &mut searches, session);
        // A mixture may stand for one of its records: searches from anywhere find the record in time.
        // Without a column for each, only where there are few does a choice among all candidates come to an end.
        let few = self.factors.rank() <= FEW;
        let open = |outcome: Outcome| outcome == Outcome::Advanced || (few && outcome == Outcome::Exhausted);
        while open(outcome) && !hunt.all_consistent() && searches < budget {
            outcome = hunt.run(budget, 0, &mut searches, &mut trace, session);
        }
        let stopped = outcome == Outcome::Stopped;
        let complete = hunt.all_consistent();
        let (samples, _, agreement) = hunt.samples();
        let kept: Vec<usize> = (0..samples.len()).filter(|&place| agreement[place] > CONSISTENT).collect();
        let values: Vec<f64> = kept.iter().flat_map(|&place| samples[place].iter().copied()).collect();
        let network = &self.seen.model.network;
        let records = Tensor::from_f64(&values, &network.batch_shape(kept.len()), self.seen.before.dtype())?;
        let agreement = kept.iter().map(|&place| agreement[place]).collect();
        Ok(Some(Shown { records, agreement, complete, stopped }))
    }
}

/// W x + b, one column a record.
fn answers(first: &DenseLayer, theta: &Params, records: &Tensor) -> Result<Mat<f64>, AttackError> {
    let (weight, offset) = first.parameters(theta)?;
    let records = matrix(records)?;
    let mut z = &weight * records.transpose();
    for column in z.col_iter_mut() {
        column.iter_mut().zip(&offset).for_each(|(z, b)| *z += b);
    }
    Ok(z)
}
