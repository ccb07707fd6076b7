//! Products with weights: few rows, experts, many rows.

use ruvllm_shaders::{
    ExpertLinearParams, Extent, Kernel, LinearParams, Reduction, RowTile, TileType, WeightFormat, flags,
};

use crate::device::{Data, Dispatch, Pass, floats, on_all};
use crate::formats::packed;
use crate::random::Random;
use crate::reference::{Weight, dequantize, extreme_len, extreme_rows, random_rows};

/// A matrix and what it is multiplied with.
struct Case {
    format: WeightFormat,
    k: usize,
    n_out: usize,
    n_rows: usize,
    bytes: Vec<u8>,
    x: Vec<f32>,
    bias: Vec<f32>,
}

/// Distances that are not those of the rows, so that a kernel that ignores them is found.
const X_OFFSET: usize = 4;
const X_PAD: usize = 8;
const Y_OFFSET: usize = 3;
const Y_PAD: usize = 2;
/// Value of the output before the kernel.
const BEFORE: f32 = 0.25;

impl Case {
    fn random(format: WeightFormat, n_blocks: usize, n_out: usize, n_rows: usize) -> Case {
        let mut random = Random::new(((n_blocks * 100 + n_out) * 100 + n_rows) as u64);
        // Plain floats end within a unit.
        let k = n_blocks * extreme_len(format) + if format.block_len() == 1 { 4 } else { 0 };
        let bytes = random_rows(format, k, n_out, &mut random);
        let x = random.floats(X_OFFSET + n_rows * (k + X_PAD));
        Case { format, k, n_out, n_rows, bytes, x, bias: random.floats(n_out + 1) }
    }

    fn params(&self, flags: u32) -> LinearParams {
        LinearParams {
            n_units: self.format.n_units(self.k) as u32,
            n_quads: self.k as u32 / 4,
            row_words: self.format.row_words(self.k) as u32,
            n_out: self.n_out as u32,
            w_offset: 2,
            bias_offset: 1,
            x_offset: X_OFFSET as u32,
            x_stride: (self.k + X_PAD) as u32,
            y_offset: Y_OFFSET as u32,
            y_stride: (self.n_out + Y_PAD) as u32,
            count: 1,
            flags,
        }
    }

    /// Runs the kernel with bias and accumulation, and without, and compares with f64. `bound` is the error of a product
    /// relative to the sum of its terms' magnitudes.
    fn check(&self, kernel: Kernel, bound: f64) {
        let weights = dequantize(self.format, &self.bytes);
        for flags in [0, flags::HAS_BIAS, flags::HAS_BIAS | flags::ACCUMULATE] {
            let words: Vec<u32> = [0, 0].into_iter().chain(packed(self.format, self.k, &self.bytes)).collect();
            let y = vec![BEFORE; Y_OFFSET + self.n_rows * (self.n_out + Y_PAD)];
            let dispatch = Dispatch {
                kernel,
                params: self.params(flags).words(),
                extent: Extent { n: self.n_out as u32, rows: self.n_rows as u32, slots: 1 },
                buffers: vec![words.into(), self.x.clone().into(), self.bias.clone().into(), y.into()],
                pass: Pass::default(),
            };
            on_all(&dispatch, |name, written| self.compare(name, flags, &weights, &floats(&written[0]), bound));
        }
    }

    fn compare(&self, name: &str, flags: u32, weights: &[Weight], y: &[f32], bound: f64) {
        for row in 0..self.n_rows {
            let x = &self.x[X_OFFSET + row * (self.k + X_PAD)..][..self.k];
            let y = &y[Y_OFFSET + row * (self.n_out + Y_PAD)..];
            for (out, weights) in weights.chunks_exact(self.k).enumerate() {
                let bias = if flags & flags::HAS_BIAS != 0 { self.bias[1 + out] } else { 0.0 };
                let before = if flags & flags::ACCUMULATE != 0 { BEFORE } else { 0.0 };
                assert_close(name, (row, out), y[out], product(weights, x, bias, before), bound);
            }
            let past = y.get(self.n_out).copied().unwrap_or(BEFORE);
            assert_eq!(past, BEFORE, "{name} wrote past row {row}");
        }
    }
}

/// A product with its sum of magnitudes.
fn product(weights: &[Weight], x: &[f32], bias: f32, before: f32) -> Weight {
    let added = f64::from(bias) + f64::from(before);
    let start = Weight { value: added, magnitude: f64::from(bias.abs() + before.abs()) };
    weights.iter().zip(x).fold(start, |sum, (weight, x)| Weight {
        value: sum.value + weight.value * f64::from(*x),
        magnitude: sum.magnitude + weight.magnitude * f64::from(x.abs()),
    })
}

fn assert_close(name: &str, at: (usize, usize), got: f32, expected: Weight, bound: f64) {
    let Weight { value, magnitude } = expected;
    let error = (f64::from(got) - value).abs();
    let allowed = bound * magnitude + f64::from(f32::MIN_POSITIVE);
    assert!(error <= allowed, "{name}: {at:?}: {got} instead of {value}, error {error:e} > {allowed:e}");
}

/// Relative error of a product of `k` terms in any order: a rounding for each addition and product, and three for each
/// weight.
fn bound(k: usize) -> f64 {
    (k + 8) as f64 * f64::from(f32::EPSILON) / 2.0
}

const REDUCTIONS: [Reduction; 2] = [Reduction::Subgroup, Reduction::Shared];

