//! Values and gradients against the same in candle's own operations.

use candle_core::{D, Tensor, Var};
use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::RopeStyle;

use super::*;
use std::sync::Arc;

fn noise(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 53 + seed * 17) as f32 * 0.371).sin() * 0.9).collect()
}

fn var(n_rows: usize, n_cols: usize, seed: usize) -> Var {
    Var::from_tensor(&tensor(noise(n_rows * n_cols, seed), (n_rows, n_cols)).expect("a tensor")).expect("a variable")
}

fn close(found: &[f32], expected: &[f32], bound: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let most = found.iter().zip(expected).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    let size = expected.iter().fold(1e-3f32, |max, x| max.max(x.abs()));
    assert!(most <= bound * size, "{what}: {most:e} off of {size}");
}

/// Compares two ways to compute the same, and the gradients of all variables through a weighted sum.
fn check(what: &str, vars: &[&Var], own: &Tensor, other: &Tensor) {
    let bound = 2e-5;
    close(&to_vec(own).expect("values"), &to_vec(other).expect("values"), bound, what);
    let n = own.elem_count();
    let grads = |y: &Tensor| {
        let weights = tensor(noise(n, 99), y.shape()).expect("a tensor");
        (y * weights).and_then(|y| y.sum_all()).and_then(|y| y.backward()).expect("a gradient")
    };
    let (own, other) = (grads(own), grads(other));
    for (i, var) in vars.iter().enumerate() {
        let of =
            |grads: &candle_core::backprop::GradStore| to_vec(grads.get(var).expect("it is used")).expect("values");
        close(&of(&own), &of(&other), bound, &format!("{what}, gradient {i}"));
    }
}

#[test]
fn linear_layers() {
    let (n, n_in, n_out, rank) = (7, 12, 9, 3);
    let (weight, bias) = (noise(n_out * n_in, 1), noise(n_out, 2));
    let linear = Arc::new(Linear::new(weight.clone(), n_out, n_in, Some(bias.clone()), 0.5).expect("a layer"));
    let (x, a, b) = (var(n, n_in, 3), var(rank, n_in, 4), var(n_out, rank, 5));
    let w = tensor(weight, (n_out, n_in)).expect("a tensor");
    let base =
        x.matmul(&w.t().expect("a view")).and_then(|y| y.broadcast_add(&tensor(bias, n_out)?)).expect("a product");
    check("frozen", &[&x], &x.apply_op1(Apply(Arc::clone(&linear))).expect("it fits"), &base);
    let low = x.matmul(&a.t().expect("a view")).and_then(|t| t.matmul(&b.t()?)).and_then(|y| y.affine(0.5, 0.0));
    let own = x.apply_op3(&a, &b, Apply(linear)).expect("it fits");
    check("adapted", &[&x, &a, &b], &own, &(base + low.expect("a product")).expect("a sum"));
}

#[test]
fn norms() {
    let x = var(10, 8, 1);
    let native = |width: usize, weight: &[f32], bias: Option<&[f32]>, is_layer: bool| -> candle_core::Result<Tensor> {
        let x = x.reshape((80 / width, width))?;
        let x = if is_layer { x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)? } else { x };
        let by = (x.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
        let n_sets = weight.len() / width;
        let all = x.broadcast_div(&by)?.reshape((80 / weight.len(), n_sets, width))?;
        let all = all.broadcast_mul(&tensor(weight.to_vec(), (n_sets, width))?)?;
        let all = match bias {
            Some(bias) => all.broadcast_add(&tensor(bias.to_vec(), (n_sets, width))?)?,
            None => all,
        };
        all.reshape((10, 8))
    };
    for (is_layer, width, n_sets) in [(false, 8, 1), (true, 8, 1), (false, 4, 1), (true, 4, 2)] {
        let (weight, bias) = (noise(width * n_sets, 7), is_layer.then(|| noise(width * n_sets, 8)));
        let spec = NormWeights { is_layer, width, weight: weight.clone(), bias: bias.clone(), eps: 1e-5 };
        let own = x.apply_op1(Norm(Arc::new(spec))).expect("it fits");
        let other = native(width, &weight, bias.as_deref(), is_layer).expect("it fits");
        check(&format!("layer {is_layer}, {n_sets} x {width}"), &[&x], &own, &other);
    }
}

#[test]
fn activations() {
    let (gate, up) = (var(6, 40, 1), var(6, 40, 2));
    let native = |act: Activation| match act {
        Activation::Silu => gate.silu(),
        Activation::GeluTanh => gate.gelu(),
        Activation::GeluErf => gate.gelu_erf(),
        Activation::Relu => gate.relu(),
        Activation::ReluSqr => gate.relu().and_then(|x| x.sqr()),
    };
    for act in Activation::ALL {
        let other = native(act).expect("it is there");
        check(&format!("{act:?}"), &[&gate], &gate.apply_op1(Activate(act)).expect("it fits"), &other);
        let own = gate.apply_op2(&up, Gate(act)).expect("it fits");
        check(&format!("gated {act:?}"), &[&gate, &up], &own, &(&other * &*up).expect("it fits"));
    }
}

