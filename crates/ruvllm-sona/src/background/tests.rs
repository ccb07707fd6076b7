//! The background loop over a toy model: what a merge keeps, what is held, and that the log plays it again.

use std::sync::Arc;

use ruvllm_kernels::Isa;

use super::*;
use crate::history::{HistoryLimits, Setup};
use crate::instant::{LearnOptions, MicroOptions, RequestTrace};
use crate::store::{self, OpenOptions};
use crate::toy::{Toy, text};

fn history(toy: &mut Toy, store: &Arc<dyn crate::store::Store>) -> History {
    let setup = Setup {
        calibration: Arc::clone(&toy.calibration),
        options: LearnOptions::default(),
        compute: Isa::best().into(),
        limits: HistoryLimits::default(),
    };
    History::open(Arc::clone(store), "a", setup, toy).expect("a history")
}

/// MicroLoRA at half its rate: what a merge costs shows in steps that do not overshoot on 120 tokens read again and again.
fn only_micro() -> LearnOptions {
    LearnOptions {
        datastore: None,
        micro: Some(MicroOptions { rate: 5e-4, ..MicroOptions::default() }),
        ..LearnOptions::default()
    }
}

#[test]
fn a_merge_changes_nothing_and_what_moved_stays() {
    let toy = Toy::new();
    let mut learned = toy.learned(only_micro());
    let before = toy.read(&learned, &mut RequestTrace::default(), &text(1)).0;
    (0..12).for_each(|_| _ = toy.learn(&mut learned, &text(1), 1.0));
    let known = toy.read(&learned, &mut RequestTrace::default(), &text(1)).0;
    let how = Consolidate { strength: 0.0, ..Consolidate::default() };
    learned.consolidate(&how).expect("a MicroLoRA");
    let merged = toy.read(&learned, &mut RequestTrace::default(), &text(1)).0;
    assert!((merged - known).abs() < 1e-4 * known && known < before, "{before}, {known}, {merged}");
    assert_eq!(learned.micro().map(|micro| micro.rank()), Some(12));
    // Other text is learned on; the first is forgotten less than by MicroLoRA alone, which has no room for both.
    let mut alone = toy.learned(only_micro());
    (0..12).for_each(|_| _ = toy.learn(&mut alone, &text(1), 1.0));
    for _ in 0..4 {
        for _ in 0..6 {
            toy.learn(&mut learned, &text(6), 1.0);
            toy.learn(&mut alone, &text(6), 1.0);
        }
        learned.consolidate(&how).expect("a MicroLoRA");
    }
    let after = |learned: &crate::Learned| toy.read(learned, &mut RequestTrace::default(), &text(1)).0;
    assert!(after(&learned) < 1.02 * after(&alone), "{} against {}", after(&learned), after(&alone));
    let (one, other) = (
        toy.read(&learned, &mut RequestTrace::default(), &text(6)).0,
        toy.read(&alone, &mut RequestTrace::default(), &text(6)).0,
    );
    assert!(one < 1.02 * other, "{one} against {other}: it still learns");
    // Off is off, and what makes no sense changes nothing.
    let bytes = learned.snapshot();
    assert!(learned.consolidate(&Consolidate { share: 0.0, ..how }).is_err() && learned.snapshot() == bytes);
    let restored = crate::Learned::restore(&bytes, Arc::clone(&toy.calibration), only_micro(), Isa::best());
    let restored = restored.expect("its own bytes");
    assert!(restored.snapshot() == bytes);
    assert_eq!(after(&restored).to_bits(), after(&learned).to_bits());
    learned.configure(LearnOptions { micro: None, ..only_micro() }).expect("options");
    assert!(learned.micro().is_none() && learned.consolidate(&how).is_err());
}

#[test]
fn runs_are_due_bounded_and_in_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store::open(&folder.path().join("sona.redb"), &OpenOptions::default()).expect("a store");
    let mut toy = Toy::new();
    let mut one = history(&mut toy, &store);
    let options =
        BackgroundOptions { n_tokens: 200, interval: Duration::from_secs(3600), ..BackgroundOptions::default() };
    let mut background = Background::new(options, &one);
    let learn_document = |history: &mut History, toy: &mut Toy, seed: u32| {
        let span = crate::history::Span {
            tokens: text(seed),
            n_read: 1,
            n_remembered: 1,
            question: None,
            n_step: 32,
            skipped: Vec::new(),
            is_approx: false,
        };
        history.learn_document(span, 1.0, toy).expect("a span");
    };
    learn_document(&mut one, &mut toy, 1);
    assert!(!background.is_due(&one), "119 tokens");
    learn_document(&mut one, &mut toy, 2);
    assert!(background.is_due(&one));
    let report = background.run(&mut one, None).expect("a store");
    assert!(report.is_consolidated && report.n_due == 0 && !background.is_due(&one));
    // A budget of nothing merges and rehearses nothing; what is due stays due.
    background.options.budget = Duration::ZERO;
    learn_document(&mut one, &mut toy, 3);
    let report = background.run(&mut one, None).expect("a store");
    assert!(report.is_consolidated && report.n_due > 0);
    assert!(!background.run(&mut one, None).expect("a store").is_consolidated, "nothing new");
    let state = one.state();
    assert!(history(&mut toy, &store).state() == state, "played again without a clock");
}
