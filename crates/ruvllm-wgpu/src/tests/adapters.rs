//! Adapters: the logits of transformers with peft, rows of a batch with adapters of their own, and what a token costs with them.
//!
//! The adapters lie in `ruvllm-lora/testdata` with the logits that `make.py` there computed in float32.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_backend::{BackendErrorKind, CacheSalt, LogitRows, PagedKv, Segment, SeqId, TokenModel};
use ruvllm_lora::gate::{Gate, GateLayer, GateShape};
use ruvllm_lora::{AdapterSet, BoundAdapter, FactorFormat};
use ruvllm_testkit::{Golden, max_abs_diff, testdata_dir};

use super::steady::{check_steady, next};
use super::{load, options};
use crate::adapters::adapter_words;
use crate::{WgpuBackend, WgpuOptions};

/// Difference that other kernels of the same products make.
const TOLERANCE: f64 = 5e-4;

const ADAPTERS: [(&str, &str); 9] = [
    ("llama-qv", "llama-a"),
    ("llama-all", "llama-a"),
    ("llama-dora", "llama-a"),
    ("qwen2", "qwen2-a"),
    ("gemma3", "gemma3-a"),
    ("phi3", "phi3-a"),
    ("gpt2", "gpt2-a"),
    ("gptneox", "gptneox-a"),
    ("mixtral", "mixtral-a"),
];

/// The folder of an adapter: in the repository, or beside the models of `cargo xtask gpu-check`.
fn folder(name: &str) -> PathBuf {
    let beside = testdata_dir().join("adapters");
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ruvllm-lora/testdata");
    if beside.is_dir() { beside.join(name) } else { own.join(name) }
}

fn several(golden: &Golden) -> WgpuBackend {
    load(&golden.model("f32"), &WgpuOptions { n_seq_max: 6, ..options(golden.n_ctx) })
}

fn adapter(model: &WgpuBackend, path: &Path, format: FactorFormat) -> Arc<BoundAdapter> {
    let loader = model.adapters().expect("it applies adapters");
    loader.load(path, format).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn set(members: &[(&Arc<BoundAdapter>, f32)]) -> AdapterSet {
    AdapterSet::new(members.iter().map(|(adapter, scale)| (Arc::clone(adapter), *scale)).collect()).expect("a set")
}

/// Returns the logits of all rows, computed `chunk` at a time.
fn logits(model: &mut WgpuBackend, tokens: &[u32], adapters: &AdapterSet, chunk: usize) -> Vec<f32> {
    let (seq, _) = model.open(None, &adapters.into()).expect("a sequence is free");
    let mut all = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let segment = Segment { seq, tokens, logits: LogitRows::All };
        all.extend_from_slice(model.forward(&[segment]).expect("it fits").logits);
    }
    model.close(seq);
    all
}

/// Returns what the rows of one pass get, each of them from a sequence of its own.
fn together(model: &mut WgpuBackend, tokens: &[u32], sets: &[AdapterSet]) -> Vec<Vec<f32>> {
    let open = |set: &AdapterSet| model.open(None, &set.into()).expect("a sequence is free").0;
    let seqs: Vec<SeqId> = sets.iter().map(open).collect();
    let segments: Vec<Segment<'_>> =
        seqs.iter().map(|seq| Segment { seq: *seq, tokens, logits: LogitRows::All }).collect();
    let all = model.forward(&segments).expect("it fits").logits.to_vec();
    let n_vocab = model.info().n_vocab;
    seqs.into_iter().for_each(|seq| model.close(seq));
    all.chunks_exact(tokens.len() * n_vocab).map(<[f32]>::to_vec).collect()
}

#[test]
fn logits_agree_with_peft() {
    for (name, of) in ADAPTERS {
        let golden = Golden::load(of);
        let mut model = several(&golden);
        let bytes = std::fs::read(folder(name).join("logits.f32")).expect("stored logits");
        let expected: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        let exact = adapter(&model, &folder(name), FactorFormat::F32);
        let whole = logits(&mut model, &golden.tokens, &set(&[(&exact, 1.0)]), usize::MAX);
        let diff = max_abs_diff(&expected, &whole[whole.len() - expected.len()..]);
        assert!(diff <= 5e-3, "{name}: {diff:e} from peft");
        for chunk in [13, 3, 1] {
            let diff = max_abs_diff(&whole, &logits(&mut model, &golden.tokens, &set(&[(&exact, 1.0)]), chunk));
            assert!(diff <= TOLERANCE, "{name}: chunks of {chunk} change logits by {diff:e}");
        }
        for (format, bound) in [(FactorFormat::F16, 5e-2), (FactorFormat::Q8, 1.0)] {
            let rounded = adapter(&model, &folder(name), format);
            let diff = max_abs_diff(&whole, &logits(&mut model, &golden.tokens, &set(&[(&rounded, 1.0)]), usize::MAX));
            assert!(diff <= bound, "{name} {format:?}: {diff:e}");
        }
    }
}

