//! Options of quantising a file.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use regex::Regex;
use ruvllm_ggml::{GgmlType, can_quantize};

use crate::error::{ConvertError, shown};
use crate::imatrix::ImportanceMatrix;
use crate::recipe::Recipe;
use crate::size::Budget;

/// Options of [`quantize`](crate::quantize).
#[derive(Clone, Debug)]
pub struct QuantizeOptions {
    /// Types of the tensors, where there is no budget.
    pub recipe: Recipe,
    /// Size that the output may have: types are chosen so that its predictions stay near those of the source.
    pub budget: Option<Budget>,
    /// Importance of the columns.
    pub imatrix: Option<ImportanceMatrix>,
    /// Types for tensors by name; of several rules the first that matches holds.
    pub keep: Vec<KeepRule>,
    /// Whether tensors that are quantised already are quantised again.
    pub requantize: bool,
    /// Threads; none: as many as the machine has.
    pub n_threads: Option<NonZeroUsize>,
    /// Somebody else who quantises rows that have no importance.
    pub row_quantizer: Option<Arc<dyn RowQuantizer>>,
}

/// Quantising of rows by somebody else than `ruvllm-ggml`, with the same bytes.
pub trait RowQuantizer: fmt::Debug + Send + Sync {
    /// Quantises a row to a type and returns whether it did. Shapes: `row`: `[n]`, whole blocks; `out`: `ty.row_bytes(n)`.
    ///
    /// # Errors
    /// One line, if it can do so in general and failed.
    fn quantize(&self, ty: GgmlType, row: &[f32], out: &mut [u8]) -> Result<bool, String>;
}

impl QuantizeOptions {
    /// Returns the options of a recipe with nothing else.
    pub fn new(recipe: Recipe) -> QuantizeOptions {
        QuantizeOptions {
            recipe,
            budget: None,
            imatrix: None,
            keep: Vec::new(),
            requantize: false,
            n_threads: None,
            row_quantizer: None,
        }
    }

    /// Returns the options of a size with nothing else.
    pub fn of_budget(budget: Budget) -> QuantizeOptions {
        QuantizeOptions { budget: Some(budget), ..QuantizeOptions::new(Recipe::Q4_K_M) }
    }

    /// Returns the number of threads.
    pub(crate) fn n_threads(&self) -> usize {
        let n = self.n_threads.or_else(|| thread::available_parallelism().ok());
        n.map_or(1, NonZeroUsize::get)
    }
}

/// A type for all tensors whose names match, whatever the recipe says.
#[derive(Clone, Debug)]
pub struct KeepRule {
    pattern: Regex,
    ty: GgmlType,
}

impl KeepRule {
    /// Reads `PATTERN=TYPE`: a regular expression that is searched in names, and the name of a type.
    ///
    /// # Errors
    /// There is no `=`, the expression is none, or nothing is quantised to the type.
    pub fn parse(text: &str) -> Result<KeepRule, ConvertError> {
        let wrong = |what: String| ConvertError::usage(format!("'{}' {what}", shown(text)));
        let (pattern, ty) =
            text.rsplit_once('=').ok_or_else(|| wrong("is no PATTERN=TYPE, such as attn_v=Q8_0".to_owned()))?;
        if pattern.is_empty() {
            return Err(wrong("has no pattern before '='; '.' matches every name".to_owned()));
        }
        let pattern = Regex::new(pattern).map_err(|_| wrong("has no regular expression before '='".to_owned()))?;
        let named = |one: &&GgmlType| one.name().eq_ignore_ascii_case(ty);
        let ty = GgmlType::ALL.iter().find(named).copied().filter(|&ty| can_quantize(ty)).ok_or_else(|| {
            let names: Vec<_> = GgmlType::ALL.iter().filter(|&&ty| can_quantize(ty)).map(|ty| ty.name()).collect();
            wrong(format!("names no type to quantise to; choose one of {}", names.join(", ")))
        })?;
        Ok(KeepRule { pattern, ty })
    }

    /// Returns its type for a tensor whose name matches.
    pub(crate) fn type_of(&self, name: &str) -> Option<GgmlType> {
        self.pattern.is_match(name).then_some(self.ty)
    }
}
