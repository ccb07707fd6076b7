//! AVX-512: 16 floats are one register. 24 accumulators at most, 4 for keys or values, one for the broadcast.
//!
//! Tiles of five rows and more are one column wide: the broadcast of a query or a weight is then part of the one instruction
//! that uses it, and there are sums enough for none to wait for another. A Zen 5 multiplies twice 512 bits at once, as many as
//! it loads: there a broadcast serves two columns.

use super::quant::{self, Packed, Q8};
use super::quantize::{self, DequantizeArgs, QuantizeArgs};
use super::{FoldArgs, KvFormat, MinArgs, ScoreArgs, SoftmaxArgs, ValueArgs, vector};
use crate::lanes::avx512::Zmm;
use half::f16;

type Q4 = Packed<4>;
type Q2 = Packed<2>;

vector::entries!(Zmm, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", 1: 8 4 4, 2: 8 4 4, 3: 4 4 4, 4: 4 4 4, 5: 1 1 4, 6: 1 1 4, 7: 1 1 2, 8: 1 1 2);

/// Wider tiles of five rows and more, for cores that multiply as fast as they load.
pub(super) mod wide {
    use super::*;

    vector::entries!(@tiles Zmm, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", 1: 8 4 4, 2: 8 4 4, 3: 4 4 4, 4: 4 4 4, 5: 2 2 4, 6: 2 2 4, 7: 2 2 2, 8: 2 2 2);
}
