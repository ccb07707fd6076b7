//! A choice among ways to do the same, by what each was measured to cost, that is never much worse than the default.
//!
//! ```text
//! default   ▇▇▇▇▇▇▇▇   ▇▇   ▇▇   ▇▇            ▇▇            ▇▇      windows of some steps
//! other              ▇▇   ▇▇   ▇▇   ▇▇▇▇▇▇▇▇▇▇▇   ▇▇▇▇▇▇▇▇▇▇▇
//!           measured │ tried in turns │ chosen, the default measured beside
//! ```
//! Each workload (context) is judged by itself. An arm's cost is measured in *windows*: time over tokens of some steps. A
//! window of another arm stands between two of the default, and what counts is the logarithm of its cost over theirs: what
//! the machine and the requests do at that time falls out. An arm is chosen when it is better, at [`BanditOptions::z_score`], by more than
//! [`BanditOptions::gain_min`], and given up when that is as surely wrong.
//!
//! Trying is bounded as in conservative bandits (Wu et al. 2016, arXiv:1602.04282): a window of another arm begins only if
//! what such windows have lost so far, and what this one may lose, stays under [`BanditOptions::loss_max`] of all time so
//! far. Departing from them, what one arm gained is no credit for trying another: the bound holds for the losses alone. Of one
//! arm windows that cost less count against those that cost more, or noise alone would use the bound up. Beside an arm
//! that is chosen already, what trying loses is counted from what that one costs, the default's windows between too.

mod pairs;

pub use pairs::Measured;

use std::collections::HashMap;

use pairs::{Pairs, RATIO_MAX};

/// Pairs of windows after which an arm that costs more than the default, at the z-score, is given up.
const N_PAIRS_BAD: usize = 3;
/// What counts of a window's gain against losses: less than all of it, or an interrupted default would pay for a bad arm.
const CREDIT: f64 = 0.5;
/// Contexts that are kept apart; more of them share the default.
const N_CONTEXTS_MAX: usize = 4096;

/// Options of a [`SafeBandit`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BanditOptions {
    /// The most time that trying may lose, as a share of all time.
    pub loss_max: f64,
    /// Cost that a window of another arm may add to the default's, as a ratio, for all that is known before it is measured.
    pub extra_cost_max: f64,
    /// An arm that gains less is not worth it.
    pub gain_min: f64,
    /// Steps of a window.
    pub n_window: usize,
    /// Pairs of windows before anything is decided.
    pub n_pairs_min: usize,
    /// Pairs of windows after which an arm that was not better at the z-score is given up.
    pub n_pairs_max: usize,
    /// Standard errors that a decision needs.
    pub z_score: f64,
    /// While an arm is chosen: its windows before the default is measured again.
    pub n_chosen: usize,
    /// Windows of the default before an arm that was given up is tried again; twice as many each time.
    pub n_rest: usize,
}

impl Default for BanditOptions {
    /// Losses under 1 %, arms that may cost 60 % more, gains from 3 % on, windows of 12 steps, 5 to 20 pairs, 2.5 standard errors.
    fn default() -> BanditOptions {
        BanditOptions {
            loss_max: 0.01,
            extra_cost_max: 0.6,
            gain_min: 0.03,
            n_window: 12,
            n_pairs_min: 5,
            n_pairs_max: 20,
            z_score: 2.5,
            n_chosen: 10,
            n_rest: 200,
        }
    }
}

/// Why an arm is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// Nothing is known to be better.
    Default,
    /// To find out what it costs.
    Trying,
    /// It was measured to be better.
    Learned,
    /// The default beside a better arm, to know that it still is one.
    Recheck,
}

impl Why {
    /// Returns it as a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Default => "default",
            Why::Trying => "trying",
            Why::Learned => "learned",
            Why::Recheck => "measured beside",
        }
    }
}

/// A change of what is chosen in a context.
#[derive(Clone, Debug, PartialEq)]
pub struct ArmChange {
    /// The workload.
    pub context: String,
    /// The arm from now on; 0 is the default.
    pub arm: usize,
    /// Measured cost; of the default, what the arm that was given up cost.
    pub measured: Measured,
}

