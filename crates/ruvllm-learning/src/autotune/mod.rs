//! Choosing how steps are filled by what they were measured to cost: how many tokens are drafted, request by request
//! and beside others, and whether at all.
//!
//! What is chosen changes how fast answers are, never what they are, with one exception that has to be allowed: how keys and
//! values of long prompts are kept ([`Autotuner::with_kv`]). The choice is a [`SafeBandit`]'s: another way than the
//! default is tried so seldom that it loses less than a hundredth of the time, and taken only where it was measured to be
//! better, workload by workload. The workload is how many requests run, how long their contexts are, how often draft tokens
//! were right lately and whether memory is short. What no try can show is counted: which prompts that come again would still be
//! cached if keys and values took fewer bytes.
//!
//! What is learned is a [`NewPolicy`] of kind `speculation` or `kv`, which a process that comes later begins with. An operator's
//! policy of such a kind ends the choice for its workload; one of kind `batch` says how much of prompts is read in a step.
//!
//! ```
//! use ruvllm_learning::autotune::Autotuner;
//! use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, SamplingParams};
//!
//! // Any GGUF file; here a tiny one of the test data.
//! let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
//! let mut engine = Engine::load(&path, &LoadOptions::default(), &mut |_| {})?;
//! let options = Default::default();
//! let autotuner = Autotuner::new("llama-a", &options, Box::new(|policy| println!("{}", policy.reason)));
//! let mut scheduler = engine.scheduler(&options)?;
//! scheduler.set_tuner(Box::new(autotuner));
//! let sampling = SamplingParams::greedy();
//! scheduler.submit(GenerateRequest { prompt: vec![7, 8, 9], max_tokens: Some(20), sampling, ..Default::default() })?;
//! let answer = scheduler.run().remove(0).1?;
//! assert!(answer.choices.contains("guesses up to 8 (default"), "{}", answer.choices);
//! # Ok::<(), ruvllm_engine::EngineError>(())
//! ```

mod baseline;
mod choice;
mod kv;
mod reuse;
#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;

use ruvllm_engine::tuner::{Choice, Rows, Situation, StepCost, Tuner};
use ruvllm_engine::{CacheSalt, GenerateRequest, ModelRunner, SchedulerOptions};
use ruvllm_kvcache::KvPolicy;
use ruvllm_sona::now_ms;
use ruvllm_sona::policy::bandit::{ArmChange, Measured, Why};
use ruvllm_sona::policy::{BanditOptions, NewPolicy, PolicyKind, PolicyStore, SafeBandit, Source, Wanted};
use serde::{Deserialize, Serialize};

use baseline::Baseline;
use choice::StepChoice;
use kv::KvChooser;
use reuse::Prompt;

/// The ways to draft beside the default: so many rows of a step, so many of a request.
const ARMS: [DraftLimits; 2] =
    [DraftLimits { draft_rows: 32, draft_tokens_max: 32 }, DraftLimits { draft_rows: 48, draft_tokens_max: 32 }];
/// Names of numbers of requests that run, by the most of each but the last.
const COMPANY: [(usize, &str); 4] = [(1, "alone"), (3, "2 to 3"), (6, "4 to 6"), (usize::MAX, "7 and more")];
/// The context from which on it is long.
const LONG_TOKENS: usize = 1024;
/// How often draft tokens are right: names, and the least hit rate of each but the first.
const HITS: [&str; 4] = ["guesses unknown", "guesses wrong", "guesses mixed", "guesses right"];
const HIT_MIXED: f32 = 0.15;
const HIT_RIGHT: f32 = 0.6;
/// The place of rejected drafts among them.
const WRONG: usize = 1;
/// The first draft tokens of a request tell how good draft tokens are: all ways make as many.
const NEAR: usize = 4;
/// The weight of a step in the running hit rate, and the steps without draft tokens after which it is forgotten.
const HIT_WEIGHT: f32 = 0.1;
const HIT_STEPS: usize = 400;
/// Memory is short when less than this share of what was ever free is.
const TIGHT: f64 = 0.3;
/// What was learned counts so long.
const KEPT_MS: u64 = 7 * 24 * 3600 * 1000;
/// What was learned earlier is begun with if it was so sure.
const CONFIDENCE: f32 = 0.95;
/// Choices that a description names.
const DESCRIBED: usize = 4;

/// Limits of the draft tokens of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DraftLimits {
    /// [`SchedulerOptions::draft_rows`]. Policies are recorded under its old name for one more release.
    #[serde(rename = "guessed_rows", alias = "draft_rows")]
    pub draft_rows: usize,
    /// [`SchedulerOptions::draft_tokens_max`], recorded in the same way.
    #[serde(rename = "guesses_max", alias = "draft_tokens_max")]
    pub draft_tokens_max: usize,
}

