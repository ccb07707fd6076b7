//! A server that writes a log, and `ruvllm witness` over what it left.

use std::path::Path;
use std::process::Command;

use ruvllm_sona::store::{Durability, Scan, Table};
use ruvllm_witness::{ANCHOR_FILE, STORE_FILE, WitnessOptions, open_store};
use serde_json::{Value, json};

use crate::common::{Bench, error_line, text, tiny};
use crate::serve::Server;

/// Serves the small model with a log in the folder `log`, and asks it `n` different things.
fn served(bench: &Bench, n: usize, more: &[&str]) -> Server {
    let log = bench.path("log").to_string_lossy().into_owned();
    let server = Server::start(bench, &[&["--witness", &log], more].concat());
    for i in 0..n {
        let answer = server.ask("POST /v1/completions", &request(i));
        assert!(answer.starts_with("HTTP/1.1 200"), "{i}: {answer}");
    }
    server
}

/// Requests that differ in what their tokens depend on.
fn request(i: usize) -> Value {
    let mut body = json!({ "prompt": format!("{} things of kind {i}", i * 7), "max_tokens": 3 + i % 5 });
    let (name, value) = [
        ("temperature", json!(0.5 + i as f64 / 50.0)),
        ("seed", json!(i)),
        ("top_k", json!(1 + i % 9)),
        ("repeat_penalty", json!(1.25)),
        ("mirostat", json!(2)),
        ("stop", json!(["e", "th"])),
        ("structured_outputs", json!({ "regex": "[a-f]{1,9}" })),
        ("min_p", json!(0.2)),
    ][i % 8]
        .clone();
    body[name] = value;
    if name != "temperature" {
        body["temperature"] = json!(1.3);
    }
    body
}

#[test]
fn two_hundred_answers_come_out_again_in_another_process() {
    let bench = Bench::new();
    served(&bench, 200, &["--witness-keep", "tokens"]).end("-TERM");
    let (log, model) = (bench.path("log"), tiny());
    let verified = bench.json(["witness", "verify", &log.to_string_lossy(), "--json"]);
    assert_eq!(
        (&verified["sound"], &verified["records"], &verified["anchored"]),
        (&json!(true), &json!(200), &json!(200))
    );
    let args = |command: &str| {
        let (log, model) = (log.to_string_lossy().into_owned(), model.to_string_lossy().into_owned());
        ["witness", command, &log, "--json", "--model", &model].map(str::to_owned).to_vec()
    };
    let replayed = bench.json(args("replay"));
    assert_eq!(
        (&replayed["same"], &replayed["other"], &replayed["left"]),
        (&json!(200), &json!(0), &json!(0)),
        "{replayed}"
    );
    // Found by what it is about, without knowing when.
    let like = bench.json(
        [args("search"), vec!["--like".into(), "things of kind 17".into(), "--limit".into(), "500".into()]].concat(),
    );
    let first = &like["records"][0]["prompt"]["tokens"];
    let expected =
        bench.json(["tokenize", "--model", &model.to_string_lossy(), "--text", "119 things of kind 17", "--json"]);
    assert!(first.as_array().expect("tokens").ends_with(expected["tokens"].as_array().expect("tokens")), "{first}");

    let out = bench.path("all.jsonl");
    let exported = bench.json(["witness", "export", &log.to_string_lossy(), "--json", "--out", &out.to_string_lossy()]);
    assert_eq!(exported["records"], 200);
    let lines = std::fs::read_to_string(&out).expect("it is written");
    assert_eq!(lines.lines().count(), 200);

    // Another token on record: the chain shows it, and so does running it again.
    let edited = edit(&log, 120);
    let output = bench.run(["witness", "verify", &log.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), format!("record {edited}: contents changed\n"));
    let output = bench.run(args("replay"));
    assert_eq!(output.status.code(), Some(1));
    let replayed: Value = serde_json::from_str(&text(&output.stdout)).expect("JSON");
    assert_eq!((&replayed["same"], &replayed["other"]), (&json!(199), &json!(1)));
}

/// Changes a token of an answer in the store behind the log's back; returns the number of its record.
fn edit(log: &Path, n: usize) -> u64 {
    const CONTENTS: Table = Table::new("witness");
    let store = open_store(&WitnessOptions { folder: log.to_owned(), ..WitnessOptions::default() }).expect("free");
    let mut found = Vec::new();
    let visit = &mut |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        Ok(true)
    };
    store.snapshot().and_then(|snapshot| snapshot.scan(CONTENTS, &Scan::all(b"no key"), visit)).expect("readable");
    let (key, mut value) = found.swap_remove(n);
    let mut served = match ruvllm_sona::witness::Event::from_bytes(&value[16..]).expect("a record") {
        ruvllm_sona::witness::Event::Served(served) => served,
        other => panic!("{other:?}"),
    };
    served.completion.tokens.as_mut().expect("they were kept")[0] ^= 1;
    value.truncate(16);
    value.extend(ruvllm_sona::witness::Event::Served(served).to_bytes());
    let mut change = store.begin(Durability::Durable).expect("writable");
    change.put(CONTENTS, b"no key", &key, &value).expect("it fits");
    change.commit().expect("writable");
    u64::from_be_bytes(key[8..].try_into().expect("eight bytes"))
}

