//! The contract, and the numbers against transformers' and native's, on the machine's first adapter (software Vulkan will do).

mod adapters;
mod faults;
mod golden;
mod largest;
mod quantised;
mod split;
mod steady;

use std::path::Path;

use ruvllm_backend::{CacheSalt, LogitRows, Segment, TokenModel};
use ruvllm_kvcache::KvPolicy;
use ruvllm_testkit::{Golden, GoldenKind};

use crate::{GpuChoice, WgpuBackend, WgpuOptions};

/// The adapter that `RUVLLM_GPU` names, or the first.
fn gpu() -> GpuChoice {
    std::env::var("RUVLLM_GPU").map_or(GpuChoice::Index(0), |name| GpuChoice::parse(&name))
}

/// Options for one sequence, with the cache in f32.
pub(crate) fn options(n_ctx: usize) -> WgpuOptions {
    WgpuOptions { n_ctx: Some(n_ctx), n_seq_max: 1, gpu: gpu(), kv: KvPolicy::F32, ..WgpuOptions::default() }
}

/// Loads a model.
///
/// # Panics
/// If it does not load: a machine without an adapter fails, its tests are not skipped.
pub(crate) fn load(path: &Path, options: &WgpuOptions) -> WgpuBackend {
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

/// Returns whether both rows have the same largest value, wherever the first one's leads by at least `margin`.
fn same_best(expected: &[f32], found: &[f32], n_vocab: usize, margin: f32) -> bool {
    expected.chunks_exact(n_vocab).zip(found.chunks_exact(n_vocab)).all(|(expected, found)| {
        let best = ruvllm_testkit::argmax(expected);
        let next = (0..n_vocab).filter(|i| *i != best).map(|i| expected[i]).fold(f32::NEG_INFINITY, f32::max);
        expected[best] - next < margin || ruvllm_testkit::argmax(found) == best
    })
}