/// Number of tokens of prompts that are read in addition to answers, set by an operator; nothing is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// [`SchedulerOptions::prefill_tokens`]: at least 1, and no more than a step has.
    pub prefill_tokens: NonZeroUsize,
}

/// Sink of learned policies, on the thread that steps: it must not block.
pub type PolicySink = Box<dyn FnMut(NewPolicy) + Send>;

/// Chooses how steps are filled. See the [module](self).
pub struct Autotuner {
    fixed: SchedulerOptions,
    bandit: SafeBandit,
    /// Workloads by place.
    contexts: Vec<String>,
    /// What an operator says of them.
    said: Vec<Option<DraftLimits>>,
    learned: PolicySink,
    /// What steps take by the default.
    baseline: Baseline,
    hit: Option<f32>,
    /// Steps since a draft token was judged.
    n_silent: usize,
    /// The most bytes that were free, and whether few are now.
    free_bytes_max: usize,
    is_tight: bool,
    /// What was learned of workloads, in words.
    reasons: Vec<String>,
    /// If there is anything to choose.
    kv: Option<KvChooser>,
}

impl Autotuner {
    /// An autotuner that has measured nothing. `model` names what it measures, the default is `fixed`.
    pub fn new(model: &str, fixed: &SchedulerOptions, learned: PolicySink) -> Autotuner {
        let mut contexts = Vec::new();
        for (_, company) in COMPANY {
            for length in ["short", "long"] {
                for hits in HITS {
                    for memory in ["", ", memory short"] {
                        contexts.push(format!("{model}: {company}, {length}, {hits}{memory}"));
                    }
                }
            }
        }
        Autotuner {
            fixed: fixed.clone(),
            bandit: SafeBandit::new(1 + ARMS.len(), BanditOptions::default()),
            said: vec![None; contexts.len()],
            reasons: vec![String::new(); contexts.len()],
            baseline: Baseline::default(),
            contexts,
            learned,
            hit: None,
            n_silent: 0,
            free_bytes_max: 0,
            is_tight: false,
            kv: None,
        }
    }

    /// Lets it choose how keys and values of requests with long prompts are kept, among `policies`, the default first. What
    /// is not `f16` changes answers a little; the engine must be loaded for all of them
    /// ([`LoadOptions::kv_others`](ruvllm_engine::LoadOptions::kv_others)).
    pub fn with_kv(self, model: &str, policies: &[KvPolicy]) -> Autotuner {
        Autotuner { kv: (policies.len() > 1).then(|| KvChooser::new(model, policies)), ..self }
    }

    /// Begins with what policies say: an operator's word is kept to, what was learned is begun with and measured on.
    pub fn begin_with(&mut self, policies: &dyn PolicyStore) {
        let batch = policies.best(&Wanted::new(PolicyKind::Batch, ""), now_ms());
        if let Some(Ok(Batch { prefill_tokens })) = batch.map(|policy| policy.read::<Batch>()) {
            self.fixed.prefill_tokens = prefill_tokens.get().min(self.fixed.step_tokens);
        }
        for (i, context) in self.contexts.iter().enumerate() {
            let confidence_min = CONFIDENCE;
            let wanted = Wanted { confidence_min, ..Wanted::new(PolicyKind::Speculation, context) };
            let Some(policy) = policies.best(&wanted, now_ms()) else { continue };
            let Ok(guesses) = policy.read::<DraftLimits>() else { continue };
            match (policy.source, ARMS.iter().position(|arm| *arm == guesses)) {
                (Source::Operator, _) => self.said[i] = Some(guesses),
                (Source::Learned, Some(arm)) => {
                    self.bandit.begin_with(context, arm + 1);
                    self.reasons[i].clone_from(&policy.reason);
                }
                _ => {}
            }
        }
        // Said of every workload, it is so where nothing is chosen too: while prompts are read.
        if let Some(Some(said)) = self.said.first().copied()
            && self.said.iter().all(|other| *other == Some(said))
        {
            self.fixed = self.options(said);
        }
        let Some(kv) = &mut self.kv else { return };
        for (i, context) in kv.contexts.iter().enumerate() {
            let wanted = Wanted { confidence_min: CONFIDENCE, ..Wanted::new(PolicyKind::Kv, context) };
            let Some(policy) = policies.best(&wanted, now_ms()) else { continue };
            let named = policy.read::<String>().ok().and_then(|name| name.parse::<KvPolicy>().ok());
            // One that was not allowed is none.
            let Some(arm) = kv.policies.iter().position(|known| Some(*known) == named) else { continue };
            match policy.source {
                Source::Operator => kv.said[i] = Some(arm),
                Source::Learned => {
                    kv.bandit.begin_with(context, arm);
                    kv.reasons[i].clone_from(&policy.reason);
                }
                Source::Default => {}
            }
        }
    }

