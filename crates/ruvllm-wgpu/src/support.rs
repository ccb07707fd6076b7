//! What the kernels can compute of a model, asked before anything is uploaded.

use ruvllm_backend::BackendError;
use ruvllm_kvcache::KvFormat;
use ruvllm_model::{AttentionSpec, FfnSpec, LayerSpec, LinearSpec, MixerSpec, ModelSpec, MoeSpec, Wiring};

/// The most values of a head, experts, experts of a row, and groups of experts that the kernels have room for.
const HEAD_DIM_MAX: usize = 256;
const EXPERTS_MAX: usize = 1024;
const EXPERTS_USED_MAX: usize = 32;
const GROUPS_MAX: usize = 64;

/// Checks that every part of a model has a kernel.
///
/// # Errors
/// One line that names the part and the backend that has it.
pub(crate) fn check(spec: &ModelSpec, format: KvFormat) -> Result<(), BackendError> {
    spec.layers.iter().enumerate().try_for_each(|(i, layer)| check_layer(spec, i, layer, format))?;
    spec.output.head.iter().try_for_each(check_linear)?;
    if !spec.n_embd.is_multiple_of(4) {
        return refused(&spec.arch, format_args!("an embedding of {} values, not a multiple of 4", spec.n_embd));
    }
    Ok(())
}

fn check_layer(spec: &ModelSpec, i: usize, layer: &LayerSpec, format: KvFormat) -> Result<(), BackendError> {
    let refuse = |what: std::fmt::Arguments<'_>| refused(&spec.arch, format_args!("{what} (layer {i})"));
    match &layer.mixer {
        MixerSpec::Attention(attention) => check_attention(spec, i, attention, format)?,
        MixerSpec::ShortConv(conv) => [&conv.in_proj, &conv.out_proj].into_iter().try_for_each(check_linear)?,
        MixerSpec::LatentAttention(_) => return refuse(format_args!("latent attention")),
        MixerSpec::Mamba(_) | MixerSpec::Mamba2(_) | MixerSpec::AttentionAndMamba2(..) => {
            return refuse(format_args!("a state-space layer"));
        }
    }
    let reads_the_same = layer.mixer_norm.is_none() && layer.ffn_norm.is_none();
    if layer.wiring == Wiring::Parallel && reads_the_same {
        return refuse(format_args!("parallel branches without a norm"));
    }
    match &layer.ffn {
        None => Ok(()),
        Some(FfnSpec::Mlp(mlp)) => mlp.linears().try_for_each(check_linear),
        Some(FfnSpec::Moe(moe)) => check_experts(spec, moe),
    }
}

fn check_attention(
    spec: &ModelSpec,
    i: usize,
    attention: &AttentionSpec,
    format: KvFormat,
) -> Result<(), BackendError> {
    let refuse = |what: std::fmt::Arguments<'_>| refused(&spec.arch, format_args!("{what} (layer {i})"));
    let AttentionSpec { n_heads, n_kv_heads, k_dim, v_dim, .. } = *attention;
    let is_even = k_dim.is_multiple_of(2) && v_dim.is_multiple_of(2);
    if k_dim > HEAD_DIM_MAX || v_dim > HEAD_DIM_MAX || (format == KvFormat::F16 && !is_even) {
        return refuse(format_args!("heads of {k_dim} and {v_dim} values"));
    }
    if !n_heads.is_multiple_of(n_kv_heads) {
        return refuse(format_args!("{n_heads} heads over {n_kv_heads} heads of keys"));
    }
    if attention.is_causal == spec.is_encoder || (spec.is_encoder && attention.window.is_some()) {
        return refuse(format_args!("attention both ways, or in a window, of this kind"));
    }
    [&attention.q, &attention.k, &attention.v, &attention.o].into_iter().try_for_each(check_linear)
}

fn check_experts(spec: &ModelSpec, moe: &MoeSpec) -> Result<(), BackendError> {
    let (n_experts, n_groups) = (moe.up.len(), moe.groups.map_or(1, |groups| groups.n_groups));
    if n_experts > EXPERTS_MAX || moe.n_used > EXPERTS_USED_MAX || n_groups > GROUPS_MAX {
        let n_used = moe.n_used;
        return refused(&spec.arch, format_args!("{n_used} of {n_experts} experts in {n_groups} groups"));
    }
    let shared = moe.shared.iter().flat_map(|shared| shared.mlp.linears().chain(&shared.gate));
    std::iter::once(&moe.router)
        .chain(&moe.gate)
        .chain(&moe.up)
        .chain(&moe.down)
        .chain(shared)
        .try_for_each(check_linear)
}

fn check_linear(linear: &LinearSpec) -> Result<(), BackendError> {
    match linear.n_in().is_multiple_of(4) {
        true => Ok(()),
        false => {
            let line = format!(
                "backend gpu multiplies rows of a multiple of 4 values, and those of '{}' have {}; use native",
                linear.weight.tensor,
                linear.n_in()
            );
            Err(BackendError::unsupported(line))
        }
    }
}

fn refused(arch: &str, what: std::fmt::Arguments<'_>) -> Result<(), BackendError> {
    Err(BackendError::unsupported(format!("backend gpu has no kernel for {what} of architecture {arch}; use native")))
}
