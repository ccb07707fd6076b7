//! The contract, and the numbers against transformers' and native's, on the machine's first adapter (software Vulkan will do).

mod faults;
mod golden;
mod steady;

use std::path::Path;

use ruvllm_backend::{CacheSalt, LogitRows, Segment, TokenModel};
use ruvllm_kvcache::KvPolicy;
use ruvllm_testkit::{Golden, GoldenKind};

use crate::{GpuChoice, WgpuBackend, WgpuOptions};

/// Architectures with a part that has no kernel.
const REFUSED: [&str; 4] = ["deepseek2", "falcon-h1", "mamba", "mamba2"];

/// The adapter that `RUVLLM_GPU` names, or the first.
fn gpu() -> GpuChoice {
    std::env::var("RUVLLM_GPU").map_or(GpuChoice::Index(0), |name| GpuChoice::parse(&name))
}

/// Options for one sequence, with the cache in f32.
fn options(n_ctx: usize) -> WgpuOptions {
    WgpuOptions { n_ctx: Some(n_ctx), n_seq_max: 1, gpu: gpu(), kv: KvPolicy::F32, ..WgpuOptions::default() }
}

/// Loads a model.
///
/// # Panics
/// If it does not load: a machine without an adapter fails, its tests are not skipped.
fn load(path: &Path, options: &WgpuOptions) -> WgpuBackend {
    WgpuBackend::load(path, options, &mut |_| {}).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Computes the logits of all tokens.
fn logits(model: &mut dyn TokenModel, tokens: &[u32]) -> Vec<f32> {
    let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
    let rows =
        model.forward(&[Segment { seq, tokens, logits: LogitRows::All }]).expect("the tokens fit").logits.to_vec();
    model.close(seq);
    rows
}

/// Golden models that write text.
fn texts() -> impl Iterator<Item = Golden> {
    Golden::all().into_iter().filter(|golden| golden.kind == GoldenKind::Logits)
}

/// Those that the kernels run.
fn supported() -> impl Iterator<Item = Golden> {
    texts().filter(|golden| !REFUSED.contains(&golden.arch.as_str()))
}
