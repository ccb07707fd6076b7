//! The publication gate: whether a change is good enough to be served.
//!
//! ```text
//! blocks      of text that was held back, each with its mean loss before the change and after it
//! change      rᵢ = (afterᵢ - beforeᵢ) / mean(before)      the same blocks twice: what differs between texts falls out
//! bound       mean(r) + (t + γ·(1 + 2·t²)/(6·√n))·s(r)/√n   above it the true change lies with a chance of 1 - confidence:
//!             t = t(confidence, n - 1), γ = the skewness of r, where it is above 0
//! published   if the bound of the target is below 0 and that of every control below `rise_max`
//! ```
//! Doubt is a reason against: what cannot be told from no gain, or from harm, is discarded. So a change without merit passes with a
//! chance of at most 1 - confidence, whatever number of controls there are, and one on the edge of two conditions with less. A good
//! change passes if the blocks are enough to see it. The quantile is Student's (1908), so few blocks ask for more; where few blocks carry
//! much of the harm, it is too low, and the second term makes up for that (Johnson 1978).

use crate::error::{SonaError, SonaErrorKind};

/// Gate that a change has to pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublicationGate {
    /// By how much the loss of a control may rise, as a share of it.
    pub rise_max: f64,
    /// Confidence that it has to have, above 0.5, below 1.
    pub confidence: f64,
    /// Blocks of a text, at least; with fewer nothing is published.
    pub n_blocks_min: usize,
}

impl Default for PublicationGate {
    /// 1 %, sure to 97.5 %, of 8 blocks or more.
    fn default() -> PublicationGate {
        PublicationGate { rise_max: 0.01, confidence: 0.975, n_blocks_min: 8 }
    }
}

/// Mean losses of the same blocks of a text, in nats a token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paired {
    /// Name of the text.
    pub name: String,
    /// With what is served now.
    pub before: Vec<f64>,
    /// With the change.
    pub after: Vec<f64>,
}

/// Change of a text's loss.
#[derive(Clone, Debug, PartialEq)]
pub struct LossChange {
    /// Name of the text.
    pub name: String,
    /// The change of its mean loss, as a share of it: below 0 is better.
    pub relative: f64,
    /// Upper bound of the true change, with the gate's confidence.
    pub bound: f64,
    /// Blocks.
    pub n_blocks: usize,
}

/// Judgement of the gate.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Whether the change is published.
    pub is_published: bool,
    /// Why, in one line.
    pub why: String,
    /// Change of the target.
    pub target: LossChange,
    /// Changes of the controls.
    pub controls: Vec<LossChange>,
}

impl Judgement {
    /// Returns all changes and bounds by name, as generations and the log keep them.
    pub fn figures(&self) -> Vec<(String, f64)> {
        let all = std::iter::once(&self.target).chain(&self.controls);
        let both = |change: &LossChange| {
            let of = |what: &str| format!("{} {what}", change.name);
            [(of("change"), change.relative), (of("bound"), change.bound)]
        };
        // Infinite bounds are those of no blocks, which are no figures.
        all.flat_map(both).filter(|(_, value)| value.is_finite()).collect()
    }
}

impl PublicationGate {
    /// Judges a change by what it was made for and by what must not suffer.
    ///
    /// # Errors
    /// A number of the gate is out of its range, or the blocks before and after are not as many.
    pub fn judge(&self, target: &Paired, controls: &[Paired]) -> Result<Judgement, SonaError> {
        let PublicationGate { rise_max, confidence, n_blocks_min } = *self;
        if !(confidence > 0.5 && confidence < 1.0 && rise_max >= 0.0) || n_blocks_min < 2 {
            let line = format!(
                "a gate of {rise_max} at {confidence} of {n_blocks_min} blocks; choose 0.01, 0.975 and 8 or so"
            );
            return Err(SonaError::new(SonaErrorKind::Value, line));
        }
        let target = self.change(target)?;
        let controls = controls.iter().map(|control| self.change(control)).collect::<Result<Vec<_>, _>>()?;
        let percent = |x: f64| format!("{:+.2} %", 100.0 * x);
        let few = std::iter::once(&target).chain(&controls).find(|change| change.n_blocks < n_blocks_min);
        let risen = controls.iter().find(|change| change.bound.is_nan() || change.bound >= rise_max);
        let said = |change: &LossChange, bar: &str| {
            let LossChange { name, relative, bound, n_blocks } = change;
            let (change, bound, sure) = (percent(*relative), percent(*bound), 100.0 * confidence);
            format!("{name} changes by {change} over {n_blocks} blocks, below {bound} as sure as {sure:.0} %; {bar}")
        };
        let (is_published, why) = if let Some(change) = few {
            (false, format!("{} has {} blocks, at least {n_blocks_min} are judged", change.name, change.n_blocks))
        } else if target.bound.is_nan() || target.bound >= 0.0 {
            (false, said(&target, "it has to be below 0"))
        } else if let Some(change) = risen {
            (false, said(change, &format!("a control has to be below {}", percent(rise_max))))
        } else {
            (true, said(&target, &format!("{} controls below {}", controls.len(), percent(rise_max))))
        };
        Ok(Judgement { is_published, why, target, controls })
    }

