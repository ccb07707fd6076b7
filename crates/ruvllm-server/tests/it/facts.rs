//! What a key told the model, as a list: corrections and facts, with their questions where those were kept.

use std::path::Path;

use ruvllm_learning::LearningOptions;
use ruvllm_server::ServerOptions;
use serde_json::{Value, json};

use crate::client::{Bench, options};

fn bench(folder: &Path) -> Bench {
    let learning = LearningOptions { folder: Some(folder.to_owned()), ..LearningOptions::default() };
    Bench::tiny(ServerOptions { learning: Some(learning), ..options() })
}

fn facts(bench: &Bench) -> Vec<Value> {
    bench.get("/v1/memory").ok()["data"].as_array().expect("a list").clone()
}

fn change(bench: &Bench, body: Value) -> Value {
    bench.post("/v1/learning", &body).ok()
}

#[test]
fn facts_are_listed_with_what_is_known_of_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = bench(folder.path());
    assert_eq!(facts(&bench), Vec::<Value>::new());
    let plain = bench.post("/v1/memory", &json!({ "question": "Who is Ann?", "answer": "A smith." })).ok();
    assert_eq!(plain["pattern"], Value::Null);
    let wrong = json!({ "question": "Who is Bob?", "answer": "A king.", "wrong": true, "pattern": true });
    let wrong = bench.post("/v1/memory", &wrong).ok();
    let body = json!({ "messages": [{ "role": "user", "content": "Where is Ulm?" }], "max_tokens": 8 });
    let answer = bench.post("/v1/chat/completions", &body).ok();
    let corrected = json!({ "id": answer["id"], "correction": "On the Danube." });
    let corrected = bench.post("/v1/feedback", &corrected).ok();
    let of = |fact: &Value| json!([fact["item"], fact["question"], fact["answer"], fact["right"], fact["pattern"]]);
    let listed: Vec<Value> = facts(&bench).iter().map(of).collect();
    let expected = [
        json!([corrected["item"], "Where is Ulm?", "On the Danube.", true, corrected["pattern"]]),
        json!([wrong["item"], "Who is Bob?", "A king.", false, wrong["pattern"]]),
        json!([plain["item"], null, "A smith.", true, null]),
    ];
    assert_eq!(listed, expected);
    let patterns = bench.get("/v1/patterns").ok();
    assert_eq!((&patterns["count"], &patterns["data"][1]["verdict"]), (&2.into(), &"failure".into()));
    // What is undone is gone, with its pattern.
    change(&bench, json!({ "action": "undo", "item": wrong["item"] }));
    let listed: Vec<Value> = facts(&bench).iter().map(of).collect();
    assert_eq!(listed, [expected[0].clone(), expected[2].clone()]);
    assert_eq!(bench.get("/v1/patterns").ok()["count"], 1);
    bench.ask("DELETE", "/v1/memory", &[]).ok();
    assert_eq!(facts(&bench), Vec::<Value>::new());
    assert_eq!(Bench::tiny(options()).get("/v1/memory").status, 404);
}

#[test]
fn facts_follow_the_generation_that_was_gone_back_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = bench(folder.path());
    let tell = |question: &str, answer: &str| {
        bench.post("/v1/memory", &json!({ "question": question, "answer": answer })).ok();
    };
    let answers = || facts(&bench).iter().map(|fact| fact["answer"].clone()).collect::<Vec<_>>();
    tell("Who is Ann?", "A smith.");
    let first = change(&bench, json!({ "action": "publish" }))["generation"].clone();
    tell("Who is Bob?", "A king.");
    assert_eq!(answers(), ["A king.", "A smith."]);
    change(&bench, json!({ "action": "rollback", "generation": first }));
    assert_eq!(answers(), ["A smith."]);
    tell("Who is Cid?", "A fool.");
    assert_eq!(answers(), ["A fool.", "A smith."]);
    change(&bench, json!({ "action": "rollback", "generation": 0 }));
    assert_eq!(answers(), Vec::<Value>::new());
}
