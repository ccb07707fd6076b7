//! Types of tensors by recipe, role and layer: the rules of llama.cpp's `llama_model_quantize`.

use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, TensorInfo};

use crate::error::ConvertError;
use crate::recipe::Recipe;
use crate::role::TensorRole;

/// A model, as far as recipes look at it.
#[derive(Debug)]
struct Facts {
    is_falcon: bool,
    /// 80 layers whose heads share keys and values.
    is_70b: bool,
    n_layers: usize,
    n_experts: u32,
    /// Query heads that share keys and values.
    n_gqa: u32,
    /// Matrices of attention values.
    n_attn_v: usize,
    /// The head is the token embeddings.
    is_tied: bool,
    has_importance: bool,
}

/// Chooses types for the tensors of a model, which are asked for in the order of the output.
#[derive(Debug)]
pub(crate) struct Mixture {
    recipe: Recipe,
    facts: Facts,
    /// Matrices of attention values and of feed-forward parts that were asked for.
    i_attn_v: usize,
    i_ffn_down: usize,
    i_ffn_up: usize,
    i_ffn_gate: usize,
}

/// Returns whether a layer is one of those that recipes give more bits: the first and the last eighth, and every third between.
fn has_more_bits(layer: usize, n_layers: usize) -> bool {
    layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2
}

impl Mixture {
    /// Reads what the recipe needs to know of a model.
    ///
    /// # Errors
    /// The metadata is of the wrong types, or has no number of layers.
    pub(crate) fn new(file: &GgufFile, recipe: Recipe, has_importance: bool) -> Result<Mixture, ConvertError> {
        let metadata = file.metadata();
        let missing = |key: &str| ConvertError::invalid(format!("the file has no '{key}'; is it a model?"));
        let arch = metadata.str("general.architecture")?.ok_or_else(|| missing("general.architecture"))?;
        let key = |name: &str| format!("{arch}.{name}");
        let n_layers = metadata.u32(&key("block_count"))?.ok_or_else(|| missing(&key("block_count")))? as usize;
        let first = |name: &str| Ok::<_, ConvertError>(metadata.u32_per_layer(&key(name), 1)?.map(|all| all[0]));
        let n_heads = first("attention.head_count")?.unwrap_or(0);
        let n_kv_heads = first("attention.head_count_kv")?.unwrap_or(n_heads);
        let is_shared = arch != "llama" || n_heads != n_kv_heads;
        let facts = Facts {
            is_falcon: arch == "falcon",
            is_70b: n_layers == 80 && is_shared && matches!(arch, "llama" | "qwen2" | "olmo" | "deci"),
            n_layers,
            n_experts: metadata.u32(&key("expert_count"))?.unwrap_or(0),
            n_gqa: n_heads.checked_div(n_kv_heads).unwrap_or(0),
            n_attn_v: file.tensors().filter(|t| TensorRole::of(&t.name) == TensorRole::AttentionValue).count(),
            is_tied: file.tensor("output.weight").is_none(),
            has_importance,
        };
        Ok(Mixture { recipe, facts, i_attn_v: 0, i_ffn_down: 0, i_ffn_up: 0, i_ffn_gate: 0 })
    }

    /// Returns the type of the next tensor, which may not have rows of whole blocks of it: see [`fallback`].
    ///
    /// # Errors
    /// A model of experts has a tensor whose layer its name does not tell.
    pub(crate) fn type_of(&mut self, tensor: &TensorInfo) -> Result<GgmlType, ConvertError> {
        let (recipe, ty) = (self.recipe, self.recipe.default_type());
        if matches!(recipe, Recipe::F16 | Recipe::BF16) {
            return Ok(ty);
        }
        let role = TensorRole::of(&tensor.name);
        let is_head = role == TensorRole::Output || role == TensorRole::TokenEmbedding && self.facts.is_tied;
        Ok(match role {
            _ if is_head => self.head(tensor.shape[0], ty),
            _ if recipe == Recipe::MXFP4_MOE => match tensor.shape.get(2).is_some_and(|&n| n > 1) {
                true => GgmlType::MXFP4,
                false => GgmlType::Q8_0,
            },
            TensorRole::TokenEmbedding => self.token_embedding(ty),
            _ if self.is_low() => self.low(role, ty),
            TensorRole::AttentionValue => self.attention_value(ty),
            TensorRole::AttentionKey if self.facts.n_experts == 8 => GgmlType::Q8_0,
            TensorRole::AttentionKey | TensorRole::AttentionQuery => match recipe {
                Recipe::IQ3_XS => GgmlType::IQ3_XXS,
                Recipe::IQ3_XXS => GgmlType::IQ2_S,
                _ => ty,
            },
            TensorRole::AttentionOutput => self.attention_output(ty),
            TensorRole::FfnDown => self.ffn_down(tensor, ty)?,
            TensorRole::FfnUp | TensorRole::FfnGate => self.ffn_up(role, tensor, ty)?,
            TensorRole::Output | TensorRole::Other => ty,
        })
    }

