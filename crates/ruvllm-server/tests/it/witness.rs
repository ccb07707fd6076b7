//! The witness log behind the APIs: what each answer leaves, who sees it, and how it goes away.

use std::sync::Arc;

use ruvllm_engine::{AdapterSet, Engine};
use ruvllm_server::{KeyOptions, ServerOptions, WitnessOptions};
use ruvllm_sona::policy::{NewPolicy, PolicyKind, PolicyLimits, PolicyStore as _, StoredPolicies};
use ruvllm_sona::store::Store;
use ruvllm_sona::witness::{Event, Query, Served, search, verify};
use ruvllm_witness::open_store;
use ruvllm_witness::replay;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Bench, Reply, load_options, options, tiny_chat};

/// A server with a log in a folder of its own.
fn bench(keeps_tokens: bool, keys: &[&str]) -> (TempDir, WitnessOptions, Bench) {
    let folder = tempfile::tempdir().expect("a folder");
    let witness = WitnessOptions {
        folder: folder.path().join("log"),
        keeps_tokens,
        syncs_each_batch: true,
        ..WitnessOptions::default()
    };
    let keys = KeyOptions { lines: keys.iter().map(|&line| line.to_owned()).collect(), ..KeyOptions::default() };
    let bench = Bench::tiny(ServerOptions { witness: Some(witness.clone()), keys, ..options() });
    (folder, witness, bench)
}

fn served(store: &Arc<dyn Store>, tenant: &str) -> Vec<Served> {
    let found = search(store.as_ref(), tenant, &Query::default()).expect("it is readable");
    let served = found.into_iter().rev().filter_map(|recorded| match recorded.event {
        Event::Served(served) => Some(*served),
        _ => None,
    });
    served.collect()
}

fn records(reply: &Reply) -> Vec<Value> {
    reply.ok()["data"].as_array().expect("a list").clone()
}

