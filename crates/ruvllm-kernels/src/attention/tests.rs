//! Attention against a plain f64 reference, and equality of bits over chunks, threads and batches.

use super::*;
use half::f16;
use proptest::prelude::*;
use ruvllm_cpu::ThreadPool;
use ruvllm_cpu::arena::AlignedVec;

mod quant;

/// All rows that this machine can run, those for other CPUs among them.
fn available() -> impl Iterator<Item = &'static AttentionKernels> {
    ALL.iter().filter(|table| table.isa().is_available())
}

/// What a test attends with; `q`, `k`, `v` hold all positions of one sequence.
#[derive(Clone, Debug)]
struct Case {
    n_heads: usize,
    shape: KvShape,
    n_kv: usize,
    softcap: Option<f32>,
    window: Option<usize>,
    causal: bool,
    sinks: bool,
    alibi: bool,
    half: bool,
    seed: u64,
}

impl Case {
    fn plain(n_heads: usize, n_kv_heads: usize, dim: usize, n_kv: usize) -> Case {
        let shape = KvShape { n_kv_heads, k_dim: dim, v_dim: dim };
        let (softcap, window, seed) = (None, None, 1);
        Case { n_heads, shape, n_kv, softcap, window, causal: true, sinks: false, alibi: false, half: true, seed }
    }

    fn format(&self) -> KvFormat {
        if self.half { KvFormat::F16 } else { KvFormat::F32 }
    }
}

/// A small generator; even values in `-1..1`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next() as f32 / (1u64 << 30) as f32 - 1.0).collect()
    }
}

/// A sequence in the cache: blocks in a shuffled order, everything unused NaN.
struct Cache {
    case: Case,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    sinks: Vec<f32>,
    slopes: Vec<f32>,
    blocks: Vec<KvBlock>,
    /// Units by format.
    bytes: [AlignedVec<u8>; KvFormat::COUNT],
}

/// Units that hold one layer, keys before values.
fn units(format: KvFormat, shape: KvShape, bytes: &[u8]) -> KvUnits<'_> {
    let k_bytes = format.k_bytes(shape);
    KvUnits { bytes, stride: k_bytes + format.v_bytes(shape), k_at: 0, v_at: k_bytes }
}

fn units_mut(format: KvFormat, shape: KvShape, bytes: &mut [u8]) -> KvUnitsMut<'_> {
    let k_bytes = format.k_bytes(shape);
    KvUnitsMut { format, bytes, stride: k_bytes + format.v_bytes(shape), k_at: 0, v_at: k_bytes }
}

impl Cache {
    fn new(case: &Case) -> Cache {
        let (shape, n, mut random) = (case.shape, case.n_kv, Random(case.seed));
        // Queries of size 4 make scores of some units, so that the softmax has something to choose.
        let q = random.vec(n * case.n_heads * shape.k_dim).iter().map(|x| 4.0 * x).collect();
        let mut k = random.vec(n * shape.n_kv_heads * shape.k_dim);
        let mut v = random.vec(n * shape.n_kv_heads * shape.v_dim);
        if case.half {
            k.iter_mut().chain(&mut v).for_each(|x| *x = f16::from_f32(*x).to_f32());
        }
        let n_blocks = n.div_ceil(BLOCK_TOKENS) + 2;
        let format = case.format();
        let mut blocks: Vec<KvBlock> = (0..n_blocks).map(|i| KvBlock::new(format, i)).collect();
        for i in (1..n_blocks).rev() {
            blocks.swap(i, random.next() as usize % (i + 1));
        }
        // Bytes of ones are NaN in both formats.
        let mut bytes = KvFormat::ALL.map(|_| AlignedVec::new(0));
        bytes[format as usize] = AlignedVec::new(n_blocks * (format.k_bytes(shape) + format.v_bytes(shape)));
        bytes[format as usize].fill(0xff);
        let mut cache = Cache {
            case: case.clone(),
            sinks: random.vec(case.n_heads).iter().map(|x| 3.0 * x).collect(),
            slopes: random.vec(case.n_heads).iter().map(|x| 0.1 * x.abs()).collect(),
            q,
            blocks,
            bytes,
            k: vec![],
            v: vec![],
        };
        let blocks = cache.blocks.clone();
        let segment = Segment { first_row: 0, n_rows: n, pos: 0, n_kv: n, blocks: &blocks };
        store(
            &ThreadPool::new(2),
            shape,
            units_mut(format, shape, &mut cache.bytes[format as usize]),
            &[segment],
            &k,
            &v,
        );
        (cache.k, cache.v) = (k, v);
        cache
    }

