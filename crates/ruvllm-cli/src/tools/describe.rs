//! What a GGUF file says of itself, in words.

use std::collections::BTreeMap;

use ruvllm_gguf::{GgmlType, GgufFile};

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

/// Returns the name of the file's quantisation: what `general.file_type` says, else the type that takes most bytes.
pub fn quantization(file: &GgufFile) -> String {
    let file_type = file.metadata().u32("general.file_type").ok().flatten();
    let most = || type_totals(file).into_iter().max_by_key(|(_, total)| total.n_bytes);
    match file_type.and_then(file_type_name) {
        Some(name) => name.to_owned(),
        None => most().map_or_else(|| "no tensors".to_owned(), |(ty, _)| ty.name().to_owned()),
    }
}

/// Returns the name of a file type (`llama.h`, `enum llama_ftype`).
fn file_type_name(file_type: u32) -> Option<&'static str> {
    let name = match file_type {
        0 => "F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K",
        11 => "Q3_K_S",
        12 => "Q3_K_M",
        13 => "Q3_K_L",
        14 => "Q4_K_S",
        15 => "Q4_K_M",
        16 => "Q5_K_S",
        17 => "Q5_K_M",
        18 => "Q6_K",
        19 => "IQ2_XXS",
        20 => "IQ2_XS",
        21 => "Q2_K_S",
        22 => "IQ3_XS",
        23 => "IQ3_XXS",
        24 => "IQ1_S",
        25 => "IQ4_NL",
        26 => "IQ3_S",
        27 => "IQ3_M",
        28 => "IQ2_S",
        29 => "IQ2_M",
        30 => "IQ4_XS",
        31 => "IQ1_M",
        32 => "BF16",
        36 => "TQ1_0",
        37 => "TQ2_0",
        38 => "MXFP4",
        _ => return None,
    };
    Some(name)
}
