//! The truth: plain loops. Keys and values become floats 16 at a time, once for all rows.

use super::scalar_quant::{keys, row};
use super::{
    BLOCK_TOKENS, FoldArgs, KvFormat, MaxSum, MinArgs, SPAN_TOKENS, ScoreArgs, SoftmaxArgs, ValueArgs, whole_blocks,
};

pub(super) use super::scalar_quant::{dequantize, quantize};

/// Rows the kernels take at most: any number would do.
pub(super) const CHUNK_ROWS: usize = 6;

/// Scores by format: one kernel, which asks each block.
pub(super) const SCORES: [unsafe fn(&mut ScoreArgs<'_>); KvFormat::COUNT] = [scores; KvFormat::COUNT];
/// Values by format: one kernel, which asks each block.
pub(super) const VALUES: [unsafe fn(&mut ValueArgs<'_>); KvFormat::COUNT] = [values; KvFormat::COUNT];

fn scores(args: &mut ScoreArgs<'_>) {
    for block in 0..args.blocks.len() {
        let part = args.blocks.get(block);
        let start = block * BLOCK_TOKENS;
        for row in 0..args.n_rows {
            args.out[row * SPAN_TOKENS + start..][..BLOCK_TOKENS].fill(0.0);
        }
        for d in 0..args.shape.k_dim {
            let keys = keys(args.format, args.shape, &part, d);
            for row in 0..args.n_rows {
                let q = args.q[row * args.shape.k_stride() + d];
                let sums = &mut args.out[row * SPAN_TOKENS + start..][..BLOCK_TOKENS];
                sums.iter_mut().zip(&keys).for_each(|(sum, key)| *sum += q * key);
            }
        }
    }
}

fn values(args: &mut ValueArgs<'_>) {
    let v_stride = args.shape.v_stride();
    for token in args.tokens.clone() {
        let part = args.blocks.get(token / BLOCK_TOKENS);
        for column in (0..v_stride).step_by(16) {
            let values = row(args.format, args.shape, &part, token % BLOCK_TOKENS, column);
            for row in 0..args.n_rows {
                let p = args.p[row * SPAN_TOKENS + token];
                let sums = &mut args.out[row * v_stride + column..][..16];
                sums.iter_mut().zip(&values).for_each(|(sum, value)| *sum += p * value);
            }
        }
    }
}

/// The minima are part of the values here.
pub(super) fn mins(args: &mut MinArgs<'_>) {
    args.out.fill(0.0);
}

pub(super) fn softmax(args: &mut SoftmaxArgs<'_>) {
    for (r, row) in args.scores.chunks_exact_mut(SPAN_TOKENS).enumerate() {
        let visible = args.visible[r].clone();
        let whole = whole_blocks(&visible);
        for (j, score) in whole.clone().zip(&mut row[whole.clone()]) {
            if let Some(cap) = args.softcap {
                *score = cap * (*score / cap).tanh();
            }
            if let Some(rows) = args.alibi {
                let (slope, distance) = rows[r];
                *score -= slope * (distance - j as f32).abs();
            }
            if !visible.contains(&j) {
                *score = f32::NEG_INFINITY;
            }
        }
        let max = row[visible].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for score in &mut row[whole] {
            *score = (*score - max).exp();
            sum += *score;
        }
        args.totals[r] = MaxSum { max, sum };
    }
}

pub(super) fn fold(args: &mut FoldArgs<'_>) -> MaxSum {
    let FoldArgs { total, span, .. } = *args;
    let max = total.max.max(span.max);
    let (old_scale, scale) = ((total.max - max).exp(), (span.max - max).exp());
    args.out.iter_mut().zip(args.values).for_each(|(out, value)| *out = *out * old_scale + value * scale);
    MaxSum { max, sum: total.sum * old_scale + span.sum * scale }
}