#[test]
fn rows_of_one_pass_have_adapters_of_their_own() {
    for (of, names) in [("llama-a", &["llama-qv", "llama-all", "llama-dora"][..]), ("mixtral-a", &["mixtral"])] {
        let golden = Golden::load(of);
        let mut model = several(&golden);
        // Passes of few rows and of many.
        for tokens in [&golden.tokens[..21], &golden.tokens[..1]] {
            let plain = together(&mut model, tokens, &vec![AdapterSet::default(); names.len() + 3]).swap_remove(0);
            let adapters: Vec<_> = names.iter().map(|name| adapter(&model, &folder(name), FactorFormat::F16)).collect();
            let mut sets = vec![AdapterSet::default(), set(&[(&adapters[0], 0.0)])];
            sets.extend(adapters.iter().map(|adapter| set(&[(adapter, 1.0)])));
            sets.push(set(&adapters.iter().map(|adapter| (adapter, 0.3)).collect::<Vec<_>>()));
            let all = together(&mut model, tokens, &sets);
            for (row, (rows, set)) in all.iter().zip(&sets).enumerate() {
                let diff = max_abs_diff(rows, &logits(&mut model, tokens, set, usize::MAX));
                assert!(diff <= TOLERANCE, "{of}: set {row} differs by {diff:e} from alone");
                // Rows without adapters have the bits that they have beside others without.
                let is_plain = rows.iter().zip(&plain).all(|(a, b)| a.to_bits() == b.to_bits());
                assert_eq!(is_plain, row < 2, "{of}: set {row}");
            }
        }
    }
}

#[test]
fn prefixes_belong_to_what_their_adapters_do() {
    let golden = Golden::load("llama-a");
    let mut model = several(&golden);
    let [old, new] = ["llama-qv", "llama-dora"].map(|name| adapter(&model, &folder(name), FactorFormat::F16));
    let tokens = &golden.tokens[..40];
    let sets = [AdapterSet::default(), set(&[(&old, 1.0)]), set(&[(&new, 1.0)]), set(&[(&old, 0.5)])];
    for set in &sets {
        let cold = logits(&mut model, tokens, set, usize::MAX);
        for n_expected in [0, 39] {
            let (seq, n_known) = model.open(Some(tokens), &set.into()).expect("a sequence is free");
            assert_eq!(n_known, n_expected, "{set:?}");
            let segment = Segment { seq, tokens: &tokens[n_known..], logits: LogitRows::Last };
            let row = model.forward(&[segment]).expect("it fits").logits.to_vec();
            let diff = max_abs_diff(&cold[39 * golden.n_vocab..], &row);
            assert!(diff <= TOLERANCE, "{set:?}: {diff:e}");
            let fork = model.fork(seq, 20).expect("it forks");
            let segment = Segment { seq: fork, tokens: &tokens[20..], logits: LogitRows::Last };
            let row = model.forward(&[segment]).expect("it fits").logits.to_vec();
            assert!(max_abs_diff(&cold[39 * golden.n_vocab..], &row) <= TOLERANCE, "a fork of {set:?}");
            model.discard(fork);
            model.close(seq);
        }
    }
}

#[test]
fn gates_weigh_adapters_token_by_token() {
    let golden = Golden::load("llama-a");
    let (mut model, tokens) = (several(&golden), &golden.tokens[..30]);
    let n_embd = model.info().n_embd;
    let adapters = ["llama-qv", "llama-dora"].map(|name| adapter(&model, &folder(name), FactorFormat::F16));
    let members = |scales: [f32; 2]| -> Vec<_> { adapters.iter().cloned().zip(scales).collect() };
    let shape = |n_embd| GateShape { n_embd, n_hidden: 4, n_adapters: 2, window: 5, temperature: 1.0 };
    let even = Gate::seeded(shape(n_embd), 1).expect("a gate");
    let gated = |gate: Gate| AdapterSet::gated(members([1.0, 1.0]), Arc::new(gate)).expect("a set");
    // A gate that prefers nothing gives each half of its scale.
    let halves = logits(&mut model, tokens, &set(&[(&adapters[0], 0.5), (&adapters[1], 0.5)]), usize::MAX);
    let found = logits(&mut model, tokens, &gated(even), usize::MAX);
    assert!(max_abs_diff(&halves, &found) <= TOLERANCE);
    // One that does: however its rows are cut.
    let noise = |n: usize| (0..n).map(|i| (i as f32 * 1.7).sin()).collect::<Vec<f32>>();
    let first = GateLayer { weights: noise(4 * n_embd), bias: noise(4) };
    let second = GateLayer { weights: noise(8), bias: noise(2) };
    let gated = gated(Gate::new(shape(n_embd), first, second).expect("a gate"));
    let whole = logits(&mut model, tokens, &gated, usize::MAX);
    assert!(max_abs_diff(&halves, &whole) > 0.01);
    for chunk in [7, 1] {
        let diff = max_abs_diff(&whole, &logits(&mut model, tokens, &gated, chunk));
        assert!(diff <= TOLERANCE, "chunks of {chunk}: {diff:e}");
    }
    let wrong = Arc::new(Gate::seeded(shape(n_embd + 1), 1).expect("a gate"));
    let wrong = AdapterSet::gated(members([1.0, 1.0]), wrong).expect("a set");
    let error = model.open(None, &(&wrong).into()).expect_err("another width");
    assert!(error.to_string().starts_with("the gate is for embeddings of"), "{error}");
}

