//! How likely an answer is with what was learned, and how far that is from the model alone.

use ruvllm_backend::{LogitRows, Segment};
use ruvllm_engine::{Engine, EngineError, ErrorKind};
use ruvllm_kernels::softmax;
use ruvllm_lora::micro::KeptRows;
use ruvllm_sona::episodes::Verdict;
use ruvllm_sona::{Names, Notes};

use crate::course::change_logits;
use crate::learning::Learning;
use crate::tenant::Tenant;

/// An answer under a model and what was learned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerScore {
    /// Log-probability of each of its tokens by the model alone, in nats.
    pub alone: Vec<f32>,
    /// Logprobs with what was learned.
    pub learned: Vec<f32>,
    /// Kullback-Leibler divergence of the distribution with what was learned from that of the model alone, in nats, where
    /// each of the tokens is chosen.
    pub kl: Vec<f64>,
}

/// Scores an answer to a prompt, as a request of the tenant that asks `question` would find it. Nothing is learned.
///
/// # Errors
/// A prompt or an answer of no tokens; as [`Engine::forward`].
pub fn score_answer(
    engine: &mut Engine,
    (learning, tenant): (&Learning, &Tenant),
    (prompt, question): (&[u32], Option<&str>),
    answer: &[u32],
) -> Result<AnswerScore, EngineError> {
    let (base, states) = answer_rows(engine, prompt, answer)?;
    let (n_vocab, n_embd, softmax) = (engine.info().n_vocab, engine.info().n_embd, softmax::pick(engine.compute().isa));
    let (learned, mut notes) = (tenant.learned(), Notes::default());
    prompt.iter().for_each(|&token| notes.read(token));
    if let Some(question) = question {
        notes.ask(Names::of(question));
    }
    let mut score = AnswerScore::default();
    let rows = base.chunks_exact(n_vocab).zip(states.rows().iter(n_embd));
    for ((base, state), &token) in rows.zip(answer) {
        let mut row = base.to_vec();
        notes.begin(&learned);
        change_logits(engine, &notes, state, &mut row)?;
        let row = &mut row[..];
        notes.adjust(&learned, state, &mut *row);
        let (sum, sum_alone) = (softmax.log_sum_exp(row), softmax.log_sum_exp(base));
        let log_ps = base.iter().zip(&*row).map(|(&b, &x)| (f64::from(b) - sum_alone, f64::from(x) - sum));
        score.kl.push(log_ps.map(|(b, x)| if b.is_finite() { b.exp() * (b - x) } else { 0.0 }).sum::<f64>().max(0.0));
        score.alone.push((f64::from(base[token as usize]) - sum_alone) as f32);
        score.learned.push((f64::from(row[token as usize]) - sum) as f32);
        notes.accept(&learned, token, learning.head());
    }
    Ok(score)
}

/// Returns the logits that an answer's tokens are chosen by, `[n_answer, n_vocab]`, and the states that they are made of.
fn answer_rows(engine: &mut Engine, prompt: &[u32], answer: &[u32]) -> Result<(Vec<f32>, KeptRows), EngineError> {
    let Some(rest) = answer.split_last().map(|(_, rest)| rest).filter(|_| !prompt.is_empty()) else {
        let line = format!("an answer of {} tokens to a prompt of {}", answer.len(), prompt.len());
        return Err(EngineError::new(ErrorKind::Prompt, line));
    };
    let (tokens, seq) = ([prompt, rest].concat(), engine.new_sequence()?);
    let segment = Segment { seq, tokens: &tokens, logits: LogitRows::Tail(answer.len()) };
    let rows = engine.forward_states(&[segment]).map(|states| (states.logits.to_vec(), states.rows.into()));
    engine.free_sequence(seq);
    rows
}

/// Returns the final hidden states that an answer's tokens follow: `[n_answer, n_embd]`, the first of them that of the
/// prompt's last token.
///
/// # Errors
/// A prompt or an answer of no tokens; as [`Engine::forward`].
pub fn answer_states(engine: &mut Engine, prompt: &[u32], answer: &[u32]) -> Result<Vec<f32>, EngineError> {
    answer_rows(engine, prompt, answer).map(|(_, states)| states.rows().hidden.to_vec())
}

/// Remembers an answer to a prompt, right or wrong: computes the states that its tokens follow, and tells them to the
/// tenant. `question` is what was asked, for its names; `answer` the tokens, with the one that ends it. Returns when it
/// is taken in: the item's id.
///
/// # Errors
/// No tokens, more than 1,024, more than fit the context; as [`Engine::forward`].
pub fn tell(
    engine: &mut Engine,
    tenant: &Tenant,
    (prompt, question): (&[u32], &str),
    answer: &[u32],
    verdict: Verdict,
) -> Result<Option<u64>, EngineError> {
    let hidden = answer_states(engine, prompt, answer)?;
    tenant.tell(question, &hidden, answer, verdict)
}
