//! Learning over HTTP: judged, corrected, looked at, switched off and forgotten, each key's for itself.

use std::path::Path;
use std::time::{Duration, Instant};

use ruvllm_learning::{BackgroundOptions, LearningOptions, MaintenanceOptions};
use ruvllm_server::{KeyOptions, ServerOptions, WitnessOptions};
use ruvllm_sona::policy::{NewPolicy, PolicyKind, PolicyLimits, PolicyStore as _, StoredPolicies};
use ruvllm_witness::open_store;
use serde_json::{Value, json};

use crate::client::{Bench, options};

fn learning(folder: &Path) -> ServerOptions {
    let learning = LearningOptions { folder: Some(folder.to_owned()), ..LearningOptions::default() };
    ServerOptions { learning: Some(learning), ..options() }
}

fn ask(bench: &Bench, question: &str, headers: &[(&str, &str)]) -> Value {
    let messages = json!([{ "role": "user", "content": question }]);
    let body = json!({ "messages": messages, "max_tokens": 16, "temperature": 0 });
    bench.send("/v1/chat/completions", body.to_string(), headers).ok()
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

#[test]
fn judged_answers_become_patterns_that_stand_in_prompts() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = Bench::tiny(learning(folder.path()));
    let patterns = || bench.get("/v1/patterns").ok();
    assert_eq!(patterns(), json!({ "object": "list", "count": 0, "data": [] }));
    let call = json!([{ "id": "c1", "type": "function", "function": { "name": "look", "arguments": "{\"up\":1}" } }]);
    let messages = json!([
        { "role": "user", "content": "Who is Ann?" },
        { "role": "assistant", "tool_calls": call },
        { "role": "tool", "tool_call_id": "c1", "content": "Ann: smith" },
    ]);
    let body =
        |patterns: usize| json!({ "messages": messages, "max_tokens": 8, "temperature": 0, "patterns": patterns });
    let answer = bench.post("/v1/chat/completions", &body(3)).ok();
    let judged = bench.post("/v1/feedback", &json!({ "id": answer["id"], "score": 0.9 })).ok();
    let listed = patterns();
    let first = &listed["data"][0];
    assert_eq!(
        (&listed["count"], &first["id"], &first["task"]),
        (&1.into(), &judged["pattern"], &"Who is Ann?".into())
    );
    assert_eq!((&first["verdict"], &first["items"]), (&"success".into(), &json!([judged["item"]])));
    assert_eq!(first["steps"][0], json!({ "action": "look {\"up\":1}", "outcome": "Ann: smith" }));
    assert_eq!(first["steps"][1]["action"], said(&answer));
    // It stands in the prompt of who asks for it and of nobody else, and moves with what comes of that.
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().expect("a count");
    let (with, without) =
        (bench.post("/v1/chat/completions", &body(1)).ok(), bench.post("/v1/chat/completions", &body(0)).ok());
    assert!(tokens(&with) > tokens(&without) + 10 && tokens(&without) == tokens(&answer), "{with} {without}");
    let noted = bench.post("/v1/feedback", &json!({ "id": with["id"], "correction": "A smith." })).ok();
    let of = |id: &Value| {
        let listed = patterns();
        listed["data"].as_array().expect("a list").iter().find(|pattern| pattern["id"] == *id).cloned()
    };
    let used = of(&judged["pattern"]).expect("it is there");
    assert!(used["uses"] == 1 && used["quality"].as_f64() < Some(0.8), "the answer with it was wrong: {used}");
    assert_eq!(of(&noted["pattern"]).expect("it is kept")["steps"][1]["action"], "A smith.");
    // The other two APIs have it too.
    let asked = json!({ "input": "Who is Ann?", "max_output_tokens": 4, "patterns": 2 });
    let sum = |answer: Value, names: [&str; 2]| -> u64 {
        names.iter().filter_map(|name| answer["usage"][name].as_u64()).sum()
    };
    let told = sum(bench.post("/v1/responses", &asked).ok(), ["input_tokens", ""]);
    let asked = json!({ "messages": [{ "role": "user", "content": "Who is Ann?" }], "max_tokens": 4, "patterns": 2 });
    assert_eq!(told, sum(bench.post("/v1/messages", &asked).ok(), ["input_tokens", "cache_read_input_tokens"]));
    assert!(told > tokens(&without), "{told}");
    // Undone with the item it came from.
    bench.post("/v1/learning", &json!({ "action": "undo", "item": judged["item"] })).ok();
    assert_eq!((of(&judged["pattern"]), &patterns()["count"]), (None, &1.into()));
    // What a program puts there is found, and stays over a restart.
    let own = json!({ "task": "Write a poem", "steps": [{ "action": "count syllables" }], "verdict": "failure", "quality": 0.1 });
    let own = bench.post("/v1/patterns", &own).ok();
    drop(bench.join());
    let bench = Bench::tiny(learning(folder.path()));
    let search = |body: Value| bench.post("/v1/patterns/search", &body).ok();
    let found = search(json!({ "task": "Write a poem", "limit": 1 }));
    assert_eq!((&found["data"][0]["id"], &found["data"][0]["verdict"]), (&own["id"], &"failure".into()));
    assert!(found["data"][0]["similarity"].as_f64() > Some(0.99), "{found}");
    assert_eq!(search(json!({ "task": "Write a poem", "verdicts": ["success"] }))["count"], 1);
    let path = format!("/v1/patterns/{}", own["id"]);
    assert_eq!(bench.ask("DELETE", &path, &[]).ok()["deleted"], true);
    assert_eq!((bench.ask("DELETE", &path, &[]).status, bench.ask("DELETE", "/v1/patterns/x", &[]).status), (404, 404));
    bench.ask("DELETE", "/v1/memory", &[]).ok();
    assert_eq!(bench.get("/v1/patterns").ok()["count"], 0);
    // What does not fit is told.
    assert_eq!(bench.post("/v1/patterns", &json!({ "task": "" })).status, 400);
    let long = json!({ "task": "a", "steps": [{ "action": "x".repeat(70_000) }] });
    assert_eq!(bench.post("/v1/patterns", &long).status, 400);
    let off = Bench::tiny(options());
    assert_eq!(off.post("/v1/chat/completions", &body(1)).status, 404);
    assert_eq!(off.post("/v1/chat/completions", &body(0)).status, 200);
}