    fn options(&self, guesses: DraftLimits) -> SchedulerOptions {
        let DraftLimits { draft_rows, draft_tokens_max } = guesses;
        SchedulerOptions { draft_rows, draft_tokens_max, ..self.fixed.clone() }
    }

    /// Returns the place of the hit rate among [`HITS`].
    fn hits(&self) -> usize {
        match self.hit {
            None => 0,
            Some(hit) if hit < HIT_MIXED => WRONG,
            Some(hit) if hit < HIT_RIGHT => 2,
            Some(_) => 3,
        }
    }

    /// Returns what the default usually takes for what came of a step: how well text can be drafted falls out then. Nothing
    /// while that is not known.
    fn baseline_seconds(&mut self, choice: StepChoice, step: &StepCost) -> Option<f64> {
        let rows = Rows { n_prompt: 0, n_answer: step.n_default_rows };
        if choice.arm == 0 {
            self.baseline.follow(step.seconds, rows);
        }
        let baseline = self.baseline.seconds(rows)? * step.n_default_steps;
        (baseline > 0.0).then_some(baseline)
    }

    /// Says what was learned.
    fn report(&mut self, change: ArmChange) {
        let ArmChange { context, arm, measured } = change;
        let Some(place) = self.contexts.iter().position(|name| *name == context) else { return };
        let guesses = match arm {
            0 => DraftLimits { draft_rows: self.fixed.draft_rows, draft_tokens_max: self.fixed.draft_tokens_max },
            arm => ARMS[arm - 1],
        };
        let reason = reason_of(arm, &measured);
        self.reasons[place].clone_from(&reason);
        let confidence = confidence_of(arm, &measured);
        if let Ok(policy) = NewPolicy::new(PolicyKind::Speculation, &context, &guesses) {
            (self.learned)(policy.learned(confidence).because(reason).until(now_ms() + KEPT_MS));
        }
    }
}

impl Tuner for Autotuner {
    fn fixed(&self) -> SchedulerOptions {
        self.fixed.clone()
    }

    fn choose(&mut self, situation: &Situation) -> (SchedulerOptions, Choice) {
        if let Some(free) = situation.free_bytes {
            self.free_bytes_max = self.free_bytes_max.max(free);
            self.is_tight = (free as f64) < TIGHT * self.free_bytes_max as f64;
        }
        let (hits, n_running) = (self.hits(), situation.n_running);
        let company = COMPANY.iter().position(|(most, _)| n_running <= *most).unwrap_or(COMPANY.len() - 1);
        let is_long = usize::from(situation.n_context >= LONG_TOKENS);
        let place = ((company * 2 + is_long) * HITS.len() + hits) * 2 + usize::from(self.is_tight);
        let context = place as u8;
        if let Some(guesses) = self.said[place] {
            return (self.options(guesses), StepChoice { context, arm: 0, why: None }.into());
        }
        let default = self.fixed.n_draft_max(n_running);
        // More where draft tokens may be right; what comes to the same is not tried. Where they are wrong each request makes
        // none by itself, and finds out when they are right again.
        let may = |arm: usize| match arm {
            0 => true,
            arm => {
                let before = if arm == 1 { default } else { self.options(ARMS[arm - 2]).n_draft_max(n_running) };
                hits != WRONG && self.options(ARMS[arm - 1]).n_draft_max(n_running) > before
            }
        };
        let may: [bool; 1 + ARMS.len()] = std::array::from_fn(may);
        let (arm, why) = self.bandit.choose(&self.contexts[place], |arm| may[arm]);
        let options = if arm == 0 { self.fixed.clone() } else { self.options(ARMS[arm - 1]) };
        (options, StepChoice { context, arm: arm as u8, why: Some(why) }.into())
    }

    fn learn(&mut self, choice: Choice, step: &StepCost) {
        let (choice, StepCost { seconds, n_answers, n_draft_max, n_accepted, .. }) = (StepChoice::from(choice), *step);
        let near = n_draft_max.min(NEAR);
        if near > 0 && n_answers > 0 {
            let hit = (n_accepted as f32 / n_answers as f32 / near as f32).min(1.0);
            let before = self.hit.unwrap_or(hit);
            (self.hit, self.n_silent) = (Some(before + HIT_WEIGHT * (hit - before)), 0);
        } else {
            self.n_silent += 1;
            self.hit = self.hit.filter(|_| self.n_silent < HIT_STEPS);
        }
        if choice.why.is_some() {
            if let Some(baseline) = self.baseline_seconds(choice, step) {
                let context = &self.contexts[usize::from(choice.context)];
                self.bandit.learn(context, usize::from(choice.arm), seconds, baseline);
            }
            self.bandit.take_changes().into_iter().for_each(|change| self.report(change));
        }
    }

