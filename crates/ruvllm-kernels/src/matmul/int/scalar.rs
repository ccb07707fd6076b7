//! Plain loops: the truth of the integer path.

use super::super::acts::{ActBlock, GROUP, Grid, N_GROUPS, key};
use super::super::format::{BLOCK, Format, PANEL_ROWS, SubScales, panel_bytes};
use super::Job;
use crate::block::BlockMXFP4;
use half::f16;

/// Quantises whole blocks.
pub(in super::super) fn quantize(x: &[f32], blocks: &mut [ActBlock]) {
    for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let mut keys: [u32; N_GROUPS] = std::array::from_fn(|group| {
            let of_group = x[GROUP * group..][..GROUP].iter();
            key(of_group.fold(0, |max, x| max.max(x.to_bits() & 0x7fff_ffff)), group as u32)
        });
        keys.sort_unstable_by(|a, b| b.cmp(a));
        let grid = Grid::new([keys[0], keys[1], keys[2]]);
        if grid.inverse == 0.0 {
            // Also where a value is not finite.
            *block = ActBlock::zeros(grid);
            continue;
        }
        let (mut hi, mut lo, mut sums) = ([0; BLOCK], [0; BLOCK], [0; 2]);
        for i in 0..BLOCK {
            // Adding 1.5 * 2^23 rounds to an integer, ties to even, as the vector conversions do.
            let rounded = (x[i] * grid.inverse + 12_582_912.0) - 12_582_912.0;
            let q = rounded as i32;
            // A low byte of -128 becomes -127.
            let q = q + i32::from(q & 0xff == 0x80);
            (hi[i], lo[i]) = (((q + 128) >> 8) as i8, q as i8);
            sums[i / 16] += q;
        }
        *block = ActBlock::new(hi, lo, sums, grid);
    }
}

/// Returns the weights of lane `row` in a panel's block, offset subtracted.
pub(in super::super) fn lane<F: Format>(quants: &[u8], row: usize) -> [i32; BLOCK] {
    let byte = |vector: usize, i: usize| i32::from(quants[64 * vector + 4 * row + i]);
    let mut weights = [0; BLOCK];
    for (at, w) in weights.iter_mut().enumerate() {
        let (j, i) = (at / 4, at % 4);
        let nibble = || (byte(j % 4, i) >> (4 * (j / 4))) & 15;
        let pair = || (byte(j / 4, i) >> (2 * (j % 4))) & 3;
        let quant = match F::BITS {
            2 => pair(),
            3 => pair() | ((byte(2, i) >> j) & 1) << 2,
            4 => nibble(),
            5 => nibble() | ((byte(4, i) >> j) & 1) << 4,
            6 => nibble() | ((byte(4 + j / 4, i) >> (2 * (j % 4))) & 3) << 4,
            _ => byte(j, i),
        };
        *w = F::CODES.map_or(quant - F::OFFSET, |codes| i32::from(codes[quant as usize]));
    }
    weights
}

/// Returns the scales and the minima of the halves of block `b` in lane `row`.
pub(in super::super) fn scales<F: Format>(panel: &[u8], b: usize, row: usize) -> ([f32; 2], [f32; 2]) {
    let record = &panel[F::record_at(b)..][..F::SCALE_BYTES];
    let f16_at = |plane: usize| {
        let at = 32 * plane + 2 * row;
        f16::from_le_bytes([record[at], record[at + 1]]).to_f32()
    };
    let d = if F::E8M0 { BlockMXFP4 { e: record[row], qs: [0; 16] }.half_scale() } else { f16_at(0) };
    let m = if F::MIN { f16_at(1) } else { 0.0 };
    let byte = |index: usize| record[F::SCALE_HEAD + 16 * index + row];
    let subs = if F::HALVES { [b % 8 * 2, b % 8 * 2 + 1] } else { [b % 8; 2] };
    match F::SUB_SCALES {
        SubScales::None => ([d; 2], [m; 2]),
        SubScales::Signed => (subs.map(|sub| d * f32::from(byte(sub) as i8)), [m; 2]),
        SubScales::Nibbles => {
            (subs.map(|sub| d * f32::from(byte(sub) & 15)), subs.map(|sub| m * f32::from(byte(sub) >> 4)))
        }
        SubScales::Unsigned => {
            let min = |sub: usize| if F::MIN { m * f32::from(byte(F::N_SUB + sub)) } else { 0.0 };
            (subs.map(|sub| d * f32::from(byte(sub))), subs.map(min))
        }
    }
}

/// # Safety
/// As [`super::Kernel`] says.
pub(in super::super) unsafe fn run<F: Format>(job: &Job<'_>) {
    let panel_bytes = panel_bytes::<F>(job.n_blocks);
    for (p, panel) in job.panels.chunks_exact(panel_bytes).enumerate() {
        for i in 0..job.rows.len() {
            if job.blocks.start == 0 {
                // SAFETY: the caller lets us write the job's results.
                unsafe { job.out.add(i * job.ld + p * PANEL_ROWS).write_bytes(0, PANEL_ROWS) };
            }
        }
        for b in job.blocks.clone() {
            let tile = &panel[F::quants_at(b)..][..F::QUANT_BYTES];
            for lane_idx in 0..PANEL_ROWS {
                let weights = lane::<F>(tile, lane_idx);
                let (scale, min) = scales::<F>(panel, b, lane_idx);
                for (i, &row) in job.rows.iter().enumerate() {
                    let act = &job.acts[row as usize * job.n_blocks + b];
                    // SAFETY: as above; zeroed or holding the sum so far.
                    let acc = unsafe { &mut *job.out.add(i * job.ld + p * PANEL_ROWS + lane_idx) };
                    *acc = add_block::<F>(*acc, &weights, scale, min, act);
                }
            }
        }
    }
}

fn add_block<F: Format>(mut acc: f32, weights: &[i32; BLOCK], scale: [f32; 2], min: [f32; 2], act: &ActBlock) -> f32 {
    let dot = |from: usize, to: usize| (from..to).map(|i| weights[i] * act.q(i)).sum::<i32>() as f32;
    if F::HALVES {
        acc += dot(0, 16) * (scale[0] * act.scale);
        acc += dot(16, 32) * (scale[1] * act.scale);
    } else {
        acc += dot(0, 32) * (scale[0] * act.scale);
    }
    if F::MIN && F::HALVES {
        acc += min[0] * act.scaled_half_sum(0);
        acc += min[1] * act.scaled_half_sum(1);
    } else if F::MIN {
        acc += min[0] * act.scaled_sum;
    }
    acc
}
