//! How a step is cut into tiles and tasks. Results do not depend on it.

use super::attend::{Inputs, slot_len};
use super::{Options, SPAN_TOKENS, Segment, TILE_ROWS};
use std::ops::Range;

/// Spans become tasks of their own below this many tiles per thread.
const TILES_PER_THREAD: usize = 4;

/// How a step is cut into tasks.
pub(super) struct Plan {
    /// Query heads of a KV head that a tile takes.
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

    /// Returns the tiles of one KV head in all segments.
    pub(super) fn n_tiles_of_all(&self, inputs: &Inputs<'_>) -> usize {
        inputs.segments.iter().map(|segment| self.n_tiles(inputs.options, segment)).sum()
    }

    /// Returns the tiles of one KV head in a segment.
    fn n_tiles(&self, options: &Options<'_>, segment: &Segment<'_>) -> usize {
        segment.n_rows.div_ceil(self.queries) * self.n_parts(options) * options.n_kv_heads
    }

    /// Returns the tiles that the query heads of a KV head are.
    fn n_parts(&self, options: &Options<'_>) -> usize {
        (options.n_heads / options.n_kv_heads).div_ceil(self.heads)
    }

    /// Returns task `index` of all, with those after it that it may be done with.
    ///
    /// # Panics
    /// If there are fewer.
    pub(super) fn task<'a>(&self, inputs: &Inputs<'a>, index: usize) -> Task<'a> {
        let (mut rest, mut n_tiles_before) = (index, 0);
        for segment in inputs.segments {
            let n_tiles = self.n_tiles(inputs.options, segment);
            match rest.checked_sub(n_tiles * self.n_spans) {
                Some(left) => rest = left,
                None => {
                    let mut task = self.task_of(inputs.options, segment, rest);
                    task.first_tile += n_tiles_before;
                    return task;
                }
            }
            n_tiles_before += n_tiles;
        }
        panic!("task {index} past the last segment");
    }

    /// Returns task `index` of a segment; the last queries, which see most, come first. Spans that are tasks of their own
    /// have the KV heads innermost: these lie side by side. Otherwise KV heads are outermost, for all queries to find a
    /// head's keys and values in the cache.
    fn task_of<'a>(&self, options: &Options<'_>, segment: &'a Segment<'a>, index: usize) -> Task<'a> {
        let Options { n_heads, n_kv_heads, .. } = *options;
        let (group, n_parts) = (n_heads / n_kv_heads, self.n_parts(options));
        let (n_head_parts, n_query_tiles) = (n_kv_heads * n_parts, segment.n_rows.div_ceil(self.queries));
        let (query_tile, span, head_part) = if self.split {
            let (outer, head_part) = (index / n_head_parts, index % n_head_parts);
            (outer / self.n_spans, outer % self.n_spans, head_part)
        } else {
            (index % n_query_tiles, 0, index / n_query_tiles)
        };
        let (kv_head, part) = (head_part / n_parts, head_part % n_parts);
        let first_query = (n_query_tiles - 1 - query_tile) * self.queries;
        let queries = first_query..(first_query + self.queries).min(segment.n_rows);
        let heads = part * self.heads..group.min((part + 1) * self.heads);
        let neighbours = n_parts == 1 && (self.split || n_query_tiles == 1);
        let n_together = if neighbours { TILE_ROWS / (group * queries.len()) } else { 1 };
        let kv_heads = kv_head..n_kv_heads.min(kv_head + n_together);
        Task {
            tile: Tile { segment, group, kv_heads, heads, queries },
            first_tile: query_tile * n_head_parts + head_part,
            span,
        }
    }
}

/// What is claimed at once.
pub(super) struct Task<'a> {
    pub(super) tile: Tile<'a>,
    /// The number of the tile of its first KV head, where spans are tasks of their own.
    pub(super) first_tile: usize,
    /// Which of the spans that the segment sees it is, if so.
    pub(super) span: usize,
}

/// Query rows on neighbouring KV heads; row `r` is one of KV head `r / n`, where `n` rows share a KV head, and there query
/// `r % n / heads.len()` and head `r % n % heads.len()` of the tile.
pub(super) struct Tile<'a> {
    pub(super) segment: &'a Segment<'a>,
    /// Query heads of a KV head.
    group: usize,
    pub(super) kv_heads: Range<usize>,
    /// Which of each group; with several KV heads, all.
    heads: Range<usize>,
    /// Rows of the segment.
    queries: Range<usize>,
}

impl Tile<'_> {
    pub(super) fn n_rows(&self) -> usize {
        self.kv_heads.len() * self.n_rows_of_head()
    }

    fn n_rows_of_head(&self) -> usize {
        self.queries.len() * self.heads.len()
    }

    /// Returns the rows on KV head `head` of the tile.
    pub(super) fn rows_of(&self, head: usize) -> Range<usize> {
        head * self.n_rows_of_head()..(head + 1) * self.n_rows_of_head()
    }

    /// Iterates over the segment's row and the head of each tile row.
    pub(super) fn query_heads(&self) -> impl Iterator<Item = (usize, usize)> {
        let (kv_heads, queries, heads, group) =
            (self.kv_heads.clone(), self.queries.clone(), self.heads.clone(), self.group);
        kv_heads.flat_map(move |kv_head| {
            let heads = heads.clone();
            let head_of = move |query| heads.clone().map(move |head| (query, kv_head * group + head));
            queries.clone().flat_map(head_of)
        })
    }

    /// Returns the segment's row and the head of tile row `r`.
    pub(super) fn query_head(&self, r: usize) -> (usize, usize) {
        let (kv_head, r) = (self.kv_heads.start + r / self.n_rows_of_head(), r % self.n_rows_of_head());
        (self.queries.start + r / self.heads.len(), kv_head * self.group + self.heads.start + r % self.heads.len())
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
