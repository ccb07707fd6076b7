//! simd128: a vector is 4 rows by 4 values (a quarter of a panel's 64 bytes), widened to 16 bits.
//!
//! The two bytes of an activation are one integer of 16 bits here: `i32x4.dot_i16x8` multiplies it whole and adds pairs, so a
//! group takes two instructions by a row. A tile is one quarter by `MR` activation rows. An engine has no prefetch to give.

use super::super::acts::ActBlock;
use super::super::format::{BLOCK, Format, PANEL_ROWS, SubScales, panel_bytes};
use super::Job;
use crate::lanes::simd128::widen_f16;
use std::arch::wasm32::*;

/// # Safety
/// As [`super::Kernel`] says.
#[target_feature(enable = "simd128")]
pub(in super::super) unsafe fn run<F: Format>(job: &Job<'_>) {
    for p in 0..job.n_panels {
        let mut i = 0;
        while i < job.rows.len() {
            let n = job.rows.len() - i;
            for quarter in 0..4 {
                // SAFETY: the caller's promises; `i + MR` stays within the job's rows.
                unsafe {
                    match n {
                        4.. => tile::<F, 4>(job, p, quarter, i),
                        2.. => tile::<F, 2>(job, p, quarter, i),
                        _ => tile::<F, 1>(job, p, quarter, i),
                    }
                }
            }
            i += match n {
                4.. => 4,
                2.. => 2,
                _ => 1,
            };
        }
    }
}

/// Computes one quarter of a panel by the `MR` rows from `i` on.
///
/// # Safety
/// As [`super::Kernel`] says, with `p` one of the job's panels, `quarter < 4` and `i + MR` within its rows.
#[inline]
#[target_feature(enable = "simd128")]
unsafe fn tile<F: Format, const MR: usize>(job: &Job<'_>, p: usize, quarter: usize, i: usize) {
    let mut acts = [std::ptr::null::<ActBlock>(); MR];
    for r in 0..MR {
        // SAFETY: `Job::check` compared the row index with the buffer.
        acts[r] = unsafe { job.acts.as_ptr().add(job.rows[i + r] as usize * job.n_blocks) };
    }
    // SAFETY: panel `p` is there.
    let panel = unsafe { job.panels.as_ptr().add(p * panel_bytes::<F>(job.n_blocks)) };
    // SAFETY: row `i` is one of the job's results.
    let out = unsafe { job.out.add(i * job.ld + p * PANEL_ROWS + 4 * quarter) };
    let mut acc = [f32x4_splat(0.0); MR];
    if job.blocks.start > 0 {
        for r in 0..MR {
            // SAFETY: the job's results may be read; 4 lanes per quarter.
            acc[r] = unsafe { v128_load(out.add(r * job.ld).cast()) };
        }
    }
    for b in job.blocks.clone() {
        // SAFETY: block `b` is in each row of activations and in the panel.
        unsafe {
            let act = acts.map(|act| &*act.add(b));
            let q = panel.add(F::quants_at(b) + 16 * quarter);
            let (w_scale, min) = block_scales::<F>(panel, b, quarter);
            if F::HALVES {
                for half in 0..2 {
                    let starts = act.map(|act| act.neg_half_sums[half] * F::OFFSET);
                    let dot = groups::<F, MR>(q, act, 4 * half, 4 * half + 4);
                    add_scaled(&mut acc, dot, starts, w_scale[half], act);
                }
            } else {
                // 8-bit weights and codes are signed here and need no offset.
                let offset = if F::BITS == 8 || F::CODES.is_some() { 0 } else { F::OFFSET };
                let starts = act.map(|act| act.neg_sum * offset);
                let dot = groups::<F, MR>(q, act, 0, 8);
                add_scaled(&mut acc, dot, starts, w_scale[0], act);
            }
            for r in 0..MR {
                if F::MIN && F::HALVES {
                    acc[r] = multiply_add(acc[r], min[0], act[r].scaled_half_sum(0));
                    acc[r] = multiply_add(acc[r], min[1], act[r].scaled_half_sum(1));
                } else if F::MIN {
                    acc[r] = multiply_add(acc[r], min[0], act[r].scaled_sum);
                }
            }
        }
    }
    for r in 0..MR {
        // SAFETY: the job's results may be written; 4 lanes per quarter.
        unsafe { v128_store(out.add(r * job.ld).cast(), acc[r]) };
    }
}

