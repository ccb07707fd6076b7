//! What a request learns: its prompt by the states that are computed anyway, its answer token by token.

use std::sync::Arc;

use ruvllm_engine::{LogitsHook, LogitsProcessor};
use ruvllm_lora::micro::{LogitRow, MicroLora, StateRows};
use ruvllm_sona::history::Passage;
use ruvllm_sona::{Learned, Names, Notes};

use crate::tenant::{Task, Tenant};

/// What a request learns by: its tenant, and what it asks.
#[derive(Debug)]
pub(crate) struct Asking {
    pub tenant: Arc<Tenant>,
    pub task: Task,
    pub id: Option<String>,
}

impl LogitsProcessor for Asking {
    fn begin(&self, prompt: &[u32], is_approx: bool) -> Box<dyn LogitsHook> {
        let mut notes = Notes::default();
        prompt.iter().for_each(|&token| notes.read(token));
        let asked = self.task.question.as_deref().map(Names::of);
        if let Some(names) = &asked {
            notes.ask(names.clone());
        }
        let learned = self.tenant.learned();
        notes.begin(&learned);
        let n = prompt.len();
        let heard =
            Passage { tokens: prompt.to_vec(), n_read: n, n_remembered: n, asked, is_approx, ..Passage::default() };
        Box::new(Request {
            learned,
            tenant: Arc::clone(&self.tenant),
            has_patterns: !self.task.patterns.is_empty(),
            answered: self.id.clone().map(|id| (id, self.task.clone())),
            of_prompt: Notes::default(),
            n_first: 0,
            skipped: Vec::new(),
            notes,
            heard,
        })
    }
}

/// One request. What its tenant knew when it began is what it sees to its end, so that its tokens do not depend on who else
/// is there.
struct Request {
    tenant: Arc<Tenant>,
    learned: Arc<Learned>,
    /// Patterns stand in the prompt.
    has_patterns: bool,
    /// What the answer is called, and what was asked.
    answered: Option<(String, Task)>,
    /// What is noted of the prompt; which of its tokens it was noted from on, and those that it had to leave out behind that.
    of_prompt: Notes,
    n_first: usize,
    skipped: Vec<u32>,
    notes: Notes,
    /// What the notes heard: the prompt, and the answer so far.
    heard: Passage,
}

impl LogitsHook for Request {
    fn reads_prompt(&self) -> bool {
        // A prompt with patterns is not the user's alone: what is undone would live on in it.
        let options = &self.tenant.shared.options;
        options.prompts && options.learn.memory.is_some() && !self.has_patterns
    }

    fn read(&mut self, first: usize, hidden: &[f32]) {
        // Tokens whose states nobody computed are what others follow.
        let prompt = &self.heard.tokens[..self.heard.n_read];
        for (at, &token) in prompt.iter().enumerate().take(first + 1).skip(self.of_prompt.n_heard()) {
            if self.n_first > 0 {
                self.skipped.push(at as u32);
            }
            self.of_prompt.read(token);
        }
        if self.n_first == 0 {
            self.n_first = self.of_prompt.n_heard();
        }
        let n_embd = self.tenant.shared.calibration.whitener().n_embd();
        for (hidden, &next) in hidden.chunks_exact(n_embd).zip(&prompt[first + 1..]) {
            self.of_prompt.remember(&self.learned, hidden, next);
        }
    }

    fn micro(&self) -> Option<&Arc<MicroLora>> {
        self.notes.micro()
    }

    fn n_steady(&self) -> usize {
        self.notes.n_until_step(&self.learned)
    }

    fn needs_all(&self) -> bool {
        self.notes.needs_all(&self.learned)
    }

    fn adjust(&mut self, state: StateRows<'_>, logits: LogitRow<'_>) {
        self.notes.adjust(&self.learned, state, logits);
    }

    fn accept(&mut self, token: u32) {
        self.heard.tokens.push(token);
        if !self.notes.has_adjusted() {
            self.heard.skipped.push(self.heard.tokens.len() as u32 - 1);
        }
        self.notes.accept(&self.learned, token, &*self.tenant.shared);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let n_prompt = self.of_prompt.n_heard();
        let prompt = Passage {
            tokens: self.heard.tokens[..n_prompt].to_vec(),
            n_read: self.n_first,
            n_remembered: n_prompt,
            skipped: std::mem::take(&mut self.skipped),
            ..Passage::default()
        };
        let prompt = (std::mem::take(&mut self.of_prompt), prompt);
        let answer = (std::mem::take(&mut self.notes), std::mem::take(&mut self.heard));
        self.tenant.end(prompt, answer, self.answered.take());
    }
}
