//! A toy model that learns, to the same bits twice and over an interruption; MicroLoRA's gradient against candle's; and data that are
//! not what they should be.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{Tensor, Var};
use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::rope::{RopeScaling, RopeStyle};
use ruvllm_model::{
    AttentionSpec, FfnSpec, InputSpec, LayerSpec, LinearSpec, MixerSpec, MlpSpec, ModelSpec, NormKind, NormSpec,
    OutputSpec, Pooling, RopeSpec, TensorRows, Wiring,
};
use serde_json::{Value, json};

use super::ops::{tensor, to_vec};
use super::*;
use crate::format::ModelFacts;
use crate::micro::{HeadRows, MicroLora};
use crate::{BaseWeights, LoraError, Target, Targets};

mod data;

fn noise(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 53 + seed * 17) as f32 * 0.371).sin() * 0.3).collect()
}

const N_EMBD: usize = 16;
const N_VOCAB: usize = 40;

/// Matrices by name: `[n_out, n_in]`.
struct Weights(HashMap<String, (usize, Vec<f32>)>);

impl BaseWeights for Weights {
    fn row(&self, tensor: &str, row: usize, out: &mut [f32]) -> Result<(), LoraError> {
        let (n_in, values) = &self.0[tensor];
        out.copy_from_slice(&values[row * n_in..(row + 1) * n_in]);
        Ok(())
    }

    fn values(&self, rows: &TensorRows) -> Result<Vec<f32>, LoraError> {
        Ok(self.0[rows.tensor.trim_end_matches(".weight")].1[rows.values()].to_vec())
    }
}

/// Two layers with a fused gate and up, as Phi-3 has them, and a head.
fn toy() -> TrainModel {
    let (mut all, mut weights) = (Vec::new(), HashMap::new());
    let mut add = |tensor: &str, rows: std::ops::Range<usize>, n_in: usize, alias: Option<&str>| {
        all.push(Target { tensor: tensor.to_owned(), rows, alias: alias.map(str::to_owned), n_in });
        let n_out = all.iter().filter(|t| t.tensor == tensor).map(|t| t.rows.end).max().expect("one");
        weights.insert(tensor.to_owned(), (n_in, noise(n_out * n_in, all.len())));
        let target = &all[all.len() - 1];
        LinearSpec {
            id: all.len() - 1,
            weight: TensorRows { tensor: tensor.to_owned(), rows: target.rows.clone(), n_cols: n_in },
            bias: None,
            name: tensor.to_owned(),
            name_rows: target.rows.clone(),
            alias: target.alias.clone(),
        }
    };
    let norm =
        || Some(NormSpec { kind: NormKind::Rms, weight: TensorRows::whole("ones", 1, N_EMBD), bias: None, eps: 1e-5 });
    let layers = (0..2).map(|i| {
        let name = |part: &str| format!("blk.{i}.{part}");
        let (up, gate) = (name("ffn_up"), name("ffn_gate"));
        LayerSpec {
            mixer_norm: norm(),
            mixer: MixerSpec::Attention(AttentionSpec {
                q: add(&name("attn_q"), 0..16, 16, None),
                k: add(&name("attn_k"), 0..8, 16, None),
                v: add(&name("attn_v"), 0..8, 16, None),
                o: add(&name("attn_output"), 0..16, 16, None),
                q_norm: None,
                k_norm: None,
                n_heads: 2,
                n_kv_heads: 1,
                k_dim: 8,
                v_dim: 8,
                rope: Some(0),
                scale: 0.35,
                softcap: None,
                window: None,
                is_causal: true,
                sinks: None,
            }),
            mixer_post_norm: None,
            ffn_norm: norm(),
            ffn: Some(FfnSpec::Mlp(MlpSpec {
                gate: Some(add(&up, 0..24, 16, Some(&gate))),
                up: add(&up, 24..48, 16, None),
                down: add(&name("ffn_down"), 0..16, 24, None),
                activation: Activation::Silu,
            })),
            ffn_post_norm: None,
            wiring: Wiring::Sequential,
        }
    });
    let layers: Vec<LayerSpec> = layers.collect();
    let head = Some(add("output", 0..N_VOCAB, N_EMBD, None));
    weights.insert("token_embd".to_owned(), (N_EMBD, noise(N_VOCAB * N_EMBD, 77).iter().map(|x| 3.0 * x).collect()));
    weights.insert("ones".to_owned(), (N_EMBD, vec![1.0; N_EMBD]));
    let tokens = TensorRows::whole("token_embd.weight", N_VOCAB, N_EMBD);
    let (style, scaling) = (RopeStyle::Neox, RopeScaling::None);
    let spec = ModelSpec {
        arch: "phi3".to_owned(),
        n_embd: N_EMBD,
        n_vocab: N_VOCAB,
        n_ctx_train: 64,
        n_ctx: 64,
        input: InputSpec { tokens, scale: 1.0, positions: None, types: None, norm: None },
        layers,
        output: OutputSpec { norm: norm(), head, scale: 1.0, softcap: None },
        residual_scale: 1.0,
        ropes: vec![RopeSpec { style, n_rot: 8, base: 1e4, scaling, attn_factor: 1.0, factors: None }],
        is_encoder: false,
        pooling: Pooling::Mean,
        ranker: None,
    };
    let facts = ModelFacts { arch: "phi3".into(), n_heads: vec![2; 2], n_kv_heads: vec![1; 2], n_experts: 0 };
    let targets = Arc::new(Targets::new(facts, all));
    TrainModel::read(spec, targets, Box::new(Weights(weights)), 2.0, &mut |_| {}).expect("a model")
}

