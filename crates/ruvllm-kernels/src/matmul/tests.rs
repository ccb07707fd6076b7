//! Every row of the table against f64 arithmetic, exact integers, and itself in other shapes.

mod acts;
mod head_shortlist;
mod numerics;

use super::acts::{GROUP, N_LARGE};
use super::format::{BLOCK, Format, PANEL_ROWS, Q4K, Q5K, Q6K, Q40, Q41, Q50, Q51, Q80, panel_bytes};
use super::int::scalar;
use super::*;
use crate::block::GgmlType;
use crate::dequant;
use bytes::Bytes;
use half::f16;
use proptest::prelude::*;
use ruvllm_threads::arena::{AlignedVec, LargePages};

/// A small generator: tests need bytes, not statistics (SplitMix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    fn f32(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        // Rows of one matrix differ in size by orders of magnitude, as activations do.
        (0..n).map(|i| self.f32() * if i % 97 == 0 { 30.0 } else { 1.0 }).collect()
    }
}

/// How the blocks of a test matrix are filled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    Random,
    /// All quants and sub-scales 0xff: the largest magnitudes, -1 where they are signed.
    Ones,
    /// All quants 0x80: -128 in Q8_0 and the sub-scales of Q6_K.
    Minimum,
    ZeroScales,
    HugeScales,
}

const FILLS: [Fill; 5] = [Fill::Random, Fill::Ones, Fill::Minimum, Fill::ZeroScales, Fill::HugeScales];

/// Byte offsets of the f16 fields of a block.
fn f16_fields(ty: GgmlType) -> &'static [usize] {
    use GgmlType::*;
    match ty {
        Q4_0 | Q5_0 | Q8_0 | IQ4_NL | IQ4_XS | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ1_S => &[0],
        Q4_1 | Q5_1 | Q4_K | Q5_K => &[0, 2],
        Q6_K => &[208],
        Q2_K => &[80, 82],
        Q3_K => &[108],
        TQ1_0 => &[52],
        TQ2_0 => &[64],
        F16 => &[0],
        _ => &[],
    }
}

/// Returns a matrix of random (or extreme) blocks whose scales are finite.
fn blocks(rng: &mut Rng, ty: GgmlType, n_rows: usize, n_cols: usize, fill: Fill) -> Bytes {
    let mut bytes: Vec<u8> = (0..n_rows * ty.row_bytes(n_cols).expect("whole blocks"))
        .map(|_| match fill {
            Fill::Ones => 0xff,
            Fill::Minimum => 0x80,
            _ => rng.next() as u8,
        })
        .collect();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for &at in f16_fields(ty) {
            let scale = match fill {
                Fill::ZeroScales => 0.0,
                Fill::HugeScales => 60_000.0,
                _ => rng.f32() * 0.01,
            };
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
        match ty {
            GgmlType::F32 => block.copy_from_slice(&rng.f32().to_le_bytes()),
            // Keep the exponent below the top, so that no infinity and no NaN appears.
            GgmlType::BF16 => block[1] &= 0xbf,
            // A scale of 2^(e - 128).
            GgmlType::MXFP4 => block[0] = 120 + (rng.next() % 8) as u8,
            // The scale's nibbles lie in the top of four u16: make it a small number.
            GgmlType::IQ1_M => {
                for (at, nibble) in [(49, 0x00), (51, 0x00), (53, 0x40), (55, 0x10)] {
                    block[at] = (block[at] & 0x0f) | nibble;
                }
            }
            _ => {}
        }
    }
    bytes.into()
}

fn acts(table: &MatmulKernels, threads: &ThreadPool, x: &[f32], n: usize, k: usize, format: ActFormat) -> Acts {
    let mut acts = Acts::new(k, n);
    acts.set(table, threads, x, n, k, format);
    acts
}

/// The AMX row, its tile instructions done in software.
#[cfg(target_arch = "x86_64")]
static SOFTWARE_AMX: MatmulKernels = {
    use super::int::amx::software::Software;
    let ops = MatmulOps {
        quantize: int::avx512::quantize,
        int: int_kernels!(amx, Software),
        chunk: int::CHUNK,
        float: float::avx512::run,
    };
    Dispatch::new(Isa::Avx512, ops).named("amx (software tiles)")
};

