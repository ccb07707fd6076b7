//! An adapter's factors in memory: layer behind layer in the model's order, each one straight piece.
//!
//! ```text
//! [multipliers: rank][A: rank x stride(n_in)][B on its side: rank x stride(n_out)][gain: n_out, of DoRA only]
//! ```
//! Each of them begins at a cache line, and factors of bytes are followed by their scales. Where a piece begins and its rank are
//! all there is to look up, so finding what sixteen adapters do to a layer touches little but the factors.

use std::ops::Range;

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use half::f16;
use ruvllm_cpu::arena::{AlignedVec, LargePages};
use ruvllm_kernels::lowrank::{Factor, Q8_BLOCK, stride};
use ruvllm_kvcache::PAGE_BYTES;

use crate::bound::FactorFormat;

/// Pieces and what they consist of begin at a multiple of this.
const LINE_BYTES: usize = 64;

/// From this size on an adapter lies in large pages.
const LARGE_BYTES: usize = 2 * PAGE_BYTES;

/// The shape of a layer's change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub rank: usize,
    pub n_in: usize,
    pub n_out: usize,
    pub is_dora: bool,
}

/// Where a layer's change lies; of rank 0 if there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    line: u32,
    rank: u32,
    is_dora: bool,
}

/// All layers' changes.
pub(crate) struct Packed {
    format: FactorFormat,
    memory: AlignedVec<u8>,
    /// By the layer's number.
    slots: Vec<Slot>,
}

/// What a piece consists of, in bytes from its beginning.
struct Layout {
    multipliers: Range<usize>,
    a: Range<usize>,
    b: Range<usize>,
    gain: Range<usize>,
}

impl Layout {
    fn new(format: FactorFormat, shape: Shape) -> Layout {
        let mut end = 0usize;
        let mut take = |n_bytes: usize| {
            let start = end.next_multiple_of(LINE_BYTES);
            end = start + n_bytes;
            start..end
        };
        let factor = |n: usize| match format {
            FactorFormat::F32 => 4 * n,
            FactorFormat::F16 => 2 * n,
            FactorFormat::Q8 => n + size_of::<f32>() * (n / Q8_BLOCK),
        };
        Layout {
            multipliers: take(4 * shape.rank),
            a: take(factor(shape.rank * stride(shape.n_in))),
            b: take(factor(shape.rank * stride(shape.n_out))),
            gain: take(if shape.is_dora { 4 * shape.n_out } else { 0 }),
        }
    }

    fn n_bytes(&self) -> usize {
        self.gain.end.next_multiple_of(LINE_BYTES)
    }
}

/// Sizes of the factors of a layer's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSizes {
    /// Rank of the factors.
    pub rank: usize,
    /// Values of an input.
    pub n_in: usize,
    /// Values of an output.
    pub n_out: usize,
    /// Whether results of the base are multiplied (DoRA).
    pub has_gain: bool,
}

/// A layer's change in f32: `y += B·(multiplier ⊙ A·x)`, after `y *= 1 + gain`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerFactors {
    /// `[rank]`, the adapter's own scale in them.
    pub multipliers: Vec<f32>,
    /// `[rank, n_in]`
    pub a: Vec<f32>,
    /// `B` on its side: `[rank, n_out]`
    pub b: Vec<f32>,
    /// `[n_out]`, of DoRA only.
    pub gain: Option<Vec<f32>>,
}

/// Returns the first `n` values of each row of a factor.
fn values(factor: Factor<'_>, n: usize) -> Vec<f32> {
    let all: Vec<f32> = match factor {
        Factor::F32(values) => values.to_vec(),
        Factor::F16(values) => values.iter().map(|x| x.to_f32()).collect(),
        Factor::Q8 { quants, scales } => {
            let scales = scales.iter().flat_map(|scale| [*scale; Q8_BLOCK]);
            quants.iter().zip(scales).map(|(q, scale)| f32::from(*q) * scale).collect()
        }
    };
    all.chunks_exact(stride(n)).flat_map(|row| &row[..n]).copied().collect()
}

/// Returns how many bytes changes of these shapes take: of a large adapter these are whole pages.
pub(crate) fn n_bytes(format: FactorFormat, shapes: impl Iterator<Item = Shape>) -> usize {
    let n_bytes = shapes.map(|shape| Layout::new(format, shape).n_bytes()).sum();
    if n_bytes < LARGE_BYTES { n_bytes } else { n_bytes.next_multiple_of(PAGE_BYTES) }
}

/// Values of a layer's change.
pub(crate) struct LayerValues<'a> {
    /// `[rank]`
    pub multipliers: &'a [f32],
    /// `[rank, stride(n_in)]`
    pub a: &'a [f32],
    /// `[rank, stride(n_out)]`
    pub b: &'a [f32],
    /// `[n_out]`
    pub gain: Option<&'a [f32]>,
}

impl Packed {
    /// Makes room for the changes of layers, by number.
    pub(crate) fn new(format: FactorFormat, shapes: &[Option<Shape>]) -> Packed {
        let mut end = 0;
        let place = |shape: &Option<Shape>| {
            let shape = (*shape)?;
            let line = u32::try_from(end / LINE_BYTES).expect("an adapter's bytes are bounded");
            end += Layout::new(format, shape).n_bytes();
            Some(Slot { line, rank: shape.rank as u32, is_dora: shape.is_dora })
        };
        let slots = shapes.iter().map(place).map(Option::unwrap_or_default).collect();
        let memory = match end >= LARGE_BYTES {
            true => LargePages::for_about(end).take(end),
            false => AlignedVec::new(end),
        };
        Packed { format, memory, slots }
    }

