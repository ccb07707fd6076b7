//! Blocks brought into fewer bits, and read back.

use half::f16;
use half::slice::HalfFloatSliceExt;
use ruvllm_cpu::{SharedSlice, ThreadPool};
use ruvllm_kernels::Isa;
use ruvllm_kernels::attention::{self, AttentionKernels, BLOCK_TOKENS, KvBlock, KvFormat, UNIT_BLOCKS};

use super::BlockPool;
use crate::error::KvError;
use crate::policy::{Ageing, KvPolicy, Move};
use crate::table::Sequence;

/// Kernels that quantise blocks, and the threads that they run on.
#[derive(Clone, Copy)]
pub struct Quantizer<'a> {
    /// The kernels.
    pub table: &'a AttentionKernels,
    /// The threads.
    pub threads: &'a ThreadPool,
}

impl BlockPool {
    /// Reads a block of few bits back into an exact one. Rare (a fork inside such a block), so on this thread alone.
    pub(super) fn restore(&mut self, from: KvBlock, to: KvBlock) {
        let mut store = self.stores[to.format() as usize].take().expect("the pool has exact blocks");
        let table = attention::pick(Isa::Scalar);
        for (layer, &shape) in self.layout.layers.iter().enumerate() {
            let (k_at, v_at) = store.parts[layer];
            let (mut k, mut v) = (vec![0.0; shape.k_block_len()], vec![0.0; shape.v_block_len()]);
            table.dequantize(shape, self.layer(layer).part(shape, from), &mut k, &mut v);
            let unit = store.unit_mut(to.unit());
            for (at, floats) in [(k_at, k), (v_at, v)] {
                match to.format() {
                    KvFormat::F32 => unit[at..at + 4 * floats.len()].copy_from_slice(bytemuck::cast_slice(&floats)),
                    _ => {
                        let mut halves = vec![f16::ZERO; floats.len()];
                        halves.convert_from_f32_slice(&floats);
                        unit[at..at + 2 * halves.len()].copy_from_slice(bytemuck::cast_slice(&halves));
                    }
                }
            }
        }
        self.stores[to.format() as usize] = Some(store);
    }

    /// Makes a unit of format `to` of blocks in order of position, every layer's part of it on all threads, and
    /// appends its blocks to `made`. The blocks it is made of keep their owners. All of their positions are written.
    ///
    /// # Errors
    /// [`KvErrorKind::PoolFull`](crate::KvErrorKind::PoolFull); nothing was made then.
    ///
    /// # Panics
    /// If `from` are not as many blocks as a unit has, or one of them is of format `to` or has no owner.
    pub fn quantize(
        &mut self,
        Quantizer { table, threads }: Quantizer<'_>,
        from: &[KvBlock],
        to: KvFormat,
        made: &mut Vec<KvBlock>,
    ) -> Result<(), KvError> {
        assert!(from.len() == to.blocks_per_unit() && from.iter().all(|block| block.format() != to));
        assert!(from.iter().all(|&block| self.allocator.count(block) > 0), "blocks without an owner are quantised");
        let first = made.len();
        self.take(to, 1, made)?;
        let mut store = self.stores[to as usize].take().expect("a unit of the format was taken");
        let parts = std::mem::take(&mut store.parts);
        let unit = SharedSlice::new(store.unit_mut(made[first].unit()));
        threads.for_each(parts.len(), 1, &|layers, _| {
            for layer in layers {
                let (shape, (k_at, v_at)) = (self.layout.layers[layer], parts[layer]);
                let view = self.layer(layer);
                let blocks: [_; UNIT_BLOCKS] = std::array::from_fn(|i| view.part(shape, from[i.min(from.len() - 1)]));
                // SAFETY: K and V of a layer are its own part of the unit, and each layer is one worker's.
                let (k, v) =
                    unsafe { (unit.slice(k_at..k_at + to.k_bytes(shape)), unit.slice(v_at..v_at + to.v_bytes(shape))) };
                table.quantize(shape, &blocks[..from.len()], to, k, v);
            }
        });
        store.parts = parts;
        self.stores[to as usize] = Some(store);
        Ok(())
    }

    /// Gives blocks of [`BlockPool::quantize`] back.
    pub fn discard(&self, made: &mut Vec<KvBlock>) {
        self.allocator.release(made);
        made.clear();
    }

    /// Brings blocks of a sequence into fewer bits, a unit of format `to`. Where others share them, they keep what they
    /// have, and find what was made of it when their turn comes.
    ///
    /// # Errors
    /// [`KvErrorKind::PoolFull`](crate::KvErrorKind::PoolFull); the sequence is as before.
    ///
    /// # Panics
    /// As [`BlockPool::quantize`]; if the sequence belongs to another pool, or a position is not written.
    pub fn migrate(
        &mut self,
        quantizer: Quantizer<'_>,
        sequence: &mut Sequence,
        Move { blocks: range, to }: Move,
    ) -> Result<(), KvError> {
        self.assert_owns(sequence);
        assert!(range.end * BLOCK_TOKENS <= sequence.len(), "blocks {range:?} of {} positions", sequence.len());
        let from = &sequence.blocks[range.clone()];
        let mut made = std::mem::take(&mut self.made);
        made.clear();
        if !self.allocator.take_quantised(from, to, &mut made) {
            if let Err(error) = self.quantize(quantizer, from, to, &mut made) {
                self.made = made;
                return Err(error);
            }
            self.allocator.set_quantised(from, &made);
        }
        self.allocator.release(from);
        sequence.blocks[range].copy_from_slice(&made);
        self.made = made;
        Ok(())
    }

    /// Brings up to `n_max` blocks of a sequence into fewer bits as the policy wants it, the oldest first, and returns how
    /// many it were. Where the pool has no room, it waits for the next time.
    ///
    /// # Panics
    /// As [`BlockPool::migrate`].
    pub fn age(
        &mut self,
        quantizer: Quantizer<'_>,
        sequence: &mut Sequence,
        ageing: &mut Ageing,
        policy: KvPolicy,
        n_max: usize,
    ) -> usize {
        let mut n_done = 0;
        while n_done < n_max {
            let mut next = *ageing;
            let Some(step) = next.next(policy, &sequence.blocks, sequence.len()) else { break };
            let n = step.blocks.len();
            if self.migrate(quantizer, sequence, step).is_err() {
                break;
            }
            (*ageing, n_done) = (next, n_done + n);
        }
        n_done
    }
}
