//! Codebooks as searches need them: the points of a grid by their levels, and of levels that are no point the points near them.

use std::sync::LazyLock;

use crate::grids::{IQ1_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID};

/// IQ1_S and IQ1_M.
pub(super) static IQ1: LazyLock<Codebook<8>> = LazyLock::new(|| Codebook::new(&IQ1_GRID, |x| x + 1, 3, 3));
/// IQ2_XXS.
pub(super) static IQ2_XXS: LazyLock<Codebook<8>> = LazyLock::new(|| Codebook::new(&IQ2_XXS_GRID, |x| x / 16, 3, 2));
/// IQ2_XS.
pub(super) static IQ2_XS: LazyLock<Codebook<8>> = LazyLock::new(|| Codebook::new(&IQ2_XS_GRID, |x| x / 16, 3, 2));
/// IQ2_S.
pub(super) static IQ2_S: LazyLock<Codebook<8>> = LazyLock::new(|| Codebook::new(&IQ2_S_GRID, |x| x / 16, 3, 1));
/// IQ3_XXS.
pub(super) static IQ3_XXS: LazyLock<Codebook<4>> = LazyLock::new(|| Codebook::new(&IQ3_XXS_GRID, |x| x / 8, 8, 2));
/// IQ3_S.
pub(super) static IQ3_S: LazyLock<Codebook<4>> = LazyLock::new(|| Codebook::new(&IQ3_S_GRID, |x| x / 2, 8, 3));

/// Points that are compared at once.
const LANES: usize = 8;

/// Points of `D` levels each.
#[derive(Debug)]
pub(super) struct Codebook<const D: usize> {
    n_levels: usize,
    points: Vec<[u8; D]>,
    /// By the number that levels make.
    places: Vec<Place>,
    /// Points near levels that are none, behind each other; those of each begin at a whole number of lanes.
    near: Vec<u16>,
    /// Levels of as many of them as there are lanes, side by side.
    lanes: Vec<[[i8; LANES]; D]>,
}

/// Meaning of some levels.
#[derive(Clone, Copy, Debug)]
enum Place {
    Point(u16),
    /// Range of `near`.
    Others {
        start: u32,
        n: u16,
    },
}

/// Points for some levels.
#[derive(Clone, Copy, Debug)]
pub(super) enum Near {
    /// The levels are this point.
    Point(u16),
    /// They are none.
    Others(Neighbours),
}

/// The points near some levels that are none: the nearest first, of equally near ones in the grid's order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbours {
    start: usize,
    n: usize,
}

impl<const D: usize> Codebook<D> {
    /// Takes a grid whose values are `level_of` a level, of `n_levels`. Near are all points at the `n_distances` least distances.
    fn new(grid: &[[i8; D]], level_of: fn(i8) -> i8, n_levels: usize, n_distances: usize) -> Codebook<D> {
        let points: Vec<[u8; D]> = grid.iter().map(|point| point.map(|x| level_of(x) as u8)).collect();
        let places = vec![Place::Others { start: 0, n: 0 }; n_levels.pow(D as u32)];
        let mut codebook = Codebook { n_levels, points, places, near: Vec::new(), lanes: Vec::new() };
        for (i, point) in codebook.points.iter().enumerate() {
            codebook.places[number(n_levels, point)] = Place::Point(i as u16);
        }
        let mut by_distance = vec![Vec::new(); D * (n_levels - 1).pow(2) + 1];
        for at in 0..codebook.places.len() {
            if matches!(codebook.places[at], Place::Point(_)) {
                continue;
            }
            let levels: [u8; D] = std::array::from_fn(|i| (at / n_levels.pow(i as u32) % n_levels) as u8);
            by_distance.iter_mut().for_each(Vec::clear);
            for (i, point) in codebook.points.iter().enumerate() {
                by_distance[distance(&levels, point)].push(i as u16);
            }
            let nearest = by_distance.iter().filter(|points| !points.is_empty()).take(n_distances);
            codebook.places[at] = codebook.add(nearest.flatten().copied());
        }
        codebook
    }

