//! Ageing of the KV cache: blocks that are brought into fewer bits, and when.

use ruvllm_kvcache::{KvPolicy, Level, Quantizer, Relief};

use ruvllm_backend::SeqId;

use crate::kv::{IDLE_BYTES, KvStore};

/// Blocks that a step may bring into fewer bits, beside twice as many as it writes: one unit, so that no token waits
/// for a long prompt's blocks.
const BLOCKS_A_STEP: usize = 4;

impl KvStore {
    /// Brings what has aged in `seqs` into fewer bits, and under pressure what else may be. To be called between steps;
    /// `n_rows` is what the step before wrote, or the one after will write.
    pub(super) fn age(&mut self, quantizer: Quantizer<'_>, seqs: impl Iterator<Item = SeqId>, n_rows: usize) {
        if self.policies().all(|policy| policy.formats().len() == 1) {
            return;
        }
        let n_max = BLOCKS_A_STEP + 2 * n_rows.div_ceil(ruvllm_kvcache::BLOCK_TOKENS);
        let mut n = 0;
        for seq in seqs {
            n += self.age_one(quantizer, seq.0, None, n_max.saturating_sub(n));
        }
        if self.level() > Level::Low {
            n += self.shrink(quantizer, n_max.saturating_sub(n));
        }
        if n > 0 {
            self.pool.reclaim(IDLE_BYTES);
        }
    }

    /// Lets the sequence in a place age by up to `n_max` blocks, by its own policy or under pressure by a harder one.
    fn age_one(&mut self, quantizer: Quantizer<'_>, place: usize, harder: Option<KvPolicy>, n_max: usize) -> usize {
        let Some(open) = self.sequences.get_mut(place).and_then(Option::as_mut) else { return 0 };
        let policy = harder.filter(|_| open.policy.shrinks_under_pressure()).unwrap_or(open.policy);
        self.pool.age(quantizer, &mut open.sequence, &mut open.ageing, policy, n_max)
    }

    /// Brings up to about `n_max` blocks into fewer bits to make room, if the policy allows it: what only the cache holds
    /// first, then the oldest of the open sequences. Returns how many it were.
    pub(super) fn shrink(&mut self, quantizer: Quantizer<'_>, n_max: usize) -> usize {
        if !self.policy.shrinks_under_pressure() {
            return 0;
        }
        let mut n = self.prefixes.as_mut().map_or(0, |prefixes| prefixes.quantize(&mut self.pool, quantizer, n_max));
        for policy in [KvPolicy::Q8, KvPolicy::TIERED] {
            for place in 0..self.sequences.len() {
                n += self.age_one(quantizer, place, Some(policy), n_max.saturating_sub(n));
            }
        }
        self.budget.set_quantisable(n > 0 || n_max == 0);
        n
    }

    /// Returns how full the memory is, without telling who holds it.
    fn level(&mut self) -> Level {
        self.note_held();
        self.budget.pressure().level
    }

    /// Follows the budget's advice between requests, so that the next one finds free blocks.
    pub(super) fn relieve(&mut self, quantizer: Quantizer<'_>) {
        loop {
            let pressure = self.pressure();
            if pressure.excess_bytes == 0 {
                return;
            }
            let n_blocks = pressure.excess_bytes.div_ceil(self.block_bytes().max(1));
            let n = match (pressure.relief, &mut self.prefixes) {
                // A block in 8 bits brings half.
                (Some(Relief::Quantise), _) => {
                    let n = self.shrink(quantizer, 2 * n_blocks);
                    if n == 0 {
                        continue;
                    }
                    n
                }
                (Some(Relief::Evict), Some(prefixes)) => prefixes.evict(n_blocks),
                _ => 0,
            };
            if n == 0 {
                return;
            }
        }
    }
}
