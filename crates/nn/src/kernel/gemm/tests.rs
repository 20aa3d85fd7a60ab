//! Products on every instruction set against loops over their definition.

use super::*;

fn ramp<T: Element>(len: usize, salt: usize) -> Vec<T> {
    (0..len).map(|i| T::of(((i * 7919 + salt * 104_729) % 2003) as f64 / 1001.5 - 1.0)).collect()
}

/// Rows, columns and depth around every edge: tiles, strips, panels, blocks
/// of k, the two ways through memory, single rows and columns.
const SHAPES: [(usize, usize, usize); 26] = [
    (1, 1, 1),
    (1, 1, 700),
    (1, 50, 3),
    (50, 1, 3),
    (1, 97, 600),
    (97, 1, 600),
    (3, 5, 7),
    (4, 24, 8),
    (8, 48, 16),
    (9, 49, 17),
    (7, 47, 513),
    (16, 96, 512),
    (17, 25, 1025),
    (40, 100, 64),
    (130, 60, 33),
    (130, 1200, 9),
    (512, 256, 1),
    (513, 257, 5),
    (515, 300, 256),
    (600, 260, 40),
    (2, 3, 0),
    (33, 65, 31),
    (130, 60, 700),
    (129, 160, 600),
    (128, 1, 600),
    (128, 97, 513),
];

type Product<T> = fn(Isa, View<'_, T>, View<'_, T>, Epilogue<'_, T>) -> (Vec<T>, f64);

fn check<T: Element>(product: Product<T>, isa: Isa, (m, n, k): (usize, usize, usize), tolerance: f64) {
    let (a, b, bias, target) = (ramp::<T>(m * k, 1), ramp::<T>(k * n, 2), ramp::<T>(n, 3), ramp::<T>(m * n, 4));
    for (a_turned, b_turned) in [(false, false), (false, true), (true, false), (true, true)] {
        let a_view = if a_turned { View::new(&a, k, m).t() } else { View::new(&a, m, k) };
        let b_view = if b_turned { View::new(&b, n, k).t() } else { View::new(&b, k, n) };
        let at = |view: View<'_, T>, i: usize, j: usize| {
            if view.transposed { view.data[j * view.stride() + i] } else { view.data[i * view.stride() + j] }.wide()
        };
        let naive: Vec<f64> =
            (0..m * n).map(|index| (0..k).map(|l| at(a_view, index / n, l) * at(b_view, l, index % n)).sum()).collect();
        let epilogues = [
            (Epilogue::Store, "store"),
            (Epilogue::Bias(&bias), "bias"),
            (Epilogue::Add(target.clone()), "add"),
            (Epilogue::Residual { target: &target, scale: T::of(2.0) }, "residual"),
        ];
        for (epilogue, name) in epilogues {
            let (out, squares) = product(isa, a_view, b_view, epilogue);
            assert_eq!(out.len(), m * n);
            let mut expected_squares = 0.0;
            for (index, (&out, &product)) in out.iter().zip(&naive).enumerate() {
                let expected = match name {
                    "bias" => product + bias[index % n].wide(),
                    "add" => product + target[index].wide(),
                    "residual" => 2.0 * (product - target[index].wide()),
                    _ => product,
                };
                expected_squares += if name == "residual" { expected * expected / 4.0 } else { 0.0 };
                let allowed = tolerance * (k as f64 + 2.0);
                assert!(
                    (out.wide() - expected).abs() <= allowed,
                    "{isa:?} {name} {m}x{n}x{k} ({a_turned}, {b_turned}) at {index}: {out} for {expected}"
                );
            }
            assert!((squares - expected_squares).abs() <= tolerance * 100.0 * (1.0 + expected_squares));
        }
    }
}

#[test]
fn agrees_with_the_naive_product_on_every_instruction_set() {
    // Interpreted, the large shapes would take hours and touch nothing new.
    let most = if cfg!(miri) { 20_000 } else { usize::MAX };
    for isa in Isa::available() {
        for shape in SHAPES.into_iter().filter(|(m, n, k)| m * n * k < most) {
            check::<f32>(gemm_on, isa, shape, 1e-6);
            check::<f64>(gemm_on, isa, shape, 2e-15);
        }
    }
    // The scalar tiles, which nothing else runs.
    for shape in SHAPES.into_iter().filter(|(m, n, k)| *k > 0 && m * n * k < most) {
        check::<f32>(tiled, Isa::Portable, shape, 1e-6);
        check::<f64>(tiled, Isa::Portable, shape, 2e-15);
    }
}