/// Iterates over all that this machine can run: the rows of the table, and the AMX row even where there is no AMX.
fn rows() -> impl Iterator<Item = &'static MatmulKernels> {
    #[cfg(target_arch = "x86_64")]
    return available().chain(Some(&SOFTWARE_AMX).filter(|table| table.isa().is_available()));
    #[cfg(not(target_arch = "x86_64"))]
    available()
}

/// Calls `$check::<F>(args)` for each format of the integer path.
macro_rules! each_format {
    ($check:ident ( $($arg:expr),* )) => {
        $check::<Q40>($($arg),*); $check::<Q41>($($arg),*); $check::<Q50>($($arg),*); $check::<Q51>($($arg),*);
        $check::<Q80>($($arg),*); $check::<Q4K>($($arg),*); $check::<Q5K>($($arg),*); $check::<Q6K>($($arg),*);
    };
}

/// Rounds `k` up to whole blocks.
fn whole<F: Format>(k: usize) -> usize {
    k.next_multiple_of(F::TY.block_len())
}

fn packed<F: Format>(threads: &ThreadPool, n_rows: usize, k: usize, bytes: &[u8]) -> Bytes {
    let (pages, mut n_done) = (&mut LargePages::default(), 0);
    let mut done = |part: Range<usize>| {
        assert_eq!(part.start, n_done, "bytes are done in order");
        n_done = part.end;
    };
    let packing = &mut Packing { table: pick(Isa::Scalar), threads, pages, sink: None, done: &mut done };
    let packed = pack::pack::<F>(packing, n_rows, k, bytes);
    assert_eq!(n_done, bytes.len(), "all bytes are done");
    packed
}

/// A sink in memory, with room for so many bytes.
struct Room(std::sync::Mutex<AlignedVec<u8>>, usize);

impl PanelSink for Room {
    fn room(&self, n_bytes: usize) -> Option<usize> {
        (n_bytes <= self.1).then_some(64)
    }

    fn put(&self, at: usize, panels: &[u8]) {
        self.0.lock().expect("no worker falls")[at..at + panels.len()].copy_from_slice(panels);
    }

    fn panels(&self, room: Range<usize>) -> Bytes {
        Bytes::copy_from_slice(&self.0.lock().expect("no worker falls")[room])
    }
}

/// What goes into a sink is what would go into memory, as long as there is room.
fn check_sink<F: Format>() {
    let (n_rows, k) = (1000, whole::<F>(900));
    let bytes = blocks(&mut Rng(4), F::TY, n_rows, k, Fill::Random);
    let expected = packed::<F>(&ThreadPool::new(1), n_rows, k, &bytes);
    for (n_threads, n_room) in [(1, expected.len()), (3, expected.len()), (2, expected.len() - 1)] {
        let sink = Room(AlignedVec::new(64 + expected.len()).into(), n_room);
        let (threads, pages) = (&ThreadPool::new(n_threads), &mut LargePages::default());
        let packing = &mut Packing { table: pick(Isa::Scalar), threads, pages, sink: Some(&sink), done: &mut |_| {} };
        assert_eq!(pack::pack::<F>(packing, n_rows, k, &bytes), expected);
        assert_eq!(sink.panels(64..64 + expected.len()) == expected, n_room == expected.len());
    }
}

#[test]
fn sinks_get_the_panels_that_memory_gets() {
    each_format!(check_sink());
}

