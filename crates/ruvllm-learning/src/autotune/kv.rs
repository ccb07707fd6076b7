//! How keys and values of a request are kept, among the ways that an operator allowed.
//!
//! Unlike draft tokens this changes answers, a little, so it is chosen only among what was allowed. A request keeps its way; what
//! its steps cost, prompt and answer, is compared with that of requests before and after it. What fewer bytes save where
//! prompts come again is counted apart ([`Reuse`]).

use ruvllm_engine::tuner::Rows;
use ruvllm_kvcache::KvPolicy;
use ruvllm_sona::policy::{BanditOptions, SafeBandit};

use super::baseline::Baseline;
use super::because;
use super::choice::{KvChoice, Who};
use super::reuse::{Prompt, Reuse};

/// Lengths of prompts, by the least tokens of each: in shorter ones there is nothing old enough to keep otherwise.
const LENGTHS: [(usize, &str); 2] = [(768, "long prompts"), (2048, "very long prompts")];
/// Steps of a window: about a request.
const WINDOW: usize = 80;
/// Fewer bits are less to read and more to compute: at worst so much slower (docs/lab/autotuning.md has nothing that is).
const EXTRA_COST_MAX: f64 = 0.2;
/// The most time that trying may lose, by the first window of a document that is tried: it lasts for a few more.
const LOSS_MAX: f64 = 0.005;
/// Windows of what was found better before the default is measured beside it: some documents with their questions, since one
/// that goes on from a cached beginning keeps its way.
const N_CHOSEN: usize = 64;

/// A request of which so many tokens are cached is kept as those are.
const BOUND_TOKENS: usize = 256;

/// Chooses how keys and values are kept.
pub(super) struct KvChooser {
    /// The default first.
    pub policies: Vec<KvPolicy>,
    pub bandit: SafeBandit,
    pub contexts: Vec<String>,
    /// Arms that an operator set for workloads.
    pub said: Vec<Option<usize>>,
    pub reasons: Vec<String>,
    baseline: Baseline,
    reuse: Reuse,
}

impl KvChooser {
    pub(super) fn new(model: &str, policies: &[KvPolicy]) -> KvChooser {
        let contexts: Vec<String> = LENGTHS.iter().map(|(_, name)| format!("{model}: {name}")).collect();
        // A request is as many steps as it is, so trying cannot end early: fewer windows decide.
        let options = BanditOptions {
            loss_max: LOSS_MAX,
            extra_cost_max: EXTRA_COST_MAX,
            n_window: WINDOW,
            n_pairs_min: 3,
            z_score: 2.0,
            n_chosen: N_CHOSEN,
            ..BanditOptions::default()
        };
        KvChooser {
            bandit: SafeBandit::new(policies.len(), options),
            policies: policies.to_vec(),
            said: vec![None; contexts.len()],
            reasons: vec![String::new(); contexts.len()],
            contexts,
            baseline: Baseline::default(),
            reuse: Reuse::new(policies.len()),
        }
    }

    /// Returns the place of a prompt's length; nothing of a short one's.
    pub(super) fn place(&self, n_prompt: usize) -> Option<usize> {
        LENGTHS.iter().rposition(|(least, _)| n_prompt >= *least)
    }

    /// Chooses for a request whose prompt is of the length at `place`; of its leading tokens as many are cached as `n_known` says of
    /// each way.
    pub(super) fn choose(&mut self, place: usize, prompt: &Prompt<'_>, n_known: &[usize]) -> KvChoice {
        let n_seen = self.reuse.read(prompt, self.baseline.prompt_row_seconds());
        let known = n_known.iter().copied().enumerate();
        let (cached, n_cached) = known.max_by_key(|&(arm, n)| (n, std::cmp::Reverse(arm))).unwrap_or_default();
        let (arm, who) = match (self.said[place], self.reuse.taken()) {
            (Some(arm), _) => (arm, Who::Operator),
            // To compute again what is cached would cost more than windows can show. Where something is missing some is computed
            // in any case.
            (None, taken) if n_cached >= BOUND_TOKENS && (taken.is_none() || n_cached + BOUND_TOKENS > n_seen) => {
                (cached, Who::Bound)
            }
            (None, Some((arm, share))) => (arm, Who::Reuse((100.0 * share).round() as u8)),
            (None, None) => {
                // A request seldom begins where a window ends.
                self.bandit.end_window(&self.contexts[place]);
                let (arm, why) = self.bandit.choose(&self.contexts[place], |_| true);
                (arm, Who::Measured(why))
            }
        };
        KvChoice { context: place as u8, arm: arm as u8, who }
    }

