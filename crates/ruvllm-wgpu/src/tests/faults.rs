//! Wrong situations: one line each, and nothing breaks.

use std::path::Path;

use ruvllm_backend::{BackendError, BackendErrorKind, CacheSalt, LogitRows, PagedKv, Segment, TokenModel};
use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, GgufWriter};
use ruvllm_kvcache::KvPolicy;
use ruvllm_testkit::Golden;

use super::{load, options};
use crate::{GpuChoice, WgpuBackend, WgpuOptions};

fn refusal(path: &Path, options: &WgpuOptions) -> BackendError {
    match WgpuBackend::load(path, options, &mut |_| {}) {
        Ok(_) => panic!("{} loads", path.display()),
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "one line: {error}");
            error
        }
    }
}

/// Writes the small model with a tensor in another type.
fn write_changed(to: &Path, tensor: &str, ty: GgmlType) {
    let file = GgufFile::open(&Golden::load("llama-a").model("f32")).expect("a golden file is sound");
    let mut writer = GgufWriter::new();
    *writer.metadata_mut() = file.metadata().clone();
    for own in file.tensors() {
        let data = file.data(own);
        match own.name == *tensor {
            false => writer.add_tensor(&*own.name, own.ty, &own.shape, data).expect("it is the same"),
            true => {
                let n_bytes = ty.row_bytes(own.n_elements()).expect("whole blocks");
                writer.add_tensor(&*own.name, ty, &own.shape, vec![0u8; n_bytes]).expect("the shape is the same")
            }
        };
    }
    writer.write_file(to).expect("it can be written");
}

#[test]
fn types_that_are_no_weights_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("integers.gguf");
    for (tensor, ty) in [("blk.0.attn_q.weight", GgmlType::I32), ("token_embd.weight", GgmlType::F64)] {
        write_changed(&path, tensor, ty);
        let error = refusal(&path, &options(64));
        assert_eq!(error.kind(), BackendErrorKind::Unsupported, "{error}");
        let line = format!("tensor '{tensor}' has type {ty}, which is not a weight format");
        assert_eq!(error.to_string(), line);
    }
}

#[test]
fn what_has_no_kernel_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("odd.gguf");
    write_wide_head(&path);
    let error = refusal(&path, &options(64));
    assert_eq!(error.kind(), BackendErrorKind::Unsupported, "{error}");
    assert_eq!(
        error.to_string(),
        "backend gpu has no kernel for heads of 704 and 704 values (layer 0) of architecture llama; use native"
    );
}

/// Writes a model of one layer with one head of 704 values.
fn write_wide_head(to: &Path) {
    const N: usize = 704;
    let file = GgufFile::open(&Golden::load("llama-a").model("f32")).expect("a golden file is sound");
    let mut writer = GgufWriter::new();
    *writer.metadata_mut() = file.metadata().clone();
    let n_embd = file.metadata().u32("llama.embedding_length").expect("a number").expect("it is there") as usize;
    let metadata = writer.metadata_mut();
    for (key, n) in [("block_count", 1), ("attention.head_count", 1), ("attention.head_count_kv", 1)] {
        metadata.set(format!("llama.{key}"), n as u32);
    }
    for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        metadata.set(format!("llama.{key}"), N as u32);
    }
    for own in file.tensors().filter(|own| !own.name.starts_with("blk.") || own.name.starts_with("blk.0.")) {
        let shape = match own.name.as_str() {
            "blk.0.attn_q.weight" | "blk.0.attn_k.weight" | "blk.0.attn_v.weight" => vec![n_embd, N],
            "blk.0.attn_output.weight" => vec![N, n_embd],
            _ => own.shape.to_vec(),
        };
        let data = vec![0u8; 4 * shape.iter().product::<usize>()];
        writer.add_tensor(&*own.name, GgmlType::F32, &shape, data).expect("a tensor");
    }
    writer.write_file(to).expect("it can be written");
}

