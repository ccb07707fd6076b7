//! The driver: runs a step's tiles on the thread pool and merges spans. Knows no instruction set.

use super::plan::{Plan, Task, Tile, segment_spans};
use super::worker::Worker;
use super::{
    AttentionKernels, BLOCK_TOKENS, FoldArgs, KvBlock, KvLayer, MaxSum, Options, SPAN_TOKENS, Segment, TILE_ROWS,
};
use ruvllm_cpu::arena::AlignedVec;
use ruvllm_cpu::{SharedSlice, ThreadPool};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Rows whose spans may be tasks of their own, in the longest context.
const SPLIT_ROWS: usize = 16;

/// Inputs of attention in a step.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Options of the layer.
    pub options: &'a Options<'a>,
    /// The layer's cache; this step's keys and values are written already.
    pub kv: KvLayer<'a>,
    /// The step's rows by sequence, in row order.
    pub segments: &'a [Segment<'a>],
    /// The queries, `[n_rows, n_heads * k_dim]`.
    pub q: &'a [f32],
}

/// Multiply-adds that one thread is done with before another has read what it would help with: some 2 µs.
const ALONE: usize = 128 * 1024;
/// Multiply-adds that one thread is done with in a quarter of a millisecond or so.
const SHORT: usize = 8 * 1024 * 1024;

impl Inputs<'_> {
    /// Returns the number of threads that the work is cut for.
    fn n_threads(&self, threads: &ThreadPool) -> usize {
        match self.n_multiply_adds() {
            n if n <= ALONE => 1,
            n if n <= SHORT => threads.n_present(),
            _ => threads.n_threads(),
        }
    }

    fn n_multiply_adds(&self) -> usize {
        let Options { n_heads, k_dim, v_dim, .. } = *self.options;
        let n_pairs = |segment: &Segment<'_>| match segment.n_rows {
            0 => 0,
            n => n * self.options.visible(segment.pos + n - 1, segment.n_kv).len(),
        };
        self.segments.iter().map(n_pairs).sum::<usize>() * n_heads * (k_dim + v_dim)
    }
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
/// Its size is that of a tile per thread (some 100 KiB) and, for contexts of several spans, of 16 rows' partial
/// results; the latter become real memory only when used. It never changes results.
#[derive(Debug)]
pub struct Scratch {
    limits: Limits,
    n_threads: usize,
    /// A tile for each thread.
    tiles: AlignedVec<f32>,
    /// Slots of `max`, `sum`, 14 unused, then a head's values.
    partials: AlignedVec<f32>,
    /// Finished spans of each tile.
    n_done: Vec<AtomicU32>,
}

