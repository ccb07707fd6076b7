//! Speculation: guessing the next tokens and computing them all in one pass.
//!
//! ```text
//! context … the cat sat on the │ guess: mat .        one pass computes rows for: the, mat, .
//! logits after "the" choose "mat": right, so the row of "mat" counts, and its logits choose the next one, and so on
//! ```
//! A pass of a few rows costs little more than one of a single row: both read all weights. Each token is chosen by the
//! request's own sampler from the logits of its own row, which do not depend on the other rows; so the answer is the one
//! it would be without guessing, greedy or drawn. Rows behind the first wrong guess are taken back.
//!
//! Guesses come from the text so far ([`ngram`]): what followed the last tokens when they stood there before. [`pace`]
//! says how many, and stops where they are not worth their rows.

mod ngram;
mod pace;

use std::str::FromStr;

use ngram::Index;
use pace::Pace;

/// Whether tokens are guessed ahead. It changes how fast an answer is, never what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// One token a pass.
    Off,
    /// By what followed the same tokens earlier in the prompt and the answer; by itself as long as it pays.
    #[default]
    Ngram,
}

impl FromStr for Speculation {
    type Err = String;

    fn from_str(name: &str) -> Result<Speculation, String> {
        match name {
            "off" => Ok(Speculation::Off),
            "ngram" => Ok(Speculation::Ngram),
            _ => Err(format!("'{name}' is no way to guess; use ngram or off")),
        }
    }
}

/// The guesses of one request.
pub(crate) struct Speculator {
    index: Index,
    pace: Pace,
}

impl Speculator {
    /// `None` if nothing is guessed.
    pub(crate) fn new(how: Speculation) -> Option<Speculator> {
        match how {
            Speculation::Off => None,
            Speculation::Ngram => Some(Speculator { index: Index::default(), pace: Pace::default() }),
        }
    }

    /// Appends up to `n_max` guesses to `context`, which begins with what it began with the last time.
    pub(crate) fn guess(&mut self, context: &mut Vec<u32>, n_max: usize) {
        let n = self.pace.n_ahead().min(n_max);
        if n > 0 {
            self.index.extend(context);
            self.index.continue_with(context, n);
        }
    }

    /// Takes note of what became of guesses.
    pub(crate) fn learn(&mut self, n_guessed: usize, n_right: usize) {
        self.pace.learn(n_guessed, n_right);
    }
}
