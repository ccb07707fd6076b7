//! Each method against plain loops over whole matrices.

use super::*;

const N_IN: usize = 12;
const N_OUT: usize = 9;

fn noise(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 29 + seed * 71) as f32 * 0.731).sin()).collect()
}

fn adapter(seed: usize, rank: usize, scale: f32, targets: &[&str]) -> Adapter {
    let delta = |target: &&str| {
        let a = Values::from_f32(rank, N_IN, &noise(rank * N_IN, seed + target.len()));
        let b = Values::from_f32(N_OUT, rank, &noise(N_OUT * rank, 3 * seed + target.len()));
        Delta::new(*target, scale, FactorPair { a, b }, None, RowOrder::Same).expect("a pair")
    };
    Adapter::new(format!("a{seed}"), targets.iter().map(delta).collect()).expect("an adapter")
}

/// The change of a tensor by plain loops; zeros where the adapter has none.
fn dense(adapter: &Adapter, target: &str) -> Vec<f64> {
    let mut m = vec![0.0; N_OUT * N_IN];
    let Some(delta) = adapter.delta(target) else { return m };
    let (a, b) = (delta.a().expect("finite"), delta.b().expect("finite"));
    for j in 0..N_OUT {
        for c in 0..N_IN {
            for i in 0..delta.rank() {
                m[j * N_IN + c] +=
                    f64::from(delta.scale) * f64::from(b[j * delta.rank() + i]) * f64::from(a[i * N_IN + c]);
            }
        }
    }
    m
}

fn check(merged: &Adapter, target: &str, expected: &[f64], tolerance: f64) {
    let found = dense(merged, target);
    let size = expected.iter().map(|x| x.abs()).fold(1e-9, f64::max);
    for (i, (x, y)) in found.iter().zip(expected).enumerate() {
        assert!((x - y).abs() <= tolerance * size, "{target}[{i}]: {x} for {y}");
    }
}

fn pair() -> (Adapter, Adapter) {
    (adapter(1, 2, 0.5, &["blk.0.attn_q", "blk.0.ffn_up"]), adapter(2, 3, 2.0, &["blk.0.attn_q", "blk.1.attn_q"]))
}

#[test]
fn sums_and_means_keep_every_rank() {
    let (x, y) = pair();
    for target in ["blk.0.attn_q", "blk.0.ffn_up", "blk.1.attn_q"] {
        let (dx, dy) = (dense(&x, target), dense(&y, target));
        let sum = |p: f64, q: f64| dx.iter().zip(&dy).map(|(x, y)| p * x + q * y).collect::<Vec<f64>>();
        let merged = merge("m", &[(&x, 0.3), (&y, -0.8)], Method::TaskArithmetic, None).expect("they merge");
        check(&merged, target, &sum(0.3, -0.8), 1e-6);
        assert_eq!(merged.delta("blk.0.attn_q").map(Delta::rank), Some(5));
        let merged = merge("m", &[(&x, 1.0), (&y, 3.0)], Method::Linear, None).expect("they merge");
        check(&merged, target, &sum(0.25, 0.75), 1e-6);
        // A rank that is large enough loses nothing.
        let merged =
            merge("m", &[(&x, 1.0), (&y, 1.0), (&x, 1.0)], Method::TaskArithmetic, Some(5)).expect("they merge");
        check(&merged, target, &sum(2.0, 1.0), 1e-5);
        assert!(merged.rank_max() <= 5);
    }
}

#[test]
fn slerp_goes_along_the_arc() {
    let (x, y) = pair();
    let target = "blk.0.attn_q";
    let (dx, dy) = (dense(&x, target), dense(&y, target));
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let angle = (dot(&dx, &dy) / (dot(&dx, &dx) * dot(&dy, &dy)).sqrt()).acos();
    for t in [0.0, 0.4, 1.0] {
        let merged = merge("m", &[(&x, 1.0), (&y, 1.0)], Method::Slerp { t }, None).expect("they merge");
        let (p, q) = (((1.0 - t) * angle).sin() / angle.sin(), (t * angle).sin() / angle.sin());
        let expected: Vec<f64> = dx.iter().zip(&dy).map(|(x, y)| p * x + q * y).collect();
        check(&merged, target, &expected, 1e-6);
        let alone: Vec<f64> = dense(&y, "blk.1.attn_q").iter().map(|y| t * y).collect();
        check(&merged, "blk.1.attn_q", &alone, 1e-6);
    }
    // Parallel ones have no arc.
    let merged = merge("m", &[(&x, 1.0), (&x, 1.0)], Method::Slerp { t: 0.5 }, None).expect("they merge");
    check(&merged, target, &dx, 1e-6);
    assert!(merge("m", &[(&x, 1.0)], Method::Slerp { t: 0.5 }, None).is_err());
}