#[test]
fn every_way_to_ask_leaves_a_record_that_can_be_replayed() {
    let (_folder, witness, bench) = bench(true, &[]);
    let chat = json!([{ "role": "user", "content": "Name three rivers." }]);
    let schema = json!({ "type": "json_schema", "json_schema": { "schema": { "enum": ["one", "two"] } } });
    let asked = [
        ("/v1/chat/completions", json!({ "messages": chat, "max_tokens": 6 })),
        ("/v1/chat/completions", json!({ "messages": chat, "max_tokens": 6, "temperature": 1.5, "top_k": 0 })),
        ("/v1/chat/completions", json!({ "messages": chat, "max_tokens": 6, "stream": true, "temperature": 1 })),
        ("/v1/chat/completions", json!({ "messages": chat, "response_format": schema })),
        ("/v1/completions", json!({ "prompt": ["a b", "c d"], "n": 2, "max_tokens": 5, "temperature": 2, "seed": 3 })),
        ("/v1/completions", json!({ "prompt": "a b", "max_tokens": 9, "stop": ["e"], "repeat_penalty": 1.2 })),
        ("/v1/responses", json!({ "input": "Name three rivers.", "max_output_tokens": 5 })),
        ("/v1/messages", json!({ "model": "tiny", "messages": chat, "max_tokens": 5, "temperature": 0.9 })),
    ];
    let mut ids = Vec::new();
    for (path, body) in &asked {
        let reply = bench.post(path, body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        ids.push(reply.header("x-request-id").expect("each answer has an id").to_owned());
    }
    // One that is refused before a model sees it leaves nothing; one that the model cannot take does.
    assert_eq!(bench.post("/v1/completions", &json!({ "prompt": "a", "nonsense": 1 })).status, 400);
    let long = vec![5; 2000];
    assert_eq!(bench.post("/v1/completions", &json!({ "prompt": long, "max_tokens": 1 })).status, 400);

    let listed = records(&bench.get("/v1/witness"));
    assert_eq!(listed.len(), 12, "two prompts with two answers each count four");
    assert!(listed[0]["error"].as_str().is_some_and(|line| line.contains("2001")), "{}", listed[0]["error"]);
    let by_id = bench.post("/v1/witness/search", &json!({ "request": ids[0] }));
    let by_id = records(&by_id);
    assert_eq!((by_id.len(), by_id[0]["finish"].is_string()), (1, true));
    assert_eq!(
        by_id[0]["completion"]["tokens"].as_array().map(Vec::len),
        by_id[0]["completion"]["n_tokens"].as_u64().map(|n| n as usize)
    );
    assert_eq!(records(&bench.post("/v1/witness/search", &json!({ "failed": true }))).len(), 1);
    let hash = by_id[0]["model"].as_str().expect("a hash").to_owned();
    assert_eq!(records(&bench.post("/v1/witness/search", &json!({ "model": hash[..12] }))).len(), 12);
    assert!(records(&bench.post("/v1/witness/search", &json!({ "to_ms": 1 }))).is_empty());

    bench.post("/v1/witness/feedback", &json!({ "request": ids[1], "quality": 0.25 })).ok();
    let poor = records(&bench.post("/v1/witness/search", &json!({ "quality_max": 0.5 })));
    assert_eq!((poor.len(), poor[0]["quality"].as_f64()), (1, Some(0.25)));
    let verified = bench.post("/v1/witness/verify", &json!({})).ok();
    assert_eq!((&verified["sound"], &verified["records"]), (&json!(true), &json!(13)));
    assert!(bench.metric("ruvllm_witness_records_total") >= 13.0);
    let anchor = verified["anchor"].as_str().expect("an anchor").to_owned();
    bench.join();

    // In another process it is another engine: with one thread, no cache and no batch.
    let store = open_store(&witness).expect("nobody has it now");
    let anchor = ruvllm_sona::witness::Anchor::parse(&anchor).expect("an anchor");
    assert!(verify(store.as_ref(), Some(&anchor)).expect("it is readable").faults.is_empty());
    let (_model, path) = tiny_chat();
    let load = ruvllm_engine::LoadOptions { n_threads: 1, n_seq_max: 1, prefix_cache: false, ..load_options() };
    let mut engine = Engine::load(&path, &load, &mut |_| {}).expect("it loads");
    let all = served(&store, "no key");
    let n_same = all
        .iter()
        .filter(|served| served.error.is_none())
        .map(|served| replay(&mut engine, served, &AdapterSet::default()).expect("it can be run").is_same());
    assert_eq!(n_same.filter(|&same| same).count(), 11);
}

#[test]
fn keys_see_their_own_records_and_erase_them() {
    let (folder, witness, bench) = bench(true, &["ann key-of-ann", "bob key-of-bob"]);
    let ask = |key: &str, method: &str, path: &str, body: &Value| {
        let bearer = format!("Bearer {key}");
        match method {
            "POST" => bench.send(path, body.to_string(), &[("authorization", &bearer)]),
            _ => bench.ask(method, path, &[("authorization", &bearer)]),
        }
    };
    let body = |text: &str| json!({ "prompt": text, "max_tokens": 3 });
    let first = ask("key-of-ann", "POST", "/v1/completions", &body("alpha beta"));
    let id = first.header("x-request-id").expect("an id").to_owned();
    ask("key-of-bob", "POST", "/v1/completions", &body("gamma")).ok();
    assert_eq!(records(&ask("key-of-ann", "GET", "/v1/witness", &Value::Null)).len(), 1);
    assert_eq!(records(&ask("key-of-bob", "GET", "/v1/witness", &Value::Null)).len(), 1);
    // Nobody says how good another's answers are, or finds them.
    let feedback = json!({ "request": id, "quality": 1 });
    assert_eq!(ask("key-of-bob", "POST", "/v1/witness/feedback", &feedback).status, 404);
    assert!(records(&ask("key-of-bob", "POST", "/v1/witness/search", &json!({ "request": id }))).is_empty());
    assert_eq!(bench.get("/v1/witness").status, 401);

    assert_eq!(ask("key-of-ann", "DELETE", "/v1/witness", &Value::Null).ok()["erased"], 1);
    assert!(records(&ask("key-of-ann", "GET", "/v1/witness", &Value::Null)).is_empty());
    assert_eq!(records(&ask("key-of-bob", "GET", "/v1/witness", &Value::Null)).len(), 1);
    let verified = ask("key-of-bob", "POST", "/v1/witness/verify", &json!({})).ok();
    assert_eq!((&verified["sound"], &verified["erased"], &verified["lost"]), (&json!(true), &json!(1), &json!(0)));
    bench.join();
    drop((folder, witness));
}

#[test]
fn digests_keep_no_text_and_a_server_without_a_log_says_so() {
    let (_folder, witness, bench) = bench(false, &[]);
    bench.post("/v1/completions", &json!({ "prompt": "a b", "max_tokens": 3, "stop": ["secret-stop"] })).ok();
    let record = &records(&bench.get("/v1/witness"))[0];
    assert!(record["prompt"]["tokens"].is_null() && record["completion"]["tokens"].is_null());
    assert!(record["settings"]["digest"].is_string() && !record.to_string().contains("secret-stop"));
    assert_eq!(bench.post("/v1/witness/verify", &json!({ "anchor": "x" })).status, 400);
    assert_eq!(bench.post("/v1/witness/search", &json!({ "request": "x" })).status, 400);
    assert_eq!(bench.post("/v1/witness/search", &json!({ "model": "x" })).status, 400);
    // A second server cannot write to the same log.
    let second = ruvllm_server::Server::start(
        vec![ruvllm_server::ModelSource::new("other", Box::new(|| unreachable!("nobody asks")))],
        ServerOptions { witness: Some(witness), ..options() },
    );
    let line = second.expect_err("it is in use").to_string();
    assert!(line.contains("another process has the store open"), "{line}");
    bench.join();

    let bench = Bench::tiny(options());
    let refusal = bench.get("/v1/witness").refusal();
    assert!(refusal.contains("404") && refusal.contains("--witness"), "{refusal}");
}

/// While the log or its anchor cannot be written, `/ready` says so, and a server that requires it refuses; later all is well again.
#[test]
fn a_log_that_cannot_be_written_is_told_and_heals() {
    for is_required in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let away = folder.path().join("away");
        std::fs::create_dir(&away).expect("a folder");
        let witness = WitnessOptions {
            folder: folder.path().join("log"),
            anchor: Some(away.join("anchor")),
            syncs_each_batch: true,
            is_required,
            ..WitnessOptions::default()
        };
        let bench = Bench::tiny(ServerOptions { witness: Some(witness), ..options() });
        let ask = || bench.post("/v1/completions", &json!({ "prompt": "a b", "max_tokens": 2 }));
        let ready = || bench.ask("GET", "/ready", &[]);
        let wait_for = |is_so: &dyn Fn(&Reply) -> bool| {
            let start = std::time::Instant::now();
            while !is_so(&ready()) {
                assert!(start.elapsed() < std::time::Duration::from_secs(20), "it never came");
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        };
        ask().ok();
        assert_eq!(ready().ok()["status"], "ready");
        std::fs::remove_dir_all(&away).expect("it is there");
        ask().ok();
        match is_required {
            false => {
                wait_for(&|reply| reply.json()["status"] == "degraded");
                assert!(ready().ok()["witness"].as_str().expect("why").contains("the anchor cannot be written"));
                ask().ok();
            }
            true => {
                wait_for(&|reply| reply.status == 503);
                let refused = ask();
                assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("witness_unavailable")));
            }
        }
        std::fs::create_dir(&away).expect("a folder");
        wait_for(&|reply| reply.status == 200 && reply.json()["status"] == "ready");
        ask().ok();
        bench.join();
    }
}

