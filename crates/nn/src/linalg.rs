//! Decompositions and solves, in double precision, over faer.
//!
//! Inputs are matrices of either number type on any device; results are f64 in
//! main memory. Everything runs on one thread, so that the same matrix gives
//! the same bits everywhere.

use faer::linalg::solvers::Solve;
use faer::{Mat, MatRef, Side};

use crate::{Error, Result, Tensor};

/// A thin singular value decomposition A = U diag(s) Vᵀ.
#[derive(Debug, Clone)]
pub struct Svd {
    /// Left singular vectors, one a column.
    pub u: Tensor,
    /// Singular values, largest first.
    pub s: Vec<f64>,
    /// Right singular vectors, one a row.
    pub vt: Tensor,
}

/// The eigendecomposition A = V diag(λ) Vᵀ of a symmetric matrix.
#[derive(Debug, Clone)]
pub struct Eigh {
    /// Eigenvalues, smallest first.
    pub values: Vec<f64>,
    /// Eigenvectors, one a column.
    pub vectors: Tensor,
}

fn failed(operation: &'static str) -> impl Fn(&str) -> Error {
    move |problem| Error::Algebra { operation, problem: problem.into() }
}

/// A finite, non-empty matrix.
fn matrix(operation: &'static str, a: &Tensor) -> Result<Mat<f64>> {
    let &[rows, columns] = a.shape() else {
        return Err(Error::shape(operation, "[rows, columns]", a.shape()));
    };
    if rows == 0 || columns == 0 {
        return Err(failed(operation)("the matrix is empty"));
    }
    a.check_finite(operation)?;
    let data = a.to_f64_vec()?;
    Ok(Mat::from_fn(rows, columns, |i, j| data[i * columns + j]))
}

fn square(operation: &'static str, a: &Tensor) -> Result<Mat<f64>> {
    let a = matrix(operation, a)?;
    if a.nrows() != a.ncols() {
        return Err(Error::shape(operation, "a square matrix", &[a.nrows(), a.ncols()]));
    }
    Ok(a)
}

fn tensor(a: MatRef<'_, f64>) -> Result<Tensor> {
    let (rows, columns) = (a.nrows(), a.ncols());
    Tensor::from_vec((0..rows * columns).map(|i| a[(i / columns, i % columns)]).collect::<Vec<f64>>(), &[rows, columns])
}

fn same_rows(operation: &'static str, a: &Mat<f64>, b: &Mat<f64>) -> Result<()> {
    if a.nrows() == b.nrows() {
        return Ok(());
    }
    Err(Error::shape(operation, format!("[{}, …], as the matrix has rows", a.nrows()), &[b.nrows(), b.ncols()]))
}

/// Thin SVD.
///
/// ```
/// use afterimage_nn::{Tensor, linalg::svd};
/// let a = Tensor::from_vec(vec![3.0, 0.0, 0.0, 0.0, 0.0, -2.0], &[2, 3])?;
/// let svd = svd(&a)?;
/// assert!((svd.s[0] - 3.0).abs() < 1e-14 && (svd.s[1] - 2.0).abs() < 1e-14);
/// assert_eq!(svd.vt.shape(), [2, 3]);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
pub fn svd(a: &Tensor) -> Result<Svd> {
    let a = matrix("singular value decomposition", a)?;
    let svd = a.thin_svd().map_err(|_| failed("singular value decomposition")("it did not converge"))?;
    let s = svd.S().column_vector().iter().copied().collect();
    Ok(Svd { u: tensor(svd.U())?, s, vt: tensor(svd.V().transpose())? })
}

/// Eigenvalues and -vectors of a symmetric matrix; its lower triangle is read.
pub fn eigh(a: &Tensor) -> Result<Eigh> {
    let a = square("symmetric eigendecomposition", a)?;
    let eigen =
        a.self_adjoint_eigen(Side::Lower).map_err(|_| failed("symmetric eigendecomposition")("it did not converge"))?;
    Ok(Eigh { values: eigen.S().column_vector().iter().copied().collect(), vectors: tensor(eigen.U())? })
}