fn sequence(tokens: &[u32], from: usize) -> ScoredSequence {
    ScoredSequence { is_scored: (0..tokens.len()).map(|i| i >= from).collect(), tokens: tokens.to_vec() }
}

/// Each token is followed by the next but one.
fn lessons(n: usize) -> Vec<Example> {
    let lesson = |i: usize| {
        let tokens: Vec<u32> = (0..4 + i % 5).map(|j| ((i * 7 + 2 * j) % N_VOCAB) as u32).collect();
        Example { sequences: vec![sequence(&tokens, 1)], scores: Vec::new() }
    };
    (0..n).map(lesson).collect()
}

fn options() -> TrainOptions {
    TrainOptions { rank: 4, alpha: 8.0, n_steps: 40, n_batch: 4, rate: 2e-2, seed: 3, ..TrainOptions::default() }
}

fn trainer(examples: Vec<Example>, options: TrainOptions) -> Trainer {
    Trainer::new(toy(), examples, options, &[7; 32]).expect("a training")
}

fn run(trainer: &mut Trainer, n: usize) -> Vec<StepReport> {
    (0..n).map(|_| trainer.step(None).expect("a step")).collect()
}

fn loss(trainer: &Trainer, examples: &[Example], with_factors: bool) -> f64 {
    trainer.evaluate(examples, with_factors, &mut |_| true).expect("a loss").expect("of some")
}

#[test]
fn the_loss_falls_and_the_adapter_has_every_layer() {
    let all = lessons(40);
    let mut trainer = trainer(all.clone(), options());
    let before = loss(&trainer, &all, true);
    assert_eq!(before, loss(&trainer, &all, false), "an adapter that learned nothing changes nothing");
    run(&mut trainer, 40);
    let behind = loss(&trainer, &all, true);
    assert!(behind < 0.7 * before, "{before} to {behind}");
    assert_eq!(before, loss(&trainer, &all, false), "the base is frozen");
    let adapter = trainer.adapter("toy").expect("an adapter");
    assert_eq!(adapter.deltas().len(), 12);
    let fused = adapter.delta("blk.1.ffn_up").expect("gate and up");
    assert_eq!((fused.rank(), fused.n_out(), fused.scale), (8, 48, 2.0));
    let b = fused.b().expect("finite");
    // Each half has its own ranks.
    assert!(
        (0..48).all(|row| b[row * 8..][..8].iter().enumerate().all(|(i, &x)| (x != 0.0) == ((row < 24) == (i < 4))))
    );
    for (set, n) in [(TargetSet::QueriesAndValues, 4), (TargetSet::Attention, 8)] {
        let trainer = Trainer::new(toy(), all.clone(), TrainOptions { targets: set, ..options() }, &[7; 32]);
        assert_eq!(trainer.expect("a training").adapter("toy").expect("an adapter").deltas().len(), n);
    }
}

