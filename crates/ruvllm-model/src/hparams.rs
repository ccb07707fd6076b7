//! Hyperparameters of a model, read from `{arch}.*` metadata with one-line errors and sane bounds.

use ruvllm_gguf::Metadata;
use ruvllm_kernels::rope::RopeScaling;

use crate::{ExpertGroups, ModelError};

/// Upper bound of any count in a header; larger values are taken for damage.
const COUNT_MAX: usize = 1 << 24;

/// The most groups of experts. Models have up to 8.
const GROUPS_MAX: usize = 64;

/// Typed access to the metadata keys under the architecture's own prefix.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    metadata: &'a Metadata,
    arch: &'a str,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(metadata: &'a Metadata, arch: &'a str) -> Keys<'a> {
        Keys { metadata, arch }
    }

    pub(crate) fn arch(&self) -> &'a str {
        self.arch
    }

    fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    /// Returns `{arch}.{key}` as a count, if present.
    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let path = self.path(key);
        match self.metadata.u32(&path)? {
            Some(n) if n as usize > COUNT_MAX => {
                Err(ModelError::damaged(format!("metadata {path} = {n} is beyond any model")))
            }
            n => Ok(n.map(|n| n as usize)),
        }
    }

    /// Returns `{arch}.{key}` as a count that must be there and positive.
    pub(crate) fn need_count(&self, key: &str) -> Result<usize, ModelError> {
        match self.count(key)? {
            Some(0) => Err(ModelError::damaged(format!("metadata {} is 0", self.path(key)))),
            Some(n) => Ok(n),
            None => Err(ModelError::damaged(format!(
                "metadata {} is missing; the file is not a complete model",
                self.path(key)
            ))),
        }
    }

    /// Returns `{arch}.{key}` as one count a layer: a scalar is repeated, an array must have an entry for each.
    pub(crate) fn count_per_layer(&self, key: &str, n_layers: usize) -> Result<Option<Vec<usize>>, ModelError> {
        let path = self.path(key);
        let values = self.metadata.u32_per_layer(&path, n_layers)?;
        match values.iter().flatten().find(|&&n| n as usize > COUNT_MAX) {
            Some(n) => Err(ModelError::damaged(format!("metadata {path} = {n} is beyond any model"))),
            None => Ok(values.map(|values| values.into_iter().map(|n| n as usize).collect())),
        }
    }

    /// Returns `{arch}.{key}` as a count if it is a single number, not an array.
    pub(crate) fn count_if_scalar(&self, key: &str) -> Result<Option<usize>, ModelError> {
        if self.count_is_scalar(&self.path(key)) { self.count(key) } else { Ok(None) }
    }

    /// Returns `{arch}.{key}` as one flag a layer if it is an array.
    pub(crate) fn flags(&self, key: &str, n_layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
        let path = self.path(key);
        if self.count_is_scalar(&path) {
            return Ok(None);
        }
        match self.metadata.bools(&path)? {
            Some(flags) if flags.len() < n_layers => {
                Err(ModelError::damaged(format!("metadata {path} has {} flags for {n_layers} layers", flags.len())))
            }
            flags => Ok(flags.map(|flags| flags[..n_layers].to_vec())),
        }
    }

    fn count_is_scalar(&self, path: &str) -> bool {
        self.metadata.get(path).is_some_and(|value| value.as_integer().is_some())
    }

    pub(crate) fn float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let path = self.path(key);
        match self.metadata.f32(&path)? {
            Some(x) if !x.is_finite() => Err(ModelError::damaged(format!("metadata {path} is not a finite number"))),
            x => Ok(x),
        }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        Ok(self.metadata.bool(&self.path(key))?)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.metadata.str(&self.path(key))?)
    }
}

