//! How a step is cut into tiles and tasks. Results do not depend on it.

use super::attend::{Inputs, slot_len};
use super::{Options, SPAN_TOKENS, Segment, TILE_ROWS};
use std::ops::Range;

/// Spans become tasks of their own below this many tiles per thread.
const TILES_PER_THREAD: usize = 4;

/// How a step is cut into tasks.
pub(super) struct Plan {
    /// Query heads of a tile, all on one KV head.
    heads: usize,
    /// Query positions of a tile.
    queries: usize,
    /// Tasks along the spans: 1, or every span its own with the results in slots.
    pub(super) n_spans: usize,
    pub(super) split: bool,
}

impl Plan {
    /// Cuts `inputs` for `n_threads`, with room for `n_partials` floats of spans' results and for `n_counters` tiles.
    pub(super) fn new(inputs: &Inputs<'_>, n_threads: usize, n_partials: usize, n_counters: usize) -> Plan {
        let Options { n_heads, n_kv_heads, v_dim, .. } = *inputs.options;
        let group = n_heads / n_kv_heads;
        let mut plan = Plan { heads: group.min(TILE_ROWS), queries: 1, n_spans: 1, split: false };
        plan.queries = TILE_ROWS / plan.heads;
        let n_tiles = plan.n_tiles_of_all(inputs);
        let lens = || inputs.segments.iter().map(|segment| segment_spans(inputs.options, segment).len());
        let (n_spans, total) = (lens().max().unwrap_or(0), lens().sum::<usize>());
        let n_rows = inputs.segments.last().map_or(0, |segment| segment.first_row + segment.n_rows);
        let fits = n_rows * n_heads * n_spans * slot_len(v_dim) <= n_partials && n_tiles <= n_counters;
        // One long sequence among short ones would keep one thread busy after the others are done.
        let uneven = n_spans * n_threads * TILES_PER_THREAD > total * n_kv_heads;
        if n_threads > 1 && n_spans > 1 && fits && (n_tiles < TILES_PER_THREAD * n_threads || uneven) {
            (plan.split, plan.n_spans) = (true, n_spans);
        } else if (1..n_threads).contains(&n_tiles) {
            // Few heads and a short context: the heads of a group go to different threads.
            plan.heads = plan.heads.div_ceil(n_threads.div_ceil(n_tiles));
        }
        plan
    }

    /// Returns the tiles of all segments.
    pub(super) fn n_tiles_of_all(&self, inputs: &Inputs<'_>) -> usize {
        inputs.segments.iter().map(|segment| self.n_tiles(inputs.options, segment)).sum()
    }

    /// Returns the tiles of a segment.
    fn n_tiles(&self, options: &Options<'_>, segment: &Segment<'_>) -> usize {
        let group = options.n_heads / options.n_kv_heads;
        segment.n_rows.div_ceil(self.queries) * group.div_ceil(self.heads) * options.n_kv_heads
    }

    /// Returns tile `index` of all.
    ///
    /// # Panics
    /// If there are fewer.
    pub(super) fn tile_of_all<'a>(&self, inputs: &Inputs<'a>, mut index: usize) -> Tile<'a> {
        for segment in inputs.segments {
            match index.checked_sub(self.n_tiles(inputs.options, segment)) {
                Some(rest) => index = rest,
                None => return self.tile(inputs.options, segment, index),
            }
        }
        panic!("tile {index} past the last segment");
    }

    /// Returns tile `index` of a segment: KV heads outermost, and the last queries, which see most, first.
    fn tile<'a>(&self, options: &Options<'_>, segment: &'a Segment<'a>, index: usize) -> Tile<'a> {
        let group = options.n_heads / options.n_kv_heads;
        let (n_parts, n_query_tiles) = (group.div_ceil(self.heads), segment.n_rows.div_ceil(self.queries));
        let (head_part, query_tile) = (index / n_query_tiles, n_query_tiles - 1 - index % n_query_tiles);
        let (kv_head, part) = (head_part / n_parts, head_part % n_parts);
        let first_head = kv_head * group + part * self.heads;
        let first_query = query_tile * self.queries;
        Tile {
            segment,
            kv_head,
            heads: first_head..(first_head + self.heads).min((kv_head + 1) * group),
            queries: first_query..(first_query + self.queries).min(segment.n_rows),
        }
    }
}

/// Query rows that share a KV head; row `r` is query `r / heads.len()` and head `r % heads.len()` of the tile.
pub(super) struct Tile<'a> {
    pub(super) segment: &'a Segment<'a>,
    pub(super) kv_head: usize,
    heads: Range<usize>,
    /// Rows of the segment.
    queries: Range<usize>,
}

impl Tile<'_> {
    pub(super) fn n_rows(&self) -> usize {
        self.queries.len() * self.heads.len()
    }

    /// Returns the segment's row and the head of tile row `r`.
    pub(super) fn query_head(&self, r: usize) -> (usize, usize) {
        (self.queries.start + r / self.heads.len(), self.heads.start + r % self.heads.len())
    }
}

/// Returns the spans that `positions` (not empty) touch.
pub(super) fn spans(positions: &Range<usize>) -> Range<usize> {
    positions.start / SPAN_TOKENS..positions.end.div_ceil(SPAN_TOKENS)
}

/// Returns the spans that any row of `segment` sees.
pub(super) fn segment_spans(options: &Options<'_>, segment: &Segment<'_>) -> Range<usize> {
    if segment.n_rows == 0 {
        return 0..0;
    }
    let first = options.visible(segment.pos, segment.n_kv);
    let last = options.visible(segment.pos + segment.n_rows - 1, segment.n_kv);
    spans(&(first.start..last.end))
}
