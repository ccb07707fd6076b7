//! Elastic weight consolidation: values that mattered for what was learned before are held more firmly.
//!
//! ```text
//! importance:  F[i] ≈ mean of (∂ -log p / ∂x[i])²         over what was learned: the diagonal of Fisher's information
//! penalty:     λ/2 · Σ F[i]·(x[i] - x*[i])²               gradient λ·F[i]·(x[i] - x*[i])
//! ```
//! Kirkpatrick et al. 2017 (arXiv:1612.00796) keep `F` and `x*` of every task. The sum of their penalties is one of the same form, up to
//! a constant: `F = Σ Fₜ`, `x* = Σ Fₜ·xₜ / F`, so two vectors are enough here too. Schwarz et al. 2018 (arXiv:1805.06370, online EWC)
//! let old importance fade, `F ← γ·F + Fₜ`, and hold values where they are last. Chaudhry et al. 2018 (arXiv:1801.10112, EWC++) have a
//! running mean, `F ← α·Fₜ + (1 - α)·F`, moved while a task is learned, so it stays of one size however many there were.

use crate::codec::{Reader, Writer};
use crate::error::{SonaError, SonaErrorKind};

/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvlewc1";
/// The most values a snapshot is read of.
const N_VALUES_MAX: usize = 1 << 30;

/// Rule by which importance of one task joins that of those before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Consolidation {
    /// All tasks count for ever.
    Ewc,
    /// Old importance fades.
    Online {
        /// How much of it stays with each task: γ, 0 to 1.
        keep: f32,
    },
    /// A running mean.
    PlusPlus {
        /// How much the newest task counts: α, above 0, up to 1.
        newest: f32,
    },
}

/// Importance and place of values.
#[derive(Clone, Debug, PartialEq)]
pub struct Ewc {
    rule: Consolidation,
    /// Importance: `[n]`.
    fisher: Vec<f32>,
    /// Where values are held: `[n]`.
    anchor: Vec<f32>,
    /// Sums of squares of the gradients of the task under way: `[n]`.
    squares: Vec<f64>,
    n_gradients: u64,
    n_tasks: u64,
}

impl Ewc {
    /// Begins with `n` values that are free.
    ///
    /// # Errors
    /// The rule's number is out of its range.
    pub fn new(n: usize, rule: Consolidation) -> Result<Ewc, SonaError> {
        let fits = match rule {
            Consolidation::Ewc => true,
            Consolidation::Online { keep } => (0.0..=1.0).contains(&keep),
            Consolidation::PlusPlus { newest } => newest > 0.0 && newest <= 1.0,
        };
        if !fits {
            let line = format!("a consolidation of {rule:?}; its number is from 0 to 1");
            return Err(SonaError::new(SonaErrorKind::Value, line));
        }
        let (fisher, anchor, squares) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
        Ok(Ewc { rule, fisher, anchor, squares, n_gradients: 0, n_tasks: 0 })
    }

    /// Returns how many values there are.
    pub fn len(&self) -> usize {
        self.fisher.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fisher.is_empty()
    }

    /// Returns how many tasks were consolidated.
    pub fn n_tasks(&self) -> u64 {
        self.n_tasks
    }

    /// Returns the importance of all values.
    pub fn fisher(&self) -> &[f32] {
        &self.fisher
    }

    /// Returns where values are held.
    pub fn anchor(&self) -> &[f32] {
        &self.anchor
    }

