//! Quality over cost, of two models.

/// The quality that is reached for a share of queries answered by the strong model.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Share of queries answered by the strong model and mean quality then, from none to all of them. Between two
    /// points lies a straight line: what is drawn at random among queries of one score reaches.
    pub points: Vec<(f64, f64)>,
}

/// Sends queries to the strong model in the order of `scores`, greatest first, and returns the quality on the way.
/// Queries of equal score go together. `weak` and `strong` are the qualities of the models' answers.
///
/// # Panics
/// The three differ in length, or there are none.
pub fn cost_quality(scores: &[f32], weak: &[f32], strong: &[f32]) -> Curve {
    let n = scores.len();
    assert!(
        n > 0 && weak.len() == n && strong.len() == n,
        "{n} scores for {} and {} answers",
        weak.len(),
        strong.len()
    );
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut quality: f64 = weak.iter().map(|&x| f64::from(x)).sum();
    let mut points = vec![(0.0, quality / n as f64)];
    for (done, &i) in order.iter().enumerate() {
        quality += f64::from(strong[i]) - f64::from(weak[i]);
        if order.get(done + 1).is_none_or(|&next| scores[next] != scores[i]) {
            points.push(((done + 1) as f64 / n as f64, quality / n as f64));
        }
    }
    Curve { points }
}

impl Curve {
    /// Returns the quality at a cost: the share of queries for the strong model, 0 to 1.
    pub fn quality_at(&self, cost: f64) -> f64 {
        let last = self.points.len() - 1;
        let after = self.points.iter().position(|point| point.0 >= cost).unwrap_or(last);
        if after == 0 {
            return self.points[0].1;
        }
        let ((x0, y0), (x1, y1)) = (self.points[after - 1], self.points[after]);
        y0 + (y1 - y0) * ((cost - x0) / (x1 - x0)).clamp(0.0, 1.0)
    }

    /// Returns the share of the difference between the models that a point's quality recovers.
    fn recovered(&self, quality: f64) -> f64 {
        let (weak, strong) = (self.points[0].1, self.points[self.points.len() - 1].1);
        (quality - weak) / (strong - weak)
    }

    /// Returns the mean share of the difference between the models that is recovered, over all costs from 0 to 1:
    /// 0.5 for chance. It has no meaning (and is not finite) where both models are equally good.
    pub fn apgr(&self) -> f64 {
        let pieces = self.points.windows(2).map(|pair| (pair[1].0 - pair[0].0) * 0.5 * (pair[0].1 + pair[1].1));
        self.recovered(pieces.sum())
    }

    /// Returns the least cost at which `share` of the difference between the models is recovered (CPT), if it is.
    pub fn cpt(&self, share: f64) -> Option<f64> {
        let shares: Vec<f64> = self.points.iter().map(|point| self.recovered(point.1)).collect();
        let after = shares.iter().position(|&recovered| recovered >= share)?;
        if after == 0 {
            return Some(0.0);
        }
        let ((x0, y0), (x1, y1)) =
            ((self.points[after - 1].0, shares[after - 1]), (self.points[after].0, shares[after]));
        Some(x0 + (x1 - x0) * (share - y0) / (y1 - y0))
    }
}
