//! Small dense arithmetic in a fixed order of summation, so that results repeat bit for bit.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;

/// Partial sums of a dot product: they are independent, so the compiler may keep them in vector registers.
const LANES: usize = 16;

/// Returns `Σ a[i]·b[i]`.
///
/// # Panics
/// The lengths differ.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot: vectors of different lengths");
    let ((a_body, a_tail), (b_body, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0f32; LANES];
    for (x, y) in a_body.iter().zip(b_body) {
        for ((lane, x), y) in lanes.iter_mut().zip(x).zip(y) {
            *lane += x * y;
        }
    }
    let tail: f32 = a_tail.iter().zip(b_tail).map(|(x, y)| x * y).sum();
    let mut width = LANES / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        low.iter_mut().zip(high).for_each(|(x, y)| *x += *y);
        width /= 2;
    }
    lanes[0] + tail
}

/// A number from 0 to 1, 1 left out.
pub(crate) fn unit(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 / (1 << 24) as f32
}

/// `y += scale·x`.
pub(crate) fn add_scaled(y: &mut [f32], scale: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += scale * x;
    }
}

/// `y[i] += Σ matrix[i][j]·x[j]`; `matrix`: `[y, x]`, row-major.
pub(crate) fn add_product(y: &mut [f32], matrix: &[f32], x: &[f32]) {
    for (y, row) in y.iter_mut().zip(matrix.chunks_exact(x.len())) {
        *y += dot(row, x);
    }
}

/// `y[j] += Σ matrix[i][j]·x[i]`; `matrix`: `[x, y]`, row-major.
pub(crate) fn add_product_transposed(y: &mut [f32], matrix: &[f32], x: &[f32]) {
    for (&x, row) in x.iter().zip(matrix.chunks_exact(y.len())) {
        add_scaled(y, x, row);
    }
}

/// `matrix[i][j] += y[i]·x[j]`; `matrix`: `[y, x]`, row-major.
pub(crate) fn add_outer(matrix: &mut [f32], y: &[f32], x: &[f32]) {
    for (row, &y) in matrix.chunks_exact_mut(x.len()).zip(y) {
        add_scaled(row, y, x);
    }
}

/// Returns `1/(1 + e^-x)`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

/// Returns the cross-entropy of the target `y` (0 to 1) and `sigmoid(logit)`, without overflow.
pub(crate) fn cross_entropy(logit: f32, y: f32) -> f32 {
    logit.max(0.0) - logit * y + (-logit.abs()).exp().ln_1p()
}

/// Turns logits into probabilities, and returns the logarithm of the sum of their exponentials.
pub(crate) fn softmax(values: &mut [f32]) -> f32 {
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in values.iter_mut() {
        *value = (*value - max).exp();
        sum += *value;
    }
    values.iter_mut().for_each(|value| *value /= sum);
    max + sum.ln()
}

/// Scales a vector to length 1; one of length 0 stays as it is.
pub(crate) fn normalise(vector: &mut [f32]) {
    let length = dot(vector, vector).sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x /= length);
    }
}

/// Returns the index of the greatest value, the first of equal ones; 0 for none.
pub(crate) fn argmax(values: &[f32]) -> usize {
    values.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (i, &x)| if x > best.1 { (i, x) } else { best }).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_agree_with_plain_sums() {
        let a: Vec<f32> = (0..77).map(|i| (i % 13) as f32 - 6.0).collect();
        let b: Vec<f32> = (0..77).map(|i| (i % 7) as f32 - 3.0).collect();
        // Small whole numbers: exact in any order.
        assert_eq!(dot(&a, &b), a.iter().zip(&b).map(|(x, y)| x * y).sum::<f32>());
        let (mut y, mut t) = (vec![1.0; 7], vec![0.0; 11]);
        add_product(&mut y, &a, &b[..11]);
        assert_eq!(y[2], 1.0 + (0..11).map(|j| a[22 + j] * b[j]).sum::<f32>());
        add_product_transposed(&mut t, &a, &b[..7]);
        assert_eq!(t[3], (0..7).map(|i| a[11 * i + 3] * b[i]).sum::<f32>());
    }

    #[test]
    fn far_logits_are_finite() {
        for x in [-1e4f32, -50.0, 0.0, 50.0, 1e4] {
            assert!(sigmoid(x).is_finite() && cross_entropy(x, 0.3).is_finite(), "{x}");
        }
        let mut values = [1e4, -1e4, 1e4];
        softmax(&mut values);
        assert_eq!(values, [0.5, 0.0, 0.5]);
    }
}
