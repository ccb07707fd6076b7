//! The quantisation of a file, by its name.

use ruvllm_gguf::{GgmlType, GgufFile};

/// Returns the name of a file's quantisation: what its `general.file_type` stands for, else the type that takes most bytes.
pub fn quantization(file: &GgufFile) -> String {
    let file_type = file.metadata().u32("general.file_type").ok().flatten();
    if let Some(name) = file_type.and_then(file_type_name) {
        return name.to_owned();
    }
    let mut totals: Vec<(GgmlType, usize)> = Vec::new();
    for tensor in file.tensors() {
        match totals.iter_mut().find(|(ty, _)| *ty == tensor.ty) {
            Some((_, n_bytes)) => *n_bytes += tensor.n_bytes(),
            None => totals.push((tensor.ty, tensor.n_bytes())),
        }
    }
    let most = totals.into_iter().max_by_key(|(ty, n_bytes)| (*n_bytes, *ty));
    most.map_or_else(|| "no tensors".to_owned(), |(ty, _)| ty.name().to_owned())
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