#[test]
fn runs_are_equal_and_interrupted_ones_too() {
    let (folder, options) = (tempfile::tempdir().expect("a folder"), TrainOptions { n_accumulate: 2, ..options() });
    let path = folder.path().join("checkpoint");
    let bytes = |trainer: &Trainer| {
        trainer.save(&path).expect("written");
        // What a checkpoint says of time is its own.
        let adapter = trainer.adapter("toy").expect("an adapter");
        (adapter.content(), trainer.losses().to_vec())
    };
    let mut whole = trainer(lessons(13), options);
    run(&mut whole, 9);
    let mut first = trainer(lessons(13), options);
    run(&mut first, 4);
    first.save(&path).expect("written");
    drop(first);
    let mut second = trainer(lessons(13), options);
    second.resume(&path).expect("a checkpoint");
    assert_eq!(second.n_steps(), 4);
    run(&mut second, 5);
    assert_eq!(bytes(&second), bytes(&whole));
    assert_ne!(
        bytes(&trainer(lessons(13), TrainOptions { seed: 4, ..options })),
        bytes(&trainer(lessons(13), options))
    );

    // Another training does not go on from it, nor does a damaged file.
    let line = |mut other: Trainer| other.resume(&path).expect_err("another training").to_string();
    let other = TrainOptions { rate: 0.5, ..options };
    assert!(line(trainer(lessons(13), other)).contains("the training that was interrupted has lr 0.02 instead of 0.5"));
    let other = Trainer::new(toy(), lessons(13), options, &[8; 32]).expect("a training");
    assert!(line(other).contains("other data or another model"));
    let whole = std::fs::read(&path).expect("it is there");
    for cut in [0, 7, 40, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).expect("written");
        assert!(line(trainer(lessons(13), options)).contains("no sound checkpoint"), "{cut} bytes");
    }
    let mut wrong = whole.clone();
    let at = wrong.len() - 4;
    wrong[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, &wrong).expect("written");
    assert!(line(trainer(lessons(13), options)).contains("no finite number"));
}

#[test]
fn batches_and_accumulation_are_the_same_gradient() {
    let step = |n_batch, n_accumulate| {
        let mut trainer = trainer(lessons(8), TrainOptions { n_batch, n_accumulate, ..options() });
        let report = run(&mut trainer, 1)[0];
        (report.loss, report.norm)
    };
    let (loss, norm) = step(8, 1);
    for (n_batch, n_accumulate) in [(4, 2), (1, 8)] {
        let other = step(n_batch, n_accumulate);
        assert!((other.0 - loss).abs() < 1e-5 && (other.1 - norm).abs() < 1e-4 * norm, "{other:?} for {loss} {norm}");
    }
}

