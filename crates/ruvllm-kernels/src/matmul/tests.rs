//! Every row of the table against f64 arithmetic, exact integers, and itself in other shapes.

use super::acts::{GROUP, N_LARGE};
use super::format::{BLOCK, Format, PANEL_ROWS, panel_bytes};
use super::int::scalar;
use super::*;
use crate::block::GgmlType;
use crate::dequant;
use bytes::Bytes;
use floats::check_floats;
use half::f16;
use integers::{check_tables, step};
use invariance::check_invariance;
use proptest::prelude::*;
use ruvllm_cpu::arena::{AlignedVec, LargePages};
use std::convert::Infallible;
use std::ops::Range;

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
        $check::<Q2K>($($arg),*); $check::<Q3K>($($arg),*); $check::<Iq4Nl>($($arg),*); $check::<Iq4Xs>($($arg),*);
        $check::<Mxfp4>($($arg),*);
    };
}

mod acts;
mod floats;
mod head_shortlist;
mod integers;
mod invariance;
mod numerics;
mod panels;

/// Rounds `k` up to whole blocks.
fn whole<F: Format>(k: usize) -> usize {
    k.next_multiple_of(F::TY.block_len())
}

fn packed<F: Format>(threads: &ThreadPool, n_rows: usize, k: usize, bytes: &[u8]) -> Bytes {
    packed_to::<F>(&mut packing_of(threads, &mut LargePages::default(), None), n_rows, k, bytes)
}

/// Packs in parts, and checks that each comes once and in order.
fn packed_to<F: Format>(packing: &mut Packing<'_>, n_rows: usize, k: usize, bytes: &[u8]) -> Bytes {
    let (mut n_read, n_panel) = (0, PANEL_ROWS * bytes.len() / n_rows);
    let n_max = packing.part_bytes.max(n_panel);
    let mut read = |part: Range<usize>| {
        assert!(part.start == n_read && part.len() <= n_max, "{part:?} behind {n_read}");
        n_read = part.end;
        Ok::<_, Infallible>(Bytes::copy_from_slice(&bytes[part]))
    };
    let Ok(matrix) = Matrix::pack(packing, F::TY, n_rows, k, &mut read);
    assert_eq!(n_read, bytes.len(), "all bytes are read");
    matrix.bytes().clone()
}

/// Returns inputs of packing in parts of a few panels.
fn packing_of<'a>(threads: &'a ThreadPool, pages: &'a mut LargePages, sink: Option<&'a dyn PanelSink>) -> Packing<'a> {
    Packing { table: pick(Isa::Scalar), threads, pages, sink, part_bytes: 30_000 }
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
        ty in proptest::sample::select(&[GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::IQ3_S, GgmlType::TQ1_0][..]),
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
