//! How far two rows of numbers are apart, in f64.

/// Returns the position of the largest value, the first of equals.
///
/// # Panics
/// If the row is empty or holds a NaN.
pub fn argmax(row: &[f32]) -> usize {
    assert!(!row.is_empty() && row.iter().all(|x| !x.is_nan()), "argmax of an empty row or of NaN");
    (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best }).expect("the row is not empty")
}

/// Returns the largest `|a[i] − b[i]|`; infinite if either row holds a NaN.
///
/// # Panics
/// If the lengths differ.
pub fn max_abs_diff(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "max_abs_diff: rows differ in length");
    let diff = |(&a, &b): (&f32, &f32)| if a == b { 0.0 } else { (f64::from(a) - f64::from(b)).abs() };
    a.iter().zip(b).map(diff).fold(0.0, |most, d| if d.is_nan() { f64::INFINITY } else { most.max(d) })
}

/// Returns the cosine of the angle between two rows.
///
/// # Panics
/// If the lengths differ.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "cosine: rows differ in length");
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Returns `Σ p·(ln p − ln q)` in nats, where `p` and `q` are the softmax of the two rows of logits. Source: Kullback
/// and Leibler 1951.
///
/// # Panics
/// If the lengths differ.
pub fn kl_divergence(p_logits: &[f32], q_logits: &[f32]) -> f64 {
    assert_eq!(p_logits.len(), q_logits.len(), "kl_divergence: rows differ in length");
    let log_sum_exp = |row: &[f32]| {
        let max = row.iter().fold(f64::NEG_INFINITY, |max, &x| max.max(f64::from(x)));
        max + row.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln()
    };
    let (p_norm, q_norm) = (log_sum_exp(p_logits), log_sum_exp(q_logits));
    let term = |(&p, &q): (&f32, &f32)| {
        let (ln_p, ln_q) = (f64::from(p) - p_norm, f64::from(q) - q_norm);
        // A token ruled out (−∞) has no share in `p`, whatever `q` says of it.
        if ln_p == f64::NEG_INFINITY { 0.0 } else { ln_p.exp() * (ln_p - ln_q) }
    };
    // The sum of rounded terms of nearly equal rows may fall below zero by a few ulp of 1, the divergence never does.
    let sum: f64 = p_logits.iter().zip(q_logits).map(term).sum();
    if sum.is_nan() { f64::INFINITY } else { sum.max(0.0) }
}

/// Result of [`compare_logits`] over all rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitComparison {
    /// Rows compared.
    pub n_rows: usize,
    /// Largest KL divergence of a row from the expected one, in nats.
    pub max_kl: f64,
    /// Mean of the KL divergences, in nats.
    pub mean_kl: f64,
    /// Largest difference of two logits.
    pub max_abs_diff: f64,
    /// Share of rows, 0 to 1, whose largest logit is at the same place.
    pub argmax_agreement: f64,
}

/// Compares `[n_rows, n_vocab]` logits with the expected ones.
///
/// # Panics
/// If the lengths differ, are not whole rows, or there are none.
pub fn compare_logits(expected: &[f32], actual: &[f32], n_vocab: usize) -> LogitComparison {
    assert_eq!(expected.len(), actual.len(), "compare_logits: expected and actual differ in length");
    assert!(!expected.is_empty() && expected.len().is_multiple_of(n_vocab), "compare_logits: no whole rows");
    let rows = || expected.chunks_exact(n_vocab).zip(actual.chunks_exact(n_vocab));
    let n_rows = rows().len();
    let kls: Vec<f64> = rows().map(|(expected, actual)| kl_divergence(expected, actual)).collect();
    let same = |(expected, actual): &(&[f32], &[f32])| {
        !actual.iter().any(|x| x.is_nan()) && argmax(expected) == argmax(actual)
    };
    LogitComparison {
        n_rows,
        max_kl: kls.iter().fold(0.0, |most, &kl| f64::max(most, kl)),
        mean_kl: kls.iter().sum::<f64>() / n_rows as f64,
        max_abs_diff: max_abs_diff(expected, actual),
        argmax_agreement: rows().filter(same).count() as f64 / n_rows as f64,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_values() {
        // p = (1/2, 1/2), q = (1/4, 3/4): ln 2 / 2 + ln (2/3) / 2.
        let kl = kl_divergence(&[1.0, 1.0], &[0.0, 3f32.ln()]);
        assert!((kl - 0.5 * (2f64.ln() + (2f64 / 3.0).ln())).abs() < 1e-7, "{kl}");
        assert_eq!(kl_divergence(&[0.0, f32::NEG_INFINITY], &[0.0, f32::NEG_INFINITY]), 0.0);
        assert_eq!(kl_divergence(&[0.0, 0.0], &[0.0, f32::NEG_INFINITY]), f64::INFINITY);
        assert_eq!(kl_divergence(&[0.0, 0.0], &[0.0, f32::NAN]), f64::INFINITY);
        assert_eq!((argmax(&[1.0, 3.0, 3.0]), max_abs_diff(&[1.0, -2.0], &[1.5, -4.0])), (1, 2.0));
        assert_eq!(max_abs_diff(&[1.0, 2.0], &[f32::NAN, 2.0]), f64::INFINITY);
        assert_eq!((cosine(&[1.0, 0.0], &[0.0, 2.0]), cosine(&[1.0, 2.0], &[2.0, 4.0])), (0.0, 1.0));
        let found = compare_logits(&[0.0, 1.0, 1.0, 0.0], &[0.0, 1.0, f32::NAN, 0.0], 2);
        assert_eq!((found.n_rows, found.max_kl, found.argmax_agreement), (2, f64::INFINITY, 0.5));
    }

    proptest! {
        #[test]
        fn divergence_is_positive_and_blind_to_shifts(
            rows in prop::collection::vec((-20f32..20.0, -20f32..20.0), 1..50),
            shift in -100f32..100.0,
        ) {
            let (p, q): (Vec<f32>, Vec<f32>) = rows.into_iter().unzip();
            let kl = kl_divergence(&p, &q);
            prop_assert!(kl >= 0.0);
            let shifted: Vec<f32> = q.iter().map(|x| x + shift).collect();
            // Each shifted logit is rounded to half an ulp of at most 120, 2⁻¹⁸, which moves both logarithms by that
            // much.
            prop_assert!((kl_divergence(&p, &shifted) - kl).abs() <= 2.0 * 2f64.powi(-18) + 1e-9);
            prop_assert!(kl_divergence(&p, &p) == 0.0);
        }
    }
}
