//! What steps take by the default: with that, few large steps compare with many small ones, and text that is easy to guess
//! with text that is not.

/// Steps of an answer's rows are measured apart up to so many rows.
const N_ROWS: usize = 32;
/// Steps after which a mean follows slowly: what the machine does for a while is for the windows to compare.
const N_MEAN: u32 = 200;

/// Rows of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Of prompts.
    pub n_prompt: usize,
    /// Of answers, guesses among them.
    pub n_answer: usize,
}

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
pub(super) struct Usual {
    /// A step of so many rows of answers and of no prompt.
    answers: [Mean; N_ROWS],
    /// A row of a prompt.
    prompt_row: Mean,
}

impl Usual {
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

/// Returns in how many steps the default, which guesses up to `n_default` tokens, gives so many tokens of an answer: they came in
/// one that might guess `n_guesses`. Where all of those were right the next step of the default goes on further.
pub(crate) fn steps_by_default(n_tokens: usize, n_guesses: usize, n_default: usize) -> f64 {
    let steps = n_tokens as f64 / (n_default + 1) as f64;
    let is_all = n_tokens > n_guesses;
    if is_all { steps.max(1.0) } else { steps.ceil() }
}

#[cfg(test)]
mod tests {
    use super::steps_by_default;

    #[test]
    fn steps_that_the_default_would_have_taken() {
        // (tokens, guesses) and steps of a default that guesses 8: whole ones where the last guess was wrong.
        for (n_tokens, n_guesses, steps) in
            [(1, 24, 1.0), (9, 24, 1.0), (10, 24, 2.0), (18, 24, 2.0), (25, 24, 25.0 / 9.0), (1, 0, 1.0), (9, 8, 1.0)]
        {
            assert_eq!(steps_by_default(n_tokens, n_guesses, 8), steps, "{n_tokens} of {n_guesses}");
        }
    }
}
