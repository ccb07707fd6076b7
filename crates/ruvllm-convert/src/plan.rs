//! Plan of what is done with each tensor, made before anything slow.

use std::collections::BTreeMap;

use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, TensorInfo};

use crate::error::ConvertError;
use crate::imatrix::ImportanceMatrix;
use crate::mixture::{Mixture, fallback};
use crate::options::QuantizeOptions;
use crate::recipe::Recipe;
use crate::role::{TensorRole, is_quantized};

/// A tensor of the output.
#[derive(Debug)]
pub(crate) struct PlannedTensor<'a> {
    pub(crate) info: &'a TensorInfo,
    pub(crate) ty: GgmlType,
    /// Importance of the columns, of each expert behind the other.
    pub(crate) weights: Option<&'a [f32]>,
    /// There is an importance matrix, and it does not know the tensor.
    pub(crate) is_unknown: bool,
    /// The type that its rows are too odd for.
    pub(crate) instead_of: Option<GgmlType>,
}

impl PlannedTensor<'_> {
    /// Returns whether the bytes stay as they are.
    pub(crate) fn is_kept(&self) -> bool {
        self.ty == self.info.ty
    }

    /// Returns the size of the tensor in the output.
    pub(crate) fn n_bytes(&self) -> usize {
        tensor_bytes(self.info, self.ty)
    }
}

/// Returns the size of a tensor in a type that its rows are whole blocks of.
pub(crate) fn tensor_bytes(info: &TensorInfo, ty: GgmlType) -> usize {
    info.n_elements() / ty.block_len() * ty.block_bytes()
}

/// Plans the output's tensors in its order: by layer, then by name. Of those that `assigned` has a type for, the recipe is not asked.
///
/// # Errors
/// The model cannot be quantised in this way; the line says why and what to do.
pub(crate) fn plan<'a>(
    file: &'a GgufFile,
    options: &'a QuantizeOptions,
    assigned: &BTreeMap<String, GgmlType>,
) -> Result<Vec<PlannedTensor<'a>>, ConvertError> {
    let imatrix = options.imatrix.as_ref();
    let mut mixture = Mixture::new(file, options.recipe, imatrix.is_some())?;
    let mut infos: Vec<&TensorInfo> = file.tensors().collect();
    infos.sort_by(|a, b| (layer(&a.name), &a.name).cmp(&(layer(&b.name), &b.name)));
    let mut planned = Vec::with_capacity(infos.len());
    for info in infos {
        let (ty, instead_of) = choose(info, options, assigned, &mut mixture)?;
        let mut tensor = PlannedTensor { info, ty, weights: None, is_unknown: false, instead_of };
        if !tensor.is_kept() {
            check(&tensor, options)?;
            tensor.weights = imatrix.map_or(Ok(None), |imatrix| weights(info, imatrix))?;
            tensor.is_unknown = imatrix.is_some() && tensor.weights.is_none();
        }
        planned.push(tensor);
    }
    Ok(planned)
}

/// Layer of a name, -1 for those of none.
pub(crate) fn layer(name: &str) -> i64 {
    let digits = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map(|(digits, _)| digits);
    digits.and_then(|digits| digits.parse::<u32>().ok()).map_or(-1, i64::from)
}

/// Chooses a tensor's type, and says which one its rows were too odd for.
fn choose(
    info: &TensorInfo,
    options: &QuantizeOptions,
    assigned: &BTreeMap<String, GgmlType>,
    mixture: &mut Mixture,
) -> Result<(GgmlType, Option<GgmlType>), ConvertError> {
    if !is_quantized(info) {
        return Ok((info.ty, None));
    }
    let rule = options.keep.iter().find_map(|rule| rule.type_of(&info.name));
    let ty = match rule.or_else(|| assigned.get(&info.name).copied()) {
        Some(ty) => ty,
        None => mixture.type_of(info)?,
    };
    let fitting = fallback(ty, info.shape[0]);
    Ok((fitting, (fitting != ty).then_some(ty)))
}

/// Checks that the values of a tensor can be read, and are those of the model.
fn check(tensor: &PlannedTensor<'_>, options: &QuantizeOptions) -> Result<(), ConvertError> {
    use GgmlType::*;
    let from = tensor.info.ty;
    match from {
        F32 | F16 | BF16 => Ok(()),
        I8 | I16 | I32 | I64 | F64 => {
            let line = format!("values of {from} are not quantised; convert the model to F32, F16 or BF16 first");
            Err(ConvertError::unsupported(line).of_tensor(&tensor.info.name))
        }
        _ if options.requantize => Ok(()),
        _ => {
            let line = format!(
                "the model is quantised already ({from}); use one in F16, BF16 or F32, or pass --requantize and lose quality"
            );
            Err(ConvertError::unsupported(line).of_tensor(&tensor.info.name))
        }
    }
}

/// Finds the importance of a tensor's columns.
pub(crate) fn weights<'a>(info: &TensorInfo, imatrix: &'a ImportanceMatrix) -> Result<Option<&'a [f32]>, ConvertError> {
    let Some(importance) = imatrix.tensor(&info.name) else { return Ok(None) };
    let need = info.shape[0] * info.shape.get(2).copied().unwrap_or(1);
    let have = importance.values.len();
    match have == need {
        true => Ok(Some(&importance.values)),
        // Matrices of token embeddings count something else.
        false if TensorRole::of(&info.name) == TensorRole::TokenEmbedding => Ok(None),
        false => {
            let line = format!("the importance matrix has {have} values and {need} are needed; is it of this model?");
            Err(ConvertError::invalid(line).of_tensor(&info.name))
        }
    }
}

/// Refuses types of few bits without importance: codebooks of less than 3 bits and IQ3_XXS everywhere but at the edges, Q2_K in a recipe that
/// has no larger types beside.
pub(crate) fn check_importance(tensor: &PlannedTensor<'_>, recipe: Recipe) -> Result<(), ConvertError> {
    if tensor.is_kept() {
        return Ok(());
    }
    use GgmlType::{IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_XXS, Q2_K};
    let role = TensorRole::of(&tensor.info.name);
    let is_edge = matches!(role, TensorRole::TokenEmbedding | TensorRole::Output);
    let is_needed = match tensor.ty {
        IQ1_S | IQ2_XXS | IQ2_XS => true,
        IQ1_M | IQ2_S | IQ3_XXS => !is_edge,
        Q2_K => !is_edge && recipe == Recipe::Q2_K_S,
        _ => false,
    };
    if !is_needed || tensor.weights.is_some() {
        return Ok(());
    }
    let line =
        format!("{} needs an importance matrix for it; pass one with --imatrix, or choose a larger type", tensor.ty);
    Err(ConvertError::unsupported(line).of_tensor(&tensor.info.name))
}
