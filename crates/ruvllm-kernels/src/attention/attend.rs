//! The driver: cuts a step into tiles, runs them on the team, merges spans. Knows no instruction set.

use super::{
    BLOCK_TOKENS, CHUNK_ROWS, Element, GROUP_BLOCKS, KvSlab, Options, SPAN_BLOCKS, SPAN_TOKENS, ScoreArgs, Segment,
    SoftmaxArgs, TILE_ROWS, Table, ValueArgs,
};
use crate::arena::AlignedVec;
use crate::team::{Shared, Team};
use std::ops::Range;

/// Positions in a group of blocks.
const GROUP_TOKENS: usize = GROUP_BLOCKS * BLOCK_TOKENS;
/// Spans become tasks of their own below this many tiles per thread.
const TILES_PER_THREAD: usize = 4;
/// Elements of partial results from which on the team merges them.
const MERGE_TOGETHER: usize = 1 << 16;

/// What a step attends with.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// How.
    pub options: &'a Options<'a>,
    /// The layer's cache; this step's keys and values are written already.
    pub kv: KvSlab<'a>,
    /// The step's rows by sequence, in row order.
    pub segments: &'a [Segment<'a>],
    /// The queries, `[n_rows, n_heads * k_dim]`.
    pub q: &'a [f32],
}

/// The largest layer and context a [`Scratch`] serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Query heads.
    pub n_heads: usize,
    /// Length of a key head.
    pub k_dim: usize,
    /// Length of a value head.
    pub v_dim: usize,
    /// Positions of a sequence.
    pub n_ctx: usize,
}

/// Working memory of [`attend`], allocated once.
///
/// Its size is that of a tile per thread (some 100 KiB) and, for contexts of several spans, of four rows' partial
/// results; the latter become real memory only when used. It never changes results.
#[derive(Debug)]
pub struct Scratch {
    limits: Limits,
    n_threads: usize,
    /// A tile for each thread.
    tiles: AlignedVec<f32>,
    /// Slots of `max`, `sum`, 14 unused, then a head's values.
    partials: AlignedVec<f32>,
}

impl Scratch {
    /// Allocates for teams of up to `n_threads` and layers of up to `limits`.
    pub fn new(n_threads: usize, limits: Limits) -> Scratch {
        let n_spans = limits.n_ctx.div_ceil(SPAN_TOKENS);
        let n_slots = if n_threads > 1 && n_spans > 1 { 4 * limits.n_heads * n_spans } else { 0 };
        Scratch {
            limits,
            n_threads,
            tiles: AlignedVec::new(n_threads * tile_len(limits.k_dim, limits.v_dim)),
            partials: AlignedVec::new(n_slots * slot_len(limits.v_dim)),
        }
    }
}

/// Floats of a tile: queries, a span of scores, a span's values.
fn tile_len(k_dim: usize, v_dim: usize) -> usize {
    TILE_ROWS * (k_dim.next_multiple_of(16) + SPAN_TOKENS + v_dim.next_multiple_of(16))
}

/// Floats of a span's partial result for one row.
fn slot_len(v_dim: usize) -> usize {
    16 + v_dim.next_multiple_of(16)
}

/// Attends: `out[row, head] = softmax(q[row, head]·Kᵀ)·V` for every row of every segment; other rows stay untouched.
///
/// Shapes: `out`: `[n_rows, n_heads * v_dim]`; the rest is in [`Inputs`]. Allocates nothing. Bit-identical whatever the
/// team, the other segments and the cut of a sequence into steps, within one instruction set.
///
/// # Panics
/// If the shapes disagree, segments overlap or are out of order, a segment lacks blocks or rows, `window` is 0, or the
/// scratch is too small.
pub fn attend(table: &Table, team: &Team, scratch: &mut Scratch, inputs: &Inputs<'_>, out: &mut [f32]) {
    check(team, scratch, inputs, out);
    match inputs.kv {
        KvSlab::F16 { k, v } => attend_as(table, team, scratch, inputs, (k, v), out),
        KvSlab::F32 { k, v } => attend_as(table, team, scratch, inputs, (k, v), out),
    }
}

