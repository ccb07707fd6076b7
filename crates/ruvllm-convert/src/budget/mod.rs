//! The recipe of a size: bits go where they win most.
//!
//! ```text
//! error of a tensor in a type   = Σ w·(x - q(x))² / Σ w·x²   over some of its rows; w: the importance of the column
//! loss                          = sensitivity of the tensor · error
//! types                         = those of the least sum of losses within the budget (`knapsack`)
//! ```
//! Prompts take about as long as in the recipe that is nearest in size, or less (`pace`): 2, 3 and 6 bits take half as long again as the others.
//!
//! Blocks of 32 get scales of the least error that is found, in place of the reference's; the sizes of types do not change by it.
//!
//! The sensitivity is measured (`ruvllm imatrix --sensitivity`) and stands in the importance matrix, else it is that of the tensor's
//! role in models that were measured (`prior`). `adr/0037-recipes-of-a-size.md` has what else was tried.

mod knapsack;
mod pace;
mod prior;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, TensorInfo};

use crate::error::{ConvertError, ConvertErrorKind};
use crate::mixture::fallback;
use crate::options::QuantizeOptions;
use crate::plan::{PlannedTensor, tensor_bytes, weights};
use crate::role::is_quantized;
use crate::rows::Rows;
use crate::size::{Budget, head_bytes};
use knapsack::Choice;

/// Types for tensors by name, and the loss that is expected of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assignment {
    pub(crate) types: BTreeMap<String, GgmlType>,
    /// Mean divergence of the predictions, in nats, if the sensitivity of every tensor was measured.
    pub(crate) expected_kl: Option<f64>,
}

/// Types in blocks of 256 that a tensor may get; the kernels of all of them are fast.
const LONG_BLOCKS: [GgmlType; 7] =
    [GgmlType::Q2_K, GgmlType::Q3_K, GgmlType::IQ4_XS, GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K, GgmlType::Q8_0];

/// Types in blocks of 32, for rows that are no multiple of 256 values.
const SHORT_BLOCKS: [GgmlType; 5] = [GgmlType::IQ4_NL, GgmlType::Q4_1, GgmlType::Q5_0, GgmlType::Q5_1, GgmlType::Q8_0];

/// Returns the types that a tensor may get.
fn candidates(info: &TensorInfo, has_importance: bool) -> Vec<GgmlType> {
    let fits = |ty: &GgmlType| info.shape[0].is_multiple_of(ty.block_len());
    // Two bits are only as good as what says which errors matter.
    let is_safe = |ty: &GgmlType| has_importance || *ty != GgmlType::Q2_K;
    let all: &[GgmlType] = if info.shape[0].is_multiple_of(256) { &LONG_BLOCKS } else { &SHORT_BLOCKS };
    let types: Vec<GgmlType> = all.iter().copied().filter(|ty| fits(ty) && is_safe(ty)).collect();
    if types.is_empty() { vec![GgmlType::F16] } else { types }
}

/// A tensor whose type is to be chosen.
struct Item<'a> {
    info: &'a TensorInfo,
    weights: Option<&'a [f32]>,
    types: Vec<GgmlType>,
}

impl Item<'_> {
    fn planned(&self, ty: GgmlType) -> PlannedTensor<'_> {
        PlannedTensor { info: self.info, ty, weights: self.weights, is_unknown: false, instead_of: None }
    }
}

/// Callback of the measurement, told of each tensor that was measured.
pub(crate) type OnMeasured<'a> = dyn FnMut(&TensorInfo) -> ControlFlow<()> + 'a;

