//! The low-rank products of adapters: rows with none, one and several, in f16 and f32, through layers and experts.

use half::f16;
use ruvllm_shaders::{
    ADAPTERS_MAX, Extent, Kernel, LOW_RANK_F32, LOW_RANK_GAIN, LOW_RANK_PLACE_WORDS, LowRankParams, NO_ADAPTER,
    Reduction, flags, low_rank_words,
};

use crate::device::{Data, Dispatch, Pass, floats, on_all};
use crate::random::Random;

const N_IN: usize = 76;
const N_OUT: usize = 301;
const N_LAYERS: usize = 5;
const N_ROWS: usize = 4;
const T_LEN: usize = 40;

/// Adapters of each row, with their strengths.
const ROWS: [&[(u32, f32)]; N_ROWS] = [&[(1, 0.5)], &[], &[(0, -1.5), (2, 2.0), (1, 0.25)], &[(2, 1.0)]];

/// Factors of a layer of an adapter, as the device multiplies them.
#[derive(Clone, Default)]
struct Factors {
    rank: usize,
    multipliers: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    gain: Option<Vec<f32>>,
}

/// A bank of three adapters: of rank 8 in f16, of 17 in f32, of 3 in f16 with gains; the second one leaves out layer 3.
struct Bank {
    words: Vec<u32>,
    factors: Vec<Factors>,
}

impl Bank {
    fn new(random: &mut Random) -> Bank {
        let mut words = vec![0; 3 * N_LAYERS * LOW_RANK_PLACE_WORDS];
        let mut factors = Vec::new();
        for (adapter, (rank, is_f32, has_gain)) in
            [(8, false, false), (17, true, false), (3, false, true)].iter().enumerate()
        {
            for layer in 0..N_LAYERS {
                if adapter == 1 && layer == 3 {
                    factors.push(Factors::default());
                    continue;
                }
                let place = (adapter * N_LAYERS + layer) * LOW_RANK_PLACE_WORDS;
                let flags = u32::from(*is_f32) * LOW_RANK_F32 + u32::from(*has_gain) * LOW_RANK_GAIN;
                let at = words.len() as u32;
                words[place..place + 3].copy_from_slice(&[at, *rank as u32, flags]);
                let mut own = Factors { rank: *rank, multipliers: random.floats(*rank), ..Factors::default() };
                words.extend(own.multipliers.iter().map(|x| x.to_bits()));
                own.a = put(&mut words, random, [*rank, N_IN], *is_f32);
                own.b = put(&mut words, random, [*rank, N_OUT], *is_f32);
                own.gain = has_gain.then(|| random.floats(N_OUT));
                words.extend(own.gain.iter().flatten().map(|x| x.to_bits()));
                factors.push(own);
            }
        }
        Bank { words, factors }
    }

    fn of(&self, adapter: u32, layer: usize) -> &Factors {
        &self.factors[adapter as usize * N_LAYERS + layer]
    }
}

/// Appends a factor of random values, and returns them as they are stored.
fn put(words: &mut Vec<u32>, random: &mut Random, [rank, n]: [usize; 2], is_f32: bool) -> Vec<f32> {
    let mut stored = Vec::new();
    for _ in 0..rank {
        let row = random.floats(n);
        let before = words.len();
        match is_f32 {
            true => {
                words.extend(row.iter().map(|x| x.to_bits()));
                stored.extend(row);
            }
            false => {
                let halves: Vec<f16> = row.iter().map(|x| f16::from_f32(*x)).collect();
                words.extend(halves.chunks(2).map(|two| {
                    let bits = |i: usize| u32::from(two.get(i).map_or(0, |half: &f16| half.to_bits()));
                    bits(0) | bits(1) << 16
                }));
                stored.extend(halves.iter().map(|half| half.to_f32()));
            }
        }
        assert_eq!(words.len() - before, low_rank_words(n, is_f32));
    }
    stored
}

