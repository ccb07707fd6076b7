//! The step of a selective state space, which Mamba and Mamba 2 share.

/// Partial sums of a result: a fixed number, so that its bits depend on nothing else.
const N_SUMS: usize = 8;

/// Returns `ln(1 + e^x)`, the length of a step.
pub(super) fn softplus(x: f32) -> f32 {
    // Beyond, both are the same number.
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// What stays of the values of a state.
pub(super) trait Decay: Copy {
    /// Returns what stays of `N_SUMS` values from `at` on.
    fn lanes(self, at: usize) -> [f32; N_SUMS];

    /// Returns what stays of one value.
    fn one(self, at: usize) -> f32;
}

/// The same of all.
impl Decay for f32 {
    fn lanes(self, _at: usize) -> [f32; N_SUMS] {
        [self; N_SUMS]
    }

    fn one(self, _at: usize) -> f32 {
        self
    }
}

/// Of each by itself: `[n_state]`.
impl Decay for &[f32] {
    #[inline(always)]
    fn lanes(self, at: usize) -> [f32; N_SUMS] {
        *self[at..].first_chunk().expect("there is one for each value")
    }

    fn one(self, at: usize) -> f32 {
        self[at]
    }
}

/// What a step reads beside the state: `[n_state]` each.
#[derive(Clone, Copy)]
pub(super) struct Step<'a, D> {
    pub decay: D,
    /// Addend to each value for an input of one.
    pub b: &'a [f32],
    /// Weight with which each value is read.
    pub c: &'a [f32],
}

impl<D: Decay> Step<'_, D> {
    /// Changes a channel's state, `[n_state]`, for the input `x` and returns what is read of it then.
    #[inline(always)]
    pub(super) fn run(self, state: &mut [f32], x: f32) -> f32 {
        let mut sums = [0.0; N_SUMS];
        let (lanes, tail) = state.as_chunks_mut::<N_SUMS>();
        let ((b_lanes, b_tail), (c_lanes, c_tail)) = (self.b.as_chunks::<N_SUMS>(), self.c.as_chunks::<N_SUMS>());
        let first = lanes.len() * N_SUMS;
        for (i, ((h, b), c)) in lanes.iter_mut().zip(b_lanes).zip(c_lanes).enumerate() {
            let decay = self.decay.lanes(i * N_SUMS);
            for lane in 0..N_SUMS {
                h[lane] = h[lane] * decay[lane] + b[lane] * x;
                sums[lane] += h[lane] * c[lane];
            }
        }
        for (lane, ((h, b), c)) in tail.iter_mut().zip(b_tail).zip(c_tail).enumerate() {
            *h = *h * self.decay.one(first + lane) + b * x;
            sums[lane] += *h * c;
        }
        let [s0, s1, s2, s3, s4, s5, s6, s7] = sums;
        ((s0 + s4) + (s1 + s5)) + ((s2 + s6) + (s3 + s7))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against plain sums in f64, for lengths with and without a tail.
    #[test]
    fn a_step_is_the_recurrence() {
        for n in [1, 7, 8, 16, 21] {
            let series =
                |seed: usize| -> Vec<f32> { (0..n).map(|i| ((i * 7 + seed) % 11) as f32 / 5.0 - 1.0).collect() };
            let (mut state, decays, b, c) = (series(1), series(2), series(3), series(4));
            let expected: Vec<f64> =
                (0..n).map(|i| f64::from(state[i]) * f64::from(decays[i]) + f64::from(b[i]) * 0.75).collect();
            let read: f64 = expected.iter().zip(&c).map(|(h, c)| h * f64::from(*c)).sum();
            let y = Step { decay: &decays[..], b: &b, c: &c }.run(&mut state, 0.75);
            assert!((f64::from(y) - read).abs() < 1e-5, "{n}: {y} {read}");
            assert!(state.iter().zip(&expected).all(|(h, e)| (f64::from(*h) - e).abs() < 1e-6), "{n}");
        }
        assert_eq!(softplus(30.0), 30.0);
        assert!((softplus(0.0) - 2f32.ln()).abs() < 1e-6);
        assert!(softplus(-200.0) >= 0.0);
    }
}
