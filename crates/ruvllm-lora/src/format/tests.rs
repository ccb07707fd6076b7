//! Files that are not what they say: each is refused in one line, and none costs memory beyond its size.

use std::fs;
use std::path::PathBuf;

use ruvllm_gguf::GgufWriter;
use ruvllm_kernels::GgmlType;
use serde_json::{Value, json};

use super::*;
use crate::adapter::{Delta, FactorPair, RowOrder, Values};

fn facts() -> ModelFacts {
    ModelFacts { arch: "llama".into(), n_heads: vec![2; 2], n_kv_heads: vec![1; 2], n_experts: 4 }
}

fn adapter() -> Adapter {
    let delta = |target: &str, rank: usize, scale: f32| {
        let values = |rows, cols| {
            let noise: Vec<f32> = (0..rows * cols).map(|i| ((i * 7 + rank) as f32).sin()).collect();
            Values::from_f32(rows, cols, &noise)
        };
        Delta::new(target, scale, FactorPair { a: values(rank, 8), b: values(16, rank) }, None, RowOrder::Same)
            .expect("a pair")
    };
    let mut deltas = vec![delta("blk.0.attn_q", 2, 4.0), delta("blk.1.ffn_up", 3, 0.5), delta("output", 2, 4.0)];
    deltas.extend((0..4).map(|e| delta(&format!("blk.0.ffn_up_exps.{e}"), 2, 4.0)));
    Adapter::new("a", deltas).expect("an adapter")
}

/// A folder with the adapter in it.
fn peft_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    peft::write(&adapter(), &facts(), folder.path()).expect("it can be written");
    folder
}

fn line(path: &Path) -> String {
    let text = read(path, &facts()).expect_err("it is refused").to_string();
    assert!(!text.contains('\n') && text.len() < 600, "{text}");
    text
}

#[test]
fn both_forms_come_back_as_they_were() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, original) = (folder.path().join("a.gguf"), adapter());
    gguf::write(&original, &facts(), &path).expect("it can be written");
    let peft = peft_folder();
    for (path, is_gguf) in [(path, true), (peft.path().to_owned(), false), (peft.path().join(peft::CONFIG), false)] {
        let found = read(&path, &facts()).expect("it can be read");
        assert_eq!(found.arch(), is_gguf.then_some("llama"));
        assert_eq!(found.deltas().len(), original.deltas().len());
        for (found, original) in found.deltas().zip(original.deltas()) {
            assert_eq!((&found.target, found.rank()), (&original.target, original.rank()));
            assert_eq!(found.a().expect("finite"), original.a().expect("finite"));
            let scaled = |delta: &Delta| {
                let b = delta.b().expect("finite");
                b.into_iter().map(|x| x * delta.scale).collect::<Vec<f32>>()
            };
            for (x, y) in scaled(found).into_iter().zip(scaled(original)) {
                assert!((x - y).abs() <= 1e-6 * y.abs(), "{}: {x} for {y}", found.target);
            }
        }
    }
}

/// Writes the settings with some of them changed.
/// What a converter multiplied is not what an adapter of `transformers` was made for.
#[test]
fn folders_are_refused_where_converters_multiply_weights() {
    let (folder, facts) = (peft_folder(), ModelFacts { arch: "falcon-h1".into(), ..facts() });
    let expected = "files of falcon-h1 have its multipliers in their weights, and adapters of transformers do not; use a GGUF adapter";
    let text = read(folder.path(), &facts).expect_err("it is refused").to_string();
    assert!(text.ends_with(expected), "{text}");
    let error = peft::write(&adapter(), &facts, &folder.path().join("other")).expect_err("it is refused");
    assert_eq!(error.to_string(), expected);
}

fn with_settings(changes: Value) -> tempfile::TempDir {
    let folder = peft_folder();
    let path = folder.path().join(peft::CONFIG);
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).expect("settings")).expect("JSON");
    for (key, value) in changes.as_object().expect("a table") {
        config[key] = value.clone();
    }
    fs::write(&path, config.to_string()).expect("a file");
    folder
}