impl Scratch {
    /// Allocates for up to `n_threads` threads and layers of up to `limits`.
    pub fn new(n_threads: usize, limits: Limits) -> Scratch {
        let n_spans = limits.n_ctx.div_ceil(SPAN_TOKENS);
        let n_slots = if n_threads > 1 && n_spans > 1 { SPLIT_ROWS * limits.n_heads * n_spans } else { 0 };
        Scratch {
            limits,
            n_threads,
            tiles: AlignedVec::new(n_threads * tile_len(limits.k_dim, limits.v_dim)),
            partials: AlignedVec::new(n_slots * slot_len(limits.v_dim)),
            n_done: (0..SPLIT_ROWS * limits.n_heads).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

/// Floats of a tile: queries, a span of scores, a span's values, all spans' values.
fn tile_len(k_dim: usize, v_dim: usize) -> usize {
    TILE_ROWS * (k_dim.next_multiple_of(16) + SPAN_TOKENS + 2 * v_dim.next_multiple_of(16))
}

/// Floats of a span's partial result for one row.
pub(super) fn slot_len(v_dim: usize) -> usize {
    16 + v_dim.next_multiple_of(16)
}

/// Attends: `out[row, head] = softmax(q[row, head]·Kᵀ)·V` for every row of every segment; other rows stay untouched.
///
/// Shapes: `out`: `[n_rows, n_heads * v_dim]`; the rest is in [`Inputs`]. Allocates nothing. Bit-identical whatever the
/// number of threads, the other segments and the cut of a sequence into steps, within one instruction set.
///
/// # Panics
/// If the shapes disagree, segments overlap or are out of order, a segment lacks blocks or rows, `window` is 0, or the
/// scratch is too small.
pub fn attend(
    table: &AttentionKernels,
    threads: &ThreadPool,
    scratch: &mut Scratch,
    inputs: &Inputs<'_>,
    out: &mut [f32],
) {
    check(threads, scratch, inputs, out);
    run(table, threads, scratch, inputs, out);
}

fn check(threads: &ThreadPool, scratch: &Scratch, inputs: &Inputs<'_>, out: &[f32]) {
    let (options, limits) = (inputs.options, scratch.limits);
    let Options { n_heads, n_kv_heads, k_dim, v_dim, .. } = *options;
    assert!(n_kv_heads > 0 && n_heads.is_multiple_of(n_kv_heads), "attend: {n_heads} heads on {n_kv_heads}");
    assert!(k_dim > 0 && v_dim > 0, "attend: heads have a length");
    assert!(threads.n_threads() <= scratch.n_threads, "attend: the scratch is for {} threads", scratch.n_threads);
    assert!(k_dim <= limits.k_dim && v_dim <= limits.v_dim, "attend: the scratch is for {limits:?}");
    assert!(options.window != Some(0), "attend: a window of no positions");
    assert!(options.sinks.is_none_or(|sinks| sinks.len() == n_heads), "attend: a sink per head");
    assert!(options.alibi.is_none_or(|slopes| slopes.len() == n_heads), "attend: a slope per head");
    let n_blocks = inputs.kv.check(options.shape());
    let mut n_rows = 0;
    for segment in inputs.segments {
        assert!(segment.first_row >= n_rows, "attend: segments overlap or are out of order");
        n_rows = segment.first_row + segment.n_rows;
        assert!(segment.pos + segment.n_rows <= segment.n_kv, "attend: rows past the sequence's {}", segment.n_kv);
        let needed = segment.n_kv.div_ceil(BLOCK_TOKENS);
        assert!(needed <= segment.blocks.len(), "attend: need {needed} blocks, have {}", segment.blocks.len());
        let known = |block: &KvBlock| block.index() < n_blocks[block.format() as usize];
        assert!(segment.blocks[..needed].iter().all(known), "attend: a block past the layer's {n_blocks:?}");
    }
    assert!(inputs.q.len() >= n_rows * n_heads * k_dim, "attend: {n_rows} rows, fewer queries");
    assert!(out.len() >= n_rows * n_heads * v_dim, "attend: {n_rows} rows, fewer in the output");
}

/// Cuts the step into tasks and runs them on the thread pool.
fn run(table: &AttentionKernels, threads: &ThreadPool, scratch: &mut Scratch, inputs: &Inputs<'_>, out: &mut [f32]) {
    let n_threads = inputs.n_threads(threads);
    let plan = Plan::new(inputs, n_threads, scratch.partials.len(), scratch.n_done.len());
    let tile_len = tile_len(scratch.limits.k_dim, scratch.limits.v_dim);
    let tiles = SharedSlice::new(&mut scratch.tiles);
    let n_tiles = plan.n_tiles_of_all(inputs);
    if plan.split {
        scratch.n_done[..n_tiles].iter_mut().for_each(|n_done| *n_done.get_mut() = 0);
    }
    let context = Context {
        table,
        inputs,
        plan: &plan,
        n_threads,
        n_tasks: n_tiles * plan.n_spans,
        cursor: Cursor::default(),
        out: SharedSlice::new(out),
        partials: SharedSlice::new(&mut scratch.partials),
    };
    let n_done = &scratch.n_done;
    let work = |thread: usize| {
        // SAFETY: every thread has a tile of its own.
        let memory = unsafe { tiles.slice(thread * tile_len..(thread + 1) * tile_len) };
        while let Some(task) = context.claim() {
            let mut worker = Worker::new(&context, &task.tile, memory);
            if !plan.split {
                worker.run();
                continue;
            }
            worker.run_split(task.span);
            for head in 0..task.tile.kv_heads.len() {
                // Release: this span's slots are written; acquire: so are those of the others.
                if n_done[task.first_tile + head].fetch_add(1, Ordering::AcqRel) as usize + 1 == plan.n_spans {
                    worker.merge(head);
                }
            }
        }
    };
    match context.n_tasks {
        0 => {}
        1 => work(0),
        _ if n_threads == 1 => work(0),
        _ => threads.share(&work),
    }
}

/// The next task, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Cursor(AtomicUsize);

/// What all tasks of a step share.
pub(super) struct Context<'a> {
    pub(super) table: &'a AttentionKernels,
    pub(super) inputs: &'a Inputs<'a>,
    plan: &'a Plan,
    n_threads: usize,
    n_tasks: usize,
    cursor: Cursor,
    out: SharedSlice<'a, f32>,
    partials: SharedSlice<'a, f32>,
}

impl<'a> Context<'a> {
    /// Takes the next task, of all KV heads that go together while there is enough for every thread to have as much.
    fn claim(&self) -> Option<Task<'a>> {
        let mut first = self.cursor.0.load(Ordering::Relaxed);
        while first < self.n_tasks {
            let mut task = self.plan.task(self.inputs, first);
            let kv_heads = &mut task.tile.kv_heads;
            if self.n_tasks - first < self.n_threads * kv_heads.len() {
                kv_heads.end = kv_heads.start + 1;
            }
            let next = first + kv_heads.len();
            match self.cursor.0.compare_exchange_weak(first, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(task),
                Err(now) => first = now,
            }
        }
        None
    }

    /// Returns the tile and the first span of the task that will be claimed next, probably by who asks.
    pub(super) fn peek(&self) -> Option<(Tile<'a>, usize)> {
        let first = Some(self.cursor.0.load(Ordering::Relaxed)).filter(|&first| first < self.n_tasks)?;
        let Task { tile, span, .. } = self.plan.task(self.inputs, first);
        let spans = segment_spans(self.inputs.options, tile.segment);
        let span = spans.start + span;
        spans.contains(&span).then_some((tile, span))
    }

    /// Returns where row `r` of `tile` goes.
    ///
    /// # Safety
    /// One task at a time may ask for the same row.
    #[allow(clippy::mut_from_ref, reason = "tasks own their rows of the output")]
    pub(super) unsafe fn out_row(&self, tile: &Tile<'_>, r: usize) -> &mut [f32] {
        let Options { n_heads, v_dim, .. } = *self.inputs.options;
        let (query, head) = tile.query_head(r);
        let start = ((tile.segment.first_row + query) * n_heads + head) * v_dim;
        // SAFETY: rows of segments do not overlap (checked), and the caller has this row and head to itself.
        unsafe { self.out.slice(start..start + v_dim) }
    }

    /// Returns the slot of a row of `tile`'s segment, a head and a span.
    ///
    /// # Safety
    /// As for `out_row`.
    #[allow(clippy::mut_from_ref, reason = "tasks own their slots")]
    pub(super) unsafe fn slot(&self, tile: &Tile<'_>, query: usize, head: usize, span: usize) -> &mut [f32] {
        let options = self.inputs.options;
        let len = slot_len(options.v_dim);
        let row = (tile.segment.first_row + query) * options.n_heads + head;
        let start = (row * self.plan.n_spans + span - segment_spans(options, tile.segment).start) * len;
        // SAFETY: every row, head and span has its own slot, and the caller has this one to itself.
        unsafe { self.partials.slice(start..start + len) }
    }
}

/// The running maximum and sum of a row; `None` before the first span.
#[derive(Clone, Copy, Default)]
pub(super) struct Total(Option<MaxSum>);

impl Total {
    /// Adds a span of maximum and sum `span` to the row's `values`.
    pub(super) fn add(&mut self, table: &AttentionKernels, values: &mut [f32], span: MaxSum, span_values: &[f32]) {
        self.0 = Some(match self.0 {
            Some(total) => table.fold(&mut FoldArgs { out: values, values: span_values, total, span }),
            None => {
                values.copy_from_slice(span_values);
                span
            }
        });
    }

    /// Divides by the sum, which the sink joins.
    pub(super) fn finish(self, values: &[f32], sink: Option<f32>, out: &mut [f32]) {
        let MaxSum { max, mut sum } = self.0.expect("a query sees itself");
        let mut scale = 1.0;
        if let Some(sink) = sink {
            let new_max = max.max(sink);
            scale = (max - new_max).exp();
            sum = sum * scale + (sink - new_max).exp();
        }
        let scale = scale / sum;
        out.iter_mut().zip(values).for_each(|(out, value)| *out = value * scale);
    }
}
