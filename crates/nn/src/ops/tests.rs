//! Kernels against candle's own operations, on the same tensors.

use super::*;
use crate::DType;

fn wave(shape: &[usize], salt: f64, dtype: DType) -> Tensor {
    let count: usize = shape.iter().product();
    let data: Vec<f64> = (0..count).map(|i| 3.0 * (i as f64 * 0.7 + salt).sin()).collect();
    Tensor::from_f64(&data, shape, dtype).unwrap()
}

#[track_caller]
fn close(a: &Tensor, b: &Tensor, tolerance: f64) {
    assert_eq!(a.shape(), b.shape());
    for (a, b) in a.to_f64_vec().unwrap().iter().zip(b.to_f64_vec().unwrap()) {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{a} against {b}");
    }
}

#[test]
fn activations_agree_with_the_fallback() {
    for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 1e-5)] {
        let [z, grad, grad_t, z_t] = [0.3, 0.1, 0.2, 0.4].map(|salt| wave(&[11, 17], salt, dtype));
        for f in Activation::all() {
            // α = 100 multiplies rounding errors of σ by as much.
            let tolerance = if matches!(f, Activation::SurrogateRelu { .. }) { 100.0 * tolerance } else { tolerance };
            let (value, slope) = activate(f, &z).unwrap();
            let (other_value, other_slope) = fallback::activate(f, &z).unwrap();
            close(&value, &other_value, tolerance);
            close(&slope, &other_slope, tolerance);
            let at = Activated { z: &z, value: &value, slope: &slope };
            for grad_t in [None, Some(&grad_t)] {
                let ours = pull_back_tangent(f, at, &grad, grad_t, &z_t).unwrap();
                close(&ours, &fallback::pull_back_tangent(f, at, &grad, grad_t, &z_t).unwrap(), tolerance);
            }
        }
    }
}

#[test]
fn products_agree_with_the_fallback() {
    for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 1e-4)] {
        let (a, b) = (wave(&[9, 31], 0.1, dtype), wave(&[13, 31], 0.2, dtype));
        let (c, d) = (wave(&[8, 9], 0.3, dtype), wave(&[8, 13], 0.4, dtype));
        let bias = wave(&[13], 0.5, dtype);
        let products = [(Factor::plain(&a), Factor::transposed(&b)), (Factor::transposed(&c), Factor::plain(&d))];
        for bias in [None, Some(&bias)] {
            close(
                &matmul_sum(&products, bias).unwrap(),
                &fallback::matmul_sum(&products, bias).unwrap(),
                tolerance * 10.0,
            );
        }
        let target = wave(&[9, 13], 0.6, dtype);
        let (ours, squares) = matmul_residual(products[0].0, products[0].1, &target, 2.0).unwrap();
        let (other, other_squares) = residual(&matmul(products[0].0, products[0].1).unwrap(), &target, 2.0).unwrap();
        close(&ours, &other, tolerance * 10.0);
        assert!((squares - other_squares).abs() < tolerance * other_squares);
    }
}

#[test]
fn channel_factors_and_their_sums_are_adjoint() {
    let x = wave(&[3, 4, 2, 5], 0.1, DType::F64);
    let g = wave(&[3, 4, 2, 5], 0.9, DType::F64);
    for factors in [wave(&[4], 0.2, DType::F64), wave(&[1], 0.2, DType::F64)] {
        let scaled = scale_channels(&x, &factors).unwrap();
        close(&scaled, &fallback::scale_rows(&x, &channel_row(&x, &factors).unwrap()).unwrap(), 1e-15);
        let left = dot(&scaled, &g).unwrap();
        let right = dot(&factors, &sum_channels(&mul(&x, &g).unwrap(), factors.count()).unwrap()).unwrap();
        assert!((left - right).abs() < 1e-12);
    }
}

#[test]
fn sums_agree_with_the_fallback() {
    let (a, b) = (wave(&[40, 50], 0.1, DType::F64), wave(&[40, 50], 0.2, DType::F64));
    let product = mul(&a, &b).unwrap();
    assert!((dot(&a, &b).unwrap() - fallback::sum(&product.0).unwrap()).abs() < 1e-10);
    close(&sum_rows(&a).unwrap(), &Tensor(a.0.sum(0).unwrap()), 1e-13);
}

#[test]
fn adam_agrees_with_the_fallback() {
    let [p, g, m] = [0.1, 0.2, 0.3].map(|salt| wave(&[7, 9], salt, DType::F64));
    let v = mul(&m, &m).unwrap();
    let rates =
        AdamRates { step: 0.01, beta1: 0.9, beta2: 0.999, correction1: 0.271, correction2: 0.003, epsilon: 1e-8 };
    let ours = adam(&p, &g, &m, &v, rates).unwrap();
    let other = update::adam_fallback(&p, &g, &m, &v, rates).unwrap();
    for (ours, other) in ours.iter().zip(&other) {
        close(ours, other, 1e-14);
    }
}

#[test]
fn wrong_shapes_are_errors_that_say_so() {
    let (a, b) = (wave(&[2, 3], 0.0, DType::F64), wave(&[2, 4], 0.0, DType::F64));
    for message in [
        add(&a, &b).unwrap_err().to_string(),
        matmul(Factor::plain(&a), Factor::plain(&b)).unwrap_err().to_string(),
        matmul_residual(Factor::transposed(&a), Factor::plain(&b), &a, 1.0).unwrap_err().to_string(),
        scale_channels(&a, &b).unwrap_err().to_string(),
    ] {
        assert!(message.contains("expected"), "{message}");
    }
    let narrow = a.to_dtype(DType::F32).unwrap();
    assert!(add(&a, &narrow).unwrap_err().to_string().contains("f32"));
}
