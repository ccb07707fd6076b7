//! Folders that contradict themselves, or want more than is there: a line each, and bounded memory.

use ruvllm_convert::weight_files;
use serde_json::json;

use crate::folder::{Folder, N_EMBD, Tensor};

/// Numbers of a generator.
fn random(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below
}

#[test]
fn mutated_directories_cost_a_line_each() {
    let folder = Folder::llama();
    folder.write();
    let path = folder.path().join("model.safetensors");
    let original = std::fs::read(&path).expect("the weights");
    let n_header = 8 + u64::from_le_bytes(*original.first_chunk().expect("a length")) as usize;
    let mut state = 1;
    let mut n_refused = 0;
    for i in 0..2000 {
        let mut bytes = original.clone();
        for _ in 0..1 + random(&mut state, 4) {
            let at = random(&mut state, n_header);
            match i % 5 {
                0 => bytes[at] ^= 1 << random(&mut state, 8),
                1 => bytes[at] = b"0123456789[]{}\",:-e."[random(&mut state, 20)],
                2 => bytes.truncate(random(&mut state, original.len())),
                3 => drop(bytes.splice(at..at, b"999999999999999999".iter().copied())),
                _ => drop(bytes.drain(at..(at + random(&mut state, 9)).min(n_header))),
            }
            if bytes.len() < n_header + 16 {
                break;
            }
        }
        std::fs::write(&path, &bytes).expect("it is writable");
        if let Err(error) = folder.convert("F32") {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.len() < 1000, "{line}");
            n_refused += 1;
        }
    }
    assert!(n_refused > 1900, "{n_refused}");
    if let Some(peak) = peak_kilobytes() {
        assert!(peak < 1 << 20, "{peak} kB");
    }
}

/// Returns the most memory that the process had, where the system says it.
fn peak_kilobytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn indices_are_not_believed() {
    let folder = Folder::llama();
    folder.write();
    let check = |index: serde_json::Value, part: &str| {
        folder.put("model.safetensors.index.json", index.to_string());
        let line = folder.error();
        assert!(line.contains(part), "{line}");
    };
    let all = |file: &str| {
        let names = folder.tensors.keys().map(|name| (name.clone(), json!(file)));
        json!({ "weight_map": names.collect::<serde_json::Map<_, _>>() })
    };
    assert_eq!(weight_files(folder.path()).expect("the usual one"), ["model.safetensors"]);
    check(all("model-00002-of-00002.safetensors"), "model-00002-of-00002.safetensors: is missing, which");
    check(all("../model.safetensors"), "names the file '../model.safetensors', which is not in the folder");
    assert!(
        weight_files(folder.path()).expect_err("it leaves the folder").to_string().contains("../model.safetensors")
    );
    check(all("/etc/passwd"), "names the file '/etc/passwd', which is not in the folder");
    check(all(""), "names the file '', which is not in the folder");
    check(all(&"x".repeat(300)), "which is not in the folder");
    check(json!({ "weight_map": { "a": 1 } }), "its weight_map names no files");
    check(json!({}), "has no weight_map");
    let mut more = all("model.safetensors");
    more["weight_map"]["another.weight"] = json!("model.safetensors");
    check(more, "says 'another.weight' is in model.safetensors, and it is not");
    let mut fewer = all("model.safetensors");
    fewer["weight_map"].as_object_mut().expect("an object").remove("lm_head.weight");
    check(fewer, "does not know 'lm_head.weight'");
    // The same tensor in two files.
    std::fs::copy(folder.path().join("model.safetensors"), folder.path().join("model-2.safetensors")).expect("a copy");
    let mut twice = all("model.safetensors");
    twice["weight_map"]["lm_head.weight"] = json!("model-2.safetensors");
    check(twice, "is in two files of the checkpoint");
}

