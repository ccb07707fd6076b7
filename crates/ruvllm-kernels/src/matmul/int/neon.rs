//! NEON: a vector is 4 rows by 4 values (a quarter of a panel's 64 bytes), weights as signed bytes.
//!
//! What a CPU has decides how bytes are multiplied ([`PAIRS`], [`DOT`] or [`MMLA`]); the intrinsics of the latter two
//! are not stable, so their instructions are written in assembly. A tile is one quarter by `MR` activation rows.
//!
//! - Pairs: `smull` makes i16 products (at most 128 * 127) and `sadalp` adds pairs of them to two i32 vectors, which one
//!   `addp` joins at the block's end. High and low bytes of the activations have sums of their own.
//! - `dotprod`: a group is one `sdot` by the high bytes and one by the low ones.
//! - `i8mm`: `smmla` multiplies two rows of 8 weights with two rows of 8 activations: the high and the low bytes of one.
//!   A tile of one row profits like one of many, by half the instructions of `sdot`.

use super::super::acts::{ActBlock, Grid, key};
use super::super::format::{BLOCK, Format, PANEL_ROWS, SubScales, panel_bytes};
use super::Job;
use std::arch::aarch64::*;
use std::arch::asm;

/// Without extensions.
pub(in super::super) const PAIRS: u8 = 0;
/// With `dotprod`.
pub(in super::super) const DOT: u8 = 1;
/// With `i8mm`.
pub(in super::super) const MMLA: u8 = 2;

/// Quantises whole blocks.
#[target_feature(enable = "neon")]
pub(in super::super) fn quantize(x: &[f32], blocks: &mut [ActBlock]) {
    for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let mut v = [vdupq_n_f32(0.0); 8];
        for (at, v) in v.iter_mut().enumerate() {
            // SAFETY: a block is 32 values: eight vectors.
            *v = unsafe { vld1q_f32(x.as_ptr().add(4 * at)) };
        }
        let grid = Grid::new(largest_keys(&v));
        if grid.inverse == 0.0 {
            *block = ActBlock::zeros(grid);
            continue;
        }
        let (mut hi, mut lo, mut sums) = ([0; BLOCK], [0; BLOCK], [0; 2]);
        for (half, sum) in sums.iter_mut().enumerate() {
            let (mut q, mut high) = ([vdupq_n_s32(0); 4], [vdupq_n_s32(0); 4]);
            for (at, v) in v[4 * half..][..4].iter().enumerate() {
                let rounded = vcvtnq_s32_f32(vmulq_n_f32(*v, grid.inverse));
                // A low byte of -128 becomes -127: a comparison that holds is -1.
                let lowest = vceqq_s32(vandq_s32(rounded, vdupq_n_s32(0xff)), vdupq_n_s32(0x80));
                q[at] = vsubq_s32(rounded, vreinterpretq_s32_u32(lowest));
                high[at] = vshrq_n_s32::<8>(vaddq_s32(q[at], vdupq_n_s32(128)));
            }
            // SAFETY: 16 bytes of 32, from 0 or 16 on.
            unsafe {
                vst1q_s8(hi.as_mut_ptr().add(16 * half), low_bytes(&high));
                vst1q_s8(lo.as_mut_ptr().add(16 * half), low_bytes(&q));
            }
            *sum = vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3])));
        }
        *block = ActBlock::new(hi, lo, sums, grid);
    }
}

/// Returns the three largest keys of a block's groups, which are a vector each.
#[inline]
#[target_feature(enable = "neon")]
fn largest_keys(v: &[float32x4_t; 8]) -> [u32; 3] {
    let bits = v.map(|v| vandq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(0x7fff_ffff)));
    let mut keys = [0, 4].map(|first: usize| {
        let pairs = [0, 2].map(|at| vpmaxq_u32(bits[first + at], bits[first + at + 1]));
        let numbers =
            vaddq_u32(vdupq_n_u32(first as u32), vcombine_u32(vcreate_u32(1 << 32), vcreate_u32(3 << 32 | 2)));
        vorrq_u32(vandq_u32(vpmaxq_u32(pairs[0], pairs[1]), vdupq_n_u32(key(u32::MAX, 0))), numbers)
    });
    [(); 3].map(|()| {
        let max = vmaxvq_u32(vmaxq_u32(keys[0], keys[1]));
        keys = keys.map(|keys| vbicq_u32(keys, vceqq_u32(keys, vdupq_n_u32(max))));
        max
    })
}

/// Returns the low bytes of 16 integers.
#[inline]
#[target_feature(enable = "neon")]
fn low_bytes(ints: &[int32x4_t; 4]) -> int8x16_t {
    let first = vcombine_s16(vmovn_s32(ints[0]), vmovn_s32(ints[1]));
    let second = vcombine_s16(vmovn_s32(ints[2]), vmovn_s32(ints[3]));
    vcombine_s8(vmovn_s16(first), vmovn_s16(second))
}

