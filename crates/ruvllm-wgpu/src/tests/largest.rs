//! Rows of which the largest logits alone are wanted: they are those of the whole row, with the same bits.

use ruvllm_backend::{CacheSalt, LogitRows, Segment, SeqId, TokenModel};
use ruvllm_testkit::{Golden, real_model};

use super::{load, options};
use crate::{WgpuBackend, WgpuOptions};

/// Returns the ids of a row, the largest logit first, the lower id first among equals.
fn ranked(row: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..row.len()).collect();
    ids.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).expect("numbers").then(a.cmp(&b)));
    ids
}

/// Asserts that rows have the `n_best` largest logits of whole ones, with their bits, and at most `n_max` logits.
fn check(what: &str, found: &[f32], whole: &[f32], [n_vocab, n_best, n_max]: [usize; 3]) {
    assert_eq!(found.len(), whole.len(), "{what}");
    for (i, (found, whole)) in found.chunks_exact(n_vocab).zip(whole.chunks_exact(n_vocab)).enumerate() {
        for id in ranked(whole).into_iter().take(n_best) {
            assert_eq!(found[id].to_bits(), whole[id].to_bits(), "{what}, row {i}, token {id}");
        }
        let is_there = |&id: &usize| found[id] != f32::NEG_INFINITY;
        assert!((0..n_vocab).filter(is_there).all(|id| found[id].to_bits() == whole[id].to_bits()), "{what}, row {i}");
        let n = (0..n_vocab).filter(is_there).count();
        assert!(n >= n_best && n <= n_max, "{what}, row {i}: {n} logits");
    }
}

/// Computes the same tokens twice: for the wanted rows, and for whole ones.
fn both(model: &mut WgpuBackend, seq: SeqId, tokens: &[u32], logits: LogitRows) -> [Vec<f32>; 2] {
    let whole = LogitRows::Tail(logits.count(tokens.len()));
    [logits, whole].map(|logits| {
        let len = model.n_tokens(seq);
        let rows = model.forward(&[Segment { seq, tokens, logits }]).expect("it fits").logits.to_vec();
        model.rewind(seq, len).expect("it goes back");
        rows
    })
}

#[test]
fn the_largest_logits_are_those_of_the_row() {
    for (name, n_more) in [("llama-a", 0), ("gemma2-a", 1), ("granite-a", 1), ("cohere2-a", 1)] {
        let golden = Golden::load(name);
        let mut model = load(&golden.model("f32"), &options(golden.n_ctx));
        let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
        for (n_tail, n_best) in [(1, 40), (12, 40), (12, 2), (12, 127), (12, 128), (12, 129), (1, 512), (1, 10_000)] {
            let [found, whole] = both(&mut model, seq, &golden.tokens[..12], LogitRows::Top { n_tail, n_best });
            let n_max = if n_best + n_more <= 128 { n_best + n_more } else { golden.n_vocab };
            let n_best = n_best.min(golden.n_vocab);
            check(&format!("{name}, {n_best} of {n_tail}"), &found, &whole, [golden.n_vocab, n_best, n_max]);
        }
    }
}

/// Rows of a batch get as many as the one that wants most; whole ones if one wants all.
#[test]
fn a_batch_has_what_each_of_its_rows_wants() {
    let golden = Golden::load("llama-a");
    let mut model = load(&golden.model("f32"), &WgpuOptions { n_seq_max: 3, ..options(golden.n_ctx) });
    let seqs: Vec<SeqId> =
        (0..3).map(|_| model.open(None, &CacheSalt::default()).expect("a sequence is free").0).collect();
    let mut rows = |wanted: [LogitRows; 3]| {
        let segments: Vec<Segment<'_>> = (seqs.iter().zip(wanted).enumerate())
            .map(|(i, (seq, logits))| Segment { seq: *seq, tokens: &golden.tokens[i..i + 5], logits })
            .collect();
        let rows = model.forward(&segments).expect("they fit").logits.to_vec();
        seqs.iter().for_each(|seq| model.rewind(*seq, 0).expect("it goes back"));
        rows
    };
    let top = |n_tail, n_best| LogitRows::Top { n_tail, n_best };
    let whole = rows([LogitRows::Tail(2), LogitRows::Last, LogitRows::None]);
    let found = rows([top(2, 3), top(1, 20), LogitRows::None]);
    check("a batch", &found, &whole, [golden.n_vocab, 20, 20]);
    let found = rows([top(2, 3), top(1, 1), LogitRows::None]);
    check("a greedy row beside a sampled one", &found, &whole, [golden.n_vocab, 3, 3]);
    let found = rows([top(2, 3), LogitRows::Last, LogitRows::None]);
    check("a whole row beside a sampled one", &found, &whole, [golden.n_vocab, golden.n_vocab, golden.n_vocab]);
}

/// Rows of several parts.
#[test]
fn the_largest_of_smollm2_are_those_of_the_row() {
    let mut model = load(&real_model("smollm2:135m"), &options(512));
    let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
    let (n_vocab, tokens) = (model.info().n_vocab, [6403, 1980, 253, 655]);
    for (n_tail, n_best) in [(1, 40), (4, 128)] {
        let [found, whole] = both(&mut model, seq, &tokens, LogitRows::Top { n_tail, n_best });
        check(&format!("{n_best} of {n_tail}"), &found, &whole, [n_vocab, n_best, n_best]);
    }
}

/// Passes whose logits come in several.
#[test]
fn the_largest_logits_come_in_parts() {
    let small = WgpuOptions { binding_bytes_max: Some(200_000), ..options(64) };
    let golden = Golden::load("llama-a");
    let mut model = load(&golden.model("f32"), &small);
    assert!(model.model.rows.n_outputs <= 97, "logits come in parts");
    model.model.rows.n_outputs = 5;
    let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
    let [found, whole] = both(&mut model, seq, &golden.tokens[..12], LogitRows::Top { n_tail: 12, n_best: 40 });
    check("in parts", &found, &whole, [golden.n_vocab, 40, 40]);
}
