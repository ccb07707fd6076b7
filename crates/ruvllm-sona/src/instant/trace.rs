//! Trace of one request: what is observed while it is answered.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::{distance, softmax};
use ruvllm_lora::micro::{Gradient, HeadRows, KeptRows, MicroLora, StateRows, gain, of_state};

use super::{Learned, STEPS_AT_END_MAX, Search};
use crate::corrections::CorrectionMatch;
use crate::datastore::{Context, KnnQuery};
use crate::interpolation::{Confidence, RunningFeatures, Sample};
use crate::knn::KnnDistribution;
use crate::mixing_weight::LogOdds;
use crate::names::Names;
use crate::top::{Hit, Partition, Top, Tops};
use crate::whiten::Key;
use ruvllm_kernels::Compute;
use ruvllm_lora::micro::LogitRow;

/// Below this share a row of logits stays untouched.
const LAMBDA_MIN: f32 = 1e-4;
/// The largest share: what the model thinks possible never becomes impossible.
const LAMBDA_MAX: f32 = 0.999;
/// The most that a badly predicted token makes an entry worth, in nats.
const WORTH_MAX: f32 = 8.0;
/// What an entry gained or lost is forgotten if it is less, in nats: most of what is found has next to no share, and at the end of a
/// request each credit is a place in memory that nothing else has read.
const CREDIT_MIN: f32 = 1e-3;
/// Entries that share what a token gained or lost, at most: the nearest, which have most of the share.
const CREDITED_MAX: usize = 8;
/// What an entry is worth whose prediction nobody knows.
const WORTH_UNKNOWN: f32 = 2.0;
/// Tokens whose way back through the model's last block is computed at once: its weights are read for all of them.
const N_TOGETHER: usize = 8;
/// Tokens that stand for all that are less likely than the likeliest, when it is asked what MicroLoRA gains.
const N_OTHERS: usize = 64;
/// A remembered token whose exact logit is this far below the likeliest approximate one has its approximate one: those that a screen leaves out
/// are farther.
const NEAR: f32 = 1.0;
/// Logits that a thread goes through at a time.
const LOGITS_AT_ONCE: usize = 8192;

/// A token whose successor is not known yet.
#[derive(Clone, Debug)]
pub(super) struct Prediction {
    pub(super) key: Key,
    /// For a MicroLoRA: the state.
    state: KeptRows,
    /// `ln Σ exp` of the model's own row, for the datastore and a MicroLoRA.
    log_sum: f32,
    pub(super) knn: KnnDistribution,
    features: crate::interpolation::Features,
    lambda: f32,
    /// The likeliest token.
    first: u32,
    /// Likeliest tokens with their probabilities, and some that stand for all others; all add up to 1.
    likeliest: Vec<(u32, f32)>,
}

/// An entry of the datastore to be.
#[derive(Clone, Debug)]
pub(super) struct PendingEntry {
    pub(super) key: Key,
    pub(super) context: Context,
    pub(super) token: u32,
    pub(super) worth: f32,
}

/// From a token on, a request read this version of what was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Tokens observed before.
    pub n_observed: usize,
    /// The version.
    pub version: u64,
}

/// Observations of one request. Nothing of it is known to others before [`Learned::ingest`].
#[derive(Debug, Default)]
pub struct RequestTrace {
    /// What changes the final hidden states of this request, once it has begun, and how much of it: as far as it helps.
    whole: Option<Arc<MicroLora>>,
    strength: f32,
    pub(super) log_odds: LogOdds,
    /// That much of it; `None` if it is next to nothing.
    micro: Option<Arc<MicroLora>>,
    /// What of it learns.
    learning: Option<Arc<MicroLora>>,
    /// From which token on it read which version of what was learned.
    pub(super) stamps: Vec<Stamp>,
    /// Tokens observed so far.
    n_observed: usize,
    /// Names of the question, until the first token of the answer; then the corrections that match it.
    question: Option<Names>,
    matched: CorrectionMatch,
    running: RunningFeatures,
    context: Context,
    /// Every context so far: what the model has in view itself.
    in_view: HashSet<Context>,
    pub(super) prediction: Option<Prediction>,
    pub(super) entries: Vec<PendingEntry>,
    pub(super) samples: Vec<Sample>,
    /// Entries, the tokens they had, and what they gained.
    pub(super) credits: Vec<(u32, u32, f32)>,
    pub(super) gradients: Vec<Gradient>,
    /// Tokens in the last gradient, which gets more; 0: it is complete.
    pub(super) n_in_last: usize,
    /// Tokens that go into it with those that come next; the last of a request, a few at most, teach MicroLoRA nothing.
    waiting: PendingTokens,
    scratch: TraceScratch,
}

