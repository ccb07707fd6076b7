//! Rotary embedding against f64, in every row of the table.

use super::*;
use crate::Isa;
use proptest::prelude::*;

const STYLES: [RopeStyle; 2] = [RopeStyle::Norm, RopeStyle::Neox];

fn config(n_rot: usize, scaling: RopeScaling) -> RopeConfig {
    RopeConfig { style: RopeStyle::Neox, n_rot, base: 10_000.0, scaling, attn_factor: 1.0, freq_factors: None }
}

/// Bound: three roundings of the products and their sum, each at most ε/2 of `|a·cos| + |b·sin|`.
fn check_rotate(style: RopeStyle, heads: &[f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let n_pairs = cos.len();
    for table in available() {
        let mut got = heads.to_vec();
        table.rotate(style, &mut got, head_dim, cos, sin);
        for (head, got) in heads.chunks(head_dim).zip(got.chunks(head_dim)) {
            for i in 0..n_pairs {
                let (ia, ib) = match style {
                    RopeStyle::Norm => (2 * i, 2 * i + 1),
                    RopeStyle::Neox => (i, i + n_pairs),
                };
                let [a, b, c, s] = [head[ia], head[ib], cos[i], sin[i]].map(f64::from);
                for (got, p, q) in [(got[ia], a * c, -b * s), (got[ib], a * s, b * c)] {
                    let bound = 1.5 * f64::from(f32::EPSILON) * (p.abs() + q.abs()) + 1e-44;
                    assert!((f64::from(got) - (p + q)).abs() <= bound, "{} {style:?}: {got}", table.isa());
                }
            }
            assert_eq!(got[2 * n_pairs..], head[2 * n_pairs..], "{} {style:?}: the rest must stay", table.isa());
        }
    }
}

#[test]
fn every_even_width() {
    for head_dim in [2, 64, 80, 128, 256] {
        let heads: Vec<f32> = (0..3 * head_dim).map(|i| (i as f32 * 0.77).sin() * 3.0).collect();
        for n_rot in (2..=head_dim).step_by(2) {
            let rope = Rope::new(&config(n_rot, RopeScaling::None));
            let (mut cos, mut sin) = (vec![0.0; n_rot / 2], vec![0.0; n_rot / 2]);
            rope.angles(1234, &mut cos, &mut sin);
            STYLES.iter().for_each(|&style| check_rotate(style, &heads, head_dim, &cos, &sin));
        }
    }
}

/// llama.cpp's way in f32: the angle is multiplied on from pair to pair (`ggml_rope_cache_init`, `rope_yarn`).
fn as_llama_cpp(config: &RopeConfig, pos: u32) -> Vec<(f32, f32)> {
    let n_rot = config.n_rot as f32;
    let (factor, yarn) = match config.scaling {
        RopeScaling::None => (1.0, None),
        RopeScaling::Linear { factor } => (factor, None),
        RopeScaling::Yarn { factor, n_ctx_orig, ext_factor, attn_factor, beta_fast, beta_slow } => {
            let dim = |n_turns: f32| {
                n_rot * (n_ctx_orig as f32 / (n_turns * 2.0 * std::f32::consts::PI)).ln() / (2.0 * config.base.ln())
            };
            let (low, high) = (dim(beta_fast).floor().max(0.0), dim(beta_slow).ceil().min(n_rot - 1.0));
            (factor, Some((low, high, ext_factor, attn_factor)))
        }
    };
    let (freq_scale, theta_scale) = (1.0 / factor, config.base.powf(-2.0 / n_rot));
    let mut theta_plain = pos as f32;
    (0..config.n_rot / 2)
        .map(|i| {
            let extrapolated = theta_plain / config.freq_factors.as_ref().map_or(1.0, |f| f[i]);
            theta_plain *= theta_scale;
            let (mut theta, mut scale) = (freq_scale * extrapolated, config.attn_factor);
            if let Some((low, high, ext_factor, attn_factor)) = yarn {
                scale *= attn_factor;
                if ext_factor != 0.0 {
                    let y = (i as f32 - low) / (high - low).max(0.001);
                    let mix = (1.0 - y.clamp(0.0, 1.0)) * ext_factor;
                    theta = theta * (1.0 - mix) + extrapolated * mix;
                    scale *= 1.0 + 0.1 * (1.0 / freq_scale).ln();
                }
            }
            (theta.cos() * scale, theta.sin() * scale)
        })
        .collect()
}

/// Bound: llama.cpp's angle carries `i + 5` f32 roundings, and a cosine changes no faster than its angle.
fn check_angles(config: &RopeConfig) {
    let rope = Rope::new(config);
    assert_eq!((rope.n_rot(), rope.style()), (config.n_rot, config.style));
    let (mut cos, mut sin) = (vec![0.0; config.n_rot / 2], vec![0.0; config.n_rot / 2]);
    for pos in [0, 1, 17, 511, 4096, 100_000] {
        rope.angles(pos, &mut cos, &mut sin);
        for (i, (c, s)) in as_llama_cpp(config, pos).into_iter().enumerate() {
            let frequency = config.base.powf(-2.0 * i as f32 / config.n_rot as f32);
            let bound = 2.0 * f32::EPSILON * (4.0 + pos as f32 * frequency * (i as f32 + 5.0));
            let error = (cos[i] - c).abs().max((sin[i] - s).abs());
            assert!(error <= bound, "pos {pos}, pair {i}: {error:e} > {bound:e} for {config:?}");
        }
    }
}

#[test]
fn angles_agree_with_llama_cpp() {
    let yarn = |factor, ext_factor, attn_factor| RopeScaling::Yarn {
        factor,
        n_ctx_orig: 4096,
        ext_factor,
        attn_factor,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    check_angles(&config(64, RopeScaling::None));
    check_angles(&config(64, RopeScaling::Linear { factor: 4.0 }));
    check_angles(&config(128, yarn(4.0, 1.0, 1.0)));
    check_angles(&config(128, yarn(32.0, 1.0, 1.2)));
    check_angles(&config(128, yarn(16.0, 0.0, 0.7)));
    check_angles(&config(2, yarn(4.0, 1.0, 1.0)));
    check_angles(&RopeConfig { base: 1e6, ..config(96, yarn(8.0, 0.5, 1.0)) });
    let factors = (0..32).map(|i| 1.0 + i as f32 * 0.25).collect();
    let llama3 = RopeConfig { base: 5e5, freq_factors: Some(factors), ..config(64, RopeScaling::None) };
    check_angles(&llama3);
    check_angles(&RopeConfig { attn_factor: 1.19, ..llama3 });
}

#[test]
fn angles_stay_exact_far_out() {
    let rope = Rope::new(&config(4, RopeScaling::None));
    let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
    rope.angles(1_000_000, &mut cos, &mut sin);
    assert_eq!(cos, [1e6f64.cos() as f32, 1e4f64.cos() as f32]);
    assert_eq!(sin, [1e6f64.sin() as f32, 1e4f64.sin() as f32]);
}

#[test]
#[should_panic(expected = "rope: 4 cosines, 4 sines for heads of 6")]
fn rotate_checks_shapes() {
    pick(Isa::best()).rotate(RopeStyle::Norm, &mut [0.0; 12], 6, &[1.0; 4], &[0.0; 4]);
}

#[test]
#[should_panic(expected = "rope: cannot rotate 7 dimensions in pairs")]
fn odd_widths_are_refused() {
    Rope::new(&config(7, RopeScaling::None));
}

proptest! {
    #[test]
    fn random_heads(
        n_heads in 0usize..5,
        n_pairs in 0usize..40,
        n_rest in 1usize..20,
        start in 0usize..5,
        seed in prop::collection::vec(-1e3f32..1e3, 600),
        angles in prop::collection::vec(-7f32..7.0, 40),
    ) {
        let head_dim = 2 * n_pairs + n_rest;
        let heads: Vec<f32> = seed.iter().cycle().skip(start).take(start + n_heads * head_dim).copied().collect();
        let cos: Vec<f32> = angles[..n_pairs].iter().map(|a| a.cos()).collect();
        let sin: Vec<f32> = angles[..n_pairs].iter().map(|a| a.sin()).collect();
        STYLES.iter().for_each(|&style| check_rotate(style, &heads[start..], head_dim, &cos, &sin));
    }
}