    /// Returns whether the recipe is of one to two bits, which have rules of their own.
    fn is_low(&self) -> bool {
        use Recipe::*;
        matches!(self.recipe, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ2_M)
    }

    /// Types of recipes of one to two bits.
    fn low(&mut self, role: TensorRole, ty: GgmlType) -> GgmlType {
        use Recipe::*;
        let is_larger = matches!(self.recipe, IQ2_S | IQ2_M);
        let better = if is_larger { GgmlType::IQ3_S } else { GgmlType::Q2_K };
        let Facts { n_gqa, n_experts, n_layers, .. } = self.facts;
        match role {
            TensorRole::AttentionValue if n_gqa >= 4 || n_experts >= 4 => GgmlType::Q4_K,
            TensorRole::AttentionValue => better,
            TensorRole::AttentionKey if n_experts == 8 => GgmlType::Q4_K,
            TensorRole::FfnDown => {
                self.i_ffn_down += 1;
                if self.i_ffn_down <= n_layers / 8 { better } else { ty }
            }
            TensorRole::AttentionOutput if n_experts == 8 => GgmlType::Q5_K,
            TensorRole::AttentionOutput if matches!(self.recipe, IQ1_S | IQ1_M) => GgmlType::IQ2_XXS,
            TensorRole::AttentionOutput if is_larger => GgmlType::IQ3_S,
            _ => ty,
        }
    }

    /// Embeddings that are not the head.
    fn token_embedding(&self, ty: GgmlType) -> GgmlType {
        match self.recipe {
            Recipe::IQ1_S | Recipe::IQ1_M | Recipe::IQ2_XXS | Recipe::IQ2_XS => GgmlType::Q2_K,
            Recipe::IQ2_S | Recipe::IQ2_M | Recipe::IQ3_XXS => GgmlType::IQ3_S,
            _ => ty,
        }
    }

    /// The head is never below Q5_K.
    fn head(&self, n_columns: usize, ty: GgmlType) -> GgmlType {
        let is_odd = self.facts.is_falcon || !n_columns.is_multiple_of(ty.block_len());
        match self.recipe {
            Recipe::MXFP4_MOE | Recipe::Q8_0 => GgmlType::Q8_0,
            _ if is_odd => GgmlType::Q8_0,
            _ if self.is_low() || self.recipe == Recipe::IQ3_XXS => GgmlType::Q5_K,
            _ => GgmlType::Q6_K,
        }
    }

    fn attention_value(&mut self, ty: GgmlType) -> GgmlType {
        let (i, is_shared) = (self.i_attn_v, self.facts.n_gqa >= 4);
        self.i_attn_v += 1;
        let ty = match self.recipe {
            Recipe::Q2_K if !is_shared => GgmlType::Q3_K,
            Recipe::Q2_K | Recipe::Q2_K_S if is_shared => GgmlType::Q4_K,
            Recipe::IQ3_XXS | Recipe::IQ3_XS | Recipe::IQ3_S if is_shared => GgmlType::Q4_K,
            Recipe::IQ3_XXS if !self.facts.has_importance => GgmlType::IQ3_S,
            Recipe::IQ3_M => GgmlType::Q4_K,
            Recipe::Q3_K_M if i >= 2 => GgmlType::Q4_K,
            Recipe::Q3_K_M | Recipe::Q3_K_L => GgmlType::Q5_K,
            Recipe::IQ4_NL | Recipe::IQ4_XS if is_shared => GgmlType::Q5_K,
            Recipe::Q4_K_M | Recipe::Q5_K_M if has_more_bits(i, self.facts.n_attn_v) => GgmlType::Q6_K,
            Recipe::Q4_K_S if i < 4 => GgmlType::Q5_K,
            _ => ty,
        };
        match ty {
            _ if self.facts.n_experts == 8 => GgmlType::Q8_0,
            GgmlType::Q3_K | GgmlType::Q4_K if self.facts.is_70b => GgmlType::Q5_K,
            ty => ty,
        }
    }

