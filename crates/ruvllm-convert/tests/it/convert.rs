//! What conversion does with the forms that checkpoints have.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use ruvllm_convert::{ConvertErrorKind, ConvertOptions, ConvertType, convert};
use ruvllm_gguf::GgmlType;
use safetensors::Dtype;
use serde_json::json;

use crate::folder::{Folder, N_EMBD, N_VOCAB, Tensor, values};

#[test]
fn a_model_keeps_its_numbers_under_other_names() {
    let folder = Folder::llama();
    folder.write();
    let file = folder.converted("F32");
    let metadata = file.metadata();
    let number = |key: &str| metadata.u32(key).expect("a number").unwrap_or_else(|| panic!("no {key}"));
    assert_eq!(metadata.str("general.architecture").expect("text"), Some("llama"));
    assert_eq!((number("llama.block_count"), number("llama.rope.dimension_count")), (1, 4));
    assert_eq!((number("general.file_type"), number("llama.vocab_size")), (0, N_VOCAB as u32));
    assert_eq!((number("tokenizer.ggml.bos_token_id"), number("tokenizer.ggml.eos_token_id")), (0, 1));
    assert_eq!(metadata.str("tokenizer.ggml.pre").expect("text"), Some("gpt-2"));
    assert_eq!(metadata.str("tokenizer.chat_template").expect("text"), Some("{{ messages }}"));
    for (to, from) in [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
    ] {
        let (tensor, expected) = (file.tensor(to).expect(to), &folder.tensors[from]);
        assert!(tensor.shape.iter().rev().eq(&expected.shape), "{to}");
        assert_eq!(&file.data(tensor)[..], &expected.bytes[..], "{to}");
    }
    // Rows of each head of queries: halves become neighbours.
    let q = folder.tensors["model.layers.0.self_attn.q_proj.weight"].values();
    let rows: Vec<f32> = [0, 2, 1, 3, 4, 6, 5, 7].iter().flat_map(|row| q[row * N_EMBD..][..N_EMBD].to_vec()).collect();
    assert_eq!(values(&file, "blk.0.attn_q.weight"), rows);
}

#[test]
fn a_model_without_a_head_is_the_same_model() {
    let mut folder = Folder::llama();
    folder.tensors.remove("lm_head.weight");
    folder.write();
    let whole = folder.converted("F16");
    folder.config["architectures"] = json!(["LlamaModel"]);
    let bare = |name: String| name.strip_prefix("model.").expect("a name with it").to_owned();
    folder.tensors = folder.tensors.into_iter().map(|(name, tensor)| (bare(name), tensor)).collect();
    folder.write();
    let file = folder.converted("F16");
    assert!(file.tensor("blk.0.attn_q.weight").is_some() && file.tensor("output.weight").is_none());
    assert!(file.tensors().eq(whole.tensors()));
    assert!(file.tensors().zip(whole.tensors()).all(|(a, b)| file.data(a)[..] == whole.data(b)[..]));
}

/// Makes a DistilBERT that tells classes apart.
fn distilbert(n_classes: usize) -> Folder {
    let mut folder = Folder::llama();
    folder.config = json!({
        "architectures": ["DistilBertForSequenceClassification"], "dim": N_EMBD, "hidden_dim": 16, "n_heads": 2, "n_layers": 1,
        "max_position_embeddings": 12, "vocab_size": N_VOCAB, "activation": "gelu",
    });
    let norms = ["embeddings.LayerNorm", "transformer.layer.0.sa_layer_norm", "transformer.layer.0.output_layer_norm"];
    let layers = ["q_lin", "k_lin", "v_lin", "out_lin"].map(|name| format!("transformer.layer.0.attention.{name}"));
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("embeddings.word_embeddings.weight".to_owned(), vec![N_VOCAB, N_EMBD]),
        ("embeddings.position_embeddings.weight".to_owned(), vec![12, N_EMBD]),
    ];
    let mut add = |name: &str, shape: &[usize]| {
        shapes.push((format!("{name}.weight"), shape.to_vec()));
        shapes.push((format!("{name}.bias"), shape[..1].to_vec()));
    };
    norms.iter().for_each(|name| add(name, &[N_EMBD]));
    layers.iter().for_each(|name| add(name, &[N_EMBD, N_EMBD]));
    add("transformer.layer.0.ffn.lin1", &[16, N_EMBD]);
    add("transformer.layer.0.ffn.lin2", &[N_EMBD, 16]);
    add("pre_classifier", &[N_EMBD, N_EMBD]);
    add("classifier", &[n_classes, N_EMBD]);
    let named = |name: String| if name.contains("classifier") { name } else { format!("distilbert.{name}") };
    let tensor = |(i, (name, shape)): (usize, (String, Vec<usize>))| (named(name), Tensor::random(i as u64, &shape));
    folder.tensors = shapes.into_iter().enumerate().map(tensor).collect();
    folder.write();
    std::fs::remove_file(folder.path().join("tokenizer.json")).expect("it is there");
    folder.put("tokenizer_config.json", json!({ "cls_token": "[CLS]", "sep_token": "[SEP]" }).to_string());
    folder.put("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na");
    folder
}

