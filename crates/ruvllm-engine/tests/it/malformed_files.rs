//! Files that are valid GGUF and no sensible model: an error or an answer, never a panic.

use ruvllm_engine::{Engine, LoadOptions, LogitRows, Segment};
use ruvllm_gguf::{GgufFile, GgufWriter, Value};
use ruvllm_testkit::{Golden, GoldenKind};

/// What a number in the metadata is replaced by.
fn hostile_values() -> Vec<Value> {
    vec![
        Value::U32(0),
        Value::U32(1),
        Value::U32(3),
        Value::U32(65535),
        Value::U32(u32::MAX),
        Value::I32(-1),
        Value::U64(u64::MAX),
        Value::F32(0.0),
        Value::F32(-1.0),
        Value::F32(1e-38),
        Value::F32(f32::NAN),
        Value::F32(f32::INFINITY),
        Value::String("x".into()),
        Value::Bool(true),
    ]
}

/// Loads the file and computes four tokens, whatever comes of it.
fn try_to_run(path: &std::path::Path) -> bool {
    let options = LoadOptions { n_threads: 1, n_ctx: Some(32), ..LoadOptions::default() };
    let Ok(mut engine) = Engine::load(path, &options, &mut |_| {}) else { return false };
    if engine.info().is_encoder {
        return engine.embed(&[1, 2, 3, 4]).is_ok();
    }
    let Ok(seq) = engine.new_sequence() else { return false };
    engine.forward(&[Segment { seq, tokens: &[1, 2, 3, 4], logits: LogitRows::Last }]).is_ok()
}

#[test]
fn a_wrong_number_in_the_metadata_never_panics() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("hostile.gguf");
    let (mut n_run, mut n_refused) = (0, 0);
    for golden in Golden::all() {
        let file = GgufFile::open(&golden.model("f32")).expect("golden models are valid");
        let keys: Vec<String> = file.metadata().iter().map(|(key, _)| key.to_owned()).collect();
        let prefix = format!("{}.", file.metadata().str("general.architecture").expect("text").expect("there"));
        for key in keys.iter().filter(|key| key.starts_with(&prefix)) {
            for value in hostile_values() {
                let mut writer = GgufWriter::from_file(&file);
                writer.metadata_mut().set(key.clone(), value);
                writer.write_file(&path).expect("the folder can be written");
                match try_to_run(&path) {
                    true => n_run += 1,
                    false => n_refused += 1,
                }
            }
            let mut writer = GgufWriter::from_file(&file);
            writer.metadata_mut().remove(key);
            writer.write_file(&path).expect("the folder can be written");
            try_to_run(&path);
        }
    }
    println!("{n_run} files ran, {n_refused} were refused");
    assert!(n_run > 500 && n_refused > 500, "{n_run} files ran, {n_refused} were refused");
}

#[test]
fn a_missing_tensor_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("missing.gguf");
    for golden in Golden::all().into_iter().filter(|golden| golden.kind == GoldenKind::Logits).take(3) {
        let file = GgufFile::open(&golden.model("f32")).expect("golden models are valid");
        let mut writer = GgufWriter::new();
        *writer.metadata_mut() = file.metadata().clone();
        for tensor in file.tensors().filter(|tensor| tensor.name != "blk.0.attn_output.weight") {
            writer.add_tensor(&tensor.name, tensor.ty, &tensor.shape, file.data(tensor)).expect("a valid tensor");
        }
        writer.write_file(&path).expect("the folder can be written");
        let error = Engine::load(&path, &LoadOptions::default(), &mut |_| {}).err().expect("a tensor is missing");
        let line = "tensor 'blk.0.attn_output.weight' is missing; the file is not a complete model";
        assert_eq!(error.to_string(), line, "{}", golden.name);
    }
}

#[test]
fn a_layer_beyond_their_number_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("fewer.gguf");
    for golden in Golden::all().into_iter().filter(|golden| golden.kind == GoldenKind::Logits).take(3) {
        let file = GgufFile::open(&golden.model("f32")).expect("golden models are valid");
        let key = format!("{}.block_count", file.metadata().str("general.architecture").expect("text").expect("there"));
        let n_layers = file.metadata().u32(&key).expect("a number").expect("it is there");
        let mut writer = GgufWriter::from_file(&file);
        writer.metadata_mut().set(&key, n_layers - 1);
        writer.write_file(&path).expect("the folder can be written");
        let line =
            Engine::load(&path, &LoadOptions::default(), &mut |_| {}).err().expect("a layer too many").to_string();
        let of = format!("tensor 'blk.{}.", n_layers - 1);
        assert!(line.starts_with(&of) && line.contains("block_count") && line.lines().count() == 1, "{line}");
    }
}
