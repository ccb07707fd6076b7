//! Tuning of how steps are filled, by what they cost: the engine measures, a [`Tuner`] chooses.
//!
//! Before a step in which nobody reads a prompt the scheduler asks its tuner, and behind the step it says what it came to. A
//! request with a prompt may also have its KV cache kept in one of several ways; what its steps cost is said apart. A
//! choice changes how fast answers are, never what they are, unless the KV cache is kept in fewer bits.
//!
//! ```
//! use ruvllm_engine::tuner::{Choice, Situation, StepCost, Tuner};
//! use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, SamplingParams, SchedulerOptions};
//!
//! /// Drafts only for who is alone.
//! struct Alone;
//!
//! impl Tuner for Alone {
//!     fn fixed(&self) -> SchedulerOptions {
//!         SchedulerOptions::default()
//!     }
//!     fn choose(&mut self, situation: &Situation) -> (SchedulerOptions, Choice) {
//!         let draft_tokens_max = if situation.n_running == 1 { 8 } else { 0 };
//!         (SchedulerOptions { draft_tokens_max, ..self.fixed() }, Choice { way: draft_tokens_max as u8, ..Choice::default() })
//!     }
//!     fn learn(&mut self, _: Choice, _: &StepCost) {}
//!     fn describe(&self, choices: &[(Choice, u32)], _: Option<Choice>) -> String {
//!         choices.iter().map(|(choice, n)| format!("{} guesses in {n} steps", choice.way)).collect()
//!     }
//! }
//!
//! // Any GGUF file; here a tiny one of the test data.
//! let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
//! let mut engine = Engine::load(&path, &LoadOptions::default(), &mut |_| {})?;
//! let mut scheduler = engine.scheduler(&SchedulerOptions::default())?;
//! scheduler.set_tuner(Box::new(Alone));
//! let sampling = SamplingParams::greedy();
//! scheduler.submit(GenerateRequest { prompt: vec![7, 8, 9], max_tokens: Some(20), sampling, ..Default::default() })?;
//! let answer = scheduler.run().remove(0).1?;
//! assert!(answer.choices.starts_with("8 guesses in "), "{}", answer.choices);
//! # Ok::<(), ruvllm_engine::EngineError>(())
//! ```

use ruvllm_kvcache::KvPolicy;

use crate::request::GenerateRequest;
use crate::runner::ModelRunner;
use crate::scheduler::SchedulerOptions;

/// Chooses how steps are filled, on the thread that steps: it must not block.
pub trait Tuner: Send {
    /// Returns what steps are filled by where nothing is chosen.
    fn fixed(&self) -> SchedulerOptions;

    /// Returns the options of a step, and what they are called behind it.
    fn choose(&mut self, situation: &Situation) -> (SchedulerOptions, Choice);

    /// Takes note of what a step came to.
    fn learn(&mut self, choice: Choice, step: &StepCost);

    /// Returns how the KV cache of a request is to be kept, and the choice; nothing where there is none. Of a scheduler's
    /// `runner` it asks what is cached and how much room there is.
    fn choose_kv(&mut self, request: &GenerateRequest, runner: &ModelRunner) -> Option<(KvPolicy, Choice)> {
        let _ = (request, runner);
        None
    }

    /// Takes note of how long a step took of requests whose KV cache is kept as was chosen in common.
    fn learn_kv(&mut self, choice: Choice, seconds: f64, rows: Rows) {
        let _ = (choice, seconds, rows);
    }

    /// Returns in words what was chosen for the steps of an answer, for how many each, and for its KV cache.
    fn describe(&self, choices: &[(Choice, u32)], kv: Option<Choice>) -> String;

    /// Returns what trying has lost, as a share of all time.
    fn loss(&self) -> f64 {
        0.0
    }
}

/// A tuner's choice, in the numbers of the tuner; the scheduler carries it from the step to what is said of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The workload that it is for.
    pub workload: u8,
    /// The way that was chosen there.
    pub way: u8,
    /// The reason.
    pub why: u16,
}

impl Choice {
    /// Returns whether another one is the same way of the same workload, whyever.
    pub fn is_same_way(self, other: Choice) -> bool {
        (self.workload, self.way) == (other.workload, other.way)
    }
}

/// Load at the time of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Requests that run.
    pub n_running: usize,
    /// The mean length of their contexts.
    pub n_context: usize,
    /// Free bytes of the KV cache, where that may have changed.
    pub free_bytes: Option<usize>,
}

/// Cost of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// Time that it took.
    pub seconds: f64,
    /// Requests in it.
    pub n_answers: usize,
    /// Rows that it would have had by the default.
    pub n_default_rows: usize,
    /// Steps in which the default would have come as far.
    pub n_default_steps: f64,
    /// Draft tokens that each might have.
    pub n_draft_max: usize,
    /// Draft tokens that were accepted, of all of them.
    pub n_accepted: usize,
}

/// Rows of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Of prompts.
    pub n_prompt: usize,
    /// Of answers, draft tokens among them.
    pub n_answer: usize,
}

/// Returns in how many steps the default, which drafts up to `n_default` tokens, gives so many tokens of an answer: they came in
/// one that might draft `n_draft_max`. Where all of those were accepted the next step of the default goes on further.
pub fn steps_by_default(n_tokens: usize, n_draft_max: usize, n_default: usize) -> f64 {
    let steps = n_tokens as f64 / (n_default + 1) as f64;
    let is_all = n_tokens > n_draft_max;
    if is_all { steps.max(1.0) } else { steps.ceil() }
}

#[cfg(test)]
mod tests {
    use super::steps_by_default;

    #[test]
    fn steps_that_the_default_would_have_taken() {
        // (tokens, draft tokens) and steps of a default that drafts 8: whole ones where the last draft token was rejected.
        for (n_tokens, n_draft_max, steps) in
            [(1, 24, 1.0), (9, 24, 1.0), (10, 24, 2.0), (18, 24, 2.0), (25, 24, 25.0 / 9.0), (1, 0, 1.0), (9, 8, 1.0)]
        {
            assert_eq!(steps_by_default(n_tokens, n_draft_max, 8), steps, "{n_tokens} of {n_draft_max}");
        }
    }
}
