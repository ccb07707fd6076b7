//! The matrix products of the three reference models, in their real types, and of models that people run, in the types that
//! they run them in.
//!
//! Where the layers of a model differ in a type, both are listed, and each counts for half of the layers.

use ruvllm_kernels::GgmlType::{self, IQ4_XS, MXFP4, Q4_1, Q4_K, Q5_0, Q5_K, Q6_K, Q8_0};

/// A model whose products are measured.
#[derive(Debug)]
pub struct Model {
    /// Its name in the names of cases.
    pub name: &'static str,
    /// What a decode step multiplies with.
    pub products: &'static [Product],
}

/// Matrices that read the same input, multiplied in one parallel region as the engine does it.
#[derive(Debug)]
pub struct Product {
    /// `qkv`, `o`, `gate_up`, `down` or `head`.
    pub role: &'static str,
    /// Type and rows of each matrix, at most three.
    pub parts: &'static [(GgmlType, usize)],
    /// Length of the input.
    pub n_cols: usize,
    /// How often a token goes through such a product.
    pub n_layers: usize,
}

/// Returns a product; a line of the table below.
const fn product(role: &'static str, n_cols: usize, n_layers: usize, parts: &'static [(GgmlType, usize)]) -> Product {
    Product { role, parts, n_cols, n_layers }
}

/// SmolLM2 135M Q4_1, Gemma 3 270M Q4_K_M and Qwen2.5-Coder 0.5B Q4_K_M.
pub const MODELS: [Model; 3] = [
    Model {
        name: "smollm2",
        products: &[
            product("qkv", 576, 30, &[(Q4_1, 576), (Q4_1, 192), (Q4_1, 192)]),
            product("o", 576, 30, &[(Q4_1, 576)]),
            product("gate_up", 576, 30, &[(Q4_1, 1536), (Q4_1, 1536)]),
            product("down", 1536, 30, &[(Q4_1, 576)]),
            product("head", 576, 1, &[(Q8_0, 49_152)]),
        ],
    },
    Model {
        name: "gemma3",
        products: &[
            product("qkv", 640, 9, &[(Q5_0, 1024), (Q5_0, 256), (Q5_0, 256)]),
            product("qkv", 640, 9, &[(Q5_0, 1024), (Q5_0, 256), (Q8_0, 256)]),
            product("o", 1024, 18, &[(Q4_K, 640)]),
            product("gate_up", 640, 18, &[(Q5_0, 2048), (Q5_0, 2048)]),
            product("down", 2048, 9, &[(Q4_K, 640)]),
            product("down", 2048, 9, &[(Q6_K, 640)]),
            product("head", 640, 1, &[(Q8_0, 262_144)]),
        ],
    },
    Model {
        name: "qwen",
        products: &[
            product("qkv", 896, 12, &[(Q5_0, 896), (Q5_0, 128), (Q5_0, 128)]),
            product("qkv", 896, 12, &[(Q5_0, 896), (Q5_0, 128), (Q8_0, 128)]),
            product("o", 896, 24, &[(Q5_0, 896)]),
            product("gate_up", 896, 24, &[(Q5_0, 4864), (Q5_0, 4864)]),
            product("down", 4864, 12, &[(Q4_K, 896)]),
            product("down", 4864, 12, &[(Q6_K, 896)]),
            product("head", 896, 1, &[(Q8_0, 151_936)]),
        ],
    },
];

impl Model {
    /// Returns the bytes of weights that one token reads.
    pub fn weight_bytes(&self) -> usize {
        self.products.iter().map(|product| product.n_layers * product.weight_bytes()).sum()
    }
}

impl Product {
    /// Returns the types, each once: `Q5_0+Q8_0`.
    pub fn types(&self) -> String {
        let mut names: Vec<&str> = self.parts.iter().map(|(ty, _)| ty.name()).collect();
        names.dedup();
        names.join("+")
    }

    /// Returns the rows of all matrices.
    pub fn n_rows(&self) -> usize {
        self.parts.iter().map(|(_, n_rows)| n_rows).sum()
    }

    /// Returns the bytes of one layer's matrices, as the file has them.
    pub fn weight_bytes(&self) -> usize {
        let row = |ty: &GgmlType| ty.row_bytes(self.n_cols).expect("rows are whole blocks");
        self.parts.iter().map(|(ty, n_rows)| n_rows * row(ty)).sum()
    }
}

/// A matrix of a model of 8B parameters or of an expert.
#[derive(Debug)]
pub struct WideShape {
    /// Its model in the names of cases.
    pub model: &'static str,
    /// `gate_up`, `down` or `head`.
    pub role: &'static str,
    /// Length of the output.
    pub n_rows: usize,
    /// Length of the input.
    pub n_cols: usize,
}

/// Returns a matrix; a line of the table below.
const fn wide(model: &'static str, role: &'static str, n_rows: usize, n_cols: usize) -> WideShape {
    WideShape { model, role, n_rows, n_cols }
}

/// Matrices of Llama 3.1 8B, and of one expert of OLMoE 1B-7B and of Qwen3 30B-A3B.
pub const WIDE_SHAPES: [WideShape; 7] = [
    wide("llama8b", "gate_up", 14_336, 4096),
    wide("llama8b", "down", 4096, 14_336),
    wide("llama8b", "head", 128_256, 4096),
    wide("olmoe", "gate_up", 1024, 2048),
    wide("olmoe", "down", 2048, 1024),
    wide("qwen3moe", "gate_up", 768, 2048),
    wide("qwen3moe", "down", 2048, 768),
];

/// Types that such models are run in.
pub const WIDE_TYPES: [GgmlType; 6] = [Q4_K, Q5_K, Q6_K, Q8_0, IQ4_XS, MXFP4];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_read_what_their_files_hold() {
        // The sum over the matrices of each file that a token is multiplied with, by `gguf-py`.
        let expected = [("smollm2", 96_436_224), ("gemma3", 246_364_160), ("qwen", 391_573_504)];
        for (model, (name, n_bytes)) in MODELS.iter().zip(expected) {
            assert_eq!((model.name, model.weight_bytes()), (name, n_bytes));
        }
    }

    #[test]
    fn products_say_what_they_are() {
        let [_, gemma3, _] = &MODELS;
        let qkv = &gemma3.products[1];
        assert_eq!((qkv.types().as_str(), qkv.n_rows()), ("Q5_0+Q8_0", 1536));
    }
}