/// An arm that is not the default.
#[derive(Clone, Copy, Debug, Default)]
struct Arm {
    pairs: Pairs,
    /// Windows of the default to go before it is tried again.
    resting: usize,
    /// How many the next time.
    rest: usize,
    /// Seconds that trying it lost since it was last judged; below 0 they were gained.
    lost: f64,
}

impl Arm {
    /// Takes note of what trying it lost, or gained if that is negative, and returns by how much its losses grew.
    fn lose(&mut self, seconds: f64) -> f64 {
        let before = self.lost.max(0.0);
        self.lost += if seconds < 0.0 { CREDIT * seconds } else { seconds };
        self.lost.max(0.0) - before
    }
}

/// Steps of one arm.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    arm: usize,
    n_steps: usize,
    seconds: f64,
    tokens: f64,
}

impl Window {
    fn cost(&self) -> f64 {
        self.seconds / self.tokens
    }

    /// Returns a later window of the same arm with so much of this one.
    fn and(self, later: Window, share: f64) -> Window {
        let (seconds, tokens) = (share * self.seconds + later.seconds, share * self.tokens + later.tokens);
        Window { seconds, tokens, ..later }
    }
}

/// A workload.
#[derive(Debug)]
struct Context {
    arms: Vec<Arm>,
    /// What is played when nothing is measured.
    chosen: usize,
    window: Window,
    /// The default's last window, if it had one, with some of those before it.
    default: Option<Window>,
    /// What its last window took.
    window_seconds: f64,
    /// It was the last of all.
    is_fresh: bool,
    /// A window of another arm that waits for the default's next.
    between: Option<(Window, f64)>,
    /// Windows of the chosen arm since the default was measured.
    n_since: usize,
}

/// Time of all contexts together.
#[derive(Clone, Copy, Debug)]
struct Spent {
    /// Of all steps.
    seconds: f64,
    /// Lost by trying.
    lost: f64,
}

/// Chooses arm by arm, context by context.
#[derive(Debug)]
pub struct SafeBandit {
    n_arms: usize,
    options: BanditOptions,
    contexts: HashMap<String, Context>,
    /// Of all steps.
    seconds: f64,
    /// Lost by trying.
    lost: f64,
    changes: Vec<ArmChange>,
}

impl SafeBandit {
    /// A choice among `n_arms`, of which 0 is the default, that has measured nothing.
    ///
    /// # Panics
    /// `n_arms` is 0.
    pub fn new(n_arms: usize, options: BanditOptions) -> SafeBandit {
        assert!(n_arms > 0, "the default is an arm");
        SafeBandit { n_arms, options, contexts: HashMap::new(), seconds: 0.0, lost: 0.0, changes: Vec::new() }
    }

    /// Begins with an arm that an earlier process has found better in a context. It counts as chosen, and the default is
    /// measured beside it.
    pub fn begin_with(&mut self, context: &str, arm: usize) {
        if arm < self.n_arms
            && let Some(context) = self.context(context)
        {
            context.chosen = arm;
        }
    }

    /// Returns the arm to play in the next step of a context, and why. `may` says which arms can be played now.
    pub fn choose(&mut self, name: &str, may: impl Fn(usize) -> bool) -> (usize, Why) {
        let (options, spent) = (self.options, Spent { seconds: self.seconds, lost: self.lost });
        let Some(context) = self.context(name) else { return (0, Why::Default) };
        if context.window.n_steps == 0 {
            context.window.arm = context.next(&options, spent, &may);
        } else if !may(context.window.arm) {
            // What is measured of it counts no more.
            context.window = Window::default();
        }
        let arm = context.window.arm;
        let why = match (arm, context.chosen) {
            (0, 0) => Why::Default,
            (0, _) => Why::Recheck,
            (arm, chosen) if arm == chosen => Why::Learned,
            _ => Why::Trying,
        };
        (arm, why)
    }