fn check(team: &Team, scratch: &Scratch, inputs: &Inputs<'_>, out: &[f32]) {
    let (options, limits) = (inputs.options, scratch.limits);
    let Options { n_heads, n_kv_heads, k_dim, v_dim, .. } = *options;
    assert!(n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads), "attend: {n_heads} heads on {n_kv_heads}");
    assert!(k_dim > 0 && v_dim > 0, "attend: heads have a length");
    assert!(team.n_threads() <= scratch.n_threads, "attend: the scratch is for {} threads", scratch.n_threads);
    assert!(k_dim <= limits.k_dim && v_dim <= limits.v_dim, "attend: the scratch is for {limits:?}");
    assert!(options.window != Some(0), "attend: a window of no positions");
    assert!(options.sinks.is_none_or(|sinks| sinks.len() == n_heads), "attend: a sink per head");
    assert!(options.alibi.is_none_or(|slopes| slopes.len() == n_heads), "attend: a slope per head");
    let shape = options.shape();
    let (k_len, v_len) = match inputs.kv {
        KvSlab::F16 { k, v } => (k.len(), v.len()),
        KvSlab::F32 { k, v } => (k.len(), v.len()),
    };
    let n_blocks = k_len / shape.k_block_len();
    assert_eq!(k_len, n_blocks * shape.k_block_len(), "attend: the K slab is not whole blocks");
    assert_eq!(v_len, n_blocks * shape.v_block_len(), "attend: the slabs differ in blocks");
    let mut n_rows = 0;
    for segment in inputs.segments {
        assert!(segment.first_row >= n_rows, "attend: segments overlap or are out of order");
        n_rows = segment.first_row + segment.n_rows;
        assert!(segment.pos + segment.n_rows <= segment.n_kv, "attend: rows past the sequence's {}", segment.n_kv);
        let needed = segment.n_kv.div_ceil(BLOCK_TOKENS);
        assert!(needed <= segment.blocks.len(), "attend: need {needed} blocks, have {}", segment.blocks.len());
        let known = |&block: &u32| (block as usize) < n_blocks;
        assert!(segment.blocks[..needed].iter().all(known), "attend: a block past the slab's {n_blocks}");
    }
    assert!(inputs.q.len() >= n_rows * n_heads * k_dim, "attend: {n_rows} rows, fewer queries");
    assert!(out.len() >= n_rows * n_heads * v_dim, "attend: {n_rows} rows, fewer in the output");
}

/// How a step is cut into tasks. Results do not depend on it.
struct Plan {
    /// Query heads of a tile, all on one KV head.
    heads: usize,
    /// Query positions of a tile.
    queries: usize,
    /// Tasks along the spans: 1, or every span its own with the results in slots.
    n_spans: usize,
    split: bool,
}

impl Plan {
    fn new(inputs: &Inputs<'_>, n_threads: usize, n_partials: usize) -> Plan {
        let Options { n_heads, n_kv_heads, v_dim, .. } = *inputs.options;
        let group = n_heads / n_kv_heads;
        let mut plan = Plan { heads: group.min(TILE_ROWS), queries: 1, n_spans: 1, split: false };
        plan.queries = TILE_ROWS / plan.heads;
        let n_tiles: usize = inputs.segments.iter().map(|segment| plan.n_tiles(inputs.options, segment)).sum();
        let n_spans = inputs.segments.iter().map(|segment| segment.n_kv.div_ceil(SPAN_TOKENS)).max().unwrap_or(0);
        let n_rows = inputs.segments.last().map_or(0, |segment| segment.first_row + segment.n_rows);
        let fits = n_rows * n_heads * n_spans * slot_len(v_dim) <= n_partials;
        if n_threads > 1 && n_spans > 1 && n_tiles < TILES_PER_THREAD * n_threads && fits {
            (plan.split, plan.n_spans) = (true, n_spans);
        } else if (1..n_threads).contains(&n_tiles) {
            // Few heads and a short context: the heads of a group go to different threads.
            plan.heads = plan.heads.div_ceil(n_threads.div_ceil(n_tiles));
        }
        plan
    }

    /// Returns the tiles of a segment.
    fn n_tiles(&self, options: &Options<'_>, segment: &Segment<'_>) -> usize {
        let group = options.n_heads / options.n_kv_heads;
        segment.n_rows.div_ceil(self.queries) * group.div_ceil(self.heads) * options.n_kv_heads
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
struct Tile<'a> {
    segment: &'a Segment<'a>,
    kv_head: usize,
    heads: Range<usize>,
    /// Rows of the segment.
    queries: Range<usize>,
}

impl Tile<'_> {
    fn n_rows(&self) -> usize {
        self.queries.len() * self.heads.len()
    }

