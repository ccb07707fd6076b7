//! A tiny folder is converted, and what is wrong with others is told in a line.

use std::collections::HashMap;
use std::path::Path;

use ruvllm_ggml::GgmlType;
use safetensors::{Dtype, View};
use serde_json::{Value, json};

use super::*;
use crate::file::GgufFile;

const N_EMBD: usize = 8;
const N_FF: usize = 16;
const WORDS: [&str; 8] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "he", "##llo", "."];

struct Tensor {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        self.bytes.as_slice().into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

fn config() -> Value {
    json!({"model_type": "bert", "hidden_size": N_EMBD, "intermediate_size": N_FF, "num_attention_heads": 2,
        "num_hidden_layers": 1, "max_position_embeddings": 32, "type_vocab_size": 2, "vocab_size": 9,
        "layer_norm_eps": 1e-12, "hidden_act": "gelu"})
}

/// The tensors of the configuration above; the first value of each counts up by name.
fn tensors(root: &str) -> HashMap<String, Tensor> {
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        (format!("{root}embeddings.word_embeddings.weight"), vec![9, N_EMBD]),
        (format!("{root}embeddings.position_embeddings.weight"), vec![32, N_EMBD]),
        (format!("{root}embeddings.token_type_embeddings.weight"), vec![2, N_EMBD]),
        (format!("{root}embeddings.LayerNorm.weight"), vec![N_EMBD]),
        (format!("{root}embeddings.LayerNorm.bias"), vec![N_EMBD]),
    ];
    for (name, shape) in [
        ("attention.self.query", vec![N_EMBD, N_EMBD]),
        ("attention.self.key", vec![N_EMBD, N_EMBD]),
        ("attention.self.value", vec![N_EMBD, N_EMBD]),
        ("attention.output.dense", vec![N_EMBD, N_EMBD]),
        ("attention.output.LayerNorm", vec![N_EMBD]),
        ("intermediate.dense", vec![N_FF, N_EMBD]),
        ("output.dense", vec![N_EMBD, N_FF]),
        ("output.LayerNorm", vec![N_EMBD]),
    ] {
        shapes.push((format!("{root}encoder.layer.0.{name}.bias"), vec![shape[0]]));
        shapes.push((format!("{root}encoder.layer.0.{name}.weight"), shape));
    }
    if !root.is_empty() {
        shapes.push((format!("{root}pooler.dense.weight"), vec![N_EMBD, N_EMBD]));
        shapes.push((format!("{root}pooler.dense.bias"), vec![N_EMBD]));
        shapes.push(("classifier.weight".to_owned(), vec![1, N_EMBD]));
        shapes.push(("classifier.bias".to_owned(), vec![1]));
    }
    let tensor = |(i, (name, shape)): (usize, (String, Vec<usize>))| {
        let mut bytes = vec![0; 4 * shape.iter().product::<usize>()];
        bytes[..4].copy_from_slice(&(i as f32).to_le_bytes());
        (name, Tensor { shape, bytes })
    };
    shapes.into_iter().enumerate().map(tensor).collect()
}

fn write(folder: &Path, config: &Value, tensors: &HashMap<String, Tensor>) {
    let text = |name: &str, text: String| std::fs::write(folder.join(name), text).expect("it is writable");
    text("config.json", config.to_string());
    text("vocab.txt", WORDS.join("\n"));
    text("tokenizer_config.json", json!({"do_lower_case": true, "cls_token": {"content": "[CLS]"}}).to_string());
    let bytes = safetensors::serialize(tensors, None).expect("it is serialised");
    std::fs::write(folder.join("model.safetensors"), bytes).expect("it is writable");
}

fn converted(dir: &Path) -> GgufFile {
    let path = dir.join("model.gguf");
    folder(dir, "tiny").expect("it is converted").write_file(&path).expect("it is written");
    GgufFile::open(&path).expect("it is a file")
}

