//! A small model's folder, made anew for each test.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ruvllm_convert::{ConvertError, ConvertOptions, ConvertSummary, ConvertType, convert};
use ruvllm_gguf::GgufFile;
use safetensors::{Dtype, View};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::models::units;

/// Width of rows, of the feed-forward part, and the number of tokens.
pub(crate) const N_EMBD: usize = 8;
pub(crate) const N_FF: usize = 16;
pub(crate) const N_VOCAB: usize = 6;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    /// Returns a tensor of F32 with numbers of a generator.
    pub(crate) fn random(seed: u64, shape: &[usize]) -> Tensor {
        let n = shape.iter().product();
        let bytes = units(seed).take(n).flat_map(f32::to_le_bytes).collect();
        Tensor { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }

    /// Returns the values of a tensor of F32.
    pub(crate) fn values(&self) -> Vec<f32> {
        self.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes.as_slice().into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// A folder with a model of one layer.
pub(crate) struct Folder {
    dir: TempDir,
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

impl Folder {
    /// Makes a Llama; it is on the disk after [`Folder::write`].
    pub(crate) fn llama() -> Folder {
        let mut shapes: Vec<(String, Vec<usize>)> = vec![
            ("model.embed_tokens.weight".to_owned(), vec![N_VOCAB, N_EMBD]),
            ("model.norm.weight".to_owned(), vec![N_EMBD]),
            ("lm_head.weight".to_owned(), vec![N_VOCAB, N_EMBD]),
        ];
        for (name, shape) in [
            ("input_layernorm", vec![N_EMBD]),
            ("post_attention_layernorm", vec![N_EMBD]),
            ("self_attn.q_proj", vec![N_EMBD, N_EMBD]),
            ("self_attn.k_proj", vec![N_EMBD / 2, N_EMBD]),
            ("self_attn.v_proj", vec![N_EMBD / 2, N_EMBD]),
            ("self_attn.o_proj", vec![N_EMBD, N_EMBD]),
            ("mlp.gate_proj", vec![N_FF, N_EMBD]),
            ("mlp.up_proj", vec![N_FF, N_EMBD]),
            ("mlp.down_proj", vec![N_EMBD, N_FF]),
        ] {
            shapes.push((format!("model.layers.0.{name}.weight"), shape));
        }
        let tensor = |(i, (name, shape)): (usize, (String, Vec<usize>))| (name, Tensor::random(i as u64 + 1, &shape));
        Folder {
            dir: tempfile::tempdir().expect("a temporary folder"),
            config: json!({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": N_EMBD,
                "intermediate_size": N_FF, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1,
                "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": N_VOCAB,
                "bos_token_id": 0, "eos_token_id": 1,
            }),
            tensors: shapes.into_iter().enumerate().map(tensor).collect(),
        }
    }

    /// Writes what describes the model, and its tensors as one file.
    pub(crate) fn write(&self) {
        self.write_descriptions();
        self.write_weights("model.safetensors", &self.tensors);
    }

    /// Writes what describes the model.
    pub(crate) fn write_descriptions(&self) {
        self.put("config.json", self.config.to_string());
        let byte_level = json!({ "type": "ByteLevel", "use_regex": true });
        let tokenizer = json!({
            "model": { "type": "BPE", "vocab": { "<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4, "Ġ": 5 }, "merges": ["a b"] },
            "added_tokens": [
                { "id": 0, "content": "<s>", "special": true }, { "id": 1, "content": "</s>", "special": true },
            ],
            "pre_tokenizer": byte_level, "post_processor": byte_level,
        });
        self.put("tokenizer.json", tokenizer.to_string());
        let settings =
            json!({ "bos_token": "<s>", "eos_token": { "content": "</s>" }, "chat_template": "{{ messages }}" });
        self.put("tokenizer_config.json", settings.to_string());
    }

    /// Writes tensors as a file.
    pub(crate) fn write_weights(&self, name: &str, tensors: &BTreeMap<String, Tensor>) {
        self.put(name, safetensors::serialize(tensors, None).expect("they are serialised"));
    }

    /// Writes a file.
    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("it is writable");
        std::fs::write(path, content).expect("it is writable");
    }

    /// Returns where it lies.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns where the file is written.
    pub(crate) fn output(&self) -> PathBuf {
        self.path().join("out.gguf")
    }

    /// Converts it to a type, and opens the file.
    pub(crate) fn converted(&self, ty: &str) -> GgufFile {
        self.convert(ty).unwrap_or_else(|error| panic!("{error}"));
        GgufFile::open(&self.output()).expect("a GGUF file")
    }

    /// Converts it to a type.
    pub(crate) fn convert(&self, ty: &str) -> Result<ConvertSummary, ConvertError> {
        convert_to(self.path(), &self.output(), ty)
    }

    /// Returns the error of its conversion, which must be one line.
    pub(crate) fn error(&self) -> String {
        let line = self.convert("F32").expect_err("refused").to_string();
        assert!(!line.contains('\n') && line.len() < 1000, "{line}");
        assert!(!self.output().exists(), "{line}");
        line
    }
}

/// Converts a folder to a type.
pub(crate) fn convert_to(folder: &Path, output: &Path, ty: &str) -> Result<ConvertSummary, ConvertError> {
    let ty = Some(ConvertType::parse(ty).expect("a type"));
    convert(folder, output, &ConvertOptions { ty, ..ConvertOptions::default() }, &mut |_| ControlFlow::Continue(()))
}

/// Returns the values of a tensor of F32 in a file.
pub(crate) fn values(file: &GgufFile, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    file.data(tensor).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
