//! Quantised blocks: the same bytes on every instruction set, values within half a step, and attention over them against
//! attention over what they stand for.

use super::*;

const QUANTISED: [KvFormat; 3] = [KvFormat::Q8, KvFormat::Q4, KvFormat::Q2];

/// One layer of a unit, as [`AttentionKernels::quantize`] makes it.
fn quantize(table: &AttentionKernels, shape: KvShape, from: &[KvPart<'_>], to: KvFormat) -> (Vec<u8>, Vec<u8>) {
    let (mut k, mut v) = (vec![0xaa; to.k_bytes(shape)], vec![0xaa; to.v_bytes(shape)]);
    table.quantize(shape, from, to, &mut k, &mut v);
    (k, v)
}

fn dequantize(table: &AttentionKernels, shape: KvShape, from: KvPart<'_>) -> (Vec<f32>, Vec<f32>) {
    let (mut k, mut v) = (vec![0.0; shape.k_block_len()], vec![0.0; shape.v_block_len()]);
    table.dequantize(shape, from, &mut k, &mut v);
    (k, v)
}

fn bits(floats: &(Vec<f32>, Vec<f32>)) -> Vec<u32> {
    floats.0.iter().chain(&floats.1).map(|x| x.to_bits()).collect()
}

/// The layer's part of an f32 block of these keys and values, which are as the formats lay them out.
struct Block {
    k: Vec<u8>,
    v: Vec<u8>,
}

impl Block {
    fn new(shape: KvShape, k: &[f32], v: &[f32]) -> Block {
        let pad = |floats: &[f32], n: usize| {
            let mut bytes: Vec<u8> = bytemuck::cast_slice(floats).to_vec();
            bytes.resize(n, 0xff);
            bytes
        };
        Block { k: pad(k, KvFormat::F32.k_bytes(shape)), v: pad(v, KvFormat::F32.v_bytes(shape)) }
    }

    fn part(&self) -> KvPart<'_> {
        KvPart { format: KvFormat::F32, sub: 0, k: &self.k, v: &self.v }
    }
}

/// Values of a kind; what lies past `v_dim` is NaN.
fn block(shape: KvShape, random: &mut Random, kind: usize) -> Block {
    let size = [1.0, 0.0, 6e4, 1e-7, 1e-41, 3.0][kind % 6];
    let (mut k, mut v) = (random.vec(shape.k_block_len()), random.vec(shape.v_block_len()));
    for x in k.iter_mut().chain(&mut v) {
        *x = match kind {
            5 => 3.0,
            _ => *x * size,
        };
    }
    for (i, x) in v.iter_mut().enumerate() {
        if i % shape.v_stride() >= shape.v_dim {
            *x = f32::NAN;
        }
    }
    Block::new(shape, &k, &v)
}

/// Half a step of `n` between the extremes of `values`, and what rounding the scale and minimum to halves and computing
/// in f32 add: the minimum is at most `2^-10` of itself lower, or `2^-24`, and so is the scale.
fn half_step(values: &[f32], n: f32, is_symmetric: bool) -> f32 {
    let size = values.iter().fold(0.0f32, |size, x| size.max(x.abs()));
    let (min, max) = values.iter().fold((f32::MAX, f32::MIN), |(min, max), &x| (min.min(x), max.max(x)));
    let range = if is_symmetric { size } else { max - min + size / 1024.0 + 6e-8 };
    0.5 * (range / n) * (1.0 + 1.0 / 1024.0) + 6e-8 + 4.0 * f32::EPSILON * size
}

fn levels(format: KvFormat) -> f32 {
    match format {
        KvFormat::Q8 => 127.0,
        KvFormat::Q4 => 15.0,
        _ => 3.0,
    }
}