#[test]
fn sizes_are_counted_before_they_are_believed() {
    let folder = Folder::llama();
    folder.write();
    let check = |header: &str, part: &str| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        folder.put("model.safetensors", bytes);
        let line = folder.error();
        assert!(line.contains(part), "{line}");
    };
    let huge = 1u64 << 60;
    check(&format!(r#"{{"a":{{"dtype":"F32","shape":[{huge}],"data_offsets":[0,{huge}]}}}}"#), "damaged safetensors");
    check(r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#, "damaged safetensors");
    check(r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#, "has shape [0], which is no tensor of a model");
    check(r#"{"a\nb":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#, r"a\nb");
    check("[", "damaged safetensors");
    check("{}", "has no model.safetensors");
    folder.put("model.safetensors", [255; 16]);
    assert!(folder.error().contains("its directory has 18446744073709551615 bytes, the file has 16"));
    folder.put("model.safetensors", [1, 2]);
    assert!(folder.error().contains("shorter than 8 bytes"));
}

#[test]
fn configurations_are_held_against_the_tensors() {
    let check = |key: &str, value: serde_json::Value, part: &str| {
        let mut folder = Folder::llama();
        folder.config[key] = value;
        folder.write();
        let line = folder.error();
        assert!(line.contains(part), "{line}");
    };
    check(
        "architectures",
        json!(["T5ForConditionalGeneration"]),
        "models of class 'T5ForConditionalGeneration' are not converted; those of bert,",
    );
    check("architectures", json!(["GPT2LMHeadModel"]), "config.json: 'n_embd' is missing");
    check(
        "architectures",
        json!(["FalconH1ForCausalLM"]),
        "mamba_norm_before_gate is true; GGUF files have the norm behind",
    );
    check("architectures", json!(["BertModel"]), "a tokenizer of type 'BPE' is not converted");
    check("architectures", json!(null), "names no architecture");
    check("num_hidden_layers", json!(1u64 << 60), "which cannot be");
    check("num_hidden_layers", json!(2), "the checkpoint makes no whole model: ");
    check("num_attention_heads", json!(3), "by the configuration");
    check("hidden_size", json!(16), "the checkpoint makes no whole model: ");
    check("vocab_size", json!(3), "the tokenizer has 6 tokens, config.json says 3");
    check("vocab_size", json!(1u64 << 30), "'vocab_size' is 1073741824, which cannot be");
    for n in [65537u64, 1 << 31] {
        let mut folder = Folder::llama();
        folder.config["rope_scaling"] = json!({ "rope_type": "llama3", "factor": 8.0 });
        folder.config["head_dim"] = json!(n);
        folder.write();
        assert!(folder.error().contains(&format!("heads have a width of {n}, which cannot be")));
        folder.config["head_dim"] = json!(null);
        folder.config["hidden_size"] = json!(n);
        folder.config["num_attention_heads"] = json!(1);
        folder.write();
        assert!(folder.error().contains(&format!("heads have a width of {n}, which cannot be")));
    }

    let mut folder = Folder::llama();
    folder.tensors.insert("model.layers.0.attn.x.weight".to_owned(), Tensor::random(1, &[2, 2]));
    folder.write();
    assert!(folder.error().contains("models of llama have none of this name"), "{}", folder.error());
    let mut folder = Folder::llama();
    folder.tensors.remove("model.layers.0.mlp.up_proj.weight");
    folder.write();
    assert!(folder.error().contains("blk.0.ffn_up"), "{}", folder.error());
    let mut folder = Folder::llama();
    folder.tensors.get_mut("model.norm.weight").expect("a norm").dtype = safetensors::Dtype::I32;
    folder.write();
    assert!(folder.error().contains("which are no weights"), "{}", folder.error());
    let mut folder = Folder::llama();
    folder.tensors.insert("model.norm.weight".to_owned(), {
        let bytes = f32::INFINITY.to_le_bytes().repeat(N_EMBD);
        Tensor { bytes, ..Tensor::random(1, &[N_EMBD]) }
    });
    folder.write();
    assert!(
        folder.error().contains("output_norm.weight': has the value inf, which is not finite"),
        "{}",
        folder.error()
    );
}

#[test]
fn tokenizers_are_not_believed() {
    let check = |name: &str, content: &str, part: &str| {
        let folder = Folder::llama();
        folder.write();
        folder.put(name, content);
        let line = folder.error();
        assert!(line.contains(part), "{line}");
    };
    check("tokenizer.json", "{", "tokenizer.json: is no JSON: ");
    check("tokenizer.json", "{}", "tokenizer.json: it has no vocabulary");
    check("tokenizer.json", &"[".repeat(100_000), "tokenizer.json: is no JSON: ");
    check("tokenizer.json", r#"{"model":{"vocab":{"a":4294967295}}}"#, "token 'a' has no usable id");
    check(
        "tokenizer.json",
        r#"{"model":{"type":"Unigram","vocab":[]}}"#,
        "a tokenizer of type 'Unigram' is not converted",
    );
    let split = r#"{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"x"}}}"#;
    check("tokenizer.json", split, "how it cuts texts into words is not known; name a rule with --pre");
    check(
        "tokenizer.json",
        r#"{"model":{"type":"BPE","vocab":{"a":0},"merges":[[1]]}}"#,
        "a merge is no pair of tokens",
    );
    check("tokenizer.model", "\u{ff}", "tokenizer.model: damaged SentencePiece model");
    check("config.json", "[]", "config.json: is no JSON object");
}

#[test]
fn ids_of_added_tokens_are_bounded() {
    // The first is the least that is refused.
    for id in ["4194304", "4294967295", "4294967296", "18446744073709551615"] {
        for is_sentencepiece in [false, true] {
            let mut folder = Folder::llama();
            folder.config.as_object_mut().expect("an object").remove("vocab_size");
            folder.config["architectures"] = json!(["Qwen2ForCausalLM"]);
            folder.write();
            folder.put(
                "tokenizer_config.json",
                json!({ "added_tokens_decoder": { id: { "content": "x" } } }).to_string(),
            );
            if is_sentencepiece {
                // A piece "a".
                folder.put("tokenizer.model", b"\x0a\x03\x0a\x01a");
            }
            let line = folder.error();
            assert!(line.contains("tokenizer_config.json: token 'x' has no usable id"), "{line}");
        }
    }
    let folder = Folder::llama();
    folder.write();
    std::fs::remove_file(folder.path().join("tokenizer.json")).expect("it is there");
    folder.put("config.json", folder.config.to_string().replace("LlamaForCausalLM", "BertModel"));
    folder.put("vocab.txt", "\n".repeat((1 << 22) + 1000));
    assert!(folder.error().contains("token '' has no usable id"), "{}", folder.error());
}

#[cfg(unix)]
#[test]
fn links_and_pipes_are_no_traps() {
    use std::os::unix::fs::symlink;
    let folder = Folder::llama();
    folder.write();
    let path = |name: &str| folder.path().join(name);
    // Weights behind a link are those of the hub's cache.
    std::fs::rename(path("model.safetensors"), path("blob")).expect("it is there");
    symlink("blob", path("model.safetensors")).expect("a link");
    assert!(folder.convert("F32").is_ok());
    std::fs::remove_file(folder.output()).expect("it is there");
    let replace = |name: &str, to: &str| {
        std::fs::remove_file(path(name)).expect("it is there");
        symlink(to, path(name)).expect("a link");
    };
    replace("model.safetensors", "model.safetensors");
    let line = folder.error();
    assert!(line.contains("model.safetensors: cannot open: "), "{line}");
    replace("tokenizer.json", "nowhere");
    replace("model.safetensors", "blob");
    let line = folder.error();
    assert!(line.contains("tokenizer.json: cannot open: "), "{line}");
    replace("tokenizer.json", "/dev/zero");
    let line = folder.error();
    assert!(line.contains("tokenizer.json: is no file"), "{line}");
    let made = std::process::Command::new("mkfifo").arg(path("generation_config.json")).status();
    if made.is_ok_and(|status| status.success()) {
        folder.error();
    }
}