    /// Returns the segment's row and the head of tile row `r`.
    fn query_head(&self, r: usize) -> (usize, usize) {
        (self.queries.start + r / self.heads.len(), self.heads.start + r % self.heads.len())
    }
}

fn attend_as<T: Element>(
    table: &Table,
    team: &Team,
    scratch: &mut Scratch,
    inputs: &Inputs<'_>,
    (k, v): (&[T], &[T]),
    out: &mut [f32],
) {
    let options = inputs.options;
    let plan = Plan::new(inputs, team.n_threads(), scratch.partials.len());
    let tile_len = tile_len(scratch.limits.k_dim, scratch.limits.v_dim);
    let tiles = Shared::new(&mut scratch.tiles);
    let context = Context {
        table,
        inputs,
        k,
        v,
        plan: &plan,
        out: Shared::new(out),
        partials: Shared::new(&mut scratch.partials),
    };
    let n_tasks = |segment: &Segment<'_>| plan.n_tiles(options, segment) * plan.n_spans;
    team.for_each(inputs.segments.iter().map(n_tasks).sum(), 1, &|tasks, worker| {
        // SAFETY: every worker has a tile of its own.
        let memory = unsafe { tiles.slice(worker * tile_len..(worker + 1) * tile_len) };
        for mut task in tasks {
            let mut segments = inputs.segments.iter();
            let segment = loop {
                let segment = segments.next().expect("tasks are counted over the segments");
                match task.checked_sub(n_tasks(segment)) {
                    Some(rest) => task = rest,
                    None => break segment,
                }
            };
            let tile = plan.tile(options, segment, task / plan.n_spans);
            let mut worker = Worker::new(&context, &tile, memory);
            if plan.split {
                worker.run_split(task % plan.n_spans);
            } else {
                worker.run();
            }
        }
    });
    if plan.split {
        let n_heads = options.n_heads;
        for segment in inputs.segments {
            let n = segment.n_rows * n_heads;
            let grain = if n * plan.n_spans * options.v_dim < MERGE_TOGETHER { n.max(1) } else { 1 };
            team.for_each(n, grain, &|rows, _worker| {
                rows.for_each(|index| context.merge(segment, index / n_heads, index % n_heads));
            });
        }
    }
}

/// What all tasks of a step share.
struct Context<'a, T> {
    table: &'a Table,
    inputs: &'a Inputs<'a>,
    k: &'a [T],
    v: &'a [T],
    plan: &'a Plan,
    out: Shared<'a, f32>,
    partials: Shared<'a, f32>,
}

impl<T: Element> Context<'_, T> {
    /// Returns where row `query` of `segment` and `head` go.
    ///
    /// # Safety
    /// One task at a time may ask for the same row and head.
    #[allow(clippy::mut_from_ref, reason = "tasks own their rows of the output")]
    unsafe fn out_row(&self, segment: &Segment<'_>, query: usize, head: usize) -> &mut [f32] {
        let Options { n_heads, v_dim, .. } = *self.inputs.options;
        let start = ((segment.first_row + query) * n_heads + head) * v_dim;
        // SAFETY: rows of segments do not overlap (checked), and the caller has this row and head to itself.
        unsafe { self.out.slice(start..start + v_dim) }
    }

    /// Returns the slot of a row, head and span.
    ///
    /// # Safety
    /// As for `out_row`.
    #[allow(clippy::mut_from_ref, reason = "tasks own their slots")]
    unsafe fn slot(&self, segment: &Segment<'_>, query: usize, head: usize, span: usize) -> &mut [f32] {
        let len = slot_len(self.inputs.options.v_dim);
        let row = (segment.first_row + query) * self.inputs.options.n_heads + head;
        let start = (row * self.plan.n_spans + span) * len;
        // SAFETY: every row, head and span has its own slot, and the caller has this one to itself.
        unsafe { self.partials.slice(start..start + len) }
    }

    /// Folds the slots of one row and head into the output.
    fn merge(&self, segment: &Segment<'_>, query: usize, head: usize) {
        // SAFETY: the tiles are done, and each row and head is merged by one task.
        let out = unsafe { self.out_row(segment, query, head) };
        let mut total = Total::default();
        for span in spans(&self.inputs.options.visible(segment.pos + query, segment.n_kv)) {
            // SAFETY: as above.
            let slot = unsafe { self.slot(segment, query, head, span) };
            total.add(out, slot[0], slot[1], &slot[16..]);
        }
        total.finish(out, self.inputs.options.sinks.map(|sinks| sinks[head]));
    }
}