#[test]
fn the_last_block_alone_is_trained_the_same_whether_the_others_are_held() {
    let options = TrainOptions { first_block: 1, ..options() };
    let mut plain = trainer(lessons(13), options);
    let mut model = toy();
    model.hold_frozen(1, 2000);
    let mut held = Trainer::new(model, lessons(13), options, &[7; 32]).expect("a training");
    run(&mut plain, 12);
    run(&mut held, 12);
    // Sequences run by themselves instead of together, so sums differ by rounding.
    let near = |x: &f64, y: &f64| (x - y).abs() < 1e-3 * (1.0 + y.abs());
    let wide = |trainer: &Trainer| -> Vec<f64> {
        trainer.values().expect("values").into_iter().flatten().map(f64::from).collect()
    };
    assert!(wide(&plain).iter().zip(&wide(&held)).all(|(x, y)| near(x, y)));
    assert_eq!(plain.adapter("toy").expect("an adapter").deltas().len(), 6);
    let losses = plain.losses_of(&lessons(5), true).expect("losses");
    assert!(losses.iter().zip(held.losses_of(&lessons(5), true).expect("losses")).all(|(x, y)| near(x, &y)));
    // What fits and what does not are the same bits.
    let mut model = toy();
    model.hold_frozen(1, 1 << 20);
    let mut roomy = Trainer::new(model, lessons(13), options, &[7; 32]).expect("a training");
    run(&mut roomy, 12);
    assert_eq!(roomy.values().expect("values"), held.values().expect("values"));
    // Promised to be frozen, and adapted all the same.
    let mut model = toy();
    model.hold_frozen(2, 1 << 20);
    let mut wrong = Trainer::new(model, lessons(13), options, &[7; 32]).expect("a training");
    run(&mut wrong, 12);
    assert_eq!(plain.values().expect("values"), wrong.values().expect("values"));
    let beyond = TrainOptions { first_block: 2, ..options };
    assert!(Trainer::new(toy(), lessons(1), beyond, &[7; 32]).is_err());
}

#[test]
fn trainings_go_on_from_values_and_take_penalties() {
    let mut first = trainer(lessons(13), options());
    run(&mut first, 10);
    let values = first.values().expect("values");
    let before = loss(&first, &lessons(13), true);
    let again = |strength: f32| {
        let mut second = trainer(lessons(13), TrainOptions { seed: 9, ..options() });
        second.start_from(values.clone()).expect("the same shapes");
        assert_eq!(before, loss(&second, &lessons(13), true));
        for _ in 0..10 {
            let mut penalty = |now: &[Vec<f32>], grads: &mut [Vec<f32>]| {
                let places = now.iter().flatten().zip(values.iter().flatten());
                grads.iter_mut().flatten().zip(places).for_each(|(g, (x, at))| *g += strength * (x - at));
            };
            second.step_with(None, &mut penalty).expect("a step");
        }
        let moved = second.values().expect("values").into_iter().flatten().zip(values.iter().flatten());
        moved.map(|(x, at)| (x - at).powi(2)).sum::<f32>().sqrt()
    };
    assert!(again(100.0) < 0.5 * again(0.0), "a penalty holds values");
    assert!(first.start_from(values.clone()).is_err(), "it has begun");
    assert!(trainer(lessons(3), options()).start_from(values[1..].to_vec()).is_err());
    // One example's gradient is that of a step of it.
    let grads = first.gradient(&lessons(1)[0]).expect("a gradient");
    let mut one = trainer(lessons(1), TrainOptions { n_batch: 1, ..options() });
    one.start_from(first.values().expect("values")).expect("the same shapes");
    one.step_with(None, &mut |_, own| assert_eq!(own, grads)).expect("a step");
}

