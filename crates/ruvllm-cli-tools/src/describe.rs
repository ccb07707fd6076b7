//! What a GGUF file says of itself, in words.

use std::collections::BTreeMap;

use ruvllm_gguf::{GgmlType, GgufFile};
pub use ruvllm_hub::quantization;

/// Number and size of a file's tensors of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeTotal {
    /// Number of tensors.
    pub n_tensors: usize,
    /// Number of values they hold.
    pub n_values: u64,
    /// Bytes they take.
    pub n_bytes: u64,
}

/// Returns the totals of every tensor type in the file.
pub fn type_totals(file: &GgufFile) -> BTreeMap<GgmlType, TypeTotal> {
    let mut totals: BTreeMap<GgmlType, TypeTotal> = BTreeMap::new();
    for tensor in file.tensors() {
        let total = totals.entry(tensor.ty).or_default();
        total.n_tensors += 1;
        total.n_values += tensor.n_elements() as u64;
        total.n_bytes += tensor.n_bytes() as u64;
    }
    totals
}