/// Quantises blocks of a kind, reads them back and compares all with the scalar row, and the values with what they were.
fn check_round_trip(shape: KvShape, to: KvFormat, seed: u64, kind: usize) {
    let (mut random, scalar) = (Random(seed), pick(Isa::Scalar));
    let blocks: Vec<Block> = (0..to.blocks_per_unit()).map(|_| block(shape, &mut random, kind)).collect();
    let from: Vec<KvPart<'_>> = blocks.iter().map(Block::part).collect();
    let truth = quantize(scalar, shape, &from, to);
    let part = |sub| KvPart { format: to, sub, k: &truth.0, v: &truth.1 };
    let read: Vec<_> = (0..from.len()).map(|sub| dequantize(scalar, shape, part(sub))).collect();
    for table in available() {
        let name = table.isa().name();
        assert!(quantize(table, shape, &from, to) == truth, "{name}: bytes of {to}, {shape:?}, kind {kind}");
        for (sub, read) in read.iter().enumerate() {
            assert_eq!(bits(&dequantize(table, shape, part(sub))), bits(read), "{name}: floats of {to}");
        }
    }
    let (n, is_symmetric) = (levels(to), to == KvFormat::Q8);
    let exact: Vec<_> = from.iter().map(|&part| dequantize(scalar, shape, part)).collect();
    let near = |is: &[f32], was: &[f32]| {
        let bound = half_step(was, n, is_symmetric);
        for (is, was) in is.iter().zip(was) {
            assert!((is - was).abs() <= bound, "{to}, {shape:?}, kind {kind}: {is} for {was}, more than {bound} off");
        }
    };
    for channel in 0..shape.n_kv_heads * shape.k_dim {
        let all = |blocks: &[(Vec<f32>, Vec<f32>)]| -> Vec<f32> {
            blocks.iter().flat_map(|block| &block.0[16 * channel..][..16]).copied().collect()
        };
        near(&all(&read), &all(&exact));
    }
    for (read, exact) in read.iter().zip(&exact) {
        let rows = read.1.chunks(shape.v_stride()).zip(exact.1.chunks(shape.v_stride()));
        for (is, was) in rows {
            let groups = is[..shape.v_dim].chunks(64).zip(was[..shape.v_dim].chunks(64));
            groups.for_each(|(is, was)| near(is, was));
        }
    }
}

fn shapes() -> impl Strategy<Value = KvShape> {
    let dims =
        prop_oneof![Just((64, 64)), Just((128, 128)), Just((256, 256)), Just((7, 5)), Just((24, 80)), Just((96, 65))];
    (1usize..4, dims).prop_map(|(n_kv_heads, (k_dim, v_dim))| KvShape { n_kv_heads, k_dim, v_dim })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(4), ..Default::default() })]

    #[test]
    fn blocks_come_back_within_half_a_step_and_equal_on_all(shape in shapes(), seed in any::<u64>(), kind in 0usize..6) {
        QUANTISED.iter().for_each(|&to| check_round_trip(shape, to, seed, kind));
    }

    /// Units of any bytes: what an instruction set reads is what the scalar row reads.
    #[test]
    fn any_bytes_are_read_alike(shape in shapes(), seed in any::<u64>()) {
        let mut random = Random(seed);
        for format in QUANTISED {
            let mut bytes = |n: usize| (0..n).map(|_| (random.next() >> 8) as u8).collect::<Vec<_>>();
            let (k, v) = (bytes(format.k_bytes(shape)), bytes(format.v_bytes(shape)));
            for sub in 0..format.blocks_per_unit() {
                let part = KvPart { format, sub, k: &k, v: &v };
                let truth = bits(&dequantize(pick(Isa::Scalar), shape, part));
                for table in available() {
                    let read = bits(&dequantize(table, shape, part));
                    let is_nan = |x: u32| f32::from_bits(x).is_nan();
                    let same = read.iter().zip(&truth).all(|(&a, &b)| a == b || is_nan(a) && is_nan(b));
                    prop_assert!(same, "{}: floats of {format}", table.isa());
                }
            }
        }
    }

    /// Blocks of all formats in one table: near to attention over what they stand for, and the same bits in any steps and
    /// with any number of threads.
    #[test]
    fn mixed_tables(case in case(), in_order in any::<bool>()) {
        check_mixed(&case, in_order);
    }
}