#[test]
fn preferences_and_neighbours_are_learned() {
    let tokens = |i: usize, by: usize| (0..6).map(|j| ((i * 7 + by * j) % N_VOCAB) as u32).collect::<Vec<u32>>();
    let pairs: Vec<Example> = (0..12)
        .map(|i| Example {
            sequences: vec![sequence(&tokens(i, 2), 1), sequence(&tokens(i, 3), 1)],
            scores: vec![1.0, 0.0],
        })
        .collect();
    let likelier = |trainer: &Trainer| {
        let one = |i: usize| -> Vec<Example> {
            let only = |pair: &Example| Example { sequences: vec![pair.sequences[i].clone()], scores: Vec::new() };
            pairs.iter().map(only).collect()
        };
        let nll = |i| {
            let all = one(i);
            let all: Vec<&Example> = all.iter().collect();
            let with = super::loss::With::Fixed(trainer.factors());
            let sum = super::loss::sum(trainer.model(), with, Loss::NextToken, &all).expect("a loss");
            super::loss::value(&sum).expect("a number")
        };
        nll(1) - nll(0)
    };
    for loss_kind in [Loss::Dpo { beta: 0.5 }, Loss::Grpo { clip: 0.2, beta: 0.04 }] {
        let mut trainer = trainer(pairs.clone(), TrainOptions { loss: loss_kind, ..options() });
        let before = (likelier(&trainer), loss(&trainer, &pairs, true));
        run(&mut trainer, 40);
        let behind = (likelier(&trainer), loss(&trainer, &pairs, true));
        assert!(behind.0 > before.0 + 1.0 && behind.1 < before.1, "{loss_kind:?}: {before:?} to {behind:?}");
    }
    let similar: Vec<Example> = (0..12)
        .map(|i| {
            let of = |at: usize, by| sequence(&tokens(at, by), 6);
            Example { sequences: vec![of(i, 2), of(i + 5, 2), of(i, 3)], scores: Vec::new() }
        })
        .collect();
    for loss_kind in [Loss::Triplet { margin: 0.4 }, Loss::InfoNce { temperature: 0.1 }] {
        let mut trainer = trainer(similar.clone(), TrainOptions { loss: loss_kind, rate: 5e-3, ..options() });
        let before = loss(&trainer, &similar, true);
        run(&mut trainer, 40);
        let behind = loss(&trainer, &similar, true);
        assert!(behind < 0.7 * before, "{loss_kind:?}: {before} to {behind}");
    }
    // An example of another kind is told so.
    let error = Trainer::new(toy(), pairs, options(), &[0; 32]).expect_err("no texts").to_string();
    assert_eq!(error, "the loss next-token needs records with 'messages', 'text', or 'prompt' and 'completion'");
}

#[test]
fn micro_has_the_gradient_of_autograd() {
    struct Head(Vec<f32>, usize);
    impl HeadRows for Head {
        fn row(&self, token: u32, out: &mut [f32]) {
            out.copy_from_slice(&self.0[token as usize * self.1..][..self.1]);
        }
    }
    let (n, n_vocab, rank, target) = (32, 50, 3, 11usize);
    let (hidden, head) = (noise(n, 1), Head(noise(n_vocab * n, 2), n));
    let mut micro = MicroLora::new(n, rank, 0.8, 5).expect("a rank");
    let run = |micro: &MicroLora| -> candle_core::Result<(Vec<f32>, Vec<f32>, Vec<f32>)> {
        let (a, b) = micro.factors();
        let (a, b) = (tensor(a.to_vec(), (rank, n))?, tensor(b.to_vec(), (rank, n))?);
        let (a, b) = (Var::from_tensor(&a)?, Var::from_tensor(&b)?);
        let (h, w) = (tensor(hidden.clone(), (1, n))?, tensor(head.0.clone(), (n_vocab, n))?);
        let changed = (&h + h.matmul(&a.t()?)?.matmul(&b)?.affine(0.8, 0.0)?)?;
        let logits = changed.matmul(&w.t()?)?;
        let p = logits.exp()?.broadcast_div(&logits.exp()?.sum_keepdim(1)?)?;
        let token = Tensor::from_slice(&[target as u32], (1, 1), p.device())?;
        let grads = p.log()?.gather(&token, 1)?.neg()?.sum_all()?.backward()?;
        let of = |var: &Var| to_vec(grads.get(var).expect("it is used"));
        Ok((to_vec(&p)?, of(&a)?, of(&b)?))
    };
    let mut gradient = micro.gradient_buffer();
    for step in 0..3 {
        let (p, da, db) = run(&micro).expect("a gradient");
        let all: Vec<(u32, f32)> = p.iter().enumerate().map(|(token, &p)| (token as u32, p)).collect();
        let state = crate::micro::StateRows { hidden: &hidden, stream: &[] };
        micro.gradient(state, &all, target as u32, &head, &mut gradient);
        for (found, expected) in gradient.values().zip([&da, &db]) {
            let size = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            for (x, y) in found.iter().zip(expected) {
                assert!((x - y).abs() <= 1e-5 * size.max(1e-2), "step {step}: {x} for {y}");
            }
        }
        micro.update(&mut gradient, &crate::micro::UpdateOptions::sgd(0.5));
    }
}
