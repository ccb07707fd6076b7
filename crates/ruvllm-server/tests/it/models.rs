//! Several models in one process: asked for by name, loaded when they are, dropped when they are not.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ruvllm_engine::{Engine, EngineError};
use ruvllm_server::{ModelSource, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Bench, load_options, options, tiny_chat};

/// A model that takes a while to load, and how often it was.
fn slow_source(name: &str, path: &Path, wait: Duration) -> (ModelSource, Arc<AtomicUsize>) {
    let (path, count) = (path.to_owned(), Arc::new(AtomicUsize::new(0)));
    let n_loads = Arc::clone(&count);
    let load = move || {
        count.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(wait);
        Engine::load(&path, &load_options(), &mut |_| {})
    };
    (ModelSource::new(name, Box::new(load)), n_loads)
}

fn states(bench: &Bench) -> Vec<(String, String)> {
    let models = bench.get("/v1/models").ok();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    models["data"].as_array().expect("models").iter().map(|model| (text(&model["id"]), text(&model["state"]))).collect()
}

fn state(bench: &Bench, name: &str) -> String {
    states(bench).into_iter().find(|(id, _)| id == name).map(|(_, state)| state).expect("it is served")
}

fn ask(bench: &Bench, model: &str) -> Value {
    let body = json!({ "model": model, "prompt": "Once", "max_tokens": 4, "seed": 1 });
    let answer = bench.post("/v1/completions", &body).ok();
    assert_eq!(answer["model"], model);
    answer["choices"][0]["text"].clone()
}

#[test]
fn models_are_loaded_when_they_are_asked_for_and_stop_nobody() {
    let (folder, path) = tiny_chat();
    let engine = Engine::load(&path, &load_options(), &mut |_| {}).expect("it loads");
    let (second, n_loads) = slow_source("second", &path, Duration::from_millis(1500));
    let bench = Bench::of(vec![ModelSource::loaded("first", engine), second], options());
    assert_eq!(state(&bench, "second"), "unloaded");
    assert!(bench.get("/v1/models/second").ok()["meta"].is_null());
    std::thread::scope(|scope| {
        // Two ask for it at once: it is loaded once.
        let asked: Vec<_> = (0..2).map(|_| scope.spawn(|| ask(&bench, "second"))).collect();
        while state(&bench, "second") != "loading" {
            std::thread::sleep(Duration::from_millis(5));
        }
        let first = ask(&bench, "first");
        assert_eq!(state(&bench, "second"), "loading", "the first one waited for the second to be loaded");
        // The models are the same file.
        assert!(asked.into_iter().all(|answer| answer.join().expect("an answer") == first));
    });
    assert_eq!(n_loads.load(Ordering::SeqCst), 1);
    assert_eq!(bench.get("/v1/models/second").ok()["meta"]["architecture"], "llama");
    assert_eq!(ask(&bench, "first"), ask(&bench, "second"));
    let refusal = bench.post("/v1/completions", &json!({ "model": "third", "prompt": "x" })).refusal();
    assert_eq!(refusal, "404 the model 'third' is not served here; 'first', 'second' are");
    // Who names none means the first.
    assert!(bench.post("/tokenize", &json!({ "text": "x" })).ok()["count"].as_u64() > Some(0));
    drop(folder);
}

