//! The way back through a norm, and what it needs of a row.

/// Returns the mean that LayerNorm subtracts (0 for RMSNorm), and the inverse deviation from it.
pub fn moments(x: &[f32], eps: f32, is_layer: bool) -> (f32, f32) {
    let n = x.len() as f64;
    let sum: f64 = x.iter().map(|&x| f64::from(x)).sum();
    let mean = if is_layer { sum / n } else { 0.0 };
    let square: f64 = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
    (mean as f32, (1.0 / (square / n + f64::from(eps)).sqrt()) as f32)
}

/// Replaces the gradient `d` of what a norm makes of `x` by that of `x`. Shapes: all `[n]`.
///
/// ```text
/// n the normed row, g the gradient times the weights:  (g - [mean of g] - n·mean(g·n)) / deviation        [LayerNorm only]
/// ```
///
/// # Panics
/// If the lengths differ.
pub fn back(x: &[f32], w: &[f32], eps: f32, is_layer: bool, d: &mut [f32]) {
    assert!(x.len() == w.len() && x.len() == d.len(), "norm: {} inputs, {} weights, {}", x.len(), w.len(), d.len());
    let (n, (mean, by)) = (x.len() as f64, moments(x, eps, is_layer));
    d.iter_mut().zip(w).for_each(|(d, w)| *d *= w);
    let dot: f64 = d.iter().zip(x).map(|(&d, &x)| f64::from(d) * f64::from((x - mean) * by)).sum();
    let sum: f64 = if is_layer { d.iter().map(|&d| f64::from(d)).sum() } else { 0.0 };
    let (dot, sum) = ((dot / n) as f32, (sum / n) as f32);
    d.iter_mut().zip(x).for_each(|(d, x)| *d = by * (*d - sum - (x - mean) * by * dot));
}