/// The panels hold exactly what the file's blocks mean: up to the rounding of one product and one sum.
fn check_pack<F: Format>(n_rows: usize, k: usize) {
    let (k, n_blocks) = (whole::<F>(k), whole::<F>(k) / BLOCK);
    for fill in FILLS {
        let bytes = blocks(&mut Rng(1), F::TY, n_rows, k, fill);
        let packed = packed::<F>(&ThreadPool::new(2), n_rows, k, &bytes);
        let mut expected = vec![0.0; k];
        let size = panel_bytes::<F>(n_blocks);
        for row in 0..n_rows.next_multiple_of(PANEL_ROWS) {
            let (panel, lane) = (&packed[row / PANEL_ROWS * size..][..size], row % PANEL_ROWS);
            if row < n_rows {
                let row_bytes = bytes.len() / n_rows;
                dequant::dequantize(F::TY, &bytes[row * row_bytes..][..row_bytes], &mut expected);
            } else {
                expected.fill(0.0);
            }
            for b in 0..n_blocks {
                let weights = scalar::lane::<F>(&panel[F::quants_at(b)..], lane);
                let (scale, min) = scalar::scales::<F>(panel, b, lane);
                for i in 0..BLOCK {
                    let (product, want) = (scale[i / 16] * weights[i] as f32, expected[b * BLOCK + i]);
                    let bound = 2.0 * f32::EPSILON * (product.abs() + min.abs());
                    assert!((product + min - want).abs() <= bound, "{} row {row} block {b} value {i}", F::TY);
                }
            }
        }
    }
}

#[test]
fn panels_hold_the_blocks() {
    for (n_rows, k) in [(1, 32), (15, 96), (16, 256), (17, 576), (40, 512)] {
        each_format!(check_pack(n_rows, k));
    }
}

#[test]
fn panels_take_little_more_than_the_file() {
    let threads = ThreadPool::new(1);
    for ty in INT_TYPES {
        let bytes = blocks(&mut Rng(2), ty, 64, 1024, Fill::Random);
        let (n_bytes, w) = (bytes.len(), Matrix::new(pick(Isa::Scalar), &threads, ty, 64, 1024, bytes));
        assert!(w.weight_bytes() as f64 <= 1.03 * n_bytes as f64, "{ty}: {} from {n_bytes}", w.weight_bytes());
    }
}

#[test]
fn panels_that_were_kept_multiply_as_those_that_are_made() {
    let (threads, table) = (ThreadPool::new(1), pick(Isa::best()));
    for ty in INT_TYPES {
        let made = Matrix::new(table, &threads, ty, 40, 512, blocks(&mut Rng(4), ty, 40, 512, Fill::Random));
        assert_eq!(Matrix::packed_bytes(ty, 40, 512), Some(made.bytes().len()));
        let kept = Bytes::from_owner(AlignedVec::from_slice(made.bytes()));
        let kept = Matrix::from_packed(table, ty, 40, 512, kept);
        let x = acts(table, &threads, &Rng(5).floats(3 * 512), 3, 512, ActFormat::Q16);
        let [mut a, mut b] = [(); 2].map(|()| vec![f32::NAN; 3 * 40]);
        matmul(&threads, &made, &x, &mut a);
        matmul(&threads, &kept, &x, &mut b);
        assert_eq!(a, b, "{ty}");
    }
    assert_eq!(Matrix::packed_bytes(GgmlType::F16, 40, 512), None, "it stays as it is");
    assert_eq!(Matrix::packed_bytes(GgmlType::Q4_K, 40, 128), None, "half a block");
}

#[test]
#[should_panic(expected = "matrix: 16 x 32 of Q8_0 in 576 bytes of panels")]
fn kept_panels_of_another_size_are_refused() {
    let bytes = Bytes::from_owner(AlignedVec::<u8>::new(576));
    Matrix::from_packed(pick(Isa::Scalar), GgmlType::Q8_0, 16, 32, bytes);
}

#[test]
fn next_shares_cover_the_panels_in_order() {
    let (table, threads, mut pages) = (pick(Isa::Scalar), ThreadPool::new(1), LargePages::default());
    let mut matrix = |n_rows| {
        let bytes = blocks(&mut Rng(3), GgmlType::Q8_0, n_rows, 64, Fill::Random);
        let packing = &mut Packing { table, threads: &threads, pages: &mut pages, sink: None, done: &mut |_| {} };
        Matrix::pack(packing, GgmlType::Q8_0, n_rows, 64, bytes)
    };
    let matrices = [matrix(640), matrix(64), matrix(80)];
    let address = |w: &Matrix| w.bytes().as_ptr_range().start as usize..w.bytes().as_ptr_range().end as usize;
    for n_threads in [1, 2, 3, 7] {
        let next = next_shares(n_threads, &matrices.each_ref());
        let shares = next.shares();
        assert_eq!(shares.len(), n_threads);
        assert_eq!(shares[0].start, address(&matrices[0]).start);
        assert_eq!(shares[n_threads - 1].end, address(&matrices[2]).end);
        assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start), "{n_threads} threads: {shares:?}");
    }
}

