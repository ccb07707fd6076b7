//! How keys and values of a request are kept, among the ways that an operator allowed.
//!
//! Unlike guesses this changes answers, a little, so it is chosen only among what was allowed. A request keeps its way; what
//! its steps cost, prompt and answer, is compared with that of requests before and after it.

use super::because;
use ruvllm_kvcache::KvPolicy;
use ruvllm_sona::policy::bandit::Why;
use ruvllm_sona::policy::{BanditOptions, SafeBandit};

/// Lengths of prompts, by the least tokens of each: in shorter ones there is nothing old enough to keep otherwise.
const LENGTHS: [(usize, &str); 2] = [(768, "long prompts"), (2048, "very long prompts")];
/// Steps of a window: about a request.
const WINDOW: usize = 80;
/// Fewer bits are less to read and more to compute: at worst so much slower (ADR 37 has nothing that is).
const DEAR_MAX: f64 = 0.2;
/// Windows of what was found better before the default is measured beside it: some documents with their questions, since one
/// that goes on from a cached beginning keeps its way.
const N_CHOSEN: usize = 64;
/// The work of a step in passes of one row: what further rows add up to the fifth, and behind it (the figures of ADR 21). It
/// only makes steps of other sizes comparable.
const ROW: f64 = 0.1;
const FAR_ROW: f64 = 0.22;
/// What a row of a prompt is worth in such passes before that is measured, and the weight of a step in what is.
const PROMPT_ROW: f64 = 0.2;
const WEIGHT: f64 = 0.1;

/// What was chosen for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvChoice {
    /// Place of the workload.
    pub context: u8,
    pub arm: u8,
    /// `None`: the operator says so.
    pub why: Option<Why>,
    /// What is cached of its beginning is kept so.
    pub is_bound: bool,
}

/// Rows of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Of prompts.
    pub n_prompt: usize,
    /// Of answers, guesses among them.
    pub n_answer: usize,
}

impl Rows {
    /// Returns the work of answers in passes of one row.
    fn passes(self) -> f64 {
        let more = self.n_answer.saturating_sub(1);
        match self.n_answer {
            0 => 0.0,
            _ => 1.0 + ROW * more.min(4) as f64 + FAR_ROW * more.saturating_sub(4) as f64,
        }
    }
}

/// Chooses how keys and values are kept.
pub(super) struct KvChooser {
    /// The default first.
    pub policies: Vec<KvPolicy>,
    pub bandit: SafeBandit,
    pub contexts: Vec<String>,
    /// What an operator says of workloads: arms.
    pub said: Vec<Option<usize>>,
    pub reasons: Vec<String>,
    /// Seconds of a pass and of a row of a prompt, as the default has them.
    pass_s: Option<f64>,
    prompt_row_s: Option<f64>,
}

impl KvChooser {
    pub(super) fn new(model: &str, policies: &[KvPolicy]) -> KvChooser {
        let contexts: Vec<String> = LENGTHS.iter().map(|(_, name)| format!("{model}: {name}")).collect();
        // A request is as many steps as it is, so trying cannot end early: fewer windows decide.
        let options = BanditOptions {
            dear_max: DEAR_MAX,
            n_window: WINDOW,
            n_pairs_min: 3,
            sure: 2.0,
            n_chosen: N_CHOSEN,
            ..BanditOptions::default()
        };
        KvChooser {
            bandit: SafeBandit::new(policies.len(), options),
            policies: policies.to_vec(),
            said: vec![None; contexts.len()],
            reasons: vec![String::new(); contexts.len()],
            contexts,
            pass_s: None,
            prompt_row_s: None,
        }
    }

    /// Chooses for a request; nothing for a short one.
    pub(super) fn choose(&mut self, n_prompt: usize) -> Option<KvChoice> {
        let place = LENGTHS.iter().rposition(|(least, _)| n_prompt >= *least)?;
        if let Some(arm) = self.said[place] {
            return Some(KvChoice { context: place as u8, arm: arm as u8, why: None, is_bound: false });
        }
        let (arm, why) = self.bandit.choose(&self.contexts[place], |_| true);
        Some(KvChoice { context: place as u8, arm: arm as u8, why: Some(why), is_bound: false })
    }

    /// Returns the choice for a request that goes on from what is cached: to compute that again would cost more than any
    /// choice brings.
    pub(super) fn keep(&self, n_prompt: usize, arm: usize) -> Option<KvChoice> {
        let place = LENGTHS.iter().rposition(|(least, _)| n_prompt >= *least)?;
        let why = if self.said[place] == Some(arm) { None } else { Some(Why::Default) };
        Some(KvChoice { context: place as u8, arm: arm as u8, why, is_bound: true })
    }

    /// Takes note of a step of requests that have this choice in common.
    pub(super) fn learn(&mut self, choice: KvChoice, seconds: f64, rows: Rows) {
        if choice.arm == 0 {
            let follow = |mean: &mut Option<f64>, value: f64| {
                let before = mean.unwrap_or(value);
                *mean = Some(before + WEIGHT * (value - before));
            };
            match (rows.n_prompt, rows.n_answer) {
                (0, 1..) => follow(&mut self.pass_s, seconds / rows.passes()),
                (1.., 0) => follow(&mut self.prompt_row_s, seconds / rows.n_prompt as f64),
                _ => {}
            }
        }
        if choice.why.is_some() {
            let prompt_row = self.prompt_row_s.zip(self.pass_s).map_or(PROMPT_ROW, |(row, pass)| row / pass);
            let work = rows.passes() + prompt_row * rows.n_prompt as f64;
            let context = &self.contexts[usize::from(choice.context)];
            self.bandit.learn(context, usize::from(choice.arm), seconds, work);
        }
    }

    /// Returns in words what was chosen, and why.
    pub(super) fn describe(&self, choice: KvChoice) -> String {
        let place = usize::from(choice.context);
        let (policy, why) = (self.policies[usize::from(choice.arm)], choice.why.map_or("operator", Why::as_str));
        let why = if choice.is_bound { "as its cached beginning" } else { why };
        let because = because(why, (choice.why, &self.reasons[place]), &self.contexts[place]);
        format!("keys and values {policy} ({because})")
    }
}
