//! The exponential to 2 ulp over its range, softmax and sums against f64.

use super::*;
use proptest::prelude::*;

const EPS: f64 = f32::EPSILON as f64;

/// The distance between `got` and the exact value in units of the last place of an f32 near it.
fn ulps(got: f32, exact: f64) -> f64 {
    let exponent = exact.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor() as i32;
    (f64::from(got) - exact).abs() / 2f64.powi(exponent - 23)
}

#[test]
fn exp_is_within_two_ulps_everywhere() {
    // Every 4,001st float of the range where the result is neither 0 nor infinite, both signs.
    let xs: Vec<f32> = (0..0x42d0_0000u32)
        .step_by(4001)
        .flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
        .filter(|&x| x < 88.72)
        .collect();
    for table in available() {
        let mut ys = xs.clone();
        table.exp(&mut ys);
        for (&x, &y) in xs.iter().zip(&ys) {
            let distance = ulps(y, f64::from(x).exp());
            assert!(distance <= 2.0, "{}: e^{x} = {y}, {distance} ulp off", table.isa());
        }
    }
}

#[test]
fn exp_at_the_edges() {
    let inf = f32::INFINITY;
    let rows =
        [(0.0, 1.0), (-0.0, 1.0), (-inf, 0.0), (-104.0, 0.0), (-1e30, 0.0), (inf, inf), (89.0, inf), (1e30, inf)];
    for table in available() {
        for (x, expected) in rows {
            let mut y = [x; 17];
            table.exp(&mut y);
            assert_eq!(y, [expected; 17], "{}: e^{x}", table.isa());
        }
        let mut y = [1.0, f32::NAN, -1.0];
        table.exp(&mut y);
        assert!(y[1].is_nan() && !y[0].is_nan() && !y[2].is_nan());
    }
}

/// Bound: `exp` is within 2 ulp (2ε) of the rounded difference, whose rounding moves the result by `|x - max|·ε/2`;
/// a block's sum adds at most `n_block·ε` and the last product 1.5ε.
fn check_softmax(x: &[f32]) {
    let max = x.iter().fold(f64::NEG_INFINITY, |max, &v| max.max(f64::from(v)));
    let e: Vec<f64> = x.iter().map(|&v| (f64::from(v) - max).exp()).collect();
    let total: f64 = e.iter().sum();
    for table in available() {
        assert_eq!(f64::from(table.max(x)), max, "{}", table.isa());
        let mut y = x.to_vec();
        table.softmax(&mut y);
        for ((&y, &e), &v) in y.iter().zip(&e).zip(x) {
            let exact = e / total;
            let depth = if e == 0.0 { 0.0 } else { max - f64::from(v) };
            // In the sum, depths are weighed by e^-depth: their mean is at most ln n < 16, half of which counts.
            let bound = exact * EPS * (2.0 + depth / 2.0 + 2.0 + 8.0 + x.len().min(BLOCK) as f64 + 1.5) + 2e-45;
            assert!((f64::from(y) - exact).abs() <= bound, "{}: {y} for {exact}", table.isa());
        }
        let expected = max + total.ln();
        let bound = EPS * (12.0 + x.len().min(BLOCK) as f64 + max.abs());
        let lse = table.log_sum_exp(x);
        assert!((lse - expected).abs() <= bound, "{}: {lse} for {expected}", table.isa());
    }
}

#[test]
fn all_threads_sum_to_the_same_bits() {
    let long: Vec<f32> = (0..150_001).map(|i| (i as f32 * 0.37).sin() * 12.0).collect();
    let mut masked = long[..9000].to_vec();
    masked[..8000].fill(f32::NEG_INFINITY);
    let not_a_number = [&long[..5000], &[f32::NAN], &long[..20]].concat();
    for n_threads in [1, 2, 3] {
        let threads = ThreadPool::new(n_threads);
        for x in [&long[..], &masked, &masked[..8000], &not_a_number, &[f32::NAN; 3], &long[..1], &[]] {
            for table in available() {
                let (one, all) = (table.log_sum_exp(x), table.log_sum_exp_by(&threads, x));
                assert!(one.to_bits() == all.to_bits() || (one.is_nan() && all.is_nan()), "{one} {all}");
            }
        }
    }
}

#[test]
fn softmax_of_long_and_masked_rows() {
    check_softmax(&(0..150_000).map(|i| (i as f32 * 0.37).sin() * 12.0).collect::<Vec<_>>());
    for table in available() {
        let mut y = [1.0, f32::NEG_INFINITY, 1.0];
        table.softmax(&mut y);
        assert_eq!(y, [0.5, 0.0, 0.5]);
        let mut y = [f32::NEG_INFINITY; 20];
        table.softmax(&mut y);
        assert_eq!(y, [0.0; 20]);
        assert_eq!(table.log_sum_exp(&[f32::NEG_INFINITY; 20]), f64::NEG_INFINITY);
        table.softmax(&mut []);
        assert_eq!((table.max(&[]), table.sum(&[]), table.argmax(&[])), (f32::NEG_INFINITY, 0.0, 0));
        for bad in [f32::NAN, f32::INFINITY] {
            let mut y = vec![0.5; 37];
            y[20] = bad;
            table.softmax(&mut y);
            assert!(y.iter().all(|v| v.is_nan()), "{}: {y:?}", table.isa());
        }
        assert!(table.log_sum_exp(&[f32::NAN; 3]).is_nan());
    }
}

#[test]
fn max_and_argmax_see_every_position() {
    for table in available() {
        for n in 1..200 {
            for at in 0..n {
                let mut x = vec![-3.0f32; n];
                x[at] = -2.0;
                assert_eq!((table.max(&x), table.argmax(&x)), (-2.0, at), "{}: {n}", table.isa());
            }
        }
        let mut x = vec![f32::NAN; 5000];
        (x[2000], x[3000], x[4000]) = (1.0, 2.0, 2.0);
        assert_eq!((table.max(&x), table.argmax(&x)), (2.0, 3000));
    }
}

proptest! {
    #[test]
    fn softmax_of_random_rows(x in prop::collection::vec(-120f32..120.0, 1..300), start in 0usize..9, scale in 0f32..1.0) {
        let x: Vec<f32> = x.iter().map(|v| v * scale).collect();
        check_softmax(&x[start.min(x.len() - 1)..]);
    }

    #[test]
    fn sums_of_random_rows(x in prop::collection::vec(-1e6f32..1e6, 0..300), start in 0usize..9) {
        let x = &x[start.min(x.len())..];
        let exact: f64 = x.iter().map(|&v| f64::from(v)).sum();
        let bound = x.len() as f64 * EPS * x.iter().map(|&v| f64::from(v.abs())).sum::<f64>();
        for table in available() {
            prop_assert!((f64::from(table.sum(x)) - exact).abs() <= bound, "{}", table.isa());
        }
    }

    #[test]
    fn an_elements_exponential_does_not_depend_on_its_place(x in prop::collection::vec(-100f32..80.0, 1..70)) {
        for table in available() {
            let mut together = x.clone();
            table.exp(&mut together);
            for (&x, together) in x.iter().zip(together) {
                let mut alone = [x];
                table.exp(&mut alone);
                prop_assert_eq!(alone[0].to_bits(), together.to_bits());
            }
        }
    }
}