/// x with A x = b for a symmetric positive definite A.
pub fn cholesky_solve(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (a, b) = (square("Cholesky solve", a)?, matrix("Cholesky solve", b)?);
    same_rows("Cholesky solve", &a, &b)?;
    let factor = a.llt(Side::Lower).map_err(|_| failed("Cholesky solve")("the matrix is not positive definite"))?;
    tensor(factor.solve(&b).as_ref())
}

/// A = Q R with orthonormal columns in Q: (Q, R), thin.
pub fn qr(a: &Tensor) -> Result<(Tensor, Tensor)> {
    let qr = matrix("QR decomposition", a)?.qr();
    Ok((tensor(qr.compute_thin_Q().as_ref())?, tensor(qr.thin_R())?))
}

/// The x of least norm among those that minimise ‖A x − b‖, column by column.
///
/// Directions with singular values below `max(rows, columns) · ε` of the
/// largest count as zero.
pub fn least_squares(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (a, b) = (matrix("least squares", a)?, matrix("least squares", b)?);
    same_rows("least squares", &a, &b)?;
    let svd = a.thin_svd().map_err(|_| failed("least squares")("the decomposition did not converge"))?;
    let s: Vec<f64> = svd.S().column_vector().iter().copied().collect();
    let cut = s.first().copied().unwrap_or(0.0) * f64::EPSILON * a.nrows().max(a.ncols()) as f64;
    let mut coefficients = svd.U().transpose() * &b;
    for (i, &s) in s.iter().enumerate() {
        let inverse = if s > cut { 1.0 / s } else { 0.0 };
        coefficients.row_mut(i).iter_mut().for_each(|value| *value *= inverse);
    }
    tensor((svd.V() * coefficients).as_ref())
}

/// The x ≥ 0 that minimises ‖A x − b‖, from AᵀA and Aᵀb alone.
///
/// The active-set method of Lawson & Hanson in the normal-equation form of Bro
/// & de Jong (1997): an entry is freed where that lowers the distance most, and
/// fixed at zero again where the free solution would make it negative.
///
/// ```
/// use afterimage_nn::{Tensor, linalg::nnls};
/// let gram = Tensor::from_vec(vec![2.0, 0.0, 0.0, 1.0], &[2, 2])?;
/// let x = nnls(&gram, &[4.0, -1.0])?;
/// assert!((x[0] - 2.0).abs() < 1e-15 && x[1] == 0.0);
/// # Ok::<(), afterimage_nn::Error>(())
/// ```
pub fn nnls(gram: &Tensor, rhs: &[f64]) -> Result<Vec<f64>> {
    let gram = square("non-negative least squares", gram)?;
    let n = gram.nrows();
    if rhs.len() != n {
        return Err(Error::shape("non-negative least squares", [n], &[rhs.len()]));
    }
    if let Some(index) = rhs.iter().position(|value| !value.is_finite()) {
        return Err(Error::NonFinite { what: "right-hand side".into(), index, value: rhs[index] });
    }
    let size = rhs.iter().map(|value| value.abs()).fold(0.0, f64::max);
    let tolerance = 10.0 * f64::EPSILON * n as f64 * size;
    let (mut x, mut free) = (vec![0.0; n], vec![false; n]);
    // Entries that depend on free ones: until the free set changes they can add nothing.
    let mut barred = vec![false; n];
    // Each round frees one entry; ten times over is far more than it ever takes.
    for _ in 0..10 * n {
        let slack = |i: usize| rhs[i] - (0..n).map(|j| gram[(i, j)] * x[j]).sum::<f64>();
        let best = (0..n).filter(|&i| !free[i] && !barred[i]).map(|i| (slack(i), i)).max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, entering)) = best.filter(|(gain, _)| *gain > tolerance) else { return Ok(x) };
        free[entering] = true;
        while let Some(blocked) = move_to_free_optimum(&gram, rhs, &free, &mut x) {
            let Some(blocked) = blocked else {
                (free[entering], barred[entering]) = (false, true);
                break;
            };
            (x[blocked], free[blocked]) = (0.0, false);
            barred.fill(false);
            barred[blocked] = blocked == entering;
        }
    }
    Err(failed("non-negative least squares")("the set of positive entries did not settle"))
}