/// Keys and values that are not numbers or past the range of halves.
#[test]
fn what_halves_do_not_hold_becomes_their_largest() {
    let shape = KvShape { n_kv_heads: 1, k_dim: 2, v_dim: 2 };
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, 65504.0, 1.0, 0.0];
    let k: Vec<f32> = odd.iter().cycle().take(32).copied().collect();
    let v: Vec<f32> = odd.iter().cycle().take(256).copied().collect();
    for to in QUANTISED {
        let blocks: Vec<Block> = (0..to.blocks_per_unit()).map(|_| Block::new(shape, &k, &v)).collect();
        let from: Vec<_> = blocks.iter().map(Block::part).collect();
        let truth = quantize(pick(Isa::Scalar), shape, &from, to);
        for table in available() {
            let (k, v) = quantize(table, shape, &from, to);
            assert!((&k, &v) == (&truth.0, &truth.1), "{}: bytes of {to}", table.isa());
            let (k, v) = dequantize(table, shape, KvPart { format: to, sub: 0, k: &k, v: &v });
            assert!(k.iter().chain(&v).all(|x| x.is_finite()));
            // A scale that is rounded up puts the largest within a few units of its place.
            assert!(k[..4].iter().zip([65504.0, 65504.0, -65504.0, 65504.0]).all(|(is, was)| (is - was).abs() < 200.0));
        }
    }
}

/// Bits of an element, keys and values together.
#[test]
fn sizes_of_the_formats() {
    for dim in [64, 128, 256] {
        let shape = KvShape { n_kv_heads: 2, k_dim: dim, v_dim: dim };
        let bits = KvFormat::ALL.map(|format| {
            let elements = 2 * 2 * dim * BLOCK_TOKENS * format.blocks_per_unit();
            8.0 * (format.k_bytes(shape) + format.v_bytes(shape)) as f64 / elements as f64
        });
        assert_eq!(bits, [32.0, 16.0, 8.625, 4.5, 2.5], "heads of {dim}");
    }
}

impl Cache {
    /// Moves blocks of an f16 cache to other formats, in a random pattern: all but the first and the last two. Units need
    /// not begin where a span does, and without `in_order` their blocks are swapped.
    fn quantize(&mut self, table: &AttentionKernels, in_order: bool) {
        let (shape, mut random) = (self.case.shape, Random(self.case.seed ^ 5));
        let (mut at, end) = (1, self.case.n_kv.div_ceil(BLOCK_TOKENS).saturating_sub(2));
        let mut made: [Vec<u8>; KvFormat::COUNT] = Default::default();
        let mut n_units = [0; KvFormat::COUNT];
        while at < end {
            let to =
                [KvFormat::F16, KvFormat::Q8, KvFormat::Q4, KvFormat::Q4, KvFormat::Q2][random.next() as usize % 5];
            let n = to.blocks_per_unit();
            if to == KvFormat::F16 || at + n > end {
                at += 1;
                continue;
            }
            let mut subs: Vec<usize> = (0..n).collect();
            if !in_order {
                subs.rotate_left(random.next() as usize % n);
            }
            // Block `at + i` becomes part `subs[i]` of the unit.
            let mut from = vec![self.blocks[at]; n];
            subs.iter().enumerate().for_each(|(i, &sub)| from[sub] = self.blocks[at + i]);
            let layer = self.layer();
            let parts: Vec<_> = from.iter().map(|&block| layer.part(shape, block)).collect();
            let (k, v) = quantize(table, shape, &parts, to);
            made[to as usize].extend_from_slice(&[k, v].concat());
            for (i, sub) in subs.into_iter().enumerate() {
                self.blocks[at + i] = KvBlock::new(to, n_units[to as usize] * n + sub);
            }
            n_units[to as usize] += 1;
            at += n;
        }
        for format in QUANTISED {
            self.bytes[format as usize] = AlignedVec::from_slice(&made[format as usize]);
        }
    }