    fn layer(&self) -> KvLayer<'_> {
        KvFormat::ALL.into_iter().fold(KvLayer::default(), |layer, format| {
            layer.with(format, units(format, self.case.shape, &self.bytes[format as usize]))
        })
    }

    fn options(&self) -> Options<'_> {
        let case = &self.case;
        Options {
            softcap: case.softcap,
            window: case.window,
            causal: case.causal,
            sinks: case.sinks.then_some(self.sinks.as_slice()),
            alibi: case.alibi.then_some(self.slopes.as_slice()),
            ..Options::causal(case.n_heads, case.shape)
        }
    }

    fn limits(&self) -> Limits {
        let KvShape { k_dim, v_dim, .. } = self.case.shape;
        Limits { n_heads: self.case.n_heads, k_dim, v_dim, n_ctx: self.case.n_kv }
    }

    /// The first position whose row is attended: of long sequences the tail will do.
    fn first(&self) -> usize {
        self.case.n_kv.saturating_sub(120)
    }

    /// All rows from `first` in steps that end at `ends`, each step's rows in one segment.
    fn attend(&self, table: &AttentionKernels, threads: &ThreadPool, ends: &[usize]) -> Vec<f32> {
        let (q_len, out_len) = (self.case.n_heads * self.case.shape.k_dim, self.case.n_heads * self.case.shape.v_dim);
        let mut scratch = Scratch::new(threads.n_threads(), self.limits());
        let mut out = vec![f32::NAN; (self.case.n_kv - self.first()) * out_len];
        let mut pos = self.first();
        for &end in ends {
            // Without a causal mask a row needs the whole sequence whatever the step.
            let n_kv = if self.case.causal { end } else { self.case.n_kv };
            let segments = [Segment { first_row: 0, n_rows: end - pos, pos, n_kv, blocks: &self.blocks }];
            let (options, q) = (self.options(), &self.q[pos * q_len..end * q_len]);
            let inputs = Inputs { options: &options, kv: self.layer(), segments: &segments, q };
            attend(
                table,
                threads,
                &mut scratch,
                &inputs,
                &mut out[(pos - self.first()) * out_len..][..(end - pos) * out_len],
            );
            pos = end;
        }
        out
    }

    /// One row and head in f64: the values and a bound of what f32 may be off.
    ///
    /// A score of `k_dim` terms, prescaled, is off by at most `(k_dim + 2)·ε·Σ|q k|·scale`; the cap halves no error but
    /// adds some ulp of itself, ALiBi rounds twice. With `δ` the largest over the row, each weight is off by
    /// `exp(2δ) - 1` (numerator and maximum cancel in the quotient) and 8 ulp of the exponentials and rescalings; sums
    /// over `n` positions and the division add `2 n + 8` ulp. Weights that underflow lose less than 1e-38 each.
    fn reference(&self, pos: usize, head: usize) -> (Vec<f64>, Vec<f64>) {
        const EPSILON: f64 = f32::EPSILON as f64;
        let (case, KvShape { n_kv_heads, k_dim, v_dim }, options) = (&self.case, self.case.shape, self.options());
        let kv_head = head / (case.n_heads / n_kv_heads);
        let q = &self.q[(pos * case.n_heads + head) * k_dim..][..k_dim];
        let end = if case.causal { pos + 1 } else { case.n_kv };
        let start = case.window.map_or(0, |window| (pos + 1).saturating_sub(window));
        let (mut scores, mut delta) = (vec![], 0f64);
        for j in start..end {
            let k = &self.k[(j * n_kv_heads + kv_head) * k_dim..][..k_dim];
            let terms = || q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k) * f64::from(options.scale));
            let mut score: f64 = terms().sum();
            let mut error = (k_dim + 2) as f64 * EPSILON * terms().map(f64::abs).sum::<f64>();
            if let Some(cap) = case.softcap {
                score = f64::from(cap) * (score / f64::from(cap)).tanh();
                error += 8.0 * EPSILON * score.abs();
            }
            if case.alibi {
                let penalty = f64::from(self.slopes[head]) * pos.abs_diff(j) as f64;
                score -= penalty;
                error += 2.0 * EPSILON * (penalty + score.abs());
            }
            delta = delta.max(error + EPSILON * score.abs());
            scores.push(score);
        }
        let sink = case.sinks.then(|| f64::from(self.sinks[head]));
        let max = scores.iter().copied().fold(sink.unwrap_or(f64::NEG_INFINITY), f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
        let relative = (2.0 * delta).exp_m1() * 2.0 + (2 * scores.len() + 16) as f64 * EPSILON;
        let column = |c: usize, f: fn(f64) -> f64| {
            let value = |j: usize| f(f64::from(self.v[((start + j) * n_kv_heads + kv_head) * v_dim + c]));
            weights.iter().enumerate().map(|(j, weight)| weight * value(j)).sum::<f64>() / sum
        };
        let values = (0..v_dim).map(|c| column(c, |value| value)).collect();
        let bounds = (0..v_dim).map(|c| column(c, f64::abs) * relative + 1e-36).collect();
        (values, bounds)
    }

    /// Compares some rows (all of short sequences) of `out`, which starts at position `first`, with the reference.
    fn check(&self, out: &[f32], first: usize, name: &str) {
        let (n_heads, v_dim) = (self.case.n_heads, self.case.shape.v_dim);
        let last = self.case.n_kv - 1;
        for pos in (first..=last).filter(|&pos| last < 70 || pos == last || pos % 29 == 0) {
            for head in 0..n_heads {
                let (values, bounds) = self.reference(pos, head);
                let out = &out[((pos - first) * n_heads + head) * v_dim..][..v_dim];
                for (c, ((value, bound), &out)) in values.iter().zip(&bounds).zip(out).enumerate() {
                    let error = (f64::from(out) - value).abs();
                    assert!(error <= *bound, "{name}, {pos}/{head}/{c}: {out} for {value}, {error:e} > {bound:e}");
                }
            }
        }
    }
}

