//! The search of types whose magnitudes are points of a codebook: `x = ±scale·(2·level + 1)`, with a scale for each part of a
//! super-block, and signs beside.

use super::SUPER;
use super::codebook::{Codebook, Fit, Near};
use super::lanes::{importance, nearest};
use super::sum_of_squares;

/// A type: parts of `N` values, each of points of `D`.
pub(super) struct GridType<const D: usize, const N: usize> {
    pub(super) codebook: &'static Codebook<D>,
    /// The largest level.
    pub(super) top: u8,
    /// Scales tried on either side of the first, and how far apart.
    pub(super) n_steps: i32,
    pub(super) step: f32,
    pub(super) refit: Refit,
    /// Signs of eight values are 7 bits, the number of negative ones is even.
    pub(super) is_even: bool,
    /// Times the mean square of a super-block it is added to squares in weights.
    pub(super) sigma: f32,
    /// Without importance: weights are the squares, and so much of that sum.
    pub(super) plain_sigma: f32,
    /// Begin of a part's search; none where its values count as zeros.
    pub(super) start: fn(&[f32; N], &[f32; N]) -> Option<Start>,
    /// The scale of scales is made larger by it.
    pub(super) factor: f32,
}

/// Groups that are fitted anew to the best scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refit {
    /// Groups that were no points.
    Others,
    /// All, if one was no point.
    AllIfOne,
    /// All.
    All,
}

/// Begin of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) scale: f32,
    /// Value that the largest level is tried for.
    pub(super) extent: f32,
}

/// A part, found: points of its groups, and signs of each eight values.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    pub(super) points: [u16; 8],
    pub(super) signs: [u8; 4],
}

/// A super-block, found.
pub(super) struct Found<const PARTS: usize> {
    pub(super) d: f32,
    /// Scales of 4 bits: a part has `d·(2·scale + 1)`.
    pub(super) scales: [u8; PARTS],
    pub(super) parts: [Part; PARTS],
}

/// Levels and scale of a part.
struct Fitted<const N: usize> {
    scale: f32,
    levels: [u8; N],
}

impl<const D: usize, const N: usize> GridType<D, N> {
    /// Searches a super-block; `None` if it is zeros. Types whose signs need not be even keep signs of scales that are all zero.
    pub(super) fn search<const PARTS: usize>(
        &self,
        x: &[f32; SUPER],
        weights: Option<&[f32; SUPER]>,
    ) -> Option<Found<PARTS>> {
        let sigma2 = sum_of_squares(x) * (self.sigma / SUPER as f32);
        let (mut parts, mut scales) = ([Part::default(); PARTS], [0.0; PARTS]);
        let mut max = 0.0;
        for (k, x) in x.as_chunks::<N>().0.iter().enumerate() {
            let weights = match weights {
                Some(weights) => importance(x, &weights.as_chunks::<N>().0[k], sigma2),
                None => x.map(|x| self.plain_sigma * sigma2 + x * x),
            };
            let (magnitudes, signs) = magnitudes(x, &weights, self.is_even);
            let Some(start) = (self.start)(&magnitudes, &weights) else { continue };
            let fitted = self.fit(&magnitudes, &weights, start);
            let is_flipped = fitted.scale < 0.0;
            scales[k] = if is_flipped { -fitted.scale } else { fitted.scale };
            parts[k] = self.part(&fitted.levels, if is_flipped { signs.map(|signs| !signs) } else { signs });
            max = if max > scales[k] { max } else { scales[k] };
        }
        if max == 0.0 {
            return (!self.is_even).then_some(Found { d: 0.0, scales: [0; PARTS], parts });
        }
        let d = max / 31.0;
        let inverse = 1.0 / d;
        let scales = scales.map(|scale| nearest(0.5 * (inverse * scale - 1.0)).clamp(0, 15) as u8);
        Some(Found { d: d * self.factor, scales, parts })
    }

    fn part(&self, levels: &[u8; N], signs: [u8; 4]) -> Part {
        let mut points = [0; 8];
        for (to, levels) in points.iter_mut().zip(levels.as_chunks::<D>().0) {
            *to = match self.codebook.near(levels) {
                Near::Point(point) => point,
                Near::Others(near) => self.codebook.nearest(near),
            };
        }
        Part { points, signs: if self.is_even { signs.map(|signs| signs & 127) } else { signs } }
    }

