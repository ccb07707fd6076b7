//! Attention of one query over keys and values in a row.

use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::Isa;
use ruvllm_kernels::attention::{
    self, BLOCK_TOKENS, Inputs, KvBlock, KvFormat, KvLayer, KvShape, KvUnits, KvUnitsMut, Limits, Options, Scratch,
    Segment,
};

/// Shape of an attention: one query that sees all positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads, a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Length of a head.
    pub dim: usize,
    /// Positions, at least one.
    pub n_kv: usize,
}

impl AttentionShape {
    /// Returns the values of the keys, which are those of the values too; none if there is no such shape or it overflows.
    pub fn n_keys(self) -> Option<usize> {
        let is_sound =
            self.n_kv > 0 && self.dim > 0 && self.n_kv_heads > 0 && self.n_heads.is_multiple_of(self.n_kv_heads);
        self.n_kv.checked_mul(self.n_kv_heads)?.checked_mul(self.dim).filter(|_| is_sound && self.n_heads > 0)
    }

    /// Returns the values of the query and of the result; none if they overflow.
    pub fn n_query(self) -> Option<usize> {
        self.n_heads.checked_mul(self.dim)
    }
}

/// Inputs of [`attention()`] in single precision.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInputs<'a> {
    /// The query, `[n_heads, dim]`.
    pub q: &'a [f32],
    /// Keys, `[n_kv, n_kv_heads, dim]`.
    pub k: &'a [f32],
    /// Values, as the keys.
    pub v: &'a [f32],
}

/// Attends with scale `1/√dim`: `out[head] = softmax(q[head]·Kᵀ/√dim)·V`. Shapes: `out`: `[n_heads, dim]`.
///
/// # Panics
/// If there is no such shape or a length is another.
pub fn attention(isa: Isa, shape: AttentionShape, inputs: AttentionInputs<'_>, out: &mut [f32]) {
    assert_eq!(shape.n_keys(), Some(inputs.k.len()), "attention: keys of {shape:?}");
    let AttentionShape { n_heads, n_kv_heads, dim, n_kv } = shape;
    let (threads, kv_shape) = (ThreadPool::new(1), KvShape { n_kv_heads, k_dim: dim, v_dim: dim });
    let (format, n_blocks) = (KvFormat::F32, n_kv.div_ceil(BLOCK_TOKENS));
    let (k_at, v_at) = (0, format.k_bytes(kv_shape));
    let stride = v_at + format.v_bytes(kv_shape);
    let mut pages = vec![0_u32; n_blocks * stride / 4];
    let pages: &mut [u8] = bytemuck::cast_slice_mut(&mut pages);
    let blocks: Vec<KvBlock> = (0..n_blocks).map(|i| KvBlock::new(format, i)).collect();
    let all = Segment { first_row: 0, n_rows: n_kv, pos: 0, n_kv, blocks: &blocks };
    let units = KvUnitsMut { format, bytes: pages, stride, k_at, v_at };
    attention::store(&threads, kv_shape, units, &[all], inputs.k, inputs.v);

    let kv = KvLayer::default().with(format, KvUnits { bytes: pages, stride, k_at, v_at });
    let last = Segment { first_row: 0, n_rows: 1, pos: n_kv - 1, n_kv, blocks: &blocks };
    let options = Options::causal(n_heads, kv_shape);
    let inputs = Inputs { options: &options, kv, segments: &[last], q: inputs.q };
    let mut scratch = Scratch::new(1, Limits { n_heads, k_dim: dim, v_dim: dim, n_ctx: n_kv });
    attention::attend(attention::pick(isa), &threads, &mut scratch, &inputs, out);
}
