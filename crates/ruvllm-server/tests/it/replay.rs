//! Recorded requests, run again by the server that answered them.

use ruvllm_learning::LearningOptions;
use ruvllm_server::{KeyOptions, ServerOptions, WitnessOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Bench, Reply, options};

const CHAT: &str = "/v1/chat/completions";

/// A server with a log in a folder of its own.
fn bench(keeps_tokens: bool, keys: &[&str], learns: bool) -> (TempDir, Bench) {
    let folder = tempfile::tempdir().expect("a folder");
    let witness = WitnessOptions { folder: folder.path().join("log"), keeps_tokens, ..WitnessOptions::default() };
    let keys = KeyOptions { lines: keys.iter().map(|&line| line.to_owned()).collect(), ..KeyOptions::default() };
    let learned = LearningOptions { folder: Some(folder.path().join("learned")), ..LearningOptions::default() };
    let learning = learns.then_some(learned);
    let bench = Bench::tiny(ServerOptions { witness: Some(witness), keys, learning, ..options() });
    (folder, bench)
}

fn chat(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Name three rivers." }], "max_tokens": 8 });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

fn replay(bench: &Bench, id: &Value) -> Reply {
    bench.post("/v1/witness/replay", &json!({ "request": id }))
}

#[test]
fn answers_come_out_the_same_and_leave_no_record() {
    let (_folder, bench) = bench(true, &[], false);
    let schema = json!({ "type": "json_schema", "json_schema": { "schema": { "enum": ["one", "two"] } } });
    for more in [
        json!({}),
        json!({ "temperature": 1.5, "top_k": 0 }),
        json!({ "temperature": 1, "stop": ["e"], "repeat_penalty": 1.3, "logit_bias": { "5": -3 } }),
        json!({ "response_format": schema }),
    ] {
        let answer = bench.post(CHAT, &chat(more)).ok();
        let replayed = replay(&bench, &answer["id"]).ok();
        assert_eq!((&replayed["same"], &replayed["other_program"]), (&true.into(), &Value::Null), "{replayed}");
        assert_eq!(replayed["n_tokens"], answer["usage"]["completion_tokens"]);
        assert_eq!(replayed["finish"], replayed["recorded_finish"]);
    }
    // Each of several answers has a record of its own, by a number that counts up.
    bench.post("/v1/completions", &json!({ "prompt": "a b", "n": 2, "max_tokens": 5, "temperature": 2 })).ok();
    let records = bench.get("/v1/witness").ok()["data"].as_array().expect("a list").clone();
    assert_eq!(records.len(), 6, "replays are not on record");
    for record in &records[..2] {
        assert_eq!(replay(&bench, &record["request"]).ok()["same"], true);
    }
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let (_folder, bench) = bench(false, &[], false);
    let answer = bench.post(CHAT, &chat(json!({}))).ok();
    let refusal = replay(&bench, &answer["id"]).refusal();
    assert!(refusal.starts_with("400 it cannot be replayed: its tokens were not kept"), "{refusal}");
    assert!(replay(&bench, &json!("0000000000000001")).refusal().starts_with("404 there is no answer to the request"));
    assert!(replay(&bench, &json!("nonsense")).refusal().starts_with("400 'nonsense' is no request"));
    let none = Bench::tiny(options());
    assert!(replay(&none, &answer["id"]).refusal().starts_with("404 this server keeps no witness log"));
}

#[test]
fn answers_with_what_was_learned_are_not_replayed_and_those_without_are() {
    let (_folder, bench) = bench(true, &[], true);
    let learned = bench.post(CHAT, &chat(json!({}))).ok();
    let refusal = replay(&bench, &learned["id"]).refusal();
    assert!(refusal.contains("with what was learned"), "{refusal}");
    bench.post("/v1/learning", &json!({ "enabled": false })).ok();
    let alone = bench.post(CHAT, &chat(json!({ "temperature": 1 }))).ok();
    assert_eq!(replay(&bench, &alone["id"]).ok()["same"], true);
}

#[test]
fn a_key_replays_its_own_answers_only() {
    let (_folder, bench) = bench(true, &["ann key-of-ann", "bob key-of-bob"], false);
    let as_key = |key: &str, path: &str, body: Value| {
        bench.send(path, body.to_string(), &[("authorization", &format!("Bearer {key}"))])
    };
    let answer = as_key("key-of-ann", CHAT, chat(json!({}))).ok();
    let asked = json!({ "request": answer["id"] });
    assert_eq!(as_key("key-of-ann", "/v1/witness/replay", asked.clone()).ok()["same"], true);
    assert_eq!(as_key("key-of-bob", "/v1/witness/replay", asked).status, 404);
}
