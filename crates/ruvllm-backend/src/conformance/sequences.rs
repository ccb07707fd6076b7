//! Prefill, decode, chunks, batches, wanted rows, forks and going back.

use super::{Case, compare, open, rows};
use crate::{BackendErrorKind, LogitRows, Segment, TokenModel};

pub(super) fn check(model: &mut dyn TokenModel, case: &Case<'_>, whole: &[f32]) {
    chunks(model, case, whole);
    wanted_rows(model, case, whole);
    batches(model, case, whole);
    forks(model, case, whole);
    rewinds(model, case, whole);
    limits(model);
}

/// A prompt may be cut anywhere.
fn chunks(model: &mut dyn TokenModel, case: &Case<'_>, whole: &[f32]) {
    for n in [1, 2, 7, 16] {
        let seq = open(model);
        for (i, chunk) in case.tokens.chunks(n).enumerate() {
            let found = rows(model, seq, chunk, LogitRows::All);
            compare(model, &format!("chunks of {n}"), whole, i * n, &found, case.tolerances.chunks);
        }
        model.close(seq);
    }
}

/// A segment gives the rows that it wants, and the largest logits of a row are right where only those are wanted.
fn wanted_rows(model: &mut dyn TokenModel, case: &Case<'_>, whole: &[f32]) {
    let (n, n_vocab, tolerance) = (case.tokens.len(), model.info().n_vocab, case.tolerances.chunks);
    let all =
        [LogitRows::None, LogitRows::Last, LogitRows::Tail(3), LogitRows::Tail(n + 1), LogitRows::TailOfStates(2)];
    for logits in all {
        let seq = open(model);
        let found = rows(model, seq, case.tokens, logits);
        compare(model, &format!("{logits:?}"), whole, n - logits.count(n), &found, tolerance);
        model.close(seq);
    }
    let n_best = 5.min(n_vocab);
    for logits in
        [LogitRows::Top { n_tail: 2, n_best }, LogitRows::Approx { n_tail: 2, n_best: Some(n_best), has_states: false }]
    {
        let seq = open(model);
        let found = rows(model, seq, case.tokens, logits);
        for (i, row) in found.chunks(n_vocab).enumerate() {
            let expected = &whole[(n - 2 + i) * n_vocab..][..n_vocab];
            let (found, expected) = (largest(row, n_best), largest(expected, n_best));
            let is_near = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= tolerance);
            assert!(is_near, "{logits:?}: the largest logits are {found:?}, not {expected:?}");
        }
        model.close(seq);
    }
}

fn largest(row: &[f32], n: usize) -> Vec<f32> {
    let mut sorted = row.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    sorted.truncate(n);
    sorted
}

/// Sequences of a batch do not change each other, whatever each of them is at.
fn batches(model: &mut dyn TokenModel, case: &Case<'_>, whole: &[f32]) {
    let (n_vocab, tokens) = (model.info().n_vocab, case.tokens);
    let (a, b, c) = (open(model), open(model), open(model));
    rows(model, a, &tokens[..5], LogitRows::None);
    rows(model, b, &tokens[..11], LogitRows::Last);
    let segments = [
        Segment { seq: c, tokens: &tokens[..9], logits: LogitRows::Tail(4) },
        Segment { seq: a, tokens: &tokens[5..6], logits: LogitRows::Last },
        Segment { seq: b, tokens: &tokens[11..20], logits: LogitRows::All },
    ];
    let found = model.forward(&segments).expect("the batch fits").logits.to_vec();
    assert_eq!(found.len(), (4 + 1 + 9) * n_vocab, "a batch gives the wanted rows of all its segments");
    for (what, first, part) in [("first", 5, 0..4), ("second", 5, 4..5), ("third", 11, 5..14)] {
        let found = &found[part.start * n_vocab..part.end * n_vocab];
        compare(model, &format!("{what} segment of a batch"), whole, first, found, case.tolerances.batch);
    }
    [a, b, c].into_iter().for_each(|seq| model.close(seq));
}

/// A fork goes on as its parent would, and neither changes the other.
fn forks(model: &mut dyn TokenModel, case: &Case<'_>, whole: &[f32]) {
    let (tokens, tolerance) = (case.tokens, case.tolerances.reuse);
    let parent = open(model);
    rows(model, parent, &tokens[..13], LogitRows::None);
    let other = [tokens[3]; 4];
    match model.fork(parent, 13) {
        Ok(fork) => {
            assert_eq!(model.n_tokens(fork), 13, "a fork has its parent's tokens");
            rows(model, parent, &other, LogitRows::Last);
            let found = rows(model, fork, &tokens[13..], LogitRows::All);
            compare(model, "fork at the end", whole, 13, &found, tolerance);
            model.close(fork);
        }
        Err(error) => assert_eq!(error.kind(), BackendErrorKind::Unsupported, "a fork that is refused: {error}"),
    }
    match model.fork(parent, 6) {
        Ok(fork) => {
            let found = rows(model, fork, &tokens[6..], LogitRows::All);
            compare(model, "fork in the middle", whole, 6, &found, tolerance);
            model.close(fork);
        }
        Err(error) => assert_eq!(error.kind(), BackendErrorKind::Unsupported, "a fork that is refused: {error}"),
    }
    let beyond = model.n_tokens(parent) + 1;
    assert!(model.fork(parent, beyond).is_err(), "no fork beyond the end");
    model.close(parent);
}

/// A sequence that went back goes on as if it had never been further.
fn rewinds(model: &mut dyn TokenModel, case: &Case<'_>, whole: &[f32]) {
    let (tokens, n_max) = (case.tokens, model.info().n_rewind_max);
    let seq = open(model);
    rows(model, seq, &tokens[..12], LogitRows::None);
    for n in [1, 4].into_iter().filter(|&n| n <= n_max) {
        rows(model, seq, &vec![tokens[2]; n], LogitRows::Last);
        model.rewind(seq, 12).expect("it is few enough tokens");
        assert_eq!(model.n_tokens(seq), 12, "tokens that were taken back are gone");
    }
    let found = rows(model, seq, &tokens[12..], LogitRows::All);
    compare(model, "after going back", whole, 12, &found, case.tolerances.reuse);
    if tokens.len() > n_max + 1 {
        assert!(model.rewind(seq, tokens.len() - n_max - 1).is_err(), "no more than {n_max} tokens are taken back");
        assert_eq!(model.n_tokens(seq), tokens.len(), "a rewind that is refused changes nothing");
    }
    model.close(seq);
}

/// As many sequences can be open as the model says, and closing one makes room.
fn limits(model: &mut dyn TokenModel) {
    let n = model.info().n_seq_max;
    let mut all: Vec<_> = (0..n).map(|_| open(model)).collect();
    assert_eq!(model.n_free(), 0, "all sequences are open");
    assert!(model.open(None, &crate::CacheSalt::default()).is_err(), "no more than {n} sequences");
    model.close(all.pop().expect("there is one"));
    assert_eq!(model.n_free(), 1, "a closed sequence is free");
    all.push(open(model));
    for seq in all {
        model.close(seq);
        model.close(seq);
        assert_eq!(model.n_tokens(seq), 0, "a closed sequence has no tokens");
    }
}
