//! What the kernels can compute of a model, asked before anything is uploaded.

use ruvllm_backend::BackendError;
use ruvllm_kvcache::{KvFormat, LayerKv};
use ruvllm_model::{
    AttentionSpec, FfnSpec, LatentAttentionSpec, LayerSpec, LinearSpec, MixerSpec, ModelSpec, MoeSpec, Wiring,
};
use ruvllm_shaders::HeadWidth;

use crate::cache_shape::latent_kv;

/// The most experts, experts of a row, and groups of experts that the kernels have room for.
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
        MixerSpec::AttentionAndMamba2(attention, _) => check_attention(spec, i, attention, format)?,
        MixerSpec::LatentAttention(own) => check_latent(spec, i, own, format)?,
        MixerSpec::ShortConv(_) | MixerSpec::Mamba(_) | MixerSpec::Mamba2(_) => {}
    }
    layer.linears().into_iter().filter(|linear| !has_padded_input(layer, linear)).try_for_each(check_linear)?;
    let reads_the_same = layer.mixer_norm.is_none() && layer.ffn_norm.is_none();
    if layer.wiring == Wiring::Parallel && reads_the_same {
        return refuse(format_args!("parallel branches without a norm"));
    }
    match &layer.ffn {
        None | Some(FfnSpec::Mlp(_)) => Ok(()),
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
    if HeadWidth::of(k_dim.max(v_dim)).is_none() || !fits_format([k_dim, v_dim], format) {
        return refuse(format_args!("heads of {k_dim} and {v_dim} values"));
    }
    if !n_heads.is_multiple_of(n_kv_heads) {
        return refuse(format_args!("{n_heads} heads over {n_kv_heads} heads of keys"));
    }
    if attention.is_causal == spec.is_encoder || (spec.is_encoder && attention.window.is_some()) {
        return refuse(format_args!("attention both ways, or in a window, of this kind"));
    }
    Ok(())
}

fn check_latent(spec: &ModelSpec, i: usize, own: &LatentAttentionSpec, format: KvFormat) -> Result<(), BackendError> {
    let LayerKv { k_dim, v_dim, .. } = latent_kv(own);
    // Each head's part of a row is read in fours.
    let q_dim = own.n_nope + own.n_rot;
    let is_aligned = [q_dim, own.n_nope, own.latent.n_out()].iter().all(|n| n.is_multiple_of(4));
    if HeadWidth::of(k_dim.max(v_dim)).is_none() || !fits_format([k_dim, v_dim], format) || !is_aligned {
        let what = format_args!("heads of {q_dim} and {v_dim} values over rows of {} (layer {i})", own.latent.n_out());
        return refused(&spec.arch, what);
    }
    Ok(())
}

/// Returns whether a cache can hold keys and values of these lengths: two numbers of f16 lie in a word.
fn fits_format(dims: [usize; 2], format: KvFormat) -> bool {
    format == KvFormat::F32 || dims.iter().all(|dim| dim.is_multiple_of(2))
}

fn check_experts(spec: &ModelSpec, moe: &MoeSpec) -> Result<(), BackendError> {
    let (n_experts, n_groups) = (moe.up.len(), moe.groups.map_or(1, |groups| groups.n_groups));
    if n_experts > EXPERTS_MAX || moe.n_used > EXPERTS_USED_MAX || n_groups > GROUPS_MAX {
        let n_used = moe.n_used;
        return refused(&spec.arch, format_args!("{n_used} of {n_experts} experts in {n_groups} groups"));
    }
    Ok(())
}

/// Returns whether a layer's rows before a linear layer are padded to a multiple of 4 values.
fn has_padded_input(layer: &LayerSpec, linear: &LinearSpec) -> bool {
    matches!(&layer.mixer, MixerSpec::Mamba(own) if own.dt.id == linear.id && linear.n_in().is_multiple_of(2))
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