    fn attention_output(&self, ty: GgmlType) -> GgmlType {
        use Recipe::*;
        match self.recipe {
            Q3_K_L if self.facts.is_falcon => GgmlType::Q4_K,
            _ if self.facts.is_falcon => ty,
            Q2_K | IQ3_XXS | IQ3_XS | IQ3_S | IQ3_M | Q3_K_S | Q3_K_M | IQ4_NL | Q4_K_S | Q4_K_M | IQ4_XS
                if self.facts.n_experts == 8 =>
            {
                GgmlType::Q5_K
            }
            _ if self.facts.n_experts == 8 => ty,
            Q2_K => GgmlType::Q3_K,
            IQ3_XXS => GgmlType::IQ3_S,
            Q3_K_M | IQ3_M => GgmlType::Q4_K,
            Q3_K_L => GgmlType::Q5_K,
            _ => ty,
        }
    }

    /// The layers between the first and the last eighth have the smaller type in one recipe.
    fn ffn_up(&mut self, role: TensorRole, tensor: &TensorInfo, ty: GgmlType) -> Result<GgmlType, ConvertError> {
        let n = self.facts.n_layers;
        let counter = if role == TensorRole::FfnUp { &mut self.i_ffn_up } else { &mut self.i_ffn_gate };
        *counter += 1;
        if self.recipe != Recipe::IQ3_XS {
            return Ok(ty);
        }
        let i = if self.facts.n_experts > 1 { layer_of(&tensor.name, n)? } else { *counter - 1 };
        Ok(if (n / 8..7 * n / 8).contains(&i) { GgmlType::IQ3_XXS } else { ty })
    }

    fn ffn_down(&mut self, tensor: &TensorInfo, ty: GgmlType) -> Result<GgmlType, ConvertError> {
        use Recipe::*;
        let n = self.facts.n_layers;
        // Experts of a layer may be tensors of their own.
        let i = if self.facts.n_experts > 1 { layer_of(&tensor.name, n)? } else { self.i_ffn_down };
        self.i_ffn_down += 1;
        let (is_falcon, is_first) = (self.facts.is_falcon, i < n / 8);
        Ok(match self.recipe {
            Q2_K => GgmlType::Q3_K,
            Q2_K_S if is_first => GgmlType::Q4_K,
            IQ3_XXS if !self.facts.has_importance => {
                if is_first {
                    GgmlType::Q4_K
                } else {
                    GgmlType::Q3_K
                }
            }
            IQ3_M if is_first || self.facts.n_experts == 8 && has_more_bits(i, n) => GgmlType::Q4_K,
            Q3_K_M if i < n / 16 => GgmlType::Q5_K,
            Q3_K_M if !is_falcon || has_more_bits(i, n) => GgmlType::Q4_K,
            Q3_K_L if is_falcon => GgmlType::Q4_K,
            Q3_K_L => GgmlType::Q5_K,
            Q4_K_M if is_falcon && i < n / 16 => GgmlType::Q6_K,
            Q4_K_M if is_falcon && has_more_bits(i, n) => GgmlType::Q5_K,
            Q4_K_M | Q5_K_M if has_more_bits(i, n) && (self.recipe == Q5_K_M || !is_falcon) => GgmlType::Q6_K,
            IQ4_NL | IQ4_XS if is_first && !self.facts.has_importance => GgmlType::Q5_K,
            Q4_K_S if is_first && !is_falcon => GgmlType::Q5_K,
            Q4_0 if is_first && self.facts.has_importance => GgmlType::Q4_1,
            Q5_0 if is_first && self.facts.has_importance => GgmlType::Q5_1,
            _ => ty,
        })
    }
}

/// Reads the layer in a name `blk.N.`.
fn layer_of(name: &str, n_layers: usize) -> Result<usize, ConvertError> {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse().ok());
    layer
        .filter(|&layer| layer < n_layers)
        .ok_or_else(|| ConvertError::invalid(format!("its name has no layer below {n_layers}")).of_tensor(name))
}

/// Returns the type for rows of `n_columns` instead of one whose blocks are longer: one of about as many bits in blocks of 32, or
/// F16.
pub(crate) fn fallback(ty: GgmlType, n_columns: usize) -> GgmlType {
    use GgmlType::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_XS};
    let fits = |ty: GgmlType| n_columns.is_multiple_of(ty.block_len());
    if fits(ty) {
        return ty;
    }
    let other = match ty {
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS => GgmlType::IQ4_NL,
        GgmlType::Q2_K | GgmlType::Q3_K => GgmlType::Q4_0,
        GgmlType::Q4_K => GgmlType::Q5_0,
        GgmlType::Q5_K => GgmlType::Q5_1,
        GgmlType::Q6_K => GgmlType::Q8_0,
        other => other,
    };
    if fits(other) { other } else { GgmlType::F16 }
}