    /// The same sequence in f32 blocks of what the blocks stand for.
    fn dequantized(&self, table: &AttentionKernels) -> Cache {
        let (shape, layer) = (self.case.shape, self.layer());
        let mut exact = Cache::new(&Case { half: false, ..self.case.clone() });
        let bytes = &mut exact.bytes[KvFormat::F32 as usize];
        let stride = KvFormat::F32.k_bytes(shape) + KvFormat::F32.v_bytes(shape);
        for (to, &from) in exact.blocks.iter().zip(&self.blocks).take(self.case.n_kv.div_ceil(BLOCK_TOKENS)) {
            let (k, v) = dequantize(table, shape, layer.part(shape, from));
            let block = &mut bytes[to.index() * stride..][..stride];
            let whole = Block::new(shape, &k, &v);
            block.copy_from_slice(&[whole.k, whole.v].concat());
        }
        exact
    }

    /// How far two roundings of the same attention may be apart: scores of `k_dim` products, of minima and codes
    /// (together at most thrice the key), with weights off by that and by some ulp a position.
    fn tolerance(&self) -> f32 {
        let (case, q_max) = (&self.case, 4.0);
        let terms = case.shape.k_dim as f32 * q_max / (case.shape.k_dim as f32).sqrt();
        let delta = 2.0 * (2 * case.shape.k_dim + 16) as f32 * f32::EPSILON * 3.0 * terms;
        2.0 * delta.max(1e-6) + 8.0 * (2 * case.n_kv + 32) as f32 * f32::EPSILON
    }
}

fn check_mixed(case: &Case, in_order: bool) {
    let mut cache = Cache::new(&Case { half: true, ..case.clone() });
    cache.quantize(pick(Isa::best()), in_order);
    let exact = cache.dequantized(pick(Isa::Scalar));
    let (n, first) = (case.n_kv, cache.first());
    let (one, three) = (ThreadPool::new(1), ThreadPool::new(3));
    let mut random = Random(case.seed ^ 99);
    let mut ends: Vec<usize> = (0..random.next() % 5).map(|_| first + random.next() as usize % (n - first)).collect();
    ends.push(n);
    ends.sort_unstable();
    let tail: Vec<usize> = (n.saturating_sub(10).max(first + 1)..=n).collect();
    for table in available() {
        let name = table.isa().name();
        let out = cache.attend(table, &one, &[n]);
        let tolerance = cache.tolerance();
        for (i, (is, was)) in out.iter().zip(exact.attend(table, &one, &[n])).enumerate() {
            let error = (is - was).abs();
            assert!(error <= tolerance, "{name}, {i}: {is} for {was}, {error:e} > {tolerance:e}");
        }
        assert_same(&out, &cache.attend(table, &three, &[n]), "threads");
        assert_same(&out, &cache.attend(table, &one, &ends), "steps");
        assert_same(&out, &cache.attend(table, &three, &tail), "decode");
    }
}

#[test]
fn mixed_model_shapes() {
    for (n_heads, n_kv_heads, dim) in [(9, 3, 64), (14, 2, 64), (4, 1, 256)] {
        check_mixed(&Case { seed: 3, ..Case::plain(n_heads, n_kv_heads, dim, 530) }, true);
    }
}

#[test]
#[should_panic(expected = "quantize: blocks for a unit of q4")]
fn a_unit_is_made_of_all_its_blocks() {
    let shape = KvShape { n_kv_heads: 1, k_dim: 2, v_dim: 2 };
    let block = Block::new(shape, &[0.0; 32], &[0.0; 256]);
    quantize(pick(Isa::Scalar), shape, &[block.part()], KvFormat::Q4);
}
