//! Wrong situations: one line each, and nothing breaks.

use std::path::Path;

use ruvllm_backend::{BackendError, BackendErrorKind, CacheSalt, LogitRows, Segment, TokenModel};
use ruvllm_kvcache::KvPolicy;
use ruvllm_testkit::Golden;

use super::{REFUSED, load, options, texts};
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

#[test]
fn what_has_no_kernel_is_refused_by_name() {
    let mut n = 0;
    for golden in texts().filter(|golden| REFUSED.contains(&golden.arch.as_str())) {
        let error = refusal(&golden.model("f32"), &options(golden.n_ctx));
        let line = error.to_string();
        assert_eq!(error.kind(), BackendErrorKind::Unsupported, "{line}");
        assert!(line.starts_with("backend gpu has no kernel for ") && line.ends_with("; use native"), "{line}");
        assert!(line.contains(&golden.arch), "{line}");
        n += 1;
    }
    assert!(n >= 8, "{n} models");
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
        // Too small an adapter.
        (WgpuOptions { binding_bytes_max: Some(1024), ..plain.clone() }, BackendErrorKind::Options, "backend gpu: "),
        (WgpuOptions { kv_bytes: Some(0), ..plain.clone() }, BackendErrorKind::Options, "backend gpu: "),
    ] {
        let error = refusal(&path, &options);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with(line), "{error}");
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
    assert!(line.contains("the model must be loaded again") && !line.contains('\n'), "{line}");
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
fn adapters_and_other_policies_are_refused_at_open() {
    let mut model = load(&Golden::load("llama-a").model("f32"), &options(64));
    let error = model.open(None, &CacheSalt { kv: Some(KvPolicy::TIERED), ..CacheSalt::default() });
    let line = error.expect_err("it has f32 alone").to_string();
    assert_eq!(line, "backend gpu keeps keys and values as f32 here, not as tiered; load it with --kv tiered");
}
