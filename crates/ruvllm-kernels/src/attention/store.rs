//! Writing a step's keys and values into their blocks.

use super::{BLOCK_TOKENS, KvShape, KvSlabMut, Segment};
use crate::team::{Shared, Team};
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::ops::Range;

/// Columns of a head one task takes.
const PIECE: usize = 64;
/// Elements below which waking the team costs more than it saves.
const ALONE: usize = 1 << 14;

/// What a slab holds: how floats become it.
trait Stored: Copy + Send + Sync {
    const ZERO: Self;
    fn convert(from: &[f32], to: &mut [Self]);
}

impl Stored for f16 {
    const ZERO: f16 = f16::ZERO;

    fn convert(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }
}

impl Stored for f32 {
    const ZERO: f32 = 0.0;

    fn convert(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

/// Writes the keys and values of a step's rows, rounded to nearest even, at their positions.
///
/// Shapes: `k`: `[n_rows, n_kv_heads * k_dim]`, `v`: `[n_rows, n_kv_heads * v_dim]`, rows of the whole step, of which
/// each segment names its own. Tasks are columns of a head, so the team writes in disjoint places whatever the segments.
///
/// # Panics
/// If the slabs differ in blocks, a segment reaches past `k`, `v`, its blocks or its `n_kv`, or a block past the slabs.
pub fn store(team: &Team, shape: KvShape, slab: KvSlabMut<'_>, segments: &[Segment<'_>], k: &[f32], v: &[f32]) {
    match slab {
        KvSlabMut::F16 { k: k_slab, v: v_slab } => store_as(team, shape, (k_slab, v_slab), segments, (k, v)),
        KvSlabMut::F32 { k: k_slab, v: v_slab } => store_as(team, shape, (k_slab, v_slab), segments, (k, v)),
    }
}

fn store_as<T: Stored>(
    team: &Team,
    shape: KvShape,
    slabs: (&mut [T], &mut [T]),
    segments: &[Segment<'_>],
    (k, v): (&[f32], &[f32]),
) {
    let n_blocks = slabs.0.len() / shape.k_block_len();
    assert_eq!(slabs.0.len(), n_blocks * shape.k_block_len(), "store: the K slab is not whole blocks");
    assert_eq!(slabs.1.len(), n_blocks * shape.v_block_len(), "store: the slabs differ in blocks");
    for segment in segments {
        let end = segment.pos + segment.n_rows;
        assert!(end <= segment.n_kv && end <= segment.blocks.len() * BLOCK_TOKENS, "store: {segment:?} lacks blocks");
        assert!(
            segment.blocks.iter().all(|&block| (block as usize) < n_blocks),
            "store: a block of {n_blocks} is past"
        );
    }
    let (k_slab, v_slab) = (Shared::new(slabs.0), Shared::new(slabs.1));
    let (k_pieces, v_pieces) = (shape.k_dim.div_ceil(PIECE), shape.v_dim.div_ceil(PIECE));
    let n_tasks = shape.n_kv_heads * (k_pieces + v_pieces);
    let n_rows = segments.iter().map(|segment| segment.n_rows).sum::<usize>();
    let alone = n_rows * shape.n_kv_heads * (shape.k_dim + shape.v_dim) < ALONE;
    let grain = if alone { n_tasks.max(1) } else { 1 };
    team.for_each(n_tasks, grain, &|tasks, _worker| {
        for task in tasks {
            let (head, piece) = (task / (k_pieces + v_pieces), task % (k_pieces + v_pieces));
            for segment in segments {
                if piece < k_pieces {
                    store_keys(shape, &k_slab, segment, k, head, columns(piece, shape.k_dim));
                } else {
                    store_values(shape, &v_slab, segment, v, head, columns(piece - k_pieces, shape.v_dim));
                }
            }
        }
    });
}

fn columns(piece: usize, dim: usize) -> Range<usize> {
    piece * PIECE..dim.min((piece + 1) * PIECE)
}

/// Writes columns `columns` of K head `head`: element `(d, t)` of a block lies at `16 d + t`.
fn store_keys<T: Stored>(
    shape: KvShape,
    slab: &Shared<'_, T>,
    segment: &Segment<'_>,
    k: &[f32],
    head: usize,
    columns: Range<usize>,
) {
    let (n, row_len) = (columns.len(), shape.n_kv_heads * shape.k_dim);
    let mut row = 0;
    while row < segment.n_rows {
        let pos = segment.pos + row;
        let (block, slot) = (segment.blocks[pos / BLOCK_TOKENS] as usize, pos % BLOCK_TOKENS);
        let n_tokens = (BLOCK_TOKENS - slot).min(segment.n_rows - row);
        let mut rows = [[T::ZERO; PIECE]; BLOCK_TOKENS];
        for (t, to) in rows[..n_tokens].iter_mut().enumerate() {
            let start = (segment.first_row + row + t) * row_len + head * shape.k_dim + columns.start;
            T::convert(&k[start..start + n], &mut to[..n]);
        }
        let start = block * shape.k_block_len() + (head * shape.k_dim + columns.start) * BLOCK_TOKENS;
        // SAFETY: only this task writes these columns of this head, and it writes its segments one after the other.
        let to = unsafe { slab.slice(start..start + n * BLOCK_TOKENS) };
        for (d, to) in to.chunks_exact_mut(BLOCK_TOKENS).enumerate() {
            for (to, from) in to[slot..slot + n_tokens].iter_mut().zip(&rows) {
                *to = from[d];
            }
        }
        row += n_tokens;
    }
}

/// Writes columns `columns` of V head `head`: element `(t, c)` of a block lies at `v_stride t + c`.
fn store_values<T: Stored>(
    shape: KvShape,
    slab: &Shared<'_, T>,
    segment: &Segment<'_>,
    v: &[f32],
    head: usize,
    columns: Range<usize>,
) {
    for row in 0..segment.n_rows {
        let pos = segment.pos + row;
        let (block, slot) = (segment.blocks[pos / BLOCK_TOKENS] as usize, pos % BLOCK_TOKENS);
        let from = ((segment.first_row + row) * shape.n_kv_heads + head) * shape.v_dim + columns.start;
        let to = block * shape.v_block_len() + (head * BLOCK_TOKENS + slot) * shape.v_stride() + columns.start;
        // SAFETY: only this task writes these columns of this head, and it writes its segments one after the other.
        let to = unsafe { slab.slice(to..to + columns.len()) };
        T::convert(&v[from..from + columns.len()], to);
    }
}
