//! Bits of logits, for which [`NUMERICS_VERSION`](crate::NUMERICS_VERSION) stands.

use ruvllm_backend::{CacheSalt, LogitRows, Segment, TokenModel};
use ruvllm_kernels::Isa;
use ruvllm_testkit::{Golden, RecordedBits};

use super::NativeBackend;
use crate::NUMERICS_VERSION;
use crate::load::LoadOptions;

/// Models of the test data whose logits are recorded: every kind of block. `ruvllm-kernels` records its formats itself.
const MODELS: &[(&str, &str)] = &[
    ("llama-a", "f32"),
    ("llama-a", "f16"),
    ("llama-a", "bf16"),
    ("gemma3-a", "f32"),
    ("qwen3moe-a", "f32"),
    ("gpt-oss-a", "f32"),
    ("lfm2-a", "f32"),
    ("phi3-a", "f32"),
    ("gpt2-a", "f32"),
];

/// The blocks that came later: state spaces and latent attention. Lines of their own record them, so that those before stay.
const LATER_MODELS: &[(&str, &str)] =
    &[("mamba-a", "f32"), ("mamba2-b", "f32"), ("falcon-h1-a", "f32"), ("deepseek2-a", "f32"), ("deepseek2-b", "f32")];

/// Hashes the logits of models on an instruction set.
fn fingerprint(isa: Isa, models: &[(&str, &str)]) -> String {
    let mut logits = blake3::Hasher::new();
    for &(name, dtype) in models {
        let options = LoadOptions { isa, n_threads: 1, n_seq_max: 1, ..LoadOptions::default() };
        let path = Golden::load(name).model(dtype);
        let mut model = NativeBackend::load(&path, &options, &mut |_| {}).expect("it loads");
        let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
        let tokens: Vec<u32> = (0..40).map(|i| (i * 7 + 3) % 61).collect();
        let states = model.forward(&[Segment { seq, tokens: &tokens, logits: LogitRows::All }]).expect("it fits");
        logits.update(bytemuck::cast_slice(states.logits));
    }
    logits.finalize().to_hex()[..16].to_owned()
}

/// A change of these lines is a change of numbers: raise `NUMERICS_VERSION` with it, so that caches of other builds are not
/// read.
#[test]
fn the_version_stands_for_these_bits() {
    let mut recorded = RecordedBits::of_version(include_str!("numerics.txt"), NUMERICS_VERSION);
    for isa in Isa::available() {
        if recorded.covers(isa.name()) {
            recorded.check(format!("{isa} {}", fingerprint(isa, MODELS)));
            recorded.check(format!("{isa} later {}", fingerprint(isa, LATER_MODELS)));
        }
    }
    recorded.finish();
}