/// Moves x towards the optimum over the free entries, as far as none becomes
/// negative. `None`: it is there; `Some(Some(i))`: entry i reached zero first;
/// `Some(None)`: the free entries depend on each other.
fn move_to_free_optimum(gram: &Mat<f64>, rhs: &[f64], free: &[bool], x: &mut [f64]) -> Option<Option<usize>> {
    let active: Vec<usize> = (0..x.len()).filter(|&i| free[i]).collect();
    let Some(optimum) = solve_free(gram, rhs, &active) else { return Some(None) };
    let negative = active.iter().zip(&optimum).filter(|(_, optimum)| **optimum <= 0.0);
    let reach = |i: usize, optimum: f64| if x[i] > 0.0 { x[i] / (x[i] - optimum) } else { 0.0 };
    let first = negative.map(|(&i, &optimum)| (reach(i, optimum), i)).min_by(|a, b| a.0.total_cmp(&b.0));
    let step = first.map_or(1.0, |(step, _)| step);
    for (&i, &optimum) in active.iter().zip(&optimum) {
        x[i] += step * (optimum - x[i]);
    }
    first.map(|(_, blocked)| Some(blocked))
}

/// The unconstrained solution over some entries; `None` if they are dependent.
fn solve_free(gram: &Mat<f64>, rhs: &[f64], active: &[usize]) -> Option<Vec<f64>> {
    let n = active.len();
    let sub = Mat::from_fn(n, n, |i, j| gram[(active[i], active[j])]);
    let right = Mat::from_fn(n, 1, |i, _| rhs[active[i]]);
    let solution = sub.llt(Side::Lower).ok()?.solve(&right);
    let solution: Vec<f64> = (0..n).map(|i| solution[(i, 0)]).collect();
    solution.iter().all(|value| value.is_finite()).then_some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{self, Factor};
    use crate::{DType, Stream};

    fn random(name: &str, shape: &[usize]) -> Tensor {
        Stream::new(5, name, 0).normal_tensor(1.0, shape, DType::F64).unwrap()
    }

    fn product(a: &Tensor, b: &Tensor) -> Tensor {
        ops::matmul(Factor::plain(a), Factor::plain(b)).unwrap()
    }

    fn distance(a: &Tensor, b: &Tensor) -> f64 {
        ops::squared_distance(a, b).unwrap().sqrt()
    }

    fn diagonal(values: &[f64]) -> Tensor {
        let n = values.len();
        let data: Vec<f64> = (0..n * n).map(|i| if i / n == i % n { values[i / n] } else { 0.0 }).collect();
        Tensor::from_vec(data, &[n, n]).unwrap()
    }

    #[test]
    fn decompositions_multiply_back() {
        for (rows, columns) in [(7, 4), (4, 7), (1, 5), (30, 30)] {
            let a = random("a", &[rows, columns]);
            let svd = svd(&a).unwrap();
            assert!(svd.s.windows(2).all(|pair| pair[0] >= pair[1]));
            assert!(distance(&product(&product(&svd.u, &diagonal(&svd.s)), &svd.vt), &a) < 1e-12);
            let (q, r) = qr(&a).unwrap();
            assert!(distance(&product(&q, &r), &a) < 1e-12);
            let gram = ops::matmul(Factor::transposed(&a), Factor::plain(&a)).unwrap();
            let eigen = eigh(&gram).unwrap();
            let rebuilt =
                product(&product(&eigen.vectors, &diagonal(&eigen.values)), &eigen.vectors.transpose().unwrap());
            assert!(distance(&rebuilt, &gram) < 1e-11);
        }
    }

    #[test]
    fn solves_agree_with_each_other() {
        let a = random("tall", &[12, 5]);
        let b = random("right", &[12, 2]);
        let gram = ops::matmul(Factor::transposed(&a), Factor::plain(&a)).unwrap();
        let right = ops::matmul(Factor::transposed(&a), Factor::plain(&b)).unwrap();
        let normal = cholesky_solve(&gram, &right).unwrap();
        assert!(distance(&least_squares(&a, &b).unwrap(), &normal) < 1e-11);
        // A wide system has many solutions; the one of least norm lies in the row space.
        let (wide, b) = (random("wide", &[3, 6]), random("b", &[3, 1]));
        let x = least_squares(&wide, &b).unwrap();
        assert!(distance(&product(&wide, &x), &b) < 1e-12);
        let basis = svd(&wide).unwrap().vt;
        let inside = product(&basis.transpose().unwrap(), &product(&basis, &x));
        assert!(distance(&inside, &x) < 1e-12);
    }

    #[test]
    fn nnls_satisfies_the_optimality_conditions() {
        for round in 0..50 {
            let mut stream = Stream::new(9, "nnls", round);
            let (rows, columns) = (4 + stream.below(20), 1 + stream.below(12));
            let a = stream.normal_tensor(1.0, &[rows, columns], DType::F64).unwrap();
            let b = stream.normal_tensor(1.0, &[rows, 1], DType::F64).unwrap();
            let gram = ops::matmul(Factor::transposed(&a), Factor::plain(&a)).unwrap();
            let right = ops::matmul(Factor::transposed(&a), Factor::plain(&b)).unwrap().to_f64_vec().unwrap();
            let x = nnls(&gram, &right).unwrap();
            let gram = gram.to_f64_vec().unwrap();
            for i in 0..columns {
                let slack = right[i] - (0..columns).map(|j| gram[i * columns + j] * x[j]).sum::<f64>();
                assert!(x[i] >= 0.0 && slack < 1e-9 && (x[i] * slack).abs() < 1e-9, "round {round}: {x:?}");
            }
        }
    }

    #[test]
    fn nnls_knows_no_scale() {
        let gram = Tensor::from_vec(vec![1.0], &[1, 1]).unwrap();
        for size in [1e-200, 1e-15, 1.0, 1e200] {
            assert!((nnls(&gram, &[size]).unwrap()[0] / size - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn nnls_survives_duplicate_columns() {
        let gram = Tensor::from_vec(vec![2.0, 2.0, 2.0, 2.0], &[2, 2]).unwrap();
        let x = nnls(&gram, &[4.0, 4.0]).unwrap();
        assert!((x[0] + x[1] - 2.0).abs() < 1e-12);
    }

    #[test]
    fn what_cannot_be_solved_says_so() {
        let indefinite = diagonal(&[1.0, -1.0]);
        let b = random("b", &[2, 1]);
        let message = cholesky_solve(&indefinite, &b).unwrap_err().to_string();
        assert!(message.contains("not positive definite"));
        let nan = Tensor::from_vec(vec![f64::NAN; 4], &[2, 2]).unwrap();
        assert!(svd(&nan).unwrap_err().to_string().contains("NaN"));
        assert!(svd(&Tensor::from_vec(Vec::<f64>::new(), &[0, 3]).unwrap()).is_err());
        assert!(eigh(&random("a", &[2, 3])).unwrap_err().to_string().contains("square"));
        assert!(least_squares(&indefinite, &random("b", &[3, 1])).is_err());
        assert!(nnls(&indefinite, &[1.0]).is_err());
    }
}
