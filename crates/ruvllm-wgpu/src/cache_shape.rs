//! Shape of each layer's cache on the device: keys and values in blocks, and recurrent state.

use ruvllm_kernels::attention::BLOCK_TOKENS;
use ruvllm_kvcache::{KvFormat, KvLayout, LayerKv};
use ruvllm_model::{ConvSpec, ExpansionSpec, LatentAttentionSpec, Mamba2Spec, MambaSpec, MixerSpec, ModelSpec};

/// Shape of a layer's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheShape {
    /// Heads of keys and values of a token.
    kv: Option<LayerKv>,
    /// Values in f32 of a token, in the place of keys: inputs of a short convolution.
    n_inputs: usize,
    /// Values in f32 of a sequence, whatever its length.
    pub n_state: usize,
}

impl CacheShape {
    pub(crate) fn of(mixer: &MixerSpec, n_embd: usize) -> CacheShape {
        let none = CacheShape::default();
        match mixer {
            MixerSpec::Attention(own) => CacheShape {
                kv: Some(LayerKv { n_kv_heads: own.n_kv_heads, k_dim: own.k_dim, v_dim: own.v_dim }),
                ..none
            },
            MixerSpec::LatentAttention(own) => CacheShape { kv: Some(latent_kv(own)), ..none },
            MixerSpec::ShortConv(_) => CacheShape { n_inputs: n_embd, ..none },
            MixerSpec::Mamba(own) => CacheShape { n_state: mamba_state(own), ..none },
            MixerSpec::Mamba2(own) => CacheShape { n_state: mamba2_state(own), ..none },
            MixerSpec::AttentionAndMamba2(attention, mamba) => {
                let kv = CacheShape::of(&MixerSpec::Attention(attention.clone()), n_embd).kv;
                CacheShape { kv, n_state: mamba2_state(mamba), ..none }
            }
        }
    }

    /// Bytes of keys and of values in a block.
    pub(crate) fn block_bytes(&self, format: KvFormat) -> [usize; 2] {
        let bytes = if format == KvFormat::F32 { 4 } else { 2 };
        match self.kv {
            Some(LayerKv { n_kv_heads, k_dim, v_dim }) => {
                [k_dim, v_dim].map(|dim| n_kv_heads * dim * BLOCK_TOKENS * bytes)
            }
            None => [self.n_inputs * BLOCK_TOKENS * 4, 0],
        }
    }

    /// Returns what makes a pool of blocks count the device's bytes.
    fn layer_kv(&self, format: KvFormat) -> Option<LayerKv> {
        // The inputs of a convolution are one row in f32, half of it in the place of a key.
        let half = if format == KvFormat::F32 { self.n_inputs / 2 } else { self.n_inputs };
        self.kv.or((half > 0).then_some(LayerKv { n_kv_heads: 1, k_dim: half, v_dim: half }))
    }
}

/// Returns what each layer of a model keeps.
pub(crate) fn cache_shapes(spec: &ModelSpec) -> Vec<CacheShape> {
    spec.layers.iter().map(|layer| CacheShape::of(&layer.mixer, spec.n_embd)).collect()
}

/// Returns the layout of a pool whose blocks have the device's bytes.
pub(crate) fn layout(shapes: &[CacheShape], format: KvFormat) -> KvLayout {
    KvLayout { layers: shapes.iter().filter_map(|shape| shape.layer_kv(format)).collect() }
}

/// Returns the keys and values that a layer over a short row attends over.
pub(crate) fn latent_kv(spec: &LatentAttentionSpec) -> LayerKv {
    let LatentAttentionSpec { n_heads, n_nope, n_rot, v_dim, .. } = *spec;
    let n_latent = spec.latent.n_out();
    match spec.expansion {
        ExpansionSpec::Joint(_) => LayerKv { n_kv_heads: n_heads, k_dim: n_nope + n_rot, v_dim },
        ExpansionSpec::Absorbed { .. } => LayerKv { n_kv_heads: 1, k_dim: n_latent + n_rot, v_dim: n_latent },
    }
}

/// Values of the last inputs of a convolution.
pub(crate) fn conv_state(conv: &ConvSpec) -> usize {
    (conv.taps.n_cols - 1) * conv.taps.n_rows()
}

fn mamba_state(spec: &MambaSpec) -> usize {
    conv_state(&spec.conv) + spec.a.n_values()
}

fn mamba2_state(spec: &Mamba2Spec) -> usize {
    conv_state(&spec.conv) + spec.z.n_out() * spec.n_state
}
