//! Constructed answers: some of their text can be drafted, some cannot, and a pass costs what its rows cost.

use std::sync::{Arc, Mutex};

use ruvllm_engine::tuner::steps_by_default;

use super::*;

/// What a drafted row costs, as a share of a pass of one row.
struct World {
    row_cost: f64,
    random: u64,
    /// Tokens that will still be drafted right, and those behind them that will not.
    right: usize,
    wrong: usize,
}

impl World {
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as f64 / (1u64 << 31) as f64
    }

    /// Computes a step of an answer that may draft so many tokens: what it came to.
    fn step(&mut self, n_draft_max: usize) -> StepCost {
        if self.right + self.wrong == 0 {
            (self.right, self.wrong) = ((60.0 * self.draw()) as usize, (6.0 * self.draw()) as usize);
        }
        let made = if self.right > 0 { n_draft_max } else { 0 };
        let n_accepted = self.right.min(made);
        (self.right, self.wrong) =
            (self.right - n_accepted, if self.right == n_accepted { self.wrong.saturating_sub(1) } else { self.wrong });
        let noise = 1.0 + 0.06 * (self.draw() - 0.5);
        StepCost {
            seconds: 0.01 * (1.0 + self.row_cost * made as f64) * noise,
            n_answers: 1,
            n_default_rows: 1 + made.min(8),
            n_default_steps: steps_by_default(1 + n_accepted, n_draft_max, 8),
            n_draft_max,
            n_accepted,
        }
    }
}

/// Plays steps of one workload; returns what was learned of it, in order, and what trying lost.
fn play(row_cost: f64, n_steps: usize) -> (Vec<NewPolicy>, f64) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let learned = { Arc::clone(&told) };
    let mut autotuner = Autotuner::new(
        "m",
        &SchedulerOptions::default(),
        Box::new(move |policy| learned.lock().expect("nobody broke").push(policy)),
    );
    let mut world = World { row_cost, random: 1, right: 0, wrong: 0 };
    for _ in 0..n_steps {
        let (options, choice) = autotuner.choose(&Situation { n_running: 1, n_context: 500, free_bytes: None });
        autotuner.learn(choice, &world.step(options.n_draft_max(1)));
    }
    let loss = autotuner.loss();
    drop(autotuner);
    (Arc::into_inner(told).expect("the autotuner is gone").into_inner().expect("nobody broke"), loss)
}

#[test]
fn more_guesses_are_found_where_they_are_worth_it_and_only_there() {
    let (found, loss) = play(0.05, 4000);
    let right = found.iter().find(|policy| policy.context.contains("guesses right")).expect("it is found");
    assert!(right.reason.starts_with("takes 0."), "{}", right.reason);
    assert!(loss < 0.01, "{loss}");
    let (found, loss) = play(0.4, 4000);
    assert!(found.is_empty() && loss < 0.01, "{loss}: {found:?}");
}