/// The shape of a transformer, as the shared blocks need it.
#[derive(Clone, Debug)]
pub(crate) struct Hparams {
    pub n_layers: usize,
    pub n_embd: usize,
    pub n_ctx_train: usize,
    pub n_ff: Vec<usize>,
    pub n_heads: Vec<usize>,
    pub n_kv_heads: Vec<usize>,
    pub k_dim: usize,
    pub v_dim: usize,
    pub n_rot: usize,
    pub eps: f32,
    pub rope_base: f32,
    pub rope_scaling: RopeScaling,
    pub rope_attn_factor: f32,
    pub rope_ctx_orig: usize,
    /// Context the model is opened with (chooses between longrope's factors).
    pub n_ctx: usize,
    pub window: Option<usize>,
    pub attention_scale: Option<f32>,
    pub n_experts: usize,
    pub n_experts_used: usize,
    pub expert_groups: Option<ExpertGroups>,
}

impl Hparams {
    /// Reads the keys every architecture shares. `n_ctx` is what the caller asked for, if anything.
    pub(crate) fn read(keys: Keys<'_>, n_ctx: Option<usize>) -> Result<Hparams, ModelError> {
        let n_layers = keys.need_count("block_count")?;
        let n_embd = keys.need_count("embedding_length")?;
        if n_layers > 4096 {
            return Err(ModelError::damaged(format!("the file claims {n_layers} layers")));
        }
        let n_heads = keys.count_per_layer("attention.head_count", n_layers)?.ok_or_else(|| {
            ModelError::damaged("metadata attention.head_count is missing; the file is not a complete model")
        })?;
        let n_kv_heads = keys.count_per_layer("attention.head_count_kv", n_layers)?.unwrap_or_else(|| n_heads.clone());
        let heads_max = n_heads.iter().copied().max().unwrap_or(0);
        if heads_max > 65536 {
            return Err(ModelError::damaged(format!("the file claims {heads_max} attention heads")));
        }
        // A model without attention has no heads, and no head has a length.
        let head_dim = n_embd.checked_div(heads_max).unwrap_or(0);
        let k_dim = keys.count("attention.key_length")?.unwrap_or(head_dim);
        let v_dim = keys.count("attention.value_length")?.unwrap_or(head_dim);
        let n_rot = keys.count("rope.dimension_count")?.unwrap_or(k_dim);
        if heads_max > 0 && (k_dim == 0 || v_dim == 0) || n_rot > k_dim || !n_rot.is_multiple_of(2) {
            return Err(ModelError::damaged(format!(
                "impossible head shape: key {k_dim}, value {v_dim}, rotary {n_rot}"
            )));
        }
        for (&h, &kv) in n_heads.iter().zip(&n_kv_heads) {
            if kv != 0 && !h.is_multiple_of(kv) {
                return Err(ModelError::damaged(format!("{h} attention heads cannot share {kv} key heads")));
            }
        }
        let n_ctx_train = keys.count("context_length")?.unwrap_or(2048);
        let n_ff = keys.count_per_layer("feed_forward_length", n_layers)?.unwrap_or_else(|| vec![0; n_layers]);
        let n_experts = keys.count("expert_count")?.unwrap_or(0);
        let n_experts_used = keys.count("expert_used_count")?.unwrap_or(0);
        if n_experts > 0 && (n_experts_used == 0 || n_experts_used > n_experts || n_experts > 4096) {
            return Err(ModelError::damaged(format!("the file asks for {n_experts_used} of {n_experts} experts")));
        }
        let eps = match keys.float("attention.layer_norm_rms_epsilon")? {
            Some(eps) => eps,
            None => keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
        };
        let (rope_scaling, rope_attn_factor, rope_ctx_orig) = read_rope_scaling(keys, n_ctx_train)?;
        Ok(Hparams {
            n_layers,
            n_embd,
            n_ctx_train,
            n_ff,
            n_heads,
            n_kv_heads,
            k_dim,
            v_dim,
            n_rot,
            eps,
            rope_base: keys.float("rope.freq_base")?.unwrap_or(10000.0),
            rope_scaling,
            rope_attn_factor,
            rope_ctx_orig,
            n_ctx: n_ctx.unwrap_or(n_ctx_train),
            window: keys.count("attention.sliding_window")?.filter(|&window| window > 0),
            attention_scale: keys.float("attention.scale")?.filter(|&scale| scale != 0.0),
            n_experts,
            n_experts_used,
            expert_groups: read_expert_groups(keys, n_experts, n_experts_used)?,
        })
    }

