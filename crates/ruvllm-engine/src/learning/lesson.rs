//! What a request learns: its prompt by the states that are computed anyway, its answer token by token.

use std::sync::Arc;

use ruvllm_kernels::softmax;
use ruvllm_lora::micro::MicroLora;
use ruvllm_sona::{Learned, Names, Notes};

use super::tenant::Tenant;
use crate::learner::{Learner, Lesson};

/// What a request learns by: its tenant, and what it asks.
#[derive(Debug)]
pub(super) struct Asking {
    pub tenant: Arc<Tenant>,
    pub question: Option<String>,
    pub id: Option<String>,
}

impl Learner for Asking {
    fn begin(&self, prompt: &[u32]) -> Box<dyn Lesson> {
        let mut notes = Notes::default();
        prompt.iter().for_each(|&token| notes.read(token));
        if let Some(question) = &self.question {
            notes.ask(Names::of(question));
        }
        let learned = self.tenant.learned();
        notes.begin(&learned);
        Box::new(Request {
            learned,
            tenant: Arc::clone(&self.tenant),
            answered: self.id.clone().map(|id| (id, self.question.clone().unwrap_or_default())),
            prompt: prompt.to_vec(),
            of_prompt: Notes::default(),
            n_read: 0,
            notes,
            logits: Vec::new(),
        })
    }
}

/// One request. What its tenant knew when it began is what it sees to its end, so that its tokens do not depend on who else
/// is there.
struct Request {
    tenant: Arc<Tenant>,
    learned: Arc<Learned>,
    /// What the answer is called, and what was asked.
    answered: Option<(String, String)>,
    prompt: Vec<u32>,
    /// What is noted of the prompt, and how many of its tokens that knows.
    of_prompt: Notes,
    n_read: usize,
    notes: Notes,
    /// The model's own logits of the token to come: `[n_vocab]`; empty if nothing was computed.
    logits: Vec<f32>,
}

impl Lesson for Request {
    fn reads_prompt(&self) -> bool {
        self.tenant.shared.options.prompts && self.tenant.shared.options.learn.memory.is_some()
    }

    fn read(&mut self, first: usize, hidden: &[f32]) {
        // Tokens whose states nobody computed are what others follow.
        let unread = self.prompt.get(self.n_read..=first).unwrap_or_default();
        unread.iter().for_each(|&token| self.of_prompt.read(token));
        let n_embd = self.tenant.shared.calibration.whitener().n_embd();
        for (hidden, &next) in hidden.chunks_exact(n_embd).zip(&self.prompt[first + 1..]) {
            self.of_prompt.remember(&self.learned, hidden, next);
        }
        self.n_read = self.n_read.max(first + 1 + hidden.len() / n_embd);
    }

    fn micro(&self) -> Option<&Arc<MicroLora>> {
        self.notes.micro()
    }

    fn n_steady(&self) -> usize {
        self.notes.n_until_step(&self.learned)
    }

    fn adjust(&mut self, hidden: &[f32], logits: &mut [f32]) {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.notes.adjust(&self.learned, hidden, logits);
    }

    fn accept(&mut self, token: u32) {
        if self.logits.is_empty() {
            return self.notes.read(token);
        }
        let log_sum = softmax::pick(self.tenant.shared.isa).log_sum_exp(&self.logits) as f32;
        let log_p = self.logits.get(token as usize).map_or(f32::NEG_INFINITY, |logit| logit - log_sum);
        self.notes.accept(&self.learned, token, log_p, &*self.tenant.shared);
        self.logits.clear();
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let answered = self.answered.take().map(|(id, question)| (id, question, std::mem::take(&mut self.prompt)));
        self.tenant.end(std::mem::take(&mut self.of_prompt), std::mem::take(&mut self.notes), answered);
    }
}
