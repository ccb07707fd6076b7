//! Taking blocks back from a store.

use super::PrefixCache;
use crate::error::KvError;
use crate::key::Namespace;
use crate::pool::BlockPool;
use crate::table::Sequence;
use ruvllm_kernels::attention::{BLOCK_TOKENS, KvBlock, KvFormat};
use std::sync::Arc;

/// Description of a stored block, in addition to its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    /// Its format.
    pub format: KvFormat,
    /// Its place in its unit.
    pub sub: usize,
    /// The bytes of its unit come with it; else it lies in the unit that came last.
    pub is_new_unit: bool,
}

/// The unit that came last, and those of its blocks that no sequence has.
#[derive(Default)]
struct Unit {
    blocks: Vec<Option<KvBlock>>,
}

impl Unit {
    /// Takes a fresh one and fills it.
    fn fill(cache: &mut PrefixCache, pool: &mut BlockPool, stored: StoredBlock, bytes: &[u8]) -> Result<Unit, KvError> {
        let mut blocks = Vec::new();
        loop {
            match pool.take(stored.format, 1, &mut blocks) {
                Ok(()) => break,
                Err(error) if cache.evict(stored.format.blocks_per_unit()) == 0 => return Err(error),
                Err(_) => {}
            }
        }
        pool.write_block(blocks[0], bytes);
        Ok(Unit { blocks: blocks.into_iter().map(Some).collect() })
    }

    /// Returns the block at a place of it, if it is there and nobody has it yet.
    fn take(&mut self, stored: StoredBlock) -> Option<KvBlock> {
        self.blocks.get_mut(stored.sub)?.take_if(|block| block.format() == stored.format)
    }

    /// Gives back what nobody has.
    fn end(self, cache: &PrefixCache) {
        cache.allocator.release(&self.blocks.into_iter().flatten().collect::<Vec<_>>());
    }
}

impl PrefixCache {
    /// Takes blocks of `tokens` back from a store: `read` is asked for one block after the other, those aside that are
    /// cached as a whole. It says what it has of the block and puts the unit's bytes in the buffer (as
    /// [`BlockPool::read_block`] gave them) if they are needed, or returns `None`, which ends it. Returns how many
    /// leading tokens are cached then.
    ///
    /// # Errors
    /// The pool has no room for a block; those before it are kept.
    pub fn import(
        &mut self,
        pool: &mut BlockPool,
        namespace: Namespace,
        tokens: &[u32],
        read: &mut dyn FnMut(usize, &mut Vec<u8>) -> Option<StoredBlock>,
    ) -> Result<usize, KvError> {
        let path = self.tree.find(namespace, tokens);
        if path.n_tokens == tokens.len() {
            return Ok(path.n_tokens);
        }
        self.found.clear();
        self.tree.blocks(&path, &mut self.found);
        let n_whole = path.n_tokens / BLOCK_TOKENS;
        let blocks = &self.found[..n_whole];
        let mut sequence =
            Sequence::of_blocks(Arc::clone(&self.allocator), tokens.len(), blocks, n_whole * BLOCK_TOKENS);
        let (mut bytes, mut unit, mut result) = (Vec::new(), Unit::default(), Ok(()));
        for (i, tokens) in tokens.chunks(BLOCK_TOKENS).enumerate().skip(n_whole) {
            let Some(stored) = read(i, &mut bytes) else { break };
            if stored.is_new_unit {
                if !pool.has(stored.format) || bytes.len() != pool.unit_bytes(stored.format) {
                    break;
                }
                std::mem::take(&mut unit).end(self);
                match Unit::fill(self, pool, stored, &bytes) {
                    Ok(filled) => unit = filled,
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
            }
            let Some(block) = unit.take(stored) else { break };
            sequence.blocks.push(block);
            sequence.advance(tokens.len());
        }
        unit.end(self);
        let n = sequence.len();
        self.insert(namespace, &tokens[..n], &sequence);
        drop(sequence);
        self.trim();
        result.map(|()| n.max(path.n_tokens))
    }
}
