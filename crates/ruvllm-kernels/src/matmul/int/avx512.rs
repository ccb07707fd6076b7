//! AVX-512 VNNI: a vector is 16 rows by 4 values, `vpdpbusd` with a broadcast of 4 activations.
//!
//! A tile is `P` panels by `MR` activation rows. With 2 x 4 or 1 x 8 the eight sums in f32 and sixteen in i32, of the
//! activations' high and low bytes, leave room for the weights and two broadcasts in 32 registers. 1 x 8 unpacks no
//! weight twice and takes a batch of eight through memory once. Weights are unpacked in registers, where all of them are
//! multiplied with both bytes; to find those of the large groups alone, they have to be in memory ([`wide`]), which pays
//! for more than eight rows.

use super::super::acts::{ActBlock, Grid, N_LARGE, key};
use super::super::format::{BLOCK, Format, PANEL_ROWS, SubScales, panel_bytes};
use super::super::stream::{Prefetcher, is_single};
use super::{Chunk, Job, wide};
use std::arch::x86_64::*;

/// Rows are taken whole: many of them are cut in [`wide`].
pub(in super::super) const CHUNK: Chunk = Chunk { rows: wide::ROWS, blocks: usize::MAX };

/// Returns the most rows that are computed here; more of them go to [`wide`]. Bytes need no unpacking, and a second pass
/// over them finds them in a near cache.
const fn rows_max<F: Format>() -> usize {
    if F::BITS == 8 { 16 } else { 8 }
}

/// Quantises whole blocks, two at once.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(in super::super) fn quantize(x: &[f32], blocks: &mut [ActBlock]) {
    for (x, blocks) in x.as_chunks::<BLOCK>().0.chunks(2).zip(blocks.chunks_mut(2)) {
        // A last block alone is taken twice.
        let pair = [halves(&x[0]), halves(&x[x.len() - 1])];
        let grids = grids(pair);
        for ((x, block), grid) in pair.into_iter().zip(blocks).zip(grids) {
            quantize_by(x, grid, block);
        }
    }
}

/// Returns the halves of a block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
fn halves(x: &[f32; BLOCK]) -> [__m512; 2] {
    // SAFETY: a block is 32 values: two vectors; loadu needs no alignment.
    unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))] }
}

/// Returns how two blocks are quantised.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
fn grids(x: [[__m512; 2]; 2]) -> [Grid; 2] {
    // The largest of each group, in all its lanes; then each 128 bits have a group of each of four halves.
    let of_groups = |v: __m512| {
        let bits = _mm512_and_epi32(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fff_ffff));
        let max = _mm512_max_epu32(bits, _mm512_shuffle_epi32::<0b10_11_00_01>(bits));
        _mm512_max_epu32(max, _mm512_shuffle_epi32::<0b01_00_11_10>(max))
    };
    let [[a, b], [c, d]] = x;
    let ab = _mm512_mask_blend_epi32(0b1010_1010_1010_1010, of_groups(a), of_groups(b));
    let cd = _mm512_mask_blend_epi32(0b1010_1010_1010_1010, of_groups(c), of_groups(d));
    let bits = _mm512_mask_blend_epi32(0b1100_1100_1100_1100, ab, cd);
    let numbers = _mm512_setr_epi32(0, 4, 0, 4, 1, 5, 1, 5, 2, 6, 2, 6, 3, 7, 3, 7);
    // 0xea: (a & b) | c.
    let mut keys = _mm512_ternarylogic_epi32::<0xea>(bits, _mm512_set1_epi32(key(u32::MAX, 0) as i32), numbers);
    let mut largest = [_mm_setzero_si128(); N_LARGE + 1];
    for largest in &mut largest {
        let max = _mm512_max_epu32(keys, _mm512_shuffle_i32x4::<0b01_00_11_10>(keys, keys));
        let max = _mm512_max_epu32(max, _mm512_shuffle_i32x4::<0b10_11_00_01>(max, max));
        let max = _mm512_max_epu32(max, _mm512_shuffle_epi32::<0b10_11_00_01>(max));
        keys = _mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(keys, max), keys);
        *largest = _mm512_castsi512_si128(max);
    }
    let [first, second, third] = largest;
    let of_first = |max: __m128i| _mm_cvtsi128_si32(max) as u32;
    let of_second = |max: __m128i| _mm_extract_epi32::<2>(max) as u32;
    [
        Grid::new([of_first(first), of_first(second), of_first(third)]),
        Grid::new([of_second(first), of_second(second), of_second(third)]),
    ]
}

