//! Learning over HTTP: judged, corrected, looked at, switched off and forgotten, each key's for itself.

use std::path::Path;

use ruvllm_engine::learning::LearningOptions;
use ruvllm_server::{KeyOptions, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Bench, options};

fn learning(folder: &Path) -> ServerOptions {
    let learning = LearningOptions { folder: Some(folder.to_owned()), ..LearningOptions::default() };
    ServerOptions { learning: Some(learning), ..options() }
}

fn ask(bench: &Bench, question: &str, headers: &[(&str, &str)]) -> Value {
    let messages = json!([{ "role": "user", "content": question }]);
    let body = json!({ "messages": messages, "max_tokens": 16, "temperature": 0 });
    bench.send("/v1/chat/completions", &body.to_string(), headers).ok()
}

fn said(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("a text").trim()
}

#[test]
fn answers_are_judged_and_corrected_and_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = Bench::tiny(learning(folder.path()));
    let status = || bench.get("/v1/learning").ok();
    assert_eq!((&status()["enabled"], &status()["entries"]), (&true.into(), &0.into()));
    let first = ask(&bench, "Who is Ann?", &[]);
    let feedback = |body: Value| bench.post("/v1/feedback", &body);
    let reply = feedback(json!({ "id": first["id"], "correction": "A smith." }));
    assert_eq!(reply.ok()["learned"], true);
    assert_eq!(said(&ask(&bench, "Who is Ann?", &[])), "A smith.");
    assert!(status()["corrections"] == 1 && status()["entries"].as_u64() > Some(0), "{}", status());
    let unknown = feedback(json!({ "id": first["id"], "score": 1 }));
    assert_eq!(unknown.status, 404, "it was corrected already");
    let second = ask(&bench, "Where is Ulm?", &[]);
    assert_eq!(feedback(json!({ "id": second["id"], "score": 0 })).ok()["learned"], true);
    assert_ne!(said(&ask(&bench, "Where is Ulm?", &[])), said(&second));
    assert_eq!(feedback(json!({ "id": second["id"] })).status, 400);
    let told = bench.post("/v1/memory", &json!({ "question": "When is Easter?", "answer": "In May." })).ok();
    assert_eq!(told["corrections"], 3);
    assert_eq!(said(&ask(&bench, "When is Easter?", &[])), "In May.");
    // Switched off, answers are those of the model.
    assert_eq!(bench.post("/v1/learning", &json!({ "enabled": false })).ok()["enabled"], false);
    assert_eq!(said(&ask(&bench, "Who is Ann?", &[])), said(&first));
    bench.post("/v1/learning", &json!({ "enabled": true })).ok();
    assert_eq!(said(&ask(&bench, "Who is Ann?", &[])), "A smith.");
    // It is there again after a restart.
    drop(bench.join());
    let bench = Bench::tiny(learning(folder.path()));
    assert_eq!(said(&ask(&bench, "Who is Ann?", &[])), "A smith.");
    let forgotten = bench.ask("DELETE", "/v1/memory", &[]).ok();
    assert_eq!((&forgotten["corrections"], &forgotten["entries"]), (&0.into(), &0.into()));
    assert_eq!(said(&ask(&bench, "Who is Ann?", &[])), said(&first));
}

#[test]
fn keys_learn_for_themselves_and_a_server_that_learns_nothing_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let lines = ["ann", "bob", "cid"].map(|name| format!("{name} key-of-{name}")).to_vec();
    let keys = KeyOptions { file: None, lines };
    let bench = Bench::tiny(ServerOptions { keys, ..learning(folder.path()) });
    let [ann, bob, cid] =
        ["Bearer key-of-ann", "Bearer key-of-bob", "Bearer key-of-cid"].map(|key| [("authorization", key)]);
    let before = ask(&bench, "Who is Ann?", &bob);
    let body = json!({ "question": "Who is Ann?", "answer": "A smith." }).to_string();
    bench.send("/v1/memory", &body, &ann).ok();
    assert_eq!(said(&ask(&bench, "Who is Ann?", &ann)), "A smith.");
    // Nobody's first answer is changed by what others taught; a second one knows the first one's prompt.
    assert_eq!(said(&ask(&bench, "Who is Ann?", &cid)), said(&before));
    let body = json!({ "id": before["id"], "score": 1 }).to_string();
    assert_eq!(bench.send("/v1/feedback", &body, &ann).status, 404, "an answer of another key");
    bench.send("/v1/feedback", &body, &bob).ok();
    assert_eq!(bench.get("/v1/learning").status, 401);
    let off = Bench::tiny(options());
    assert_eq!(off.get("/v1/learning").status, 404);
    assert_eq!(off.post("/v1/feedback", &json!({ "id": "x", "score": 1 })).status, 404);
}
