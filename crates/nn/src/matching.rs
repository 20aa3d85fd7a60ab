//! One iteration of a matching attack, again and again.

use crate::difference::Difference;
use crate::gradient::Square;
use crate::ops::{self, Totals};
use crate::{Along, DType, Error, Network, Params, Result, Tensor};

/// How gradients of weights are kept while they are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// In factors where those are cheaper and the squares large enough to be had from them, otherwise multiplied out.
    #[default]
    Cheaper,
    /// Multiplied out: h × d numbers for each layer.
    Explicit,
    /// In factors, whatever it costs: products of samples with each other, never h × d numbers.
    Gram,
}

impl Form {
    /// Whether the gradient of a weight of this shape over so many samples stays in factors; `own` says that it is
    /// compared with the weight itself.
    pub(crate) fn keeps_factors(self, samples: usize, weight: &[usize], own: bool) -> bool {
        match (self, weight) {
            (Form::Cheaper, &[outputs, inputs]) => Difference::pays(samples, outputs, inputs, own),
            (Form::Gram, _) => true,
            _ => false,
        }
    }
}

/// D = Σ_p ‖G_p − T_p‖² over x and c, with its parts and gradients, where G = Σ c ∇_θ f.
#[derive(Debug, Clone)]
pub struct Matched {
    /// ‖G_p − T_p‖², one for each parameter.
    pub squares: Vec<f64>,
    /// Derivatives along v_p = scale_p (G_p − T_p): with scale 2, the gradients of D in c and x.
    pub along: Along,
}

/// The comparison of gradients with one target, made over and over for other candidates.
///
/// The same numbers as [`Pass::residual`](crate::Pass::residual) and [`Pass::along`](crate::Pass::along) give, by the
/// cheaper of two forms; on a CUDA device the work of an iteration is
/// recorded the first time and repeated as a whole.
///
/// ```
/// use afterimage_nn::{DType, Form, Init, Matching, Network, Tensor, zoo::Mlp};
/// let network = Network::new(Mlp::new(3, &[8], 1).spec())?;
/// let theta = network.init(&Init::Pytorch.into(), 1, DType::F64)?;
/// let x = Tensor::from_vec(vec![0.5, -0.2, 0.1], &[1, 3])?;
/// let c = Tensor::from_vec(vec![2.0], &[1, 1])?;
/// let mut explicit = Matching::new(&network, &theta, &theta, &[2.0; 4], Form::Explicit)?;
/// let mut gram = Matching::new(&network, &theta, &theta, &[2.0; 4], Form::Gram)?;
/// let [a, b] = [explicit.evaluate(&x, &c)?, gram.evaluate(&x, &c)?];
/// assert!((a.squares[0] - b.squares[0]).abs() < 1e-12);
/// assert_eq!(a.along.inputs.shape(), [1, 3]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
pub struct Matching<'n> {
    network: &'n Network,
    theta: Params,
    target: Params,
    scales: Vec<f64>,
    form: Form,
    /// ‖T_p‖²: what an expanded square is completed with.
    target_squares: Vec<f64>,
    #[cfg(feature = "cuda")]
    recorded: Recorded,
}

/// What a device has been told to repeat.
#[cfg(feature = "cuda")]
#[derive(Default)]
enum Recorded {
    #[default]
    Nothing,
    Iteration {
        replay: crate::cuda::Replay,
        parts: Vec<usize>,
        totals: Totals,
    },
    /// Something in it cannot be recorded.
    Impossible,
}

impl<'n> Matching<'n> {
    /// A comparison with `target`, each parameter's residual scaled by its own number.
    pub fn new(network: &'n Network, theta: &Params, target: &Params, scales: &[f64], form: Form) -> Result<Self> {
        theta.same_layout(target)?;
        if scales.len() != target.values().len() {
            return Err(Error::shape("scales of a residual", [target.values().len()], &[scales.len()]));
        }
        let target_squares = target.values().iter().map(|value| value.dot(value)).collect::<Result<_>>()?;
        Ok(Self {
            network,
            theta: theta.clone(),
            target: target.clone(),
            scales: scales.to_vec(),
            form,
            target_squares,
            #[cfg(feature = "cuda")]
            recorded: Recorded::default(),
        })
    }

    /// The comparison at candidates x with coefficients c, one for each output.
    pub fn evaluate(&mut self, x: &Tensor, c: &Tensor) -> Result<Matched> {
        #[cfg(feature = "cuda")]
        if !x.on_cpu()
            && let Some(matched) = self.repeated(x, c)?
        {
            return Ok(matched);
        }
        self.evaluate_with(x, |_| Ok(c.clone()))
    }

