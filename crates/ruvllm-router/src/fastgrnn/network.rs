//! A cell with its heads, and what an outcome costs it.

use std::ops::Range;

use super::cell::{Cell, Tape};
use super::train::Outcome;
use crate::math::{add_outer, add_product_transposed, argmax, cross_entropy, dot, sigmoid, softmax};

/// Context buckets by the most tokens that each holds; the last one holds all that is longer.
pub const CONTEXT_BUCKETS: [u32; 5] = [512, 2048, 8192, 32_768, u32::MAX];

/// The highest temperature that the head can ask for.
pub const TEMPERATURE_MAX: f32 = 2.0;

/// Values of a chunk.
pub(super) const CHUNK: usize = 64;

/// Sizes of a network; what it has learned is one slice of parameters: the cell's, then the heads'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network {
    pub cell: Cell,
    /// Values of a query.
    pub n_query: usize,
    /// Models to choose from.
    pub n_models: usize,
}

/// What a forward pass leaves behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Pass {
    tape: Tape,
    /// `[n_out]`, before they become probabilities
    pub logits: Vec<f32>,
}

impl Network {
    /// Makes the sizes of a network; the ranks are not above what the matrices can have.
    pub(super) fn new(n_query: usize, n_models: usize, n_hidden: usize, rank: usize) -> Network {
        let rank_w = rank.min(CHUNK).min(n_hidden);
        let n_steps = n_query.div_ceil(CHUNK);
        let cell = Cell { n_in: CHUNK, n_hidden, rank_w, rank_u: rank.min(n_hidden), n_steps };
        Network { cell, n_query, n_models }
    }

    /// The outputs: a quality a model, a context bucket each, temperature, top-p, confidence.
    pub(super) fn n_out(&self) -> usize {
        self.n_models + CONTEXT_BUCKETS.len() + 3
    }

    /// The outputs of the context buckets.
    pub(super) fn buckets(&self) -> Range<usize> {
        self.n_models..self.n_models + CONTEXT_BUCKETS.len()
    }

    /// Where the heads' parameters lie: on the state (`[n_out, n_hidden]`), on the query (`[n_out, n_query]`), biases.
    pub(super) fn heads(&self) -> [Range<usize>; 3] {
        let start = self.cell.n_parameters();
        let on_query = start + self.n_out() * self.cell.n_hidden;
        let biases = on_query + self.n_out() * self.n_query;
        [start..on_query, on_query..biases, biases..biases + self.n_out()]
    }

    /// Returns the number of parameters.
    pub(super) fn n_parameters(&self) -> usize {
        self.heads()[2].end
    }

    /// Computes the logits of a scaled query into `pass`.
    pub(super) fn forward(&self, parameters: &[f32], x: &[f32], pass: &mut Pass) {
        let state = self.cell.forward(parameters, x, &mut pass.tape);
        let [on_state, on_query, biases] = self.heads();
        let on_state = parameters[on_state].chunks_exact(self.cell.n_hidden);
        let on_query = parameters[on_query].chunks_exact(self.n_query);
        let logits = on_state.zip(on_query).zip(&parameters[biases]);
        pass.logits.clear();
        pass.logits
            .extend(logits.map(|((state_row, query_row), bias)| bias + dot(state_row, state) + dot(query_row, x)));
    }

    /// Returns the loss of an outcome after `forward`, and writes its gradient by the logits: `[n_out]`. What the
    /// outcome does not know costs nothing.
    pub(super) fn loss(&self, logits: &[f32], outcome: &Outcome, d_logits: &mut Vec<f32>) -> f32 {
        d_logits.clear();
        d_logits.resize(self.n_out(), 0.0);
        let mut loss = self.loss_of_qualities(logits, outcome, d_logits);
        if let Some(settings) = &outcome.settings {
            // What worked is imitated, the better the more (reward-weighted regression, Peters & Schaal 2007).
            let weight = settings.quality;
            let mut shares = logits[self.buckets()].to_vec();
            let log_sum = softmax(&mut shares);
            let bucket = context_bucket(settings.n_context_tokens);
            loss += weight * (log_sum - logits[self.n_models + bucket]);
            shares[bucket] -= 1.0;
            d_logits[self.buckets()].iter_mut().zip(shares).for_each(|(d, share)| *d = weight * share);
            let wanted = [settings.temperature / TEMPERATURE_MAX, settings.top_p];
            for (at, wanted) in (self.buckets().end..).zip(wanted) {
                loss += weight * cross_entropy(logits[at], wanted);
                d_logits[at] = weight * (sigmoid(logits[at]) - wanted);
            }
        }
        loss
    }

    /// The part of qualities and confidence.
    fn loss_of_qualities(&self, logits: &[f32], outcome: &Outcome, d_logits: &mut [f32]) -> f32 {
        let known = || (0..self.n_models).filter_map(|m| outcome.qualities[m].map(|quality| (m, quality)));
        let mut loss = 0.0;
        for (m, quality) in known() {
            loss += cross_entropy(logits[m], quality);
            d_logits[m] = sigmoid(logits[m]) - quality;
        }
        let chosen = argmax(&logits[..self.n_models]);
        if let (Some(quality), true) = (outcome.qualities[chosen], known().count() > 1) {
            let right = f32::from(known().all(|(_, other)| other <= quality));
            let at = self.n_out() - 1;
            loss += cross_entropy(logits[at], right);
            d_logits[at] = sigmoid(logits[at]) - right;
        }
        loss
    }

    /// Adds the gradient of the parameters to `gradient`, given that of the logits.
    pub(super) fn backward(&self, parameters: &[f32], x: &[f32], pass: &Pass, d_logits: &[f32], gradient: &mut [f32]) {
        let [on_state, on_query, biases] = self.heads();
        let state = pass.tape.last(&self.cell);
        add_outer(&mut gradient[on_state.clone()], d_logits, state);
        add_outer(&mut gradient[on_query], d_logits, x);
        gradient[biases].iter_mut().zip(d_logits).for_each(|(sum, d)| *sum += d);
        let mut d_state = vec![0.0; self.cell.n_hidden];
        add_product_transposed(&mut d_state, &parameters[on_state], d_logits);
        self.cell.backward(parameters, x, &pass.tape, &mut d_state, gradient);
    }
}

/// Returns the bucket of a context of this many tokens.
pub(super) fn context_bucket(n_tokens: u32) -> usize {
    CONTEXT_BUCKETS.iter().position(|&most| n_tokens <= most).expect("the last bucket holds any number")
}
