//! A model of a few values whose domains pull at some of them: what is forgotten, held, replayed and judged.

use super::*;

/// Values of the adapter.
const N: usize = 6;

/// Domain `d`, a sequence's first token, asks for a value of 1 or -1 at the places `d`, `d + 1` and `d + 2`: half of them are those of its
/// neighbours. The second token shifts a sequence a little.
struct Pulls {
    n_trained: usize,
    fails: bool,
}

fn wish(sequence: &TrainingSequence, i: usize) -> Option<f32> {
    let d = sequence.tokens[0] as usize;
    let shift = (sequence.tokens[1] as f32 * 2.4).sin() * 0.1;
    (i >= d && i < d + 3).then_some(if d.is_multiple_of(2) { 1.0 + shift } else { -1.0 + shift })
}

fn gradient(values: &AdapterValues, sequence: &TrainingSequence) -> AdapterValues {
    let one = |(i, x): (usize, &f32)| wish(sequence, i).map_or(0.0, |wish| x - wish);
    vec![values[0].iter().enumerate().map(one).collect()]
}

impl DeepModel for Pulls {
    fn fresh(&mut self) -> Result<AdapterValues, SonaError> {
        Ok(vec![vec![0.0; N]])
    }

    fn train(
        &mut self,
        start: &AdapterValues,
        sequences: &[TrainingSequence],
        n_epochs: f64,
        penalty: &mut Penalty<'_>,
    ) -> Result<AdapterValues, SonaError> {
        self.n_trained += sequences.len();
        if self.fails {
            return Err(SonaError::new(SonaErrorKind::Io, "stopped"));
        }
        let mut values = start.clone();
        for _ in 0..(n_epochs * 200.0) as usize {
            let mut sum = vec![vec![0.0; N]];
            for sequence in sequences {
                let one = gradient(&values, sequence);
                sum[0].iter_mut().zip(&one[0]).for_each(|(s, g)| *s += g / sequences.len() as f32);
            }
            penalty(&values, &mut sum);
            values[0].iter_mut().zip(&sum[0]).for_each(|(x, g)| *x -= 0.02 * g);
        }
        Ok(values)
    }

    fn gradients(
        &mut self,
        values: &AdapterValues,
        sequences: &[TrainingSequence],
        each: &mut dyn FnMut(&[Vec<f32>]),
    ) -> Result<(), SonaError> {
        sequences.iter().for_each(|sequence| each(&gradient(values, sequence)));
        Ok(())
    }

    fn losses(&mut self, values: &AdapterValues, sequences: &[TrainingSequence]) -> Result<Vec<f64>, SonaError> {
        let one = |sequence: &TrainingSequence| {
            gradient(values, sequence)[0].iter().map(|g| 0.5 * f64::from(g * g)).sum::<f64>() + 1.0
        };
        Ok(sequences.iter().map(one).collect())
    }
}

fn task(d: u32) -> DeepTask {
    let sequence = |i: u32| TrainingSequence { tokens: vec![d, i, 0], n_read: 1 };
    DeepTask {
        domain: format!("domain {d}"),
        sequences: (0..12).map(sequence).collect(),
        holdout: (12..24).map(sequence).collect(),
        controls: Vec::new(),
    }
}

fn plain() -> DeepOptions {
    DeepOptions { consolidation: None, replay_share: 0.0, gate: None, strength: 50.0, ..DeepOptions::default() }
}

/// Learns domains 0, 1 and 3, the second of which wants the opposite of the first; returns how much the loss of the first rose since
/// it was learned.
fn forgotten(options: &DeepOptions) -> f64 {
    let mut model = Pulls { n_trained: 0, fails: false };
    let mut state = DeepState::new(&mut model, options).expect("options");
    let of_first = |state: &DeepState, model: &mut Pulls| {
        model.losses(state.values(), &task(0).holdout).expect("losses").iter().sum::<f64>() / 12.0
    };
    state.run(&task(0), options, &mut model).expect("a run");
    let learned = of_first(&state, &mut model);
    for d in [1, 3] {
        state.run(&task(d), options, &mut model).expect("a run");
    }
    of_first(&state, &mut model) - learned
}

#[test]
fn what_holds_forgets_less_and_the_gate_least() {
    let none = forgotten(&plain());
    let replay = DeepOptions { replay_share: 1.0, ..plain() };
    let gate = DeepOptions { gate: Some(PublicationGate::default()), ..replay };
    assert!(none > 1.0, "{none}");
    for (name, options) in [
        ("EWC", DeepOptions { consolidation: Some(Consolidation::Ewc), ..plain() }),
        ("online", DeepOptions { consolidation: Some(Consolidation::Online { keep: 0.9 }), ..plain() }),
        ("EWC++", DeepOptions { consolidation: Some(Consolidation::PlusPlus { newest: 0.5 }), ..plain() }),
        ("replay", replay),
    ] {
        let rise = forgotten(&options);
        assert!(rise < 0.9 * none, "{name}: {rise} against {none}");
    }
    let rise = forgotten(&gate);
    assert!(rise < 0.015, "{rise} behind the gate");
}

