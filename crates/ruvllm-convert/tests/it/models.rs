//! Small models with the names and the metadata that recipes look at; their weights are numbers of a generator.

use std::path::Path;

use ruvllm_gguf::{GgmlType, GgufWriter};

/// A model: what is different from model to model.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    arch: &'static str,
    n_layers: u32,
    n_columns: usize,
    n_kv_heads: u32,
    n_experts: u32,
    is_tied: bool,
    has_fused: bool,
    ty: GgmlType,
}

const DENSE: Shape = Shape {
    name: "dense",
    arch: "llama",
    n_layers: 10,
    n_columns: 256,
    n_kv_heads: 8,
    n_experts: 0,
    is_tied: false,
    has_fused: false,
    ty: GgmlType::F16,
};

pub(crate) const SHAPES: [Shape; 7] = [
    DENSE,
    Shape { name: "shared", n_kv_heads: 2, n_layers: 17, is_tied: true, ty: GgmlType::F32, ..DENSE },
    Shape { name: "experts8", n_experts: 8, n_kv_heads: 2, n_layers: 8, ..DENSE },
    Shape { name: "experts4", arch: "qwen3moe", n_experts: 4, n_kv_heads: 2, n_layers: 8, ..DENSE },
    Shape { name: "odd", n_columns: 96, ty: GgmlType::BF16, ..DENSE },
    Shape { name: "falcon", arch: "falcon", n_layers: 17, has_fused: true, ..DENSE },
    Shape { name: "layers80", n_layers: 80, n_kv_heads: 2, ..DENSE },
];

/// Numbers of -1 to 1, multiples of 2^-10: exact in F16; in BF16 they are rounded.
pub(crate) fn units(seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 53) as i32 - 1024) as f32 / 1024.0
    })
}

fn bytes(ty: GgmlType, values: impl Iterator<Item = f32>) -> Vec<u8> {
    match ty {
        GgmlType::F32 => values.flat_map(f32::to_le_bytes).collect(),
        _ => {
            let values: Vec<f32> = values.collect();
            let mut bytes = vec![0; 2 * values.len()];
            ruvllm_ggml::quantize_row(ty, &values, None, &mut bytes);
            bytes
        }
    }
}

impl Shape {
    /// Names and shapes of the tensors, not in the order of the output.
    pub(crate) fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let n = self.n_columns;
        let mut tensors =
            vec![("token_embd.weight".to_owned(), vec![n, 5]), ("output_norm.weight".to_owned(), vec![n])];
        if !self.is_tied {
            tensors.push(("output.weight".to_owned(), vec![n, 5]));
        }
        for layer in (0..self.n_layers).rev() {
            let mut add =
                |name: &str, shape: &[usize]| tensors.push((format!("blk.{layer}.{name}.weight"), shape.to_vec()));
            add("attn_norm", &[n]);
            match self.has_fused {
                true => add("attn_qkv", &[n, 3]),
                false => ["attn_q", "attn_k", "attn_v"].iter().for_each(|name| add(name, &[n, 3])),
            }
            add("attn_output", &[n, 2]);
            match self.n_experts as usize {
                // Columns that are no multiple of 32 get F16.
                0 => add("ffn_up", &[if self.name == "odd" { 80 } else { n }, 3]),
                experts => {
                    add("ffn_gate_inp", &[n, experts]);
                    ["ffn_up_exps", "ffn_gate_exps"].iter().for_each(|name| add(name, &[n, 2, experts]));
                }
            }
            let experts: &[usize] = if self.n_experts > 0 { &[self.n_experts as usize] } else { &[] };
            add(if self.n_experts > 0 { "ffn_down_exps" } else { "ffn_down" }, &[&[n, 2], experts].concat());
        }
        tensors
    }

    /// Writes the model.
    pub(crate) fn write(&self, path: &Path) {
        let mut writer = GgufWriter::new();
        let meta = writer.metadata_mut();
        meta.set("general.architecture", self.arch);
        meta.set("general.file_type", 1u32);
        meta.set("general.name", self.name);
        let key = |name: &str| format!("{}.{name}", self.arch);
        meta.set(key("block_count"), self.n_layers);
        meta.set(key("context_length"), 128u32);
        meta.set(key("embedding_length"), self.n_columns as u32);
        meta.set(key("feed_forward_length"), 256u32);
        meta.set(key("attention.head_count"), 8u32);
        meta.set(key("attention.head_count_kv"), self.n_kv_heads);
        meta.set(key("attention.layer_norm_rms_epsilon"), 1e-5f32);
        meta.set(key("attention.layer_norm_epsilon"), 1e-5f32);
        if self.n_experts > 0 {
            meta.set(key("expert_count"), self.n_experts);
            meta.set(key("expert_used_count"), 2u32);
            meta.set(key("expert_feed_forward_length"), 256u32);
        }
        meta.set("tokenizer.ggml.tokens", vec!["a".to_owned(), "b".to_owned()]);
        for (seed, (name, shape)) in self.tensors().into_iter().enumerate() {
            let ty = if shape.len() == 1 { GgmlType::F32 } else { self.ty };
            let values = units(seed as u64 + 7).zip(units(seed as u64 + 1007)).map(|(a, b)| a * b);
            let data = bytes(ty, values.take(shape.iter().product()));
            writer.add_tensor(name, ty, &shape, data).expect("a tensor");
        }
        writer.write_file(path).expect("a folder that can be written to");
    }

    /// Writes an importance matrix that knows all matrices but the embeddings, and whose expert 1 is unused in layer 0.
    pub(crate) fn write_imatrix(&self, path: &Path) {
        let mut writer = GgufWriter::new();
        writer.metadata_mut().set("imatrix.datasets", vec!["text.txt".to_owned()]);
        writer.metadata_mut().set("imatrix.chunk_count", 3u32);
        writer.metadata_mut().set("imatrix.chunk_size", 512u32);
        for (seed, (name, shape)) in self.tensors().into_iter().enumerate() {
            if shape.len() == 1 || name == "token_embd.weight" {
                continue;
            }
            let experts = shape.get(2).copied().unwrap_or(1);
            let sums = units(seed as u64 + 5000).map(|x| x * x * 100.0).take(shape[0] * experts);
            let is_unused = |expert: usize| expert == 1 && name.starts_with("blk.0.");
            let counts = (0..experts).map(|expert| if is_unused(expert) { 0.0 } else { 50.0 + expert as f32 });
            let add = |writer: &mut GgufWriter<'_>, end: &str, shape: &[usize], data: Vec<u8>| {
                writer.add_tensor(format!("{name}.{end}"), GgmlType::F32, shape, data).expect("a tensor");
            };
            add(&mut writer, "in_sum2", &[shape[0], experts], bytes(GgmlType::F32, sums));
            add(&mut writer, "counts", &[1, experts], bytes(GgmlType::F32, counts));
        }
        writer.write_file(path).expect("a folder that can be written to");
    }
}
