//! Drafts from earlier texts: each tenant's own, over a restart, forgotten when it asks and when its key goes.

use std::path::Path;
use std::time::{Duration, Instant};

use ruvllm_engine::Engine;
use ruvllm_server::{DraftTextsOptions, KeyOptions, ModelSource, ServerOptions};
use serde_json::json;

use crate::client::{Bench, load_options, options, tiny_chat};

const ANN: &str = "key-of-ann";
const BOB: &str = "key-of-bob";
const KEYS: &str = "ann key-of-ann\nbob key-of-bob\n";

/// A process that keeps texts in a folder; the keys lie there as well.
fn serve(folder: &Path, bytes_max: usize) -> Bench {
    let (of_model, path) = tiny_chat();
    let engine = Engine::load(&path, &load_options(), &mut |_| {}).expect("it loads");
    drop(of_model);
    let draft_texts = DraftTextsOptions { bytes_max, folder: Some(folder.to_owned()), key: None };
    let model = ModelSource::loaded("tiny", engine).with_draft_texts(draft_texts);
    let keys = KeyOptions { file: Some(folder.join("keys")), lines: Vec::new() };
    Bench::of(vec![model], ServerOptions { keys, ..options() })
}

/// Returns a counter of drafts from earlier texts, which needs a key.
fn metric(bench: &Bench, name: &str) -> f64 {
    let text = bench.ask("GET", "/metrics", &[("authorization", &format!("Bearer {BOB}"))]).body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.trim().parse().expect("a number")
}

/// Asks the same as everybody, and returns the answer with the tokens that were drafted from earlier texts and accepted.
fn ask(bench: &Bench, key: &str) -> (String, [f64; 2]) {
    let counts = || {
        ["draft", "accepted"].map(|what| {
            let name = format!("ruvllm_spec_source_{what}_tokens_total{{model=\"tiny\",source=\"history\"}}");
            metric(bench, &name)
        })
    };
    let before = counts();
    let body = json!({ "prompt": "Once upon a time there was a river", "max_tokens": 40, "ignore_eos": true });
    let header = format!("Bearer {key}");
    let answer = bench.send("/v1/completions", body.to_string(), &[("authorization", &header)]).ok();
    let after = counts();
    (answer["choices"][0]["text"].as_str().expect("a text").to_owned(), [after[0] - before[0], after[1] - before[1]])
}

#[test]
fn a_tenant_drafts_from_its_texts_over_a_restart_until_it_asks_to_forget_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("keys"), KEYS).expect("written");
    let bench = serve(folder.path(), 32 << 20);
    let (first, none) = ask(&bench, ANN);
    assert_eq!(none, [0.0; 2]);
    let (again, own) = ask(&bench, ANN);
    assert!(again == first && own[1] >= 20.0, "{own:?}");
    assert_eq!(ask(&bench, BOB), (first.clone(), [0.0; 2]), "another tenant's texts are not seen");
    drop(bench.join());
    let bench = serve(folder.path(), 32 << 20);
    let (again, restarted) = ask(&bench, ANN);
    assert!(again == first && restarted[1] >= 20.0, "{restarted:?}");
    // Forgotten in memory at once, and in the file for the next process; Bob's stay.
    let headers = [("authorization", "Bearer key-of-ann")];
    assert_eq!(bench.ask("DELETE", "/v1/memory", &headers).ok(), json!({ "model": "tiny", "enabled": false }));
    drop(bench.join());
    let bench = serve(folder.path(), 32 << 20);
    assert_eq!(ask(&bench, ANN), (first.clone(), [0.0; 2]));
    let (again, of_bob) = ask(&bench, BOB);
    assert!(again == first && of_bob[1] >= 20.0, "{of_bob:?}");
    drop(bench.join());
    // Switched off, nothing is read.
    let bench = serve(folder.path(), 0);
    assert_eq!(ask(&bench, BOB), (first, [0.0; 2]));
    assert_eq!(metric(&bench, "ruvllm_spec_history_bytes{model=\"tiny\"}"), 0.0);
}

#[test]
fn texts_go_with_the_key() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    std::fs::write(&keys, KEYS).expect("written");
    let bench = serve(folder.path(), 32 << 20);
    ask(&bench, ANN);
    ask(&bench, BOB);
    // Ann's key is taken out while the server runs: the bytes that are held fall.
    let held = || metric(&bench, "ruvllm_spec_history_bytes{model=\"tiny\"}");
    let start = Instant::now();
    let mut before = 0.0;
    loop {
        // Statistics are up to a quarter of a second old.
        std::thread::sleep(Duration::from_millis(600));
        let now = held();
        if now > 0.0 && now == before {
            break;
        }
        before = now;
        assert!(start.elapsed() < Duration::from_secs(30), "texts are held");
    }
    std::fs::write(&keys, "bob key-of-bob\n").expect("written");
    while held() >= before {
        assert!(start.elapsed() < Duration::from_secs(30), "they are forgotten");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(bench.join());
    std::fs::write(&keys, KEYS).expect("written");
    let bench = serve(folder.path(), 32 << 20);
    assert_eq!(ask(&bench, ANN).1, [0.0; 2]);
    assert!(ask(&bench, BOB).1[1] >= 20.0);
}