/// Each table row against f64 arithmetic on the same quantised activations.
///
/// A block adds `1 + HALVES + MIN` terms to the sum. Each term is rounded at most 4 times before it is added (`d * sc`,
/// the product of scales, the integer sum or the activations' scaled sum, the product where it is not fused), and each
/// addition rounds the sum once: with u = ε / 2, `|error| ≤ (terms + 4) * u * Σ|term|` to first order; ε in place of u
/// covers the rest.
fn check_tables<F: Format>(seed: u64, n_rows: usize, k: usize, n: usize, fill: Fill) {
    let (k, threads, mut rng) = (whole::<F>(k), ThreadPool::new(1), Rng(seed));
    let n_blocks = k / BLOCK;
    let bytes = blocks(&mut rng, F::TY, n_rows, k, fill);
    let x = rng.floats(n * k);
    let packed = packed::<F>(&threads, n_rows, k, &bytes);
    let size = panel_bytes::<F>(n_blocks);
    let mut q = vec![bytemuck::Zeroable::zeroed(); n * n_blocks];
    pick(Isa::Scalar).quantize(&x, &mut q);
    let mut results: Vec<(&MatmulKernels, Vec<f32>)> = Vec::new();
    for table in rows() {
        let w = Matrix::new(table, &threads, F::TY, n_rows, k, bytes.clone());
        let mut out = vec![f32::NAN; n * n_rows];
        matmul(&threads, &w, &acts(table, &threads, &x, n, k, ActFormat::Q16), &mut out);
        results.push((table, out));
    }
    for row in 0..n_rows {
        let panel = &packed[row / PANEL_ROWS * size..][..size];
        let lane = row % PANEL_ROWS;
        for i in 0..n {
            let (mut sum, mut magnitude) = (0.0f64, 0.0f64);
            let mut add = |term: f64| {
                sum += term;
                magnitude += term.abs();
            };
            for (b, act) in q[i * n_blocks..][..n_blocks].iter().enumerate() {
                let weights = scalar::lane::<F>(&panel[F::quants_at(b)..], lane);
                let (scale, min) = scalar::scales::<F>(panel, b, lane);
                for (half, scale) in scale.into_iter().enumerate() {
                    let range = 16 * half..16 * half + 16;
                    let dot: i32 = range.clone().map(|i| weights[i] * act.q(i)).sum();
                    let total: i32 = range.map(|i| act.q(i)).sum();
                    add(f64::from(scale) * f64::from(act.scale) * f64::from(dot));
                    add(f64::from(min) * f64::from(act.scale) * f64::from(total));
                }
            }
            let n_terms = n_blocks * (1 + F::HALVES as usize + F::MIN as usize);
            let bound = (n_terms + 4) as f64 * (f64::from(f32::EPSILON) * magnitude + f64::from(f32::MIN_POSITIVE));
            for (table, out) in &results {
                let error = (f64::from(out[i * n_rows + row]) - sum).abs();
                assert!(
                    error <= bound,
                    "{} {} {n_rows}x{k} n={n} {fill:?}: {error:e} > {bound:e}",
                    table.name(),
                    F::TY
                );
            }
        }
    }
}

#[test]
fn tables_agree_with_f64_on_extreme_blocks() {
    for fill in FILLS {
        each_format!(check_tables(3, 17, 512, 7, fill));
        each_format!(check_tables(4, 32, 2048, 13, fill));
    }
}

