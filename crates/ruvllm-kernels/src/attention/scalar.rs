//! The truth: plain loops.

use super::{BLOCK_TOKENS, ScoreArgs, SoftmaxArgs, ValueArgs};
use half::f16;

fn scores<T: Copy>(args: &mut ScoreArgs<'_, T>, to_f32: impl Fn(T) -> f32) {
    for (row, q) in args.q.chunks_exact(args.k_dim).take(args.n_rows).enumerate() {
        for (block, &offset) in args.offsets.iter().enumerate() {
            let mut sums = [0.0; BLOCK_TOKENS];
            let keys = args.k[offset..offset + args.k_dim * BLOCK_TOKENS].chunks_exact(BLOCK_TOKENS);
            for (&q, keys) in q.iter().zip(keys) {
                for (sum, &key) in sums.iter_mut().zip(keys) {
                    *sum += q * to_f32(key);
                }
            }
            let start = row * args.out_stride + block * BLOCK_TOKENS;
            args.out[start..start + BLOCK_TOKENS].copy_from_slice(&sums);
        }
    }
}

fn values<T: Copy>(args: &mut ValueArgs<'_, T>, to_f32: impl Fn(T) -> f32) {
    for (row, out) in args.out.chunks_exact_mut(args.v_stride).take(args.n_rows).enumerate() {
        for token in args.tokens.clone() {
            let p = args.p[row * args.p_stride + token];
            let start = args.offsets[token / BLOCK_TOKENS] + token % BLOCK_TOKENS * args.v_stride;
            for (out, &value) in out.iter_mut().zip(&args.v[start..start + args.v_stride]) {
                *out += p * to_f32(value);
            }
        }
    }
}

pub(super) fn scores_f16(args: &mut ScoreArgs<'_, f16>) {
    scores(args, f16::to_f32);
}

pub(super) fn scores_f32(args: &mut ScoreArgs<'_, f32>) {
    scores(args, |key| key);
}

pub(super) fn values_f16(args: &mut ValueArgs<'_, f16>) {
    values(args, f16::to_f32);
}

pub(super) fn values_f32(args: &mut ValueArgs<'_, f32>) {
    values(args, |value| value);
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
