//! Choice of experts and the sum of what they give.

use ruvllm_shaders::{CombineParams, Extent, Kernel, Reduction, RouteParams, flags};

use crate::device::{Dispatch, Pass, floats, on_all};
use crate::random::Random;

/// A router's way to weights.
#[derive(Clone, Copy, Debug)]
struct Routing {
    n: usize,
    n_slots: usize,
    gating: u32,
    n_groups: usize,
    n_groups_used: usize,
    flags: u32,
}

/// Returns the chosen experts and their weights, in f64.
fn routed(routing: Routing, logits: &[f32], bias: &[f32]) -> Vec<(usize, f64)> {
    let x: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = x.iter().map(|x| (x - most).exp()).sum();
    let score = |x: f64| match routing.gating {
        0 => (x - most).exp() / total,
        1 => x,
        _ => 1.0 / (1.0 + (-x).exp()),
    };
    let scores: Vec<f64> = x.iter().map(|x| score(*x)).collect();
    let has_bias = routing.flags & flags::HAS_BIAS != 0;
    let choice = |e: usize| scores[e] + if has_bias { f64::from(bias[e]) } else { 0.0 };
    let group_len = routing.n / routing.n_groups;
    let group_score = |g: usize| {
        let mut members: Vec<f64> = (g * group_len..(g + 1) * group_len).map(choice).collect();
        members.sort_by(|a, b| b.total_cmp(a));
        members.iter().take(2).sum::<f64>()
    };
    let mut groups: Vec<usize> = (0..routing.n_groups).collect();
    groups.sort_by(|a, b| group_score(*b).total_cmp(&group_score(*a)));
    groups.truncate(routing.n_groups_used);
    let mut order: Vec<usize> = (0..routing.n).filter(|e| groups.contains(&(e / group_len))).collect();
    order.sort_by(|a, b| choice(*b).total_cmp(&choice(*a)));
    order.truncate(routing.n_slots);
    let mut weights: Vec<f64> = order.iter().map(|e| scores[*e]).collect();
    if routing.gating == 1 {
        let most = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        weights.iter_mut().for_each(|weight| *weight = (*weight - most).exp());
    }
    if routing.gating == 1 || routing.flags & flags::NORMALIZE != 0 {
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    order.into_iter().zip(weights).collect()
}

fn check(routing: Routing, reduction: Reduction) {
    let Routing { n, n_slots, gating, n_groups, n_groups_used, flags } = routing;
    let mut random = Random::new((n + n_slots) as u64);
    // Logits that differ by more than rounding: a shuffled ladder.
    let mut x: Vec<f32> = Vec::new();
    for _ in 0..4 {
        let mut row: Vec<f32> = (0..n).map(|e| 8.0 * e as f32 / n as f32 - 4.0).collect();
        (0..n).rev().for_each(|i| row.swap(i, random.below(i + 1)));
        x.extend(row);
    }
    let bias: Vec<f32> = (0..n).map(|_| 0.25 * random.float()).collect();
    let params = RouteParams {
        n: n as u32,
        n_slots: n_slots as u32,
        x_stride: n as u32,
        gating,
        n_groups: n_groups as u32,
        n_groups_used: n_groups_used as u32,
        scale: 2.5,
        count: 1,
        flags,
        ..RouteParams::default()
    };
    let dispatch = Dispatch {
        kernel: Kernel::RouteExperts { reduction },
        params: params.words(),
        extent: Extent { n: 1, rows: 4, slots: 1 },
        buffers: vec![
            x.clone().into(),
            bias.clone().into(),
            vec![0u32; 4 * n_slots].into(),
            vec![0.0f32; 4 * n_slots].into(),
        ],
        pass: Pass::default(),
    };
    on_all(&dispatch, |name, written| {
        let weights = floats(&written[1]);
        for row in 0..4 {
            for (slot, (expert, weight)) in routed(routing, &x[row * n..][..n], &bias).into_iter().enumerate() {
                let (got, got_weight) = (written[0][row * n_slots + slot], f64::from(weights[row * n_slots + slot]));
                assert_eq!(got as usize, expert, "{name}: slot {slot} of row {row} with {routing:?}");
                // A sum over n, and exponentials of numbers within ±8.
                let bound = (n as f64 + 64.0) * f64::from(f32::EPSILON) * 2.5 * weight;
                assert!((got_weight - 2.5 * weight).abs() <= bound, "{name}: {got_weight} instead of {}", 2.5 * weight);
            }
        }
    });
}

#[test]
fn routing() {
    for reduction in [Reduction::Subgroup, Reduction::Shared] {
        for (n, n_slots) in [(1, 1), (8, 2), (60, 4), (256, 8), (1024, 32)] {
            for gating in 0..3 {
                for flags in [0, flags::NORMALIZE] {
                    check(Routing { n, n_slots, gating, n_groups: 1, n_groups_used: 1, flags }, reduction);
                }
            }
        }
        for (n, n_groups, n_groups_used) in [(16, 4, 2), (256, 8, 4), (64, 64, 9)] {
            let flags = flags::HAS_BIAS | flags::NORMALIZE;
            check(Routing { n, n_slots: 8, gating: 2, n_groups, n_groups_used, flags }, reduction);
        }
    }
}

#[test]
fn weighted_sum() {
    let (n, n_rows, n_slots) = (300, 2, 3);
    let mut random = Random::new(1);
    let (x, weights) = (random.floats(1 + n_rows * n_slots * n), random.floats(n_rows * n_slots));
    let before = random.floats(2 + n_rows * n);
    for flags in [0, flags::ACCUMULATE] {
        let params = CombineParams {
            n: n as u32,
            n_slots: n_slots as u32,
            x_offset: 1,
            x_stride: (n_slots * n) as u32,
            y_offset: 2,
            y_stride: n as u32,
            count: 1,
            flags,
        };
        let dispatch = Dispatch {
            kernel: Kernel::CombineExperts,
            params: params.words(),
            extent: Extent { n: n as u32, rows: n_rows as u32, slots: 1 },
            buffers: vec![x.clone().into(), weights.clone().into(), before.clone().into()],
            pass: Pass::default(),
        };
        on_all(&dispatch, |name, written| {
            let y = floats(&written[0]);
            for (at, got) in y[2..].iter().enumerate() {
                let (row, i) = (at / n, at % n);
                let part = |slot: usize| {
                    f64::from(weights[row * n_slots + slot]) * f64::from(x[1 + (row * n_slots + slot) * n + i])
                };
                let sum: f64 = (0..n_slots).map(part).sum();
                let expected = sum + if flags == 0 { 0.0 } else { f64::from(before[2 + at]) };
                assert!(
                    (f64::from(*got) - expected).abs() <= 16.0 * f64::from(f32::EPSILON),
                    "{name}: {got} instead of {expected}"
                );
            }
        });
    }
}
