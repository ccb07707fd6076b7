//! The bits of the numbers: what [`NUMERICS_VERSION`](crate::NUMERICS_VERSION) stands for.

use std::fmt::Write;

use ruvllm_backend::{CacheSalt, LogitRows, Segment, TokenModel};
use ruvllm_kernels::Isa;
use ruvllm_testkit::Golden;

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
/// read. The file also names the instruction sets that no machine of ours has, which are not looked at.
#[test]
fn the_version_stands_for_these_bits() {
    let recorded = include_str!("numerics.txt");
    let version = format!("version {NUMERICS_VERSION}");
    assert_eq!(recorded.lines().next(), Some(version.as_str()), "numerics.txt is of another version");
    let unrecorded = recorded.lines().find_map(|line| line.strip_prefix("unrecorded ")).unwrap_or_default();
    let is_unrecorded = |name: &str| unrecorded.split(' ').any(|other| other == name);
    let mut found = String::new();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available() && !is_unrecorded(isa.name())) {
        let lines =
            [format!("{isa} {}", fingerprint(isa, MODELS)), format!("{isa} later {}", fingerprint(isa, LATER_MODELS))];
        for line in lines.iter().filter(|line| recorded.lines().all(|known| known != **line)) {
            writeln!(found, "{line}").expect("a string takes all");
        }
    }
    assert!(found.is_empty(), "these bits are not recorded in numerics.txt for version {NUMERICS_VERSION}:\n{found}");
}