    /// Ingests the gradient of one example of the task under way, in pieces that follow one another. One with what is no finite
    /// number is passed over.
    ///
    /// # Panics
    /// If the pieces have another length in all.
    pub fn observe<'a>(&mut self, gradient: impl Iterator<Item = &'a [f32]> + Clone) {
        let n: usize = gradient.clone().map(<[f32]>::len).sum();
        assert_eq!(n, self.len(), "a gradient of {n} values");
        if gradient.clone().flatten().any(|g| !g.is_finite()) {
            return;
        }
        let squares = gradient.flatten().map(|&g| f64::from(g) * f64::from(g));
        self.squares.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
        self.n_gradients += 1;
    }

    /// Ends a task: its importance joins that of those before, and values are held where they are now. A task without gradients
    /// changes nothing.
    ///
    /// # Panics
    /// If the pieces have another length in all.
    pub fn consolidate<'a>(&mut self, values: impl Iterator<Item = &'a [f32]> + Clone) {
        let n: usize = values.clone().map(<[f32]>::len).sum();
        assert_eq!(n, self.len(), "{n} values");
        if self.n_gradients == 0 {
            return;
        }
        let by = 1.0 / self.n_gradients as f64;
        let all = self.fisher.iter_mut().zip(&mut self.anchor).zip(&mut self.squares).zip(values.flatten());
        for (((fisher, anchor), square), &value) in all {
            let new = (*square * by) as f32;
            *square = 0.0;
            match self.rule {
                Consolidation::Ewc => {
                    let sum = *fisher + new;
                    *anchor = if sum > 0.0 { (*fisher * *anchor + new * value) / sum } else { value };
                    *fisher = sum;
                }
                Consolidation::Online { keep } => (*fisher, *anchor) = (keep * *fisher + new, value),
                // The first has nothing to be averaged with.
                Consolidation::PlusPlus { .. } if self.n_tasks == 0 => (*fisher, *anchor) = (new, value),
                Consolidation::PlusPlus { newest } => {
                    (*fisher, *anchor) = (newest * new + (1.0 - newest) * *fisher, value);
                }
            }
        }
        (self.n_gradients, self.n_tasks) = (0, self.n_tasks + 1);
    }

    /// Returns the penalty of values for having left their places: `strength/2 · Σ F·(x - x*)²`.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn penalty<'a>(&self, values: impl Iterator<Item = &'a [f32]>, strength: f32) -> f64 {
        let mut values = values.flatten();
        let held = self.fisher.iter().zip(&self.anchor);
        let sum: f64 = held.map(|(f, x)| f64::from(*f) * f64::from(next(&mut values) - x).powi(2)).sum();
        0.5 * f64::from(strength) * sum
    }

    /// Adds the penalty's gradient, `strength · F·(x - x*)`.
    ///
    /// # Panics
    /// If the pieces have other lengths.
    pub fn add_gradient<'a>(
        &self,
        values: impl Iterator<Item = &'a [f32]>,
        strength: f32,
        gradient: impl Iterator<Item = &'a mut [f32]>,
    ) {
        let mut values = values.flatten();
        let mut gradient = gradient.flatten();
        for (f, x) in self.fisher.iter().zip(&self.anchor) {
            let g = gradient.next().expect("a gradient for every value");
            *g += strength * f * (next(&mut values) - x);
        }
    }

    /// Draws values to their places, the more the more they matter: what minimises their distance plus the penalty, `x ← (x +
    /// λ·F·x*) / (1 + λ·F)`. Never goes beyond the place, however strong.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn draw<'a>(&self, values: impl Iterator<Item = &'a mut [f32]>, strength: f32) {
        let mut values = values.flatten();
        for (f, anchor) in self.fisher.iter().zip(&self.anchor) {
            let x = values.next().expect("as many values as are held");
            *x = (*x + strength * f * anchor) / (1.0 + strength * f);
        }
    }

    /// Returns everything as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut to = Writer::of(MAGIC);
        match self.rule {
            Consolidation::Ewc => to.u8(0).f32(0.0),
            Consolidation::Online { keep } => to.u8(1).f32(keep),
            Consolidation::PlusPlus { newest } => to.u8(2).f32(newest),
        };
        to.u64(self.len() as u64).u64(self.n_gradients).u64(self.n_tasks);
        to.plain_f32s(&self.fisher).plain_f32s(&self.anchor);
        self.squares.iter().for_each(|x| _ = to.f64(*x));
        to.take()
    }

    /// Reads what [`Ewc::snapshot`] gave.
    ///
    /// # Errors
    /// The bytes are damaged, or of another version.
    pub fn restore(bytes: &[u8]) -> Result<Ewc, SonaError> {
        let mut from = Reader::of(bytes, MAGIC, "consolidation")?;
        let rule = match (from.u8()?, from.f32()?) {
            (0, _) => Consolidation::Ewc,
            (1, keep) => Consolidation::Online { keep },
            (2, newest) => Consolidation::PlusPlus { newest },
            (kind, _) => return Err(from.invalid(format_args!("there is no rule {kind}"))),
        };
        let n = from.number(N_VALUES_MAX.min(bytes.len() / 16))?;
        let mut ewc = Ewc::new(n, rule)?;
        (ewc.n_gradients, ewc.n_tasks) = (from.u64()?, from.u64()?);
        (ewc.fisher, ewc.anchor) = (from.plain_f32s(n)?, from.plain_f32s(n)?);
        for square in &mut ewc.squares {
            *square = from.f64()?;
        }
        if ewc.fisher.iter().any(|&x| x < 0.0) || ewc.squares.iter().any(|&x| x < 0.0) {
            return Err(from.invalid("a negative square"));
        }
        from.end()?;
        Ok(ewc)
    }
}