/// Final hidden states and logits of some rows, in two steps, have the adapters of their rows too.
#[test]
fn states_and_logits_are_those_of_the_adapters() {
    let golden = Golden::load("llama-a");
    let (mut model, tokens) = (several(&golden), &golden.tokens[..12]);
    let all = adapter(&model, &folder("llama-all"), FactorFormat::F16);
    let set = set(&[(&all, 1.0)]);
    let whole = logits(&mut model, tokens, &set, usize::MAX);
    let [plain, changed] =
        [&AdapterSet::default(), &set].map(|set| model.open(None, &set.into()).expect("it is free").0);
    let segment = |seq| Segment { seq, tokens, logits: LogitRows::TailOfStates(2) };
    let rows = model.forward(&[segment(plain), segment(changed)]).expect("it fits").logits.to_vec();
    let diff = max_abs_diff(&whole[10 * golden.n_vocab..], &rows[2 * golden.n_vocab..]);
    assert!(diff <= TOLERANCE, "{diff:e}");
}

#[test]
fn decoding_with_adapters_makes_nothing() {
    let golden = Golden::load("llama-a");
    let mut model = load(&golden.model("f32"), &options(golden.n_ctx));
    let qv = adapter(&model, &folder("llama-qv"), FactorFormat::F16);
    let before = model.stats();
    let (seq, _) = model.open(None, &(&set(&[(&qv, 1.0)])).into()).expect("a sequence is free");
    let token = next(&mut model, seq, &golden.tokens[..8]);
    assert!(model.stats().allocated_bytes > before.allocated_bytes, "the bank is made when it is needed");
    // Two more for each of the two layers that it changes.
    let n_dispatches = check_steady(&mut model, seq, token, 6);
    assert_eq!(n_dispatches as usize, 1 + (14 + 4) * model.info().n_layers + 4);
    model.close(seq);
    // Others pay nothing.
    let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
    let token = next(&mut model, seq, &golden.tokens[..8]);
    assert_eq!(check_steady(&mut model, seq, token, 3) as usize, 1 + 14 * model.info().n_layers + 4);
}

/// Adapters that a binding does not hold together take turns; one that it does not hold is refused.
#[test]
fn adapters_take_turns_where_memory_is_short() {
    let golden = Golden::load("llama-a");
    let mut roomy = several(&golden);
    let names = ["llama-qv", "llama-all", "llama-dora"];
    let of = |model: &WgpuBackend| names.map(|name| adapter(model, &folder(name), FactorFormat::F32));
    let sets = |adapters: &[Arc<BoundAdapter>]| adapters.iter().map(|own| set(&[(own, 1.0)])).collect::<Vec<_>>();
    let tokens = &golden.tokens[..9];
    let adapters = of(&roomy);
    let expected = together(&mut roomy, tokens, &sets(&adapters));
    // Room for the places and for the largest one, and for none of the others.
    let words = adapters.each_ref().map(|own| adapter_words(own));
    let largest = words.into_iter().max().expect("there are three");
    let places = 4 * 16 * roomy.model_spec().expect("it has one").linears().len();
    assert!(words.into_iter().all(|n| n > 10), "{words:?}");
    let limited = |n_words: usize| {
        let options = WgpuOptions { n_seq_max: 6, binding_bytes_max: Some(4 * n_words as u64), ..options(64) };
        load(&golden.model("f32"), &options)
    };
    let mut model = limited(places + largest + 10);
    let adapters = of(&model);
    for _ in 0..2 {
        let found = together(&mut model, tokens, &sets(&adapters));
        for ((name, expected), found) in names.iter().zip(&expected).zip(&found) {
            assert!(max_abs_diff(expected, found) <= TOLERANCE, "{name} of {words:?} words");
        }
    }
    let model_name = model.gpu().info().name.clone();
    let mut small = limited(largest);
    let all = adapter(&small, &folder("llama-all"), FactorFormat::F32);
    let error = small.open(None, &(&set(&[(&all, 1.0)])).into()).expect_err("it is too large");
    assert_eq!(error.kind(), BackendErrorKind::Adapter);
    let line = error.to_string();
    let end = format!("a binding of {model_name} has {}; use fewer or smaller ones, or native", 4 * largest);
    assert!(line.starts_with("backend gpu: the adapters of a request take ") && line.ends_with(&end), "{line}");
    assert_eq!(small.n_free(), 6, "nothing was opened");
}

#[test]
fn adapters_of_other_models_are_refused() {
    let golden = Golden::load("llama-a");
    let (mut model, other) = (several(&golden), several(&golden));
    let foreign = set(&[(&adapter(&other, &folder("llama-qv"), FactorFormat::F16), 1.0)]);
    let error = model.open(None, &(&foreign).into()).expect_err("another model");
    assert_eq!(error.to_string(), "the adapters were loaded for another model");
}
