//! The nearest entries: a scan in blocks of rows, coarse and then exact where there are many.

use std::ops::Range;

use ruvllm_cpu::prefetch::prefetch;
use ruvllm_kernels::distance;

use super::entries::Block;
use super::{CONTEXT_BONUS, Context, Datastore};
use crate::top::{self, BLOCK, Hit, Partition, Top, Tops};
use crate::whiten::Key;
use ruvllm_kernels::Compute;

/// Blocks that a thread scans at a time: some microseconds.
const BLOCKS_AT_ONCE: usize = 16;
/// Candidates that a thread compares at a time.
const CANDIDATES_AT_ONCE: usize = 64;
/// Those whose keys are asked for before the one that is compared: they lie anywhere in memory.
const N_AHEAD: usize = 4;

/// KnnQuery of a search.
#[derive(Clone, Copy, Debug)]
pub struct KnnQuery<'a> {
    /// Key of the hidden state.
    pub key: &'a Key,
    /// The tokens before it.
    pub context: Context,
}

/// Scratch of a search; made once and used again.
#[derive(Debug, Default)]
pub struct SearchScratch {
    tops: Tops,
}

impl Datastore {
    /// Finds the entries nearest to a key, nearest first: at most [`DatastoreOptions::n_nearest`](super::DatastoreOptions). What has
    /// tokens in common with the context comes nearer; among some more than are returned, for which that is looked at.
    /// The threads shares the scan.
    ///
    /// # Panics
    /// If the key has another width; inside a threads's closure.
    pub fn search(&self, query: KnnQuery<'_>, compute: &Compute, scratch: &mut SearchScratch, hits: &mut Vec<Hit>) {
        self.search_as(self.len() <= self.options.n_exact_max, query, compute, scratch, hits);
    }

    /// Finds the nearest entries by comparing every key in full, whatever their number: what a coarse scan is measured
    /// against.
    ///
    /// # Panics
    /// As [`Datastore::search`] does.
    pub fn search_exact(
        &self,
        query: KnnQuery<'_>,
        compute: &Compute,
        scratch: &mut SearchScratch,
        hits: &mut Vec<Hit>,
    ) {
        self.search_as(true, query, compute, scratch, hits);
    }

    fn search_as(
        &self,
        exact: bool,
        KnnQuery { key, context }: KnnQuery<'_>,
        compute: &Compute,
        scratch: &mut SearchScratch,
        hits: &mut Vec<Hit>,
    ) {
        assert_eq!(key.bytes.len(), self.n_key, "a key of {} bytes", key.bytes.len());
        let (kernels, n_nearest) = (distance::pick(compute.isa), self.options.n_nearest);
        let n_found = if exact { 2 * n_nearest } else { self.options.n_candidates };
        let blocks = Partition { len: self.entries.n_blocks(), grain: BLOCKS_AT_ONCE };
        let scan = |blocks: Range<usize>, top: &mut Top| {
            blocks.for_each(|i| self.scan(exact, self.entries.block(i), key, kernels, top));
        };
        let found = scratch.tops.find(&compute.threads, n_found, blocks, &scan);
        if !exact {
            self.compare(key, compute, found);
            top::keep(found, 2 * n_nearest);
        }
        for hit in found.iter_mut() {
            let n_common = self.entries.context(hit.index as usize).n_common(context);
            hit.value += CONTEXT_BONUS * n_common as f32;
        }
        found.sort_unstable_by(Hit::order);
        found.truncate(n_nearest);
        hits.clear();
        hits.extend_from_slice(found);
    }

    /// Offers the similarities of a block, by whole keys or by their heads.
    fn scan(&self, exact: bool, block: Block<'_>, key: &Key, kernels: &distance::DistanceKernels, top: &mut Top) {
        let Block { first, heads, tails, scales } = block;
        let (head, tail) = key.bytes.split_at(self.entries.n_head());
        let (mut dots, mut tail_dots, mut similarities) = ([0; BLOCK], [0; BLOCK], [0.0; BLOCK]);
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

    /// Gives candidates their similarities by whole keys.
    fn compare(&self, key: &Key, compute: &Compute, candidates: &mut [Hit]) {
        if self.n_key == self.entries.n_head() {
            return;
        }
        let kernels = distance::pick(compute.isa);
        compute.each(candidates.chunks_mut(CANDIDATES_AT_ONCE), |part| self.compare_some(key, kernels, part));
    }

    fn compare_some(&self, key: &Key, kernels: &distance::DistanceKernels, candidates: &mut [Hit]) {
        let (head, tail) = key.bytes.split_at(self.entries.n_head());
        for at in 0..candidates.len() {
            if let Some(ahead) = candidates.get(at + N_AHEAD) {
                let ahead = self.entries.key(ahead.index as usize);
                prefetch(ahead.head);
                prefetch(ahead.tail);
            }
            let hit = &mut candidates[at];
            let entry = self.entries.key(hit.index as usize);
            let mut dots = [0; 2];
            kernels.dots(head, entry.head, &mut dots[..1]);
            kernels.dots(tail, entry.tail, &mut dots[1..]);
            hit.value = (dots[0] + dots[1]) as f32 * (entry.scale * key.scale);
        }
    }
}