/// With scales that are powers of two and sums under 2^24 no operation rounds: results are the exact integers.
///
/// Three blocks of a row have values, one of them the largest and the others up to 360:
/// `128 * 3 * (32512 + 7 * 360 + 24 * 127) < 2^24`.
fn check_integers<F: Format>(seed: u64) {
    let (n_rows, k, n, mut rng) = (20, 256, 9, Rng(seed));
    let mut bytes = blocks(&mut rng, F::TY, n_rows, k, Fill::Random).to_vec();
    for block in bytes.chunks_exact_mut(F::TY.block_bytes()) {
        for &at in f16_fields(F::TY) {
            block[at..at + 2].copy_from_slice(&f16::ONE.to_le_bytes());
        }
        match F::TY {
            // Scales up to 3 keep weights within ±128, as Q8_0's are.
            GgmlType::Q4_K | GgmlType::Q5_K => block[4..16].iter_mut().for_each(|b| *b &= 0x03),
            GgmlType::Q6_K => block[192..208].iter_mut().for_each(|b| *b = (*b % 4).wrapping_sub(2)),
            _ => {}
        }
    }
    // Two groups are large, wherever they are; a 127 in another makes the scale 1 / 256.
    let mut large = [0; 2];
    let q: Vec<i32> = (0..n * k)
        .map(|i| {
            if i % BLOCK == 0 {
                large = [(rng.next() % 7) as usize, 0];
                large[1] = large[0] + 1 + rng.next() as usize % (7 - large[0]);
            }
            match (i / BLOCK % 8, i % BLOCK / GROUP) {
                (0 | 3 | 6, group) if group == large[0] && i % GROUP == 1 => {
                    [-32_512, 32_512][(rng.next() % 2) as usize]
                }
                (0 | 3 | 6, group) if large.contains(&group) => (rng.next() % 721) as i32 - 360,
                (0 | 3 | 6, _) if i % GROUP == 2 => [-127, 127][(rng.next() % 2) as usize],
                (0 | 3 | 6, _) => (rng.next() % 255) as i32 - 127,
                _ => 0,
            }
        })
        // Quants with a low byte of -128 do not occur.
        .map(|q| q + i32::from(q & 0xff == 0x80))
        .collect();
    let x: Vec<f32> = q.iter().map(|&q| q as f32 / 256.0).collect();
    let (threads, mut w) = (ThreadPool::new(1), vec![0.0; n_rows * k]);
    dequant::dequantize(F::TY, &bytes, &mut w);
    let bytes = Bytes::from(bytes);
    for table in rows() {
        let matrix = Matrix::new(table, &threads, F::TY, n_rows, k, bytes.clone());
        let mut out = vec![0.0; n * n_rows];
        matmul(&threads, &matrix, &acts(table, &threads, &x, n, k, ActFormat::Q16), &mut out);
        for (i, q) in q.chunks_exact(k).enumerate() {
            for (r, w) in w.chunks_exact(k).enumerate() {
                let exact: i64 = q.iter().zip(w).map(|(&q, &w)| i64::from(q) * w as i64).sum();
                assert_eq!(256.0 * out[i * n_rows + r], exact as f32, "{} {} ({i}, {r})", table.name(), F::TY);
            }
        }
    }
}

#[test]
fn integer_parts_are_exact() {
    for seed in 0..20 {
        each_format!(check_integers(seed));
    }
}

/// Returns how far quants of a block may be apart: what the third largest group needs with 8 bits, or the largest value with
/// 16, and a quarter more for the scale's two bits.
fn step(block: &[f32]) -> f64 {
    let largest = |x: &[f32]| f64::from(x.iter().fold(0.0f32, |max, x| max.max(x.abs())));
    let mut groups: Vec<f64> = block.chunks_exact(GROUP).map(largest).collect();
    groups.sort_by(|a, b| b.total_cmp(a));
    1.2501 * (groups[N_LARGE] / 127.0).max(groups[0] / 32_512.0)
}

