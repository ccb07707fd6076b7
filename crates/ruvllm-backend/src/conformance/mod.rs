//! The conformance suite: what the contract promises, asked of a backend. Each backend's tests call [`check`] with its models.
//!
//! A check panics with the name of the promise that does not hold. Numbers are compared within the [`Tolerances`] that the
//! backend states; 0 asks for the same bits.

mod capabilities;
mod errors;
mod sequences;

use crate::{CacheSalt, LogitRows, Segment, SeqId, TokenModel};

/// Largest absolute differences between logits of the same tokens, computed in different ways.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tolerances {
    /// In chunks of any size, or token by token, against all at once.
    pub chunks: f32,
    /// With other sequences in the batch, against alone.
    pub batch: f32,
    /// After a fork, a rewind or a cached prefix, against from the beginning.
    pub reuse: f32,
}

/// A model and what is asked of it.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// Token ids that the model knows, at least 24 of them, which fit its context.
    pub tokens: &'a [u32],
    /// The backend's numeric contract.
    pub tolerances: Tolerances,
}

/// Asks all promises of the contract of a model that writes text. At least three sequences may be open at once.
///
/// # Panics
/// A promise does not hold.
pub fn check(model: &mut dyn TokenModel, case: &Case<'_>) {
    let info = model.info().clone();
    assert!(case.tokens.len() >= 24 && case.tokens.len() <= info.n_ctx, "the case has too few or too many tokens");
    assert!(info.n_seq_max >= 3, "the suite needs three sequences, the model has {}", info.n_seq_max);
    assert_eq!(model.n_free(), info.n_seq_max, "every sequence is free at the beginning");
    let whole = whole(model, case);
    sequences::check(model, case, &whole);
    errors::check(model, case, &whole);
    capabilities::check(model, case, &whole);
    assert_eq!(model.n_free(), info.n_seq_max, "every sequence that was closed is free");
}

/// Opens a sequence outside the prefix cache.
fn open(model: &mut dyn TokenModel) -> SeqId {
    let (seq, n_known) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
    assert_eq!((n_known, model.n_tokens(seq)), (0, 0), "a sequence without a prompt is empty");
    seq
}

/// Computes tokens of a sequence and returns the wanted rows.
fn rows(model: &mut dyn TokenModel, seq: SeqId, tokens: &[u32], logits: LogitRows) -> Vec<f32> {
    let before = model.n_tokens(seq);
    let rows = model.forward(&[Segment { seq, tokens, logits }]).expect("the tokens fit").logits.to_vec();
    let n_wanted = logits.count(tokens.len());
    assert_eq!(
        rows.len(),
        n_wanted * model.info().n_vocab,
        "{logits:?} of {} tokens gives {n_wanted} rows",
        tokens.len()
    );
    assert_eq!(model.n_tokens(seq), before + tokens.len(), "computed tokens are part of the sequence");
    rows
}

/// Returns the logits of all tokens, computed at once: the reference of the other checks.
fn whole(model: &mut dyn TokenModel, case: &Case<'_>) -> Vec<f32> {
    let seq = open(model);
    let whole = rows(model, seq, case.tokens, LogitRows::All);
    model.close(seq);
    assert!(whole.iter().all(|x| x.is_finite()), "logits are finite");
    whole
}

/// Compares logits with rows of the reference, the first of which is row `first`.
fn compare(model: &dyn TokenModel, what: &str, whole: &[f32], first: usize, found: &[f32], tolerance: f32) {
    let expected = &whole[first * model.info().n_vocab..][..found.len()];
    let largest = expected.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let is_same = match tolerance {
        0.0 => expected.iter().zip(found).all(|(a, b)| a.to_bits() == b.to_bits()),
        tolerance => largest <= tolerance,
    };
    assert!(is_same, "{what}: logits differ by {largest:e}, the backend promises {tolerance:e}");
}
