//! The truth: plain loops. Elements become floats 16 at a time, once for all rows.

use super::{BLOCK_TOKENS, FoldArgs, ScoreArgs, SoftmaxArgs, ValueArgs};
use half::f16;
use half::slice::HalfFloatSliceExt;

/// Rows the kernels take at most: any number would do.
pub(super) const CHUNK_ROWS: usize = 6;

/// 16 elements as floats.
type Widen<T> = fn(&[T]) -> [f32; 16];

fn widen_f16(from: &[f16]) -> [f32; 16] {
    let mut to = [0.0; 16];
    from.convert_to_f32_slice(&mut to);
    to
}

fn widen_f32(from: &[f32]) -> [f32; 16] {
    from.try_into().expect("callers pass 16")
}

fn scores<T>(args: &mut ScoreArgs<'_, T>, widen: Widen<T>) {
    for (block, &offset) in args.offsets.iter().enumerate() {
        let start = block * BLOCK_TOKENS;
        for row in 0..args.n_rows {
            args.out[row * args.out_stride + start..][..BLOCK_TOKENS].fill(0.0);
        }
        for d in 0..args.k_dim {
            let keys = widen(&args.k[offset + d * BLOCK_TOKENS..][..BLOCK_TOKENS]);
            for row in 0..args.n_rows {
                let q = args.q[row * args.k_dim + d];
                let sums = &mut args.out[row * args.out_stride + start..][..BLOCK_TOKENS];
                sums.iter_mut().zip(&keys).for_each(|(sum, key)| *sum += q * key);
            }
        }
    }
}

fn values<T>(args: &mut ValueArgs<'_, T>, widen: Widen<T>) {
    for token in args.tokens.clone() {
        let start = args.offsets[token / BLOCK_TOKENS] + token % BLOCK_TOKENS * args.v_stride;
        for column in (0..args.v_stride).step_by(16) {
            let values = widen(&args.v[start + column..][..16]);
            for row in 0..args.n_rows {
                let p = args.p[row * args.p_stride + token];
                let sums = &mut args.out[row * args.v_stride + column..][..16];
                sums.iter_mut().zip(&values).for_each(|(sum, value)| *sum += p * value);
            }
        }
    }
}

pub(super) fn scores_f16(args: &mut ScoreArgs<'_, f16>) {
    scores(args, widen_f16);
}

pub(super) fn scores_f32(args: &mut ScoreArgs<'_, f32>) {
    scores(args, widen_f32);
}

pub(super) fn values_f16(args: &mut ValueArgs<'_, f16>) {
    values(args, widen_f16);
}

pub(super) fn values_f32(args: &mut ValueArgs<'_, f32>) {
    values(args, widen_f32);
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
