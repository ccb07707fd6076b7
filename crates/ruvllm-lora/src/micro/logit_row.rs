//! The logits that what learns from a token sees.

/// The logits of a token to come: `[n_vocab]`, made of one final hidden state.
#[derive(Debug)]
pub struct LogitRow<'a> {
    /// Logits that the token is chosen by, which may be changed. Where there are approximate ones, those that do not count may be -∞.
    pub exact: &'a mut [f32],
    /// All of them, of a head whose weights have fewer bits: what is learned is learned by these then, since all exact ones may cost
    /// more than learning does. They must be the same whenever the token is read again.
    pub approx: Option<&'a [f32]>,
}

impl LogitRow<'_> {
    /// Returns what learning sees.
    pub fn seen(&self) -> &[f32] {
        self.approx.unwrap_or(self.exact)
    }
}

impl<'a> From<&'a mut [f32]> for LogitRow<'a> {
    fn from(exact: &'a mut [f32]) -> LogitRow<'a> {
        LogitRow { exact, approx: None }
    }
}

impl<'a> From<&'a mut Vec<f32>> for LogitRow<'a> {
    fn from(exact: &'a mut Vec<f32>) -> LogitRow<'a> {
        LogitRow::from(&mut exact[..])
    }
}

impl<'a, const N: usize> From<&'a mut [f32; N]> for LogitRow<'a> {
    fn from(exact: &'a mut [f32; N]) -> LogitRow<'a> {
        LogitRow::from(&mut exact[..])
    }
}