/// Observed tokens that MicroLoRA will learn from together.
#[derive(Debug, Default)]
struct PendingTokens {
    states: KeptRows,
    observed: Vec<ObservedToken>,
}

/// An observed token, the label that is learned in its place, and the tokens that were likely before.
#[derive(Debug)]
struct ObservedToken {
    likeliest: Vec<(u32, f32)>,
    token: u32,
    label: u32,
    /// What MicroLoRA gained for it, in nats, once that was asked.
    gain: Option<f32>,
}

impl ObservedToken {
    /// Writes the gradient of its state, `[n_embd]`, which all of MicroLoRA moves by `change`; `strength` says how much of that was
    /// believed, if there is any to judge.
    fn look_back(&mut self, change: &[f32], strength: Option<f32>, head: &dyn HeadRows, gradient: &mut [f32]) {
        if let Some(strength) = strength {
            // It learns from what all of it would have said, however little of it is believed.
            self.gain = Some(gain(change, &mut self.likeliest, strength, self.token, head));
        }
        // Those that stand for the unlikely ones too: a gradient that lets these rise pulls every state away from what is likely.
        of_state(&self.likeliest, self.label, head, gradient, &mut vec![0.0; change.len()]);
    }
}

/// What is used again for every token.
#[derive(Debug, Default)]
struct TraceScratch {
    search: Search,
    tops: Tops,
    /// The model's own logits of the token to come: `[n_vocab]`; not kept where neither datastore nor MicroLoRA learns.
    row: Vec<f32>,
}

impl RequestTrace {
    /// Begins to read, if that has not happened: from here on the request has one MicroLoRA, whatever others learn, and its
    /// gradients are of that one. [`RequestTrace::adjust`] and [`RequestTrace::remember`] begin by themselves.
    pub fn begin(&mut self, learned: &Learned) {
        if self.stamps.is_empty() {
            self.follow(learned);
        }
        if self.stamps.last().is_none_or(|stamp| stamp.version != learned.version) {
            self.stamps.push(Stamp { n_observed: self.n_observed, version: learned.version });
        }
    }

    /// Has what was learned by now, as much of it as helps.
    pub(super) fn follow(&mut self, learned: &Learned) {
        self.whole = learned.served.clone().filter(|micro| micro.n_updates() > 0);
        self.learning.clone_from(&learned.micro);
        self.update_strength(learned);
    }

    /// Sets the strength of MicroLoRA by the evidence so far.
    fn update_strength(&mut self, learned: &Learned) {
        self.strength = learned.mixing_weight.strength(&self.log_odds);
        self.micro = match &self.whole {
            Some(whole) if self.strength > 0.0 => Some(Arc::new(whole.weakened(self.strength))),
            _ => None,
        };
    }

    /// Returns what changes final hidden states of this request, for [`RequestTrace::n_until_step`] tokens; `None` before it has begun, or
    /// without one.
    pub fn micro(&self) -> Option<&Arc<MicroLora>> {
        self.micro.as_ref()
    }

    /// Returns which versions were read, from which tokens on.
    pub(crate) fn stamps(&self) -> &[Stamp] {
        &self.stamps
    }

    /// Returns how many tokens were observed: read, remembered or accepted.
    pub fn n_observed(&self) -> usize {
        self.n_observed
    }

    /// Sets the names of the question: the state of the next [`RequestTrace::adjust`] is that of the prompt's last token, and
    /// corrections of this question apply.
    pub fn set_question(&mut self, names: Names) {
        self.question = Some(names);
    }

    /// Returns whether the next row must be exact: a correction is going to change it.
    pub fn needs_all(&self, learned: &Learned) -> bool {
        !learned.corrections.is_empty() && (self.question.is_some() || !self.matched.is_empty())
    }