#[test]
fn rankers_whose_activation_files_cannot_say_are_refused() {
    let line = distilbert(1).error();
    assert!(line.contains("'classifier.weight': makes one score by ReLU, and GGUF files have tanh there"), "{line}");
    // Several classes are no order, and nobody computes them.
    let file = distilbert(3).converted("F32");
    assert_eq!(file.tensor("cls.output.weight").map(|tensor| &tensor.shape[..]), Some(&[N_EMBD, 3][..]));
}

#[test]
fn shards_and_types_make_no_difference() {
    let folder = Folder::llama();
    folder.write();
    folder.converted("F16");
    let whole = std::fs::read(folder.output()).expect("the output");
    std::fs::remove_file(folder.path().join("model.safetensors")).expect("it is there");
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let mut parts = [BTreeMap::new(), BTreeMap::new()];
    let mut map = serde_json::Map::new();
    for (i, (name, tensor)) in folder.tensors.iter().enumerate() {
        parts[i % 2].insert(name.clone(), tensor.clone());
        map.insert(name.clone(), names[i % 2].into());
    }
    names.iter().zip(&parts).for_each(|(name, part)| folder.write_weights(name, part));
    folder.put("model.safetensors.index.json", json!({ "weight_map": map }).to_string());
    folder.converted("F16");
    assert_eq!(std::fs::read(folder.output()).expect("the output"), whole);
    // Numbers of the generator are exact in F16, so a checkpoint of halves, and one of doubles, is the same model.
    for dtype in [Dtype::F16, Dtype::F64] {
        let mut folder = Folder::llama();
        for tensor in folder.tensors.values_mut() {
            let values = tensor.values();
            tensor.bytes = match dtype {
                Dtype::F16 => values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
                _ => values.iter().flat_map(|&x| f64::from(x).to_le_bytes()).collect(),
            };
            tensor.dtype = dtype;
        }
        folder.write();
        let file = folder.converted("F16");
        let tensor = file.tensor("blk.0.attn_q.weight").expect("a tensor");
        let (start, n) = (tensor.n_bytes(), file.data(tensor));
        assert!(whole.windows(start).any(|window| window == &n[..]), "{dtype:?}");
    }
}