/// A place that cannot be written shows before the first answer; what proves that a log was cut off is not written over.
#[test]
fn a_server_starts_only_where_its_anchor_can_be_kept_and_fits() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let witness = |anchor: &str| {
        let (folder, anchor) = (at("log"), Some(at(anchor)));
        Some(WitnessOptions { folder, anchor, syncs_each_batch: true, ..WitnessOptions::default() })
    };
    let refused = |anchor: &str| {
        let models = vec![ruvllm_server::ModelSource::new("other", Box::new(|| unreachable!("nobody asks")))];
        let server = ruvllm_server::Server::start(models, ServerOptions { witness: witness(anchor), ..options() });
        let line = server.expect_err("it is refused").to_string();
        assert!(line.contains(&at(anchor).display().to_string()) && !line.contains('\n'), "{line}");
        line
    };
    let line = refused("nowhere/anchor");
    assert!(line.contains("the anchor cannot be written") && line.contains("give another file"), "{line}");

    let ask = |anchor: &str, n: usize| {
        let bench = Bench::tiny(ServerOptions { witness: witness(anchor), ..options() });
        for _ in 0..n {
            bench.post("/v1/completions", &json!({ "prompt": "a b", "max_tokens": 2 })).ok();
        }
        bench.join();
    };
    ask("anchor", 3);
    // Erased in order, it is the same log.
    let bench = Bench::tiny(ServerOptions { witness: witness("anchor"), ..options() });
    assert_eq!(bench.ask("DELETE", "/v1/witness", &[]).ok()["erased"], 3);
    bench.join();
    ask("anchor", 1);

    let anchor = std::fs::read(at("anchor")).expect("it is kept");
    std::fs::remove_file(at("log").join(ruvllm_witness::STORE_FILE)).expect("it is there");
    let line = refused("anchor");
    assert!(line.contains("0 of 5 records") && line.contains("give another anchor file"), "{line}");
    assert_eq!(std::fs::read(at("anchor")).expect("it is left alone"), anchor);
    ask("another", 1);
}