    /// Changes the logits of a token to come: `[n_vocab]`, made of a final hidden state, one row, as it was before any
    /// MicroLoRA. A row that the datastore has nothing to say of keeps its bits. Returns λ. Approximate logits are passed
    /// over where [`RequestTrace::needs_all`] says so.
    ///
    /// Cost: a search, and passes over the row that keep it, find the likeliest tokens and its sum. The threads shares them.
    ///
    /// # Panics
    /// If the state has another width; inside a threads's closure.
    pub fn adjust<'a>(&mut self, learned: &Learned, state: StateRows<'_>, logits: impl Into<LogitRow<'a>>) -> f32 {
        let (mut logits, has_corrections) = (logits.into(), self.needs_all(learned));
        logits.approx = logits.approx.filter(|_| !has_corrections);
        self.begin(learned);
        let (whitener, compute @ Compute { isa, threads }) = (learned.calibration.whitener(), &learned.compute);
        let mut prediction = Prediction {
            key: Key::default(),
            state: KeptRows::default(),
            log_sum: 0.0,
            knn: KnnDistribution::default(),
            features: Default::default(),
            lambda: 0.0,
            first: 0,
            likeliest: Vec::new(),
        };
        let TraceScratch { tops, row, .. } = &mut self.scratch;
        if learned.options.micro.is_some() || learned.options.datastore.is_some() {
            let n_likeliest = learned.options.micro.map_or(1, |micro| micro.n_likeliest);
            let hits = keep_row(row, logits.seen(), tops, threads, n_likeliest);
            prediction.first = hits.first().map_or(0, |hit| hit.index);
            prediction.log_sum = softmax::pick(*isa).log_sum_exp_by(threads, row) as f32;
            if learned.options.micro.is_some() {
                prediction.state = state.into();
                prediction.likeliest = likeliest(hits, row, prediction.log_sum, self.n_observed);
            }
        }
        let question = self.question.take();
        if learned.options.datastore.is_some() || has_corrections {
            prediction.key = whitener.key_by(state.hidden, compute);
        }
        if learned.options.datastore.is_some() {
            self.knn(learned, &mut prediction, &mut logits);
        }
        if has_corrections {
            let kernels = distance::pick(*isa);
            if let Some(names) = question {
                self.matched = learned.corrections.find(&prediction.key, &names, kernels);
            }
            let query = KnnQuery { key: &prediction.key, context: self.context };
            learned.corrections.adjust(self.matched, query, kernels, softmax::pick(*isa), logits.exact);
        }
        let lambda = prediction.lambda;
        self.prediction = Some(prediction);
        lambda
    }

    /// Searches, decides on a share and mixes.
    fn knn(&mut self, learned: &Learned, prediction: &mut Prediction, logits: &mut LogitRow<'_>) {
        let TraceScratch { search: Search { scratch, hits, .. }, row, .. } = &mut self.scratch;
        learned.datastore.search(
            KnnQuery { key: &prediction.key, context: self.context },
            &learned.compute,
            scratch,
            hits,
        );
        if hits.is_empty() {
            return;
        }
        let log_sum = prediction.log_sum;
        let log_p = |token: u32| row.get(token as usize).map_or(f32::NEG_INFINITY, |logit| logit - log_sum);
        let knn = &mut prediction.knn;
        let is_in_view = |context| self.in_view.contains(&context);
        knn.read(&learned.datastore, hits, learned.options.temperature, log_p, is_in_view);
        let Some(&(recalled, _)) = knn.classes().first() else { return };
        let likeliest = prediction.first;
        let model = Confidence { log_p_max: log_p(likeliest), likeliest, log_p_knn: log_p(recalled) };
        prediction.features = self.running.features(knn, &model);
        let lambda = learned.interpolation.lambda(&prediction.features).min(LAMBDA_MAX);
        if lambda >= LAMBDA_MIN && log_sum.is_finite() {
            prediction.lambda = lambda;
            if logits.approx.is_some() {
                let least = row.get(likeliest as usize).map_or(f32::INFINITY, |logit| logit - NEAR);
                complete(logits.exact, row, knn.classes(), least);
            }
            knn.mix(lambda, log_sum, logits.exact);
        }
    }

    /// Returns whether a row was adjusted for the token to come.
    pub fn has_adjusted(&self) -> bool {
        self.prediction.is_some()
    }

    /// Observes the token that was chosen. Where nothing was adjusted since the last one, it is only read.
    pub fn accept(&mut self, learned: &Learned, token: u32, head: &dyn HeadRows) {
        self.accept_as(learned, token, token, head);
    }

    /// Observes a token as [`RequestTrace::accept`] does, but learns another one, the label, in its place. With tokens drawn
    /// anew nothing is left to be learned: the control that shows what a gain comes of.
    pub fn accept_as(&mut self, learned: &Learned, token: u32, label: u32, head: &dyn HeadRows) {
        let Some(mut prediction) = self.prediction.take() else { return self.read(token) };
        let logit = self.scratch.row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let p_model = (logit - prediction.log_sum).exp();
        let p_knn = prediction.knn.probability(token);
        let lambda = prediction.lambda;
        let mixed = (1.0 - lambda) * p_model + lambda * p_knn;
        let has_knn = !prediction.knn.hits.is_empty();
        if has_knn {
            self.samples.push(Sample { features: prediction.features, p_model, p_knn });
            self.running.go_on(prediction.knn.nearest(), p_model, p_knn);
            self.credit(&prediction.knn, token, p_knn, (mixed / p_model.max(f32::MIN_POSITIVE)).ln());
        }
        if learned.options.micro.is_some() {
            self.learn_micro(learned, &mut prediction, token, label, head);
        }
        let (key, worth) = match learned.options.datastore {
            Some(_) => (prediction.key, (-mixed.max(f32::MIN_POSITIVE).ln()).clamp(0.0, WORTH_MAX)),
            None => Default::default(),
        };
        self.entries.push(PendingEntry { key, context: self.context, token: label, worth });
        self.read(token);
    }

    /// Shares what the mixture gained among the entries that said the token, or what it lost among the others.
    fn credit(&mut self, knn: &KnnDistribution, token: u32, p_knn: f32, gain: f32) {
        let whose = |entry: u32| (entry == token) == (gain > 0.0);
        let all = if gain > 0.0 { p_knn } else { 1.0 - p_knn };
        if gain == 0.0 || all <= 0.0 {
            return;
        }
        let hits = knn.hits.iter().filter(|&&(.., entry)| whose(entry)).take(CREDITED_MAX);
        let credits = hits.map(|&(index, share, entry)| (index, entry, gain * share / all));
        self.credits.extend(credits.filter(|(.., gain)| gain.abs() >= CREDIT_MIN));
    }

    fn learn_micro(
        &mut self,
        learned: &Learned,
        prediction: &mut Prediction,
        token: u32,
        label: u32,
        head: &dyn HeadRows,
    ) {
        let (Some(micro), Some(options)) = (&self.learning, &learned.options.micro) else { return };
        let likeliest = std::mem::take(&mut prediction.likeliest);
        self.waiting.states.push(prediction.state.rows());
        self.waiting.observed.push(ObservedToken { likeliest, token, label, gain: None });
        let n_together = if micro.is_inside() { N_TOGETHER } else { 1 };
        let n = self.n_in_last + self.waiting.observed.len();
        if self.waiting.observed.len() < n_together && n < options.n_tokens {
            return;
        }
        if self.n_in_last == 0 {
            self.gradients.push(micro.gradient_buffer());
        }
        let Some(last) = self.gradients.last_mut() else { return };
        let PendingTokens { states, observed } = &mut self.waiting;
        let (n_embd, strength) = (micro.n_embd(), self.whole.as_ref().map(|_| self.strength));
        let mut errors = |changes: &[f32], gradients: &mut [f32]| {
            let rows = changes.chunks_exact(n_embd).zip(gradients.chunks_exact_mut(n_embd));
            learned.compute.each(observed.iter_mut().zip(rows), |(token, (change, gradient))| {
                token.look_back(change, strength, head, gradient);
            });
        };
        let served = self.whole.as_ref().unwrap_or(micro);
        micro.learn(served, states.rows(), &mut errors, last, 1.0 / options.n_tokens as f32);
        states.clear();
        observed.drain(..).filter_map(|token| token.gain).for_each(|gain| self.log_odds.push(gain));
        self.n_in_last = n % options.n_tokens;
        if self.n_in_last == 0 {
            micro.prepare(last);
            // What an answer may leave behind until it is judged is bounded.
            Gradient::merge(&mut self.gradients, STEPS_AT_END_MAX);
            self.update_strength(learned);
        }
    }

    /// Traces a token of a prompt whose logits were not computed: the datastore learns from those for the price of a key.
    ///
    /// # Panics
    /// If the state has another width.
    pub fn remember(&mut self, learned: &Learned, hidden: &[f32], token: u32) {
        self.begin(learned);
        if learned.options.datastore.is_some() {
            let key = learned.calibration.whitener().key(hidden, learned.compute.isa);
            self.entries.push(PendingEntry { key, context: self.context, token, worth: WORTH_UNKNOWN });
        }
        self.read(token);
    }

    /// Reads a token that nothing is learned from: it is in the context of those that follow.
    pub fn read(&mut self, token: u32) {
        self.n_observed += 1;
        self.context.push(token);
        self.in_view.insert(self.context);
    }

    /// Returns how many tokens were traced.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether no token was traced.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns for how many predicted tokens more [`Learned::step`] would find no complete piece, and [`RequestTrace::micro`] stays what it
    /// is.
    pub fn n_until_step(&self, learned: &Learned) -> usize {
        let n_in_last = self.n_in_last + self.waiting.observed.len();
        learned.options.micro.as_ref().map_or(usize::MAX, |options| options.n_tokens - n_in_last)
    }
}

