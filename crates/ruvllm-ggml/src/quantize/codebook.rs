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

/// Points of `D` levels each.
#[derive(Debug)]
pub(super) struct Codebook<const D: usize> {
    n_levels: usize,
    points: Vec<[u8; D]>,
    /// By the number that levels make.
    places: Vec<Place>,
    near: Vec<u16>,
}

/// Range of `near` for some levels: the point itself, or the points near them.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    start: u32,
    n: u16,
    is_point: bool,
}

/// Points for some levels.
#[derive(Clone, Copy, Debug)]
pub(super) enum Near<'a> {
    /// The levels are this point.
    Point(u16),
    /// They are none; the nearest first, of equally near ones in the grid's order.
    Others(&'a [u16]),
}

impl<const D: usize> Codebook<D> {
    /// Takes a grid whose values are `level_of` a level, of `n_levels`. Near are all points at the `n_distances` least distances.
    fn new(grid: &[[i8; D]], level_of: fn(i8) -> i8, n_levels: usize, n_distances: usize) -> Codebook<D> {
        let points: Vec<[u8; D]> = grid.iter().map(|point| point.map(|x| level_of(x) as u8)).collect();
        let places = vec![Place::default(); n_levels.pow(D as u32)];
        let mut codebook = Codebook { n_levels, points, places, near: Vec::new() };
        for (i, point) in codebook.points.iter().enumerate() {
            let place = Place { start: codebook.near.len() as u32, n: 1, is_point: true };
            codebook.places[number(n_levels, point)] = place;
            codebook.near.push(i as u16);
        }
        let mut by_distance = vec![Vec::new(); D * (n_levels - 1).pow(2) + 1];
        for at in 0..codebook.places.len() {
            if codebook.places[at].is_point {
                continue;
            }
            let levels: [u8; D] = std::array::from_fn(|i| (at / n_levels.pow(i as u32) % n_levels) as u8);
            by_distance.iter_mut().for_each(Vec::clear);
            for (i, point) in codebook.points.iter().enumerate() {
                by_distance[distance(&levels, point)].push(i as u16);
            }
            let start = codebook.near.len();
            let nearest = by_distance.iter().filter(|points| !points.is_empty()).take(n_distances);
            codebook.near.extend(nearest.flatten());
            let n = (codebook.near.len() - start) as u16;
            codebook.places[at] = Place { start: start as u32, n, is_point: false };
        }
        codebook
    }

    /// Returns the point that levels are, or those near them.
    #[inline(always)]
    pub(super) fn near(&self, levels: &[u8; D]) -> Near<'_> {
        let Place { start, n, is_point } = self.places[number(self.n_levels, levels)];
        let points = &self.near[start as usize..][..usize::from(n)];
        if is_point { Near::Point(points[0]) } else { Near::Others(points) }
    }

    /// Returns the levels of a point.
    #[inline(always)]
    pub(super) fn point(&self, i: u16) -> &[u8; D] {
        &self.points[usize::from(i)]
    }

    /// Returns the point whose values `value(level)` times the scale have the least weighted squared error.
    #[inline(always)]
    pub(super) fn best(&self, near: &[u16], fit: &Fit<'_, D>, value: impl Fn(u8) -> f32) -> u16 {
        let (mut best, mut least) = (near[0], f32::MAX);
        for &i in near {
            let mut error = 0.0;
            for ((&level, &x), &w) in self.point(i).iter().zip(fit.x).zip(fit.weights) {
                let difference = fit.scale * value(level) - x;
                error += w * difference * difference;
            }
            if error < least {
                (best, least) = (i, error);
            }
        }
        best
    }
}

/// Values that a point is to fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fit<'a, const D: usize> {
    pub(super) x: &'a [f32; D],
    pub(super) weights: &'a [f32; D],
    pub(super) scale: f32,
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
            let n_others = codebook.places.iter().filter(|place| !place.is_point).count();
            assert_eq!(n_others + codebook.points.len(), codebook.n_levels.pow(D as u32));
            assert!(codebook.places.iter().all(|place| place.n > 0));
        }
        [&IQ1, &IQ2_XXS, &IQ2_XS, &IQ2_S].iter().for_each(|codebook| check(codebook));
        [&IQ3_XXS, &IQ3_S].iter().for_each(|codebook| check(codebook));
    }
}