/// Against f64 arithmetic on the activations as given: each is off by at most half a step of its block's scale,
/// a step and a half where the low byte would be -128.
fn check_quantised<F: Format>(seed: u64, n_rows: usize, k: usize) {
    let (k, threads, mut rng) = (whole::<F>(k), ThreadPool::new(1), Rng(seed));
    let bytes = blocks(&mut rng, F::TY, n_rows, k, Fill::Random);
    let (x, mut w) = (rng.floats(k), vec![0.0; n_rows * k]);
    dequant::dequantize(F::TY, &bytes, &mut w);
    let table = pick(Isa::best());
    let matrix = Matrix::new(table, &threads, F::TY, n_rows, k, bytes);
    let mut out = vec![0.0; n_rows];
    matmul(&threads, &matrix, &acts(table, &threads, &x, 1, k, ActFormat::Q16), &mut out);
    for (row, w) in w.chunks_exact(k).enumerate() {
        let (mut sum, mut bound) = (0.0, 0.0);
        for (w, x) in w.chunks_exact(BLOCK).zip(x.chunks_exact(BLOCK)) {
            let step = step(x);
            for (w, x) in w.iter().zip(x) {
                sum += f64::from(*w) * f64::from(*x);
                // What f32 arithmetic adds (`check_tables`) is at most 196 ε = 2.4e-5, for Q6_K and 2,048 values.
                let off = if f64::from(x.abs()) > 127.0 * step / 1.2501 { 1.51 } else { 0.51 };
                bound += (off * step + 3e-5 * f64::from(x.abs())) * (f64::from(w.abs()) + 1e-3);
            }
        }
        let error = (f64::from(out[row]) - sum).abs();
        assert!(error <= bound, "{} row {row}: {error:e} > {bound:e}", F::TY);
    }
}

#[test]
fn products_are_within_the_activations_rounding() {
    for k in [32, 96, 256, 576, 2048] {
        each_format!(check_quantised(5, 33, k));
    }
}