/// Keeps a row of logits, and returns the `n` largest, largest first: each thread goes once through what it reads of the row.
fn keep_row<'a>(row: &mut Vec<f32>, logits: &[f32], tops: &'a mut Tops, threads: &ThreadPool, n: usize) -> &'a [Hit] {
    row.resize(logits.len(), 0.0);
    let parts: Vec<_> = row.chunks_mut(LOGITS_AT_ONCE).map(Mutex::new).zip(logits.chunks(LOGITS_AT_ONCE)).collect();
    let hits =
        tops.find(threads, n, Partition { len: parts.len(), grain: 1 }, &|range: Range<usize>, top: &mut Top| {
            for (i, (row, logits)) in range.clone().zip(&parts[range]) {
                row.lock().unwrap_or_else(PoisonError::into_inner).copy_from_slice(logits);
                top.offer(i * LOGITS_AT_ONCE, logits);
            }
        });
    hits.sort_unstable_by(Hit::order);
    hits
}

/// Gives remembered tokens their approximate logits where the exact ones, known or not, are below `least`: the same ones whichever a screen
/// has left out.
fn complete(exact: &mut [f32], approx: &[f32], classes: &[(u32, f32)], least: f32) {
    for &(token, _) in classes {
        match (exact.get_mut(token as usize), approx.get(token as usize)) {
            (Some(exact), Some(&approx)) if *exact < least => *exact = approx,
            _ => {}
        }
    }
}

