//! The KV cache and attention over it.

use half::f16;
use ruvllm_shaders::{
    AttentionMergeParams, AttentionParams, Extent, HeadTile, HeadWidth, KV_BLOCK, Kernel, KvAppendParams, KvType,
    Reduction, RowRecord, flags,
};

use crate::device::{Dispatch, Pass, floats, on_all};
use crate::random::Random;

const BLOCK: usize = KV_BLOCK as usize;

/// Heads of a cache, and the numbers in it.
#[derive(Clone, Copy)]
struct Cache {
    kv: KvType,
    n_kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
}

impl Cache {
    fn per_word(self) -> usize {
        self.kv.values_per_word() as usize
    }

    /// Word of the keys that has value `i` of a head, as the layout says.
    fn k_at(self, slot: usize, head: usize, i: usize) -> usize {
        let n_words = self.k_dim / self.per_word();
        (((slot / BLOCK) * self.n_kv_heads + head) * n_words + i / self.per_word()) * BLOCK + slot % BLOCK
    }

    /// Word of the values that has value `i` of a head.
    fn v_at(self, slot: usize, head: usize, i: usize) -> usize {
        let n_words = self.v_dim / self.per_word();
        (((slot / BLOCK) * self.n_kv_heads + head) * BLOCK + slot % BLOCK) * n_words + i / self.per_word()
    }

    /// Puts value `i` of a head into its word.
    fn put(self, word: &mut u32, i: usize, value: f32) {
        match self.kv {
            KvType::F32 => *word = value.to_bits(),
            KvType::F16 => {
                let shift = 16 * (i % 2);
                *word = *word & !(0xffff << shift) | u32::from(f16::from_f32(value).to_bits()) << shift;
            }
        }
    }

    /// A value as the cache has it.
    fn stored(self, value: f32) -> f32 {
        if self.kv == KvType::F32 { value } else { f16::from_f32(value).to_f32() }
    }

    fn words(self, n_blocks: usize, dim: usize) -> usize {
        n_blocks * BLOCK * self.n_kv_heads * dim / self.per_word()
    }
}

#[test]
fn rows_are_written_to_their_slots() {
    for kv in [KvType::F16, KvType::F32] {
        for (n_kv_heads, k_dim, v_dim) in [(1, 2, 2), (2, 64, 64), (3, 96, 34)] {
            append(Cache { kv, n_kv_heads, k_dim, v_dim });
        }
    }
}

fn append(cache: Cache) {
    let Cache { kv, n_kv_heads, k_dim, v_dim } = cache;
    let (n_blocks, slots) = (3, [17u32, 0, 47, 31]);
    let mut random = Random::new(1);
    let (k_stride, v_stride) = (n_kv_heads * k_dim + 2, n_kv_heads * v_dim + 4);
    let (k, v) = (random.floats(1 + 4 * k_stride), random.floats(2 + 4 * v_stride));
    let params = KvAppendParams {
        n_kv_heads: n_kv_heads as u32,
        k_dim: k_dim as u32,
        v_dim: v_dim as u32,
        k_offset: 1,
        k_stride: k_stride as u32,
        v_offset: 2,
        v_stride: v_stride as u32,
        count: 1,
    };
    let (mut keys, mut values) = (vec![1u32; cache.words(n_blocks, k_dim)], vec![1u32; cache.words(n_blocks, v_dim)]);
    let dispatch = Dispatch {
        kernel: Kernel::KvAppend { kv },
        params: params.words(),
        extent: Extent { n: Kernel::kv_words(kv, &params), rows: 4, slots: 1 },
        buffers: vec![k.clone().into(), v.clone().into(), keys.clone().into(), values.clone().into()],
        pass: Pass {
            rows: slots.map(|slot| RowRecord { slot, ..RowRecord::default() }).to_vec(),
            tables: vec![],
            ..Pass::default()
        },
    };
    for (row, slot) in slots.into_iter().enumerate() {
        for head in 0..n_kv_heads {
            for i in 0..k_dim {
                let at = cache.k_at(slot as usize, head, i);
                cache.put(&mut keys[at], i, k[1 + row * k_stride + head * k_dim + i]);
            }
            for i in 0..v_dim {
                let at = cache.v_at(slot as usize, head, i);
                cache.put(&mut values[at], i, v[2 + row * v_stride + head * v_dim + i]);
            }
        }
    }
    on_all(&dispatch, |name, written| {
        for (got, expected) in written[0].iter().zip(&keys).chain(written[1].iter().zip(&values)) {
            // A device may round to f16 in another direction.
            let halves = |word: u32| [word & 0xffff, word >> 16];
            let is_near = halves(*got).into_iter().zip(halves(*expected)).all(|(a, b)| a.abs_diff(b) <= 1);
            let is_right = got == expected || kv == KvType::F16 && is_near;
            assert!(is_right, "{name}: {got:#x} instead of {expected:#x}");
        }
    });
}