/// # Safety
/// As [`super::Kernel`] says; the CPU has what `HOW` needs.
#[target_feature(enable = "neon")]
pub(in super::super) unsafe fn run<F: Format, const HOW: u8>(job: &Job<'_>) {
    for p in 0..job.n_panels {
        let mut i = 0;
        while i < job.rows.len() {
            let n = job.rows.len() - i;
            for quarter in 0..4 {
                // SAFETY: the caller's promises; `i + MR` stays within the job's rows.
                unsafe {
                    match n {
                        4.. => tile::<F, HOW, 4>(job, p, quarter, i),
                        2.. => tile::<F, HOW, 2>(job, p, quarter, i),
                        _ => tile::<F, HOW, 1>(job, p, quarter, i),
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
#[target_feature(enable = "neon")]
unsafe fn tile<F: Format, const HOW: u8, const MR: usize>(job: &Job<'_>, p: usize, quarter: usize, i: usize) {
    let mut acts = [std::ptr::null::<ActBlock>(); MR];
    for r in 0..MR {
        // SAFETY: `Job::check` compared the row index with the buffer.
        acts[r] = unsafe { job.acts.as_ptr().add(job.rows[i + r] as usize * job.n_blocks) };
    }
    // SAFETY: panel `p` is there.
    let panel = unsafe { job.panels.as_ptr().add(p * panel_bytes::<F>(job.n_blocks)) };
    // SAFETY: row `i` is one of the job's results.
    let out = unsafe { job.out.add(i * job.ld + p * PANEL_ROWS + 4 * quarter) };
    let mut acc = [vdupq_n_f32(0.0); MR];
    if job.blocks.start > 0 {
        for r in 0..MR {
            // SAFETY: the job's results may be read; 4 lanes per quarter.
            acc[r] = unsafe { vld1q_f32(out.add(r * job.ld)) };
        }
    }
    for b in job.blocks.clone() {
        // SAFETY: block `b` is in each row of activations and in the panel.
        unsafe {
            let mut act = acts;
            for act in &mut act {
                *act = act.add(b);
            }
            let q = panel.add(F::quants_at(b) + 16 * quarter);
            let (w_scale, min) = block_scales::<F>(panel, b, quarter);
            if F::HALVES {
                for half in 0..2 {
                    let dot = groups::<F, HOW, MR>(q, &act, 4 * half, 4 * half + 4);
                    for r in 0..MR {
                        let start = vdupq_n_s32((*act[r]).neg_half_sums[half] * F::OFFSET);
                        let scale = vmulq_n_f32(w_scale[half], (*act[r]).scale);
                        acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(vaddq_s32(dot[r], start)), scale);
                    }
                }
            } else {
                // 8-bit weights and codes are signed here and need no offset.
                let offset = if F::BITS == 8 || F::CODES.is_some() { 0 } else { F::OFFSET };
                let dot = groups::<F, HOW, MR>(q, &act, 0, 8);
                for r in 0..MR {
                    let start = vdupq_n_s32((*act[r]).neg_sum * offset);
                    let scale = vmulq_n_f32(w_scale[0], (*act[r]).scale);
                    acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(vaddq_s32(dot[r], start)), scale);
                }
            }
            if F::MIN && F::HALVES {
                for r in 0..MR {
                    acc[r] = vfmaq_n_f32(acc[r], min[0], (*act[r]).scaled_half_sum(0));
                    acc[r] = vfmaq_n_f32(acc[r], min[1], (*act[r]).scaled_half_sum(1));
                }
            } else if F::MIN {
                for r in 0..MR {
                    acc[r] = vfmaq_n_f32(acc[r], min[0], (*act[r]).scaled_sum);
                }
            }
        }
    }
    for r in 0..MR {
        // SAFETY: the job's results may be written; 4 lanes per quarter.
        unsafe { vst1q_f32(out.add(r * job.ld), acc[r]) };
    }
}

/// Returns the dot products of groups `from..to` of a block, per activation row.
///
/// # Safety
/// `q` and `act` point to a quarter of a block of the format and to blocks of activations.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn groups<F: Format, const HOW: u8, const MR: usize>(
    q: *const u8,
    act: &[*const ActBlock; MR],
    from: usize,
    to: usize,
) -> [int32x4_t; MR] {
    if HOW == MMLA {
        // SAFETY: the caller's promise; `run` with `MMLA` is only reached where the CPU has the instruction.
        return unsafe { matrices::<F, MR>(q, act, from, to) };
    }
    let mut hi = [[vdupq_n_s32(0); 2]; MR];
    let mut lo = [[vdupq_n_s32(0); 2]; MR];
    for j in from..to {
        // SAFETY: the caller's promise.
        let w = unsafe { unpack::<F>(q, j) };
        for r in 0..MR {
            for (word, sums) in [(j, &mut hi[r]), (8 + j, &mut lo[r])] {
                // SAFETY: four of the 32 high or of the 32 low bytes; a block is aligned and starts with them.
                let a = vreinterpretq_s8_s32(vdupq_n_s32(unsafe { act[r].cast::<i32>().add(word).read() }));
                // SAFETY: `run` with `DOT` is only reached where the CPU has the instruction.
                unsafe { multiply_add::<HOW>(sums, w, a) };
            }
        }
    }
    let mut dot = [vdupq_n_s32(0); MR];
    for r in 0..MR {
        let sum = |sums: [int32x4_t; 2]| if HOW == DOT { sums[0] } else { vpaddq_s32(sums[0], sums[1]) };
        dot[r] = vaddq_s32(vshlq_n_s32::<8>(sum(hi[r])), sum(lo[r]));
    }
    dot
}

/// Returns what [`groups`] does, two groups at a time.
///
/// # Safety
/// As [`groups`] says, and the CPU has `i8mm`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn matrices<F: Format, const MR: usize>(
    q: *const u8,
    act: &[*const ActBlock; MR],
    from: usize,
    to: usize,
) -> [int32x4_t; MR] {
    // Of weight rows 0 and 1, then of 2 and 3: `[high, low, high, low]`.
    let mut sums = [[vdupq_n_s32(0); 2]; MR];
    for j in (from..to).step_by(2) {
        // SAFETY: the caller's promise; blocks and halves of them have an even number of groups.
        let (even, odd) = unsafe { (unpack::<F>(q, j), unpack::<F>(q, j + 1)) };
        let (even, odd) = (vreinterpretq_s32_s8(even), vreinterpretq_s32_s8(odd));
        // Two rows of 8 values each.
        let w = [vzip1q_s32(even, odd), vzip2q_s32(even, odd)].map(|w| vreinterpretq_s8_s32(w));
        for r in 0..MR {
            let bytes = act[r].cast::<i8>();
            // SAFETY: eight of the 32 high and of the 32 low bytes; a block starts with them.
            let a = unsafe { vcombine_s8(vld1_s8(bytes.add(4 * j)), vld1_s8(bytes.add(BLOCK + 4 * j))) };
            for (sum, w) in sums[r].iter_mut().zip(w) {
                // SAFETY: the caller's promise.
                unsafe { smmla(sum, w, a) };
            }
        }
    }
    let mut dot = [vdupq_n_s32(0); MR];
    for r in 0..MR {
        let [first, second] = sums[r];
        dot[r] = vaddq_s32(vshlq_n_s32::<8>(vuzp1q_s32(first, second)), vuzp2q_s32(first, second));
    }
    dot
}

/// Adds the products of two rows of 8 bytes with two others: lane `2i + j` is row `i` of `w` by row `j` of `a`.
///
/// # Safety
/// The CPU has `i8mm`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn smmla(acc: &mut int32x4_t, w: int8x16_t, a: int8x16_t) {
    // SAFETY: registers only; the caller knows that the instruction exists.
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {acc:v}.4s, {w:v}.16b, {a:v}.16b",
            acc = inout(vreg) *acc,
            w = in(vreg) w,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}

/// Adds the products of 16 bytes to sums: with `DOT` by fours to the first, else by pairs to both.
///
/// # Safety
/// With `DOT` the CPU has `dotprod`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn multiply_add<const HOW: u8>(sums: &mut [int32x4_t; 2], w: int8x16_t, a: int8x16_t) {
    if HOW == DOT {
        // SAFETY: the caller's promise.
        unsafe { sdot(&mut sums[0], w, a) };
    } else {
        sums[0] = vpadalq_s16(sums[0], vmull_s8(vget_low_s8(w), vget_low_s8(a)));
        sums[1] = vpadalq_s16(sums[1], vmull_high_s8(w, a));
    }
}

