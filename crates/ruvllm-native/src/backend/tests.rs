//! A stale entry shows: logits with a prefix cache against logits without.

use ruvllm_testkit::Golden;

use super::*;
use crate::load::LoadOptions;

/// Computes what is not known of `tokens` and returns the bits of the last logits, and how many tokens were known.
fn bits(backend: &mut NativeBackend, tokens: &[u32]) -> (Vec<u32>, usize) {
    let (seq, n_known) = backend.open(Some(tokens), &CacheSalt::default()).expect("a free sequence");
    let rest = Segment { seq, tokens: &tokens[n_known..], logits: LogitRows::Last };
    let logits = backend.forward(&[rest]).expect("it fits").logits.iter().map(|x| x.to_bits()).collect();
    backend.close(seq);
    (logits, n_known)
}

/// What the tests of the prefix cache compare would show an entry that holds what other tokens wrote.
#[test]
fn a_planted_stale_entry_changes_the_logits() {
    let path = Golden::load("llama-a").model("f32");
    let mut backend = NativeBackend::load(&path, &LoadOptions::default(), &mut |_| {}).expect("it loads");
    let tokens: Vec<u32> = (0..40).collect();
    let mut other = tokens.clone();
    other[20] = 7;
    let (expected, n_known) = bits(&mut backend, &tokens);
    assert_eq!((n_known, bits(&mut backend, &tokens)), (0, (expected.clone(), 39)));
    backend.clear_cache();
    // Planted: the blocks of other tokens under the name of these.
    let (seq, _) = backend.open(Some(&other), &CacheSalt::default()).expect("a free sequence");
    backend.forward(&[Segment { seq, tokens: &other, logits: LogitRows::None }]).expect("it fits");
    backend.kv.plant(seq, &tokens);
    backend.close(seq);
    let (stale, n_known) = bits(&mut backend, &tokens);
    assert_eq!(n_known, 39);
    assert_ne!(stale, expected);
    backend.clear_cache();
    assert_eq!(bits(&mut backend, &tokens), (expected, 0));
}