/// Adds a block's (or half a block's) products, by the scales of weights and activations, to each row's results.
#[inline]
#[target_feature(enable = "simd128")]
fn add_scaled<const MR: usize>(
    acc: &mut [v128; MR],
    dot: [v128; MR],
    starts: [i32; MR],
    w_scale: v128,
    act: [&ActBlock; MR],
) {
    for r in 0..MR {
        let sum = f32x4_convert_i32x4(i32x4_add(dot[r], i32x4_splat(starts[r])));
        acc[r] = f32x4_add(acc[r], f32x4_mul(sum, f32x4_mul(w_scale, f32x4_splat(act[r].scale))));
    }
}

#[inline]
#[target_feature(enable = "simd128")]
fn multiply_add(acc: v128, x: v128, y: f32) -> v128 {
    f32x4_add(acc, f32x4_mul(x, f32x4_splat(y)))
}

/// Returns the dot products of groups `from..to` of a block, per activation row.
///
/// # Safety
/// `q` points to a quarter of a block of the format.
#[inline]
#[target_feature(enable = "simd128")]
unsafe fn groups<F: Format, const MR: usize>(q: *const u8, act: [&ActBlock; MR], from: usize, to: usize) -> [v128; MR] {
    // Of weight rows 0 and 1, then of 2 and 3: two sums of pairs each.
    let mut sums = [[i32x4_splat(0); 2]; MR];
    for j in (from..to).step_by(2) {
        // SAFETY: the caller's promise; blocks and halves of them have an even number of groups.
        let w = unsafe { [unpack::<F>(q, j), unpack::<F>(q, j + 1)] };
        for r in 0..MR {
            let pair = wide_pair(act[r], j);
            let twice = [i64x2_shuffle::<0, 0>(pair, pair), i64x2_shuffle::<1, 1>(pair, pair)];
            for (w, a) in w.into_iter().zip(twice) {
                sums[r][0] = i32x4_add(sums[r][0], i32x4_dot_i16x8(i16x8_extend_low_i8x16(w), a));
                sums[r][1] = i32x4_add(sums[r][1], i32x4_dot_i16x8(i16x8_extend_high_i8x16(w), a));
            }
        }
    }
    sums.map(|[first, second]| {
        let (even, odd) = (i32x4_shuffle::<0, 2, 4, 6>(first, second), i32x4_shuffle::<1, 3, 5, 7>(first, second));
        i32x4_add(even, odd)
    })
}

/// Returns the eight activations of groups `j` and `j + 1` as 16-bit integers: at most 32,512, which fit.
#[inline]
#[target_feature(enable = "simd128")]
fn wide_pair(act: &ActBlock, j: usize) -> v128 {
    const { assert!(BLOCK == 32) };
    let load = |bytes: &[i8; BLOCK]| {
        // SAFETY: 8 of 32 bytes, from group `j <= 6` on.
        unsafe { i16x8_load_extend_i8x8(bytes.as_ptr().add(4 * j)) }
    };
    i16x8_add(i16x8_shl(load(&act.hi), 8), load(&act.lo))
}

