//! Plain loops over 16 lanes: the truth.

use super::{ExpandArgs, Factor, Q8_BLOCK, ShrinkArgs};

const LANES: usize = 16;

/// Returns value `at` of a factor.
fn value(factor: &Factor<'_>, at: usize) -> f32 {
    match factor {
        Factor::F32(values) => values[at],
        Factor::F16(values) => values[at].to_f32(),
        Factor::Q8 { quants, scales } => f32::from(quants[at]) * scales[at / Q8_BLOCK],
    }
}

pub(super) fn shrink(args: &mut ShrinkArgs<'_>) {
    for (x, t) in args.x.chunks_exact(args.k).zip(args.t.chunks_exact_mut(args.rank)) {
        for (i, t) in t.iter_mut().enumerate() {
            let mut acc = [0.0; LANES];
            for (at, &x) in x.iter().enumerate() {
                acc[at % LANES] += value(&args.a, i * args.stride + at) * x;
            }
            let mut n = LANES;
            while n > 1 {
                n /= 2;
                (0..n).for_each(|lane| acc[lane] += acc[lane + n]);
            }
            *t = acc[0];
        }
    }
}

pub(super) fn expand(args: &mut ExpandArgs<'_>) {
    for (t, y) in args.t.chunks_exact(args.rank).zip(args.y.chunks_exact_mut(args.n_out)) {
        for (i, t) in t.iter().enumerate() {
            for (j, y) in y.iter_mut().enumerate() {
                *y += t * value(&args.b, i * args.stride + j);
            }
        }
    }
}