fn next<'a>(values: &mut impl Iterator<Item = &'a f32>) -> f32 {
    *values.next().expect("as many values as are held")
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use proptest::prelude::*;

    use super::*;

    fn one(values: &[f32]) -> impl Iterator<Item = &[f32]> + Clone {
        once(values)
    }

    const RULES: [Consolidation; 3] =
        [Consolidation::Ewc, Consolidation::Online { keep: 0.9 }, Consolidation::PlusPlus { newest: 0.5 }];

    /// Tasks are quadratic losses `Σ c·(x - x*)²/2` of two values: the first has a loss that the second does not care about.
    #[test]
    fn what_mattered_is_held_and_the_rest_is_free() {
        for rule in RULES {
            let mut ewc = Ewc::new(2, rule).expect("a rule");
            let mut x = [3.0f32, 0.0];
            // The first task asks for 3 at the first value, sharply, and does not ask about the second.
            (0..4).for_each(|i| ewc.observe(one(&[if i % 2 == 0 { 2.0 } else { -2.0 }, 0.0])));
            ewc.consolidate(one(&x));
            // The second asks for 0 and 5.
            for _ in 0..2000 {
                let mut g = [x[0], x[1] - 5.0];
                ewc.add_gradient(one(&x), 10.0, once(&mut g[..]));
                x.iter_mut().zip(g).for_each(|(x, g)| *x -= 0.01 * g);
            }
            // Minimum of x²/2 + 10·4·(x - 3)²/2.
            assert!((x[0] - 120.0 / 41.0).abs() < 1e-3 && (x[1] - 5.0).abs() < 1e-3, "{rule:?}: {x:?}");
        }
    }

    #[test]
    fn rules_are_those_of_the_papers() {
        let tasks = [(2.0f32, 1.0f32), (4.0, -1.0), (1.0, 3.0)];
        let run = |rule| {
            let mut ewc = Ewc::new(1, rule).expect("a rule");
            for (gradient, value) in tasks {
                ewc.observe(one(&[gradient]));
                ewc.observe(one(&[f32::NAN]));
                ewc.consolidate(one(&[value]));
            }
            ewc.consolidate(one(&[99.0]));
            (ewc.fisher()[0], ewc.anchor()[0])
        };
        assert_eq!(run(Consolidation::Ewc), (21.0, (4.0 - 16.0 + 3.0) / 21.0));
        assert_eq!(run(Consolidation::Online { keep: 0.5 }), (0.5 * (0.5 * 4.0 + 16.0) + 1.0, 3.0));
        assert_eq!(run(Consolidation::PlusPlus { newest: 0.25 }), (0.25 + 0.75 * (0.25 * 16.0 + 0.75 * 4.0), 3.0));
        assert!(Ewc::new(1, Consolidation::PlusPlus { newest: 0.0 }).is_err());
        assert!(Ewc::new(1, Consolidation::Online { keep: f32::NAN }).is_err());
    }

    proptest! {
        /// The penalty of all tasks is one of the same form up to a constant, its gradient is its slope, and drawing goes to
        /// the minimum without passing it.
        #[test]
        fn penalties_add_up(
            tasks in prop::collection::vec(prop::collection::vec((0.1f32..2.0, -3.0f32..3.0), 3), 1..5),
            x in prop::collection::vec(-3.0f32..3.0, 3),
            y in prop::collection::vec(-3.0f32..3.0, 3),
        ) {
            let mut ewc = Ewc::new(3, Consolidation::Ewc).expect("a rule");
            for task in &tasks {
                let (gradient, values): (Vec<f32>, Vec<f32>) = task.iter().copied().unzip();
                ewc.observe(gradient.chunks(2));
                ewc.consolidate(values.chunks(1));
            }
            let sum = |x: &[f32]| -> f64 {
                let one = |(g, at): &(f32, f32), x: f32| 0.5 * 3.0 * f64::from(g * g) * f64::from(x - at).powi(2);
                tasks.iter().flat_map(|task| task.iter().zip(x).map(|(task, &x)| one(task, x))).sum()
            };
            let penalty = |x: &[f32]| ewc.penalty(x.chunks(2), 3.0);
            prop_assert!((sum(&x) - sum(&y) - (penalty(&x) - penalty(&y))).abs() < 1e-3 * (1.0 + sum(&x) + sum(&y)));
            let mut gradient = [1.0; 3];
            ewc.add_gradient(one(&x), 3.0, gradient.chunks_mut(1));
            for (i, found) in gradient.into_iter().enumerate() {
                let at = |by: f32| penalty(&(0..3).map(|j| x[j] + if i == j { by } else { 0.0 }).collect::<Vec<_>>());
                let slope = (at(0.01) - at(-0.01)) / 0.02;
                prop_assert!((f64::from(found) - 1.0 - slope).abs() < 1e-2 * (1.0 + slope.abs()));
            }
            let mut drawn = x.clone();
            ewc.draw(once(&mut drawn[..]), 1e6);
            prop_assert!(drawn.iter().zip(ewc.anchor()).all(|(x, at)| (x - at).abs() < 1e-2));
            prop_assert_eq!(Ewc::restore(&ewc.snapshot()).expect("its own bytes"), ewc);
        }
    }

    #[test]
    fn damaged_snapshots_are_refused() {
        let mut ewc = Ewc::new(4, RULES[2]).expect("a rule");
        ewc.observe(one(&[1.0, 2.0, 3.0, 4.0]));
        let bytes = ewc.snapshot();
        (0..bytes.len()).for_each(|n| assert!(Ewc::restore(&bytes[..n]).is_err(), "cut at {n}"));
        let mut huge = bytes;
        huge[13..21].fill(0xff);
        assert!(Ewc::restore(&huge).is_err());
    }
}
