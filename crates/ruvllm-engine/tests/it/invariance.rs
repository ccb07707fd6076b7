//! A row's logits depend on its tokens alone: not on threads, chunks, or what else is in the batch.

use ruvllm_engine::{Engine, LoadOptions, LogitRows, Segment, architectures};
use ruvllm_testkit::{Golden, GoldenKind, real_model};

fn open(name: &str, n_threads: usize, n_seq_max: usize) -> Engine {
    let options = LoadOptions { n_threads, n_seq_max, n_ctx: Some(1024), ..LoadOptions::default() };
    Engine::load(&real_model(name), &options, &mut |_| {}).expect("a real model loads")
}

fn last_logits(engine: &mut Engine, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let seq = engine.new_sequence().expect("a free sequence");
    let mut last = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let logits = engine.forward(&[Segment { seq, tokens, logits: LogitRows::Last }]).expect("the tokens fit");
        last = logits.to_vec();
    }
    engine.free_sequence(seq);
    last
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

fn some_tokens(n: usize, n_vocab: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 7919 + 13) % n_vocab) as u32).collect()
}

/// Issue "A real model answers", 7: threads 1 and 2, prefill chunks 1, 7, 64 and 512, on each real model.
fn check_threads_and_chunks(name: &str, n_tokens: usize) {
    let mut reference = None;
    for n_threads in [1, 2, 3] {
        let mut engine = open(name, n_threads, 1);
        let tokens = some_tokens(n_tokens, engine.info().n_vocab);
        for chunk in [512, 64, 7, 1] {
            let logits = bits(&last_logits(&mut engine, &tokens, chunk));
            let reference = reference.get_or_insert_with(|| logits.clone());
            assert!(*reference == logits, "{name}: {n_threads} threads, chunks of {chunk} change bits");
        }
    }
}

#[test]
fn smollm2_is_the_same_for_any_threads_and_chunks() {
    check_threads_and_chunks("smollm2:135m", 600);
}

#[test]
fn gemma3_is_the_same_for_any_threads_and_chunks() {
    check_threads_and_chunks("gemma3:270m", 80);
}

#[test]
fn qwen_is_the_same_for_any_threads_and_chunks() {
    check_threads_and_chunks("qwen2.5-coder:0.5b", 80);
}

/// Where only some rows want logits, the last layer computes no others.
#[test]
fn wanted_rows_do_not_depend_on_those_that_are_not() {
    let mut n_models = 0;
    let is_known =
        |golden: &Golden| architectures().any(|arch| arch == golden.arch) && golden.kind == GoldenKind::Logits;
    for golden in Golden::all().into_iter().filter(is_known) {
        let options = LoadOptions { n_threads: 2, n_seq_max: 2, n_ctx: Some(golden.n_ctx), ..LoadOptions::default() };
        let mut engine = Engine::load(&golden.model("f32"), &options, &mut |_| {}).expect("a golden model loads");
        let (tokens, n_vocab) = (&golden.tokens[..golden.tokens.len().min(48)], golden.n_vocab);
        let seqs = [engine.new_sequence().expect("free"), engine.new_sequence().expect("free")];
        let segment = |i: usize, tokens, logits| Segment { seq: seqs[i], tokens, logits };
        let all = engine.forward(&[segment(0, tokens, LogitRows::All)]).expect("it fits").to_vec();
        engine.free_sequence(seqs[0]);
        let seqs = [engine.new_sequence().expect("free"), seqs[1]];
        let segment = |i: usize, tokens, logits| Segment { seq: seqs[i], tokens, logits };
        let (first, rest) = tokens.split_at(13);
        engine.forward(&[segment(0, first, LogitRows::None)]).expect("it fits");
        let some = [segment(1, &tokens[..20], LogitRows::Last), segment(0, rest, LogitRows::Tail(3))];
        let some = engine.forward(&some).expect("it fits").to_vec();
        let row = |i: usize| all[i * n_vocab..(i + 1) * n_vocab].to_vec();
        let wanted = [19, tokens.len() - 3, tokens.len() - 2, tokens.len() - 1].map(row).concat();
        assert!(bits(&some) == bits(&wanted), "{}", golden.name);
        n_models += 1;
    }
    assert!(n_models >= 20, "{n_models} models");
}

#[test]
fn sequences_in_one_batch_do_not_touch_each_other() {
    let mut engine = open("smollm2:135m", 2, 8);
    let n_vocab = engine.info().n_vocab;
    let prompts: Vec<Vec<u32>> = (0..8).map(|i| some_tokens(5 + 9 * i, n_vocab)).collect();
    let alone: Vec<_> = prompts.iter().map(|prompt| bits(&last_logits(&mut engine, prompt, 512))).collect();
    let seqs: Vec<_> = prompts.iter().map(|_| engine.new_sequence().expect("a free sequence")).collect();
    let parts = |range: fn(&Vec<u32>) -> &[u32], logits| -> Vec<Segment<'_>> {
        let pairs = seqs.iter().zip(&prompts);
        pairs.map(|(&seq, prompt)| Segment { seq, tokens: range(prompt), logits }).collect()
    };
    engine.forward(&parts(|prompt| &prompt[..prompt.len() - 1], LogitRows::None)).expect("the batch fits");
    let together = engine.forward(&parts(|prompt| &prompt[prompt.len() - 1..], LogitRows::Last)).expect("it fits");
    for (i, (row, alone)) in together.chunks_exact(n_vocab).zip(&alone).enumerate() {
        assert!(bits(row) == *alone, "sequence {i} differs in a batch of 8");
    }
}