#[test]
fn a_server_that_is_killed_loses_nothing_that_it_said_was_on_disk() {
    let bench = Bench::new();
    let log = bench.path("log").to_string_lossy().into_owned();
    let mut n_known = 0;
    for round in 0..4 {
        let server = served(&bench, 5 + round, &[]);
        // Listing waits until all is on disk.
        let listed = server.ask("GET /v1/witness", &Value::Null);
        assert!(listed.contains("\"seq\""), "{listed}");
        n_known += 5 + round;
        // More, of which nothing was said.
        let _ = server.ask("POST /v1/completions", &request(round));
        let killed = Command::new("kill").arg("-KILL").arg(server.id().to_string()).status();
        assert!(killed.is_ok_and(|status| status.success()));
        drop(server);
        let verified = bench.json(["witness", "verify", &log, "--json"]);
        let n = verified["records"].as_u64().expect("a count") as usize;
        assert_eq!(verified["sound"], true, "{verified}");
        assert!((n_known..=n_known + round + 1).contains(&n), "{n} of {n_known}");
        n_known = n;
    }
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let bench = Bench::new();
    let log = bench.path("log").to_string_lossy().into_owned();
    let line = error_line(&bench.run(["witness", "list", &log]), 1);
    assert!(line.contains("there is no witness log in"), "{line}");
    let key = bench.file("key", "7".repeat(64));
    let key = key.to_string_lossy().into_owned();
    let server = served(&bench, 2, &["--witness-key", &key]);
    let line = error_line(&bench.run(["witness", "list", &log, "--key", &key]), 1);
    assert!(line.contains("another process has the store open"), "{line}");
    server.end("-TERM");
    let line = error_line(&bench.run(["witness", "list", &log]), 1);
    assert!(line.contains("the store is encrypted"), "{line}");
    let listed = bench.json(["witness", "list", &log, "--key", &key, "--json"]);
    assert_eq!(listed["records"].as_array().map(Vec::len), Some(2));
    let shown = text(&bench.run(["witness", "list", &log, "--key", &key]).stdout);
    assert!(shown.starts_with("SEQ  TIME (UTC)"), "{shown}");
    let anchor = ["witness", "verify", &log, "--key", &key, "--anchor", "nothing.txt"];
    assert!(error_line(&bench.run(anchor), 1).contains("cannot read the anchor"));
    // Digests alone cannot be run again, and this is said of each.
    let model = tiny().to_string_lossy().into_owned();
    // What proves nothing is no success.
    let output = bench.run(["witness", "replay", &log, "--key", &key, "--model", &model, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("none of 2 records could be run"), "{}", text(&output.stderr));
    let replayed: Value = serde_json::from_str(&text(&output.stdout)).expect("JSON");
    assert_eq!(
        (&replayed["left"], replayed["records"][0]["why"].as_str().is_some_and(|why| why.contains("not kept"))),
        (&json!(2), true)
    );
    let erased = bench.json(["witness", "erase", &log, "--key", &key, "--tenant", "no key", "--json"]);
    assert_eq!(erased["erased"], 2);
    let verified = bench.json(["witness", "verify", &log, "--key", &key, "--json"]);
    assert_eq!((&verified["sound"], &verified["erased"]), (&json!(true), &json!(2)));
    assert!(Path::new(&log).join(STORE_FILE).is_file());
}

#[test]
fn a_log_that_was_cut_off_is_not_erased_and_one_that_is_not_there_not_made() {
    let bench = Bench::new();
    let folder = bench.path("log");
    let log = folder.to_string_lossy().into_owned();
    served(&bench, 1, &[]).end("-TERM");
    let older = std::fs::read(folder.join(STORE_FILE)).expect("a store");
    served(&bench, 2, &[]).end("-TERM");
    std::fs::write(folder.join(STORE_FILE), older).expect("writable");
    let anchor = std::fs::read(folder.join(ANCHOR_FILE)).expect("an anchor");
    let line = error_line(&bench.run(["witness", "erase", &log, "--tenant", "no key"]), 1);
    assert!(line.contains("1 of 3 records") && line.contains("ruvllm witness verify"), "{line}");
    assert_eq!(std::fs::read(folder.join(ANCHOR_FILE)).expect("it is left alone"), anchor);
    assert_eq!(bench.run(["witness", "verify", &log]).status.code(), Some(1));
    // Moved away, it is no hindrance; kept, it is still a proof.
    let proof = bench.path("proof").to_string_lossy().into_owned();
    std::fs::rename(folder.join(ANCHOR_FILE), &proof).expect("writable");
    assert_eq!(bench.json(["witness", "erase", &log, "--tenant", "no key", "--json"])["erased"], 1);
    bench.json(["witness", "verify", &log, "--json"]);
    assert_eq!(bench.run(["witness", "verify", &log, "--anchor", &proof]).status.code(), Some(1));

    let empty = bench.path("empty");
    std::fs::create_dir(&empty).expect("writable");
    let (empty, out) = (empty.to_string_lossy().into_owned(), bench.path("out").to_string_lossy().into_owned());
    for args in [&["list"][..], &["verify"], &["search"], &["export", "--out", &out], &["erase", "--tenant", "x"]] {
        let line = error_line(&bench.run([&["witness", args[0], &empty], &args[1..]].concat()), 1);
        assert!(line.contains("there is no witness log in"), "{line}");
    }
    assert_eq!(std::fs::read_dir(&empty).expect("a folder").count(), 0);
}

#[test]
fn policies_are_set_listed_and_taken_back() {
    let bench = Bench::new();
    served(&bench, 2, &["--autotune", "--witness-score"]).end("-TERM");
    let log = bench.path("log").to_string_lossy().into_owned();
    let of = |args: &[&str]| bench.json([&["policy", args[0], &log], &args[1..], &["--json"]].concat());
    let operator = |listed: &Value| {
        let all = listed["policies"].as_array().expect("policies").clone();
        all.into_iter().filter(|policy| policy["source"] == "operator").collect::<Vec<_>>()
    };
    assert!(operator(&of(&["list"])).is_empty());
    let version =
        of(&["set", "speculation", "{\"draft_rows\":24,\"draft_tokens_max\":24}", "--for", "30d"])["version"].clone();
    let listed = operator(&of(&["list", "--kind", "speculation"]));
    assert_eq!(
        (listed.len(), &listed[0]["version"], &listed[0]["value"]["draft_tokens_max"]),
        (1, &version, &json!(24))
    );
    assert!(operator(&of(&["list", "--kind", "kv"])).is_empty());
    let line = error_line(&bench.run(["policy", "set", &log, "speculation", "24"]), 2);
    assert!(line.contains("draft_rows"), "{line}");
    for (kind, value, part) in [
        ("kv", "\"q3\"", "\"tiered\""),
        ("router", "{}", "within"),
        ("router", "{\"price\":-1}", "within"),
        ("batch", "{\"prefill_tokens\":0}", "at least 1"),
        ("ewc", "{\"strength\":-1}", "\"strength\": 1"),
        ("pattern", "1", "kv, speculation, batch, router and ewc"),
    ] {
        let line = error_line(&bench.run(["policy", "set", &log, kind, value]), 2);
        assert!(line.contains(part), "{line}");
    }
    // What no server would read is not kept.
    let kv = ["policy", "set", &log, "kv", "\"q8\"", "--tenant", "acme"];
    let batch = ["policy", "set", &log, "batch", "{\"prefill_tokens\":64}", "--context", "alone"];
    for (command, part) in [(kv, "only policies of the kinds router and ewc"), (batch, "speculation and kv")] {
        let line = error_line(&bench.run(command), 2);
        assert!(line.contains(part), "{line}");
    }
    of(&["retire", &version.to_string()]);
    // Under the old names of its fields, for one more release.
    let old = bench.run(["policy", "set", &log, "speculation", "{\"guessed_rows\":8,\"guesses_max\":4}", "--json"]);
    let told = String::from_utf8_lossy(&old.stderr);
    assert!(told.contains("guessed_rows is now draft_rows\nguesses_max is now draft_tokens_max\n"), "{told}");
    let version = serde_json::from_slice::<Value>(&old.stdout).expect("one object")["version"].clone();
    of(&["retire", &version.to_string()]);
    assert!(operator(&of(&["list"])).is_empty());
    let line = error_line(&bench.run(["policy", "retire", &log, &version.to_string()]), 1);
    assert!(line.contains("policy list"), "{line}");
    let records = bench.json(["witness", "list", &log, "--json"]);
    assert!(records["records"][0]["scores"].is_object() && records["records"][0]["policy"].is_string(), "{records}");
}