/// Returns the spans that `positions` (not empty) touch.
fn spans(positions: &Range<usize>) -> Range<usize> {
    positions.start / SPAN_TOKENS..positions.end.div_ceil(SPAN_TOKENS)
}

/// The running maximum and sum of a row; its values are in the output.
#[derive(Clone, Copy, Default)]
struct Total {
    /// `None` before the first span.
    max: Option<f32>,
    sum: f32,
}

impl Total {
    /// Adds a span.
    fn add(&mut self, out: &mut [f32], max: f32, sum: f32, values: &[f32]) {
        let Some(old_max) = self.max else {
            out.copy_from_slice(&values[..out.len()]);
            *self = Total { max: Some(max), sum };
            return;
        };
        let new_max = old_max.max(max);
        let (old_scale, new_scale) = ((old_max - new_max).exp(), (max - new_max).exp());
        *self = Total { max: Some(new_max), sum: self.sum * old_scale + sum * new_scale };
        for (out, value) in out.iter_mut().zip(values) {
            *out = *out * old_scale + value * new_scale;
        }
    }

    /// Divides by the sum, which the sink joins.
    fn finish(self, out: &mut [f32], sink: Option<f32>) {
        let max = self.max.expect("a query sees itself");
        let (mut scale, mut sum) = (1.0, self.sum);
        if let Some(sink) = sink {
            let new_max = max.max(sink);
            scale = (max - new_max).exp();
            sum = sum * scale + (sink - new_max).exp();
        }
        let scale = scale / sum;
        out.iter_mut().for_each(|out| *out *= scale);
    }
}

/// One tile at work.
struct Worker<'a, T> {
    context: &'a Context<'a, T>,
    tile: &'a Tile<'a>,
    /// `[n_rows, k_dim]`, scaled
    q: &'a mut [f32],
    /// `[n_rows, SPAN_TOKENS]`
    scores: &'a mut [f32],
    /// `[n_rows, v_stride]`, of the current span
    values: &'a mut [f32],
    /// What each row sees of the current span, from the span's start; `0..0` for nothing.
    visible: [Range<usize>; TILE_ROWS],
    /// Maximum and sum of each row in the current span.
    softmax: [(f32, f32); TILE_ROWS],
}

impl<'a, T: Element> Worker<'a, T> {
    fn new(context: &'a Context<'a, T>, tile: &'a Tile<'a>, memory: &'a mut [f32]) -> Self {
        let Options { n_heads, k_dim, scale, .. } = *context.inputs.options;
        let v_stride = context.inputs.options.shape().v_stride();
        let (q, memory) = memory.split_at_mut(TILE_ROWS * k_dim.next_multiple_of(16));
        let (scores, memory) = memory.split_at_mut(TILE_ROWS * SPAN_TOKENS);
        for (r, to) in q.chunks_exact_mut(k_dim).take(tile.n_rows()).enumerate() {
            let (query, head) = tile.query_head(r);
            let start = ((tile.segment.first_row + query) * n_heads + head) * k_dim;
            let from = &context.inputs.q[start..start + k_dim];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
        }
        let values = &mut memory[..TILE_ROWS * v_stride];
        let visible = [const { 0..0 }; TILE_ROWS];
        Worker { context, tile, q, scores, values, visible, softmax: [(0.0, 0.0); TILE_ROWS] }
    }

