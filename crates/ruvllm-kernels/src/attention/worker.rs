//! One tile at work: scores, softmax and values, span by span, group of blocks by group, KV head by head, chunk of rows
//! by chunk.

use super::attend::{Context, Total};
use super::plan::{Tile, segment_spans, spans};
use super::{
    BLOCK_TOKENS, GROUP_BLOCKS, Head, KvFormat, KvPart, KvShape, MaxSum, MinArgs, NextParts, Options, Part,
    SPAN_BLOCKS, SPAN_TOKENS, ScoreArgs, Segment, SoftmaxArgs, TILE_ROWS, ValueArgs, hull,
};
use crate::prefetch::Streaming;
use std::ops::Range;

/// One tile at work.
pub(super) struct Worker<'a> {
    context: &'a Context<'a>,
    tile: &'a Tile<'a>,
    /// `[n_rows, k_stride]`, scaled, zeros past `k_dim`
    q: &'a mut [f32],
    /// `[n_rows, SPAN_TOKENS]`
    scores: &'a mut [f32],
    /// `[n_rows, v_stride]`, of the current span
    values: &'a mut [f32],
    /// `[n_rows, v_stride]`, of all spans
    totals: &'a mut [f32],
    /// What each row sees of the current span, from the span's start; `0..0` for nothing.
    visible: [Range<usize>; TILE_ROWS],
    /// What any row sees of it, and whether every row sees just that.
    seen: Range<usize>,
    is_same: bool,
    /// Maximum and sum of each row in the current span.
    softmax: [MaxSum; TILE_ROWS],
    /// The formats of the current span's blocks.
    formats: [KvFormat; SPAN_BLOCKS],
    /// The keys and values of the current span's blocks, of all heads.
    k_parts: [Part<'a>; SPAN_BLOCKS],
    v_parts: [Part<'a>; SPAN_BLOCKS],
}

impl<'a> Worker<'a> {
    /// Takes a tile; `memory` is what `tile_len` counts.
    pub(super) fn new(context: &'a Context<'a>, tile: &'a Tile<'a>, memory: &'a mut [f32]) -> Self {
        let Options { n_heads, k_dim, scale, .. } = *context.inputs.options;
        let shape = context.inputs.options.shape();
        let (k_stride, v_stride) = (shape.k_stride(), shape.v_stride());
        let (q, memory) = memory.split_at_mut(TILE_ROWS * k_stride);
        let (scores, memory) = memory.split_at_mut(TILE_ROWS * SPAN_TOKENS);
        for (to, (query, head)) in q.chunks_exact_mut(k_stride).zip(tile.query_heads()) {
            let start = ((tile.segment.first_row + query) * n_heads + head) * k_dim;
            let from = &context.inputs.q[start..start + k_dim];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
            to[k_dim..].fill(0.0);
        }
        let (values, totals) = memory[..2 * TILE_ROWS * v_stride].split_at_mut(TILE_ROWS * v_stride);
        Worker {
            context,
            tile,
            q,
            scores,
            values,
            totals,
            visible: [const { 0..0 }; TILE_ROWS],
            seen: 0..0,
            is_same: false,
            softmax: [MaxSum::default(); TILE_ROWS],
            formats: [KvFormat::F16; SPAN_BLOCKS],
            k_parts: [Part::NONE; SPAN_BLOCKS],
            v_parts: [Part::NONE; SPAN_BLOCKS],
        }
    }

    /// All spans in order, results to the output.
    pub(super) fn run(&mut self) {
        let mut totals = [Total::default(); TILE_ROWS];
        let first = spans(&self.positions(0));
        let last = spans(&self.positions(self.tile.n_rows() - 1));
        let v_stride = self.context.inputs.options.shape().v_stride();
        for span in first.start..last.end {
            self.run_span(span, span + 1 < last.end);
            for r in (0..self.tile.n_rows()).filter(|&r| !self.visible[r].is_empty()) {
                let row = r * v_stride..(r + 1) * v_stride;
                let values = &self.values[row.clone()];
                totals[r].add(self.context.table, &mut self.totals[row], self.softmax[r], values);
            }
        }
        for (r, total) in totals[..self.tile.n_rows()].iter().enumerate() {
            self.finish(r, *total);
        }
    }

    /// Span `index` of those that the segment sees, results to its slots.
    pub(super) fn run_split(&mut self, index: usize) {
        let (context, tile) = (self.context, self.tile);
        let spans = segment_spans(context.inputs.options, tile.segment);
        if index >= spans.len() {
            return;
        }
        let span = spans.start + index;
        self.run_span(span, false);
        let v_stride = context.inputs.options.shape().v_stride();
        for (r, (query, head)) in tile.query_heads().enumerate().filter(|&(r, _)| !self.visible[r].is_empty()) {
            // SAFETY: a row, head and span belong to one task.
            let slot = unsafe { context.slot(tile, query, head, span) };
            (slot[0], slot[1]) = (self.softmax[r].max, self.softmax[r].sum);
            slot[16..].copy_from_slice(&self.values[r * v_stride..(r + 1) * v_stride]);
        }
    }

    /// Folds the slots of the tile's KV head `head` into the output. All its spans are done.
    pub(super) fn merge(&mut self, head: usize) {
        let v_stride = self.context.inputs.options.shape().v_stride();
        for r in self.tile.rows_of(head) {
            let (mut total, (query, head)) = (Total::default(), self.tile.query_head(r));
            for span in spans(&self.positions(r)) {
                // SAFETY: the tasks of this tile are done, and one of them merges.
                let slot = unsafe { self.context.slot(self.tile, query, head, span) };
                let values = &mut self.totals[r * v_stride..(r + 1) * v_stride];
                total.add(self.context.table, values, MaxSum { max: slot[0], sum: slot[1] }, &slot[16..]);
            }
            self.finish(r, total);
        }
    }

    /// Writes row `r` to the output.
    fn finish(&self, r: usize, total: Total) {
        let options = self.context.inputs.options;
        let v_stride = options.shape().v_stride();
        // SAFETY: a row and head belong to one tile, and one task of the tile finishes it.
        let out = unsafe { self.context.out_row(self.tile, r) };
        let sink = options.sinks.map(|sinks| sinks[self.tile.query_head(r).1]);
        total.finish(&self.totals[r * v_stride..(r + 1) * v_stride], sink, out);
    }

    /// Returns the positions row `r` sees.
    fn positions(&self, r: usize) -> Range<usize> {
        let segment = self.tile.segment;
        self.context.inputs.options.visible(segment.pos + self.tile.query_head(r).0, segment.n_kv)
    }

    /// Scores, softmax and values of one span for all rows that see it. While one head group is worked on, the next is
    /// prefetched: values after the last keys and, if this tile goes `on` to the next span, its keys after the last values.
    fn run_span(&mut self, span: usize, on: bool) {
        self.look(span);
        let n_chunks = self.tile.rows_of(0).len().div_ceil(self.context.table.ops.chunk_rows);
        // What several chunks read should stay in the first-level cache.
        let group = if n_chunks == 1 { GROUP_BLOCKS } else { GROUP_BLOCKS / 2 };
        let blocks = self.seen.start / BLOCK_TOKENS..self.seen.end.div_ceil(BLOCK_TOKENS);
        self.locate(span, blocks.clone());
        let head_groups = HeadGroups::new(self, blocks.clone(), group);
        let mut coming = head_groups.first();
        while let Some(head_group) = coming {
            coming = head_groups.after(&head_group);
            let next = match &coming {
                Some(keys) => self.next_keys(keys),
                None => head_groups.first().map_or(Next::Nothing, |values| self.next_values(&values)),
            };
            self.for_chunks(&head_group, n_chunks, next, Worker::score);
        }
        self.softmax(span);
        self.start_values(blocks);
        coming = head_groups.first();
        while let Some(head_group) = coming {
            coming = head_groups.after(&head_group);
            let next = match &coming {
                Some(values) => self.next_values(values),
                None => self.locate_after(span, on, group),
            };
            self.for_chunks(&head_group, n_chunks, next, Worker::weigh);
        }
    }

    /// Finds what the rows see of a span.
    fn look(&mut self, span: usize) {
        let (options, segment) = (self.context.inputs.options, self.tile.segment);
        let start = span * SPAN_TOKENS;
        let clip = |position: usize| position.clamp(start, start + SPAN_TOKENS) - start;
        for (visible, (query, _)) in self.visible.iter_mut().zip(self.tile.query_heads()) {
            let positions = options.visible(segment.pos + query, segment.n_kv);
            let clipped = clip(positions.start)..clip(positions.end);
            *visible = if clipped.is_empty() { 0..0 } else { clipped };
        }
        let rows = &self.visible[..self.tile.n_rows()];
        self.seen = hull(rows);
        self.is_same = rows.iter().all(|visible| *visible == self.seen);
    }

    /// Runs `f` on a head group and each chunk of its head's rows. The first chunk prefetches for all.
    fn for_chunks(
        &mut self,
        head_group: &HeadGroup,
        n_chunks: usize,
        mut next: Next,
        f: impl Fn(&mut Self, &HeadGroup, Range<usize>, Next),
    ) {
        let rows = self.tile.rows_of(head_group.head);
        let chunk_len = if n_chunks == 1 { rows.len() } else { rows.len().div_ceil(n_chunks) };
        let mut first = rows.start;
        while first < rows.end {
            let chunk = first..rows.end.min(first + chunk_len);
            first = chunk.end;
            f(self, head_group, chunk, std::mem::replace(&mut next, Next::Nothing));
        }
    }

    /// Finds what comes after the last values of `span`: the keys of the tile's next span if there is one, else those of
    /// the next task.
    fn locate_after(&mut self, span: usize, on: bool, group: usize) -> Next {
        let (segment, kv_head, span) = if on {
            (self.tile.segment, self.tile.kv_heads.start, span + 1)
        } else if let Some((tile, span)) = self.context.peek() {
            (tile.segment, tile.kv_heads.start, span)
        } else {
            return Next::Nothing;
        };
        let n = self.locate_keys(segment, span, 0..group);
        let format = segment.blocks.get(span * SPAN_BLOCKS).map_or(KvFormat::F16, |block| block.format());
        Next::Keys(0..n, kv_head * format.k_head_bytes(self.shape()))
    }

    /// Returns the keys of a head group of this span as what comes next.
    fn next_keys(&self, head_group: &HeadGroup) -> Next {
        let (at, _) = self.place(head_group, KvFormat::k_head_bytes);
        Next::Keys(head_group.blocks.clone(), at)
    }

    /// The same of its values.
    fn next_values(&self, head_group: &HeadGroup) -> Next {
        let (at, _) = self.place(head_group, KvFormat::v_head_bytes);
        Next::Values(head_group.blocks.clone(), at)
    }

    /// Returns where a head group's head begins in what a unit has of all heads, and its bytes, of which a head has
    /// `head_bytes`.
    fn place(&self, head_group: &HeadGroup, head_bytes: fn(KvFormat, KvShape) -> usize) -> (usize, usize) {
        let len = head_bytes(self.formats[head_group.blocks.start], self.shape());
        ((self.tile.kv_heads.start + head_group.head) * len, len)
    }

    fn shape(&self) -> KvShape {
        self.context.inputs.options.shape()
    }

    /// Returns the positions of `within` that any of `rows` sees, from the span's start.
    fn seen(&self, rows: Range<usize>, within: Range<usize>) -> Range<usize> {
        if self.is_same { intersect(&self.seen, &within) } else { intersect(&hull(&self.visible[rows]), &within) }
    }

    /// Finds the keys and values of `blocks` of a span.
    fn locate(&mut self, span: usize, blocks: Range<usize>) {
        let (segment, shape) = (self.tile.segment, self.shape());
        let table = &segment.blocks[span * SPAN_BLOCKS + blocks.start..];
        for (i, &block) in blocks.zip(table) {
            let KvPart { format, sub, k, v } = self.context.inputs.kv.part(shape, block);
            self.formats[i] = format;
            (self.k_parts[i], self.v_parts[i]) = (Part { bytes: k, sub }, Part { bytes: v, sub });
        }
    }

    /// Finds the keys of `blocks` of a span of some sequence; returns how many there are.
    fn locate_keys(&mut self, segment: &Segment<'_>, span: usize, blocks: Range<usize>) -> usize {
        let (context, shape) = (self.context, self.shape());
        let n_known = segment.n_kv.div_ceil(BLOCK_TOKENS);
        let table = segment.blocks[..n_known].get(span * SPAN_BLOCKS + blocks.start..).unwrap_or(&[]);
        let n = blocks.len().min(table.len());
        for (part, &block) in self.k_parts[blocks].iter_mut().zip(table) {
            *part = Part { bytes: context.inputs.kv.part(shape, block).k, sub: block.sub() };
        }
        n
    }

    /// Scores `rows` against the blocks they see of a head group.
    fn score(&mut self, head_group: &HeadGroup, rows: Range<usize>, next: Next) {
        let seen = self.seen(rows.clone(), positions_of(&head_group.blocks));
        if seen.is_empty() {
            return;
        }
        let shape = self.shape();
        let k_stride = shape.k_stride();
        let blocks = seen.start / BLOCK_TOKENS..seen.end.div_ceil(BLOCK_TOKENS);
        let (at, len) = self.place(head_group, KvFormat::k_head_bytes);
        self.context.table.scores(&mut ScoreArgs {
            format: self.formats[head_group.blocks.start],
            shape,
            n_rows: rows.len(),
            q: &self.q[rows.start * k_stride..rows.end * k_stride],
            blocks: Head { parts: &self.k_parts[blocks.clone()], at, len },
            next: next_parts(&self.k_parts, &self.v_parts, next),
            out: &mut self.scores[rows.start * SPAN_TOKENS + blocks.start * BLOCK_TOKENS..rows.end * SPAN_TOKENS],
        });
    }

    /// Turns the scores of a span into weights, of each row over the blocks that it sees itself.
    fn softmax(&mut self, span: usize) {
        let (options, segment, n_rows) = (self.context.inputs.options, self.tile.segment, self.tile.n_rows());
        let mut alibi = [(0.0, 0.0); TILE_ROWS];
        if let Some(slopes) = options.alibi {
            for (row, (query, head)) in alibi.iter_mut().zip(self.tile.query_heads()) {
                *row = (slopes[head], (segment.pos + query) as f32 - (span * SPAN_TOKENS) as f32);
            }
        }
        self.context.table.softmax(&mut SoftmaxArgs {
            scores: &mut self.scores[..n_rows * SPAN_TOKENS],
            visible: &self.visible[..n_rows],
            softcap: options.softcap,
            alibi: options.alibi.map(|_| &alibi[..n_rows]),
            totals: &mut self.softmax[..n_rows],
        });
    }

    /// Makes each row's values what the minima of the blocks that it sees come to.
    fn start_values(&mut self, blocks: Range<usize>) {
        let shape = self.context.inputs.options.shape();
        let (n_rows, v_stride) = (self.tile.n_rows(), shape.v_stride());
        if !self.formats[blocks].iter().any(|format| format.is_packed()) {
            self.values[..n_rows * v_stride].fill(0.0);
            return;
        }
        for head in 0..self.tile.kv_heads.len() {
            let rows = self.tile.rows_of(head);
            self.context.table.mins(&mut MinArgs {
                shape,
                p: &self.scores[rows.start * SPAN_TOKENS..rows.end * SPAN_TOKENS],
                visible: &self.visible[rows.clone()],
                formats: &self.formats,
                blocks: &self.v_parts,
                head: self.tile.kv_heads.start + head,
                out: &mut self.values[rows.start * v_stride..rows.end * v_stride],
            });
        }
    }

    /// Adds the weighted values of a head group to `rows`, each over the positions that it sees: first
    /// what only some see before the common positions, then these for all rows at once, then what comes after.
    fn weigh(&mut self, head_group: &HeadGroup, rows: Range<usize>, next: Next) {
        let seen = self.seen(rows.clone(), positions_of(&head_group.blocks));
        if seen.is_empty() {
            return;
        }
        if self.is_same {
            self.weigh_rows(head_group, rows, &seen, next);
            return;
        }
        let visible = self.visible[rows.clone()].iter();
        let common = visible.fold(seen.clone(), |all, one| intersect(&all, one));
        if common.is_empty() {
            self.weigh_runs(head_group, rows, &seen);
            return;
        }
        self.weigh_runs(head_group, rows.clone(), &(seen.start..common.start));
        self.weigh_rows(head_group, rows.clone(), &common, next);
        self.weigh_runs(head_group, rows, &(common.end..seen.end));
    }

    /// Adds `positions` to each run of `rows` that sees the same.
    fn weigh_runs(&mut self, head_group: &HeadGroup, rows: Range<usize>, positions: &Range<usize>) {
        if positions.is_empty() {
            return;
        }
        let mut first = rows.start;
        while first < rows.end {
            let same = |&r: &usize| self.visible[r] == self.visible[first];
            let end = first + (first..rows.end).take_while(same).count();
            let positions = intersect(&self.visible[first], positions);
            if !positions.is_empty() {
                self.weigh_rows(head_group, first..end, &positions, Next::Nothing);
            }
            first = end;
        }
    }

    /// Adds `positions` (of the head group, from the span's start, seen by all) to `rows`.
    fn weigh_rows(&mut self, head_group: &HeadGroup, rows: Range<usize>, positions: &Range<usize>, next: Next) {
        let shape = self.shape();
        let v_stride = shape.v_stride();
        let blocks = positions.start / BLOCK_TOKENS..positions.end.div_ceil(BLOCK_TOKENS);
        let start = blocks.start * BLOCK_TOKENS;
        let (at, len) = self.place(head_group, KvFormat::v_head_bytes);
        self.context.table.values(&mut ValueArgs {
            format: self.formats[blocks.start],
            shape,
            n_rows: rows.len(),
            p: &self.scores[rows.start * SPAN_TOKENS + start..rows.end * SPAN_TOKENS],
            blocks: Head { parts: &self.v_parts[blocks], at, len },
            next: next_parts(&self.k_parts, &self.v_parts, next),
            tokens: positions.start - start..positions.end - start,
            out: &mut self.values[rows.start * v_stride..rows.end * v_stride],
        });
    }
}

/// Unit of reading: a group of blocks, for one KV head.
struct HeadGroup {
    group: usize,
    /// Of the span.
    blocks: Range<usize>,
    /// Of the tile's KV heads.
    head: usize,
}

/// The head groups of a span, in the order they are read: the heads of a block lie side by side, so a group is read for all of
/// them before the next one.
struct HeadGroups {
    start: usize,
    /// Where each group ends.
    ends: [usize; SPAN_BLOCKS],
    n_groups: usize,
    n_heads: usize,
}

impl HeadGroups {
    /// Cuts `blocks` of the worker's span in groups of up to `len_max`.
    fn new(worker: &Worker<'_>, blocks: Range<usize>, len_max: usize) -> HeadGroups {
        let n_heads = worker.tile.kv_heads.len();
        let mut head_groups = HeadGroups { start: blocks.start, ends: [0; SPAN_BLOCKS], n_groups: 0, n_heads };
        let groups = Groups { formats: &worker.formats, parts: &worker.k_parts, rest: blocks, len_max };
        for group in groups {
            head_groups.ends[head_groups.n_groups] = group.end;
            head_groups.n_groups += 1;
        }
        head_groups
    }

    fn first(&self) -> Option<HeadGroup> {
        (self.n_groups > 0).then(|| HeadGroup { group: 0, blocks: self.start..self.ends[0], head: 0 })
    }

    fn after(&self, head_group: &HeadGroup) -> Option<HeadGroup> {
        if head_group.head + 1 < self.n_heads {
            return Some(HeadGroup {
                group: head_group.group,
                blocks: head_group.blocks.clone(),
                head: head_group.head + 1,
            });
        }
        let group = head_group.group + 1;
        (group < self.n_groups).then(|| HeadGroup { group, blocks: self.ends[group - 1]..self.ends[group], head: 0 })
    }
}

/// Blocks of a span in groups for the register kernels: of one format, and ending with a unit where that is possible.
struct Groups<'a> {
    /// Of each block of the span.
    formats: &'a [KvFormat; SPAN_BLOCKS],
    parts: &'a [Part<'a>; SPAN_BLOCKS],
    rest: Range<usize>,
    /// Blocks of a group at most.
    len_max: usize,
}

