//! A server without connections: the answers of one with them, ended by dropping them, and what was learned as a file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::Request;
use bytes::Bytes;
use ruvllm_engine::{Engine, Readout};
use ruvllm_learning::{LearningOptions, SigningKey};
use ruvllm_server::{AnswerBody, Embedded, EmbeddedCall, ModelSource, ServerOptions};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::client::{Bench, load_options, options, tiny_chat};

const CHAT: &str = "/v1/chat/completions";

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads")
}

async fn start(options: ServerOptions) -> Embedded {
    let (folder, path) = tiny_chat();
    let engine = Engine::load(&path, &load_options(), &mut |_| {}).expect("it loads");
    drop(folder);
    let embedded = Embedded::start(vec![ModelSource::loaded("tiny", engine)], options).expect("it starts");
    tokio::task::block_in_place(|| embedded.prepare()).expect("it is ready to learn");
    embedded
}

async fn open(embedded: &Embedded, path: &str, body: &Value) -> (u16, AnswerBody) {
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(Bytes::from(body.to_string())).expect("a request");
    let response = embedded.call(request).await;
    (response.status().as_u16(), response.into_body())
}

async fn read(mut body: AnswerBody) -> String {
    let mut all = Vec::new();
    while let Some(bytes) = body.next(1 << 16).await {
        all.extend_from_slice(&bytes);
    }
    String::from_utf8(all).expect("answers are UTF-8")
}

async fn post(embedded: &Embedded, path: &str, body: &Value) -> (u16, Value) {
    let (status, body) = open(embedded, path, body).await;
    (status, serde_json::from_str(&read(body).await).expect("JSON"))
}

