//! Kernels against candle's own operations, on the same tensors.

use super::*;
use crate::{Axis, Convolution, DType, Windows};

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
fn activations_agree_with_the_reference() {
    for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 1e-5)] {
        let [z, grad, grad_t, z_t] = [0.3, 0.1, 0.2, 0.4].map(|salt| wave(&[11, 17], salt, dtype));
        for f in Activation::all() {
            // α = 100 multiplies rounding errors of σ by as much.
            let tolerance = if matches!(f, Activation::SurrogateRelu { .. }) { 100.0 * tolerance } else { tolerance };
            let (value, slope) = activate(f, &z).unwrap();
            let (other_value, other_slope) = reference::activate(f, &z).unwrap();
            close(&value, &other_value, tolerance);
            close(&slope, &other_slope, tolerance);
            let at = Activated { z: &z, value: &value, slope: &slope };
            for grad_t in [None, Some(&grad_t)] {
                let ours = pull_back_tangent(f, at, &grad, grad_t, &z_t).unwrap();
                close(&ours, &reference::pull_back_tangent(f, at, &grad, grad_t, &z_t).unwrap(), tolerance);
            }
        }
    }
}

#[test]
fn products_agree_with_the_reference() {
    for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 1e-4)] {
        let (a, b) = (wave(&[9, 31], 0.1, dtype), wave(&[13, 31], 0.2, dtype));
        let (c, d) = (wave(&[8, 9], 0.3, dtype), wave(&[8, 13], 0.4, dtype));
        let bias = wave(&[13], 0.5, dtype);
        let products = [(Factor::plain(&a), Factor::transposed(&b)), (Factor::transposed(&c), Factor::plain(&d))];
        for bias in [None, Some(&bias)] {
            close(
                &matmul_sum(&products, bias).unwrap(),
                &reference::matmul_sum(&products, bias).unwrap(),
                tolerance * 10.0,
            );
        }
        let target = wave(&[9, 13], 0.6, dtype);
        let (ours, squares) = matmul_residual(products[0].0, products[0].1, &target, 2.0).unwrap();
        let (other, other_squares) = residual(&matmul(products[0].0, products[0].1).unwrap(), &target, 2.0).unwrap();
        close(&ours, &other, tolerance * 10.0);
        let [squares, other_squares] = [squares, other_squares].map(|total| total.read().unwrap());
        assert!((squares - other_squares).abs() < tolerance * other_squares);
    }
}

#[test]
fn channel_operations_agree_with_the_reference_and_are_adjoint() {
    for shape in [vec![3, 4, 2, 5], vec![6, 4]] {
        let [x, y, g] = [0.1, 0.5, 0.9].map(|salt| wave(&shape, salt, DType::F64));
        for (factors, count) in [(wave(&[4], 0.2, DType::F64), 4), (wave(&[1], 0.2, DType::F64), 1)] {
            let shift = wave(&[4], 0.7, DType::F64);
            for terms in
                [vec![(&x, &factors)], vec![(&x, &factors), (&y, &shift), (&g, &factors)], vec![(&x, &factors); 6]]
            {
                for shift in [None, Some(&shift)] {
                    let other = reference::channels::combine(&terms, shift).unwrap();
                    close(&combine_channels(&terms, shift).unwrap(), &Tensor(other), 1e-14);
                }
            }
            let left = dot(&combine_channels(&[(&x, &factors)], None).unwrap(), &g).unwrap();
            let right = dot(&factors, &dot_channels(&x, &g, count).unwrap()).unwrap();
            assert!((left - right).abs() < 1e-12);
            close(&dot_channels(&x, &g, count).unwrap(), &sum_channels(&mul(&x, &g).unwrap(), count).unwrap(), 1e-13);
        }
        let sums = reference::channels::sums(&x.0).unwrap();
        close(&sum_channels(&x, 4).unwrap(), &Tensor::from_vec(sums, &[4]).unwrap(), 1e-13);
    }
}