/// Returns the likeliest tokens, the `hits`, with their probabilities, and behind them some of the others, one from each stretch of the
/// vocabulary, with what is left of 1 shared among them as they are likely. `drawn` says where in the stretches they stand.
fn likeliest(hits: &[Hit], logits: &[f32], log_sum: f32, drawn: usize) -> Vec<(u32, f32)> {
    let p = |logit: f32| (logit - log_sum).exp();
    let least = hits.last().map_or(f32::INFINITY, |hit| hit.value);
    let mut all: Vec<(u32, f32)> = hits.iter().map(|hit| (hit.index, p(hit.value))).collect();
    let left = (1.0 - all.iter().map(|&(_, p)| p).sum::<f32>()).max(0.0);
    let stretch = logits.len().div_ceil(N_OTHERS).max(1);
    let others = (drawn * 7919 % stretch..logits.len()).step_by(stretch).filter(|&i| logits[i] < least);
    let n_likeliest = all.len();
    all.extend(others.map(|i| (i as u32, p(logits[i]))));
    let sum: f32 = all[n_likeliest..].iter().map(|&(_, p)| p).sum();
    all[n_likeliest..].iter_mut().for_each(|(_, p)| *p *= left / sum.max(f32::MIN_POSITIVE));
    all
}

#[cfg(test)]
mod tests {
    use ruvllm_kernels::Isa;

    use super::*;

    #[test]
    fn others_stand_for_what_is_not_likeliest() {
        let logits: Vec<f32> = (0..5000).map(|i| ((i * 37 % 5000) as f32 / 700.0).sin() * 3.0).collect();
        let log_sum = softmax::pick(Isa::best()).log_sum_exp(&logits) as f32;
        let (mut tops, mut row, threads) = (Tops::default(), Vec::new(), ThreadPool::new(2));
        for drawn in [0, 1, 77] {
            let hits = keep_row(&mut row, &logits, &mut tops, &threads, 128);
            assert_eq!(row, logits);
            let all = likeliest(hits, &logits, log_sum, drawn);
            let least = logits[all[127].0 as usize];
            assert!(all.len() > 128 && all[128..].iter().all(|&(token, _)| logits[token as usize] < least));
            assert!((all.iter().map(|&(_, p)| p).sum::<f32>() - 1.0).abs() < 1e-4);
            let first = (logits[all[0].0 as usize] - log_sum).exp();
            assert!((all[0].1 - first).abs() < 1e-6, "{} for {first}", all[0].1);
        }
        // A vocabulary that is no larger has no others.
        row.clear();
        let hits = keep_row(&mut row, &logits[..100], &mut tops, &threads, 128);
        let all = likeliest(hits, &logits[..100], log_sum, 3);
        assert_eq!(all.len(), 100);
    }
}