/// A server that hears two prompts and judges the first answer, or not; returns its item.
fn hear(bench: &Bench, is_judged: bool) -> Option<u64> {
    let first = ask(bench, "Who is Ann?", &[]);
    let judge = |id: &Value, score: f64| bench.post("/v1/feedback", &json!({ "id": id, "score": score })).ok();
    let item = is_judged.then(|| judge(&first["id"], 1.0)["item"].as_u64().expect("an item"));
    ask(bench, "Where is Ulm, and what is it known for?", &[]);
    let body = json!({ "question": "When is Easter?", "answer": "In May." });
    bench.post("/v1/memory", &body).ok();
    item
}

#[test]
fn what_is_undone_was_never_heard_and_generations_come_back() {
    let [one, two] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let (bench, never) = (Bench::tiny(learning(one.path())), Bench::tiny(learning(two.path())));
    let item = hear(&bench, true).expect("an item");
    hear(&never, false);
    let change = |bench: &Bench, body: Value| bench.post("/v1/learning", &body);
    let digest = |bench: &Bench| bench.get("/v1/learning").ok()["digest"].clone();
    assert_ne!(digest(&bench), digest(&never));
    let published = change(&bench, json!({ "action": "publish", "why": "it was good" })).ok();
    assert_eq!((&published["generation"], &published["generations"][0]["why"]), (&1.into(), &"it was good".into()));
    let (known, said) = (digest(&bench), |bench: &Bench| {
        change(bench, json!({ "action": "disable" })).ok();
        let base = said(&ask(bench, "Tell me of Ann.", &[])).to_owned();
        change(bench, json!({ "action": "enable" })).ok();
        (base, said(&ask(bench, "Tell me of Ann.", &[])).to_owned())
    });
    let undone = change(&bench, json!({ "action": "undo", "item": item })).ok();
    assert_eq!(undone["digest"], digest(&never), "{undone}");
    assert_eq!(said(&bench), said(&never));
    let items = undone["items"].as_array().expect("items");
    assert!(items.iter().any(|one| one["item"] == item && one["kind"] == "undone"), "{undone}");
    assert_eq!(items[0]["kind"], "took_back");
    // Undone in the generation too: what is known there now never knew it.
    let twice = change(&bench, json!({ "action": "undo", "item": item }));
    assert_eq!((twice.status, &twice.json()["error"]["param"]), (400, &"item".into()));
    assert_eq!(change(&bench, json!({ "action": "undo" })).status, 400);
    assert_eq!(change(&bench, json!({ "action": "rollback", "generation": 9 })).status, 400);
    assert_eq!(change(&bench, json!({ "action": "undo", "enabled": true })).status, 400);
    // Answers of a generation come back to the bit.
    let second = change(&bench, json!({ "action": "publish" })).ok();
    let known_then = second["digest"].clone();
    assert_ne!(known_then, known);
    let body = json!({ "question": "When is Easter?", "answer": "In June." });
    bench.post("/v1/memory", &body).ok();
    assert_eq!(self::said(&ask(&bench, "When is Easter?", &[])), "In June.");
    let back = change(&bench, json!({ "action": "rollback", "generation": second["generation"] })).ok();
    assert_eq!((&back["digest"], &back["generation"]), (&known_then, &second["generation"]));
    assert_eq!(self::said(&ask(&bench, "When is Easter?", &[])), "In May.");
    // The log outlives the server, and says what a server that was never told knows.
    let (before, log) = (digest(&bench), bench.get("/v1/learning").ok()["items"].clone());
    drop(bench.join());
    let bench = Bench::tiny(learning(one.path()));
    assert_eq!((digest(&bench), bench.get("/v1/learning").ok()["items"].clone()), (before, log));
}

