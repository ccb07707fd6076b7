//! The repetition penalty (Keskar 2019, arXiv:1909.05858, as llama.cpp applies it: once a token, whatever its count).

/// Recent tokens and what they cost.
pub(super) struct Penalties {
    penalty: f32,
    /// The last tokens, a ring: `[last_n]`.
    ring: Vec<u32>,
    next: usize,
    last_n: usize,
    /// How often each token is in the ring: `[n_vocab]`.
    counts: Vec<u32>,
}

impl Penalties {
    pub(super) fn new(penalty: f32, last_n: usize, n_vocab: usize) -> Penalties {
        let last_n = if penalty == 1.0 { 0 } else { last_n.min(1 << 20) };
        let counts = if last_n > 0 { vec![0; n_vocab] } else { Vec::new() };
        Penalties { penalty, ring: Vec::with_capacity(last_n), next: 0, last_n, counts }
    }

    pub(super) fn accept(&mut self, id: u32) {
        if self.last_n == 0 || id as usize >= self.counts.len() {
            return;
        }
        if self.ring.len() < self.last_n {
            self.ring.push(id);
        } else {
            let old = std::mem::replace(&mut self.ring[self.next], id);
            self.counts[old as usize] -= 1;
            self.next = (self.next + 1) % self.last_n;
        }
        self.counts[id as usize] += 1;
    }

    pub(super) fn apply(&mut self, logits: &mut [f32]) {
        for (slot, &id) in self.ring.iter().enumerate() {
            // A token that stands in the ring more than once is handled where it stands first.
            if self.counts[id as usize] > 1 && self.ring[..slot].contains(&id) {
                continue;
            }
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 { *logit / self.penalty } else { *logit * self.penalty };
        }
    }
}