async fn metric(embedded: &Embedded, name: &str) -> f64 {
    let request = Request::get("/metrics").body(Bytes::new()).expect("a request");
    let text = read(embedded.call(request).await.into_body()).await;
    let of_name = text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    of_name.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn chat(n_tokens: usize) -> Value {
    json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": n_tokens, "temperature": 0 })
}

#[test]
fn answers_are_those_of_a_socket() {
    let bench = Bench::tiny(options());
    let expected = bench.post(CHAT, &chat(8)).ok();
    let refusal = bench.post(CHAT, &json!({ "messages": "a" })).json();
    let stream = |mut body: Value| {
        body["stream"] = json!(true);
        body
    };
    let n_events = bench.post(CHAT, &stream(chat(8))).events().len();
    runtime().block_on(async {
        let embedded = start(options()).await;
        let (status, answer) = post(&embedded, CHAT, &chat(8)).await;
        assert_eq!((status, &answer["choices"], &answer["usage"]), (200, &expected["choices"], &expected["usage"]));
        assert_eq!(post(&embedded, CHAT, &json!({ "messages": "a" })).await, (400, refusal));
        let (status, body) = open(&embedded, CHAT, &stream(chat(8))).await;
        let text = read(body).await;
        assert_eq!((status, text.matches("data: {").count()), (200, n_events), "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        let engines = tokio::task::block_in_place(|| embedded.stop(Duration::ZERO)).expect("it stops");
        assert_eq!(engines.len(), 1);
        assert_eq!(post(&embedded, CHAT, &chat(1)).await.0, 503, "it takes nothing more");
    });
}

/// Waits until so many requests run.
async fn running(embedded: &Embedded, n: f64) {
    let start = Instant::now();
    while metric(embedded, "ruvllm_requests_running").await != n {
        assert!(start.elapsed() < Duration::from_secs(20), "not {n} requests run");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_dropped_answer_frees_its_place() {
    runtime().block_on(async {
        let embedded = start(options()).await;
        let mut body = chat(900);
        (body["stream"], body["ignore_eos"]) = (json!(true), json!(true));
        let (_, mut answer) = open(&embedded, CHAT, &body).await;
        assert!(answer.next(1).await.is_some());
        // The first piece is there before the engine has begun.
        running(&embedded, 1.0).await;
        drop(answer);
        running(&embedded, 0.0).await;
        let n_written = metric(&embedded, "ruvllm_generated_tokens_total").await;
        assert!(n_written < 900.0, "{n_written} tokens were written");
    });
}

#[test]
fn a_call_is_ended_from_another_thread() {
    runtime().block_on(async {
        let embedded = Arc::new(start(options()).await);
        let mut body = chat(900);
        (body["stream"], body["ignore_eos"]) = (json!(true), json!(true));
        let request = Request::post(CHAT).header("content-type", "application/json");
        let request = request.body(Bytes::from(body.to_string())).expect("a request");
        let call = Arc::new(EmbeddedCall::new(Arc::clone(&embedded), request));
        assert_eq!(call.head().await.expect("it is not cancelled").status, 200);
        assert!(call.head().await.is_none(), "it is begun once");
        assert!(call.next(1).await.is_some());
        let of_task = Arc::clone(&call);
        let reading = tokio::spawn(async move { while of_task.next(1).await.is_some() {} });
        call.cancel();
        tokio::time::timeout(Duration::from_secs(5), reading).await.expect("it ends").expect("no panic");
        assert!(call.next(1).await.is_none());
    });
}

#[test]
fn logits_are_those_of_the_engine() {
    let (folder, path) = tiny_chat();
    let mut engine = Engine::load(&path, &load_options(), &mut |_| {}).expect("it loads");
    drop(folder);
    let tokens: Vec<u32> = (0..130).map(|i| i * 7 % 250).collect();
    let mut expected = Vec::new();
    let mut sink = |values: &[f32]| {
        expected.extend_from_slice(values);
        Ok(())
    };
    engine.logits(&tokens, 512, &mut sink).expect("they fit");
    let n_vocab = engine.info().n_vocab;
    runtime().block_on(async {
        let embedded = start(options()).await;
        let all = embedded.logits(None, tokens.clone(), usize::MAX).await.expect("they fit");
        assert!(all == expected, "other bits than the engine's");
        let last = embedded.logits(Some("tiny"), tokens.clone(), 70).await.expect("they fit");
        assert!(last[..] == expected[60 * n_vocab..], "other bits than the engine's");
        let refused = |tokens: Vec<u32>| async { embedded.logits(None, tokens, 1).await.expect_err("it is refused") };
        assert_eq!(refused(vec![]).await.message, "no tokens to compute; the list is empty");
        assert!(refused(vec![1 << 20]).await.message.starts_with("token id 1048576 is outside the vocabulary"));
        assert_eq!(refused(vec![1; 2000]).await.code, Some("context_length_exceeded"));
        let error = embedded.logits(Some("other"), tokens, 1).await.expect_err("it is not served");
        assert_eq!(error.status, 404);
    });
    let readout = Readout::Logits { n_last: 2 };
    assert_eq!(engine.read_out(&[1, 2, 3], readout).expect("they fit").len(), 2 * n_vocab);
}

#[test]
fn what_was_learned_goes_from_one_to_another() {
    let question = json!({ "question": "Who is Ann?", "answer": "A smith." });
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let learning = |at: usize| {
        let learning = LearningOptions { folder: Some(folders[at].path().to_owned()), ..LearningOptions::default() };
        ServerOptions { learning: Some(learning), ..options() }
    };
    runtime().block_on(async {
        let (one, other) = (start(learning(0)).await, start(learning(1)).await);
        assert_eq!(post(&one, "/v1/memory", &question).await.0, 200);
        let key = SigningKey::generate().expect("random bytes");
        let public = key.public();
        let file = one.export_learned(key).await.expect("it learns");
        let error = other.import_learned(file.clone(), vec![]).await.expect_err("nobody is trusted");
        assert_eq!(error.status, 400);
        other.import_learned(file, vec![public]).await.expect("it is trusted");
        let messages = json!([{ "role": "user", "content": "Who is Ann?" }]);
        let body = json!({ "messages": messages, "max_tokens": 16, "temperature": 0 });
        let (_, answer) = post(&other, CHAT, &body).await;
        assert_eq!(answer["choices"][0]["message"]["content"].as_str().map(str::trim), Some("A smith."), "{answer}");
        let plain = start(options()).await;
        let key = SigningKey::generate().expect("random bytes");
        let error = plain.export_learned(key).await.expect_err("it learns nothing");
        assert_eq!(error.status, 404);
    });
}

#[test]
fn a_model_that_is_loaded_when_the_server_stops_answers_nobody() {
    let (_folder, path) = tiny_chat();
    let engine = Engine::load(&path, &load_options(), &mut |_| {}).expect("it loads");
    let (begun, loading) = std::sync::mpsc::channel();
    let (stopped, go_on) = std::sync::mpsc::channel::<()>();
    let (begun, go_on) = (std::sync::Mutex::new(begun), std::sync::Mutex::new(go_on));
    let late = ModelSource::new(
        "late",
        Box::new(move || {
            begun.lock().expect("no panic").send(()).expect("somebody waits");
            go_on.lock().expect("no panic").recv_timeout(Duration::from_secs(20)).expect("it stops");
            Engine::load(&path, &load_options(), &mut |_| {})
        }),
    );
    runtime().block_on(async {
        let sources = vec![ModelSource::loaded("tiny", engine), late];
        let embedded = Arc::new(Embedded::start(sources, options()).expect("it starts"));
        let asking = Arc::clone(&embedded);
        let body = json!({ "model": "late", "prompt": "a", "max_tokens": 8 });
        let answer = tokio::spawn(async move { post(&asking, "/v1/completions", &body).await });
        tokio::task::block_in_place(|| {
            loading.recv_timeout(Duration::from_secs(20)).expect("it is loaded");
            assert_eq!(embedded.stop(Duration::ZERO).expect("it stops").len(), 1);
            stopped.send(()).expect("the loader waits");
        });
        let (status, answer) = answer.await.expect("no panic");
        assert_eq!(status, 503, "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|line| line.contains("stopping")), "{answer}");
    });
}