/// Quantises a block of two halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
fn quantize_by(x: [__m512; 2], grid: Grid, block: &mut ActBlock) {
    if grid.inverse == 0.0 {
        *block = ActBlock::zeros(grid);
        return;
    }
    let bytes = |v: __m512| {
        let q = _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(grid.inverse)));
        // A low byte of -128 becomes -127.
        let low = _mm512_and_si512(q, _mm512_set1_epi32(0xff));
        let lowest = _mm512_cmpeq_epi32_mask(low, _mm512_set1_epi32(0x80));
        let q = _mm512_mask_add_epi32(q, lowest, q, _mm512_set1_epi32(1));
        let high = _mm512_srai_epi32::<8>(_mm512_add_epi32(q, _mm512_set1_epi32(128)));
        (_mm512_cvtepi32_epi8(high), _mm512_cvtepi32_epi8(q))
    };
    let ((hi, lo), (hi_end, lo_end)) = (bytes(x[0]), bytes(x[1]));
    let (hi, lo) = (_mm256_set_m128i(hi_end, hi), _mm256_set_m128i(lo_end, lo));
    // Sums of groups, then of the halves.
    let sums = |bytes: __m256i| _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    let sums = _mm256_add_epi32(_mm256_slli_epi32::<8>(sums(hi)), sums(lo));
    let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b01_00_11_10>(sums));
    let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b10_11_00_01>(sums));
    block.complete([_mm256_cvtsi256_si32(sums), _mm256_extract_epi32::<4>(sums)], grid);
    // SAFETY: 32 bytes each.
    unsafe {
        _mm256_storeu_si256(block.hi.as_mut_ptr().cast(), hi);
        _mm256_storeu_si256(block.lo.as_mut_ptr().cast(), lo);
    }
}

/// # Safety
/// As [`super::Kernel`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(in super::super) unsafe fn run<F: Format>(job: &Job<'_>) {
    if job.rows.len() > rows_max::<F>() {
        // SAFETY: the caller's promises.
        return unsafe { wide::run::<F>(job) };
    }
    if job.n_panels == 2 && is_single(job.rows.len()) {
        for panel in panels(job) {
            // SAFETY: the caller's promises, for one of its panels.
            unsafe { rows::<F>(&panel) };
        }
        return;
    }
    // SAFETY: the caller's promises.
    unsafe { rows::<F>(job) };
}

/// Returns a job for each of two panels; the second one's results begin 16 lanes on.
fn panels<'a>(job: &Job<'a>) -> [Job<'a>; 2] {
    let (first, second) = job.panels.split_at(job.panels.len() / 2);
    let single = |panels, out| Job { panels, n_panels: 1, blocks: job.blocks.clone(), out, ..*job };
    [single(first, job.out), single(second, job.out.wrapping_add(PANEL_ROWS))]
}

/// Computes all of a job's rows.
///
/// # Safety
/// As [`super::Kernel`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn rows<F: Format>(job: &Job<'_>) {
    let mut i = 0;
    while i < job.rows.len() {
        // SAFETY: the caller's promises; `i + MR` stays within the job's rows.
        i += unsafe {
            match (job.n_panels, job.rows.len() - i) {
                (2, 8..) => pair::<F>(job, i),
                (2, 4..) => tile::<F, 2, 4>(job, i),
                (2, 3) => tile::<F, 2, 3>(job, i),
                (2, 2) => tile::<F, 2, 2>(job, i),
                (2, _) => tile::<F, 2, 1>(job, i),
                (_, 6..) => tile::<F, 1, 6>(job, i),
                (_, 4..) => tile::<F, 1, 4>(job, i),
                (_, 3) => tile::<F, 1, 3>(job, i),
                (_, 2..) => tile::<F, 1, 2>(job, i),
                (_, _) => tile::<F, 1, 1>(job, i),
            }
        };
    }
}

/// Computes both panels of a job, one after the other, by eight rows, as [`tile`] does; returns 8.
///
/// # Safety
/// As [`super::Kernel`] says, with two panels and `i + 8` within the job's rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn pair<F: Format>(job: &Job<'_>, i: usize) -> usize {
    for panel in panels(job) {
        // SAFETY: the caller's promises, for one of its panels.
        unsafe { tile::<F, 1, 8>(&panel, i) };
    }
    8
}

