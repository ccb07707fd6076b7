//! Writing a step's keys and values into their blocks.

use super::{BLOCK_TOKENS, KvFormat, KvShape, KvUnitsMut, Segment};
use half::f16;
use half::slice::HalfFloatSliceExt;
use ruvllm_cpu::{SharedSlice, ThreadPool};
use std::ops::Range;

/// Columns of a head one task takes.
const TILE_COLUMNS: usize = 64;
/// Elements below which waking the workers costs more than it saves.
const ALONE: usize = 1 << 12;

/// What a block holds: how floats become it.
trait Stored: bytemuck::Pod + Send + Sync {
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
/// each segment names its own. Tasks are columns of a head, so the workers write in disjoint places whatever the segments.
///
/// # Panics
/// If the format is not exact, a segment reaches past `k`, `v`, its blocks or its `n_kv`, or a block that is written has
/// another format or lies past the units.
pub fn store(
    threads: &ThreadPool,
    shape: KvShape,
    units: KvUnitsMut<'_>,
    segments: &[Segment<'_>],
    k: &[f32],
    v: &[f32],
) {
    match units.format {
        KvFormat::F16 => store_as::<f16>(threads, shape, units, segments, k, v),
        _ => store_as::<f32>(threads, shape, units, segments, k, v),
    }
}

/// The layer that is written, its elements of type `T`.
struct Target<'a, T> {
    shape: KvShape,
    elements: SharedSlice<'a, T>,
    /// In elements.
    stride: usize,
    k_at: usize,
    v_at: usize,
}

fn store_as<T: Stored>(
    threads: &ThreadPool,
    shape: KvShape,
    units: KvUnitsMut<'_>,
    segments: &[Segment<'_>],
    k: &[f32],
    v: &[f32],
) {
    let (format, n_blocks) = (units.format, units.check(shape));
    for segment in segments.iter().filter(|segment| segment.n_rows > 0) {
        let end = segment.pos + segment.n_rows;
        assert!(end <= segment.n_kv && end <= segment.blocks.len() * BLOCK_TOKENS, "store: {segment:?} lacks blocks");
        let written = &segment.blocks[segment.pos / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS)];
        let known = written.iter().all(|block| block.format() == format && block.index() < n_blocks);
        assert!(known, "store: {written:?} are not all of {n_blocks} blocks of {format}");
    }
    let size = size_of::<T>();
    let target = Target {
        shape,
        elements: SharedSlice::new(bytemuck::cast_slice_mut::<u8, T>(units.bytes)),
        stride: units.stride / size,
        k_at: units.k_at / size,
        v_at: units.v_at / size,
    };
    let (k_tiles, v_tiles) = (shape.k_dim.div_ceil(TILE_COLUMNS), shape.v_dim.div_ceil(TILE_COLUMNS));
    let n_tasks = shape.n_kv_heads * (k_tiles + v_tiles);
    let n_rows = segments.iter().map(|segment| segment.n_rows).sum::<usize>();
    let alone = n_rows * shape.n_kv_heads * (shape.k_dim + shape.v_dim) < ALONE;
    let grain = if alone { n_tasks.max(1) } else { 1 };
    threads.for_each(n_tasks, grain, &|tasks, _worker| {
        for task in tasks {
            let (head, tile) = (task / (k_tiles + v_tiles), task % (k_tiles + v_tiles));
            for segment in segments {
                if tile < k_tiles {
                    target.store_keys(segment, k, head, columns(tile, shape.k_dim));
                } else {
                    target.store_values(segment, v, head, columns(tile - k_tiles, shape.v_dim));
                }
            }
        }
    });
}

fn columns(tile: usize, dim: usize) -> Range<usize> {
    tile * TILE_COLUMNS..dim.min((tile + 1) * TILE_COLUMNS)
}

impl<T: Stored> Target<'_, T> {
    /// Writes columns `columns` of K head `head`: element `(d, t)` of a block lies at `16 d + t`.
    fn store_keys(&self, segment: &Segment<'_>, k: &[f32], head: usize, columns: Range<usize>) {
        let KvShape { n_kv_heads, k_dim, .. } = self.shape;
        let n = columns.len();
        let mut row = 0;
        while row < segment.n_rows {
            let pos = segment.pos + row;
            let (block, slot) = (segment.blocks[pos / BLOCK_TOKENS].index(), pos % BLOCK_TOKENS);
            let n_tokens = (BLOCK_TOKENS - slot).min(segment.n_rows - row);
            let mut rows = [[T::ZERO; TILE_COLUMNS]; BLOCK_TOKENS];
            for (t, to) in rows[..n_tokens].iter_mut().enumerate() {
                let start = ((segment.first_row + row + t) * n_kv_heads + head) * k_dim + columns.start;
                T::convert(&k[start..start + n], &mut to[..n]);
            }
            let start = block * self.stride + self.k_at + (head * k_dim + columns.start) * BLOCK_TOKENS;
            // SAFETY: only this task writes these columns of this head, and it writes its segments one after the other.
            let to = unsafe { self.elements.slice(start..start + n * BLOCK_TOKENS) };
            for (d, to) in to.chunks_exact_mut(BLOCK_TOKENS).enumerate() {
                for (to, from) in to[slot..slot + n_tokens].iter_mut().zip(&rows) {
                    *to = from[d];
                }
            }
            row += n_tokens;
        }
    }

    /// Writes columns `columns` of V head `head`: element `(t, c)` of a block lies at `v_stride t + c`.
    fn store_values(&self, segment: &Segment<'_>, v: &[f32], head: usize, columns: Range<usize>) {
        let KvShape { n_kv_heads, v_dim, .. } = self.shape;
        for row in 0..segment.n_rows {
            let pos = segment.pos + row;
            let (block, slot) = (segment.blocks[pos / BLOCK_TOKENS].index(), pos % BLOCK_TOKENS);
            let from = ((segment.first_row + row) * n_kv_heads + head) * v_dim + columns.start;
            let in_block = (head * BLOCK_TOKENS + slot) * self.shape.v_stride() + columns.start;
            let to = block * self.stride + self.v_at + in_block;
            // SAFETY: only this task writes these columns of this head, and it writes its segments one after the other.
            let to = unsafe { self.elements.slice(to..to + columns.len()) };
            T::convert(&v[from..from + columns.len()], to);
        }
    }
}