#[test]
fn sessions_are_turns_of_conversations() {
    let (_folder, witness, bench) = bench(false, &["ann key-of-ann", "bob key-of-bob"]);
    let as_key = |key: &str| format!("Bearer {key}");
    let post =
        |key: &str, path: &str, body: &Value| bench.send(path, body.to_string(), &[("authorization", &as_key(key))]);
    let ask = |key: &str, method: &str, path: &str| bench.ask(method, path, &[("authorization", &as_key(key))]);
    let turn = |session: &str, user: &str, text: &str| json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 2, "session": session, "user": user });
    post(
        "key-of-ann",
        "/v1/chat/completions",
        &turn("trip to Oslo", "ada.lovelace", "When does the ferry to Oslo leave?"),
    )
    .ok();
    post("key-of-ann", "/v1/chat/completions", &turn("taxes", "ada.lovelace", "Which taxes are due in May?")).ok();
    post("key-of-bob", "/v1/chat/completions", &turn("taxes", "bob", "Something else")).ok();
    let second = turn("trip to Oslo", "", "And the ferry back?");
    let mut second = second;
    second["stream"] = json!(true);
    assert_eq!(post("key-of-ann", "/v1/chat/completions", &second).status, 200);
    // They are written behind the answers.
    let until = |key: &str, n_turns: u64| {
        let start = std::time::Instant::now();
        loop {
            let all = records(&ask(key, "GET", "/v1/sessions"));
            if all.iter().map(|session| session["turns"].as_u64().unwrap_or(0)).sum::<u64>() == n_turns {
                return all;
            }
            assert!(start.elapsed().as_secs() < 10, "{all:?}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    assert_eq!(until("key-of-bob", 1).len(), 1);
    let all = until("key-of-ann", 3);
    assert_eq!((all.len(), &all[0]["name"], &all[0]["turns"]), (2, &json!("trip to Oslo"), &json!(2)));
    let one = ask("key-of-ann", "GET", "/v1/sessions/trip%20to%20Oslo");
    assert_eq!((one.status, one.json()["user"].as_str()), (200, Some("ada.lovelace")), "{}", one.body);
    let found = records(&post("key-of-ann", "/v1/sessions", &json!({ "like": "taxes in May" })));
    assert_eq!(found[0]["name"], "taxes");
    assert!(records(&post("key-of-ann", "/v1/sessions", &json!({ "user": "bob" }))).is_empty());
    assert_eq!(ask("key-of-bob", "GET", "/v1/sessions/trip%20to%20Oslo").status, 404);
    assert_eq!(ask("key-of-ann", "DELETE", "/v1/sessions/taxes").ok()["deleted"], true);
    assert_eq!(ask("key-of-ann", "DELETE", "/v1/sessions/taxes").status, 404);
    assert_eq!(post("key-of-ann", "/v1/chat/completions", &turn("", "", "x")).status, 400);
    assert_eq!(ask("key-of-ann", "DELETE", "/v1/sessions").ok()["deleted"], 1);
    assert!(records(&ask("key-of-ann", "GET", "/v1/sessions")).is_empty());
    assert_eq!(records(&ask("key-of-bob", "GET", "/v1/sessions")).len(), 1);
    bench.join();
    // Nothing of hers is left in the file, without encryption.
    let raw = std::fs::read(witness.folder.join(ruvllm_witness::STORE_FILE)).expect("a file");
    let finds = |needle: &[u8]| raw.windows(needle.len()).any(|window| window == needle);
    assert!(!finds(b"trip to Oslo") && !finds(b"ada.lovelace") && finds(b"bob"));

    let bench = Bench::tiny(options());
    let refusal = bench.post("/v1/chat/completions", &turn("x", "", "y")).refusal();
    assert!(refusal.contains("400") && refusal.contains("--witness"), "{refusal}");
}

#[test]
fn what_was_taught_is_on_record_beside_the_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let learning = ruvllm_learning::LearningOptions::default();
    let witness = WitnessOptions { folder: folder.path().to_owned(), keeps_tokens: true, ..WitnessOptions::default() };
    let bench = Bench::tiny(ServerOptions { witness: Some(witness), learning: Some(learning), ..options() });
    let messages = json!([{ "role": "user", "content": "Where is Ulm?" }]);
    let first = bench.post("/v1/chat/completions", &json!({ "messages": messages, "max_tokens": 8 })).ok();
    bench.post("/v1/feedback", &json!({ "id": first["id"], "score": 0.25 })).ok();
    bench.post("/v1/memory", &json!({ "question": "When is Easter?", "answer": "In May." })).ok();
    bench.ask("DELETE", "/v1/memory", &[]).ok();
    let listed = records(&bench.get("/v1/witness"));
    let kinds: Vec<&str> = listed.iter().map(|record| record["kind"].as_str().unwrap_or_default()).collect();
    assert_eq!(kinds, ["learning", "learning", "feedback", "served"], "{listed:?}");
    assert_eq!(listed[0]["what"], "tiny: all that was taught was forgotten");
    // What was judged is the answer: its record has the quality now, and says that it is not the model's alone.
    assert_eq!((&listed[3]["quality"], &listed[3]["settings"]["learned"]), (&json!(0.25), &json!(true)));
}

#[test]
fn answers_are_scored_and_say_how_they_were_computed() {
    let folder = tempfile::tempdir().expect("a folder");
    let witness = WitnessOptions { folder: folder.path().join("log"), scores: true, ..WitnessOptions::default() };
    let bench = Bench::tiny(ServerOptions { witness: Some(witness.clone()), autotune: true, ..options() });
    let ask = json!({ "prompt": "Name three rivers.", "max_tokens": 24, "temperature": 0, "ignore_eos": true });
    (0..2).for_each(|_| drop(bench.post("/v1/completions", &ask).ok()));
    let listed = records(&bench.get("/v1/witness"));
    let [again, first] = &listed[..] else { panic!("two records: {listed:?}") };
    for record in [again, first] {
        assert!(record["policy"].as_str().is_some_and(|text| text.contains("guesses up to 8")), "{record}");
        assert!(record["scores"]["diversity"].is_number() && record["quality"].is_number(), "{record}");
        assert!(record["scores"]["schema"].is_null());
    }
    assert_eq!((&first["scores"]["uniqueness"], &again["scores"]["uniqueness"]), (&json!(1.0), &json!(0.0)));
    assert_eq!((&first["scores"]["consistency"], &again["scores"]["consistency"]), (&Value::Null, &json!(1.0)));
    // Found by its quality as well as by feedback.
    let quality = first["quality"].as_f64().expect("a number");
    let poor = bench.post("/v1/witness/search", &json!({ "quality_min": quality - 0.001, "quality_max": 1 }));
    assert!(!records(&poor).is_empty());
    // Who erases what they asked is a stranger again.
    bench.ask("DELETE", "/v1/witness", &[]).ok();
    bench.post("/v1/completions", &ask).ok();
    assert_eq!(records(&bench.get("/v1/witness"))[0]["scores"]["uniqueness"], 1.0);
    assert!(records(&bench.get("/v1/policies")).iter().all(|policy| policy["source"] == "learned"));
    bench.join();

    // What an operator says while it is down, it does when it is up again.
    {
        let policies = StoredPolicies::open(open_store(&witness).expect("nobody has it now"), PolicyLimits::default());
        let policies = policies.expect("policies");
        let none = json!({ "draft_rows": 0, "draft_tokens_max": 0 });
        let said = NewPolicy::new(PolicyKind::Speculation, "", &none).expect("JSON").by_operator();
        policies.put(said, 1).expect("room");
    }
    let bench = Bench::tiny(ServerOptions { witness: Some(witness), autotune: true, ..options() });
    bench.post("/v1/completions", &ask).ok();
    let record = &records(&bench.get("/v1/witness"))[0];
    assert!(record["policy"].as_str().is_some_and(|text| text.starts_with("no guesses (operator")), "{record}");
    assert_eq!(records(&bench.get("/v1/policies"))[0]["source"], "operator");
    bench.join();
}