#[test]
fn ties_trims_elects_and_averages() {
    let (x, y) = pair();
    let z = adapter(7, 1, 1.0, &["blk.0.attn_q"]);
    let (target, weights, density) = ("blk.0.attn_q", [1.0, 0.5, 2.0], 0.4);
    let mut tasks: Vec<Vec<f64>> = [&x, &y, &z].iter().map(|a| dense(a, target)).collect();
    for (task, weight) in tasks.iter_mut().zip(weights) {
        let mut sizes: Vec<f64> = task.iter().map(|x| x.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let least = sizes[sizes.len() - (density * sizes.len() as f64).round() as usize];
        task.iter_mut().for_each(|x| *x = if x.abs() >= least { *x * weight } else { 0.0 });
    }
    let expected: Vec<f64> = (0..N_OUT * N_IN)
        .map(|at| {
            let (mut plus, mut minus, mut n_plus, mut n_minus) = (0.0, 0.0, 0.0, 0.0);
            for task in &tasks {
                if task[at] > 0.0 {
                    (plus, n_plus) = (plus + task[at], n_plus + 1.0);
                } else if task[at] < 0.0 {
                    (minus, n_minus) = (minus + task[at], n_minus + 1.0);
                }
            }
            match plus + minus {
                sum if sum > 0.0 => plus / n_plus,
                sum if sum < 0.0 => minus / n_minus,
                _ => 0.0,
            }
        })
        .collect();
    let all = [(&x, weights[0]), (&y, weights[1]), (&z, weights[2])];
    // The full rank shows the values themselves.
    let merged = merge("m", &all, Method::Ties { density }, Some(N_OUT)).expect("they merge");
    check(&merged, target, &expected, 1e-5);
    assert_eq!(merge("m", &all, Method::Ties { density }, None).expect("they merge").rank_max(), 3);
    assert!(merge("m", &all, Method::Ties { density: 0.0 }, None).is_err());
}

#[test]
fn dare_drops_by_its_seed_and_keeps_the_mean() {
    let (x, _) = pair();
    let (target, density) = ("blk.0.attn_q", 0.5);
    let dx = dense(&x, target);
    let run = |seed| merge("m", &[(&x, 0.6)], Method::Dare { density, seed }, Some(N_OUT)).expect("it merges");
    let (first, again, other) = (run(1), run(1), run(2));
    assert_eq!(first.content(), again.content());
    assert_ne!(first.content(), other.content());
    // Every value is dropped or doubled.
    let found = dense(&first, target);
    let n_kept = found.iter().zip(&dx).filter(|(found, x)| (**found - 1.2 * **x).abs() < 1e-4).count();
    let n_gone = found.iter().filter(|found| found.abs() < 1e-4).count();
    assert!(n_kept + n_gone >= dx.len() && (30..80).contains(&n_kept), "{n_kept} kept, {n_gone} dropped");
    let mut mean = vec![0.0; dx.len()];
    for seed in 0..400 {
        let task = dense(&run(seed), target);
        mean.iter_mut().zip(task).for_each(|(mean, x)| *mean += x / 400.0);
    }
    // The mean of 400 draws is within 5 of its deviations, each at most |0.6·x|/20.
    for (mean, x) in mean.iter().zip(&dx) {
        assert!((mean - 0.6 * x).abs() <= 0.6 * x.abs() / 4.0 + 1e-3, "{mean} for {}", 0.6 * x);
    }
}

#[test]
fn what_cannot_be_merged_says_so() {
    let (x, y) = pair();
    let line = |adapters: &[(&Adapter, f64)], method, rank| {
        merge("m", adapters, method, rank).expect_err("it cannot be").to_string()
    };
    assert_eq!(line(&[], Method::Linear, None), "no adapter to merge");
    assert_eq!(line(&[(&x, 1.0), (&y, -1.0)], Method::Linear, None), "the weights of a linear merge sum to 0");
    assert_eq!(line(&[(&x, 1.0)], Method::Linear, Some(0)), "a rank of 0; choose 1 to 1024");
    assert_eq!(line(&[(&x, f64::NAN)], Method::Linear, None), "a weight of NaN");
    let pair = FactorPair { a: Values::from_f32(1, 4, &[1.0; 4]), b: Values::from_f32(2, 1, &[1.0; 2]) };
    let small = Delta::new("blk.0.attn_q", 1.0, pair, None, RowOrder::Same).expect("a pair");
    let small = Adapter::new("small", vec![small]).expect("an adapter");
    assert!(line(&[(&x, 1.0), (&small, 1.0)], Method::Linear, None).contains("another shape in 'small'"));
}
