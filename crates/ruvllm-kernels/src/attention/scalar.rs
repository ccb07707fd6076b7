//! The truth: plain loops. Elements become floats 16 at a time, once for all rows.

use super::{BLOCK_TOKENS, FoldArgs, ScoreArgs, SoftmaxArgs, ValueArgs};
use half::f16;
use half::slice::HalfFloatSliceExt;

/// Rows the kernels take at most: any number would do.
pub(super) const CHUNK_ROWS: usize = 6;

/// Scores by format.
pub(super) const SCORES: [unsafe fn(&mut ScoreArgs<'_>); 2] =
    [|args| scores(args, widen_f32), |args| scores(args, widen_f16)];
/// Values by format.
pub(super) const VALUES: [unsafe fn(&mut ValueArgs<'_>); 2] =
    [|args| values(args, widen_f32), |args| values(args, widen_f16)];

/// The 16 elements that begin `16 · n` elements into the bytes, as floats.
type Widen = fn(&[u8], usize) -> [f32; 16];

fn widen_f16(bytes: &[u8], n: usize) -> [f32; 16] {
    let halves: [f16; 16] = bytemuck::pod_read_unaligned(&bytes[32 * n..][..32]);
    let mut to = [0.0; 16];
    halves.convert_to_f32_slice(&mut to);
    to
}

fn widen_f32(bytes: &[u8], n: usize) -> [f32; 16] {
    bytemuck::pod_read_unaligned(&bytes[64 * n..][..64])
}

fn scores(args: &mut ScoreArgs<'_>, widen: Widen) {
    for (block, part) in args.blocks.iter().enumerate() {
        let start = block * BLOCK_TOKENS;
        for row in 0..args.n_rows {
            args.out[row * args.out_stride + start..][..BLOCK_TOKENS].fill(0.0);
        }
        for d in 0..args.shape.k_dim {
            let keys = widen(part.bytes, d);
            for row in 0..args.n_rows {
                let q = args.q[row * args.shape.k_stride() + d];
                let sums = &mut args.out[row * args.out_stride + start..][..BLOCK_TOKENS];
                sums.iter_mut().zip(&keys).for_each(|(sum, key)| *sum += q * key);
            }
        }
    }
}

fn values(args: &mut ValueArgs<'_>, widen: Widen) {
    let v_stride = args.shape.v_stride();
    for token in args.tokens.clone() {
        let part = args.blocks[token / BLOCK_TOKENS];
        for column in (0..v_stride).step_by(16) {
            let values = widen(part.bytes, (token % BLOCK_TOKENS * v_stride + column) / 16);
            for row in 0..args.n_rows {
                let p = args.p[row * args.p_stride + token];
                let sums = &mut args.out[row * v_stride + column..][..16];
                sums.iter_mut().zip(&values).for_each(|(sum, value)| *sum += p * value);
            }
        }
    }
}

pub(super) fn softmax(args: &mut SoftmaxArgs<'_>) -> (f32, f32) {
    let visible = args.visible.clone();
    for (j, score) in args.scores.iter_mut().enumerate() {
        if let Some(cap) = args.softcap {
            *score = cap * (*score / cap).tanh();
        }
        if let Some((slope, distance)) = args.alibi {
            *score -= slope * (distance - j as f32).abs();
        }
        if !visible.contains(&j) {
            *score = f32::NEG_INFINITY;
        }
    }
    let max = args.scores[visible].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in args.scores.iter_mut() {
        *score = (*score - max).exp();
        sum += *score;
    }
    (max, sum)
}

pub(super) fn fold(args: &mut FoldArgs<'_>) -> (f32, f32) {
    let ((old_max, old_sum), (max, sum)) = (args.total, args.span);
    let new_max = old_max.max(max);
    let (old_scale, scale) = ((old_max - new_max).exp(), (max - new_max).exp());
    args.out.iter_mut().zip(args.values).for_each(|(out, value)| *out = *out * old_scale + value * scale);
    (new_max, old_sum * old_scale + sum * scale)
}
