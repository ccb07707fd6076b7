//! From a file to a description of its model.

use ruvllm_gguf::GgufFile;
use ruvllm_kernels::rope::{Rope, RopeConfig};

use crate::arch;
use crate::builder::Builder;
use crate::hparams::{Hparams, Keys};
use crate::tensors::Tensors;
use crate::{
    AttentionSpec, ExpansionSpec, FfnSpec, LatentAttentionSpec, LayerSpec, LinearSpec, Mamba2Spec, MixerSpec, MlpSpec,
    ModelError, ModelSpec, RopeSpec, TensorRows,
};

impl ModelSpec {
    /// Reads the description of the model that a file holds. `n_ctx` is the context that it will be opened with, if somebody
    /// chose one.
    ///
    /// # Errors
    /// The architecture is not known, a key or a tensor is missing or contradicts another one.
    pub fn read(file: &GgufFile, n_ctx: Option<usize>) -> Result<ModelSpec, ModelError> {
        let (metadata, tensors) = (file.metadata(), Tensors::new(file));
        let missing = "metadata general.architecture is missing; the file is not a language model";
        let name = metadata.str("general.architecture")?.ok_or_else(|| ModelError::damaged(missing))?;
        let build = arch::find(name)?;
        let keys = Keys::new(metadata, name);
        let hparams = Hparams::read(keys, n_ctx)?;
        tensors.check_layers(hparams.n_layers)?;
        build(Builder::new(hparams, keys, tensors))
    }

    /// Returns the description of the first `n` layers alone: it ends with the residual stream, without a norm and a head.
    pub fn first_layers(mut self, n: usize) -> ModelSpec {
        self.layers.truncate(n);
        (self.output.norm, self.output.head, self.ranker) = (None, None, None);
        self
    }

    /// Returns the description without its first `n` layers; the input is that of the whole model.
    pub fn without_first_layers(mut self, n: usize) -> ModelSpec {
        self.layers.drain(..n.min(self.layers.len()));
        self
    }

    /// Returns all linear layers by number: those of the layers in order, then the head.
    pub fn linears(&self) -> Vec<&LinearSpec> {
        let mut all: Vec<&LinearSpec> = self.layers.iter().flat_map(LayerSpec::linears).collect();
        all.extend(&self.output.head);
        all.sort_by_key(|linear| linear.id);
        all
    }
}

impl LayerSpec {
    /// Returns its linear layers.
    pub fn linears(&self) -> Vec<&LinearSpec> {
        let mut all = match &self.mixer {
            MixerSpec::Attention(own) => own.linears().to_vec(),
            MixerSpec::LatentAttention(own) => own.linears(),
            MixerSpec::ShortConv(own) => vec![&own.in_proj, &own.out_proj],
            MixerSpec::Mamba(own) => vec![&own.x, &own.z, &own.low, &own.b, &own.c, &own.dt, &own.out],
            MixerSpec::Mamba2(own) => own.linears().to_vec(),
            MixerSpec::AttentionAndMamba2(attention, mamba) => [attention.linears(), mamba.linears()].concat(),
        };
        match &self.ffn {
            None => {}
            Some(FfnSpec::Mlp(own)) => all.extend(own.linears()),
            Some(FfnSpec::Moe(own)) => {
                let shared = own.shared.iter().flat_map(|shared| shared.mlp.linears().chain(&shared.gate));
                all.extend([&own.router].into_iter().chain(&own.gate).chain(&own.up).chain(&own.down).chain(shared));
            }
        }
        all
    }
}

impl MixerSpec {
    /// Returns its self-attention with keys and values of its own, if it has one.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match self {
            MixerSpec::Attention(own) | MixerSpec::AttentionAndMamba2(own, _) => Some(own),
            MixerSpec::LatentAttention(_) | MixerSpec::ShortConv(_) | MixerSpec::Mamba(_) | MixerSpec::Mamba2(_) => {
                None
            }
        }
    }
}

impl AttentionSpec {
    fn linears(&self) -> [&LinearSpec; 4] {
        [&self.q, &self.k, &self.v, &self.o]
    }
}

impl LatentAttentionSpec {
    fn linears(&self) -> Vec<&LinearSpec> {
        let mut all: Vec<&LinearSpec> = self.q_low.iter().map(|low| &low.down).collect();
        all.extend([&self.q, &self.latent, &self.k_rot, &self.o]);
        match &self.expansion {
            ExpansionSpec::Joint(kv) => all.push(kv),
            ExpansionSpec::Absorbed { k, v } => all.extend(k.iter().chain(v)),
        }
        all
    }
}

impl Mamba2Spec {
    fn linears(&self) -> [&LinearSpec; 4] {
        [&self.z, &self.xbc, &self.dt, &self.out]
    }
}

impl RopeSpec {
    /// Makes the frequencies; `values` reads [`RopeSpec::factors`].
    ///
    /// # Errors
    /// Errors of `values`; a factor is not positive.
    pub fn rope<E: From<ModelError>>(
        &self,
        values: impl FnOnce(&TensorRows) -> Result<Vec<f32>, E>,
    ) -> Result<Rope, E> {
        let freq_factors = self.factors.as_ref().map(values).transpose()?;
        if freq_factors.iter().flatten().any(|&factor| factor <= 0.0 || !factor.is_finite()) {
            let tensor = self.factors.as_ref().map_or("", |factors| &factors.tensor);
            let line = format!("tensor '{tensor}' holds a frequency factor that is not positive");
            return Err(ModelError::damaged(line).into());
        }
        let RopeSpec { style, n_rot, base, scaling, attn_factor, .. } = *self;
        Ok(Rope::new(&RopeConfig { style, n_rot, base, scaling, attn_factor, freq_factors }))
    }
}

impl MlpSpec {
    /// Iterates over its linear layers.
    pub fn linears(&self) -> impl Iterator<Item = &LinearSpec> {
        self.gate.iter().chain([&self.up, &self.down])
    }
}