/// Chooses types for the tensors that no rule of the options is for.
///
/// # Errors
/// The budget is smaller than the smallest types; a value is not finite; `progress` breaks it off.
pub(crate) fn assign(
    file: &GgufFile,
    options: &QuantizeOptions,
    budget: Budget,
    progress: &mut OnMeasured<'_>,
) -> Result<Assignment, ConvertError> {
    let imatrix = options.imatrix.as_ref();
    let (mut items, mut n_fixed) = (Vec::new(), 0);
    for info in file.tensors() {
        let rule = options.keep.iter().find_map(|rule| rule.type_of(&info.name));
        if !is_quantized(info) || rule.is_some() {
            let ty = rule.filter(|_| is_quantized(info)).map_or(info.ty, |ty| fallback(ty, info.shape[0]));
            n_fixed += tensor_bytes(info, ty);
            continue;
        }
        let weights = imatrix.map_or(Ok(None), |imatrix| weights(info, imatrix))?;
        items.push(Item { info, weights, types: candidates(info, weights.is_some()) });
    }
    let errors = measure(file, &items, options.n_threads(), progress)?;
    let measured = |item: &Item<'_>| imatrix.and_then(|imatrix| imatrix.sensitivity(&item.info.name));
    let head = if file.tensor("output.weight").is_some() { "output.weight" } else { "token_embd.weight" };
    let choices: Vec<Vec<Choice>> = items
        .iter()
        .zip(&errors)
        .map(|(item, errors)| {
            let sensitivity =
                measured(item).map_or_else(|| prior::of(&item.info.name, item.info.name == head), f64::from);
            let choice = |(&ty, error): (&GgmlType, &f64)| Choice {
                n_bytes: tensor_bytes(item.info, ty) as u64,
                loss: sensitivity * error,
                time: pace::time_of(item.info, ty),
            };
            item.types.iter().zip(errors).map(choice).collect()
        })
        .collect();
    let room = budget.tensor_bytes(file).checked_sub(n_fixed as u64);
    let is_chosen = |info: &TensorInfo| items.iter().any(|item| item.info.name == info.name);
    let time_max = pace::time_max(file, options, budget.tensor_bytes(file), &is_chosen)?;
    let chosen = room
        .and_then(|room| knapsack::choose_in_time(&choices, room, time_max))
        .ok_or_else(|| too_small(file, &choices, n_fixed))?;
    let expected = knapsack::sum(&choices, &chosen, |choice| choice.loss);
    let all_measured = !items.is_empty() && items.iter().all(|item| measured(item).is_some());
    Ok(Assignment {
        types: items.iter().zip(&chosen).map(|(item, &i)| (item.info.name.clone(), item.types[i])).collect(),
        expected_kl: all_measured.then_some(expected),
    })
}

fn too_small(file: &GgufFile, choices: &[Vec<Choice>], n_fixed: usize) -> ConvertError {
    let smallest = choices.iter().filter_map(|choices| choices.iter().map(|choice| choice.n_bytes).min()).sum::<u64>();
    let least = smallest + n_fixed as u64;
    let n_values: u64 = file.tensors().map(|tensor| tensor.n_elements() as u64).sum();
    let line = format!(
        "the budget is too small: the smallest file of this model has {:.1} MB ({:.2} bits per weight); raise it, or give rules \
         (--keep) smaller types",
        (least + head_bytes(file)) as f64 / 1e6,
        least as f64 * 8.0 / n_values.max(1) as f64,
    );
    ConvertError::new(ConvertErrorKind::Usage, line)
}

/// Returns the error of each item in each of its types, on all threads.
fn measure(
    file: &GgufFile,
    items: &[Item<'_>],
    n_threads: usize,
    progress: &mut OnMeasured<'_>,
) -> Result<Vec<Vec<f64>>, ConvertError> {
    let mut errors: Vec<Vec<f64>> = Vec::with_capacity(items.len());
    for item in items {
        let mut all = Vec::with_capacity(item.types.len());
        for &ty in &item.types {
            let rows = Rows::new(&item.planned(ty), file.data(item.info)).closest(true);
            all.push(rows.relative_error(n_threads).map_err(|error| error.of_tensor(&item.info.name))?);
        }
        file.release(item.info, 0..item.info.n_bytes());
        errors.push(all);
        if progress(item.info).is_break() {
            return Err(ConvertError::new(ConvertErrorKind::Cancelled, "cancelled"));
        }
    }
    Ok(errors)
}