fn members() -> Vec<u32> {
    let of_row = |own: &&[(u32, f32)]| {
        let mut words = [NO_ADAPTER, 0].repeat(ADAPTERS_MAX);
        own.iter().zip(words.chunks_exact_mut(2)).for_each(|((adapter, strength), to)| {
            to.copy_from_slice(&[*adapter, strength.to_bits()]);
        });
        words
    };
    ROWS.iter().flat_map(of_row).collect()
}

/// Slots of rows, and the layers that they go through.
struct Case {
    n_slots: usize,
    /// `[row, slot]`, if rows choose layers.
    experts: Option<Vec<u32>>,
    /// Whether a slot goes through the layer of its number.
    slot_is_layer: bool,
    has_bias: bool,
}

impl Case {
    fn layer(&self, row: usize, slot: usize) -> usize {
        let own = if self.slot_is_layer { slot } else { 0 };
        1 + self.experts.as_ref().map_or(own, |experts| experts[row * self.n_slots + slot] as usize)
    }

    fn params(&self) -> LowRankParams {
        LowRankParams {
            n_in: N_IN as u32,
            n_out: N_OUT as u32,
            n_layers: N_LAYERS as u32,
            layer: 1,
            n_slots: self.n_slots as u32,
            t_len: T_LEN as u32,
            x_offset: 3,
            x_stride: (self.n_slots * N_IN + 1) as u32,
            x_slot_stride: if self.n_slots > 1 { N_IN as u32 } else { 0 },
            y_offset: 2,
            y_stride: (self.n_slots * N_OUT + 5) as u32,
            count: 1,
            flags: u32::from(self.has_bias) * flags::HAS_BIAS
                + u32::from(self.experts.is_some()) * flags::HAS_EXPERTS
                + u32::from(self.slot_is_layer) * flags::SLOT_IS_EXPERT,
        }
    }

    /// The products of a row and slot in f64: each adapter's `A·x` times multiplier and strength.
    fn shrunk(&self, bank: &Bank, x: &[f32], row: usize, slot: usize) -> Vec<f64> {
        let params = self.params();
        let x = &x[3 + row * params.x_stride as usize + slot * params.x_slot_stride as usize..][..N_IN];
        let of_adapter = |(adapter, strength): &(u32, f32)| {
            let own = bank.of(*adapter, self.layer(row, slot));
            let ranks = own.a.chunks_exact(N_IN).zip(&own.multipliers);
            let product = |(a, multiplier): (&[f32], &f32)| {
                let sum: f64 = a.iter().zip(x).map(|(a, x)| f64::from(*a) * f64::from(*x)).sum();
                sum * f64::from(*multiplier) * f64::from(*strength)
            };
            ranks.map(product).collect::<Vec<f64>>()
        };
        ROWS[row].iter().flat_map(of_adapter).collect()
    }

    fn check(&self, reduction: Reduction) {
        let mut random = Random::new(self.n_slots as u64);
        let bank = Bank::new(&mut random);
        let (params, experts) = (self.params(), self.experts.clone().unwrap_or_default());
        let x = random.floats(3 + N_ROWS * params.x_stride as usize);
        let extent = |n: usize| Extent { n: n as u32, rows: N_ROWS as u32, slots: self.n_slots as u32 };
        let own: [Data; 3] = [bank.words.clone().into(), members().into(), experts.into()];
        let [words, members, experts] = own;
        let dispatch = Dispatch {
            kernel: Kernel::LowRankShrink { reduction },
            params: params.words(),
            extent: extent(T_LEN),
            buffers: vec![
                x.clone().into(),
                words.clone(),
                members.clone(),
                experts.clone(),
                vec![7.0f32; N_ROWS * self.n_slots * T_LEN].into(),
            ],
            pass: Pass::default(),
        };
        on_all(&dispatch, |name, written| {
            for (at, t) in floats(&written[0]).chunks_exact(T_LEN).enumerate() {
                let expected = self.shrunk(&bank, &x, at / self.n_slots, at % self.n_slots);
                for (i, expected) in expected.iter().enumerate() {
                    // Products of values within 1, and strengths of 2 at most.
                    let bound = 2.0 * (N_IN * N_IN) as f64 * f64::from(f32::EPSILON);
                    let error = (f64::from(t[i]) - expected).abs();
                    assert!(error <= bound, "{name}: rank {i} of {at}: {} instead of {expected}", t[i]);
                }
                assert!(t[expected.len()..].iter().all(|t| *t == 7.0), "{name} wrote past the ranks of {at}");
            }
        });
        self.check_expansion(&bank, [words, members, experts], &mut random);
    }

