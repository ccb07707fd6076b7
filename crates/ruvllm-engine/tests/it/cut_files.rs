//! Files that are cut short, emptied or removed while a model runs of them: an error, and the process lives.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ruvllm_engine::{Engine, EngineError, ErrorKind, GenerateRequest, LoadOptions, PackedWeights, SamplingParams};
use ruvllm_testkit::{Golden, real_model};
use tempfile::TempDir;

/// A copy of a tiny model.
fn model(kind: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    fs::copy(Golden::load("llama-a").model(kind), &path).expect("a copy");
    (folder, path)
}

fn load(path: &Path, cache: Option<&Path>) -> Result<Engine, EngineError> {
    let options = LoadOptions {
        n_threads: 2,
        n_ctx: Some(256),
        cache_dir: cache.map(Path::to_owned),
        packed_dir: cache.map(Path::to_owned),
        ..LoadOptions::default()
    };
    Engine::load(path, &options, &mut |_| {})
}

fn answer(engine: &mut Engine) -> Result<Vec<u32>, EngineError> {
    let prompt = (0..40).map(|i| (i * 7 + 3) % 250).collect();
    let sampling = SamplingParams::greedy();
    let request = GenerateRequest { prompt, max_tokens: Some(8), sampling, ignore_eos: true, ..Default::default() };
    let mut run = engine.generate(&request)?;
    run.by_ref().try_for_each(|event| event.map(drop))?;
    Ok(run.finish().tokens)
}

fn cut(path: &Path, n_bytes: u64) {
    File::options().write(true).open(path).and_then(|file| file.set_len(n_bytes)).expect("it can be cut");
}

#[track_caller]
fn assert_cut(result: Result<Vec<u32>, EngineError>) {
    let error = result.expect_err("the file is not whole");
    let line = error.to_string();
    assert!(line.contains("cut short while") && line.contains("load") && !line.contains('\n'), "{line}");
    assert_eq!(error.kind(), ErrorKind::Model);
}

#[test]
fn a_model_that_is_cut_before_its_first_request_gives_an_error() {
    for kind in ["f32", "f16", "bf16"] {
        for part in [0, 1, 2] {
            let (_folder, path) = model(kind);
            let mut engine = load(&path, None).expect("it is whole");
            // The directory stays, half of the weights do, or nothing.
            let len = fs::metadata(&path).expect("a file").len();
            cut(&path, len * part / 4);
            assert_cut(answer(&mut engine));
            // And so does each request from then on; another model runs.
            assert_cut(answer(&mut engine));
            let (_other, path) = model(kind);
            assert_eq!(answer(&mut load(&path, None).expect("whole")).expect("it answers").len(), 8);
        }
    }
}

#[test]
fn a_model_that_is_cut_between_two_requests_gives_an_error_to_the_second() {
    let (_folder, path) = model("f32");
    let mut engine = load(&path, None).expect("it is whole");
    answer(&mut engine).expect("it is whole");
    cut(&path, 4096);
    assert_cut(answer(&mut engine));
}

#[test]
fn a_model_that_is_removed_or_replaced_runs_on() {
    let (folder, path) = model("f32");
    let mut engine = load(&path, None).expect("it is whole");
    let before = answer(&mut engine).expect("it is whole");
    fs::remove_file(&path).expect("it can be removed");
    assert_eq!(answer(&mut engine).expect("its bytes are there"), before);
    let new = folder.path().join("new.gguf");
    fs::write(&new, b"no model").expect("a file");
    fs::rename(&new, &path).expect("it takes the name");
    assert_eq!(answer(&mut engine).expect("its bytes are there"), before);
}

/// Sets a flag at the end of its scope.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_model_that_is_cut_and_made_whole_while_it_is_loaded_is_loaded_or_refused() {
    let (_folder, path) = model("f32");
    let whole = fs::read(&path).expect("a file");
    let expected = answer(&mut load(&path, None).expect("it is whole")).expect("it answers");
    let (is_over, mut n_loaded) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        // Also a panic here ends the writer, for which the scope waits.
        let _end = SetOnDrop(&is_over);
        scope.spawn(|| {
            for i in 0u64.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                cut(&path, i * 4099 % whole.len() as u64);
                fs::write(&path, &whole).expect("it can be written");
                std::thread::sleep(std::time::Duration::from_micros(i * 37 % 3000));
            }
        });
        // On a busy machine the writer may be stopped while the file is cut: then all loads of some time are refused.
        for round in 0..100_000 {
            // What it answers may be of a file that was being written; the process lives.
            if let Ok(mut engine) = load(&path, None) {
                n_loaded += 1;
                drop(answer(&mut engine));
            }
            if round >= 200 && n_loaded > 0 {
                break;
            }
        }
    });
    assert!(n_loaded > 0);
    assert_eq!(answer(&mut load(&path, None).expect("it is whole")).expect("it answers"), expected);
}

#[test]
fn packed_weights_that_are_cut_give_an_error_and_are_made_again() {
    let cache = tempfile::tempdir().expect("a folder");
    let path = real_model("smollm2:135m");
    let mut engine = load(&path, Some(cache.path())).expect("it is whole");
    let expected = answer(&mut engine).expect("it is whole");
    // Who ends waits for what was begun to be kept.
    drop(engine);
    for part in [0, 1, 2] {
        let kept = PackedWeights::list(cache.path());
        let [file] = kept.as_slice() else { panic!("{kept:?}") };
        let mut engine = load(&path, Some(cache.path())).expect("it is whole");
        cut(&file.path, file.bytes * part / 3);
        engine.clear_cache();
        assert_cut(answer(&mut engine));
        drop(engine);
        // Nothing of it is believed by the next one, nor what was computed of it.
        let mut engine = load(&path, Some(cache.path())).expect("it is packed again");
        assert_eq!(answer(&mut engine).expect("it is whole"), expected);
    }
}

#[test]
fn what_was_computed_of_a_cut_model_is_not_cached() {
    let cache = tempfile::tempdir().expect("a folder");
    let (_folder, path) = model("f32");
    let whole = fs::read(&path).expect("a file");
    let expected = answer(&mut load(&path, None).expect("it is whole")).expect("it answers");
    let mut engine = load(&path, Some(cache.path())).expect("it is whole");
    cut(&path, 8192);
    assert_cut(answer(&mut engine));
    drop(engine.flush_cache());
    drop(engine);
    fs::write(&path, whole).expect("it can be written");
    let mut engine = load(&path, Some(cache.path())).expect("it is whole");
    assert_eq!(answer(&mut engine).expect("it answers"), expected);
}
