//! Rounding, and blocks as lanes: value `i` of block `k` is `lanes[i][k]`.

/// Added to a float below 2^22 it leaves the nearest integer, ties to even, in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// Returns the nearest integer of a value below 2^22, ties to even. Of others it returns what the reference does: 0 for a NaN, and
/// bits without a meaning.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    ((x + MAGIC).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Returns the nearest of the levels 0 to `top`, as [`nearest`] finds it: 0 for a NaN and an infinity.
#[inline(always)]
pub(super) fn level(x: f32, top: f32) -> f32 {
    let x = if x < 4_194_304.0 { x } else { 0.0 };
    let x = if x > 0.0 { x } else { 0.0 };
    let x = if x < top { x } else { top };
    (x + MAGIC) - MAGIC
}

/// Returns the nearest of the levels `-n` to `n - 1` of a finite value.
#[inline(always)]
pub(super) fn signed_level(x: f32, n: f32) -> f32 {
    let x = if x > -n { x } else { -n };
    let x = if x < n - 1.0 { x } else { n - 1.0 };
    (x + MAGIC) - MAGIC
}

/// Puts blocks of `N` values side by side; lanes for which there is no block have zeros.
#[inline(always)]
pub(super) fn side_by_side<const N: usize, const L: usize>(x: &[f32]) -> [[f32; L]; N] {
    let mut lanes = [[0.0; L]; N];
    for (k, block) in x.as_chunks::<N>().0.iter().take(L).enumerate() {
        for (lane, x) in lanes.iter_mut().zip(block) {
            lane[k] = *x;
        }
    }
    lanes
}

/// Writes levels behind each other again, as many blocks as there is room for.
#[inline(always)]
pub(super) fn unfold<const N: usize, const L: usize>(lanes: &[[f32; L]; N], out: &mut [u8]) {
    for (k, block) in out.as_chunks_mut::<N>().0.iter_mut().take(L).enumerate() {
        for (to, lane) in block.iter_mut().zip(lanes) {
            *to = lane[k] as i32 as u8;
        }
    }
}

/// Returns the sum of each lane, in order.
#[inline(always)]
pub(super) fn sums<const N: usize, const L: usize>(x: &[[f32; L]; N]) -> [f32; L] {
    let mut sums = [0.0; L];
    for x in x {
        (0..L).for_each(|k| sums[k] += x[k]);
    }
    sums
}

/// Returns the weights `importance * sqrt(sigma2 + x^2)` of values, which need not be in lanes.
#[inline(always)]
pub(super) fn importance<const N: usize>(x: &[f32; N], weights: &[f32; N], sigma2: f32) -> [f32; N] {
    std::array::from_fn(|i| weights[i] * (sigma2 + x[i] * x[i]).sqrt())
}