    /// All spans in order, results to the output.
    fn run(&mut self) {
        let (context, tile) = (self.context, self.tile);
        let mut totals = [Total::default(); TILE_ROWS];
        let first = spans(&self.positions(0));
        let last = spans(&self.positions(tile.n_rows() - 1));
        for span in first.start..last.end {
            self.run_span(span);
            for r in (0..tile.n_rows()).filter(|&r| !self.visible[r].is_empty()) {
                let (query, head) = tile.query_head(r);
                // SAFETY: a row and head belong to one tile, and a tile to one task.
                let out = unsafe { context.out_row(tile.segment, query, head) };
                let (max, sum) = self.softmax[r];
                totals[r].add(out, max, sum, self.row_values(r));
            }
        }
        for (r, total) in totals[..tile.n_rows()].iter().enumerate() {
            let (query, head) = tile.query_head(r);
            // SAFETY: as above.
            let out = unsafe { context.out_row(tile.segment, query, head) };
            total.finish(out, context.inputs.options.sinks.map(|sinks| sinks[head]));
        }
    }

    /// One span, results to its slots.
    fn run_split(&mut self, span: usize) {
        let (context, tile) = (self.context, self.tile);
        self.run_span(span);
        for r in (0..tile.n_rows()).filter(|&r| !self.visible[r].is_empty()) {
            let (query, head) = tile.query_head(r);
            // SAFETY: a row, head and span belong to one task.
            let slot = unsafe { context.slot(tile.segment, query, head, span) };
            (slot[0], slot[1]) = self.softmax[r];
            slot[16..].copy_from_slice(self.row_values(r));
        }
    }

    fn row_values(&self, r: usize) -> &[f32] {
        let v_stride = self.context.inputs.options.shape().v_stride();
        &self.values[r * v_stride..(r + 1) * v_stride]
    }

    /// Returns the positions row `r` sees.
    fn positions(&self, r: usize) -> Range<usize> {
        let segment = self.tile.segment;
        self.context.inputs.options.visible(segment.pos + self.tile.query_head(r).0, segment.n_kv)
    }

    /// Scores, softmax and values of one span for all rows that see it.
    fn run_span(&mut self, span: usize) {
        let n_rows = self.tile.n_rows();
        let start = span * SPAN_TOKENS;
        for r in 0..n_rows {
            let positions = self.positions(r);
            let clip = |position: usize| position.clamp(start, start + SPAN_TOKENS) - start;
            let visible = clip(positions.start)..clip(positions.end);
            self.visible[r] = if visible.is_empty() { 0..0 } else { visible };
        }
        let n_chunks = n_rows.div_ceil(CHUNK_ROWS);
        let chunk_len = n_rows.div_ceil(n_chunks);
        for first_block in (0..SPAN_BLOCKS).step_by(GROUP_BLOCKS) {
            for first in (0..n_rows).step_by(chunk_len) {
                self.score(span, first_block, first..n_rows.min(first + chunk_len));
            }
        }
        for r in 0..n_rows {
            self.softmax_row(span, r);
        }
        let v_stride = self.context.inputs.options.shape().v_stride();
        self.values[..n_rows * v_stride].fill(0.0);
        for first_block in (0..SPAN_BLOCKS).step_by(GROUP_BLOCKS) {
            for first in (0..n_rows).step_by(chunk_len) {
                self.weigh(span, first_block, first..n_rows.min(first + chunk_len));
            }
        }
    }

    /// Returns the positions that any of `rows` sees within the group of blocks at `first_block`, from the span's start.
    fn seen(&self, rows: Range<usize>, first_block: usize) -> Range<usize> {
        let group = first_block * BLOCK_TOKENS..first_block * BLOCK_TOKENS + GROUP_TOKENS;
        let visible = self.visible[rows].iter().filter(|visible| !visible.is_empty());
        let both = visible.cloned().reduce(|all, one| all.start.min(one.start)..all.end.max(one.end)).unwrap_or(0..0);
        intersect(&both, &group)
    }

    /// Returns where block `block` of the span starts in a slab of `block_len` per block, for heads `head_len` apart.
    fn offset(&self, span: usize, block: usize, block_len: usize, head_len: usize) -> usize {
        self.tile.segment.blocks[span * SPAN_BLOCKS + block] as usize * block_len + self.tile.kv_head * head_len
    }

