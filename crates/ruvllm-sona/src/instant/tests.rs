//! A model that reads one token at a time and knows nothing: what it learns, forgets and keeps to itself.

use ruvllm_kernels::Isa;
use ruvllm_lora::micro::LogitRow;

use super::*;
use crate::datastore::DatastoreOptions;
use crate::toy::{N_VOCAB, Toy, approx, changed, leave_out, log_p, logits, one, state, text};

fn without(datastore: bool, micro: bool) -> LearnOptions {
    let all = LearnOptions::default();
    LearnOptions { datastore: all.datastore.filter(|_| datastore), micro: all.micro.filter(|_| micro), ..all }
}

#[test]
fn what_is_off_or_empty_changes_no_bit() {
    let toy = Toy::new();
    let base: Vec<u32> =
        text(1).windows(2).flat_map(|pair| logits(&toy.head, &state(pair[0]))).map(|x| x.to_bits()).collect();
    for options in [without(false, false), LearnOptions::default()] {
        assert!(toy.read(&toy.learned(options), &mut RequestTrace::default(), &text(1)).1 == base);
    }
    let mut off = toy.learned(without(false, false));
    toy.learn(&mut off, &text(1), 1.0);
    assert!(toy.read(&off, &mut RequestTrace::default(), &text(1)).1 == base);
    assert!(off.datastore().is_empty() && off.micro().is_none());
}

#[test]
fn each_mechanism_learns_a_text_and_the_others_stay_as_they_were() {
    let toy = Toy::new();
    for options in [without(true, false), without(false, true), LearnOptions::default()] {
        let mut learned = toy.learned(options);
        let before = toy.read(&learned, &mut RequestTrace::default(), &text(1)).0;
        let other = toy.read(&learned, &mut RequestTrace::default(), &text(6)).0;
        for _ in 0..12 {
            toy.learn(&mut learned, &text(1), 1.0);
        }
        let after = toy.read(&learned, &mut RequestTrace::default(), &text(1)).0;
        let least = if options.datastore.is_some() { 0.5 } else { 0.99 };
        assert!(after < least * before, "{options:?}: {after} after {before}");
        if options.datastore.is_some() {
            assert!(toy.read(&learned, &mut RequestTrace::default(), &text(6)).0 < 1.15 * other);
        }
        assert_eq!(learned.n_tokens(), 12 * 119);
    }
}

#[test]
fn a_mixture_is_the_mixture_of_probabilities() {
    let toy = Toy::new();
    let mut learned = toy.learned(without(true, false));
    (0..4).for_each(|_| _ = toy.learn(&mut learned, &text(1), 1.0));
    let hidden = state(text(1)[5]);
    let mut row = logits(&toy.head, &hidden);
    // A token that a grammar ruled out stays ruled out.
    row[3] = f32::NEG_INFINITY;
    let (before, mut trace) = (row.clone(), RequestTrace::default());
    let lambda = trace.adjust(&learned, one(&hidden), &mut row);
    assert!(lambda > 0.05 && row[3] == f32::NEG_INFINITY);
    let prediction = trace.prediction.as_ref().expect("adjusted");
    let ruled_out = lambda * prediction.knn.probability(3);
    for token in (0..N_VOCAB as u32).filter(|&token| token != 3) {
        let p = (1.0 - lambda) * log_p(&before, token).exp() + lambda * prediction.knn.probability(token);
        let mixed = log_p(&row, token).exp();
        assert!((mixed - p / (1.0 - ruled_out)).abs() < 1e-5, "token {token}: {mixed} for {p}");
    }
}

#[test]
fn what_is_learned_by_rough_logits_does_not_ask_which_exact_ones_are_known() {
    let toy = Toy::new();
    let mut learned = toy.learned(LearnOptions::default());
    (0..4).for_each(|_| _ = toy.learn(&mut learned, &text(1), 1.0));
    let read = |leaves_out: bool| {
        let (mut learned, mut trace, mut likeliest) = (learned.clone(), RequestTrace::default(), Vec::new());
        let mut n_left_out = 0;
        for (at, pair) in text(1).windows(2).enumerate() {
            let hidden = state(pair[0]);
            trace.begin(&learned);
            let mut row = logits(&toy.head, &changed(&hidden, trace.micro().map(|micro| &**micro)));
            let approx = approx(&row);
            if leaves_out {
                leave_out(&mut row, at);
                n_left_out += row.iter().filter(|x| **x == f32::NEG_INFINITY).count();
            }
            trace.adjust(&learned, one(&hidden), LogitRow { exact: &mut row, approx: Some(&approx) });
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("a vocabulary");
            likeliest.push((best.0, best.1.to_bits()));
            trace.accept(&learned, pair[1], &toy);
        }
        learned.ingest(trace, 1.0);
        (likeliest, learned.snapshot(), n_left_out)
    };
    let (all, some) = (read(false), read(true));
    assert!(some.2 > 100 && all.0 == some.0 && all.1 == some.1, "{} left out", some.2);
    let hits = all.0.iter().zip(&text(1)[1..]).filter(|((token, _), next)| *token as u32 == **next).count();
    assert!(hits > 60, "the likeliest came {hits} times of 119");
}