#[test]
fn values_of_8_bits_are_multiplied_with_their_scales() {
    let mut folder = Folder::llama();
    let name = "model.layers.0.mlp.up_proj.weight";
    // Every code but those of no number.
    let codes: Vec<u8> = (0..=255u8).filter(|code| code & 127 != 127).cycle().take(16 * N_EMBD).collect();
    folder
        .tensors
        .insert(name.to_owned(), Tensor { dtype: Dtype::F8_E4M3, shape: vec![16, N_EMBD], bytes: codes.clone() });
    // Blocks of 8 rows and 4 columns.
    let scales = Tensor::random(99, &[2, 2]);
    folder.tensors.insert(format!("{name}_scale_inv"), scales.clone());
    folder.config["quantization_config"] = json!({ "quant_method": "fp8", "weight_block_size": [8, 4] });
    folder.write();
    let file = folder.converted("F32");
    let have = values(&file, "blk.0.ffn_up.weight");
    let scales = scales.values();
    let e4m3 = |code: u8| {
        let (sign, exponent, mantissa) = (code >> 7, i32::from(code >> 3 & 15), f32::from(code & 7));
        let size = if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
        if sign == 1 { -size } else { size }
    };
    for (i, (&code, have)) in codes.iter().zip(have).enumerate() {
        let (row, column) = (i / N_EMBD, i % N_EMBD);
        assert_eq!(have, e4m3(code) * scales[row / 8 * 2 + column / 4], "value {i}");
    }

    // One scale for all, as other tools write it.
    folder.tensors.remove(&format!("{name}_scale_inv"));
    folder.tensors.insert(format!("{name}_scale"), Tensor::random(99, &[1]));
    folder.config["quantization_config"] = json!({ "quant_method": "modelopt" });
    folder.write();
    let file = folder.converted("F32");
    let expected: Vec<f32> = codes.iter().map(|&code| e4m3(code) * scales[0]).collect();
    assert_eq!(values(&file, "blk.0.ffn_up.weight"), expected);

    // Fewer bits are made of the products, not of what 16 bits hold of them. Rows of 8 are no blocks and become F16.
    for tensor in folder.tensors.values_mut().filter(|tensor| tensor.dtype == Dtype::F32 && tensor.shape.len() > 1) {
        tensor.bytes = tensor.bytes.as_chunks::<4>().0.iter().flat_map(|x| [x[2], x[3]]).collect();
        tensor.dtype = Dtype::BF16;
    }
    folder.write();
    let file = folder.converted("Q8_0");
    let tensor = file.tensor("blk.0.ffn_up.weight").expect("a tensor");
    let rounded: Vec<u8> = expected.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect();
    assert_eq!((tensor.ty, &file.data(tensor)[..]), (GgmlType::F16, &rounded[..]));

    folder.config["quantization_config"] = json!({ "quant_method": "gptq" });
    folder.write();
    std::fs::remove_file(folder.output()).expect("it is there");
    assert!(folder.error().contains("quantised by gptq, which is not read"), "{}", folder.error());
}

#[test]
fn smaller_types_are_made_by_the_recipes() {
    let folder = Folder::llama();
    folder.write();
    let file = folder.converted("Q8_0");
    // Rows of 8 are no blocks.
    assert_eq!(file.tensor("blk.0.attn_q.weight").map(|tensor| tensor.ty), Some(GgmlType::F16));
    assert_eq!(file.metadata().u32("general.file_type").expect("a number"), Some(7));
    let left: Vec<String> = std::fs::read_dir(folder.path())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".part"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_is_broken_off_leaves_nothing() {
    let folder = Folder::llama();
    folder.write();
    for ty in ["F32", "Q8_0"] {
        let options = ConvertOptions { ty: Some(ConvertType::parse(ty).expect("a type")), ..ConvertOptions::default() };
        let error = convert(folder.path(), &folder.output(), &options, &mut |_| ControlFlow::Break(()))
            .expect_err("broken off");
        assert_eq!(error.kind(), ConvertErrorKind::Cancelled);
        let names = std::fs::read_dir(folder.path()).expect("the folder");
        let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
        assert!(names.iter().all(|name| !name.to_string_lossy().contains("out.gguf")), "{names:?}");
    }
}

#[test]
fn cards_and_templates_are_found() {
    let folder = Folder::llama();
    folder.write();
    folder
        .put("README.md", "---\nlicense: apache-2.0\nlanguage:\n- en\nbase_model: Qwen/Qwen2.5-0.5B\n---\n# A model\n");
    folder.put("generation_config.json", r#"{"temperature": 0.5, "top_k": 20, "repetition_penalty": 1.1}"#);
    folder.put("tokenizer_config.json", r#"{"bos_token": "<s>", "eos_token": "</s>"}"#);
    folder.put("chat_template.jinja", "one");
    folder.put("additional_chat_templates/tool_use.jinja", "two");
    let file = folder.converted("F16");
    let text = |key: &str| file.metadata().str(key).expect("text").unwrap_or_else(|| panic!("no {key}")).to_owned();
    assert_eq!(
        (text("tokenizer.chat_template"), text("tokenizer.chat_template.tool_use")),
        ("one".to_owned(), "two".to_owned())
    );
    assert_eq!(
        (text("general.license").as_str(), text("general.base_model.0.organization").as_str()),
        ("apache-2.0", "Qwen")
    );
    assert_eq!(text("general.base_model.0.repo_url"), "https://huggingface.co/Qwen/Qwen2.5-0.5B");
    let languages = file.metadata().strings("general.languages").expect("texts").expect("languages");
    assert_eq!(languages.iter().collect::<Vec<_>>(), ["en"]);
    assert_eq!(file.metadata().f32("general.sampling.temp").expect("a number"), Some(0.5));
    assert_eq!(file.metadata().i32("general.sampling.top_k").expect("a number"), Some(20));
}
