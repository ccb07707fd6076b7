//! Speed of a pack's kernels beside native's best, on one thread.

use std::time::{Duration, Instant};

use ruvllm_ggml::GgmlType;
use ruvllm_kernels::Isa;
use ruvllm_pack_kernels::{AttentionInputs, AttentionShape, MatrixShape, Weights};

use crate::check::Inputs;
use crate::error::PackError;
use crate::manifest::{Op, PackKernel};
use crate::pack::Pack;

/// Values of a row.
const ROW: usize = 4096;
/// Rows of a matrix.
const N_OUT: usize = 512;
/// Attention of a small model after a long prompt.
const ATTENTION: AttentionShape = AttentionShape { n_heads: 8, n_kv_heads: 2, dim: 64, n_kv: 2048 };
/// Shortest time that a kernel is measured, per side.
const LEAST: Duration = Duration::from_millis(60);

/// Time of a kernel in a pack and natively.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// The kernel with its type.
    pub kernel: String,
    /// Microseconds of a call of the pack, the fastest of all.
    pub pack_us: f64,
    /// Microseconds of native's best instruction set on one thread, the fastest of all.
    pub native_us: f64,
}

impl Timing {
    /// Returns how many times as fast as native the pack is.
    pub fn speed(&self) -> f64 {
        self.native_us / self.pack_us
    }
}

/// Measures every kernel of a pack.
///
/// # Errors
/// A kernel fails.
pub fn bench(pack: &mut Pack) -> Result<Vec<Timing>, PackError> {
    let kernels = pack.manifest().each();
    let measure = |kernel: PackKernel| {
        let (pack_us, native_us) = match (kernel.op, kernel.ty) {
            (Op::Embed, Some(ty)) => embed(pack, ty)?,
            (Op::Quantize, Some(ty)) => quantize(pack, ty)?,
            (Op::Matmul, Some(ty)) => matmul(pack, ty)?,
            _ => attention(pack)?,
        };
        Ok(Timing { kernel: kernel.to_string(), pack_us, native_us })
    };
    kernels.into_iter().map(measure).collect()
}

/// Microseconds of a pack and of native.
type Pair = (f64, f64);

fn embed(pack: &mut Pack, ty: GgmlType) -> Result<Pair, PackError> {
    let (row, mut out) = (Inputs::fixed().rows(ty, 1, ROW, 1.0)?, vec![0.0; ROW]);
    let pack_us = fastest(|| pack.embed(ty, &row, &mut out))?;
    let native_us = fastest(|| {
        ruvllm_pack_kernels::embed(Isa::best(), ty, &row, &mut out);
        Ok(())
    })?;
    Ok((pack_us, native_us))
}

fn quantize(pack: &mut Pack, ty: GgmlType) -> Result<Pair, PackError> {
    let row = Inputs::fixed().values(ROW, 1.0);
    let mut out = vec![0; Inputs::fixed().rows(ty, 1, ROW, 1.0)?.len()];
    let pack_us = fastest(|| pack.quantize(ty, &row, &mut out))?;
    let native_us = fastest(|| {
        ruvllm_pack_kernels::quantize(ty, &row, &mut out);
        Ok(())
    })?;
    Ok((pack_us, native_us))
}

fn matmul(pack: &mut Pack, ty: GgmlType) -> Result<Pair, PackError> {
    let (mut inputs, shape) = (Inputs::fixed(), MatrixShape { n_out: N_OUT, n_in: ROW });
    let (weights, x) = (inputs.rows(ty, N_OUT, ROW, 1.0)?, inputs.values(ROW, 1.0));
    let mut out = vec![0.0; N_OUT];
    let matrix = pack.load(ty, shape, &weights)?;
    let pack_us = fastest(|| pack.matmul(&matrix, &x, 1, &mut out))?;
    pack.unload(matrix)?;
    let weights = Weights::new(Isa::best(), ty, shape, &weights);
    let native_us = fastest(|| {
        weights.multiply(&x, 1, &mut out);
        Ok(())
    })?;
    Ok((pack_us, native_us))
}

fn attention(pack: &mut Pack) -> Result<Pair, PackError> {
    let mut inputs = Inputs::fixed();
    let n_keys = ATTENTION.n_keys().expect("the shape is sound");
    let [q, k, v] = [ATTENTION.n_heads * ATTENTION.dim, n_keys, n_keys].map(|n| inputs.values(n, 1.0));
    let (inputs, mut out) = (AttentionInputs { q: &q, k: &k, v: &v }, vec![0.0; q.len()]);
    let pack_us = fastest(|| pack.attention(ATTENTION, inputs, &mut out))?;
    let native_us = fastest(|| {
        ruvllm_pack_kernels::attention(Isa::best(), ATTENTION, inputs, &mut out);
        Ok(())
    })?;
    Ok((pack_us, native_us))
}

/// Returns the microseconds of the fastest call.
fn fastest(mut call: impl FnMut() -> Result<(), PackError>) -> Result<f64, PackError> {
    let (begin, mut fastest) = (Instant::now(), Duration::MAX);
    while fastest == Duration::MAX || begin.elapsed() < LEAST {
        let start = Instant::now();
        call()?;
        fastest = fastest.min(start.elapsed());
    }
    Ok(fastest.as_secs_f64() * 1e6)
}