/// Adds to each lane the dot product of its four bytes.
///
/// # Safety
/// The CPU has `dotprod`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn sdot(acc: &mut int32x4_t, w: int8x16_t, a: int8x16_t) {
    // SAFETY: registers only; the caller knows that the instruction exists.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {acc:v}.4s, {w:v}.16b, {a:v}.16b",
            acc = inout(vreg) *acc,
            w = in(vreg) w,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}

/// Returns the weights of group `j` as signed bytes, 4 rows by 4 values; only 8-bit ones and codes have their offset
/// subtracted.
///
/// # Safety
/// `q` points to a quarter of a block of the format.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn unpack<F: Format>(q: *const u8, j: usize) -> int8x16_t {
    // SAFETY: the caller's promise; vectors 0..VECTORS are asked for, 16 bytes of each.
    let load = |vector: usize| unsafe { vld1q_u8(q.add(64 * vector)) };
    if F::BITS == 8 {
        return vreinterpretq_s8_u8(veorq_u8(load(j), vdupq_n_u8(0x80)));
    }
    let shifted = |v: uint8x16_t, by: i8| vshlq_u8(v, vdupq_n_s8(by));
    if F::BITS <= 3 {
        let pairs = vandq_u8(shifted(load(j / 4), -2 * (j % 4) as i8), vdupq_n_u8(3));
        let high = || vandq_u8(shifted(load(2), 2 - j as i8), vdupq_n_u8(4));
        return vreinterpretq_s8_u8(if F::BITS == 3 { vorrq_u8(pairs, high()) } else { pairs });
    }
    let nibbles = if j < 4 { vandq_u8(load(j), vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(load(j - 4)) };
    if let Some(codes) = F::CODES {
        // SAFETY: 16 bytes.
        return vqtbl1q_s8(unsafe { vld1q_s8(codes.as_ptr()) }, nibbles);
    }
    vreinterpretq_s8_u8(match F::BITS {
        5 => vorrq_u8(nibbles, vandq_u8(shifted(load(4), 4 - j as i8), vdupq_n_u8(0x10))),
        6 => vorrq_u8(nibbles, vandq_u8(shifted(load(4 + j / 4), 4 - 2 * (j % 4) as i8), vdupq_n_u8(0x30))),
        _ => nibbles,
    })
}

