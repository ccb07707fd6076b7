//! Corrections: given again, not of others, taken back when wrong.

use super::*;
use ruvllm_kernels::{Isa, distance};

const N_KEY: usize = 128;
const N_VOCAB: usize = 30;

/// A key near others of the same `place`, farther with more `noise`.
fn key(place: usize, noise: f32) -> Key {
    let value = |i: usize| (((i * 29 + place * 83 + 11) as f32) * 0.77).sin() + noise * ((i * 7) as f32 * 1.3).cos();
    let values: Vec<f32> = (0..N_KEY).map(value).collect();
    let unit = 60.0 / (1.0 + noise);
    let bytes: Vec<i8> = values.iter().map(|x| (x * unit) as i8).collect();
    let length = bytes.iter().map(|&x| f32::from(x) * f32::from(x)).sum::<f32>().sqrt();
    Key { bytes, scale: 1.0 / length }
}

fn kernels() -> &'static DistanceKernels {
    distance::pick(Isa::best())
}

/// An answer of the question at `place`: tokens one after another.
fn answer(place: usize, tokens: &[u32]) -> Vec<(Key, u32)> {
    tokens.iter().enumerate().map(|(i, &token)| (key(place + 100 * i, 0.0), token)).collect()
}

fn probabilities(corrections: &Corrections, matched: CorrectionMatch, key: &Key, said: &[u32]) -> Vec<f32> {
    let mut context = Context::default();
    [7, 7, 7].iter().chain(said).for_each(|&token| context.push(token));
    let mut logits = vec![0.0; N_VOCAB];
    let softmax = softmax::pick(Isa::best());
    corrections.adjust(matched, KnnQuery { key, context }, kernels(), softmax, &mut logits);
    softmax.softmax(&mut logits);
    logits
}

#[test]
fn an_answer_is_said_again_and_not_of_another() {
    let mut corrections = Corrections::new(N_KEY);
    let corrected = Names::of("What is the capital of Zorbia?");
    corrections.add(&corrected, &answer(1, &[4, 5, 4, 6]), Correctness::Right, kernels()).expect("an answer");
    let asked = Names::of("Tell me Zorbia's capital.");
    let matched = corrections.find(&key(1, 0.2), &asked, kernels());
    assert_eq!(matched, CorrectionMatch { right: Some(0), wrong: None });
    for (i, &token) in [4, 5, 4, 6].iter().enumerate() {
        let said = &[4, 5, 4, 6][..i];
        let p = probabilities(&corrections, matched, &key(1 + 100 * i, 0.2), said);
        assert!(p[token as usize] > 0.9, "token {i}: {p:?}");
    }
    // Past the answer, nothing is near.
    let mut far = Key { bytes: vec![0; N_KEY], scale: 0.01 };
    far.bytes[0] = 100;
    let p = probabilities(&corrections, matched, &far, &[4, 5, 4, 6]);
    assert!(p.iter().all(|&x| (x - 1.0 / N_VOCAB as f32).abs() < 1e-6));
    assert!(corrections.find(&key(1, 0.0), &Names::of("What is the capital of Quandria?"), kernels()).is_empty());
    assert!(corrections.find(&key(2, 0.0), &corrected, kernels()).is_empty());
    // What is corrected again replaces what was corrected.
    corrections.add(&corrected, &answer(1, &[9]), Correctness::Right, kernels()).expect("an answer");
    assert_eq!(corrections.len(), 1);
    assert!(probabilities(&corrections, matched, &key(1, 0.0), &[])[9] > 0.9);
}

#[test]
fn a_wrong_answer_is_taken_away() {
    let mut corrections = Corrections::new(N_KEY);
    let names = Names::of("Who wrote it?");
    corrections.add(&names, &answer(1, &[4, 5]), Correctness::Wrong, kernels()).expect("an answer");
    let matched = corrections.find(&key(1, 0.1), &names, kernels());
    let p = probabilities(&corrections, matched, &key(1, 0.1), &[]);
    assert!(p[4] < 0.1 / N_VOCAB as f32 && p[5] > 0.03, "{p:?}");
    // With the right one corrected beside it, that is said.
    corrections.add(&names, &answer(1, &[8, 5]), Correctness::Right, kernels()).expect("an answer");
    let matched = corrections.find(&key(1, 0.1), &names, kernels());
    assert_eq!(matched, CorrectionMatch { right: Some(1), wrong: Some(0) });
    assert!(probabilities(&corrections, matched, &key(1, 0.1), &[])[8] > 0.9);
}

#[test]
fn snapshots_are_the_same_and_damage_is_corrected() {
    let mut corrections = Corrections::new(N_KEY);
    for place in 0..5 {
        let names = Names::of(&format!("Where is House {place}?"));
        let verdict = if place % 2 == 0 { Correctness::Right } else { Correctness::Wrong };
        corrections.add(&names, &answer(place, &[1, 2, 3]), verdict, kernels()).expect("an answer");
    }
    let bytes = corrections.snapshot();
    assert_eq!(Corrections::restore(&bytes).expect("a snapshot"), corrections);
    for cut in [0, 8, 20, 30, 100, bytes.len() - 1] {
        assert!(Corrections::restore(&bytes[..cut]).is_err(), "{cut} bytes");
    }
    let (names, kernels) = (Names::default(), kernels());
    assert!(corrections.add(&names, &[], Correctness::Right, kernels).is_err());
    let wide = vec![(Key { bytes: vec![0; 64], scale: 1.0 }, 1)];
    assert!(corrections.add(&names, &wide, Correctness::Right, kernels).is_err());
    let long = vec![(key(1, 0.0), 1); N_TOKENS_MAX + 1];
    assert!(corrections.add(&names, &long, Correctness::Right, kernels).is_err());
}