/// Computes `P` panels by the `MR` rows from `i` on; returns `MR`.
///
/// # Safety
/// As [`super::Kernel`] says, with `P` the job's panels and `i + MR` within its rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn tile<F: Format, const P: usize, const MR: usize>(job: &Job<'_>, i: usize) -> usize {
    let panel_bytes = panel_bytes::<F>(job.n_blocks);
    let mut acts = [std::ptr::null::<ActBlock>(); MR];
    for r in 0..MR {
        // SAFETY: `Job::check` compared the row index with the buffer.
        acts[r] = unsafe { job.acts.as_ptr().add(job.rows[i + r] as usize * job.n_blocks) };
    }
    let panels = job.panels.as_ptr();
    // SAFETY: row `i` is one of the job's results.
    let out = unsafe { job.out.add(i * job.ld) };
    let mut acc = [[_mm512_setzero_ps(); MR]; P];
    if job.blocks.start > 0 {
        for p in 0..P {
            for r in 0..MR {
                // SAFETY: the job's results may be read; 16 lanes per panel.
                acc[p][r] = unsafe { _mm512_loadu_ps(out.add(r * job.ld + p * PANEL_ROWS)) };
            }
        }
    }
    let ahead = Prefetcher::new(job.stream);
    for b in job.blocks.clone() {
        // SAFETY: block `b` is in each row of activations and each panel.
        unsafe {
            let mut act = acts;
            for act in &mut act {
                *act = act.add(b);
            }
            let mut q = [panels; P];
            for (p, q) in q.iter_mut().enumerate() {
                if i == 0 {
                    ahead.prefetch::<F>(q.add(p * panel_bytes), b);
                }
                *q = q.add(p * panel_bytes + F::quants_at(b));
            }
            let mut w_scale = [[_mm512_setzero_ps(); 2]; P];
            let mut min = [[_mm512_setzero_ps(); 2]; P];
            for p in 0..P {
                (w_scale[p], min[p]) = block_scales::<F>(panels.add(p * panel_bytes), b);
            }
            if F::HALVES {
                let mut dot = start::<F, P, MR>(&act, |act| &raw const (*act).neg_half_sums[0]);
                groups::<F, P, MR, 0>(&q, &act, &mut dot);
                scale_add(&mut acc, &dot, &w_scale, 0, &act);
                let mut dot = start::<F, P, MR>(&act, |act| &raw const (*act).neg_half_sums[1]);
                groups::<F, P, MR, 4>(&q, &act, &mut dot);
                scale_add(&mut acc, &dot, &w_scale, 1, &act);
            } else {
                let mut dot = start::<F, P, MR>(&act, |act| &raw const (*act).neg_sum);
                groups::<F, P, MR, 0>(&q, &act, &mut dot);
                groups::<F, P, MR, 4>(&q, &act, &mut dot);
                scale_add(&mut acc, &dot, &w_scale, 0, &act);
            }
            for r in 0..MR {
                for p in 0..P {
                    acc[p][r] = min_add::<F>(acc[p][r], min[p], &*act[r]);
                }
            }
        }
    }
    for p in 0..P {
        for r in 0..MR {
            // SAFETY: the job's results may be written; 16 lanes per panel.
            unsafe { _mm512_storeu_ps(out.add(r * job.ld + p * PANEL_ROWS), acc[p][r]) };
        }
    }
    MR
}

/// Sums of a tile's block: of the activations' high bytes and of the low ones.
struct Dot<const P: usize, const MR: usize> {
    hi: [[__m512i; MR]; P],
    lo: [[__m512i; MR]; P],
}

/// Returns the integer sums' start: `-offset * Σa`, exact, with the low ones.
///
/// # Safety
/// `act` points to blocks, and `sum` returns a pointer into them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn start<F: Format, const P: usize, const MR: usize>(
    act: &[*const ActBlock; MR],
    sum: impl Fn(*const ActBlock) -> *const i32,
) -> Dot<P, MR> {
    let zeros = [[_mm512_setzero_si512(); MR]; P];
    let mut dot = Dot { hi: zeros, lo: zeros };
    if let Some(log2) = F::OFFSET_LOG2 {
        for r in 0..MR {
            // SAFETY: the caller's promise.
            let start = times_offset(_mm512_set1_epi32(unsafe { *sum(act[r]) }), log2);
            for lo in &mut dot.lo {
                lo[r] = start;
            }
        }
    }
    dot
}

/// Returns `x` times the offset of a format.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(super) fn times_offset(x: __m512i, log2: u32) -> __m512i {
    match log2 {
        2 => _mm512_slli_epi32::<2>(x),
        3 => _mm512_slli_epi32::<3>(x),
        4 => _mm512_slli_epi32::<4>(x),
        5 => _mm512_slli_epi32::<5>(x),
        _ => _mm512_slli_epi32::<7>(x),
    }
}

