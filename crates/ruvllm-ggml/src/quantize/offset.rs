//! The search for the scale `d` and the minimum `m` of `x = d·l - m` with levels `l` from 0 up.

use super::lanes::level;

/// Range of a search: the scales `range / (n + first + step·i)`, `i` up to `n_steps`.
#[derive(Clone, Copy)]
pub(super) struct OffsetSearch {
    /// The largest level.
    pub(super) n: f32,
    pub(super) first: f32,
    pub(super) step: f32,
    pub(super) n_steps: usize,
    /// Absolute errors are added up, not squared ones.
    pub(super) is_absolute: bool,
}

/// Scales, minimums (not negative) and levels of blocks side by side.
pub(super) struct Offset<const N: usize, const L: usize> {
    pub(super) scales: [f32; L],
    pub(super) minimums: [f32; L],
    pub(super) levels: [[f32; L]; N],
}

/// Candidate of each lane: `l = inverse·(x - base)`, decoded by `scale` and `minimum`.
struct Candidate<const L: usize> {
    inverse: [f32; L],
    base: [f32; L],
    scale: [f32; L],
    minimum: [f32; L],
    error: [f32; L],
}

/// Sums over the values of each lane.
struct Sums<const L: usize> {
    l: [f32; L],
    l2: [f32; L],
    xl: [f32; L],
}

impl OffsetSearch {
    /// Searches the scale and the minimum with the least weighted error (`make_qkx2_quants`, `make_qkx3_quants`): for each
    /// scale tried the levels are fixed, scale and minimum are fitted to them, and kept if the error is less. Scales after that
    /// are tried from the new minimum on.
    #[inline(always)]
    pub(super) fn run<const N: usize, const L: usize>(
        &self,
        x: &[[f32; L]; N],
        weights: &[[f32; L]; N],
    ) -> Offset<N, L> {
        let (mut min, mut max) = (x[0], x[0]);
        let mut sum_w = weights[0];
        let mut sum_x: [f32; L] = std::array::from_fn(|k| weights[0][k] * x[0][k]);
        for (x, w) in x.iter().zip(weights).skip(1) {
            for k in 0..L {
                min[k] = if x[k] < min[k] { x[k] } else { min[k] };
                max[k] = if x[k] > max[k] { x[k] } else { max[k] };
                sum_w[k] += w[k];
                sum_x[k] += w[k] * x[k];
            }
        }
        let min = min.map(|min| if min > 0.0 { 0.0 } else { min });
        let inverse: [f32; L] = std::array::from_fn(|k| self.n / (max[k] - min[k]));
        let scale = inverse.map(|inverse| 1.0 / inverse);
        let mut levels = [[0.0; L]; N];
        self.fill(&inverse, &min, x, &mut levels);
        let error = self.error(&scale, &min, x, weights, &levels);
        let mut best = Candidate { inverse, base: min, scale, minimum: min, error };
        for i in 0..=self.n_steps {
            let steps = self.first + self.step * i as f32 + self.n;
            let inverse: [f32; L] = std::array::from_fn(|k| steps / (max[k] - best.minimum[k]));
            let sums = self.sums(&inverse, &best.minimum, x, weights, &mut levels);
            self.fit(&mut best, &inverse, &sums, (&sum_w, &sum_x), |scale, minimum| {
                self.error(scale, minimum, x, weights, &levels)
            });
        }
        self.fill(&best.inverse, &best.base, x, &mut levels);
        for k in (0..L).filter(|&k| max[k] <= min[k]) {
            (best.scale[k], best.minimum[k]) = (0.0, min[k]);
            levels.iter_mut().for_each(|level| level[k] = 0.0);
        }
        Offset { scales: best.scale, minimums: best.minimum.map(|min| -min), levels }
    }

    /// Writes the levels `inverse·(x - base)`.
    #[inline(always)]
    fn fill<const N: usize, const L: usize>(
        &self,
        inverse: &[f32; L],
        base: &[f32; L],
        x: &[[f32; L]; N],
        levels: &mut [[f32; L]; N],
    ) {
        for (to, x) in levels.iter_mut().zip(x) {
            (0..L).for_each(|k| to[k] = level(inverse[k] * (x[k] - base[k]), self.n));
        }
    }

    /// As [`OffsetSearch::fill`], and sums `w·l`, `w·l²` and `w·l·x`.
    #[inline(always)]
    fn sums<const N: usize, const L: usize>(
        &self,
        inverse: &[f32; L],
        base: &[f32; L],
        x: &[[f32; L]; N],
        weights: &[[f32; L]; N],
        levels: &mut [[f32; L]; N],
    ) -> Sums<L> {
        let mut sums = Sums { l: [0.0; L], l2: [0.0; L], xl: [0.0; L] };
        for ((to, x), w) in levels.iter_mut().zip(x).zip(weights) {
            for k in 0..L {
                let l = level(inverse[k] * (x[k] - base[k]), self.n);
                to[k] = l;
                let wl = w[k] * l;
                sums.l[k] += wl;
                sums.l2[k] += wl * l;
                sums.xl[k] += wl * x[k];
            }
        }
        sums
    }

    /// Sums the weighted errors of levels.
    #[inline(always)]
    fn error<const N: usize, const L: usize>(
        &self,
        scale: &[f32; L],
        minimum: &[f32; L],
        x: &[[f32; L]; N],
        weights: &[[f32; L]; N],
        levels: &[[f32; L]; N],
    ) -> [f32; L] {
        let mut error = [0.0; L];
        for ((l, x), w) in levels.iter().zip(x).zip(weights) {
            for k in 0..L {
                let difference = scale[k] * l[k] + minimum[k] - x[k];
                error[k] += w[k] * if self.is_absolute { difference.abs() } else { difference * difference };
            }
        }
        error
    }

    /// Fits scale and minimum to levels by least squares, and takes those that are better than the best.
    #[inline(always)]
    fn fit<const L: usize>(
        &self,
        best: &mut Candidate<L>,
        inverse: &[f32; L],
        sums: &Sums<L>,
        (sum_w, sum_x): (&[f32; L], &[f32; L]),
        error: impl Fn(&[f32; L], &[f32; L]) -> [f32; L],
    ) {
        let (mut scale, mut minimum, mut determinant) = ([0.0; L], [0.0; L], [0.0; L]);
        for k in 0..L {
            determinant[k] = sum_w[k] * sums.l2[k] - sums.l[k] * sums.l[k];
            scale[k] = (sum_w[k] * sums.xl[k] - sum_x[k] * sums.l[k]) / determinant[k];
            minimum[k] = (sums.l2[k] * sum_x[k] - sums.l[k] * sums.xl[k]) / determinant[k];
            let is_above = minimum[k] > 0.0;
            scale[k] = if is_above { sums.xl[k] / sums.l2[k] } else { scale[k] };
            minimum[k] = if is_above { 0.0 } else { minimum[k] };
        }
        let error = error(&scale, &minimum);
        for k in 0..L {
            let is_better = determinant[k] > 0.0 && error[k] < best.error[k];
            best.base[k] = if is_better { best.minimum[k] } else { best.base[k] };
            best.inverse[k] = if is_better { inverse[k] } else { best.inverse[k] };
            best.scale[k] = if is_better { scale[k] } else { best.scale[k] };
            best.minimum[k] = if is_better { minimum[k] } else { best.minimum[k] };
            best.error[k] = if is_better { error[k] } else { best.error[k] };
        }
    }
}
