//! simd128: 16 floats are four registers, of which an engine has 16. Tiles are one row by one vector.

use super::quant::{self, Packed, Q8};
use super::quantize::{self, DequantizeArgs, QuantizeArgs};
use super::{FoldArgs, KvFormat, MinArgs, ScoreArgs, SoftmaxArgs, ValueArgs, vector};
use crate::lanes::simd128::WasmQuads;
use half::f16;

type Q4 = Packed<4>;
type Q2 = Packed<2>;

vector::entries!(WasmQuads, "simd128", 1: 2 2 2, 2: 1 1 1, 3: 1 1 1, 4: 1 1 1, 5: 1 1 1, 6: 1 1 1);
