//! How long a model takes for prompts by the types of its matrices, and how long the recipe of its size does.

use std::collections::BTreeMap;

use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, TensorInfo};

use crate::error::ConvertError;
use crate::options::QuantizeOptions;
use crate::plan::plan;
use crate::recipe::Recipe;
use crate::role::TensorRole;

/// Recipes that a size is compared with, from small files to large ones.
const RECIPES: [Recipe; 10] = [
    Recipe::Q2_K,
    Recipe::Q3_K_S,
    Recipe::Q3_K_M,
    Recipe::Q3_K_L,
    Recipe::Q4_K_S,
    Recipe::Q4_K_M,
    Recipe::Q5_K_S,
    Recipe::Q5_K_M,
    Recipe::Q6_K,
    Recipe::Q8_0,
];

/// Time of a weight in products of 256 rows against one in Q4_K, with AVX-512 VNNI (`docs/lab/quantisation.md`).
const TIMES: [(GgmlType, f64); 11] = [
    (GgmlType::Q2_K, 1.6),
    (GgmlType::Q3_K, 1.8),
    (GgmlType::IQ4_XS, 1.05),
    (GgmlType::Q4_K, 1.0),
    (GgmlType::Q5_K, 1.3),
    (GgmlType::Q6_K, 1.35),
    (GgmlType::IQ4_NL, 1.1),
    (GgmlType::Q4_1, 1.0),
    (GgmlType::Q5_0, 1.03),
    (GgmlType::Q5_1, 1.05),
    (GgmlType::Q8_0, 1.1),
];

/// Returns the time that a tensor takes in prompts, in weights of Q4_K. Embeddings are looked up, and a head is multiplied with one
/// row of a prompt: they take none.
pub(super) fn time_of(info: &TensorInfo, ty: GgmlType) -> f64 {
    if matches!(TensorRole::of(&info.name), TensorRole::TokenEmbedding | TensorRole::Output) {
        return 0.0;
    }
    let of_weight = TIMES.iter().find(|(of, _)| *of == ty).map_or(1.0, |(_, time)| *time);
    of_weight * info.n_elements() as f64
}

/// Returns the time that the tensors which `is_chosen` names would take in the largest recipe of at most `n_bytes` bytes of
/// tensors; nothing if none is so small.
///
/// # Errors
/// The file is no model.
pub(super) fn time_of_recipe(
    file: &GgufFile,
    options: &QuantizeOptions,
    n_bytes: u64,
    is_chosen: &dyn Fn(&TensorInfo) -> bool,
) -> Result<Option<f64>, ConvertError> {
    for recipe in RECIPES.into_iter().rev() {
        let options = QuantizeOptions { recipe, ..options.clone() };
        let planned = plan(file, &options, &BTreeMap::new())?;
        if planned.iter().map(|tensor| tensor.n_bytes() as u64).sum::<u64>() <= n_bytes {
            let chosen = planned.iter().filter(|tensor| is_chosen(tensor.info));
            return Ok(Some(chosen.map(|tensor| time_of(tensor.info, tensor.ty)).sum()));
        }
    }
    Ok(None)
}