    /// Adds the points near some levels.
    fn add(&mut self, points: impl Iterator<Item = u16>) -> Place {
        let start = self.near.len();
        self.near.extend(points);
        let n = self.near.len() - start;
        self.near.resize((start + n).next_multiple_of(LANES), 0);
        for points in self.near[start..].as_chunks::<LANES>().0 {
            let level = |d: usize, k: usize| self.points[usize::from(points[k])][d] as i8;
            self.lanes.push(std::array::from_fn(|d| std::array::from_fn(|k| level(d, k))));
        }
        Place::Others { start: start as u32, n: n as u16 }
    }

    /// Returns the point that levels are, or those near them.
    #[inline(always)]
    pub(super) fn near(&self, levels: &[u8; D]) -> Near {
        match self.places[number(self.n_levels, levels)] {
            Place::Point(point) => Near::Point(point),
            Place::Others { start, n } => Near::Others(Neighbours { start: start as usize, n: usize::from(n) }),
        }
    }

    /// Returns the levels of a point.
    #[inline(always)]
    pub(super) fn point(&self, i: u16) -> &[u8; D] {
        &self.points[usize::from(i)]
    }

    /// Returns the nearest point.
    pub(super) fn nearest(&self, near: Neighbours) -> u16 {
        self.near[near.start]
    }

    /// Returns the point whose values have the least weighted squared error; of equal ones the first.
    #[inline(always)]
    pub(super) fn best(&self, near: Neighbours, fit: &Fit<'_, D>) -> u16 {
        let (mut best, mut least) = (0, f32::MAX);
        let lanes = &self.lanes[near.start / LANES..][..near.n.div_ceil(LANES)];
        for (i, lanes) in lanes.iter().enumerate() {
            let mut errors = [0.0; LANES];
            for ((levels, &x), &w) in lanes.iter().zip(fit.x).zip(fit.weights) {
                for (error, &level) in errors.iter_mut().zip(levels) {
                    let difference = fit.scale * (fit.step * f32::from(level) + fit.offset) - x;
                    *error += w * difference * difference;
                }
            }
            for (k, &error) in errors.iter().enumerate().take(near.n - i * LANES) {
                if error < least {
                    (best, least) = (i * LANES + k, error);
                }
            }
        }
        self.near[near.start + best]
    }
}

/// Values that a point is to fit: `x = scale·(step·level + offset)`, where what is in brackets has no rounding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fit<'a, const D: usize> {
    pub(super) x: &'a [f32; D],
    pub(super) weights: &'a [f32; D],
    pub(super) scale: f32,
    pub(super) step: f32,
    pub(super) offset: f32,
}

/// The number whose digits are levels, the first lowest.
#[inline(always)]
fn number<const D: usize>(n_levels: usize, levels: &[u8; D]) -> usize {
    levels.iter().rev().fold(0, |number, &level| number * n_levels + usize::from(level))
}

fn distance<const D: usize>(a: &[u8; D], b: &[u8; D]) -> usize {
    a.iter().zip(b).map(|(&a, &b)| usize::from(a.abs_diff(b)).pow(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_themselves_and_others_have_the_nearest() {
        fn check<const D: usize>(codebook: &Codebook<D>) {
            for (i, point) in codebook.points.iter().enumerate() {
                assert!(matches!(codebook.near(point), Near::Point(at) if usize::from(at) == i));
            }
            let others = codebook.places.iter().filter_map(|place| match place {
                Place::Others { n, .. } => Some(*n),
                Place::Point(_) => None,
            });
            let others: Vec<u16> = others.collect();
            assert_eq!(others.len() + codebook.points.len(), codebook.n_levels.pow(D as u32));
            assert!(others.iter().all(|n| *n > 0));
        }
        [&IQ1, &IQ2_XXS, &IQ2_XS, &IQ2_S].iter().for_each(|codebook| check(codebook));
        [&IQ3_XXS, &IQ3_S].iter().for_each(|codebook| check(codebook));
    }
}
