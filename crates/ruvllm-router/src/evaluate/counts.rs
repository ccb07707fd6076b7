//! Shares with their bounds, and classes by classes.

/// Returns the bounds of a share with 95 % confidence (Wilson 1927): `n_right` of `n`. Of nothing, 0 to 1.
pub fn wilson(n_right: usize, n: usize) -> (f64, f64) {
    const Z: f64 = 1.959_963_984_540_054;
    if n == 0 {
        return (0.0, 1.0);
    }
    let (n, share) = (n as f64, n_right as f64 / n as f64);
    let middle = share + Z * Z / (2.0 * n);
    let half = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let whole = 1.0 + Z * Z / n;
    (((middle - half) / whole).max(0.0), ((middle + half) / whole).min(1.0))
}

/// Counts of how often a class was taken for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confusion {
    n_classes: usize,
    counts: Vec<usize>,
}

impl Confusion {
    /// Makes an empty table of `n_classes` by `n_classes`.
    pub fn new(n_classes: usize) -> Confusion {
        Confusion { n_classes, counts: vec![0; n_classes * n_classes] }
    }

    /// Counts one case.
    ///
    /// # Panics
    /// There is no such class.
    pub fn add(&mut self, actual: usize, predicted: usize) {
        assert!(actual < self.n_classes && predicted < self.n_classes, "a class of {}", self.n_classes);
        self.counts[actual * self.n_classes + predicted] += 1;
    }

    /// Returns the counts of an actual class by the predicted ones.
    pub fn row(&self, actual: usize) -> &[usize] {
        &self.counts[actual * self.n_classes..][..self.n_classes]
    }

    /// Returns how many cases were right, and how many there are.
    pub fn right(&self) -> (usize, usize) {
        ((0..self.n_classes).map(|class| self.row(class)[class]).sum(), self.counts.iter().sum())
    }

    /// Returns the harmonic mean of precision and recall of a class; 0 where nothing is right.
    pub fn f1(&self, class: usize) -> f64 {
        let right = self.row(class)[class] as f64;
        let actual: usize = self.row(class).iter().sum();
        let predicted: usize = (0..self.n_classes).map(|other| self.row(other)[class]).sum();
        if right == 0.0 { 0.0 } else { 2.0 * right / (actual + predicted) as f64 }
    }
}
