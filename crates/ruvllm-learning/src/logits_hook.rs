//! The logits hook of a request that learns: its prompt by the states that are computed anyway, its answer token by token.

use std::sync::Arc;

use ruvllm_engine::{LogitsHook, LogitsProcessor};
use ruvllm_lora::micro::{LogitRow, MicroLora, StateRows};
use ruvllm_sona::history::Span;
use ruvllm_sona::{Learned, Names, RequestTrace};

use crate::tenant::{Observation, Task, TenantLearning};

/// Learner of a request: its tenant and its task.
#[derive(Debug)]
pub(crate) struct RequestLearner {
    pub tenant: Arc<TenantLearning>,
    pub task: Task,
    pub id: Option<String>,
}

impl LogitsProcessor for RequestLearner {
    fn begin(&self, prompt: &[u32], is_approx: bool) -> Box<dyn LogitsHook> {
        let mut trace = RequestTrace::default();
        prompt.iter().for_each(|&token| trace.read(token));
        let question = self.task.question.as_deref().map(Names::of);
        if let Some(names) = &question {
            trace.set_question(names.clone());
        }
        let learned = self.tenant.learned();
        trace.begin(&learned);
        let n = prompt.len();
        let span = Span { tokens: prompt.to_vec(), n_read: n, n_remembered: n, question, is_approx, ..Span::default() };
        Box::new(Request {
            learned,
            tenant: Arc::clone(&self.tenant),
            has_patterns: !self.task.patterns.is_empty(),
            answered: self.id.clone().map(|id| (id, self.task.clone())),
            prompt_trace: RequestTrace::default(),
            n_first: 0,
            skipped: Vec::new(),
            trace,
            span,
        })
    }
}

/// One request. What its tenant knew when it began is what it sees to its end, so that its tokens do not depend on who else
/// is there.
struct Request {
    tenant: Arc<TenantLearning>,
    learned: Arc<Learned>,
    /// Patterns stand in the prompt.
    has_patterns: bool,
    /// What the answer is called, and what was asked.
    answered: Option<(String, Task)>,
    /// What is noted of the prompt; which of its tokens it was noted from on, and those that it had to leave out behind that.
    prompt_trace: RequestTrace,
    n_first: usize,
    skipped: Vec<u32>,
    trace: RequestTrace,
    /// Tokens that the trace observed: the prompt, and the answer so far.
    span: Span,
}

impl LogitsHook for Request {
    fn reads_prompt(&self) -> bool {
        // A prompt with patterns is not the user's alone: what is undone would live on in it.
        let options = &self.tenant.shared.options;
        options.prompts && options.learn.datastore.is_some() && !self.has_patterns
    }

    fn read(&mut self, first: usize, hidden: &[f32]) {
        // Tokens whose states nobody computed are what others follow.
        let prompt = &self.span.tokens[..self.span.n_read];
        for (at, &token) in prompt.iter().enumerate().take(first + 1).skip(self.prompt_trace.n_observed()) {
            if self.n_first > 0 {
                self.skipped.push(at as u32);
            }
            self.prompt_trace.read(token);
        }
        if self.n_first == 0 {
            self.n_first = self.prompt_trace.n_observed();
        }
        let n_embd = self.tenant.shared.calibration.whitener().n_embd();
        for (hidden, &next) in hidden.chunks_exact(n_embd).zip(&prompt[first + 1..]) {
            self.prompt_trace.remember(&self.learned, hidden, next);
        }
    }

    fn micro(&self) -> Option<&Arc<MicroLora>> {
        self.trace.micro()
    }

    fn n_steady(&self) -> usize {
        self.trace.n_until_step(&self.learned)
    }

    fn needs_all(&self) -> bool {
        self.trace.needs_all(&self.learned)
    }

    fn adjust(&mut self, state: StateRows<'_>, logits: LogitRow<'_>) {
        self.trace.adjust(&self.learned, state, logits);
    }

    fn accept(&mut self, token: u32) {
        self.span.tokens.push(token);
        if !self.trace.has_adjusted() {
            self.span.skipped.push(self.span.tokens.len() as u32 - 1);
        }
        self.trace.accept(&self.learned, token, &*self.tenant.shared);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let n_prompt = self.prompt_trace.n_observed();
        let prompt = Span {
            tokens: self.span.tokens[..n_prompt].to_vec(),
            n_read: self.n_first,
            n_remembered: n_prompt,
            skipped: std::mem::take(&mut self.skipped),
            ..Span::default()
        };
        let prompt = Observation { trace: std::mem::take(&mut self.prompt_trace), span: prompt };
        let answer = Observation { trace: std::mem::take(&mut self.trace), span: std::mem::take(&mut self.span) };
        self.tenant.end(prompt, answer, self.answered.take());
    }
}
