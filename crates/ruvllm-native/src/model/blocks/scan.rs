//! The step of a selective state space, which Mamba and Mamba 2 share.

/// Partial sums of a result: a fixed number, so that its bits depend on nothing else.
const N_SUMS: usize = 8;

/// Returns `ln(1 + e^x)`, the length of a step.
pub(super) fn softplus(x: f32) -> f32 {
    // Beyond, both are the same number.
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// What a step reads beside the state: `[n_state]` each.
#[derive(Clone, Copy)]
pub(super) struct Step<'a, D> {
    /// What stays of each value.
    pub decay: D,
    /// What is added to each for an input of one.
    pub b: &'a [f32],
    /// What is read of each.
    pub c: &'a [f32],
}

impl<D: Fn(usize) -> f32 + Copy> Step<'_, D> {
    /// Changes a channel's state, `[n_state]`, for the input `x` and returns what is read of it then.
    #[inline(always)]
    pub(super) fn run(self, state: &mut [f32], x: f32) -> f32 {
        let mut sums = [0.0; N_SUMS];
        let n_whole = state.len() / N_SUMS * N_SUMS;
        let (b, c) = (&self.b[..state.len()], &self.c[..state.len()]);
        for at in (0..n_whole).step_by(N_SUMS) {
            for (lane, sum) in sums.iter_mut().enumerate() {
                let i = at + lane;
                state[i] = state[i] * (self.decay)(i) + b[i] * x;
                *sum += state[i] * c[i];
            }
        }
        for i in n_whole..state.len() {
            state[i] = state[i] * (self.decay)(i) + b[i] * x;
            sums[i - n_whole] += state[i] * c[i];
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
            let y = Step { decay: |i: usize| decays[i], b: &b, c: &c }.run(&mut state, 0.75);
            assert!((f64::from(y) - read).abs() < 1e-5, "{n}: {y} {read}");
            assert!(state.iter().zip(&expected).all(|(h, e)| (f64::from(*h) - e).abs() < 1e-6), "{n}");
        }
        assert_eq!(softplus(30.0), 30.0);
        assert!((softplus(0.0) - 2f32.ln()).abs() < 1e-6);
        assert!(softplus(-200.0) >= 0.0);
    }
}