    /// Takes note of what a step of a context took, and how many tokens came of it.
    pub fn learn(&mut self, name: &str, arm: usize, seconds: f64, tokens: f64) {
        self.seconds += seconds;
        let options = self.options;
        let Some(context) = self.context(name) else { return };
        let window = &mut context.window;
        if window.arm != arm {
            *window = Window { arm, ..Window::default() };
        }
        window.n_steps += 1;
        window.seconds += seconds;
        window.tokens += tokens;
        // One that clearly costs too much need not go on.
        let is_costly = context
            .default
            .is_some_and(|other| window.seconds > (1.0 + options.extra_cost_max) * other.cost() * window.tokens);
        let ends_early = arm != 0 && is_costly && window.n_steps >= options.n_window.div_ceil(3);
        if window.n_steps >= options.n_window || ends_early {
            self.close(name);
        }
    }

    /// Ends the window of a context here if it has half of its steps, so that a choice for longer than a step can be another
    /// one from now on.
    pub fn end_window(&mut self, name: &str) {
        let n_least = self.options.n_window.div_ceil(2);
        if self.context(name).is_some_and(|context| context.window.n_steps >= n_least) {
            self.close(name);
        }
    }

    fn close(&mut self, name: &str) {
        let options = self.options;
        let Some(context) = self.context(name) else { return };
        let window = std::mem::take(&mut context.window);
        if window.tokens > 0.0 {
            let (lost, change) = context.close(&options, window);
            self.lost += lost;
            self.changes.extend(change.map(|(arm, measured)| ArmChange { context: name.to_owned(), arm, measured }));
        }
    }

    /// Takes out what changed since the last time.
    pub fn take_changes(&mut self) -> Vec<ArmChange> {
        std::mem::take(&mut self.changes)
    }

    /// Returns what an arm was measured to cost in a context; nothing is known of the default beside itself.
    pub fn measured(&self, context: &str, arm: usize) -> Measured {
        let arm = self.contexts.get(context).and_then(|context| context.arms.get(arm.checked_sub(1)?));
        arm.map_or(Measured::default(), |arm| arm.pairs.measured())
    }

    /// Returns what trying has lost, as a share of all time.
    pub fn loss(&self) -> f64 {
        if self.seconds > 0.0 { self.lost / self.seconds } else { 0.0 }
    }

    /// Returns the state of a context; none if there are too many.
    fn context(&mut self, name: &str) -> Option<&mut Context> {
        if !self.contexts.contains_key(name) {
            if self.contexts.len() >= N_CONTEXTS_MAX {
                return None;
            }
            let context = Context {
                arms: vec![Arm { rest: self.options.n_rest, ..Arm::default() }; self.n_arms - 1],
                chosen: 0,
                window: Window::default(),
                default: None,
                window_seconds: 0.0,
                is_fresh: false,
                between: None,
                n_since: 0,
            };
            self.contexts.insert(name.to_owned(), context);
        }
        self.contexts.get_mut(name)
    }
}

impl Context {
    /// Returns the arm of the next window.
    fn next(&mut self, options: &BanditOptions, spent: Spent, may: &dyn Fn(usize) -> bool) -> usize {
        let chosen = if may(self.chosen) { self.chosen } else { 0 };
        if self.default.is_none() || self.between.is_some() || (chosen != 0 && self.n_since >= self.n_chosen(options)) {
            return 0;
        }
        // In order: a greater step is tried once the one before it is judged.
        let is_due = |arm: usize| arm != self.chosen && may(arm) && self.arms[arm - 1].resting == 0;
        if let Some(arm) = (1..=self.arms.len()).find(|&arm| self.is_fresh && is_due(arm)) {
            let pairs = &self.arms[arm - 1].pairs;
            let extra_cost = match pairs.n_seen {
                0 | 1 => options.extra_cost_max,
                _ => (pairs.mean() + options.z_score * pairs.error())
                    .min(RATIO_MAX)
                    .exp_m1()
                    .clamp(0.0, options.extra_cost_max),
            };
            // The other arm's window, and the default's behind it.
            let may_lose = extra_cost + 2.0 * (1.0 - self.share());
            if spent.lost + may_lose * self.window_seconds <= options.loss_max * spent.seconds {
                return arm;
            }
        }
        chosen
    }

