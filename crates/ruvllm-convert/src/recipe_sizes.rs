//! The sizes that a model's tensors would have in another recipe, told from its header alone.

use std::collections::BTreeMap;

use ruvllm_gguf::GgufFile;

use crate::error::ConvertError;
use crate::options::QuantizeOptions;
use crate::plan::plan;
use crate::recipe::Recipe;

/// Returns names and bytes of a model's tensors after quantising it by a recipe, whatever types they have now.
///
/// # Errors
/// The file is no model, or cannot have the recipe.
pub fn quantized_sizes(file: &GgufFile, recipe: Recipe) -> Result<Vec<(String, u64)>, ConvertError> {
    let options = QuantizeOptions { requantize: true, ..QuantizeOptions::new(recipe) };
    let planned = plan(file, &options, &BTreeMap::new())?;
    Ok(planned.iter().map(|tensor| (tensor.info.name.clone(), tensor.n_bytes() as u64)).collect())
}