    fn check_expansion(&self, bank: &Bank, [words, members, experts]: [Data; 3], random: &mut Random) {
        let params = self.params();
        let t = random.floats(N_ROWS * self.n_slots * T_LEN);
        let (bias, y) = (random.floats(N_LAYERS * N_OUT), random.floats(2 + N_ROWS * params.y_stride as usize));
        let dispatch = Dispatch {
            kernel: Kernel::LowRankExpand,
            params: params.words(),
            extent: Extent { n: N_OUT as u32, rows: N_ROWS as u32, slots: self.n_slots as u32 },
            buffers: vec![t.clone().into(), words, members, experts, bias.clone().into(), y.clone().into()],
            pass: Pass::default(),
        };
        let mut expected: Vec<f64> = y.iter().map(|y| f64::from(*y)).collect();
        for at in 0..N_ROWS * self.n_slots {
            let (row, slot) = (at / self.n_slots, at % self.n_slots);
            let layer = self.layer(row, slot);
            let to = &mut expected[2 + row * params.y_stride as usize + slot * N_OUT..][..N_OUT];
            for (j, y) in to.iter_mut().enumerate() {
                let (mut gain, mut sum, mut first) = (0.0, 0.0, at * T_LEN);
                for (adapter, strength) in ROWS[row] {
                    let own = bank.of(*adapter, layer);
                    gain += own.gain.as_ref().map_or(0.0, |gain| f64::from(gain[j]) * f64::from(*strength));
                    let ranks = own.b.chunks_exact(N_OUT).zip(&t[first..]);
                    sum += ranks.map(|(b, t)| f64::from(b[j]) * f64::from(*t)).sum::<f64>();
                    first += own.rank;
                }
                *y = *y * (1.0 + gain) + sum;
                if self.has_bias {
                    *y += f64::from(bias[(layer - 1) * N_OUT + j]);
                }
            }
        }
        on_all(&dispatch, |name, written| {
            for (i, (got, expected)) in floats(&written[0]).iter().zip(&expected).enumerate() {
                let bound = 2.0 * (T_LEN * T_LEN) as f64 * f64::from(f32::EPSILON);
                assert!((f64::from(*got) - expected).abs() <= bound, "{name}: value {i}: {got} instead of {expected}");
                // Rows without adapters and bias, and what lies between rows, keep their bits.
                assert!(*expected != f64::from(y[i]) || *got == y[i], "{name}: value {i} changed");
            }
        });
    }
}

#[test]
fn rows_go_through_their_own_adapters() {
    let experts = vec![2, 0, 3, 2, 1, 0, 1, 3];
    for reduction in [Reduction::Subgroup, Reduction::Shared] {
        let plain = |has_bias| Case { n_slots: 1, experts: None, slot_is_layer: false, has_bias };
        [false, true].map(plain).iter().for_each(|case| case.check(reduction));
        let of_experts = Case { n_slots: 2, experts: Some(experts.clone()), slot_is_layer: false, has_bias: true };
        of_experts.check(reduction);
        Case { n_slots: 4, experts: None, slot_is_layer: true, has_bias: false }.check(reduction);
    }
}