/// Elements in runs of this length, each run a gap after the last.
fn spaced(count: usize, run: usize, gap: usize) -> Offsets {
    Offsets::new((0..count).map(|i| i / run * (run + gap) + i % run).collect())
}

fn check_scattered<T: Element>(isa: Isa, (m, n, k): (usize, usize, usize), run: usize, tolerance: f64) {
    let (rows, columns) = (spaced(m, 1, k + 3), spaced(k, run, 2));
    let (b_rows, b_columns) = (spaced(n, run, 5), spaced(k, 1, 7 * n + 40));
    let a: Vec<T> = ramp(rows.largest() + columns.largest() + 1, 1);
    let b: Vec<T> = ramp(b_rows.largest() + b_columns.largest() + 1, 2);
    let places = spaced(n, run, 3);
    let stride = places.largest() + 2;
    let start: Vec<T> = ramp(m * stride, 3);
    let mut out = start.clone();
    let place = |i: usize, run: usize, gap: usize| i / run * (run + gap) + i % run;
    let (left, right) = (Gathered::new(&a, &rows, &columns), Gathered::new(&b, &b_rows, &b_columns));
    // SAFETY: columns are distinct and lie within the stride.
    unsafe { gemm_scattered_on(isa, left, right, &mut out, stride, &places) };
    let mut expected: Vec<f64> = start.iter().map(|x| x.wide()).collect();
    for i in 0..m {
        for j in 0..n {
            let product = |l: usize| {
                a[place(i, 1, k + 3) + place(l, run, 2)].wide() * b[place(j, run, 5) + place(l, 1, 7 * n + 40)].wide()
            };
            expected[i * stride + place(j, run, 3)] += (0..k).map(product).sum::<f64>();
        }
    }
    for (index, (out, expected)) in out.iter().zip(&expected).enumerate() {
        let off = (out.wide() - expected).abs();
        assert!(off <= tolerance * (k as f64 + 2.0), "{isa:?} {m}x{n}x{k} in runs of {run} at {index}: {off:e}");
    }
}

#[test]
fn elements_anywhere_are_multiplied_as_those_side_by_side() {
    let shapes = [(1, 1, 1), (9, 49, 17), (16, 96, 40), (40, 33, 700), (130, 60, 600)];
    let most = if cfg!(miri) { 20_000 } else { usize::MAX };
    for isa in Isa::available() {
        for shape in shapes.into_iter().filter(|(m, n, k)| m * n * k < most) {
            for run in [1, 3, 4, 8, 16, 64] {
                check_scattered::<f32>(isa, shape, run, 1e-6);
                check_scattered::<f64>(isa, shape, run, 2e-15);
            }
        }
    }
}

#[test]
fn the_thread_count_changes_no_bit() {
    for (m, n, k) in [(200, 1000, 784), (600, 700, 90), (70, 90, 1500)] {
        let (a, b, target) = (ramp::<f32>(m * k, 1), ramp::<f32>(n * k, 2), ramp::<f32>(m * n, 3));
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let epilogue = Epilogue::Residual { target: &target, scale: 2.0 };
            pool.install(|| gemm(View::new(&a, m, k), View::new(&b, n, k).t(), epilogue))
        };
        let (one, squares) = run(1);
        for threads in [2, 3, 8] {
            let (other, other_squares) = run(threads);
            assert!(one.iter().zip(&other).all(|(a, b)| a.to_bits() == b.to_bits()));
            assert_eq!(squares.to_bits(), other_squares.to_bits());
        }
    }
}

#[test]
fn infinities_and_nan_come_through() {
    let (a, b) = ([1.0_f32, f32::NAN, f32::INFINITY, 1.0], [1.0_f32, 0.0, 0.0, 1.0]);
    let (out, _) = gemm(View::new(&a, 2, 2), View::new(&b, 2, 2), Epilogue::Store);
    assert!(out[1].is_nan() && out[2].is_infinite());
}
