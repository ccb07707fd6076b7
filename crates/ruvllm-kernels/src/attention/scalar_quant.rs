//! The truth of the formats: what a key or value is, and how units are made.

use super::layout::V_GROUP;
use super::quantize::{DequantizeArgs, Grid, QuantizeArgs, bounded, put};
use super::{BLOCK_TOKENS, KvFormat, KvPart, KvShape, Part, UNIT_BLOCKS, UNIT_TOKENS};
use half::f16;
use half::slice::HalfFloatSliceExt;

fn half(bytes: &[u8], i: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32()
}

/// Returns code `j` (0 to 3) of lane `lane` of the 64 codes at `at`, of `bits` bits.
fn code(bytes: &[u8], at: usize, bits: usize, lane: usize, j: usize) -> f32 {
    let lane = match bits {
        4 => u16::from_le_bytes([bytes[at + 2 * lane], bytes[at + 2 * lane + 1]]),
        _ => u16::from(bytes[at + lane]),
    };
    f32::from(lane >> (bits * j) & ((1 << bits) - 1))
}

/// Returns the bits of a code.
fn bits_of(format: KvFormat) -> usize {
    if format == KvFormat::Q4 { 4 } else { 2 }
}

/// Returns 16 floats that begin `16 · n` into the bytes.
fn floats(bytes: &[u8], n: usize) -> [f32; 16] {
    bytemuck::pod_read_unaligned(&bytes[64 * n..][..64])
}

/// [`floats`] of halves.
fn halves(bytes: &[u8], n: usize) -> [f32; 16] {
    let halves: [f16; 16] = bytemuck::pod_read_unaligned(&bytes[32 * n..][..32]);
    let mut floats = [0.0; 16];
    halves.convert_to_f32_slice(&mut floats);
    floats
}

/// Returns channel `d` of a block's 16 positions, of one head.
pub(super) fn keys(format: KvFormat, shape: KvShape, part: &Part<'_>, d: usize) -> [f32; 16] {
    let (bytes, k_stride) = (part.bytes, shape.k_stride());
    match format {
        KvFormat::F32 => floats(bytes, d),
        KvFormat::F16 => halves(bytes, d),
        KvFormat::Q8 => {
            let (scale, codes) = (half(bytes, d), &bytes[2 * k_stride + d * BLOCK_TOKENS..][..16]);
            std::array::from_fn(|t| f32::from(codes[t].cast_signed()) * scale)
        }
        KvFormat::Q4 | KvFormat::Q2 => {
            let (bits, scale, min) = (bits_of(format), half(bytes, d), half(bytes, k_stride + d));
            let at = 4 * k_stride + d * 8 * bits;
            std::array::from_fn(|t| code(bytes, at, bits, t, part.sub) * scale + min)
        }
    }
}

/// Returns values `column .. column + 16` of position `t` of a block, of one head; `column` is a multiple of 16.
pub(super) fn row(format: KvFormat, shape: KvShape, part: &Part<'_>, t: usize, column: usize) -> [f32; 16] {
    let (bytes, v_stride, groups) = (part.bytes, shape.v_stride(), shape.v_groups());
    let (group, slot) = (column / V_GROUP, part.sub * BLOCK_TOKENS + t);
    match format {
        KvFormat::F32 => floats(bytes, (t * v_stride + column) / 16),
        KvFormat::F16 => halves(bytes, (t * v_stride + column) / 16),
        KvFormat::Q8 => {
            let scale = half(bytes, group * BLOCK_TOKENS + t);
            let codes = &bytes[2 * groups * BLOCK_TOKENS + t * v_stride + column..][..16];
            std::array::from_fn(|c| f32::from(codes[c].cast_signed()) * scale)
        }
        KvFormat::Q4 | KvFormat::Q2 => {
            let bits = bits_of(format);
            let at = 4 * groups * UNIT_TOKENS + (slot * groups + group) * 8 * bits;
            let scale = half(bytes, 2 * group * UNIT_TOKENS + slot);
            let min = half(bytes, (2 * group + 1) * UNIT_TOKENS + slot);
            std::array::from_fn(|c| code(bytes, at, bits, c, column % V_GROUP / 16) * scale + min)
        }
    }
}

/// Returns the keys and the values of one head.
fn parts<'a>(shape: KvShape, part: &KvPart<'a>, head: usize) -> (Part<'a>, Part<'a>) {
    let KvPart { format, sub, k, v } = *part;
    let (k_len, v_len) = (format.k_head_bytes(shape), format.v_head_bytes(shape));
    (Part { bytes: &k[head * k_len..][..k_len], sub }, Part { bytes: &v[head * v_len..][..v_len], sub })
}

pub(super) fn dequantize(args: &mut DequantizeArgs<'_>) {
    let (shape, format) = (args.shape, args.from.format);
    let v_stride = shape.v_stride();
    for head in 0..shape.n_kv_heads {
        let (k, v) = parts(shape, &args.from, head);
        let (k_len, v_len) = (shape.k_dim * BLOCK_TOKENS, BLOCK_TOKENS * v_stride);
        for (d, to) in args.k[head * k_len..][..k_len].chunks_exact_mut(16).enumerate() {
            to.copy_from_slice(&keys(format, shape, &k, d));
        }
        for (i, to) in args.v[head * v_len..][..v_len].chunks_exact_mut(16).enumerate() {
            to.copy_from_slice(&row(format, shape, &v, 16 * i / v_stride, 16 * i % v_stride));
        }
    }
}