    /// Scores `rows` against the blocks they see of the group at `first_block`.
    fn score(&mut self, span: usize, first_block: usize, rows: Range<usize>) {
        let seen = self.seen(rows.clone(), first_block);
        if seen.is_empty() {
            return;
        }
        let shape = self.context.inputs.options.shape();
        let blocks = seen.start / BLOCK_TOKENS..seen.end.div_ceil(BLOCK_TOKENS);
        let mut offsets = [0; GROUP_BLOCKS];
        for (offset, block) in offsets.iter_mut().zip(blocks.clone()) {
            *offset = self.offset(span, block, shape.k_block_len(), shape.k_dim * BLOCK_TOKENS);
        }
        T::scores(
            self.context.table,
            &mut ScoreArgs {
                n_rows: rows.len(),
                k_dim: shape.k_dim,
                q: &self.q[rows.start * shape.k_dim..rows.end * shape.k_dim],
                k: self.context.k,
                offsets: &offsets[..blocks.len()],
                out: &mut self.scores[rows.start * SPAN_TOKENS + blocks.start * BLOCK_TOKENS..rows.end * SPAN_TOKENS],
                out_stride: SPAN_TOKENS,
            },
        );
    }

    /// Turns the scores of row `r` into weights, over the blocks that it sees itself.
    fn softmax_row(&mut self, span: usize, r: usize) {
        let visible = self.visible[r].clone();
        if visible.is_empty() {
            return;
        }
        let options = self.context.inputs.options;
        let start = visible.start / BLOCK_TOKENS * BLOCK_TOKENS;
        let end = visible.end.next_multiple_of(BLOCK_TOKENS);
        let (query, head) = self.tile.query_head(r);
        let distance = (self.tile.segment.pos + query) as f32 - (span * SPAN_TOKENS + start) as f32;
        self.softmax[r] = self.context.table.softmax(&mut SoftmaxArgs {
            scores: &mut self.scores[r * SPAN_TOKENS + start..r * SPAN_TOKENS + end],
            visible: visible.start - start..visible.end - start,
            softcap: options.softcap,
            alibi: options.alibi.map(|slopes| (slopes[head], distance)),
        });
    }

    /// Adds the weighted values of the group at `first_block` to `rows`, each over the positions that it sees: first
    /// what only some see before the common positions, then these for all rows at once, then what comes after.
    fn weigh(&mut self, span: usize, first_block: usize, rows: Range<usize>) {
        let seen = self.seen(rows.clone(), first_block);
        if seen.is_empty() {
            return;
        }
        let visible = self.visible[rows.clone()].iter();
        let common = visible.fold(seen.clone(), |all, one| intersect(&all, one));
        if common.is_empty() {
            self.weigh_runs(span, rows, &seen);
            return;
        }
        self.weigh_runs(span, rows.clone(), &(seen.start..common.start));
        self.weigh_rows(span, rows.clone(), &common);
        self.weigh_runs(span, rows, &(common.end..seen.end));
    }

    /// Adds `positions` to each run of `rows` that sees the same.
    fn weigh_runs(&mut self, span: usize, rows: Range<usize>, positions: &Range<usize>) {
        if positions.is_empty() {
            return;
        }
        let mut first = rows.start;
        while first < rows.end {
            let same = |&r: &usize| self.visible[r] == self.visible[first];
            let end = first + (first..rows.end).take_while(same).count();
            let positions = intersect(&self.visible[first], positions);
            if !positions.is_empty() {
                self.weigh_rows(span, first..end, &positions);
            }
            first = end;
        }
    }

    /// Adds `positions` (of one group, from the span's start, seen by all) to `rows`.
    fn weigh_rows(&mut self, span: usize, rows: Range<usize>, positions: &Range<usize>) {
        let shape = self.context.inputs.options.shape();
        let v_stride = shape.v_stride();
        let blocks = positions.start / BLOCK_TOKENS..positions.end.div_ceil(BLOCK_TOKENS);
        let mut offsets = [0; GROUP_BLOCKS];
        for (offset, block) in offsets.iter_mut().zip(blocks.clone()) {
            *offset = self.offset(span, block, shape.v_block_len(), BLOCK_TOKENS * v_stride);
        }
        let start = blocks.start * BLOCK_TOKENS;
        T::values(
            self.context.table,
            &mut ValueArgs {
                n_rows: rows.len(),
                v_stride,
                p: &self.scores[rows.start * SPAN_TOKENS + start..rows.end * SPAN_TOKENS],
                p_stride: SPAN_TOKENS,
                v: self.context.v,
                offsets: &offsets[..blocks.len()],
                tokens: positions.start - start..positions.end - start,
                out: &mut self.values[rows.start * v_stride..rows.end * v_stride],
            },
        );
    }
}

fn intersect(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}