    /// Returns the score scale: the file's, or `1/√k_dim`.
    pub(crate) fn score_scale(&self) -> f32 {
        self.attention_scale.unwrap_or(1.0 / (self.k_dim as f32).sqrt())
    }
}

/// Reads which groups experts are chosen by; one group is none.
fn read_expert_groups(
    keys: Keys<'_>,
    n_experts: usize,
    n_experts_used: usize,
) -> Result<Option<ExpertGroups>, ModelError> {
    let Some(n_groups) = keys.count("expert_group_count")?.filter(|&n| n > 1) else { return Ok(None) };
    let n_used = keys.need_count("expert_group_used_count")?;
    // Two of each group are looked at, and those chosen have to have as many experts as a row visits.
    let fits = n_experts.is_multiple_of(n_groups) && n_experts / n_groups >= 2 && n_groups <= GROUPS_MAX;
    match fits && n_used <= n_groups && n_used * (n_experts / n_groups) >= n_experts_used {
        true => Ok(Some(ExpertGroups { n_groups, n_used })),
        false => Err(ModelError::damaged(format!(
            "{n_experts_used} of {n_experts} experts cannot be chosen by {n_used} of {n_groups} groups"
        ))),
    }
}

/// Reads `rope.scaling.*` as llama.cpp does (`llama-context.cpp`: with YaRN the magnitude is `1 + 0.1 ln(factor)`
/// unless `yarn_log_multiplier` says otherwise; the kernel's own factor of the same form is cancelled here).
fn read_rope_scaling(keys: Keys<'_>, n_ctx_train: usize) -> Result<(RopeScaling, f32, usize), ModelError> {
    let n_ctx_orig = keys.count("rope.scaling.original_context_length")?.filter(|&n| n > 0).unwrap_or(n_ctx_train);
    let factor = match keys.float("rope.scaling.factor")? {
        Some(factor) => factor,
        None => keys.float("rope.scale_linear")?.unwrap_or(0.0),
    };
    let factor = if factor == 0.0 { 1.0 } else { factor };
    if factor <= 0.0 {
        return Err(ModelError::damaged(format!("metadata rope.scaling.factor is {factor}, it must be positive")));
    }
    let file_factor = keys.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
    match keys.text("rope.scaling.type")?.unwrap_or("linear") {
        "none" | "longrope" => Ok((RopeScaling::None, file_factor, n_ctx_orig)),
        "linear" if factor == 1.0 => Ok((RopeScaling::None, file_factor, n_ctx_orig)),
        "linear" => Ok((RopeScaling::Linear { factor }, file_factor, n_ctx_orig)),
        "yarn" => {
            let ext_factor = keys.float("rope.scaling.yarn_ext_factor")?.filter(|&x| x >= 0.0).unwrap_or(1.0);
            let mscale = |m: f32| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
            let log_mul = keys.float("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
            let wanted = if log_mul != 0.0 { mscale(1.0) / mscale(log_mul) } else { mscale(1.0) };
            let attn_factor = if ext_factor != 0.0 { wanted / (1.0 + 0.1 * factor.ln()) } else { 1.0 };
            let scaling = RopeScaling::Yarn {
                factor,
                n_ctx_orig: n_ctx_orig as u32,
                ext_factor,
                attn_factor,
                beta_fast: keys.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            };
            Ok((scaling, file_factor, n_ctx_orig))
        }
        other => Err(ModelError::Unsupported(format!("rope scaling '{other}' is not supported"))),
    }
}