pub(super) fn quantize(args: &mut QuantizeArgs<'_>) {
    let (shape, to) = (args.shape, args.to);
    let (k_len, v_len) = (to.k_head_bytes(shape), to.v_head_bytes(shape));
    args.k.fill(0);
    args.v.fill(0);
    for head in 0..shape.n_kv_heads {
        let (k, v) = (&mut args.k[head * k_len..][..k_len], &mut args.v[head * v_len..][..v_len]);
        for d in 0..shape.k_dim {
            let mut channel = [[0.0; 16]; UNIT_BLOCKS];
            for (to, part) in channel.iter_mut().zip(args.from) {
                *to = keys(part.format, shape, &parts(shape, part, head).0, d).map(bounded);
            }
            quantize_channel(shape, to, d, &channel.as_flattened()[..16 * args.from.len()], k);
        }
        for slot in 0..args.from.len() * BLOCK_TOKENS {
            let part = &args.from[slot / BLOCK_TOKENS];
            let values = parts(shape, part, head).1;
            for group in 0..shape.v_groups() {
                let mut all = [0.0; V_GROUP];
                let columns = group * V_GROUP..shape.v_stride().min((group + 1) * V_GROUP);
                for (to, column) in all.chunks_exact_mut(16).zip(columns.step_by(16)) {
                    let row = row(part.format, shape, &values, slot % BLOCK_TOKENS, column);
                    to.copy_from_slice(&row.map(bounded));
                }
                // Past the last value, the group's first again.
                let (first, n) = (all[0], V_GROUP.min(shape.v_dim - group * V_GROUP));
                all[n..].fill(first);
                quantize_group(shape, to, GroupAt { slot, group }, &all, v);
            }
        }
    }
}

/// Channel `d` of a head's keys over the positions of a unit.
fn quantize_channel(shape: KvShape, to: KvFormat, d: usize, channel: &[f32], k: &mut [u8]) {
    let k_stride = shape.k_stride();
    if to == KvFormat::Q8 {
        let grid = Grid::symmetric(size_of_largest(channel));
        put(k, d, grid.scale);
        let codes = &mut k[2 * k_stride + BLOCK_TOKENS * d..][..BLOCK_TOKENS];
        codes.iter_mut().zip(channel).for_each(|(code, x)| *code = signed_code(*x, grid));
        return;
    }
    let bits = bits_of(to);
    let grid = grid_of(channel, bits);
    put(k, d, grid.scale);
    put(k, k_stride + d, grid.min);
    pack(channel, grid, bits, &mut k[4 * k_stride + d * 8 * bits..][..8 * bits]);
}

/// Position of a unit and group of a head's values.
struct GroupAt {
    slot: usize,
    group: usize,
}

/// Quantises a group of the values of a head at a position.
fn quantize_group(shape: KvShape, to: KvFormat, GroupAt { slot, group }: GroupAt, row: &[f32; V_GROUP], v: &mut [u8]) {
    let (groups, v_stride) = (shape.v_groups(), shape.v_stride());
    if to == KvFormat::Q8 {
        let grid = Grid::symmetric(size_of_largest(row));
        put(v, group * BLOCK_TOKENS + slot, grid.scale);
        let codes = &mut v[2 * groups * BLOCK_TOKENS + slot * v_stride..][..v_stride][group * V_GROUP..];
        codes.iter_mut().zip(row).for_each(|(code, x)| *code = signed_code(*x, grid));
        return;
    }
    let bits = bits_of(to);
    let grid = grid_of(row, bits);
    put(v, 2 * group * UNIT_TOKENS + slot, grid.scale);
    put(v, (2 * group + 1) * UNIT_TOKENS + slot, grid.min);
    pack(row, grid, bits, &mut v[4 * groups * UNIT_TOKENS + (slot * groups + group) * 8 * bits..][..8 * bits]);
}

fn size_of_largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |size, x| x.abs().max(size))
}

fn signed_code(x: f32, grid: Grid) -> u8 {
    ((x * grid.inverse).round_ties_even() as i8).cast_unsigned()
}

fn grid_of(values: &[f32], bits: usize) -> Grid {
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    Grid::of_range(min, max, ((1 << bits) - 1) as f32)
}

/// Writes 64 codes: lane `i` has those of values `i`, `i + 16`, `i + 32` and `i + 48`, the first in the lowest bits.
fn pack(values: &[f32], grid: Grid, bits: usize, to: &mut [u8]) {
    for lane in 0..16 {
        let code = |j: usize| ((values[16 * j + lane] - grid.min.to_f32()) * grid.inverse).round_ties_even() as u16;
        let codes = (0..4).fold(0, |codes, j| codes | code(j) << (bits * j));
        match bits {
            4 => to[2 * lane..2 * lane + 2].copy_from_slice(&codes.to_le_bytes()),
            _ => to[lane] = codes as u8,
        }
    }
}