    pub(crate) fn format(&self) -> FactorFormat {
        self.format
    }

    /// Returns how many layers are changed.
    pub(crate) fn n_parts(&self) -> usize {
        self.slots.iter().filter(|slot| slot.rank > 0).count()
    }

    /// Returns what is done to a layer that takes `n_in` values and gives `n_out`.
    pub(crate) fn part(&self, target: usize, n_in: usize, n_out: usize) -> Option<Part<'_>> {
        let slot = self.slots.get(target).filter(|slot| slot.rank > 0)?;
        let shape = Shape { rank: slot.rank as usize, n_in, n_out, is_dora: slot.is_dora };
        let layout = Layout::new(self.format, shape);
        let bytes = &self.memory[slot.line as usize * LINE_BYTES..][..layout.n_bytes()];
        Some(Part { rank: shape.rank, n_in, n_out, format: self.format, layout, bytes })
    }

    /// Writes a layer's change of the shape that room was made for.
    pub(crate) fn write(&mut self, target: usize, shape: Shape, values: LayerValues<'_>) {
        let LayerValues { multipliers, a, b, gain } = values;
        let layout = Layout::new(self.format, shape);
        let bytes = &mut self.memory[self.slots[target].line as usize * LINE_BYTES..][..layout.n_bytes()];
        floats(&mut bytes[layout.multipliers]).copy_from_slice(multipliers);
        store(self.format, a, &mut bytes[layout.a]);
        store(self.format, b, &mut bytes[layout.b]);
        if let Some(gain) = gain {
            floats(&mut bytes[layout.gain]).copy_from_slice(gain);
        }
    }
}

fn floats(bytes: &mut [u8]) -> &mut [f32] {
    cast_slice_mut(bytes)
}

/// Writes a factor in its form.
fn store(format: FactorFormat, values: &[f32], bytes: &mut [u8]) {
    match format {
        FactorFormat::F32 => floats(bytes).copy_from_slice(values),
        FactorFormat::F16 => {
            let halves: &mut [f16] = cast_slice_mut(bytes);
            halves.iter_mut().zip(values).for_each(|(to, &x)| *to = f16::from_f32(x));
        }
        FactorFormat::Q8 => {
            let (quants, scales) = bytes.split_at_mut(values.len());
            let blocks = values.chunks_exact(Q8_BLOCK).zip(quants.chunks_exact_mut(Q8_BLOCK));
            for ((block, quants), scale) in blocks.zip(floats(scales)) {
                *scale = block.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 127.0;
                let inverse = if *scale > 0.0 { 1.0 / *scale } else { 0.0 };
                quants.iter_mut().zip(block).for_each(|(q, x)| *q = (x * inverse).round() as i8 as u8);
            }
        }
    }
}

/// A layer's change in the kernels' form: `y += B·(multiplier ⊙ A·x)`, after `y *= 1 + gain`.
pub(crate) struct Part<'a> {
    pub rank: usize,
    n_in: usize,
    n_out: usize,
    format: FactorFormat,
    layout: Layout,
    bytes: &'a [u8],
}

impl<'a> Part<'a> {
    /// Returns by rank the scale times what the factors were divided by.
    pub(crate) fn multipliers(&self) -> &'a [f32] {
        cast_slice(&self.bytes[self.layout.multipliers.clone()])
    }

    /// Returns `A` of some ranks: `[ranks, stride(n_in)]`.
    pub(crate) fn a(&self, ranks: Range<usize>) -> Factor<'a> {
        self.factor(self.layout.a.clone(), ranks, stride(self.n_in))
    }

    /// Returns `B` on its side, of some ranks: `[ranks, stride(n_out)]`.
    pub(crate) fn b(&self, ranks: Range<usize>) -> Factor<'a> {
        self.factor(self.layout.b.clone(), ranks, stride(self.n_out))
    }

    /// Returns what DoRA multiplies results with, less 1: `[n_out]`.
    pub(crate) fn gain(&self) -> Option<&'a [f32]> {
        let gain = &self.layout.gain;
        (!gain.is_empty()).then(|| cast_slice(&self.bytes[gain.clone()]))
    }

    /// Returns what it does in f32, rows without padding.
    pub(crate) fn to_factors(&self) -> LayerFactors {
        LayerFactors {
            multipliers: self.multipliers().to_vec(),
            a: values(self.a(0..self.rank), self.n_in),
            b: values(self.b(0..self.rank), self.n_out),
            gain: self.gain().map(<[f32]>::to_vec),
        }
    }

    /// Returns the sizes of its factors.
    pub(crate) fn sizes(&self) -> LayerSizes {
        LayerSizes { rank: self.rank, n_in: self.n_in, n_out: self.n_out, has_gain: self.gain().is_some() }
    }

    /// Returns the addresses of all of it.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let Range { start, end } = self.bytes.as_ptr_range();
        start as usize..end as usize
    }

    fn factor(&self, at: Range<usize>, ranks: Range<usize>, stride: usize) -> Factor<'a> {
        fn pick<T: Pod>(bytes: &[u8], range: Range<usize>) -> &[T] {
            &cast_slice(bytes)[range]
        }
        let (bytes, range) = (&self.bytes[at], ranks.start * stride..ranks.end * stride);
        match self.format {
            FactorFormat::F32 => Factor::F32(pick(bytes, range)),
            FactorFormat::F16 => Factor::F16(pick(bytes, range)),
            FactorFormat::Q8 => {
                let (quants, scales) = bytes.split_at(self.rank * stride);
                let blocks = range.start / Q8_BLOCK..range.end / Q8_BLOCK;
                Factor::Q8 { quants: pick(quants, range), scales: pick(scales, blocks) }
            }
        }
    }
}