#[test]
fn what_nobody_uses_is_dropped_and_loaded_again() {
    let (folder, path) = tiny_chat();
    let (source, n_loads) = slow_source("tiny", &path, Duration::ZERO);
    let bench = Bench::of(vec![source], ServerOptions { idle_timeout: Some(Duration::from_millis(700)), ..options() });
    let first = ask(&bench, "tiny");
    assert_eq!(bench.metric("ruvllm_model_loaded"), 1.0);
    // While it is used it stays.
    let body = json!({ "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true });
    drop(crate::client::Reply::read(bench.open("/v1/completions", &body)));
    let start = Instant::now();
    while state(&bench, "tiny") != "unloaded" {
        assert!(start.elapsed() < Duration::from_secs(10), "it is kept");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((bench.metric("ruvllm_model_loaded"), bench.metric("ruvllm_kv_blocks")), (0.0, 0.0));
    let computed = bench.metric("ruvllm_computed_tokens_total");
    assert_eq!(ask(&bench, "tiny"), first);
    assert_eq!(n_loads.load(Ordering::SeqCst), 2);
    // Counters go on where they were.
    assert!(bench.metric("ruvllm_computed_tokens_total") > computed && computed > 900.0);
    drop(folder);
}

#[test]
fn memory_has_room_for_so_many() {
    let (folder, path) = tiny_chat();
    let sources = ["a", "b", "c"].map(|name| slow_source(name, &path, Duration::ZERO).0);
    let bench = Bench::of(sources.into(), ServerOptions { models_max: 2, ..options() });
    let loaded = || -> Vec<String> {
        states(&bench).into_iter().filter(|(_, state)| state == "loaded").map(|(name, _)| name).collect()
    };
    ask(&bench, "a");
    ask(&bench, "b");
    assert_eq!(loaded(), ["a", "b"]);
    ask(&bench, "a");
    ask(&bench, "c");
    assert_eq!(loaded(), ["a", "c"]);
    drop(folder);
}

/// Asks for an answer of more bytes than a connection holds: the model is in use until it is read.
fn begin_long(bench: &Bench, model: &str) -> std::net::TcpStream {
    let body = json!({
        "model": model, "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true, "n": 8, "logprobs": 20,
    });
    let open = bench.open("/v1/completions", &body);
    while bench.metric("ruvllm_requests_running") == 0.0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    open
}

fn two_of_which_one_fits(path: &Path, room_wait: Duration) -> Bench {
    let sources = ["a", "b"].map(|name| slow_source(name, path, Duration::ZERO).0);
    let bench = Bench::of(sources.into(), ServerOptions { models_max: 1, room_wait, ..options() });
    ask(&bench, "a");
    bench
}

#[test]
fn who_finds_no_room_waits_until_a_model_is_idle() {
    let (folder, path) = tiny_chat();
    let bench = two_of_which_one_fits(&path, Duration::from_secs(30));
    let open = begin_long(&bench, "a");
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..3).map(|_| scope.spawn(|| ask(&bench, "b"))).collect();
        // Nobody is sent away for another model.
        assert_eq!(crate::client::Reply::read(open).events().len(), 8 * 900 + 8);
        let texts: Vec<Value> = asked.into_iter().map(|answer| answer.join().expect("an answer")).collect();
        assert_eq!(texts[0], texts[2]);
    });
    assert_eq!(states(&bench), [("a", "unloaded"), ("b", "loaded")].map(|(a, b)| (a.to_owned(), b.to_owned())));
    drop(folder);
}

#[test]
fn who_waited_long_enough_for_room_is_told_and_the_model_has_not_failed() {
    let (folder, path) = tiny_chat();
    let bench = two_of_which_one_fits(&path, Duration::from_millis(200));
    let open = begin_long(&bench, "a");
    let refused = bench.post("/v1/completions", &json!({ "model": "b", "prompt": "x" }));
    let line = "503 no room for the model: 1 at once is the most, and others were in use for 0.2 s; try again, or start \
                the server with a larger --models-max";
    assert_eq!((refused.refusal().as_str(), refused.header("retry-after")), (line, Some("1")));
    // Nor does who left have the model dropped that others use next.
    let late = bench.post("/v1/completions", &json!({ "model": "b", "prompt": "x", "timeout_ms": 50 }));
    assert!(late.refusal().starts_with("504 the request's time was over before its model was loaded"), "{}", late.body);
    drop(open);
    bench.wait_until_idle();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((state(&bench, "a").as_str(), state(&bench, "b").as_str()), ("loaded", "unloaded"));
    ask(&bench, "b");
    drop(folder);
}

#[test]
fn a_model_that_cannot_be_loaded_says_why() {
    let (folder, path) = tiny_chat();
    let engine = Engine::load(&path, &load_options(), &mut |_| {}).expect("it loads");
    let load = || -> Result<Engine, EngineError> {
        Engine::load("/nothing/there.gguf".as_ref(), &load_options(), &mut |_| {})
    };
    let gone = ModelSource::new("gone", Box::new(load));
    let bench = Bench::of(vec![ModelSource::loaded("first", engine), gone], options());
    let refused = bench.post("/v1/completions", &json!({ "model": "gone", "prompt": "x" }));
    assert!(refused.refusal().starts_with("503 the model cannot be loaded: "), "{}", refused.body);
    assert_eq!(state(&bench, "gone"), "failed");
    ask(&bench, "first");
    drop(folder);
}

/// A model whose requests overlap without a gap makes room for another one that is waited for.
#[test]
fn models_that_need_each_others_memory_take_turns() {
    let (folder, path) = tiny_chat();
    let (first, _) = slow_source("first", &path, Duration::ZERO);
    let (second, _) = slow_source("second", &path, Duration::ZERO);
    let patience = Duration::from_millis(300);
    let options = ServerOptions { models_max: 1, room_patience: patience, ..options() };
    let bench = Bench::of(vec![first, second], options);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ask_on = || {
            let mut n_answered = 0;
            while !stop.load(Ordering::SeqCst) {
                let body = json!({ "model": "first", "prompt": "Once", "max_tokens": 300, "ignore_eos": true });
                bench.post("/v1/completions", &body).ok();
                n_answered += 1;
            }
            n_answered
        };
        let busy: Vec<_> = (0..3).map(|_| scope.spawn(ask_on)).collect();
        while state(&bench, "first") != "loaded" {
            std::thread::sleep(Duration::from_millis(5));
        }
        let start = Instant::now();
        ask(&bench, "second");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        ask(&bench, "second");
        stop.store(true, Ordering::SeqCst);
        assert!(busy.into_iter().all(|busy| busy.join().expect("answers") > 0));
    });
    drop(folder);
}