#[test]
fn few_rows() {
    for format in WeightFormat::ALL {
        for reduction in REDUCTIONS {
            for (rows, n_rows) in [(RowTile::One, 1), (RowTile::One, 2), (RowTile::Four, 3), (RowTile::Sixteen, 18)] {
                for (n_blocks, n_out) in [(1, 1), (3, 9)] {
                    let case = Case::random(format, n_blocks, n_out, n_rows);
                    case.check(Kernel::MatVec { format, rows, reduction }, bound(case.k));
                }
            }
        }
    }
}

#[test]
fn extreme_blocks_in_products() {
    for format in WeightFormat::ALL {
        let (bytes, k) = (extreme_rows(format), extreme_len(format));
        let n_out = bytes.len() / (k / format.block_len() * format.block_bytes());
        let x = Random::new(3).floats(X_OFFSET + k + X_PAD);
        let case = Case { format, k, n_out, n_rows: 1, bytes, x, bias: vec![0.0; n_out + 1] };
        for reduction in REDUCTIONS {
            case.check(Kernel::MatVec { format, rows: RowTile::One, reduction }, bound(k));
        }
        case.check(Kernel::MatMul { format, tile: TileType::F32 }, bound(k));
    }
}

#[test]
fn more_outputs_than_a_dimension_of_the_grid_has() {
    let kernel = Kernel::MatVec { format: WeightFormat::F16, rows: RowTile::One, reduction: Reduction::Shared };
    assert_eq!(kernel.grid(Extent { n: 131_073, rows: 1, slots: 1 }), [32_768, 1, 2]);
    let mut random = Random::new(4);
    let (k, n_out) = (4, 131_073);
    let bytes = random_rows(WeightFormat::F16, k, n_out, &mut random);
    let x = random.floats(X_OFFSET + k + X_PAD);
    let case = Case { format: WeightFormat::F16, k, n_out, n_rows: 1, bytes, x, bias: vec![0.0; n_out + 1] };
    case.check(kernel, bound(k));
}

#[test]
fn many_rows() {
    for format in WeightFormat::ALL {
        for (n_blocks, n_out, n_rows) in [(1, 1, 1), (2, 70, 65), (3, 64, 130)] {
            let case = Case::random(format, n_blocks, n_out, n_rows);
            case.check(Kernel::MatMul { format, tile: TileType::F32 }, bound(case.k));
        }
    }
}

/// In tiles of f16 both factors are rounded, and products of four are added in f16; what is subnormal there may be 0.
#[test]
fn many_rows_in_f16() {
    let rounding = f64::from(half::f16::EPSILON) / 2.0;
    for format in WeightFormat::ALL {
        for (n_blocks, n_out, n_rows) in [(1, 3, 2), (2, 70, 65)] {
            let case = Case::random(format, n_blocks, n_out, n_rows);
            case.check(Kernel::MatMul { format, tile: TileType::F16 }, bound(case.k) + 7.0 * rounding);
        }
    }
}

#[test]
fn experts() {
    for format in WeightFormat::ALL {
        for reduction in REDUCTIONS {
            for by_slot in [false, true] {
                expert_products(Kernel::ExpertMatVec { format, reduction }, format, by_slot);
            }
        }
    }
}

/// Three experts of five in the binding, two slots, three rows; inputs by slot. Rows choose experts, or slots are those of their number.
fn expert_products(kernel: Kernel, format: WeightFormat, by_slot: bool) {
    let (n_out, n_rows, n_slots, first_expert, n_experts) = (6, 3, 2, 1, 3);
    let mut random = Random::new(5);
    let k = extreme_len(format);
    let bytes = random_rows(format, k, n_experts * n_out, &mut random);
    let x = random.floats(n_rows * n_slots * k);
    let bias = random.floats(5 * n_out);
    let chosen = if by_slot { [0usize, 1, 0, 1, 0, 1] } else { [0, 3, 2, 4, 1, 2] };
    let params = ExpertLinearParams {
        n_units: format.n_units(k) as u32,
        n_quads: k as u32 / 4,
        row_words: format.row_words(k) as u32,
        n_out: n_out as u32,
        x_stride: (n_slots * k) as u32,
        x_slot_stride: k as u32,
        y_stride: (n_slots * n_out) as u32,
        n_slots: n_slots as u32,
        first_expert: first_expert as u32,
        n_experts: n_experts as u32,
        count: 1,
        flags: flags::HAS_BIAS | if by_slot { flags::SLOT_IS_EXPERT } else { 0 },
        ..ExpertLinearParams::default()
    };
    let experts: Data = chosen.map(|expert| if by_slot { 9 } else { expert as u32 }).to_vec().into();
    let y = vec![BEFORE; n_rows * n_slots * n_out];
    let dispatch = Dispatch {
        kernel,
        params: params.words(),
        extent: Extent { n: n_out as u32, rows: n_rows as u32, slots: n_slots as u32 },
        buffers: vec![packed(format, k, &bytes).into(), x.clone().into(), bias.clone().into(), experts, y.into()],
        pass: Pass::default(),
    };
    let weights = dequantize(format, &bytes);
    on_all(&dispatch, |name, written| {
        let y = floats(&written[0]);
        for (i, expert) in chosen.iter().enumerate() {
            for out in 0..n_out {
                let got = y[i * n_out + out];
                let Some(expert) = expert.checked_sub(first_expert).filter(|expert| *expert < n_experts) else {
                    assert_eq!(got, BEFORE, "{name} wrote for an expert of another binding");
                    continue;
                };
                let weights = &weights[(expert * n_out + out) * k..][..k];
                let bias = bias[(first_expert + expert) * n_out + out];
                assert_close(name, (i, out), got, product(weights, &x[i * k..][..k], bias, 0.0), bound(k));
            }
        }
    });
}