/// Returns the scales and the minima of the halves of a block, of a quarter of a panel.
///
/// # Safety
/// `panel` points to a panel, `b` is one of its blocks, and `quarter < 4`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn block_scales<F: Format>(panel: *const u8, b: usize, quarter: usize) -> ([float32x4_t; 2], [float32x4_t; 2]) {
    // SAFETY: the caller's promise; all loads lie in the block's record.
    unsafe {
        let record = panel.add(F::record_at(b));
        let halfs = |plane: usize| from_f16(vld1_u8(record.add(32 * plane + 8 * quarter)));
        let bytes = |at: usize| vcreate_u8(u64::from(record.add(at + 4 * quarter).cast::<u32>().read_unaligned()));
        let wide = |at: usize| vmovl_u16(vget_low_u16(vmovl_u8(bytes(at))));
        let d = if F::E8M0 { powers(wide(0)) } else { halfs(0) };
        let m = if F::MIN { halfs(1) } else { vdupq_n_f32(0.0) };
        let ints = |sub: usize| wide(F::SCALE_HEAD + 16 * sub);
        let sub = b % 8;
        let subs = if F::HALVES { [2 * sub, 2 * sub + 1] } else { [sub; 2] };
        match F::SUB_SCALES {
            SubScales::None => ([d; 2], [m; 2]),
            SubScales::Signed => {
                let signed = |sub: usize| {
                    let bytes = vreinterpret_s8_u8(bytes(F::SCALE_HEAD + 16 * sub));
                    vmulq_f32(d, vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes)))))
                };
                (subs.map(signed), [m; 2])
            }
            SubScales::Nibbles => {
                let low = |sub: usize| vmulq_f32(d, vcvtq_f32_u32(vandq_u32(ints(sub), vdupq_n_u32(15))));
                let high = |sub: usize| vmulq_f32(m, vcvtq_f32_u32(vshrq_n_u32::<4>(ints(sub))));
                (subs.map(low), subs.map(high))
            }
            SubScales::Unsigned => {
                let scale = |sub: usize| vmulq_f32(d, vcvtq_f32_u32(ints(sub)));
                let min = |sub: usize| if F::MIN { vmulq_f32(m, vcvtq_f32_u32(ints(F::N_SUB + sub))) } else { m };
                (subs.map(scale), subs.map(min))
            }
        }
    }
}

/// Returns `2^(e - 128)` of exponents `e`, as [`BlockMXFP4::half_scale`](crate::block::BlockMXFP4::half_scale) does.
#[inline]
#[target_feature(enable = "neon")]
fn powers(e: uint32x4_t) -> float32x4_t {
    let normal = vsubq_u32(vshlq_n_u32::<23>(e), vdupq_n_u32(1 << 23));
    let subnormal = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(e));
    vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), subnormal, normal))
}

/// Converts four f16: `fcvtl` is baseline NEON, its intrinsic needs a type that is not stable.
#[inline]
#[target_feature(enable = "neon")]
fn from_f16(halfs: uint8x8_t) -> float32x4_t {
    let floats: float32x4_t;
    // SAFETY: registers only.
    unsafe {
        asm!(
            "fcvtl {floats:v}.4s, {halfs:v}.4h",
            floats = lateout(vreg) floats,
            halfs = in(vreg) halfs,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    floats
}