    /// Takes note of a step of requests that have this choice in common.
    pub(super) fn learn(&mut self, choice: KvChoice, seconds: f64, rows: Rows) {
        self.reuse.spend(seconds);
        if choice.arm == 0 {
            self.baseline.follow(seconds, rows);
        }
        let baseline = self.baseline.seconds(rows).filter(|&baseline| baseline > 0.0);
        if let (true, Some(baseline)) = (choice.who.is_measured(), baseline) {
            let context = &self.contexts[usize::from(choice.context)];
            self.bandit.learn(context, usize::from(choice.arm), seconds, baseline);
        }
    }

    /// Returns in words what was chosen, and why.
    pub(super) fn describe(&self, choice: KvChoice) -> String {
        let place = usize::from(choice.context);
        let policy = self.policies[usize::from(choice.arm)];
        let (who, why) = match choice.who {
            Who::Operator => ("operator".to_owned(), None),
            Who::Measured(why) => (why.as_str().to_owned(), Some(why)),
            Who::Bound => ("as its cached beginning".to_owned(), None),
            Who::Reuse(share) => {
                (format!("learned: prompts that come again stay cached, which saves {share} % of the time"), None)
            }
        };
        let because = because(&who, why, &self.reasons[place], &self.contexts[place]);
        format!("keys and values {policy} ({because})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of a step at a depth where a pass over `f16` takes 10 ms, and over `tiered` so much of that.
    fn seconds(rows: Rows, share: f64) -> f64 {
        0.001 * rows.n_prompt as f64 + [0.0, 0.010 * share * (1.0 + 0.1 * rows.n_answer as f64)][rows.n_answer.min(1)]
    }

    /// Chooses for a prompt of which nothing is known, with room for any number of such.
    fn choose(kv: &mut KvChooser) -> KvChoice {
        let place = kv.place(3000).expect("a long prompt");
        let prompt = Prompt { tokens: &[0; 3000], owner: 0, room_bytes: usize::MAX, bytes: &[2, 1] };
        kv.choose(place, &prompt, &[0, 0])
    }

    /// Plays documents: a prompt in pieces, an answer of copied spans, and one that is written token by token. Returns what
    /// is kept how in the end.
    fn play(n_documents: usize, share: f64) -> (KvPolicy, Vec<f64>) {
        let mut kv = KvChooser::new("m", &[KvPolicy::F16, KvPolicy::TIERED]);
        let mut ratios = Vec::new();
        for _ in 0..n_documents {
            let choice = choose(&mut kv);
            let share = if choice.arm == 0 { 1.0 } else { share };
            let steps = [(Rows { n_prompt: 512, n_answer: 0 }, 6), (Rows { n_prompt: 0, n_answer: 9 }, 40)];
            for (rows, n) in steps.into_iter().chain([(Rows { n_prompt: 0, n_answer: 1 }, 500)]) {
                (0..n).for_each(|_| kv.learn(choice, seconds(rows, share), rows));
            }
            ratios.extend(kv.bandit.take_changes().into_iter().map(|change| change.measured.ratio));
        }
        let last = choose(&mut kv);
        (kv.policies[usize::from(last.arm)], ratios)
    }

    #[test]
    fn what_is_faster_is_found_whatever_steps_a_window_has() {
        let (policy, ratios) = play(12, 0.8);
        assert_eq!(policy, KvPolicy::TIERED);
        // Prompts take a third of the time, and as long as before.
        assert!(ratios.len() == 1 && (0.85..0.88).contains(&ratios[0]), "{ratios:?}");
        assert_eq!(play(30, 1.1), (KvPolicy::F16, Vec::new()));
        assert_eq!(play(30, 1.0), (KvPolicy::F16, Vec::new()));
    }

    #[test]
    fn short_prompts_are_the_defaults() {
        assert!(KvChooser::new("m", &[KvPolicy::F16, KvPolicy::TIERED]).place(500).is_none());
    }
}