fn assert_same(a: &[f32], b: &[f32], what: &str) {
    let differ = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits());
    assert!(a.len() == b.len() && differ.is_none(), "{what}: differ at {differ:?}");
}

/// Every row of the table against the reference, and against itself in other steps and with other numbers of threads.
fn check(case: &Case) {
    let (cache, n) = (Cache::new(case), case.n_kv);
    let (one, three) = (ThreadPool::new(1), ThreadPool::new(3));
    let mut random = Random(case.seed ^ 77);
    let first = cache.first();
    let mut ends: Vec<usize> = (0..random.next() % 5).map(|_| first + random.next() as usize % (n - first)).collect();
    ends.push(n);
    ends.sort_unstable();
    // Decoding the tail only: every position by itself would take long.
    let tail: Vec<usize> = (n.saturating_sub(10).max(first + 1)..=n).collect();
    for table in available() {
        let name = table.isa().name();
        let out = cache.attend(table, &one, &[n]);
        cache.check(&out, cache.first(), name);
        assert_same(&out, &cache.attend(table, &three, &[n]), "threads");
        assert_same(&out, &cache.attend(table, &one, &ends), "steps");
        assert_same(&out, &cache.attend(table, &three, &tail), "decode");
    }
}

fn case() -> impl Strategy<Value = Case> {
    let heads =
        prop_oneof![Just((1, 1)), Just((2, 2)), Just((3, 1)), Just((6, 2)), Just((4, 4)), Just((7, 1)), Just((30, 1))];
    let dims = prop_oneof![
        Just((16, 16)),
        Just((64, 64)),
        Just((32, 80)),
        Just((7, 5)),
        Just((24, 17)),
        Just((96, 64)),
        Just((1, 1))
    ];
    let n_kv = prop_oneof![4 => 1usize..70, 2 => 70usize..600, 1 => 600usize..1500];
    let some = |strategy: std::ops::Range<usize>| proptest::option::weighted(0.4, strategy);
    (heads, dims, n_kv, some(1..700), any::<[bool; 6]>(), any::<u64>()).prop_map(
        |((n_heads, n_kv_heads), (k_dim, v_dim), n_kv, window, flags, seed)| {
            let [softcap, bidirectional, both, sinks, alibi, half] = flags;
            Case {
                n_heads,
                shape: KvShape { n_kv_heads, k_dim, v_dim },
                // The reference is quadratic in nothing but this.
                n_kv: if n_heads > 8 { n_kv.min(600) } else { n_kv },
                softcap: softcap.then_some(if half { 5.0 } else { 50.0 }),
                window,
                causal: !(bidirectional && both),
                sinks,
                alibi,
                half,
                seed,
            }
        },
    )
}