#[test]
fn what_is_discarded_leaves_nothing_and_runs_repeat() {
    let options = DeepOptions { gate: Some(PublicationGate::default()), replay_share: 0.5, ..DeepOptions::default() };
    let run = || {
        let mut model = Pulls { n_trained: 0, fails: false };
        let mut state = DeepState::new(&mut model, &options).expect("options");
        let first = state.run(&task(0), &options, &mut model).expect("a run").expect("judged");
        assert!(first.is_published, "{}", first.why);
        let known = (state.values.clone(), state.ewc.clone(), state.domains.clone());
        // What is held back says the opposite of what is learned.
        let wrong = DeepTask { domain: "wrong".into(), holdout: task(1).holdout, ..task(2) };
        let second = state.run(&wrong, &options, &mut model).expect("a run").expect("judged");
        assert!(!second.is_published && second.controls[0].name == "domain 0", "{}", second.why);
        assert!((state.values.clone(), state.ewc.clone(), state.domains.clone()) == known);
        model.fails = true;
        let before = state.snapshot();
        assert!(state.run(&task(3), &options, &mut model).is_err());
        assert!(state.run(&DeepTask::default(), &options, &mut model).is_err() && state.snapshot() == before);
        model.fails = false;
        let harmless = DeepTask { controls: vec![("prose".into(), task(0).holdout)], ..task(3) };
        let third = state.run(&harmless, &options, &mut model).expect("a run").expect("judged");
        assert!(third.is_published && third.controls.len() == 2, "{}", third.why);
        assert_eq!(model.n_trained, 12 + 18 + 12 + 6 + 18 - 6 + 6);
        state
    };
    let state = run();
    let bytes = state.snapshot();
    assert!(run().snapshot() == bytes && DeepState::restore(&bytes).expect("its own bytes") == state);
    for cut in (0..bytes.len()).step_by(7) {
        assert!(DeepState::restore(&bytes[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn reservoirs_are_bounded_and_of_all_that_came() {
    let options = DeepOptions { n_kept: 8, replay_share: 1.0, ..plain() };
    let mut model = Pulls { n_trained: 0, fails: false };
    let mut state = DeepState::new(&mut model, &options).expect("options");
    for round in 0..6 {
        let mut more = task(0);
        more.sequences.iter_mut().for_each(|sequence| sequence.tokens[2] = round);
        state.run(&more, &DeepOptions { n_epochs: 0.01, ..options }, &mut model).expect("a run");
    }
    let domain = &state.domains[0];
    assert_eq!((domain.replay.len(), domain.holdout.len(), domain.n_seen), (8, 8, [72, 72]));
    let rounds: std::collections::BTreeSet<u32> = domain.replay.iter().map(|sequence| sequence.tokens[2]).collect();
    assert!(rounds.len() >= 3, "of the rounds {rounds:?}");
}

#[test]
fn good_trajectories_are_picked() {
    let one = |request: u64, quality: Option<f32>, n_prompt: u32, n_answer: u32| Trajectory {
        request,
        quality,
        unix_ms: request,
        prompt: (0..n_prompt).collect(),
        answer: (100..100 + n_answer).collect(),
        ..Trajectory::default()
    };
    let all = [
        one(1, Some(0.9), 4, 6),
        one(2, Some(1.0), 50, 6),
        one(3, None, 4, 6),
        one(4, Some(0.2), 4, 6),
        one(5, Some(1.0), 4, 60),
        one(6, Some(0.9), 4, 0),
        one(7, Some(0.9), 0, 5),
        one(8, Some(0.95), 4, 6),
    ];
    let (sequences, holdout) =
        select_sequences(&all, &SelectOptions { quality_min: 0.5, n_tokens_max: 1000, n_tokens_cut: 20 });
    let shape = |sequence: &TrainingSequence| (sequence.tokens.len(), sequence.n_read);
    // The best first, of equals the newer: an answer with little room for its prompt, then a prompt of which the end stays.
    assert_eq!(sequences.iter().map(shape).collect::<Vec<_>>(), [(20, 1), (20, 14), (10, 4), (5, 1)]);
    assert_eq!(sequences[1].tokens[..2], [36, 37]);
    assert_eq!(holdout.iter().map(shape).collect::<Vec<_>>(), [(10, 4)]);
    assert_eq!(
        select_sequences(&all, &SelectOptions { quality_min: 0.5, n_tokens_max: 35, n_tokens_cut: 20 })
            .0
            .iter()
            .map(shape)
            .collect::<Vec<_>>(),
        [(20, 1), (10, 4), (5, 1)]
    );
}