/// Attention of some rows, each of another sequence.
#[derive(Clone, Copy)]
struct Case {
    cache: Cache,
    n_heads: usize,
    window: usize,
    softcap: f32,
    has_sinks: bool,
}

/// Keys that the rows see.
const N_KEYS: [usize; 5] = [1, 16, 63, 65, 150];

impl Case {
    fn scale(&self) -> f32 {
        4.0 / (self.cache.k_dim as f32).sqrt()
    }

    /// Runs the kernel, with `n_splits` over 1 the split one and the merge, and compares.
    fn check(&self, heads: HeadTile, reduction: Reduction, n_splits: u32) {
        let Cache { kv, n_kv_heads, k_dim, v_dim } = self.cache;
        let mut random = Random::new((self.n_heads * 1000 + k_dim + self.window) as u64);
        // Sequences whose blocks lie in a random order, tables one after another.
        let n_blocks: usize = N_KEYS.iter().map(|n| n.div_ceil(BLOCK)).sum();
        let mut tables: Vec<u32> = (0..n_blocks as u32).collect();
        (0..n_blocks).rev().for_each(|i| tables.swap(i, random.below(i + 1)));
        let (mut starts, mut next) = (Vec::new(), 0);
        for n_keys in N_KEYS {
            starts.push(next);
            next += n_keys.div_ceil(BLOCK);
        }
        let slot = |row: usize, key: usize| tables[starts[row] + key / BLOCK] as usize * BLOCK + key % BLOCK;
        let k = random.floats(n_blocks * BLOCK * n_kv_heads * k_dim);
        let v = random.floats(n_blocks * BLOCK * n_kv_heads * v_dim);
        let (mut keys, mut values) =
            (vec![0; self.cache.words(n_blocks, k_dim)], vec![0; self.cache.words(n_blocks, v_dim)]);
        for slot in 0..n_blocks * BLOCK {
            for head in 0..n_kv_heads {
                for i in 0..k_dim {
                    self.cache.put(
                        &mut keys[self.cache.k_at(slot, head, i)],
                        i,
                        k[(slot * n_kv_heads + head) * k_dim + i],
                    );
                }
                for i in 0..v_dim {
                    self.cache.put(
                        &mut values[self.cache.v_at(slot, head, i)],
                        i,
                        v[(slot * n_kv_heads + head) * v_dim + i],
                    );
                }
            }
        }
        let q_stride = self.n_heads * k_dim + 3;
        let q = random.floats(1 + N_KEYS.len() * q_stride);
        let sinks = random.floats(self.n_heads);
        let y_stride = self.n_heads * v_dim + 1;
        let params = AttentionParams {
            n_heads: self.n_heads as u32,
            n_kv_heads: n_kv_heads as u32,
            k_dim: k_dim as u32,
            v_dim: v_dim as u32,
            q_offset: 1,
            q_stride: q_stride as u32,
            y_offset: 2,
            y_stride: y_stride as u32,
            scale: self.scale(),
            softcap: self.softcap,
            window: self.window as u32,
            n_splits,
            count: 1,
            flags: if self.has_sinks { flags::HAS_SINKS } else { 0 },
        };
        let rows = starts.iter().zip(N_KEYS).map(|(start, n_keys)| RowRecord {
            table: *start as u32,
            n_keys: n_keys as u32,
            ..RowRecord::default()
        });
        let is_split = n_splits > 1;
        let width = HeadWidth::of(k_dim.max(v_dim)).expect("a width of the kernel");
        let n_out = if is_split { Kernel::split_words(&params) as usize } else { y_stride };
        let dispatch = Dispatch {
            kernel: Kernel::Attention { kv, heads, is_split, width, reduction },
            params: params.words(),
            extent: Extent { n: Kernel::attention_tiles(heads, &params), rows: N_KEYS.len() as u32, slots: n_splits },
            buffers: vec![
                q.clone().into(),
                keys.into(),
                values.into(),
                sinks.clone().into(),
                vec![0.0f32; 2 + N_KEYS.len() * n_out].into(),
            ],
            pass: Pass { rows: rows.collect(), tables: tables.clone(), ..Pass::default() },
        };
        let compare = |name: &str, y: &[f32]| {
            for (row, n_keys) in N_KEYS.into_iter().enumerate() {
                for head in 0..self.n_heads {
                    let kv_head = head / (self.n_heads / n_kv_heads);
                    let q = &q[1 + row * q_stride + head * k_dim..][..k_dim];
                    let first = if self.window > 0 { n_keys.saturating_sub(self.window) } else { 0 };
                    let at = |key: usize| slot(row, key) * n_kv_heads + kv_head;
                    let keys = (first..n_keys).map(|key| &k[at(key) * k_dim..][..k_dim]);
                    let (weights, error) = self.weights(q, keys, self.has_sinks.then_some(sinks[head]));
                    for i in 0..v_dim {
                        let values = (first..n_keys).map(|key| f64::from(self.cache.stored(v[at(key) * v_dim + i])));
                        let (mut expected, mut size) = (0.0, 0.0);
                        for (weight, value) in weights.iter().zip(values) {
                            expected += weight * value;
                            size += weight * value.abs();
                        }
                        let got = f64::from(y[2 + row * y_stride + head * v_dim + i]);
                        let bound = error * size;
                        assert!(
                            (got - expected).abs() <= bound,
                            "{name}: {n_keys} keys, head {head}, value {i}: {got} instead of {expected}"
                        );
                    }
                }
            }
        };
        on_all(&dispatch, |name, mut written| match is_split {
            false => compare(name, &floats(&written[0])),
            true => on_all(&self.merge(&params, written.swap_remove(0)), |merge, written| {
                compare(&format!("{name}, {merge}"), &floats(&written[0]));
            }),
        });
    }