#[test]
fn settings_that_are_not_applied_are_refused_by_name() {
    for (changes, part) in [
        (json!({ "peft_type": "LOHA" }), "peft_type 'LOHA'; only LORA is applied"),
        (json!({ "modules_to_save": ["lm_head"] }), "modules_to_save is [\\\"lm_head\\\"]: whole modules"),
        (json!({ "bias": "all" }), "bias is 'all'"),
        (json!({ "init_lora_weights": "pissa_niter_4" }), "init_lora_weights is 'pissa_niter_4'"),
        (json!({ "alora_invocation_tokens": [1, 2] }), "begins in the middle of a prompt"),
        (json!({ "r": 4 }), "the settings say rank 4, the tensor has 2"),
        (json!({ "r": "x" }), "r is no number"),
        (json!({ "lora_alpha": 1e300 }), "a scale of inf"),
        (json!({ "alpha_pattern": { "(((": 1 } }), "which cannot be read"),
        (json!({ "alpha_pattern": { "a{1000}{1000}{1000}": 1 } }), "which cannot be read"),
        (json!({ "rank_pattern": [1] }), "rank_pattern is no table"),
    ] {
        let folder = with_settings(changes);
        let text = line(folder.path());
        assert!(text.contains(part), "{text}");
    }
    let folder = with_settings(json!({ "use_rslora": true, "lora_alpha": 8.0, "alpha_pattern": {} }));
    let found = read(folder.path(), &facts()).expect("it can be read");
    let scale = found.delta("blk.0.attn_q").map_or(0.0, |delta| delta.scale);
    assert!((scale - 8.0 / 2f32.sqrt()).abs() < 1e-6, "{scale}");
    fs::write(folder.path().join(peft::CONFIG), vec![b' '; (1 << 20) + 1]).expect("a file");
    assert!(line(folder.path()).contains("more than 1048576 bytes of settings"));
    fs::write(folder.path().join(peft::CONFIG), b"[1]").expect("a file");
    assert!(line(folder.path()).contains("no JSON object"));
    fs::remove_file(folder.path().join(peft::CONFIG)).expect("a file");
    assert!(line(folder.path()).contains(peft::CONFIG));
}

/// Writes tensors of F32 with a directory made by hand.
fn with_header(header: &Value, n_bytes: usize) -> tempfile::TempDir {
    let folder = peft_folder();
    let text = header.to_string().into_bytes();
    let bytes = [&(text.len() as u64).to_le_bytes()[..], &text, &vec![0; n_bytes]].concat();
    fs::write(folder.path().join(peft::WEIGHTS), bytes).expect("a file");
    folder
}

#[test]
fn tensors_that_cannot_be_are_refused() {
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    let tensor = |shape: [usize; 2], at: [usize; 2]| json!({ "dtype": "F32", "shape": shape, "data_offsets": at });
    let (a, b) = (tensor([2, 8], [0, 64]), tensor([16, 2], [64, 192]));
    let of = |module: &str| json!({ format!("{module}.lora_A.weight"): a.clone(), format!("{module}.lora_B.weight"): b.clone() });
    assert!(read(with_header(&of(module), 192).path(), &facts()).is_ok());
    for (header, n_bytes, part) in [
        (of("base_model.model.../../../etc/passwd"), 192, "no linear layer of the architecture 'llama'"),
        (of("base_model.model.model.embed_tokens"), 192, "no linear layer of the architecture 'llama'"),
        (of(module), 100, "no sound safetensors file"),
        (json!({ format!("{module}.lora_A.weight"): a.clone() }), 64, "lora_A or lora_B is missing"),
        (json!({ "lm_head.weight": tensor([8, 8], [0, 256]) }), 256, "is no factor of a LoRA"),
        (json!({ format!("{module}.lora_A.weight"): tensor([usize::MAX, 2], [0, 64]) }), 64, "no sound safetensors"),
        (
            json!({ format!("{module}.lora_A.x.weight"): a.clone(), format!("{module}.lora_A.y.weight"): b.clone() }),
            192,
            "two adapters in one file",
        ),
        (
            json!({ format!("{module}.lora_A.weight"): { "dtype": "I8", "shape": [2, 8], "data_offsets": [0, 16] },
            format!("{module}.lora_B.weight"): { "dtype": "F32", "shape": [16, 2], "data_offsets": [16, 144] } }),
            144,
            "values of type I8",
        ),
    ] {
        let folder = with_header(&header, n_bytes);
        let text = line(folder.path());
        assert!(text.contains(part), "{text} for {part}");
    }
    // Directories that claim more than there is, or than is read.
    let folder = peft_folder();
    let path = folder.path().join(peft::WEIGHTS);
    for (head, part) in [(u64::MAX, "no safetensors file"), (1 << 40, "no safetensors file")] {
        fs::write(&path, [&head.to_le_bytes()[..], b"{}"].concat()).expect("a file");
        assert!(line(folder.path()).contains(part));
    }
    let long = 17u64 << 20;
    let mut bytes = long.to_le_bytes().to_vec();
    bytes.resize(8 + long as usize, b' ');
    fs::write(&path, bytes).expect("a file");
    assert!(line(folder.path()).contains("a directory of 17825792 bytes, at most 16777216 are read"));
    fs::write(&path, b"").expect("a file");
    line(folder.path());
}

/// Writes a GGUF adapter with one pair and some metadata changed.
fn gguf_with(metadata: &[(&str, &str)], a: &[usize], b: &[usize], name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.gguf");
    let mut writer = GgufWriter::new();
    for (key, value) in [("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")] {
        writer.metadata_mut().set(key, value);
    }
    metadata.iter().for_each(|(key, value)| writer.metadata_mut().set(*key, *value));
    for (part, shape) in [("lora_a", a), ("lora_b", b)] {
        let bytes = vec![0; 4 * shape.iter().product::<usize>()];
        writer.add_tensor(format!("{name}.weight.{part}"), GgmlType::F32, shape, bytes).expect("a tensor");
    }
    writer.write_file(&path).expect("it can be written");
    (folder, path)
}