/// Bits of a result do not depend on the rows beside it, on how they are picked or laid out, on the threads or on the chunk.
fn check_invariance(table: &'static MatmulKernels, ty: GgmlType, seed: u64, n_rows: usize, k: usize, n: usize) {
    let (k, mut rng) = (k.next_multiple_of(ty.block_len()), Rng(seed));
    let bytes = blocks(&mut rng, ty, n_rows, k, Fill::Random);
    let x = rng.floats(n * k);
    let threads = ThreadPool::new(1);
    let w = Matrix::new(table, &threads, ty, n_rows, k, bytes.clone());
    let mut expected = vec![0.0; n * n_rows];
    for (x, out) in x.chunks_exact(k).zip(expected.chunks_exact_mut(n_rows)) {
        matmul(&threads, &w, &acts(table, &threads, x, 1, k, w.act_format()), out);
    }
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    for n_threads in [1, 2, 3] {
        let threads = ThreadPool::new(n_threads);
        let w = Matrix::new(table, &threads, ty, n_rows, k, bytes.clone());
        let (all, mut out) = (acts(table, &threads, &x, n, k, w.act_format()), vec![f32::NAN; n * n_rows]);
        let case = format!("{} {ty} {n_rows}x{k} n={n} threads={n_threads}", table.name());
        matmul(&threads, &w, &all, &mut out);
        assert_eq!(bits(&out), bits(&expected), "{case}");
        let rows: Vec<u32> = (0..n + 3).map(|_| (rng.next() % n as u64) as u32).collect();
        let mut out = vec![f32::NAN; rows.len() * n_rows];
        matmul_rows(&threads, &w, &all, &rows, &mut out);
        for (&row, out) in rows.iter().zip(out.chunks_exact(n_rows)) {
            assert_eq!(bits(out), bits(&expected[row as usize * n_rows..][..n_rows]), "{case}, gathered");
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_batch() {
    for table in rows().filter(|table| table.isa() != Isa::Scalar) {
        for (at, ty) in INT_TYPES.into_iter().chain([GgmlType::F16, GgmlType::IQ4_XS]).enumerate() {
            for n in 1..=40 {
                check_invariance(table, ty, n as u64, [17, 33, 64][(n + at) % 3], [96, 256][n % 2], n);
            }
        }
    }
}

/// Rows that promise each other's bits: AMX those of AVX-512, AVX-VNNI those of AVX2.
#[test]
fn related_rows_have_the_same_bits() {
    let bits = |table: &'static MatmulKernels, ty, n_rows, k, n| {
        let (threads, mut rng) = (ThreadPool::new(1), Rng(18));
        let w = Matrix::new(table, &threads, ty, n_rows, k, blocks(&mut rng, ty, n_rows, k, Fill::Random));
        let x = rng.floats((n + 2) * k);
        let x = acts(table, &threads, &x, n + 2, k, ActFormat::Q16);
        // Rows one after the other, and not.
        let mut out = vec![0.0; 2 * n * n_rows];
        let rows: Vec<u32> = (1..=n as u32).chain((0..n as u32).map(|i| (7 * i) % (n as u32 + 2))).collect();
        for (rows, out) in rows.chunks_exact(n).zip(out.chunks_exact_mut(n * n_rows)) {
            matmul_rows(&threads, &w, &x, rows, out);
        }
        out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let find = |name: &str| rows().find(|table| table.name() == name);
    for pair in [["amx (software tiles)", "avx512"], ["amx", "avx512"], ["avxvnni", "avx2"]] {
        let [Some(one), Some(other)] = pair.map(find) else { continue };
        for ty in INT_TYPES {
            for (n_rows, k, n) in [(32, 256, 3), (48, 512, 4), (33, 768, 19), (64, 256, 21), (17, 2048, 37)] {
                let expected = bits(other, ty, n_rows, k, n);
                assert_eq!(bits(one, ty, n_rows, k, n), expected, "{} {ty} {n_rows}x{k} n={n}", one.name);
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_cuts_through_long_rows_and_many_rows() {
    // 2,048 and 2,080 values are cut in chunks of 16 blocks; 520 rows are more than a chunk of rows.
    for table in rows() {
        for ty in [GgmlType::Q8_0, GgmlType::Q5_0, GgmlType::Q6_K, GgmlType::Q4_K] {
            check_invariance(table, ty, 7, 49, 2048, 14);
        }
        check_invariance(table, GgmlType::Q4_1, 8, 47, 2080, 20);
        check_invariance(table, GgmlType::Q8_0, 9, 33, 832, 520);
        check_invariance(table, GgmlType::F32, 9, 33, 1100, 7);
    }
}

#[test]
fn odd_shapes_of_real_models() {
    for table in rows() {
        for n_rows in [1, 15, 17, 576] {
            check_invariance(table, GgmlType::Q8_0, 10, n_rows, 576, 3);
            check_invariance(table, GgmlType::Q4_K, 11, n_rows, 256, 2);
        }
    }
}

/// The float path against f64. A pair adds `KC / lanes` products per lane, then a tree, then chunks: at most `depth`
/// roundings for any term, so `|error| ≤ depth * ε * Σ|w * x|`.
fn check_floats(ty: GgmlType, seed: u64, n_rows: usize, k: usize, n: usize) {
    let (k, threads, mut rng) = (k.next_multiple_of(ty.block_len()), ThreadPool::new(1), Rng(seed));
    let bytes = blocks(&mut rng, ty, n_rows, k, Fill::Random);
    let (x, mut w) = (rng.floats(n * k), vec![0.0; n_rows * k]);
    dequant::dequantize(ty, &bytes, &mut w);
    let depth = (float::KC / 4 + 8 + k.div_ceil(float::KC)) as f64;
    for table in rows() {
        let matrix = Matrix::new(table, &threads, ty, n_rows, k, bytes.clone());
        assert_eq!((matrix.act_format(), matrix.weight_bytes()), (ActFormat::F32, bytes.len()));
        let mut out = vec![f32::NAN; n * n_rows];
        matmul(&threads, &matrix, &acts(table, &threads, &x, n, k, ActFormat::F32), &mut out);
        for (i, x) in x.chunks_exact(k).enumerate() {
            for (r, w) in w.chunks_exact(k).enumerate() {
                let terms = || w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                let magnitude: f64 = terms().map(f64::abs).sum();
                let error = (f64::from(out[i * n_rows + r]) - terms().sum::<f64>()).abs();
                let bound = depth * (f64::from(f32::EPSILON) * magnitude + f64::from(f32::MIN_POSITIVE));
                assert!(error <= bound, "{} {ty} {n_rows}x{k} n={n}: {error:e} > {bound:e}", table.name());
            }
        }
    }
}

#[test]
fn every_other_type_takes_the_float_path() {
    for &ty in GgmlType::ALL {
        if Matrix::supports(ty) && !INT_TYPES.contains(&ty) {
            check_floats(ty, 12, 19, 768, 5);
            check_floats(ty, 13, 3, 100, 1);
        }
    }
}

#[test]
fn integers_and_activation_formats_are_refused() {
    let refused: Vec<_> = GgmlType::ALL.iter().filter(|ty| !Matrix::supports(**ty)).map(|ty| ty.name()).collect();
    assert_eq!(refused, ["Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"]);
}

#[test]
fn a_nan_in_the_input_reaches_its_row_alone() {
    let (threads, table) = (ThreadPool::new(1), pick(Isa::best()));
    let w = Matrix::new(
        table,
        &threads,
        GgmlType::Q4_0,
        16,
        64,
        blocks(&mut Rng(15), GgmlType::Q4_0, 16, 64, Fill::Random),
    );
    let mut x = Rng(16).floats(2 * 64);
    x[3] = f32::NAN;
    let mut out = [0.0; 32];
    matmul(&threads, &w, &acts(table, &threads, &x, 2, 64, ActFormat::Q16), &mut out);
    assert!(out[..16].iter().all(|y| y.is_nan()) && out[16..].iter().all(|y| y.is_finite()));
}

#[test]
fn many_products_share_one_region() {
    let (table, k, n, mut rng) = (pick(Isa::best()), 512, 5, Rng(17));
    let x = rng.floats(n * k);
    for n_threads in [1, 3] {
        let threads = ThreadPool::new(n_threads);
        let mut input = acts(table, &threads, &x, n, k, ActFormat::Q16);
        input.add(table, &threads, &x, ActFormat::F32);
        let mut matrix =
            |ty, n_rows| Matrix::new(table, &threads, ty, n_rows, k, blocks(&mut rng, ty, n_rows, k, Fill::Random));
        let ws = [matrix(GgmlType::Q4_K, 70), matrix(GgmlType::F16, 33), matrix(GgmlType::Q6_K, 16)];
        let mut together = ws.each_ref().map(|w| vec![f32::NAN; n * w.n_rows()]);
        let [a, b, c] = &mut together;
        matmul_many(&threads, &input, &mut [(&ws[0], a), (&ws[1], b), (&ws[2], c)]);
        for (w, out) in ws.iter().zip(&together) {
            let mut alone = vec![f32::NAN; out.len()];
            matmul(&threads, w, &input, &mut alone);
            assert_eq!(&alone, out);
        }
    }
}

#[test]
#[should_panic(expected = "the activations do not hold Q16, which Q8_0 multiplies with")]
fn activations_in_another_format_are_refused() {
    let (threads, table) = (ThreadPool::new(1), pick(Isa::Scalar));
    let w = Matrix::new(table, &threads, GgmlType::Q8_0, 1, 32, vec![0; 34].into());
    matmul(&threads, &w, &acts(table, &threads, &[0.0; 32], 1, 32, ActFormat::F32), &mut [0.0]);
}

#[test]
#[should_panic(expected = "matrix: 2 x 32 of Q8_0 in 34 bytes")]
fn a_matrix_of_another_size_is_refused() {
    Matrix::new(pick(Isa::Scalar), &ThreadPool::new(1), GgmlType::Q8_0, 2, 32, vec![0; 34].into());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.min(24)))]

    #[test]
    fn tables_agree_with_f64(
        seed in any::<u64>(),
        n_rows in prop_oneof![1usize..70, Just(576)],
        k in prop_oneof![Just(32usize), Just(96), Just(256), Just(576), Just(2048)],
        n in 1usize..14,
        fill in proptest::sample::select(&FILLS[..]),
    ) {
        // The f64 reference is slow: large in one direction at a time.
        let n = if n_rows * k > 60_000 { 1 + n % 3 } else { n };
        each_format!(check_tables(seed, n_rows, k, n, fill));
    }

    #[test]
    fn floats_agree_with_f64(
        seed in any::<u64>(),
        n_rows in 1usize..40,
        k in 1usize..1200,
        n in 1usize..9,
        ty in proptest::sample::select(&[GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::IQ4_NL, GgmlType::Q3_K][..]),
    ) {
        check_floats(ty, seed, n_rows, k, n);
    }

    #[test]
    fn bits_are_invariant(
        seed in any::<u64>(),
        ty in proptest::sample::select(GgmlType::ALL),
        n_rows in 1usize..60,
        k in 1usize..600,
        n in 1usize..30,
    ) {
        if Matrix::supports(ty) {
            check_invariance(pick(Isa::best()), ty, seed, n_rows, k, n);
        }
    }
}