    fn choose_kv(&mut self, request: &GenerateRequest, runner: &ModelRunner) -> Option<(KvPolicy, Choice)> {
        let kv = self.kv.as_mut()?;
        let GenerateRequest { prompt, tenant, adapters, .. } = request;
        let place = kv.place(prompt.len())?;
        let known = |&kv: &KvPolicy| {
            let scope = CacheSalt { tenant: *tenant, adapters: adapters.clone(), kv: Some(kv) };
            runner.match_prefix(prompt, &scope).map_or(0, |known| known.n_tokens)
        };
        let n_known: Vec<usize> = kv.policies.iter().map(known).collect();
        let bytes: Vec<usize> = kv.policies.iter().map(|&policy| runner.aged_kv_bytes(policy, prompt.len())).collect();
        let room_bytes = runner.reusable_kv_bytes();
        let mut owner = DefaultHasher::new();
        (tenant, adapters.identity()).hash(&mut owner);
        let prompt = Prompt { tokens: prompt, owner: owner.finish(), room_bytes, bytes: &bytes };
        let choice = kv.choose(place, &prompt, &n_known);
        Some((kv.policies[usize::from(choice.arm)], choice.into()))
    }

    fn learn_kv(&mut self, choice: Choice, seconds: f64, rows: Rows) {
        let Some(kv) = &mut self.kv else { return };
        kv.learn(choice.into(), seconds, rows);
        for ArmChange { context, arm, measured } in kv.bandit.take_changes() {
            let reason = reason_of(arm, &measured);
            if let Some(place) = kv.contexts.iter().position(|name| *name == context) {
                kv.reasons[place].clone_from(&reason);
            }
            let confidence = confidence_of(arm, &measured);
            if let Ok(policy) = NewPolicy::new(PolicyKind::Kv, &context, &kv.policies[arm].to_string()) {
                (self.learned)(policy.learned(confidence).because(reason).until(now_ms() + KEPT_MS));
            }
        }
    }

    fn describe(&self, choices: &[(Choice, u32)], kv: Option<Choice>) -> String {
        let mut choices = choices.to_vec();
        choices.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
        let one = |&(choice, n): &(Choice, u32)| {
            let StepChoice { context, arm, why } = choice.into();
            let place = usize::from(context);
            let guesses = match (self.said[place].filter(|_| why.is_none()), arm) {
                (Some(said), _) => said,
                (None, 0) => {
                    DraftLimits { draft_rows: self.fixed.draft_rows, draft_tokens_max: self.fixed.draft_tokens_max }
                }
                (None, arm) => ARMS[usize::from(arm) - 1],
            };
            let what = match guesses {
                DraftLimits { draft_rows: 0, .. } => "no guesses".to_owned(),
                DraftLimits { draft_rows, draft_tokens_max } if draft_rows == draft_tokens_max => {
                    format!("guesses up to {draft_tokens_max}")
                }
                DraftLimits { draft_rows, draft_tokens_max } => {
                    format!("guesses up to {draft_tokens_max} ({draft_rows} in all)")
                }
            };
            let what =
                if arm == 0 && why.is_some() { format!("guesses up to {}", self.fixed.draft_tokens_max) } else { what };
            let who = why.map_or("operator", Why::as_str);
            let because = because(who, why, &self.reasons[place], &self.contexts[place]);
            format!("{what} ({because}) in {n} steps")
        };
        let of_kv = self.kv.as_ref().zip(kv).map(|(chooser, choice)| chooser.describe(choice.into()));
        of_kv.into_iter().chain(choices.iter().take(DESCRIBED).map(one)).collect::<Vec<_>>().join("; ")
    }

    fn loss(&self) -> f64 {
        self.bandit.loss()
    }
}

impl std::fmt::Debug for Autotuner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Autotuner").field("fixed", &self.fixed).field("loss", &self.loss()).finish_non_exhaustive()
    }
}

/// Returns in words who chose and for which workload; what was learned of it, if that is why.
fn because(who: &str, why: Option<Why>, reason: &str, context: &str) -> String {
    let workload = context.rsplit(": ").next().unwrap_or_default();
    match why {
        Some(Why::Learned) if !reason.is_empty() => format!("{who}: {reason}; {workload}"),
        _ => format!("{who}; {workload}"),
    }
}

fn reason_of(arm: usize, measured: &Measured) -> String {
    let (ratio, n) = (measured.ratio, measured.n_pairs);
    match arm {
        0 => format!("what stood in the default's place took {ratio:.2} of its time, in {n} pairs of windows"),
        _ => format!("takes {ratio:.2} of the default's time, in {n} pairs of windows"),
    }
}

/// What is learned of the default is that nothing else is better: it ends what was learned before.
fn confidence_of(arm: usize, measured: &Measured) -> f32 {
    if arm == 0 { 1.0 } else { measured.confidence.clamp(0.0, 1.0) as f32 }
}