    fn change(&self, paired: &Paired) -> Result<LossChange, SonaError> {
        let (n, n_after) = (paired.before.len(), paired.after.len());
        if n != n_after {
            let line = format!("{} has {n} blocks before and {n_after} after", paired.name);
            return Err(SonaError::new(SonaErrorKind::Shape, line));
        }
        let none = LossChange { name: paired.name.clone(), relative: f64::INFINITY, bound: f64::INFINITY, n_blocks: n };
        let mean = paired.before.iter().sum::<f64>() / n as f64;
        let changes: Vec<f64> = paired.before.iter().zip(&paired.after).map(|(b, a)| (a - b) / mean).collect();
        // A loss that is no number is as bad as can be, and one of nothing has no share.
        if n < 2 || mean <= 0.0 || changes.iter().any(|x| !x.is_finite()) {
            return Ok(none);
        }
        let relative = changes.iter().sum::<f64>() / n as f64;
        let variance = changes.iter().map(|x| (x - relative).powi(2)).sum::<f64>() / (n - 1) as f64;
        let (t, root) = (student(self.confidence, (n - 1) as f64), (n as f64).sqrt());
        let third = changes.iter().map(|x| (x - relative).powi(3)).sum::<f64>() / n as f64;
        let skewness = (third / variance.powf(1.5)).max(0.0);
        let skewness = if skewness.is_finite() { skewness } else { 0.0 };
        let bound = relative + (t + skewness * (1.0 + 2.0 * t * t) / (6.0 * root)) * variance.sqrt() / root;
        Ok(LossChange { relative, bound, ..none })
    }
}

/// Returns the quantile of Student's distribution of `nu` degrees of freedom for `share` above one half.
fn student(share: f64, nu: f64) -> f64 {
    // P(T > t) = I(ν/(ν + t²); ν/2, 1/2)/2, which falls with t.
    let tail = |t: f64| 0.5 * incomplete_beta(nu / (nu + t * t), 0.5 * nu, 0.5);
    let (mut low, mut high) = (0.0, 1.0);
    while tail(high) > 1.0 - share {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        if tail(middle) > 1.0 - share { low = middle } else { high = middle }
    }
    high
}

/// Returns the regularised incomplete beta function by its continued fraction (Lentz's method; Press et al., Numerical Recipes, 6.4).
fn incomplete_beta(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(1.0 - x, b, a);
    }
    let away = |x: f64| if x.abs() < 1e-300 { 1e-300 } else { x };
    let (mut c, mut d) = (1.0, 1.0 / away(1.0 - (a + b) * x / (a + 1.0)));
    let mut h = d;
    for m in 1..400 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = h;
        for term in [even, odd] {
            d = 1.0 / away(1.0 + term * d);
            c = away(1.0 + term / c);
            h *= d * c;
        }
        if (h - before).abs() < 1e-15 * h.abs() {
            break;
        }
    }
    (a * x.ln() + b * (1.0 - x).ln() + log_gamma(a + b) - log_gamma(a) - log_gamma(b)).exp() * h / a
}

