//! Penalties on recent tokens: repetition (Keskar 2019, arXiv:1909.05858, with negative logits multiplied), frequency and
//! presence.

use super::candidates::Candidates;
use super::params::SamplingParams;

/// The most recent tokens that are looked at.
const LAST_N_MAX: usize = 1 << 20;

/// Recent tokens and what they cost.
#[derive(Clone)]
pub(super) struct Penalties {
    repeat: f32,
    frequency: f32,
    presence: f32,
    last_n: usize,
    /// The last tokens, a ring of `last_n`.
    ring: Vec<u32>,
    next: usize,
    /// Of each token, how often it is in the ring and where it came last: `[n_vocab]`.
    seen: Vec<Seen>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    count: u32,
    newest: u32,
}

impl Penalties {
    /// `None` if they do nothing.
    pub(super) fn new(params: &SamplingParams, n_vocab: usize) -> Option<Penalties> {
        let (repeat, frequency, presence) = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty);
        let last_n = params.repeat_last_n.min(LAST_N_MAX);
        if last_n == 0 || (repeat, frequency, presence) == (1.0, 0.0, 0.0) {
            return None;
        }
        let seen = vec![Seen::default(); n_vocab];
        Some(Penalties {
            repeat,
            frequency,
            presence,
            last_n,
            ring: Vec::with_capacity(last_n.min(4096)),
            next: 0,
            seen,
        })
    }

    /// Forgets all tokens.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.next = 0;
        self.seen.fill(Seen::default());
    }

    /// Takes over what a copy took note of.
    pub(super) fn follow(&mut self, other: &Penalties) {
        self.ring.clone_from(&other.ring);
        self.next = other.next;
        self.seen.copy_from_slice(&other.seen);
    }

    pub(super) fn accept(&mut self, id: u32) {
        if id as usize >= self.seen.len() {
            return;
        }
        if self.ring.len() < self.last_n {
            self.ring.push(id);
        } else {
            let old = std::mem::replace(&mut self.ring[self.next], id);
            self.seen[old as usize].count -= 1;
        }
        let seen = &mut self.seen[id as usize];
        *seen = Seen { count: seen.count + 1, newest: self.next as u32 };
        self.next = (self.next + 1) % self.last_n;
    }

    fn penalised(&self, logit: f32, count: u32) -> f32 {
        let logit = if logit > 0.0 { logit / self.repeat } else { logit * self.repeat };
        logit - count as f32 * self.frequency - self.presence
    }

    /// Changes the logits of recent tokens; `logits`: `[n_vocab]`.
    pub(super) fn apply_to_all(&self, logits: &mut [f32]) {
        for (slot, &id) in self.ring.iter().enumerate() {
            let Seen { count, newest } = self.seen[id as usize];
            // Each token once: where it stands last.
            if newest as usize == slot {
                let logit = &mut logits[id as usize];
                *logit = self.penalised(*logit, count);
            }
        }
    }

    /// Changes the logits of those candidates that are recent tokens.
    pub(super) fn apply(&self, candidates: &mut Candidates) {
        candidates.change(|id, logit| match self.seen[id as usize].count {
            0 => logit,
            count => self.penalised(logit, count),
        });
    }
}