#[test]
fn the_gradient_of_a_rotation_turns_back() {
    let (n, head_dim) = (5, 8);
    let angles: Vec<f32> = noise(n * 3, 4);
    for style in [RopeStyle::Norm, RopeStyle::Neox] {
        let x = var(n, 2 * head_dim, 1);
        let turn = Rotate {
            style,
            head_dim,
            cos: angles.iter().map(|x| 1.1 * x.cos()).collect(),
            sin: angles.iter().map(|x| 1.1 * x.sin()).collect(),
        };
        let y = x.apply_op1(turn.clone()).expect("it fits");
        let g = noise(n * 2 * head_dim, 9);
        let sum = (&y * tensor(g.clone(), y.shape()).expect("a tensor")).and_then(|y| y.sum_all()).expect("a sum");
        let d = to_vec(sum.backward().expect("a gradient").get(&x).expect("it is used")).expect("values");
        // A linear map: its value is the gradient's product with x.
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let (value, found) = (dot(&g, &to_vec(&y).expect("values")), dot(&d, &to_vec(&x).expect("values")));
        assert!((value - found).abs() < 1e-4, "{style:?}: {value} and {found}");
    }
}

#[test]
fn attention_sees_its_own_sequence_as_far_as_it_may() {
    let (lengths, n_heads, n_kv_heads, k_dim, v_dim) = ([5usize, 1, 6], 4, 2, 6, 4);
    let n: usize = lengths.iter().sum();
    let (q, k, v) = (var(n, n_heads * k_dim, 1), var(n, n_kv_heads * k_dim, 2), var(n, n_kv_heads * v_dim, 3));
    let cases = [(None, None, true), (Some(3.0), None, true), (None, Some(3), true), (Some(2.0), None, false)];
    for (softcap, window, is_causal) in cases {
        let geometry = Geometry { n_heads, n_kv_heads, k_dim, v_dim, scale: 0.4, softcap, window, is_causal };
        // One mask over all rows, head by head.
        let native = || -> candle_core::Result<Tensor> {
            let whose: Vec<usize> = lengths.iter().enumerate().flat_map(|(i, &n)| std::iter::repeat_n(i, n)).collect();
            let may = |i: usize, j: usize| {
                whose[i] == whose[j] && (!is_causal || j <= i) && window.is_none_or(|window| j + window > i)
            };
            let mask = (0..n * n).map(|at| if may(at / n, at % n) { 0.0 } else { -1e9 }).collect();
            let mask = tensor(mask, (n, n))?;
            let mut heads = Vec::new();
            for head in 0..n_heads {
                let own = head / (n_heads / n_kv_heads);
                let q = q.narrow(1, head * k_dim, k_dim)?.contiguous()?;
                let k = k.narrow(1, own * k_dim, k_dim)?.contiguous()?;
                let s = q.matmul(&k.t()?)?.affine(0.4, 0.0)?;
                let s = match softcap {
                    Some(cap) => s.affine(1.0 / f64::from(cap), 0.0)?.tanh()?.affine(f64::from(cap), 0.0)?,
                    None => s,
                };
                let e = (s + &mask)?.exp()?;
                let p = e.broadcast_div(&e.sum_keepdim(1)?)?;
                heads.push(p.matmul(&v.narrow(1, own * v_dim, v_dim)?.contiguous()?)?);
            }
            Tensor::cat(&heads, 1)
        };
        let op = Attend { geometry, lengths: lengths.to_vec().into() };
        let own = q.apply_op3(&k, &v, op).expect("it fits");
        check(&format!("{softcap:?} {window:?} {is_causal}"), &[&q, &k, &v], &own, &native().expect("it fits"));
    }
}

#[test]
fn log_probabilities() {
    let (n, n_embd, n_vocab) = (6, 10, 30);
    let (weight, tokens) = (noise(n_vocab * n_embd, 1), vec![3u32, 29, 0, 7, 7, 15]);
    for (scale, softcap, with_bias) in [(1.0, None, false), (0.5, None, true), (2.0, Some(3.0), false)] {
        let x = var(n, n_embd, 2);
        let bias = with_bias.then(|| noise(n_vocab, 5));
        let native = || -> candle_core::Result<Tensor> {
            let w = tensor(weight.clone(), (n_vocab, n_embd))?;
            let mut l = x.matmul(&w.t()?)?;
            if let Some(bias) = &bias {
                l = l.broadcast_add(&tensor(bias.clone(), n_vocab)?)?;
            }
            l = l.affine(scale, 0.0)?;
            if let Some(cap) = softcap {
                l = l.affine(1.0 / cap, 0.0)?.tanh()?.affine(cap, 0.0)?;
            }
            let all = l.broadcast_sub(&l.exp()?.sum_keepdim(1)?.log()?)?;
            all.gather(&Tensor::from_slice(&tokens, (n, 1), all.device())?, 1)?.reshape(n)
        };
        let how = (scale as f32, softcap.map(|cap| cap as f32));
        let head = Arc::new(Head::new(weight.clone(), n_embd, bias.clone(), how.0, how.1).expect("a head"));
        let own = x.apply_op1(LogProbs::new(&head, tokens.clone(), true)).expect("it fits");
        check(&format!("{scale} {softcap:?}"), &[&x], &own, &native().expect("it fits"));
        assert!(x.apply_op1(LogProbs::new(&head, vec![30; n], true)).is_err());
    }
}