#[test]
fn convolutions_agree_with_the_reference_and_are_adjoint() {
    let axis = |size, kernel, stride, before, after, dilation| Axis { size, kernel, stride, before, after, dilation };
    for (inputs, outputs, groups, axes) in [
        (3, 4, 1, [axis(6, 3, 1, 1, 1, 1); 2]),
        (4, 6, 2, [axis(7, 3, 2, 0, 1, 1), axis(9, 2, 1, 1, 0, 2)]),
        (4, 8, 4, [axis(8, 3, 2, 1, 1, 1); 2]),
        (2, 3, 1, [axis(5, 2, 3, 0, 0, 1); 2]),
    ] {
        let convolution = Convolution { inputs, outputs, groups, axes };
        let batched = |shape: [usize; 3]| [2, shape[0], shape[1], shape[2]];
        for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 2e-5)] {
            let x = wave(&batched(convolution.input_shape()), 0.1, dtype);
            let g = wave(&batched(convolution.output_shape()), 0.3, dtype);
            let w = wave(&convolution.weight_shape(), 0.6, dtype);
            let y = convolve_sum(&convolution, &[(&x, &w)], None).unwrap();
            let dx = convolve_inputs(&convolution, &[(&g, &w)], None).unwrap();
            let dw = convolve_weights(&convolution, &g, &x).unwrap();
            let [left, by_x, by_w] = [dot(&y, &g).unwrap(), dot(&dx, &x).unwrap(), dot(&dw, &w).unwrap()];
            assert!((left - by_x).abs() <= tolerance * 10.0 * left.abs().max(1.0), "{convolution:?}");
            assert!((left - by_w).abs() <= tolerance * 10.0 * left.abs().max(1.0), "{convolution:?}");
            let same = |ours: &Tensor, other: candle_core::Result<candle_core::Tensor>| {
                close(ours, &Tensor(other.unwrap().reshape(ours.shape()).unwrap()), tolerance * 10.0);
            };
            same(&y, reference::convolve::forward(&convolution, &x.0, &w.0));
            same(&dx, reference::convolve::inputs(&convolution, &g.0, &w.0));
            same(&dw, reference::convolve::weights(&convolution, &g.0, &x.0));
            // Two products and a bias in one output.
            let bias = wave(&[outputs], 0.4, dtype);
            let both = convolve_sum(&convolution, &[(&x, &w), (&x, &w)], Some(&bias)).unwrap();
            let ones = Tensor::full(2.0, &[1], dtype, crate::Device::Cpu).unwrap();
            close(&both, &combine_channels(&[(&y, &ones)], Some(&bias)).unwrap(), tolerance * 10.0);
        }
    }
}

#[test]
fn pooling_agrees_with_the_reference_and_is_adjoint() {
    let x = wave(&[2, 3, 7, 6], 0.1, DType::F64);
    for windows in [
        Windows::regular([7, 6], [3, 2], [2, 2], [1, 0]).unwrap(),
        Windows::regular([7, 6], [2, 3], [2, 1], [0, 1]).unwrap(),
        Windows::adaptive([7, 6], [3, 4]),
        Windows::adaptive([7, 6], [1, 1]),
    ] {
        let [rows, columns] = windows.count();
        let g = wave(&[2, 3, rows, columns], 0.3, DType::F64);
        let same = |ours: &Tensor, other: candle_core::Result<candle_core::Tensor>| {
            close(ours, &Tensor(other.unwrap().reshape(ours.shape()).unwrap()), 1e-14);
        };
        let (down, up) = (pool(&windows, &x).unwrap(), spread(&windows, &g).unwrap());
        assert!((dot(&down, &g).unwrap() - dot(&up, &x).unwrap()).abs() < 1e-12, "{windows:?}");
        same(&down, reference::pool::sum(&windows, &x.0));
        same(&up, reference::pool::spread(&windows, &g.0));
        let (taken, put) = (take_largest(&windows, &x, &x).unwrap(), put_largest(&windows, &x, &g).unwrap());
        assert!((dot(&taken, &g).unwrap() - dot(&put, &x).unwrap()).abs() < 1e-12, "{windows:?}");
        same(&taken, reference::pool::take_largest(&windows, &x.0, &x.0));
        same(&put, reference::pool::put_largest(&windows, &x.0, &g.0));
    }
    let small = wave(&[2, 3, 2, 3], 0.3, DType::F64);
    let blocks = Windows::blocks([2, 3], [2, 2]);
    let large = spread(&blocks, &small).unwrap();
    let pixel = |tensor: &Tensor, index: usize| tensor.to_f64_vec().unwrap()[index];
    assert_eq!(large.shape(), [2, 3, 4, 6]);
    assert_eq!([pixel(&large, 0), pixel(&large, 1), pixel(&large, 6)], [pixel(&small, 0); 3]);
}

#[test]
fn sums_agree_with_the_reference() {
    let (a, b) = (wave(&[40, 50], 0.1, DType::F64), wave(&[40, 50], 0.2, DType::F64));
    let product = mul(&a, &b).unwrap();
    assert!((dot(&a, &b).unwrap() - reference::sum(&product.0).unwrap()).abs() < 1e-10);
    close(&sum_rows(&a).unwrap(), &Tensor(a.0.sum(0).unwrap()), 1e-13);
}

#[test]
fn adam_agrees_with_the_reference() {
    let [p, g, m] = [0.1, 0.2, 0.3].map(|salt| wave(&[7, 9], salt, DType::F64));
    let v = mul(&m, &m).unwrap();
    let rates =
        AdamRates { step: 0.01, beta1: 0.9, beta2: 0.999, correction1: 0.271, correction2: 0.003, epsilon: 1e-8 };
    let ours = adam(&p, &g, &m, &v, rates).unwrap();
    let other = reference::adam(&p, &g, &m, &v, rates).unwrap();
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
        combine_channels(&[(&a, &b)], None).unwrap_err().to_string(),
    ] {
        assert!(message.contains("expected"), "{message}");
    }
    let narrow = a.to_dtype(DType::F32).unwrap();
    assert!(add(&a, &narrow).unwrap_err().to_string().contains("f32"));
}
