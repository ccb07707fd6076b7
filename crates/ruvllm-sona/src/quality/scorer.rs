//! Scores against what was answered before.

use std::collections::{HashMap, VecDeque};

use super::{Checked, Grams, QuestionAnswer, Scores, coherence, consistency, diversity, schema_compliance, uniqueness};

/// Options of a scorer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScorerOptions {
    /// Answers of a tenant, the latest.
    pub n_answers_max: usize,
    /// Tenants; one more makes the one go that was silent the longest.
    pub n_tenants_max: usize,
    /// Tokens of an answer that are looked at, the first.
    pub n_tokens_max: usize,
}

impl Default for ScorerOptions {
    /// 64 answers of 64 tenants, 2,048 tokens of each: 16 KiB an answer at most, beside its two vectors.
    fn default() -> ScorerOptions {
        ScorerOptions { n_answers_max: 64, n_tenants_max: 64, n_tokens_max: 2048 }
    }
}

/// An answer that is to be scored. What is empty is not judged by.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answered<'a> {
    /// Embedding of the question: `[dim]`.
    pub question: &'a [f32],
    /// Embedding of the answer: `[dim]`.
    pub answer: &'a [f32],
    /// Embeddings of its parts (sentences), in order: `[n][dim]`.
    pub parts: &'a [Vec<f32>],
    /// Its tokens.
    pub tokens: &'a [u32],
    /// Extent to which it keeps to the form that was asked for, if one was.
    pub checked: Option<Checked>,
    /// When it was given, in Unix milliseconds.
    pub unix_ms: u64,
}

/// An answer as it is remembered.
struct Past {
    question: Vec<f32>,
    answer: Vec<f32>,
    grams: Grams,
    unix_ms: u64,
}

#[derive(Default)]
struct Tenant {
    past: VecDeque<Past>,
    /// By a count of all answers.
    used: u64,
}

/// Scores answers, each tenant's against its own earlier ones. What it remembers is in memory only.
pub struct Scorer {
    options: ScorerOptions,
    tenants: HashMap<String, Tenant>,
    n_answers: u64,
}

impl Scorer {
    /// A scorer without earlier answers.
    pub fn new(options: ScorerOptions) -> Scorer {
        Scorer { options, tenants: HashMap::new(), n_answers: 0 }
    }

    /// Scores an answer of a tenant, and remembers it. Cost: a comparison with each answer that is remembered; some tens of
    /// microseconds for short ones.
    pub fn score(&mut self, tenant: &str, answered: &Answered<'_>) -> Scores {
        let Answered { question, answer, parts, tokens, checked, unix_ms } = *answered;
        let tokens = &tokens[..tokens.len().min(self.options.n_tokens_max)];
        let grams = Grams::of(tokens);
        self.n_answers += 1;
        if !self.tenants.contains_key(tenant) && self.tenants.len() >= self.options.n_tenants_max {
            let silent = self.tenants.iter().min_by_key(|(_, tenant)| tenant.used).map(|(name, _)| name.clone());
            silent.iter().for_each(|name| drop(self.tenants.remove(name)));
        }
        let own = self.tenants.entry(tenant.to_owned()).or_default();
        own.used = self.n_answers;
        let is_comparable = |past: &'_ Past| {
            let fits = past.question.len() == question.len() && past.answer.len() == answer.len();
            fits && !past.question.is_empty()
        };
        let earlier = own.past.iter().filter(|past| is_comparable(past));
        let earlier = earlier.map(|past| QuestionAnswer {
            question: &past.question,
            answer: &past.answer,
            unix_ms: past.unix_ms,
        });
        let scores = Scores {
            schema: checked.map(schema_compliance),
            coherence: coherence(parts),
            diversity: diversity(tokens),
            consistency: consistency(QuestionAnswer { question, answer, unix_ms }, earlier),
            uniqueness: uniqueness(&grams, own.past.iter().map(|past| &past.grams)),
        };
        own.past.push_back(Past { question: question.to_vec(), answer: answer.to_vec(), grams, unix_ms });
        let n_over = own.past.len().saturating_sub(self.options.n_answers_max);
        own.past.drain(..n_over);
        scores
    }

    /// Forgets a tenant's answers.
    pub fn forget(&mut self, tenant: &str) {
        self.tenants.remove(tenant);
    }
}

impl std::fmt::Debug for Scorer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scorer").field("n_tenants", &self.tenants.len()).finish_non_exhaustive()
    }
}