/// Adds the dot products of groups `J..J + 4` of a block.
///
/// # Safety
/// `q` and `act` point to a block of the format and of activations.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn groups<F: Format, const P: usize, const MR: usize, const J: usize>(
    q: &[*const u8; P],
    act: &[*const ActBlock; MR],
    dot: &mut Dot<P, MR>,
) {
    for j in J..J + 4 {
        let mut w = [_mm512_setzero_si512(); P];
        for p in 0..P {
            // SAFETY: the caller's promise.
            w[p] = unsafe { unpack::<F>(q[p], j) };
        }
        for r in 0..MR {
            // SAFETY: bytes `4j..4j + 4` of the 32 high and the 32 low ones; a block is aligned and starts with them.
            let (hi, lo) = unsafe { (act[r].cast::<i32>().add(j).read(), act[r].cast::<i32>().add(8 + j).read()) };
            let (hi, lo) = (_mm512_set1_epi32(hi), _mm512_set1_epi32(lo));
            for p in 0..P {
                dot.hi[p][r] = _mm512_dpbusd_epi32(dot.hi[p][r], w[p], hi);
                dot.lo[p][r] = _mm512_dpbusd_epi32(dot.lo[p][r], w[p], lo);
            }
        }
    }
}

/// Returns the unsigned weights of group `j`: 16 rows by 4 values.
///
/// # Safety
/// `q` points to a block of the format, 64-byte aligned.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(super) unsafe fn unpack<F: Format>(q: *const u8, j: usize) -> __m512i {
    // SAFETY: the caller's promise; vectors 0..VECTORS are asked for.
    let load = |vector: usize| unsafe { _mm512_load_si512(q.add(64 * vector).cast()) };
    if F::BITS == 8 {
        return load(j);
    }
    if F::BITS <= 3 {
        return unpack_low::<F>(load(j / 4), || load(2), j);
    }
    let low = _mm512_set1_epi8(15);
    let nibbles = if j < 4 { load(j) } else { _mm512_srli_epi16::<4>(load(j - 4)) };
    let nibbles = _mm512_and_si512(nibbles, low);
    // Shifts cross byte borders; the mask drops what came from the neighbour. 0xea: (a & b) | c.
    if F::BITS == 5 {
        let high = load(4);
        let high = match j {
            0 => _mm512_slli_epi16::<4>(high),
            1 => _mm512_slli_epi16::<3>(high),
            2 => _mm512_slli_epi16::<2>(high),
            3 => _mm512_slli_epi16::<1>(high),
            4 => high,
            5 => _mm512_srli_epi16::<1>(high),
            6 => _mm512_srli_epi16::<2>(high),
            _ => _mm512_srli_epi16::<3>(high),
        };
        return _mm512_ternarylogic_epi32::<0xea>(high, _mm512_set1_epi8(0x10), nibbles);
    }
    if F::BITS == 6 {
        let high = load(4 + j / 4);
        let high = match j % 4 {
            0 => _mm512_slli_epi16::<4>(high),
            1 => _mm512_slli_epi16::<2>(high),
            2 => high,
            _ => _mm512_srli_epi16::<2>(high),
        };
        return _mm512_ternarylogic_epi32::<0xea>(high, _mm512_set1_epi8(0x30), nibbles);
    }
    if F::CODES.is_some() {
        // SAFETY: 16 bytes.
        let codes = unsafe { _mm_loadu_si128(F::UNSIGNED_CODES.as_ptr().cast()) };
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(codes), nibbles);
    }
    nibbles
}

/// Returns the weights of group `j` of two or three bits, of the vector that has its two low bits and of the one that has
/// the high bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
fn unpack_low<F: Format>(pairs: __m512i, high: impl Fn() -> __m512i, j: usize) -> __m512i {
    // Shifts cross byte borders; the mask drops what came from the neighbour.
    let pairs = match j % 4 {
        0 => pairs,
        1 => _mm512_srli_epi16::<2>(pairs),
        2 => _mm512_srli_epi16::<4>(pairs),
        _ => _mm512_srli_epi16::<6>(pairs),
    };
    let pairs = _mm512_and_si512(pairs, _mm512_set1_epi8(3));
    if F::BITS == 2 {
        return pairs;
    }
    let high = match j {
        0 => _mm512_slli_epi16::<2>(high()),
        1 => _mm512_slli_epi16::<1>(high()),
        2 => high(),
        3 => _mm512_srli_epi16::<1>(high()),
        4 => _mm512_srli_epi16::<2>(high()),
        5 => _mm512_srli_epi16::<3>(high()),
        6 => _mm512_srli_epi16::<4>(high()),
        _ => _mm512_srli_epi16::<5>(high()),
    };
    // 0xea: (a & b) | c.
    _mm512_ternarylogic_epi32::<0xea>(high, _mm512_set1_epi8(4), pairs)
}

