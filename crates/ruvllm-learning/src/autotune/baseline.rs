//! What steps take by the default: with that, few large steps compare with many small ones, and text that is easy to draft
//! with text that is not.

use ruvllm_engine::tuner::Rows;

/// Steps of an answer's rows are measured apart up to so many rows.
const N_ROWS: usize = 32;
/// Steps after which a mean follows slowly: what the machine does for a while is for the windows to compare.
const N_MEAN: u32 = 200;

/// A running mean.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    n: u32,
    value: f64,
}

impl Mean {
    fn follow(&mut self, value: f64) {
        self.n = (self.n + 1).min(N_MEAN);
        self.value += (value - self.value) / f64::from(self.n);
    }

    fn known(self) -> Option<f64> {
        (self.n > 0).then_some(self.value)
    }
}

/// What steps take by the default, by their rows.
#[derive(Debug, Default)]
pub(super) struct Baseline {
    /// A step of so many rows of answers and of no prompt.
    answers: [Mean; N_ROWS],
    /// A row of a prompt.
    prompt_row: Mean,
}

impl Baseline {
    /// Returns what a step usually takes; nothing while that is not known.
    pub(super) fn seconds(&self, rows: Rows) -> Option<f64> {
        let of_prompt = if rows.n_prompt > 0 { rows.n_prompt as f64 * self.prompt_row.known()? } else { 0.0 };
        Some(self.of_answers(rows)? + of_prompt)
    }

    /// Returns what a row of a prompt usually takes.
    pub(super) fn prompt_row_seconds(&self) -> Option<f64> {
        self.prompt_row.known()
    }

    fn of_answers(&self, rows: Rows) -> Option<f64> {
        match rows.n_answer {
            0 => Some(0.0),
            n => self.answers[n.min(N_ROWS) - 1].known(),
        }
    }

    /// Takes note of a step by the default.
    pub(super) fn follow(&mut self, seconds: f64, rows: Rows) {
        match (rows.n_prompt, rows.n_answer) {
            (0, 0) => {}
            (0, n) => self.answers[n.min(N_ROWS) - 1].follow(seconds),
            // Beside answers: what is left of it.
            (n, _) => {
                let of_prompt = self.of_answers(rows).map(|of_answers| (seconds - of_answers).max(0.0));
                of_prompt.into_iter().for_each(|seconds| self.prompt_row.follow(seconds / n as f64));
            }
        }
    }
}