proptest! {
    // A case is some 30 ms of plain loops.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(4), ..Default::default() })]

    #[test]
    fn every_instruction_set_is_near_the_reference_and_equal_to_itself(case in case()) {
        check(&case);
    }

    /// What the definition promises of a window: whatever came before it does not matter.
    #[test]
    fn positions_before_the_window_do_not_matter(n in 30usize..700, window in 1usize..200, seed in any::<u64>()) {
        let case = Case { window: Some(window), seed, ..Case::plain(2, 1, 16, n) };
        let mut cache = Cache::new(&case);
        let outs: Vec<_> = available().map(|table| cache.attend(table, &ThreadPool::new(2), &[n - 1, n])).collect();
        for pos in 0..n.saturating_sub(window) {
            let (shape, block) = (case.shape, cache.blocks[pos / BLOCK_TOKENS].index());
            let (k_len, stride) = (shape.k_block_len(), shape.k_block_len() + shape.v_block_len());
            let halves = &mut bytemuck::cast_slice_mut::<u8, f16>(&mut cache.bytes[KvFormat::F16 as usize])[block * stride..][..stride];
            for c in 0..16 {
                halves[c * 16 + pos % 16] = f16::NAN;
                halves[k_len + pos % 16 * 16 + c] = f16::INFINITY;
            }
        }
        for (table, out) in available().zip(outs) {
            let again = cache.attend(table, &ThreadPool::new(2), &[n - 1, n]);
            assert_same(&out[out.len() - 32..], &again[again.len() - 32..], "the last row");
        }
    }
}

#[test]
fn model_shapes() {
    for (n_heads, n_kv_heads, dim) in [(9, 3, 64), (14, 2, 64), (4, 1, 256)] {
        check(&Case::plain(n_heads, n_kv_heads, dim, 530));
    }
    // MLA: long keys, shorter values, one KV head for all.
    let shape = KvShape { n_kv_heads: 1, k_dim: 192, v_dim: 128 };
    check(&Case { shape, ..Case::plain(16, 1, 0, 100) });
    // Gemma 2: cap and window; gpt-oss: sinks and window.
    check(&Case { softcap: Some(50.0), window: Some(128), ..Case::plain(8, 4, 32, 1100) });
    check(&Case { sinks: true, window: Some(128), half: false, ..Case::plain(8, 1, 64, 600) });
    // BERT.
    check(&Case { causal: false, half: false, ..Case::plain(12, 12, 32, 128) });
}

#[test]
fn long_decodes_split_spans_and_stay_equal() {
    // One KV head; three that a tile takes together; 20, of which a tile takes some.
    for (n_heads, n_kv_heads, n_kv) in [(2, 1, 5000), (9, 3, 2100), (40, 20, 700)] {
        let case = Case { sinks: true, ..Case::plain(n_heads, n_kv_heads, 16, n_kv) };
        let (cache, n, width) = (Cache::new(&case), case.n_kv, n_heads * 16);
        for table in available() {
            let decode = |threads: &ThreadPool| {
                let mut scratch = Scratch::new(threads.n_threads(), cache.limits());
                let (options, mut out) = (cache.options(), vec![0.0; width]);
                let segments = [Segment { first_row: 0, n_rows: 1, pos: n - 1, n_kv: n, blocks: &cache.blocks }];
                let inputs = Inputs {
                    options: &options,
                    kv: cache.layer(),
                    segments: &segments,
                    q: &cache.q[(n - 1) * width..],
                };
                attend(table, threads, &mut scratch, &inputs, &mut out);
                out
            };
            let alone = decode(&ThreadPool::new(1));
            assert_same(&alone, &decode(&ThreadPool::new(2)), "two threads");
            assert_same(&alone, &decode(&ThreadPool::new(5)), "five threads");
            cache.check(&alone, n - 1, table.isa().name());
        }
    }
}

