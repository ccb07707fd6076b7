//! The nearest entries: a scan in blocks of rows, coarse and then exact where there are many.

use ruvllm_kernels::distance::Table;

use super::entries::Block;
use super::{CONTEXT_BONUS, Context, Memory};
use crate::top::{self, BLOCK, Hit, Top};
use crate::whiten::Key;

/// What a search works in; made once and used again.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    top: Top,
}

impl Memory {
    /// Finds the entries nearest to a key, nearest first: at most [`MemoryOptions::n_nearest`](super::MemoryOptions). What has
    /// tokens in common with `context` comes nearer; among some more than are returned, for which that is looked at.
    ///
    /// # Panics
    /// If the key has another width.
    pub fn search(&self, (key, context): (&Key, Context), kernels: &Table, scratch: &mut Scratch, hits: &mut Vec<Hit>) {
        self.search_as(self.len() <= self.options.n_exact_max, (key, context), kernels, scratch, hits);
    }

    /// Finds the nearest entries by comparing every key in full, whatever their number: what a coarse scan is measured
    /// against.
    ///
    /// # Panics
    /// If the key has another width.
    pub fn search_exact(&self, query: (&Key, Context), kernels: &Table, scratch: &mut Scratch, hits: &mut Vec<Hit>) {
        self.search_as(true, query, kernels, scratch, hits);
    }

    fn search_as(
        &self,
        exact: bool,
        (key, context): (&Key, Context),
        kernels: &Table,
        scratch: &mut Scratch,
        hits: &mut Vec<Hit>,
    ) {
        assert_eq!(key.bytes.len(), self.n_key, "a key of {} bytes", key.bytes.len());
        let top = &mut scratch.top;
        let n_nearest = self.options.n_nearest;
        let (head, tail) = key.bytes.split_at(self.entries.n_head());
        top.start(if exact { 2 * n_nearest } else { self.options.n_candidates });
        let (mut dots, mut tail_dots, mut similarities) = ([0; BLOCK], [0; BLOCK], [0.0; BLOCK]);
        for Block { first, heads, tails, scales } in self.entries.blocks() {
            let n = scales.len();
            kernels.dots(head, heads, &mut dots[..n]);
            if exact && !tail.is_empty() {
                kernels.dots(tail, tails, &mut tail_dots[..n]);
                dots.iter_mut().zip(&tail_dots).for_each(|(dot, tail)| *dot += tail);
            }
            for ((similarity, &dot), scale) in similarities.iter_mut().zip(&dots).zip(scales) {
                *similarity = dot as f32 * (scale * key.scale);
            }
            top.offer(first, &similarities[..n]);
        }
        let found = top.finish();
        if !exact && !tail.is_empty() {
            for hit in found.iter_mut() {
                let (entry_head, entry_tail, scale) = self.entries.key(hit.index as usize);
                let mut dots = [0; 2];
                kernels.dots(head, entry_head, &mut dots[..1]);
                kernels.dots(tail, entry_tail, &mut dots[1..]);
                hit.value = (dots[0] + dots[1]) as f32 * (scale * key.scale);
            }
        }
        top::keep(found, 2 * n_nearest);
        for hit in found.iter_mut() {
            let n_common = self.entries.context(hit.index as usize).n_common(context);
            hit.value += CONTEXT_BONUS * n_common as f32;
        }
        found.sort_unstable_by(Hit::order);
        found.truncate(n_nearest);
        hits.clear();
        hits.extend_from_slice(found);
    }
}
