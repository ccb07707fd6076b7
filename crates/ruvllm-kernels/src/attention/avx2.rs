//! AVX2 with FMA and F16C: 16 floats are two registers. 12 accumulators at most, 2 for keys or values, one broadcast.

use super::quant::{self, Packed, Q8};
use super::quantize::{self, DequantizeArgs, QuantizeArgs};
use super::{FoldArgs, KvFormat, MinArgs, ScoreArgs, SoftmaxArgs, ValueArgs, vector};
use crate::lanes::avx2::Ymm;
use half::f16;

type Q4 = Packed<4>;
type Q2 = Packed<2>;

vector::entries!(Ymm, "avx2,fma,f16c,bmi2", 1: 4 4 4, 2: 2 2 2, 3: 1 1 1, 4: 1 1 1, 5: 1 1 1, 6: 1 1 1);
