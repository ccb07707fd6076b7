//! Capabilities: whatever a backend says it has keeps its own promises.

use super::{Case, compare, open, rows};
use crate::{CacheSalt, LogitRows, Segment, TokenModel};

pub(super) fn check(model: &mut dyn TokenModel, case: &Case<'_>, whole: &[f32]) {
    if model.paged_kv().is_some() {
        room(model, case);
        prefixes(model, case, whole);
    }
    if model.hidden_states().is_some() {
        hidden_states(model, case);
    }
    if model.embeddings().is_some() {
        embeddings(model, case);
    }
}

/// Every block is free, cached or in use, and a reservation takes what it says.
fn room(model: &mut dyn TokenModel, case: &Case<'_>) {
    let sum = |model: &dyn TokenModel| {
        let usage = model.paged_kv().expect("it has one").usage();
        assert_eq!(usage.free + usage.cached_only + usage.in_use, usage.total, "every block has one owner: {usage:?}");
        usage
    };
    let before = sum(model);
    let seq = open(model);
    let kv = model.paged_kv_mut().expect("it has one");
    kv.reserve(seq, case.tokens.len()).expect("there is room");
    let too_many = usize::MAX / 2;
    kv.reserve(seq, too_many).expect_err("no cache is that large");
    assert!(kv.bytes_for(case.tokens.len()) >= kv.bytes_for(1), "more tokens take no less");
    rows(model, seq, case.tokens, LogitRows::Last);
    let kv = model.paged_kv().expect("it has one");
    assert!(kv.sequence_bytes(seq) > 0, "a sequence holds bytes");
    assert!(sum(model).in_use > before.in_use, "blocks of an open sequence are in use");
    model.paged_kv_mut().expect("it has one").discard(seq);
    assert_eq!(sum(model).in_use, before.in_use, "blocks of a closed sequence are free");
}

/// A cached prefix is found by the same tokens in the same salt, and by no others.
fn prefixes(model: &mut dyn TokenModel, case: &Case<'_>, whole: &[f32]) {
    let (tokens, salt, other) = (case.tokens, CacheSalt::from(7), CacheSalt::from(8));
    let matched = |model: &dyn TokenModel, tokens: &[u32], salt: &CacheSalt| {
        let kv = model.paged_kv().expect("it has one");
        kv.match_prefix(tokens, salt).map(|cached| cached.n_tokens)
    };
    let Some(n_cold) = matched(model, tokens, &salt) else { return };
    assert_eq!(n_cold, 0, "nobody computed these tokens in this salt");
    let (seq, n_known) = model.open(Some(tokens), &salt).expect("a sequence is free");
    assert_eq!(n_known, 0, "a cold prompt is computed");
    rows(model, seq, tokens, LogitRows::None);
    model.close(seq);
    let n_cached = matched(model, tokens, &salt).expect("it has a cache");
    assert!(n_cached > 0 && n_cached < tokens.len(), "{n_cached} of {} tokens are cached", tokens.len());
    assert_eq!(matched(model, tokens, &other), Some(0), "another salt finds nothing");
    let (seq, n_known) = model.open(Some(tokens), &salt).expect("a sequence is free");
    assert_eq!((n_known, model.n_tokens(seq)), (n_cached, n_cached), "a warm prompt starts with what is cached");
    let found = rows(model, seq, &tokens[n_known..], LogitRows::All);
    compare(model, "after a cached prefix", whole, n_known, &found, case.tolerances.reuse);
    model.paged_kv_mut().expect("it has one").discard(seq);
    model.paged_kv_mut().expect("it has one").clear_cache();
    assert_eq!(matched(model, tokens, &salt), Some(0), "a cleared cache has nothing");
}

/// The head makes the same logits of final hidden states as a pass.
fn hidden_states(model: &mut dyn TokenModel, case: &Case<'_>) {
    let n_embd = model.info().n_embd;
    let seq = open(model);
    let states =
        model.forward(&[Segment { seq, tokens: case.tokens, logits: LogitRows::Tail(3) }]).expect("the tokens fit");
    let (hidden, logits) = (states.rows.hidden.to_vec(), states.logits.to_vec());
    assert_eq!(hidden.len(), 3 * n_embd, "each row with logits has its final hidden state");
    let mut again = Vec::new();
    let states = model.hidden_states_mut().expect("it has them");
    states.logits_of(&hidden, &mut again).expect("the states are whole rows");
    assert!(logits.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()), "the head alone gives the same bits");
    let all = LogitRows::TailOfStates(1);
    model.close(seq);
    let seq = open(model);
    let states = model.forward(&[Segment { seq, tokens: case.tokens, logits: all }]).expect("the tokens fit");
    assert_eq!(states.rows.hidden.len(), case.tokens.len() * n_embd, "{all:?} gives the states of all rows");
    model.close(seq);
}

/// A vector of a text has unit length and is the same the second time.
fn embeddings(model: &mut dyn TokenModel, case: &Case<'_>) {
    let n_embd = model.info().n_embd;
    let mut embed = || {
        let embeddings = model.embeddings().expect("it has them");
        embeddings.embed(case.tokens, None, &Default::default()).expect("the tokens fit")
    };
    let vector = embed();
    assert_eq!(vector.len(), n_embd, "a vector is as wide as the model");
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!((length - 1.0).abs() < 1e-4, "a vector has unit length, not {length}");
    assert!(
        vector.iter().zip(embed()).all(|(a, b)| a.to_bits() == b.to_bits()),
        "a vector is the same the second time"
    );
}
