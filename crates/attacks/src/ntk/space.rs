//! The span of the records, as the change of the first layer shows it.

use afterimage_nn::linalg::{qr, svd};
use afterimage_nn::{LayerKind, Network, Params, Tensor};

use super::steps::Step;
use crate::AttackError;
use crate::dense::perceptron;
use crate::margin::{Noise, Span};

/// Gradient descent adds multiples of (x_i, 1) to the rows of (W₁, b₁) and nothing else:
/// the records lie in the row space of its change, exactly and at any time.
///
/// With an orthonormal frame F of that space whose last vector alone has a last entry,
/// (x, 1) = c F fixes the last coordinate of c and leaves the others free: an affine space
/// of one dimension less than there are records. The network below reads c, by a first layer
/// (W₁, b₁) Fᵀ without a bias. Inner products of first-layer gradients are the same in both.
pub(super) struct ChangeSpace {
    /// x = c F, without F's last column.
    pub(super) span: Span,
    /// The network that reads c.
    pub(super) network: Network,
    /// The last coordinate, where the layer has a bias.
    pub(super) fixed: Option<f64>,
    /// Independent records.
    pub(super) rank: usize,
    frame: Tensor,
    weight: String,
    bias: Option<String>,
}

/// Where the next singular value is less than this part of one, records end and rounding begins.
const CLEAR: f64 = 0.25;
/// Below this part of the largest, a singular value is rounding whatever the next one is.
const ROUNDING: f64 = 1e-7;

impl ChangeSpace {
    /// The space, or why there is none to be told.
    pub(super) fn of(network: &Network, steps: &[Step]) -> Result<Result<Self, String>, AttackError> {
        let Some(first) = perceptron(network).and_then(|layers| layers.into_iter().next()) else {
            return Ok(Err("no fully connected layer reads the records first".into()));
        };
        let weight = format!("{}.weight", first.name);
        let bias = first.bias.then(|| format!("{}.bias", first.name));
        let rows = steps
            .iter()
            .map(|step| augmented(&step.change, &weight, bias.as_deref()))
            .collect::<Result<Vec<_>, _>>()?;
        let rows = Tensor::concat_rows(&rows.iter().collect::<Vec<_>>())?;
        let all = svd(&rows)?;
        let Some(rank) = told_apart(&all.s, rows.rows(), rows.row_len()) else {
            return Ok(Err("the change of the first layer is of full rank: weight decay, noise, an optimiser other \
                           than gradient descent, or more records than the layer has inputs or units"
                .into()));
        };
        let basis = all.vt.slice_rows(0..rank)?;
        let Some((frame, fixed)) = framed(&basis, bias.is_some())? else {
            return Ok(Err("the change of the first layer's bias is not that of records".into()));
        };
        let like = steps[0].change.get(&weight)?;
        let inputs = like.row_len();
        let frame = frame.to_dtype(like.dtype())?.to_device(like.device())?;
        let columns = frame.transpose()?.slice_rows(0..inputs)?.transpose()?;
        let span = Span { basis: columns, shape: network.input_shape().to_vec() };
        let mut spec = network.spec().clone();
        spec.input = vec![rank];
        // The fixed coordinate does the bias's work.
        let linear = spec.layers.iter_mut().find_map(|layer| match &mut layer.kind {
            LayerKind::Linear { bias, .. } => Some(bias),
            _ => None,
        });
        if let Some(bias) = linear {
            *bias = false;
        }
        Ok(Ok(Self { span, network: Network::new(spec)?, fixed, rank, frame, weight, bias }))
    }

    /// The first layer's parameters, or a change of them, over coordinates.
    pub(super) fn first_layer(&self, params: &Params) -> Result<Tensor, AttackError> {
        Ok(augmented(params, &self.weight, self.bias.as_deref())?.matmul_transposed(&self.frame)?)
    }

    /// Parameters, or a change of them, as the network that reads coordinates has them.
    pub(super) fn reduced(&self, params: &Params) -> Result<Params, AttackError> {
        let first = self.first_layer(params)?;
        let named = params.state().filter(|(name, _)| Some(*name) != self.bias.as_deref());
        let named = named
            .map(|(name, value)| (name.to_owned(), if name == self.weight { first.clone() } else { value.clone() }));
        Ok(self.network.params(named.collect(), params.dtype(), params.device())?)
    }
}

/// How many singular values (largest first, of a matrix with so many rows and columns) are those
/// of records: up to where they fall off most, if they do so clearly, or above the edge of noise.
/// `None` if hardly any is left over: then there is nothing to tell records from.
fn told_apart(s: &[f64], rows: usize, columns: usize) -> Option<usize> {
    let most = s.len() * 9 / 10;
    let fall = |rank: usize| s[rank] / s[rank - 1];
    let real = (1..=most).take_while(|&rank| rank < s.len() && s[rank - 1] > ROUNDING * s[0]);
    let clear = real.min_by(|&a, &b| fall(a).total_cmp(&fall(b))).filter(|&rank| fall(rank) < CLEAR);
    clear.or_else(|| Some(Noise::of(s, rows, columns).rank).filter(|rank| (1..=most).contains(rank)))
}

/// (W, b), or W alone.
fn augmented(params: &Params, weight: &str, bias: Option<&str>) -> Result<Tensor, AttackError> {
    let weight = params.get(weight)?;
    let Some(bias) = bias else { return Ok(weight.clone()) };
    let bias = params.get(bias)?;
    let rows = [&weight.transpose()?, &bias.reshape(&[1, bias.count()])?];
    Ok(Tensor::concat_rows(&rows)?.transpose()?)
}

/// An orthonormal frame of a space whose last vector alone has a last entry, and the
/// coordinate along it of vectors whose last entry is 1; with no bias, the basis as it is.
fn framed(basis: &Tensor, bias: bool) -> Result<Option<(Tensor, Option<f64>)>, AttackError> {
    if !bias {
        return Ok(Some((basis.clone(), None)));
    }
    let (rank, columns) = (basis.rows(), basis.row_len());
    let values = basis.to_f64_vec()?;
    let last: Vec<f64> = values.chunks_exact(columns).map(|row| row[columns - 1]).collect();
    let length = last.iter().map(|b| b * b).sum::<f64>().sqrt();
    if length < 1e-6 {
        return Ok(None);
    }
    // Q of (b, I) begins with b; its other columns are orthogonal to b.
    let start: Vec<f64> = (0..rank * rank)
        .map(|at| match at % rank {
            0 => last[at / rank],
            column => f64::from(u8::from(column - 1 == at / rank)),
        })
        .collect();
    let (q, _) = qr(&Tensor::from_vec(start, &[rank, rank])?)?;
    let along: f64 = q.to_f64_vec()?.iter().step_by(rank).zip(&last).map(|(q, b)| q * b).sum();
    let mut order: Vec<usize> = (1..rank).collect();
    order.push(0);
    let mut turned = q.transpose()?.select_rows(&order)?.to_f64_vec()?;
    if along < 0.0 {
        turned.iter_mut().skip(rank * (rank - 1)).for_each(|value| *value = -*value);
    }
    let frame = Tensor::from_vec(turned, &[rank, rank])?.matmul(basis)?;
    Ok(Some((frame, Some(1.0 / length))))
}