    /// Searches the scale of a part: the best of some, and then once more from the best levels.
    fn fit(&self, x: &[f32; N], weights: &[f32; N], start: Start) -> Fitted<N> {
        let roots = weights.map(f32::sqrt);
        let mut best = Fitted { scale: start.scale, levels: [0; N] };
        let (mut score, mut others) = (0.0, 0u32);
        if self.refit == Refit::AllIfOne {
            others = u32::MAX;
        }
        for i in -self.n_steps..=self.n_steps {
            let inverse = (f32::from(2 * self.top + 1) + i as f32 * self.step) / start.extent;
            let mut levels = [0; N];
            let new_others = self.snap(inverse, 1.0 / inverse, x, &roots, u32::MAX, &mut levels);
            let (products, squares) = sums(x, weights, &levels);
            if squares > 0.0 && products * products > score * squares {
                best = Fitted { scale: products / squares, levels };
                score = best.scale * products;
                others = new_others;
            }
        }
        let which = match self.refit {
            Refit::Others => others,
            Refit::AllIfOne if others == 0 => 0,
            Refit::AllIfOne | Refit::All => u32::MAX,
        };
        if which != 0 && best.scale > 0.0 {
            self.snap(1.0 / best.scale, best.scale, x, &roots, which, &mut best.levels);
            let (products, squares) = sums(x, weights, &best.levels);
            if squares > 0.0 {
                best.scale = products / squares;
            }
        }
        best
    }

    /// Rounds the groups in `which` to points, and returns those that were none.
    #[inline(always)]
    fn snap(&self, inverse: f32, scale: f32, x: &[f32; N], roots: &[f32; N], which: u32, levels: &mut [u8; N]) -> u32 {
        let groups = x.as_chunks::<D>().0.iter().zip(roots.as_chunks::<D>().0).zip(levels.as_chunks_mut::<D>().0);
        let mut others = 0;
        for (k, ((x, weights), levels)) in groups.enumerate().filter(|(k, _)| which >> k & 1 == 1) {
            *levels = x.map(|x| nearest(0.5 * (inverse * x - 1.0)).clamp(0, i32::from(self.top)) as u8);
            if let Near::Others(near) = self.codebook.near(levels) {
                others |= 1 << k;
                let point = self.codebook.best(near, &Fit { x, weights, scale, step: 2.0, offset: 1.0 });
                *levels = *self.codebook.point(point);
            }
        }
        others
    }
}

/// Returns the begin of a search by the largest value, where that is not below `epsilon`.
pub(super) fn by_largest<const N: usize>(x: &[f32; N], top: u8, epsilon: f32) -> Option<Start> {
    let extent = largest(x);
    let is_zero = extent < epsilon;
    (!is_zero).then(|| Start { scale: extent / f32::from(2 * top + 1), extent })
}

/// Returns the largest value.
pub(super) fn largest(x: &[f32]) -> f32 {
    x[1..].iter().fold(x[0], |max, &x| if max > x { max } else { x })
}

/// Value of a level, as a multiple of the scale.
#[inline(always)]
fn value(level: u8) -> f32 {
    f32::from(2 * level + 1)
}

/// Sums `w·x·q` and `w·q²`.
#[inline(always)]
fn sums<const N: usize>(x: &[f32; N], weights: &[f32; N], levels: &[u8; N]) -> (f32, f32) {
    let (mut products, mut squares) = (0.0, 0.0);
    for ((&x, &w), &level) in x.iter().zip(weights).zip(levels) {
        let q = value(level);
        products += w * x * q;
        squares += w * q * q;
    }
    (products, squares)
}

/// Returns magnitudes, and bits of the negative values of each eight. Where their number has to be even, the value that matters least
/// changes its sign.
fn magnitudes<const N: usize>(x: &[f32; N], weights: &[f32; N], is_even: bool) -> ([f32; N], [u8; 4]) {
    let mut magnitudes = x.map(|x| if x >= 0.0 { x } else { -x });
    let mut all_signs = [0; 4];
    let eights = x.as_chunks::<8>().0.iter().zip(weights.as_chunks::<8>().0).zip(magnitudes.as_chunks_mut::<8>().0);
    for (signs, ((x, weights), magnitudes)) in all_signs.iter_mut().zip(eights) {
        let is_negative = |x: f32| x < 0.0 || x.is_nan();
        *signs = x.iter().enumerate().fold(0, |signs, (i, &x)| signs | u8::from(is_negative(x)) << i);
        if is_even && signs.count_ones() % 2 == 1 {
            let loss = |i: usize| weights[i] * x[i] * x[i];
            let least = (1..8).fold(0, |least, i| if loss(i) < loss(least) { i } else { least });
            magnitudes[least] = -magnitudes[least];
            *signs ^= 1 << least;
        }
    }
    (magnitudes, all_signs)
}