#[test]
fn an_encoder_keeps_its_numbers_under_other_names() {
    let dir = tempfile::tempdir().expect("a folder");
    let tensors = tensors("");
    write(dir.path(), &config(), &tensors);
    let file = converted(dir.path());
    let metadata = file.metadata();
    let number = |key: &str| metadata.u32(key).expect("a number");
    assert_eq!(metadata.str("general.name").expect("text"), Some("tiny"));
    assert_eq!((number("bert.block_count"), number("bert.pooling_type")), (Some(1), Some(1)));
    let words: Vec<String> =
        metadata.strings("tokenizer.ggml.tokens").expect("texts").expect("there").iter().map(str::to_owned).collect();
    assert_eq!(words, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁he", "llo", "▁.", "[PAD8]"]);
    assert_eq!(
        (number("tokenizer.ggml.cls_token_id"), number("tokenizer.ggml.seperator_token_id")),
        (Some(2), Some(3))
    );
    for (to, from) in [
        ("token_embd.weight", "embeddings.word_embeddings.weight"),
        ("blk.0.attn_output.weight", "encoder.layer.0.attention.output.dense.weight"),
        ("blk.0.ffn_down.weight", "encoder.layer.0.output.dense.weight"),
        ("blk.0.layer_output_norm.bias", "encoder.layer.0.output.LayerNorm.bias"),
    ] {
        let tensor = file.tensor(to).expect(to);
        let expected = &tensors[from];
        assert_eq!((tensor.ty, &file.data(tensor)[..]), (GgmlType::F32, &expected.bytes[..]), "{to}");
        assert!(tensor.shape.iter().rev().eq(&expected.shape), "{to}");
    }
    assert!(file.tensor("cls.weight").is_none());
    // The same folder gives the same bytes, also with its words in the other file.
    let first = std::fs::read(dir.path().join("model.gguf")).expect("it is there");
    let vocab: serde_json::Map<String, Value> =
        WORDS.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
    let tokenizer = json!({"model": {"type": "WordPiece", "vocab": vocab}});
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).expect("it is writable");
    std::fs::remove_file(dir.path().join("vocab.txt")).expect("it was there");
    drop(converted(dir.path()));
    assert_eq!(std::fs::read(dir.path().join("model.gguf")).expect("it is there"), first);
}

#[test]
fn a_cross_encoder_keeps_its_head() {
    let dir = tempfile::tempdir().expect("a folder");
    let tensors = tensors("bert.");
    write(dir.path(), &config(), &tensors);
    let file = converted(dir.path());
    assert_eq!(file.metadata().u32("bert.pooling_type").expect("a number"), Some(4));
    let head = file.tensor("cls.output.weight").expect("a head");
    assert_eq!(&file.data(head)[..], &tensors["classifier.weight"].bytes[..]);
    assert!(file.tensor("cls.weight").is_some() && file.tensor("blk.0.attn_q.weight").is_some());
}

#[test]
fn what_is_wrong_is_told_in_a_line() {
    let check = |config: Value, name: &str, part: &str| {
        let dir = tempfile::tempdir().expect("a folder");
        let mut tensors = tensors("");
        tensors.remove(name);
        write(dir.path(), &config, &tensors);
        let line = folder(dir.path(), "x").err().expect("refused").to_string();
        assert!(line.contains(part) && !line.contains('\n'), "{line}");
    };
    let with = |key: &str, value: Value| {
        let mut config = config();
        config[key] = value;
        config
    };
    check(with("model_type", json!("t5")), "", "models of type t5 are not converted");
    check(with("hidden_act", json!("relu")), "", "'hidden_act' is 'relu'");
    check(with("hidden_size", json!(-1)), "", "'hidden_size' is -1");
    check(with("hidden_size", json!(16)), "", "has shape [9, 8], the configuration says [9, 16]");
    check(with("vocab_size", json!(3)), "", "8 tokens, the configuration says 3");
    check(config(), "encoder.layer.0.output.dense.bias", "tensor 'encoder.layer.0.output.dense.bias' is missing");
    let dir = tempfile::tempdir().expect("a folder");
    assert!(folder(dir.path(), "x").err().expect("refused").to_string().contains("has no config.json"));
    write(dir.path(), &config(), &tensors(""));
    std::fs::create_dir(dir.path().join("1_Pooling")).expect("it is writable");
    let modes = json!({"pooling_mode_max_tokens": true, "pooling_mode_cls_token": false});
    std::fs::write(dir.path().join("1_Pooling/config.json"), modes.to_string()).expect("it is writable");
    assert!(folder(dir.path(), "x").err().expect("refused").to_string().contains("pooling_mode_max_tokens"));
    std::fs::write(dir.path().join("model.safetensors"), b"\xff\xff\xff\xff\xff\xff\xff\xff{}")
        .expect("it is writable");
    std::fs::remove_dir_all(dir.path().join("1_Pooling")).expect("it was there");
    assert!(folder(dir.path(), "x").err().expect("refused").to_string().contains("damaged safetensors"));
}