#[test]
fn quality_nothing_leaves_nothing_and_undo_is_never_learned() {
    let toy = Toy::new();
    let mut learned = toy.learned(LearnOptions::default());
    toy.learn(&mut learned, &text(1), 1.0);
    let bytes = learned.snapshot();
    toy.learn(&mut learned, &text(2), 0.0);
    assert!(learned.snapshot() == bytes, "an answer of quality 0 was learned");
    // The log without an item, played again, gives what was there without it.
    let play = |log: &[u32]| {
        let mut learned = toy.learned(LearnOptions::default());
        log.iter().for_each(|&seed| _ = toy.learn(&mut learned, &text(seed), 0.8));
        learned.snapshot()
    };
    assert!(play(&[1, 3]) == play(&[1, 3]) && play(&[1, 2, 3]) != play(&[1, 3]));
}

#[test]
fn a_snapshot_goes_on_to_the_bit() {
    let toy = Toy::new();
    let datastore = DatastoreOptions { n_bytes_max: 300 * 84, ..DatastoreOptions::default() };
    let options = LearnOptions { datastore: Some(datastore), ..LearnOptions::default() };
    let mut learned = toy.learned(options);
    (0..4).for_each(|seed| _ = toy.learn(&mut learned, &text(seed), 0.7));
    let bytes = learned.snapshot();
    let calibration = || {
        let calibration = Calibration::restore(&toy.calibration.snapshot()).expect("a calibration");
        let basis = Arc::clone(toy.calibration.basis().expect("of the toy"));
        calibration.with_basis(basis).expect("a width")
    };
    let restore = |bytes: &[u8], options| {
        let block = toy.calibration.seat().0.clone().expect("of the toy");
        let calibration = calibration().with_block(block).expect("a width");
        Learned::restore(bytes, Arc::new(calibration), options, Isa::best())
    };
    let mut again = restore(&bytes, options).expect("a snapshot");
    for seed in 2..6 {
        let (a, b) = (toy.learn(&mut learned, &text(seed), 1.0), toy.learn(&mut again, &text(seed), 1.0));
        assert_eq!(a.to_bits(), b.to_bits());
    }
    assert!(learned.snapshot() == again.snapshot() && learned.datastore().n_evicted() > 0);
    for cut in [0, 8, 30, 40, 100, bytes.len() / 2, bytes.len() - 1] {
        assert!(restore(&bytes[..cut], options).is_err(), "{cut} bytes");
    }
    assert!(restore(&bytes, without(true, false)).is_err() && restore(&bytes, LearnOptions::default()).is_err());
    let outside = Learned::restore(&bytes, Arc::new(calibration()), options, Isa::best());
    assert!(outside.is_err(), "what sits inside a block has none");
}

#[test]
fn steps_come_when_a_piece_is_complete() {
    let toy = Toy::new();
    let mut learned = toy.learned(without(false, true));
    let mut trace = RequestTrace::default();
    assert_eq!(trace.n_until_step(&learned), 32);
    toy.read(&learned, &mut trace, &text(1)[..41]);
    assert_eq!((trace.n_until_step(&learned), trace.len()), (24, 40));
    learned.step(&mut trace, 1.0);
    assert_eq!(learned.micro().map(|micro| micro.n_updates()), Some(1));
    toy.read(&learned, &mut trace, &text(1)[40..60]);
    learned.step(&mut trace, 1.0);
    assert_eq!(learned.micro().map(|micro| micro.n_updates()), Some(1));
    learned.ingest(trace, 1.0);
    assert_eq!(learned.micro().map(|micro| micro.n_updates()), Some(2));
    assert!(
        Learned::new(
            Arc::clone(&toy.calibration),
            LearnOptions { temperature: 0.0, ..without(true, true) },
            Isa::best()
        )
        .is_err()
    );
}