#[test]
fn a_batch_of_sequences_equals_each_alone() {
    let shape = KvShape { n_kv_heads: 2, k_dim: 32, v_dim: 32 };
    let cases = [700, 3, 40, 1200].map(|n_kv| Case { shape, seed: n_kv as u64, ..Case::plain(6, 2, 32, n_kv) });
    let caches = cases.each_ref().map(Cache::new);
    // One pool: the units one after the other.
    let (mut bytes, mut blocks, mut n_blocks) = (vec![], vec![], 0);
    for cache in &caches {
        bytes.extend_from_slice(&cache.bytes[KvFormat::F16 as usize]);
        let moved = cache.blocks.iter().map(|block| KvBlock::new(KvFormat::F16, block.index() + n_blocks));
        blocks.push(moved.collect::<Vec<_>>());
        n_blocks += cache.blocks.len();
    }
    let kv = KvLayer::default().with(KvFormat::F16, units(KvFormat::F16, shape, &bytes));
    for (table, n_rows) in available().flat_map(|table| [1, 3].map(|n_rows| (table, n_rows))) {
        let q: Vec<f32> = caches.iter().flat_map(|cache| &cache.q[cache.q.len() - n_rows * 192..]).copied().collect();
        let segment = |(i, cache): (usize, &Cache)| {
            let n_kv = cache.case.n_kv;
            Segment { first_row: i * n_rows, n_rows, pos: n_kv - n_rows, n_kv, blocks: &blocks[i] }
        };
        let segments: Vec<_> = caches.iter().enumerate().map(segment).collect();
        let (options, mut out) = (caches[0].options(), vec![0.0; 4 * n_rows * 192]);
        let threads = ThreadPool::new(2);
        let mut scratch = Scratch::new(2, caches[3].limits());
        let inputs = Inputs { options: &options, kv, segments: &segments, q: &q };
        attend(table, &threads, &mut scratch, &inputs, &mut out);
        for (cache, out) in caches.iter().zip(out.chunks(n_rows * 192)) {
            let alone = cache.attend(table, &threads, &[cache.case.n_kv]);
            assert_same(&alone[alone.len() - n_rows * 192..], out, table.isa().name());
        }
    }
}

#[test]
fn rows_of_no_segment_stay_untouched() {
    let cache = Cache::new(&Case::plain(1, 1, 16, 2));
    let segments = [
        Segment { first_row: 1, n_rows: 1, pos: 1, n_kv: 2, blocks: &cache.blocks },
        Segment { first_row: 3, n_rows: 0, pos: 0, n_kv: 0, blocks: &[] },
    ];
    let (options, mut out, mut scratch) = (cache.options(), [7.0; 48], Scratch::new(1, cache.limits()));
    let inputs = Inputs { options: &options, kv: cache.layer(), segments: &segments, q: &[0.5; 48] };
    attend(pick(Isa::best()), &ThreadPool::new(1), &mut scratch, &inputs, &mut out);
    assert!(out[..16].iter().chain(&out[32..]).all(|&x| x == 7.0) && out[16..32].iter().all(|&x| x != 7.0));
}

#[test]
#[should_panic(expected = "attend: need 2 blocks, have 1")]
fn short_tables_are_refused() {
    let cache = Cache::new(&Case::plain(1, 1, 16, 20));
    let segments = [Segment { first_row: 0, n_rows: 20, pos: 0, n_kv: 20, blocks: &cache.blocks[..1] }];
    let (options, mut out, mut scratch) = (cache.options(), [0.0; 320], Scratch::new(1, cache.limits()));
    let inputs = Inputs { options: &options, kv: cache.layer(), segments: &segments, q: &cache.q };
    attend(pick(Isa::Scalar), &ThreadPool::new(1), &mut scratch, &inputs, &mut out);
}

#[test]
fn two_segments_may_write_one_block() {
    let shape = KvShape { n_kv_heads: 3, k_dim: 70, v_dim: 70 };
    let mut random = Random(5);
    let (k, v) = (random.vec(40 * 210), random.vec(40 * 210));
    let write = |threads: &ThreadPool, cuts: &[usize]| {
        let blocks = [2, 0, 1].map(|i| KvBlock::new(KvFormat::F32, i));
        let mut elements = vec![0.0f32; 3 * (shape.k_block_len() + shape.v_block_len())];
        let starts = std::iter::once(&0).chain(cuts);
        let segment = |(&start, &end): (&usize, &usize)| Segment {
            first_row: start,
            n_rows: end - start,
            pos: start,
            n_kv: end,
            blocks: &blocks,
        };
        let segments: Vec<_> = starts.zip(cuts).map(segment).collect();
        let bytes = bytemuck::cast_slice_mut(&mut elements);
        store(threads, shape, units_mut(KvFormat::F32, shape, bytes), &segments, &k, &v);
        elements
    };
    let whole = write(&ThreadPool::new(1), &[40]);
    let stride = shape.k_block_len() + shape.v_block_len();
    assert_eq!(whole[2 * stride + 16 * 69 + 3], k[3 * 210 + 69]);
    assert!(write(&ThreadPool::new(3), &[3, 9, 20, 33, 40]) == whole);
}
