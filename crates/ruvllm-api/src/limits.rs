//! Limits that end an answer before the model does: its time, and lines that are indented less than asked. Editors set them
//! for what they suggest while somebody types.

use ruvllm_engine::{CancelToken, FinishReason, GenerationSummary};
use web_time::{Duration, Instant};

use crate::fields::{Field, Kind, ValidBody, optional};

/// The most time of an answer.
pub const T_MAX_PREDICT: Field = optional(
    "t_max_predict_ms",
    Kind::Int(0, 1 << 40),
    "end the answer so long after its first token, once it has a whole line; 0 does not",
);
/// The fewest blanks in front of its lines.
pub const N_INDENT: Field = optional(
    "n_indent",
    Kind::Int(0, 1 << 20),
    "end the answer where a line after its first is indented by fewer blanks and tabs; 0 does not",
);

/// The limits of one answer, and its text as far as it came.
#[derive(Debug)]
pub struct AnswerLimits {
    time_max: Duration,
    n_indent: usize,
    cancel: CancelToken,
    began: Option<Instant>,
    text: String,
    has_line: bool,
    /// Where the text begins whose indentation is not known yet.
    line: Option<usize>,
    is_cut: bool,
}

impl AnswerLimits {
    /// Returns the limits that a request sets; none if it sets none. `cancel` ends the answer.
    pub fn of(given: &ValidBody, cancel: &CancelToken) -> Option<AnswerLimits> {
        let limit = |field: &Field| given.int(field.name).filter(|&limit| limit > 0);
        let (ms, n_indent) = (limit(&T_MAX_PREDICT), limit(&N_INDENT));
        (ms.is_some() || n_indent.is_some()).then(|| AnswerLimits {
            time_max: ms.map_or(Duration::MAX, |ms| Duration::from_millis(ms as u64)),
            n_indent: n_indent.unwrap_or(0) as usize,
            cancel: cancel.clone(),
            began: None,
            text: String::new(),
            has_line: false,
            line: None,
            is_cut: false,
        })
    }

    /// Takes the next piece of the answer, and leaves of it what is within the limits.
    pub fn take(&mut self, piece: &mut String) {
        if self.is_cut {
            return piece.clear();
        }
        let (began, n_before) = (*self.began.get_or_insert_with(Instant::now), self.text.len());
        self.text.push_str(piece);
        if let Some(end) = self.outdented(n_before) {
            self.text.truncate(end);
            piece.truncate(end - n_before);
            self.is_cut = true;
        }
        self.has_line |= piece.contains('\n');
        self.is_cut |= self.has_line && began.elapsed() > self.time_max;
        if self.is_cut {
            self.cancel.cancel();
        }
    }

    /// Returns where a line begins to say something that is indented too little, behind what was there before.
    fn outdented(&mut self, n_before: usize) -> Option<usize> {
        if self.n_indent == 0 {
            return None;
        }
        for (at, c) in self.text[n_before..].char_indices().map(|(at, c)| (n_before + at, c)) {
            match (self.line, c) {
                (Some(line), c) if c != ' ' && c != '\t' => {
                    if at - line < self.n_indent {
                        return Some(at);
                    }
                    self.line = (c == '\n').then_some(at + 1);
                }
                (None, '\n') => self.line = Some(at + 1),
                _ => {}
            }
        }
        None
    }

    /// Has an answer that was cut end as one that is long enough.
    pub fn end(&self, summary: &mut GenerationSummary) {
        if self.is_cut {
            (summary.finish_reason, summary.stopped_by) = (FinishReason::Length, None);
            summary.text.truncate(self.text.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(fields: serde_json::Value, pieces: &[&str], expected: &str) {
        let given = ValidBody::check(fields, &[T_MAX_PREDICT, N_INDENT], &[]).expect("limits");
        let cancel = CancelToken::default();
        let mut cut = AnswerLimits::of(&given, &cancel).expect("there is one");
        let mut told = String::new();
        for piece in pieces {
            let mut piece = (*piece).to_owned();
            cut.take(&mut piece);
            told.push_str(&piece);
            std::thread::sleep(Duration::from_millis(3));
        }
        assert_eq!(told, expected, "{pieces:?}");
        assert_eq!(cancel.is_cancelled(), pieces.concat() != expected, "{pieces:?}");
    }

    #[test]
    fn a_line_that_is_indented_less_ends_an_answer() {
        check(json!({ "n_indent": 4 }), &["a\n", "  ", "  b\n    c"], "a\n    b\n    c");
        check(json!({ "n_indent": 4 }), &["a\n  ", "  b\n  c", "d"], "a\n    b\n  ");
        check(json!({ "n_indent": 2 }), &["  a\nb"], "  a\n");
        check(json!({ "n_indent": 1 }), &["a\n\tb\n", "\nc"], "a\n\tb\n");
    }

    #[test]
    fn a_time_ends_an_answer_that_has_a_line() {
        check(json!({ "t_max_predict_ms": 1 }), &["a", "b", "c\nd", "e"], "abc\nd");
        check(json!({ "t_max_predict_ms": 10_000 }), &["a", "b\n", "c"], "ab\nc");
        assert!(AnswerLimits::of(&ValidBody::default(), &CancelToken::default()).is_none());
    }
}