    /// The merge of what the split kernel wrote.
    fn merge(&self, params: &AttentionParams, partial: Vec<u32>) -> Dispatch {
        let AttentionParams { n_heads, v_dim, n_splits, y_offset, y_stride, count, .. } = *params;
        let y = vec![0.0f32; y_offset as usize + N_KEYS.len() * y_stride as usize];
        Dispatch {
            kernel: Kernel::AttentionMerge,
            params: AttentionMergeParams { n_heads, v_dim, n_splits, y_offset, y_stride, count }.words(),
            extent: Extent { n: n_heads, rows: N_KEYS.len() as u32, slots: 1 },
            buffers: vec![partial.into(), y.into()],
            pass: Pass::default(),
        }
    }

    /// Weights of the keys, and the relative error of a sum with them: twice the error of a score (numerator and
    /// denominator), the exponential's, and a rounding for each key.
    fn weights<'a>(&self, q: &[f32], keys: impl Iterator<Item = &'a [f32]>, sink: Option<f32>) -> (Vec<f64>, f64) {
        let (mut scores, mut error) = (Vec::new(), 0.0f64);
        for key in keys {
            let terms = || q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(self.cache.stored(*k)));
            let scale = f64::from(self.scale());
            error = error.max((q.len() as f64 + 4.0) * scale * terms().map(f64::abs).sum::<f64>());
            let score = scale * terms().sum::<f64>();
            let cap = f64::from(self.softcap);
            scores.push(if cap > 0.0 { cap * (score / cap).tanh() } else { score });
        }
        let sink = sink.map(f64::from);
        let most = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        let least = scores.iter().copied().fold(most, f64::min);
        let total: f64 = scores.iter().copied().chain(sink).map(|score| (score - most).exp()).sum();
        let n = scores.len() as f64;
        let roundings = 2.0 * (error + 8.0 * f64::from(self.softcap)) + 3.0 * (most - least) + 2.0 * n + 48.0;
        (scores.iter().map(|score| (score - most).exp() / total).collect(), roundings * f64::from(f32::EPSILON))
    }
}

/// Cases of shapes and options.
fn cases(kv: KvType) -> Vec<Case> {
    let case = |n_heads, n_kv_heads, k_dim, v_dim, window, softcap, has_sinks| Case {
        cache: Cache { kv, n_kv_heads, k_dim, v_dim },
        n_heads,
        window,
        softcap,
        has_sinks,
    };
    vec![
        case(2, 2, 64, 64, 0, 0.0, false),
        case(6, 2, 64, 64, 0, 0.0, true),
        case(7, 1, 128, 128, 0, 5.0, false),
        case(4, 1, 256, 256, 20, 0.0, false),
        case(8, 2, 80, 80, 64, 30.0, true),
        case(2, 1, 192, 128, 100, 0.0, false),
    ]
}

#[test]
fn attention_over_pages() {
    for kv in [KvType::F16, KvType::F32] {
        for case in cases(kv) {
            for heads in [HeadTile::One, HeadTile::Four] {
                for reduction in [Reduction::Subgroup, Reduction::Shared] {
                    for n_splits in [1, 2, 5] {
                        case.check(heads, reduction, n_splits);
                    }
                }
            }
        }
    }
}

/// Heads in the space of a short row, which all share their keys.
#[test]
fn attention_of_wide_heads() {
    for kv in [KvType::F16, KvType::F32] {
        for (n_heads, k_dim, v_dim) in [(5, 576, 512), (2, 640, 640)] {
            let cache = Cache { kv, n_kv_heads: 1, k_dim, v_dim };
            let case = Case { cache, n_heads, window: 0, softcap: 0.0, has_sinks: false };
            for reduction in [Reduction::Subgroup, Reduction::Shared] {
                [1, 3].into_iter().for_each(|n_splits| case.check(HeadTile::Four, reduction, n_splits));
            }
        }
    }
    assert_eq!([256, 257, 640].map(HeadWidth::of), [HeadWidth::Normal, HeadWidth::Wide, HeadWidth::Wide].map(Some));
    assert_eq!(HeadWidth::of(641), None);
}