#[test]
fn gguf_files_that_are_no_adapter_are_refused() {
    let (a, b) = ([8, 2], [2, 16]);
    for (metadata, a, b, name, part) in [
        (&[("general.type", "model")][..], &a[..], &b[..], "blk.0.attn_q", "is no LoRA adapter"),
        (&[("adapter.type", "control")], &a, &b, "blk.0.attn_q", "is no LoRA adapter"),
        (&[("general.architecture", "qwen2")], &a, &b, "blk.0.attn_q", "architecture 'qwen2', the model is 'llama'"),
        (&[("adapter.alora.invocation_tokens", "x")], &a, &b, "blk.0.attn_q", "alora"),
        (&[], &a, &[3, 16], "blk.0.attn_q", "a has rank 2, b 3"),
        (&[], &[8, 1025], &[1025, 2], "blk.0.attn_q", "rank 1025, at most 1024 is read"),
        (&[], &a, &b, "token_embd", "changes the token embeddings"),
        (&[], &[8, 2, 3], &[2, 16, 3], "blk.0.attn_q", "no tensor of experts"),
        (&[], &[8, 2, 3], &[2, 16, 2], "blk.0.ffn_up_exps", "do not fit each other"),
    ] {
        let (_folder, path) = gguf_with(metadata, a, b, name);
        let text = line(&path);
        assert!(text.contains(part) && text.contains("a.gguf"), "{text} for {part}");
    }
    let (_folder, path) = gguf_with(&[], &a, &b, "blk.0.attn_q");
    assert_eq!(
        read(&path, &facts()).expect("it can be read").delta("blk.0.attn_q").map(|delta| delta.scale),
        Some(1.0)
    );
    let bytes = fs::read(&path).expect("a file");
    for cut in [0, 3, 24, 100, bytes.len() - 1] {
        fs::write(&path, &bytes[..cut]).expect("a file");
        line(&path);
    }
    line(Path::new("/nowhere/at/all.gguf"));
}

/// Changes a file's bytes in one of the ways in which files go wrong: bits, lengths, cuts, repetitions.
fn mutate(bytes: &mut Vec<u8>, seed: u64) {
    // Splitmix64 (Steele 2014).
    let mut state = seed;
    let mut next = |n: usize| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = state;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % n.max(1) as u64) as usize
    };
    for _ in 0..1 + next(3) {
        let at = next(bytes.len());
        match next(6) {
            0 => bytes.truncate(at),
            1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << next(8)),
            2 => bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = [0, 0x7F, 0xFF][next(3)]),
            3 => drop(bytes.splice(at..at, *b"9999999999999999999")),
            4 => {
                let part = bytes[at..(at + next(64)).min(bytes.len())].to_vec();
                drop(bytes.splice(at..at, part));
            }
            _ => bytes.iter_mut().skip(at).take(1 + next(16)).for_each(|byte| *byte = next(256) as u8),
        }
        if bytes.is_empty() {
            return;
        }
    }
}

/// Reads 2,000 changed forms of a file; each is read, or refused in a line.
fn read_mutated(file: &Path, read: &dyn Fn() -> Result<Adapter, crate::LoraError>) {
    let sound = fs::read(file).expect("a file");
    read().expect("it is sound");
    let mut n_refused = 0;
    for seed in 0..2_000 {
        let mut bytes = sound.clone();
        mutate(&mut bytes, seed);
        fs::write(file, bytes).expect("a file");
        if let Err(error) = read() {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.len() < 1_000, "{seed}: {line}");
            n_refused += 1;
        }
    }
    assert!(n_refused > 500, "only {n_refused} were refused: they were hardly changed");
}

#[test]
fn changed_files_are_read_or_refused_in_a_line() {
    let folder = peft_folder();
    for name in [peft::CONFIG, peft::WEIGHTS] {
        let path = folder.path().join(name);
        let sound = fs::read(&path).expect("a file");
        read_mutated(&path, &|| peft::read(folder.path(), &facts()));
        fs::write(&path, sound).expect("a file");
    }
    let path = folder.path().join("a.gguf");
    gguf::write(&adapter(), &facts(), &path).expect("it can be written");
    read_mutated(&path, &|| gguf::read(&path, &facts()));
}

#[test]
fn a_file_that_is_emptied_behind_its_reading_is_told() {
    let folder = peft_folder();
    let path = folder.path().join("a.gguf");
    gguf::write(&adapter(), &facts(), &path).expect("it can be written");
    for (path, cut) in [(folder.path().to_owned(), folder.path().join(peft::WEIGHTS)), (path.clone(), path)] {
        let found = read(&path, &facts()).expect("it is sound");
        found.check().expect("it is whole");
        fs::write(cut, b"").expect("a file");
        // Zeros are read of it, and told.
        assert!(found.deltas().all(|delta| delta.a().is_ok()));
        let line = found.check().expect_err("it was cut").to_string();
        assert!(line.contains("cut short while it was in use"), "{line}");
        self::line(&path);
    }
}
