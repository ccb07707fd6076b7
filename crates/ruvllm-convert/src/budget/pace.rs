//! Times of prompts by the types of the matrices, and the longest that is allowed.

use std::collections::BTreeMap;

use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, TensorInfo};

use crate::error::ConvertError;
use crate::options::QuantizeOptions;
use crate::plan::plan;
use crate::recipe::Recipe;
use crate::role::TensorRole;

/// Recipes that a size is compared with.
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

/// Time of a weight in products of 256 rows against one in Q4_K, with AVX-512 VNNI: what the example `type_times` of the benches
/// prints.
const TIMES: [(GgmlType, f64); 12] = [
    (GgmlType::Q2_K, 1.54),
    (GgmlType::Q3_K, 1.44),
    (GgmlType::IQ4_XS, 0.96),
    (GgmlType::Q4_K, 1.0),
    (GgmlType::Q5_K, 1.01),
    (GgmlType::Q6_K, 1.45),
    (GgmlType::IQ4_NL, 0.96),
    (GgmlType::Q4_0, 0.96),
    (GgmlType::Q4_1, 1.0),
    (GgmlType::Q5_0, 0.97),
    (GgmlType::Q5_1, 1.01),
    (GgmlType::Q8_0, 1.11),
];

/// Time that is allowed, against the recipe's: products are not all that a prompt takes.
const SLACK: f64 = 1.02;

/// Returns the time that a tensor takes in prompts, in weights of Q4_K. Embeddings are looked up, and a head is multiplied with one
/// row of a prompt: they take none.
pub(super) fn time_of(info: &TensorInfo, ty: GgmlType) -> f64 {
    if matches!(TensorRole::of(&info.name), TensorRole::TokenEmbedding | TensorRole::Output) {
        return 0.0;
    }
    let of_weight = TIMES.iter().find(|(of, _)| *of == ty).map_or(1.0, |(_, time)| *time);
    of_weight * info.n_elements() as f64
}

/// Returns the time that the tensors which `is_chosen` names may take: about that of the recipe whose tensors are nearest to `n_bytes`
/// in size.
///
/// # Errors
/// The file is no model.
pub(super) fn time_max(
    file: &GgufFile,
    options: &QuantizeOptions,
    n_bytes: u64,
    is_chosen: &dyn Fn(&TensorInfo) -> bool,
) -> Result<f64, ConvertError> {
    let mut nearest = (u64::MAX, f64::INFINITY);
    for recipe in RECIPES {
        let options = QuantizeOptions { recipe, ..options.clone() };
        let planned = plan(file, &options, &BTreeMap::new())?;
        let distance = planned.iter().map(|tensor| tensor.n_bytes() as u64).sum::<u64>().abs_diff(n_bytes);
        if distance < nearest.0 {
            let chosen = planned.iter().filter(|tensor| is_chosen(tensor.info));
            nearest = (distance, chosen.map(|tensor| time_of(tensor.info, tensor.ty)).sum());
        }
    }
    Ok(SLACK * nearest.1)
}
