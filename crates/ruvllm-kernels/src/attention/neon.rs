//! NEON: 16 floats are four registers. 24 accumulators at most, 4 for keys or values, one for the broadcast.

use super::quant::{self, Packed, Q8};
use super::quantize::{self, DequantizeArgs, QuantizeArgs};
use super::{FoldArgs, KvFormat, MinArgs, ScoreArgs, SoftmaxArgs, ValueArgs, vector};
use crate::lanes::neon::NeonQuads;
use half::f16;

type Q4 = Packed<4>;
type Q2 = Packed<2>;

vector::entries!(NeonQuads, "neon", 1: 2 2 4, 2: 2 2 2, 3: 2 2 2, 4: 1 1 1, 5: 1 1 1, 6: 1 1 1);
