//! The product of two vectors, where no kernel of a table is worth its call.

/// The sum of products, in 16 partial sums that the compiler keeps in vectors; always in the same order.
pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    let ((x16, x_tail), (y16, y_tail)) = (x.as_chunks::<16>(), y.as_chunks::<16>());
    let mut acc = [0.0; 16];
    for (x, y) in x16.iter().zip(y16) {
        (0..16).for_each(|lane| acc[lane] += x[lane] * y[lane]);
    }
    acc.iter().sum::<f32>() + x_tail.iter().zip(y_tail).map(|(x, y)| x * y).sum::<f32>()
}