impl Iterator for Groups<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let Range { start, end } = self.rest.clone();
        let format = *self.formats[self.rest.clone()].first()?;
        let same = self.formats[start..end].iter().take(self.len_max).take_while(|&&other| other == format).count();
        let mut last = start + same;
        if last < end && self.formats[last] == format {
            last = (start + 1..=last).rev().find(|&i| self.parts[i].sub == 0).unwrap_or(last);
        }
        self.rest.start = last;
        Some(start..last)
    }
}

/// Memory that is read after a head group: blocks of the span, and where a head's part of each begins.
enum Next {
    Nothing,
    Keys(Range<usize>, usize),
    Values(Range<usize>, usize),
}

/// Returns `next` in the form that the kernels take.
fn next_parts<'p>(k_parts: &'p [Part<'_>], v_parts: &'p [Part<'_>], next: Next) -> NextParts<'p> {
    let (parts, at) = match next {
        Next::Nothing => (&[][..], 0),
        Next::Keys(blocks, at) => (&k_parts[blocks], at),
        Next::Values(blocks, at) => (&v_parts[blocks], at),
    };
    NextParts { parts, at, level: Streaming::of_machine().level }
}

/// Returns the positions of `blocks`, from the start of what these count from.
fn positions_of(blocks: &Range<usize>) -> Range<usize> {
    blocks.start * BLOCK_TOKENS..blocks.end * BLOCK_TOKENS
}

fn intersect(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}