    /// The same where coefficients follow from the outputs.
    pub fn evaluate_with(&mut self, x: &Tensor, c: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Matched> {
        let unread = self.unread(x, c)?;
        let sums = unread.totals.read(unread.totals.unread.as_ref())?;
        let matched = self.read(&unread.parts, &sums, unread.along, x)?;
        self.look_closely(&unread.parts, &matched.squares);
        Ok(matched)
    }

    /// Once a square is so small beside the target's that the difference it is made of has lost most of its
    /// digits, gradients are multiplied out from then on.
    fn look_closely(&mut self, parts: &[usize], squares: &[f64]) {
        let least = match self.theta.dtype() {
            DType::F32 => 1e-5,
            DType::F64 => 1e-12,
        };
        let mut each = parts.iter().zip(squares.iter().zip(&self.target_squares));
        if self.form == Form::Cheaper && each.any(|(parts, (square, target))| *parts > 1 && *square < least * target) {
            self.form = Form::Explicit;
            #[cfg(feature = "cuda")]
            {
                self.recorded = Recorded::Nothing;
            }
        }
    }

    /// Everything that can be computed without waiting for a device.
    fn unread(&self, x: &Tensor, c: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Unread> {
        let pass = self.network.pass(&self.theta, x)?;
        let c = c(pass.outputs())?;
        let (left, along) = pass.matched(&c, &self.target, &self.scales, self.form)?;
        let (mut totals, mut parts) = (Vec::new(), Vec::new());
        for square in left.squares {
            let before = totals.len();
            match square {
                Square::Whole(total) => totals.push(total),
                Square::Expanded(parts) => totals.extend(parts),
            }
            parts.push(totals.len() - before);
        }
        totals.push(ops::finite_total(&along.inputs, &along.outputs)?);
        Ok(Unread { along, parts, totals: Totals::new(totals)? })
    }

    fn read(&self, parts: &[usize], sums: &[f64], along: Along, x: &Tensor) -> Result<Matched> {
        let (squares, finite) = sums.split_at(sums.len() - 1);
        let mut sums = squares.iter();
        let mut next = || sums.next().copied().unwrap_or(f64::NAN);
        let mut squares = Vec::with_capacity(parts.len());
        for (&parts, target) in parts.iter().zip(&self.target_squares) {
            // Rounding may leave a little less than nothing.
            let square = match parts {
                1 => next(),
                2 => next() - 2.0 * next() + target,
                _ => next() - 2.0 * (next() - next()) + target,
            };
            squares.push(if square < 0.0 { 0.0 } else { square });
        }
        if squares.iter().all(|square| square.is_finite()) && finite.iter().all(|&zero| zero == 0.0) {
            return Ok(Matched { squares, along });
        }
        x.check_finite("network input")?;
        self.theta.check_finite()?;
        self.target.check_finite()?;
        let value = squares.into_iter().find(|square| !square.is_finite()).unwrap_or(f64::NAN);
        Err(Error::NonFinite { what: "squared residual of the gradients".into(), index: 0, value })
    }

    /// The iteration repeated on the device as it was recorded, which happens first if need be.
    #[cfg(feature = "cuda")]
    fn repeated(&mut self, x: &Tensor, c: &Tensor) -> Result<Option<Matched>> {
        use crate::cuda::{Replay, duplicate_of};
        let fits = |replay: &Replay| replay.takes(&[x, c]);
        if !matches!(&self.recorded, Recorded::Impossible)
            && !matches!(&self.recorded, Recorded::Iteration { replay, .. } if fits(replay))
        {
            let mut described = None;
            let held = self.theta.values().iter().chain(self.target.values()).cloned().collect();
            let replay = Replay::record(&[x, c], held, |inputs| {
                let Unread { along, parts, totals } = self.unread(&inputs[0], |_| Ok(inputs[1].clone()))?;
                let sums = totals.unread.clone().into_iter();
                let written = [along.inputs, along.outputs].into_iter().chain(sums).collect();
                described = Some((parts, totals.without_unread()));
                Ok(written)
            })?;
            self.recorded = match (replay, described) {
                (Some(replay), Some((parts, totals))) => Recorded::Iteration { replay, parts, totals },
                _ => Recorded::Impossible,
            };
        }
        let Recorded::Iteration { replay, parts, totals } = &mut self.recorded else { return Ok(None) };
        let found = replay.run(&[x, c], |written| {
            let [inputs, outputs, sums @ ..] = written else { return Ok(None) };
            let along = Along { outputs: duplicate_of(outputs)?, inputs: duplicate_of(inputs)? };
            Ok(Some((along, totals.read(sums.first())?)))
        })?;
        let parts = parts.clone();
        let Some((along, sums)) = found else { return Ok(None) };
        let matched = self.read(&parts, &sums, along, x)?;
        self.look_closely(&parts, &matched.squares);
        Ok(Some(matched))
    }
}

/// An iteration whose sums have not been read.
struct Unread {
    along: Along,
    /// Of how many sums each square is made: more than one where it comes expanded.
    parts: Vec<usize>,
    totals: Totals,
}
