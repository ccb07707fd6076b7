//! Scores of an answer, computed behind it on the log's thread: its text as vectors of words, its tokens, its grammar.

use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_router::HashedWords;
use ruvllm_sona::now_ms;
use ruvllm_sona::quality::{Answered, Checked, Scorer};
use ruvllm_sona::witness::Served;

use ruvllm_engine::{FinishReason, GenerationSummary, Grammar};

/// Values of a vector of words.
const DIM: usize = 256;
/// Characters of a question and an answer that are looked at, and sentences.
const N_CHARS_MAX: usize = 16 << 10;
const N_PARTS_MAX: usize = 256;

/// What is needed of an answer to score it.
pub(crate) struct Judged {
    pub scorer: Arc<Mutex<Scorer>>,
    pub tenant: String,
    pub question: Option<String>,
    pub text: String,
    pub tokens: Vec<u32>,
    pub finish: FinishReason,
    pub grammar: Option<Grammar>,
}

impl Judged {
    pub(crate) fn new(
        scorer: &Arc<Mutex<Scorer>>,
        tenant: &str,
        question: Option<String>,
        grammar: Option<Grammar>,
        summary: &GenerationSummary,
    ) -> Judged {
        Judged {
            scorer: Arc::clone(scorer),
            tenant: tenant.to_owned(),
            question,
            text: summary.text.clone(),
            tokens: summary.tokens.clone(),
            finish: summary.finish_reason,
            grammar,
        }
    }

    /// Puts the scores into the record.
    pub(crate) fn score(self, served: &mut Served) {
        let words = HashedWords::new(DIM);
        let vector = |text: &str| words.vector(clipped(text));
        let question = self.question.as_deref().map(vector).unwrap_or_default();
        let answer = if question.is_empty() { Vec::new() } else { vector(&self.text) };
        let parts: Vec<Vec<f32>> = sentences(clipped(&self.text)).take(N_PARTS_MAX).map(vector).collect();
        let checked = self.grammar.map(|grammar| {
            let (n_valid, is_valid) = grammar.check(&self.tokens);
            let is_complete = is_valid && self.finish == FinishReason::Stop;
            Checked { n_valid, n_tokens: self.tokens.len(), is_complete }
        });
        let unix_ms = now_ms();
        let (parts, tokens) = (&parts[..], &self.tokens[..]);
        let answered = Answered { question: &question, answer: &answer, parts, tokens, checked, unix_ms };
        // What it remembers is whole after each answer, so a poisoned lock is as good as another.
        let mut scorer = self.scorer.lock().unwrap_or_else(PoisonError::into_inner);
        let scores = scorer.score(&self.tenant, &answered);
        (served.scores, served.quality) = (scores, scores.overall());
    }
}

/// Returns how a text begins.
fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(N_CHARS_MAX)]
}

/// Returns the sentences of a text, roughly: what stands between full stops, exclamation and question marks, and ends of
/// lines.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split(['.', '!', '?', '\n', '。', '！', '？']).map(str::trim).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_where_they_end() {
        let of = |text| sentences(text).collect::<Vec<_>>();
        assert_eq!(of("One. Two!\n\nThree? "), ["One", "Two", "Three"]);
        assert!(of(" \n.").is_empty());
        assert_eq!(clipped(&"é".repeat(N_CHARS_MAX)).len(), N_CHARS_MAX);
    }
}
