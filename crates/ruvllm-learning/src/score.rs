//! How likely an answer is with what was learned, and how far that is from the model alone.

use ruvllm_backend::{LogitRows, Segment};
use ruvllm_engine::{Engine, EngineError, ErrorKind};
use ruvllm_kernels::softmax;
use ruvllm_lora::micro::KeptRows;
use ruvllm_sona::corrections::Correctness;
use ruvllm_sona::{Names, RequestTrace};

use crate::evaluation_stream::change_logits;
use crate::learning::Learning;
use crate::tenant::TenantLearning;

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

/// Question that an answer follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Question<'a> {
    /// The prompt, as the model reads it.
    pub prompt: &'a [u32],
    /// The question in words, for the names in it; `None` matches no correction.
    pub text: Option<&'a str>,
}

/// Scores an answer to a question, as a request of the tenant would find it. Nothing is learned.
///
/// # Errors
/// A prompt or an answer of no tokens; as [`Engine::forward`].
pub fn score_answer(
    engine: &mut Engine,
    learning: &Learning,
    tenant: &TenantLearning,
    Question { prompt, text: question }: Question<'_>,
    answer: &[u32],
) -> Result<AnswerScore, EngineError> {
    let (base, states) = answer_rows(engine, prompt, answer)?;
    let (n_vocab, n_embd, softmax) = (engine.info().n_vocab, engine.info().n_embd, softmax::pick(engine.compute().isa));
    let (learned, mut trace) = (tenant.learned(), RequestTrace::default());
    prompt.iter().for_each(|&token| trace.read(token));
    if let Some(question) = question {
        trace.set_question(Names::of(question));
    }
    let mut score = AnswerScore::default();
    let rows = base.chunks_exact(n_vocab).zip(states.rows().iter(n_embd));
    for ((base, state), &token) in rows.zip(answer) {
        let mut row = base.to_vec();
        trace.begin(&learned);
        change_logits(engine, &trace, state, &mut row)?;
        let row = &mut row[..];
        trace.adjust(&learned, state, &mut *row);
        let (sum, sum_alone) = (softmax.log_sum_exp(row), softmax.log_sum_exp(base));
        let log_ps = base.iter().zip(&*row).map(|(&b, &x)| (f64::from(b) - sum_alone, f64::from(x) - sum));
        score.kl.push(log_ps.map(|(b, x)| if b.is_finite() { b.exp() * (b - x) } else { 0.0 }).sum::<f64>().max(0.0));
        score.alone.push((f64::from(base[token as usize]) - sum_alone) as f32);
        score.learned.push((f64::from(row[token as usize]) - sum) as f32);
        trace.accept(&learned, token, learning.head());
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

/// Adds a correction, an answer to a prompt that is right or wrong: computes the states that its tokens follow, and gives them to the
/// tenant. `answer` are its tokens, with the one that ends it. Returns when it
/// is ingested: the item's id.
///
/// # Errors
/// No tokens, more than 1,024, more than fit the context; as [`Engine::forward`].
pub fn add_correction(
    engine: &mut Engine,
    tenant: &TenantLearning,
    question: Question<'_>,
    answer: &[u32],
    verdict: Correctness,
) -> Result<Option<u64>, EngineError> {
    let hidden = answer_states(engine, question.prompt, answer)?;
    tenant.add_correction(question.text.unwrap_or_default(), &hidden, answer, verdict)
}