#[test]
fn what_the_gate_is_sure_of_is_published_and_the_rest_is_taken_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = learning(folder.path());
    let maintenance = MaintenanceOptions {
        background: Some(BackgroundOptions { n_tokens: 256, interval: Duration::from_secs(1), ..Default::default() }),
        evaluate_every: Some(Duration::from_secs(2)),
        evaluate_tokens: 256,
        ..MaintenanceOptions::default()
    };
    options.learning = options.learning.map(|learning| LearningOptions { maintenance: Some(maintenance), ..learning });
    // An operator's word on how much of what MicroLoRA learned is held.
    let witness = WitnessOptions { folder: folder.path().join("log"), ..WitnessOptions::default() };
    {
        let store = open_store(&witness).expect("a store");
        let policies = StoredPolicies::open(store, PolicyLimits::default()).expect("policies");
        let said = NewPolicy::new(PolicyKind::Ewc, "", &json!({ "strength": 7 })).expect("JSON").by_operator();
        policies.put(said, 1).expect("room");
    }
    options.witness = Some(witness);
    let bench = Bench::tiny(options);
    // Prompts of one kind: what is learned of most says what the others are.
    for i in 0..50 {
        let words: String = (0..90).map(|j| format!("{} ", ["alpha", "beta", "gamma", "delta"][(j + i) % 4])).collect();
        let body = json!({ "prompt": format!("{i}: {words}"), "max_tokens": 1 });
        bench.post("/v1/completions", &body).ok();
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = bench.get("/v1/learning").ok();
        let items = status["items"].as_array().expect("items").iter();
        let kinds = items.clone().map(|item| &item["kind"]);
        let merged: Vec<_> = items.filter(|item| item["kind"] == "consolidated").collect();
        assert!(merged.iter().all(|item| item["strength"] == 7.0), "{status}");
        if status["generation"] != 0 && !merged.is_empty() {
            let generation = &status["generations"][0];
            assert!(generation["figures"]["held back change"].as_f64() < Some(0.0), "{generation}");
            assert_eq!(status["judged"]["verdict"], "published");
            assert!(kinds.into_iter().any(|kind| kind == "held_back"), "{status}");
            break;
        }
        assert!(kinds.into_iter().all(|kind| kind != "discarded"), "{status}");
        assert!(Instant::now() < deadline, "nothing was published: {status}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
