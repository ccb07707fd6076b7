//! Model files of one's own: folders of the Hugging Face hub are converted, and GGUF files are written again with their matrices in
//! smaller types.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use std::path::Path;
//! use ruvllm_convert::{QuantizeOptions, Recipe, quantize};
//!
//! # fn main() -> Result<(), ruvllm_convert::ConvertError> {
//! let recipe = Recipe::parse("Q4_K_M")?;
//! let options = QuantizeOptions::new(recipe);
//! let (input, output) = (Path::new("model-f16.gguf"), Path::new("model-q4.gguf"));
//! let summary = quantize(input, output, &options, &mut |_| ControlFlow::Continue(()))?;
//! println!("{} bytes, {:.2} bits per weight", summary.output_bytes, summary.bits_per_weight());
//! # Ok(())
//! # }
//! ```
//!
//! [`convert`] reads a folder and writes a file (`hf`). A [`Recipe`] says which tensor gets which type (`mixture`), a [`KeepRule`] is another answer for tensors whose names match,
//! and an [`ImportanceMatrix`] weighs the errors of columns. Everything that can be wrong is found before the slow work (`plan`);
//! tensors are then read, quantised and written a part at a time (`rows`), on all threads, and the file appears under its name
//! when it is whole. The output does not depend on the number of threads.
//!
//! It does not run a model: importance matrices come from files.

#![forbid(unsafe_code)]

mod budget;
mod calibrate;
mod error;
mod hf;
mod imatrix;
mod mixture;
mod options;
mod plan;
mod quantize;
mod recipe;
mod recipe_sizes;
mod role;
mod rows;
mod size;
mod space;

pub use calibrate::{
    CalibrationModel, ImatrixProgress, ImatrixRun, ReplacedTensor, compute_imatrix, measure_sensitivities,
};
pub use error::{ConvertError, ConvertErrorKind};
pub use hf::{
    CARD, ConvertOptions, ConvertProgress, ConvertSummary, ConvertType, DESCRIPTION_FILES, check_folder, convert,
    is_model_folder, weight_files,
};
pub use imatrix::{ImatrixCollector, ImportanceMatrix, ImportanceSums, TensorImportance};
pub use options::{KeepRule, QuantizeOptions, RowQuantizer};
pub use quantize::{QuantizeProgress, QuantizeSummary, quantize};
pub use recipe::Recipe;
pub use recipe_sizes::quantized_sizes;
pub use size::Budget;
pub use space::{available as available_space, check as check_space};
