//! Layers with a recurrent state: several sequences in a pass, at their beginning or going on, whose states lie apart.

use ruvllm_shaders::{CausalConvParams, Extent, Kernel, RowRecord, ScanParams, flags};

use crate::device::{Dispatch, Pass, floats, on_all};
use crate::random::Random;

/// Rows of each sequence, position of the first, and place of its state.
const SEQUENCES: [(usize, usize, usize); 4] = [(1, 9, 2), (5, 0, 0), (2, 3, 3), (1, 0, 1)];
const N_STATES: usize = 4;

fn pass() -> Pass {
    let mut rows: Vec<RowRecord> = Vec::new();
    for (n, position, state) in SEQUENCES {
        let first = rows.len() as u32;
        rows.extend((0..n).map(|i| RowRecord {
            n_keys: (position + i + 1) as u32,
            first,
            state: state as u32,
            ..RowRecord::default()
        }));
    }
    Pass { rows, tables: vec![], ..Pass::default() }
}

/// Returns the sequences with the number of their first row.
fn sequences() -> impl Iterator<Item = (usize, (usize, usize, usize))> {
    let firsts = SEQUENCES.iter().scan(0, |next, (n, ..)| {
        *next += n;
        Some(*next - n)
    });
    firsts.zip(SEQUENCES)
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[test]
fn convolutions_go_on_where_the_last_pass_ended() {
    let n = 100;
    let n_rows = pass().rows.len();
    for (n_taps, has_bias) in [(2, false), (4, true), (7, true)] {
        let mut random = Random::new(n_taps as u64);
        let (x_stride, y_stride, state_stride) = (n + 3, n + 1, (n_taps - 1) * n + 5);
        let (x, before) = (random.floats(1 + n_rows * x_stride), random.floats(2 + N_STATES * state_stride));
        let (taps, bias) = (random.floats(n * n_taps), random.floats(n));
        let params = CausalConvParams {
            n: n as u32,
            n_taps: n_taps as u32,
            x_offset: 1,
            x_stride: x_stride as u32,
            y_offset: 3,
            y_stride: y_stride as u32,
            state_offset: 2,
            state_stride: state_stride as u32,
            count: 1,
            flags: if has_bias { flags::HAS_BIAS } else { 0 },
        };
        let dispatch = Dispatch {
            kernel: Kernel::CausalConv,
            params: params.words(),
            extent: Extent { n: n as u32, rows: n_rows as u32, slots: 1 },
            buffers: vec![
                x.clone().into(),
                taps.clone().into(),
                bias.clone().into(),
                before.clone().into(),
                vec![0.0f32; 3 + n_rows * y_stride].into(),
            ],
            pass: pass(),
        };
        on_all(&dispatch, |name, written| {
            let (state, y) = (floats(&written[0]), floats(&written[1]));
            for (first, (n_own, position, place)) in sequences() {
                for i in 0..n {
                    let kept = |past: usize| 2 + place * state_stride + past * n + i;
                    let old = |past: usize| if position == 0 { 0.0 } else { before[kept(past)] };
                    let new = (0..n_own).map(|row| x[1 + (first + row) * x_stride + i]);
                    let inputs: Vec<f32> = (0..n_taps - 1).map(old).chain(new).collect();
                    for row in 0..n_own {
                        let terms = inputs[row..row + n_taps].iter().zip(&taps[i * n_taps..]);
                        let sum: f64 = terms.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                        let expected = silu(sum + if has_bias { f64::from(bias[i]) } else { 0.0 });
                        let got = f64::from(y[3 + (first + row) * y_stride + i]);
                        assert!((got - expected).abs() <= 1e-5, "{name}: row {row} of {place}: {got}, not {expected}");
                    }
                    for past in 0..n_taps - 1 {
                        assert_eq!(state[kept(past)], inputs[n_own + past], "{name}: input {past} kept of {place}");
                    }
                }
            }
        });
    }
}

/// A state space, in f64.
struct Space {
    has_heads: bool,
    n: usize,
    n_state: usize,
    head_dim: usize,
    n_groups: usize,
}

impl Space {
    fn n_heads(&self) -> usize {
        self.n / self.head_dim
    }

    /// Decay's rate of a value, share that passes by, and addend of `dt`, of a channel.
    fn weights(&self, weights: &[f32], i: usize, s: usize) -> [f64; 3] {
        let (n_heads, head) = (self.n_heads(), i / self.head_dim);
        match self.has_heads {
            true => [weights[head], weights[n_heads + head], weights[2 * n_heads + head]].map(f64::from),
            false => [weights[s * self.n + i], weights[self.n_state * self.n + i], 0.0].map(f64::from),
        }
    }

    fn check(&self, seed: u64) {
        let Space { has_heads, n, n_state, head_dim, n_groups } = *self;
        let (n_heads, n_rows, mut random) = (self.n_heads(), pass().rows.len(), Random::new(seed));
        let (x_stride, bc_stride, state_stride) = (n + 1, 2 * n_groups * n_state + 2, n * n_state + 3);
        let x = random.floats(n_rows * x_stride);
        // Lengths of steps from very short to long.
        let dt: Vec<f32> = random.floats(n_rows * n_heads).iter().map(|x| 12.0 * x - 2.0).collect();
        let bc = random.floats(1 + n_rows * bc_stride);
        let rate = |x: f32| -0.1 - 3.0 * x.abs();
        let weights: Vec<f32> = match has_heads {
            true => random.floats(n_heads).into_iter().map(rate).chain(random.floats(2 * n_heads)).collect(),
            false => random.floats(n_state * n).into_iter().map(rate).chain(random.floats(n)).collect(),
        };
        let before = random.floats(1 + N_STATES * state_stride);
        let params = ScanParams {
            n: n as u32,
            n_state: n_state as u32,
            head_dim: head_dim as u32,
            group_heads: (n_heads / n_groups) as u32,
            x_stride: x_stride as u32,
            dt_stride: n_heads as u32,
            b_offset: 1,
            c_offset: (1 + n_groups * n_state) as u32,
            bc_stride: bc_stride as u32,
            y_stride: n as u32,
            state_offset: 1,
            state_stride: state_stride as u32,
            count: 1,
        };
        let dispatch = Dispatch {
            kernel: Kernel::Scan { has_heads },
            params: params.words(),
            extent: Extent { n: n as u32, rows: n_rows as u32, slots: 1 },
            buffers: vec![
                x.clone().into(),
                dt.clone().into(),
                bc.clone().into(),
                weights.clone().into(),
                before.clone().into(),
                vec![0.0f32; n_rows * n].into(),
            ],
            pass: pass(),
        };
        on_all(&dispatch, |name, written| {
            let (state, y) = (floats(&written[0]), floats(&written[1]));
            for (first, (n_own, position, place)) in sequences() {
                for i in 0..n {
                    let (head, kept) = (i / head_dim, |s: usize| 1 + place * state_stride + s * n + i);
                    let of_group = head / (n_heads / n_groups) * n_state;
                    let old = |s| if position == 0 { 0.0 } else { f64::from(before[kept(s)]) };
                    let mut h: Vec<f64> = (0..n_state).map(old).collect();
                    for row in first..first + n_own {
                        let at = |c: usize, s: usize| {
                            f64::from(bc[1 + row * bc_stride + c * n_groups * n_state + of_group + s])
                        };
                        let input = f64::from(x[row * x_stride + i]);
                        let mut expected = self.weights(&weights, i, 0)[1] * input;
                        for (s, h) in h.iter_mut().enumerate() {
                            let [a, _, addend] = self.weights(&weights, i, s);
                            let delta = (f64::from(dt[row * n_heads + head]) + addend).exp().ln_1p();
                            *h = *h * (delta * a).exp() + delta * input * at(0, s);
                            expected += *h * at(1, s);
                        }
                        let got = f64::from(y[row * n + i]);
                        let bound = 1e-5 * (1.0 + h.iter().map(|h| h.abs()).sum::<f64>());
                        assert!(
                            (got - expected).abs() <= bound,
                            "{name}: row {row}, channel {i}: {got}, not {expected}"
                        );
                    }
                    for (s, h) in h.iter().enumerate() {
                        let got = f64::from(state[kept(s)]);
                        assert!((got - h).abs() <= 1e-5 * (1.0 + h.abs()), "{name}: state {s} of {i}: {got}, not {h}");
                    }
                }
            }
        });
    }
}

#[test]
fn state_spaces_are_the_recurrence() {
    Space { has_heads: false, n: 70, n_state: 16, head_dim: 1, n_groups: 1 }.check(1);
    Space { has_heads: false, n: 5, n_state: 3, head_dim: 1, n_groups: 1 }.check(2);
    Space { has_heads: true, n: 96, n_state: 20, head_dim: 8, n_groups: 3 }.check(3);
    Space { has_heads: true, n: 64, n_state: 64, head_dim: 64, n_groups: 1 }.check(4);
}