    /// Returns what is chosen costs, as a share of the default.
    fn share(&self) -> f64 {
        match self.chosen {
            0 => 1.0,
            chosen => self.arms[chosen - 1].pairs.mean().min(0.0).exp(),
        }
    }

    /// Returns after how many windows of the chosen arm the default is measured: at once while little is known of it.
    fn n_chosen(&self, options: &BanditOptions) -> usize {
        let n_seen = self.arms[self.chosen - 1].pairs.n_seen;
        if n_seen < options.n_pairs_min { 1 } else { options.n_chosen }
    }

    /// Takes note of a whole window. Returns what it lost, and what is chosen from now on if that changed.
    fn close(&mut self, options: &BanditOptions, window: Window) -> (f64, Option<(usize, Measured)>) {
        let share = self.share();
        if window.arm != 0 {
            let before = self.default.map_or(window.cost(), |default| default.cost());
            let is_chosen = window.arm == self.chosen;
            let lost = window.seconds - share * before * window.tokens;
            let lost = if is_chosen { 0.0 } else { self.arms[window.arm - 1].lose(lost) };
            self.is_fresh = false;
            self.n_since += usize::from(is_chosen);
            if !is_chosen || self.n_since >= self.n_chosen(options) {
                // Where an arm goes on for longer than its window, all of it counts.
                self.between = Some(match self.between {
                    Some((earlier, before)) if earlier.arm == window.arm => (earlier.and(window, 1.0), before),
                    _ => (window, before),
                });
            }
            return (lost, None);
        }
        let after = window.cost();
        self.window_seconds = window.seconds;
        let default = match self.default {
            Some(earlier) if self.is_fresh => earlier.and(window, 0.5),
            _ => window,
        };
        (self.default, self.is_fresh, self.n_since) = (Some(default), true, 0);
        self.arms.iter_mut().for_each(|arm| arm.resting = arm.resting.saturating_sub(1));
        let Some((tried, before)) = self.between.take() else { return (0.0, None) };
        let is_chosen = tried.arm == self.chosen;
        let arm = &mut self.arms[tried.arm - 1];
        let lost = if is_chosen { 0.0 } else { arm.lose((1.0 - share) * window.seconds) };
        arm.pairs.add((tried.cost() / (0.5 * (before + after))).ln(), is_chosen);
        (lost, self.judge(options, tried.arm))
    }

    /// Decides what the pairs of an arm say.
    fn judge(&mut self, options: &BanditOptions, arm: usize) -> Option<(usize, Measured)> {
        let pairs = self.arms[arm - 1].pairs;
        let (mean, error) = (pairs.mean(), options.z_score * pairs.error());
        let goal = (1.0 - options.gain_min).ln();
        let measured = pairs.measured();
        if arm == self.chosen {
            // What was better at the z-score stays until it is more likely not to be worth it.
            let is_better = mean < 0.5 * goal || pairs.n_seen < 2;
            return (!is_better).then(|| {
                self.give_up(arm);
                self.chosen = 0;
                (0, measured)
            });
        }
        if pairs.n_seen < options.n_pairs_min {
            if pairs.n_seen >= N_PAIRS_BAD && mean > error {
                self.give_up(arm);
            }
            return None;
        }
        // It has to beat what is chosen, not the default alone.
        let own = match self.chosen {
            0 => 0.0,
            chosen => self.arms[chosen - 1].pairs.mean().min(0.0),
        };
        if mean + error < goal.min(own) || (mean + error < goal && mean < own + goal) {
            let last = self.chosen;
            (self.chosen, self.arms[arm - 1].lost) = (arm, 0.0);
            if last != 0 {
                self.give_up(last);
            }
            return Some((arm, measured));
        }
        if mean - error > goal.min(own) || pairs.n_seen >= options.n_pairs_max {
            self.give_up(arm);
        }
        None
    }

    /// Lets an arm rest, and forgets what it was measured to cost: the next time may be another.
    fn give_up(&mut self, arm: usize) {
        let arm = &mut self.arms[arm - 1];
        arm.resting = arm.rest;
        arm.rest = arm.rest.saturating_mul(2);
        (arm.pairs, arm.lost) = (Pairs::default(), 0.0);
    }
}

#[cfg(test)]
mod tests;