/// Returns the weights of group `j` as signed bytes, 4 rows by 4 values; only 8-bit ones and codes have their offset
/// subtracted.
///
/// # Safety
/// `q` points to a quarter of a block of the format.
#[inline]
#[target_feature(enable = "simd128")]
unsafe fn unpack<F: Format>(q: *const u8, j: usize) -> v128 {
    // SAFETY: the caller's promise; vectors 0..VECTORS are asked for, 16 bytes of each.
    let load = |vector: usize| unsafe { v128_load(q.add(64 * vector).cast()) };
    if F::BITS == 8 {
        return v128_xor(load(j), u8x16_splat(0x80));
    }
    // Bits from `2j` or `j` on, at the place that `mask` has.
    let at = |v: v128, from: usize, to: usize, mask: u8| {
        let moved = if from >= to { u8x16_shr(v, (from - to) as u32) } else { u8x16_shl(v, (to - from) as u32) };
        v128_and(moved, u8x16_splat(mask))
    };
    if F::BITS <= 3 {
        let pairs = at(load(j / 4), 2 * (j % 4), 0, 3);
        return if F::BITS == 3 { v128_or(pairs, at(load(2), j, 2, 4)) } else { pairs };
    }
    let nibbles = if j < 4 { v128_and(load(j), u8x16_splat(15)) } else { u8x16_shr(load(j - 4), 4) };
    if let Some(codes) = F::CODES {
        // SAFETY: 16 bytes.
        return u8x16_swizzle(unsafe { v128_load(codes.as_ptr().cast()) }, nibbles);
    }
    match F::BITS {
        5 => v128_or(nibbles, at(load(4), j, 4, 0x10)),
        6 => v128_or(nibbles, at(load(4 + j / 4), 2 * (j % 4), 4, 0x30)),
        _ => nibbles,
    }
}

/// Returns the scales and the minima of the halves of a block, of a quarter of a panel.
///
/// # Safety
/// `panel` points to a panel, `b` is one of its blocks, and `quarter < 4`.
#[inline]
#[target_feature(enable = "simd128")]
unsafe fn block_scales<F: Format>(panel: *const u8, b: usize, quarter: usize) -> ([v128; 2], [v128; 2]) {
    // SAFETY: the caller's promise; all loads lie in the block's record.
    unsafe {
        let record = panel.add(F::record_at(b));
        let halfs = |plane: usize| widen_f16(u32x4_load_extend_u16x4(record.add(32 * plane + 8 * quarter).cast()));
        let bytes = |at: usize| v128_load32_zero(record.add(at + 4 * quarter).cast());
        let wide = |at: usize| u32x4_extend_low_u16x8(u16x8_extend_low_u8x16(bytes(at)));
        let d = if F::E8M0 { powers(wide(0)) } else { halfs(0) };
        let m = if F::MIN { halfs(1) } else { f32x4_splat(0.0) };
        let ints = |sub: usize| wide(F::SCALE_HEAD + 16 * sub);
        let sub = b % 8;
        let subs = if F::HALVES { [2 * sub, 2 * sub + 1] } else { [sub; 2] };
        match F::SUB_SCALES {
            SubScales::None => ([d; 2], [m; 2]),
            SubScales::Signed => {
                let signed = |sub: usize| {
                    let bytes = bytes(F::SCALE_HEAD + 16 * sub);
                    f32x4_mul(d, f32x4_convert_i32x4(i32x4_extend_low_i16x8(i16x8_extend_low_i8x16(bytes))))
                };
                (subs.map(signed), [m; 2])
            }
            SubScales::Nibbles => {
                let low = |sub: usize| f32x4_mul(d, f32x4_convert_i32x4(v128_and(ints(sub), u32x4_splat(15))));
                let high = |sub: usize| f32x4_mul(m, f32x4_convert_i32x4(u32x4_shr(ints(sub), 4)));
                (subs.map(low), subs.map(high))
            }
            SubScales::Unsigned => {
                let scale = |sub: usize| f32x4_mul(d, f32x4_convert_i32x4(ints(sub)));
                let min = |sub: usize| if F::MIN { f32x4_mul(m, f32x4_convert_i32x4(ints(F::N_SUB + sub))) } else { m };
                (subs.map(scale), subs.map(min))
            }
        }
    }
}

/// Returns `2^(e - 128)` of exponents `e`, as [`BlockMXFP4::half_scale`](crate::block::BlockMXFP4::half_scale) does.
#[inline]
#[target_feature(enable = "simd128")]
fn powers(e: v128) -> v128 {
    let normal = i32x4_sub(u32x4_shl(e, 23), u32x4_splat(1 << 23));
    let first = u32x4_splat(0x0020_0000);
    let subnormal = v128_bitselect(i32x4_shl(first, 1), first, u32x4_eq(e, u32x4_splat(1)));
    v128_bitselect(subnormal, normal, u32x4_lt(e, u32x4_splat(2)))
}