#[test]
fn wrong_options_and_small_devices_are_one_line() {
    let path = Golden::load("llama-a").model("f32");
    let plain = options(64);
    for (options, kind, line) in [
        (
            WgpuOptions { gpu: GpuChoice::parse("no such GPU"), ..plain.clone() },
            BackendErrorKind::Options,
            "backend gpu: no GPU is called 'no such gpu' (0: ",
        ),
        (
            WgpuOptions { gpu: GpuChoice::Index(99), ..plain.clone() },
            BackendErrorKind::Options,
            "backend gpu: no GPU has number 99 (0: ",
        ),
        (WgpuOptions { n_seq_max: 0, ..plain.clone() }, BackendErrorKind::Options, "0 sequences; choose 1 to 4096"),
        (
            WgpuOptions { kv: KvPolicy::Q8, ..plain.clone() },
            BackendErrorKind::Options,
            "backend gpu keeps keys and values as f16 or f32, not as q8",
        ),
        // Larger than the memory: refused before anything is uploaded.
        (
            WgpuOptions { memory_bytes_max: Some(100_000), ..plain.clone() },
            BackendErrorKind::Options,
            "the model takes ",
        ),
    ] {
        let error = refusal(&path, &options);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with(line), "{error}");
    }
}

/// A GPU whose bindings are too small for the cache of a context, no room for a cache, and a file that is larger than the memory.
#[test]
fn small_devices_and_large_files_are_one_line() {
    let path = Golden::load("llama-a").model("f32");
    let name = load(&path, &options(64)).gpu().info().name.clone();
    let kv_line = |n: usize| {
        format!(
            "backend gpu: {name} takes {n} tokens of KV cache at most here, and a context of 64 was asked for; choose a smaller context"
        )
    };
    let bytes = GgufFile::open(&path).expect("it opens").tensor_bytes();
    let kv = load(&path, &options(64)).bytes_for(64);
    let memory_line = format!(
        "the model takes {bytes} bytes and its KV cache {kv} on the GPU, and 100000 are allowed; use a smaller model or context, or \
         the native backend"
    );
    let plain = options(64);
    for (options, line) in [
        (WgpuOptions { binding_bytes_max: Some(1024), ..plain.clone() }, kv_line(0)),
        (WgpuOptions { kv_bytes: Some(0), ..plain.clone() }, kv_line(0)),
        (WgpuOptions { memory_bytes_max: Some(100_000), ..plain.clone() }, memory_line),
    ] {
        assert_eq!(refusal(&path, &options).to_string(), line);
    }
}

/// Weights fit, and buffers behind them do not.
#[test]
fn memory_that_runs_out_while_loading_is_one_line() {
    let path = Golden::load("llama-a").model("f32");
    let bytes = std::fs::metadata(&path).expect("it is there").len();
    let error = refusal(&path, &WgpuOptions { memory_bytes_max: Some(bytes + 150_000), ..options(64) });
    let line = error.to_string();
    assert!(line.starts_with("backend gpu: no memory for ") && line.contains("use a smaller model"), "{line}");
}

#[test]
fn a_lost_device_ends_calls_and_not_the_process() {
    let golden = Golden::load("llama-a");
    let mut model = load(&golden.model("f32"), &options(64));
    let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
    let segment = |tokens| [Segment { seq, tokens, logits: LogitRows::Last }];
    model.forward(&segment(&[1, 2, 3])).expect("it runs");
    model.gpu().destroy();
    let error = model.forward(&segment(&[4])).map(drop).expect_err("the device is gone");
    assert_eq!(error.kind(), BackendErrorKind::Model);
    let line = error.to_string();
    assert_eq!(line, "backend gpu: the GPU was lost (it was given up); the model must be loaded again");
    assert_eq!(model.n_tokens(seq), 3, "nothing was computed");
    model.close(seq);
    load(&golden.model("f32"), &options(64));
}

#[test]
fn damaged_files_are_refused_before_a_device_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cut.gguf");
    let bytes = std::fs::read(Golden::load("llama-a").model("f32")).expect("it can be read");
    std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("it can be written");
    assert_eq!(refusal(&path, &options(64)).kind(), BackendErrorKind::Model);
}

#[test]
fn other_policies_are_refused_at_open() {
    let mut model = load(&Golden::load("llama-a").model("f32"), &options(64));
    let error = model.open(None, &CacheSalt { kv: Some(KvPolicy::TIERED), ..CacheSalt::default() });
    let line = error.expect_err("it has f32 alone").to_string();
    assert_eq!(line, "backend gpu keeps keys and values as f32 here, not as tiered; load it with --kv tiered");
}