/// Returns the scales and the minima of the halves of a panel's block.
///
/// # Safety
/// `panel` points to a panel, and `b` is one of its blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(super) unsafe fn block_scales<F: Format>(panel: *const u8, b: usize) -> ([__m512; 2], [__m512; 2]) {
    // SAFETY: the caller's promise; all loads lie in the block's record.
    unsafe {
        let record = panel.add(F::record_at(b));
        let halfs = |plane: usize| _mm512_cvtph_ps(_mm256_loadu_si256(record.add(32 * plane).cast()));
        let bytes = |index: usize| _mm_loadu_si128(record.add(F::SCALE_HEAD + 16 * index).cast());
        let d = if F::E8M0 { powers(_mm_loadu_si128(record.cast())) } else { halfs(0) };
        let m = if F::MIN { halfs(1) } else { _mm512_setzero_ps() };
        let float = |ints: __m512i| _mm512_cvtepi32_ps(ints);
        let unsigned = |index: usize| float(_mm512_cvtepu8_epi32(bytes(index)));
        let sub = b % 8;
        let subs = if F::HALVES { [2 * sub, 2 * sub + 1] } else { [sub; 2] };
        match F::SUB_SCALES {
            SubScales::None => ([d; 2], [m; 2]),
            SubScales::Signed => (subs.map(|sub| _mm512_mul_ps(d, float(_mm512_cvtepi8_epi32(bytes(sub))))), [m; 2]),
            SubScales::Nibbles => {
                let ints = |sub: usize| _mm512_cvtepu8_epi32(bytes(sub));
                let low = |sub: usize| float(_mm512_and_si512(ints(sub), _mm512_set1_epi32(15)));
                let high = |sub: usize| float(_mm512_srli_epi32::<4>(ints(sub)));
                (subs.map(|sub| _mm512_mul_ps(d, low(sub))), subs.map(|sub| _mm512_mul_ps(m, high(sub))))
            }
            SubScales::Unsigned => {
                let scales = subs.map(|sub| _mm512_mul_ps(d, unsigned(sub)));
                let min = |sub: usize| if F::MIN { _mm512_mul_ps(m, unsigned(F::N_SUB + sub)) } else { m };
                (scales, subs.map(min))
            }
        }
    }
}

/// Returns `2^(e - 128)` of bytes `e`, as [`BlockMXFP4::half_scale`](crate::block::BlockMXFP4::half_scale) does.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
fn powers(exponents: __m128i) -> __m512 {
    let e = _mm512_cvtepu8_epi32(exponents);
    let normal = _mm512_sub_epi32(_mm512_slli_epi32::<23>(e), _mm512_set1_epi32(1 << 23));
    let is_subnormal = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
    _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, is_subnormal, _mm512_set1_epi32(0x0020_0000), e))
}

/// `acc += min * Σa` of a block, or of each of its halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(super) fn min_add<F: Format>(acc: __m512, min: [__m512; 2], act: &ActBlock) -> __m512 {
    if !F::MIN {
        return acc;
    }
    if !F::HALVES {
        return _mm512_fmadd_ps(min[0], _mm512_set1_ps(act.scaled_sum), acc);
    }
    let acc = _mm512_fmadd_ps(min[0], _mm512_set1_ps(act.scaled_half_sum(0)), acc);
    _mm512_fmadd_ps(min[1], _mm512_set1_ps(act.scaled_half_sum(1)), acc)
}

/// `acc += (256 * dot.hi + dot.lo) * (w_scale * a_scale)`.
///
/// # Safety
/// `act` points to blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn scale_add<const P: usize, const MR: usize>(
    acc: &mut [[__m512; MR]; P],
    dot: &Dot<P, MR>,
    w_scale: &[[__m512; 2]; P],
    half: usize,
    act: &[*const ActBlock; MR],
) {
    for r in 0..MR {
        // SAFETY: the caller's promise.
        let a_scale = _mm512_set1_ps(unsafe { (*act[r]).scale });
        for p in 0..P {
            let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(dot.hi[p][r]), dot.lo[p][r]);
            let scale = _mm512_mul_ps(w_scale[p][half], a_scale);
            acc[p][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[p][r]);
        }
    }
}