/// Returns ln Γ(x), x > 0, by Stirling's series from 10 on and the recurrence below.
fn log_gamma(x: f64) -> f64 {
    if x < 10.0 {
        return log_gamma(x + 1.0) - x.ln();
    }
    let (y, half_log_2_pi) = (1.0 / (x * x), 0.918_938_533_204_672_7);
    let series = (1.0 / 12.0 - y * (1.0 / 360.0 - y * (1.0 / 1260.0 - y / 1680.0))) / x;
    (x - 0.5) * x.ln() - x + half_log_2_pi + series
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (share, nu, t) in [
            (0.95, 1.0, 6.314),
            (0.95, 5.0, 2.015),
            (0.95, 30.0, 1.697),
            (0.975, 10.0, 2.228),
            (0.99, 63.0, 2.387),
            (0.95, 1e6, 1.645),
        ] {
            assert!((student(share, nu) - t).abs() < 6e-4, "{share} of {nu}: {}", student(share, nu));
        }
    }

    /// How the change of a block is distributed about its mean.
    #[derive(Clone, Copy, Debug)]
    enum Noise {
        /// As most things are.
        Normal,
        /// Now and then something very far off.
        Heavy,
        /// One block of ten is harmed by much, the others gain a little: the mean is that of a few.
        Skewed,
    }

    struct Draws(ChaCha8Rng);

    impl Draws {
        fn uniform(&mut self) -> f64 {
            ((self.0.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
        }

        /// Of mean 0 and deviation 1.
        fn noise(&mut self, noise: Noise) -> f64 {
            match noise {
                Noise::Normal => self.normal(),
                // A mixture with 5 % of ten times the deviation.
                Noise::Heavy => self.normal() * if self.uniform() < 0.05 { 10.0 } else { 1.0 } / 5.95f64.sqrt(),
                Noise::Skewed => {
                    if self.uniform() < 0.1 {
                        3.0
                    } else {
                        -1.0 / 3.0
                    }
                }
            }
        }

        /// A text whose loss changes by `change`, with a deviation of `spread` between blocks.
        fn paired(&mut self, n: usize, change: f64, spread: f64, noise: Noise) -> Paired {
            let before: Vec<f64> = (0..n).map(|_| (2.5 + 0.6 * self.normal()).max(0.2)).collect();
            let after = before.iter().map(|b| b + 2.5 * (change + spread * self.noise(noise))).collect();
            Paired { name: "text".into(), before, after }
        }
    }

    /// The share of changes that are published, of a target and two controls that change by so much.
    fn published(n: usize, target: f64, control: f64, noise: Noise) -> f64 {
        let mut draws = Draws(ChaCha8Rng::seed_from_u64(31));
        let n_rounds = 1000;
        let n_published = (0..n_rounds).filter(|_| {
            let target = draws.paired(n, target, 0.03, noise);
            let controls = [draws.paired(n, control, 0.015, noise), draws.paired(n, 0.0, 0.015, noise)];
            PublicationGate::default().judge(&target, &controls).expect("a gate").is_published
        });
        n_published.count() as f64 / f64::from(n_rounds)
    }

    #[test]
    fn bad_changes_are_rejected_and_good_ones_pass() {
        for noise in [Noise::Normal, Noise::Heavy, Noise::Skewed] {
            for n in [40, 64, 128] {
                let bad = [
                    // Nothing learned, as from shuffled feedback; harm; a gain bought with other text, as from adversarial feedback.
                    ("no gain", published(n, 0.0, 0.0, noise)),
                    ("harm", published(n, 0.01, 0.0, noise)),
                    ("a control beyond the bar", published(n, -0.05, 0.012, noise)),
                    ("both", published(n, 0.0, 0.03, noise)),
                ];
                for (what, share) in bad {
                    println!("{noise:?}, {n} blocks, {what}: {share} published");
                    assert!(share <= 0.05, "{what}, {n} blocks, {noise:?}: {share} published");
                }
            }
            // Where few blocks are far off, 64 are few for more than this.
            for (n, target, control) in [(64, -0.03, 0.0), (128, -0.02, 0.0), (128, -0.05, 0.002)] {
                let share = published(n, target, control, noise);
                println!("{noise:?}, {n} blocks, {target} with {control}: {share} published");
                assert!(share >= 0.9, "{target} with {control}, {n} blocks, {noise:?}: {share} published");
            }
        }
    }

    #[test]
    fn judgements_say_why() {
        let gate = PublicationGate::default();
        let steady = |name: &str, n: usize, by: f64| {
            let before: Vec<f64> = (0..n).map(|i| 2.0 + (i % 3) as f64).collect();
            let after = before.iter().map(|b| b * (1.0 + by)).collect();
            Paired { name: name.into(), before, after }
        };
        let judge = |target: &Paired, control: Paired| gate.judge(target, &[control]).expect("a gate");
        let good = judge(&steady("code", 12, -0.1), steady("prose", 12, 0.001));
        assert!(good.is_published && good.controls[0].bound < 0.01);
        assert!(good.why.starts_with("code changes by -10.00 % over 12 blocks, below -8."), "{}", good.why);
        assert_eq!(good.figures()[0].0, "code change");
        assert!((good.figures()[0].1 + 0.1).abs() < 1e-12);
        assert_eq!(good.figures().len(), 4);
        let harm = judge(&steady("code", 12, -0.1), steady("prose", 12, 0.02));
        assert!(!harm.is_published && harm.why.contains("prose changes by +2.00 %"), "{}", harm.why);
        let none = judge(&steady("code", 12, 0.0), steady("prose", 12, 0.0));
        assert!(!none.is_published && none.why.ends_with("it has to be below 0"), "{}", none.why);
        let few = judge(&steady("code", 3, -0.5), steady("prose", 12, 0.0));
        assert_eq!((few.is_published, few.why.as_str()), (false, "code has 3 blocks, at least 8 are judged"));
        let mut broken = steady("code", 12, -0.1);
        broken.after[5] = f64::NAN;
        assert!(!judge(&broken, steady("prose", 12, 0.0)).is_published);
        assert!(!judge(&steady("code", 12, -0.1), broken.clone()).is_published);
        broken.after.pop();
        assert!(gate.judge(&broken, &[]).is_err());
        assert!(PublicationGate { confidence: 0.3, ..gate }.judge(&steady("code", 12, -0.1), &[]).is_err());
        // Without a control nothing but the target counts.
        assert!(gate.judge(&steady("code", 12, -0.1), &[]).expect("a gate").is_published);
    }
}
