//! Files and batches: uploads, 500 requests with a restart in the middle, and how they make way for others.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use ruvllm_server::{BatchOptions, KeyOptions, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Bench, Reply, load_options, options, tiny_chat};

/// A server with a folder of batches.
struct Batching {
    bench: Bench,
    key: Option<&'static str>,
}

fn with_folder(folder: &Path) -> ServerOptions {
    let batches = BatchOptions { folder: folder.to_owned(), tenant_bytes_max: 1 << 20 };
    ServerOptions { batches: Some(batches), drain_timeout: Duration::from_secs(2), ..options() }
}

impl Batching {
    fn start(model: &Path, options: ServerOptions) -> Batching {
        Batching { bench: Bench::new(model, &load_options(), options), key: None }
    }

    fn headers(&self) -> Vec<(&'static str, &'static str)> {
        self.key.map(|key| ("authorization", key)).into_iter().collect()
    }

    fn upload(&self, content: &str, purpose: &str) -> Reply {
        let part =
            |head: &str, body: &str| format!("--line\r\ncontent-disposition: form-data; {head}\r\n\r\n{body}\r\n");
        let form = [
            part("name=\"purpose\"", purpose),
            part("name=\"file\"; filename=\"requests.jsonl\"", content),
            "--line--\r\n".to_owned(),
        ];
        let kind = [("content-type", "multipart/form-data; boundary=line")];
        self.bench.send("/v1/files", form.concat(), &[&kind[..], &self.headers()].concat())
    }

    fn create(&self, file: &str, endpoint: &str) -> Value {
        let new = json!({ "input_file_id": file, "endpoint": endpoint, "completion_window": "24h", "metadata": { "of": "test" } });
        self.bench.send("/v1/batches", new.to_string(), &self.headers()).ok()
    }

    fn get(&self, path: &str) -> Reply {
        self.bench.ask("GET", path, &self.headers())
    }

    fn batch(&self, id: &str) -> Value {
        self.get(&format!("/v1/batches/{id}")).ok()
    }

    fn wait(&self, id: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let batch = self.batch(id);
            if is_there(&batch) {
                return batch;
            }
            assert!(start.elapsed() < Duration::from_secs(240), "{batch}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the lines of a file by their own ids, each of which is there once.
    fn lines(&self, file: &Value) -> BTreeMap<String, Value> {
        let reply = self.get(&format!("/v1/files/{}/content", file.as_str().expect("a file")));
        assert_eq!(reply.status, 200);
        let mut lines = BTreeMap::new();
        for line in reply.body.lines() {
            let line: Value = serde_json::from_str(line).expect("JSON");
            let id = line["custom_id"].as_str().expect("an id").to_owned();
            assert!(lines.insert(id.clone(), line).is_none(), "{id} is there twice");
        }
        lines
    }
}

fn request(id: &str, body: &Value) -> String {
    format!("{}\n", json!({ "custom_id": id, "method": "POST", "url": "/v1/completions", "body": body }))
}

fn of_completion(i: usize) -> String {
    let body = json!({ "model": "tiny", "prompt": format!("number {i}"), "max_tokens": 2 + i % 3, "ignore_eos": true });
    request(&format!("request-{i}"), &body)
}

#[test]
fn five_hundred_requests_survive_restarts_each_answered_once() {
    let (model_folder, model) = tiny_chat();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut server = Batching::start(&model, with_folder(folder.path()));
    let content: String = (0..500).map(of_completion).chain([request("wrong", &json!({ "prompt": 7 }))]).collect();
    let file = server.upload(&content, "batch").ok();
    assert_eq!((&file["bytes"], &file["purpose"]), (&json!(content.len()), &json!("batch")), "{file}");
    let batch = server.create(file["id"].as_str().expect("an id"), "/v1/completions");
    let id = batch["id"].as_str().expect("an id").to_owned();
    assert_eq!((&batch["status"], &batch["request_counts"]["total"]), (&json!("in_progress"), &json!(501)), "{batch}");
    assert_eq!(batch["metadata"], json!({ "of": "test" }));
    let completed = |batch: &Value| batch["request_counts"]["completed"].as_u64().unwrap_or_default();
    // Restarts in the middle.
    for n in [60, 200] {
        server.wait(&id, |batch| completed(batch) >= n);
        drop(server);
        server = Batching::start(&model, with_folder(folder.path()));
        let batch = server.batch(&id);
        assert!(completed(&batch) >= n && batch["status"] == "in_progress", "{batch}");
    }
    let batch = server.wait(&id, |batch| batch["status"] == "completed");
    assert_eq!(batch["request_counts"], json!({ "total": 501, "completed": 500, "failed": 1 }), "{batch}");
    let lines = server.lines(&batch["output_file_id"]);
    assert_eq!(lines.len(), 500);
    for i in 0..500 {
        let line = &lines[&format!("request-{i}")];
        assert_eq!(line["response"]["status_code"], 200);
        assert_eq!(line["response"]["body"]["usage"]["completion_tokens"], json!(2 + i % 3), "{line}");
    }
    // An answer is the one that a client gets.
    let body = json!({ "model": "tiny", "prompt": "number 7", "max_tokens": 3, "ignore_eos": true });
    let alone = server.bench.post("/v1/completions", &body).ok();
    assert_eq!(lines["request-7"]["response"]["body"]["choices"], alone["choices"]);
    let errors = server.lines(&batch["error_file_id"]);
    assert_eq!((errors.len(), &errors["wrong"]["response"]["status_code"]), (1, &json!(400)), "{errors:?}");
    let files = server.get("/v1/files").ok();
    assert_eq!(files["data"].as_array().map(Vec::len), Some(3), "{files}");
    drop((server, model_folder));
}

#[test]
fn requests_of_batches_make_way_for_others() {
    let (model_folder, model) = tiny_chat();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = Batching::start(&model, with_folder(folder.path()));
    let body = |prompt: &str| json!({ "prompt": prompt, "max_tokens": 700, "ignore_eos": true });
    // Many times the places of the engine, so that the batch runs for as long as this test wants.
    let content: String = (0..400).map(|i| request(&format!("{i}"), &body(&format!("{i}")))).collect();
    let file = server.upload(&content, "batch").ok();
    let batch = server.create(file["id"].as_str().expect("an id"), "/v1/completions");
    let id = batch["id"].as_str().expect("an id").to_owned();
    let completed = |batch: &Value| batch["request_counts"]["completed"].as_u64().unwrap_or_default();
    // All places are taken by the batch; who asks now has one before those of the batch that wait.
    let waiting = || {
        let metrics = server.get("/metrics").body;
        let line = metrics.lines().find(|line| line.starts_with("ruvllm_batch_requests_waiting "));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or_default()
    };
    assert!(waiting() > 0.0);
    let now = json!({ "prompt": "now", "max_tokens": 16, "ignore_eos": true });
    let answer = server.bench.post("/v1/completions", &now).ok();
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    let after = completed(&server.batch(&id));
    assert!(after < 400, "the batch was over first");
    // An answer that was put off and gone on with has the same tokens.
    server.wait(&id, |batch| completed(batch) >= 16);
    server.bench.post(&format!("/v1/batches/{id}/cancel"), &json!({})).ok();
    let batch = server.wait(&id, |batch| batch["status"] == "cancelled");
    let lines = server.lines(&batch["output_file_id"]);
    let alone = server.bench.post("/v1/completions", &body("3")).ok();
    assert_eq!(lines["3"]["response"]["body"]["choices"], alone["choices"]);
    drop((server, model_folder));
}

#[test]
fn files_and_batches_belong_to_a_key_and_have_bounds() {
    let (model_folder, model) = tiny_chat();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lines = ["ann key-of-ann", "bob key-of-bob"].map(str::to_owned).to_vec();
    let options = ServerOptions { keys: KeyOptions { file: None, lines }, ..with_folder(folder.path()) };
    let bench = Bench::new(&model, &load_options(), options);
    let mut server = Batching { bench, key: Some("Bearer key-of-ann") };
    let file = server.upload(&of_completion(1), "batch").ok();
    let id = file["id"].as_str().expect("an id").to_owned();
    assert_eq!(server.get(&format!("/v1/files/{id}/content")).body, of_completion(1));
    let refused = |reply: Reply, status: u16, piece: &str| {
        let text = reply.body.clone();
        assert!(reply.status == status && text.contains(piece), "{}: {text}", reply.status);
    };
    refused(server.upload("x", "fine-tune"), 400, "'purpose' is 'batch'");
    refused(server.upload(&"x".repeat(1 << 20), "batch"), 413, "delete some");
    // What was refused takes no room.
    assert!(server.upload(&"x".repeat(900 << 10), "batch").status == 200);
    for (content, code) in [
        ("no json\n".to_owned(), "invalid_json_line"),
        (of_completion(1) + &of_completion(1), "duplicate_custom_id"),
        (of_completion(1).replace("POST", "GET"), "invalid_method"),
        (of_completion(1).replace("/v1/completions", "/v1/embeddings"), "mismatched_endpoint"),
        (of_completion(1).replace("\"ignore_eos\"", "\"stream\""), "invalid_request"),
        ("\n".to_owned(), "empty_file"),
    ] {
        let file = server.upload(&content, "batch").ok();
        let batch = server.create(file["id"].as_str().expect("an id"), "/v1/completions");
        assert_eq!(
            (&batch["status"], &batch["errors"]["data"][0]["code"]),
            (&json!("failed"), &json!(code)),
            "{batch}"
        );
    }
    let batch = server.create(&id, "/v1/completions");
    let batch_id = batch["id"].as_str().expect("an id").to_owned();
    let batch = server.wait(&batch_id, |batch| batch["status"] == "completed");
    assert_eq!(batch["error_file_id"], Value::Null);
    let cancelled = server.bench.send(&format!("/v1/batches/{batch_id}/cancel"), "", &server.headers());
    refused(cancelled, 400, "cannot be cancelled");
    let all = server.get("/v1/batches?limit=2").ok();
    assert_eq!((&all["data"][0]["id"], &all["has_more"]), (&json!(batch_id), &json!(true)), "{all}");
    // Nobody else knows of it.
    server.key = Some("Bearer key-of-bob");
    refused(server.get(&format!("/v1/files/{id}")), 404, "No such File object");
    refused(server.get(&format!("/v1/batches/{batch_id}")), 404, "No batch found");
    assert_eq!(server.get("/v1/batches").ok()["data"], json!([]));
    server.key = None;
    assert_eq!(server.get("/v1/files").status, 401);
    server.key = Some("Bearer key-of-ann");
    let deleted = server.bench.ask("DELETE", &format!("/v1/files/{id}"), &server.headers()).ok();
    assert_eq!(deleted["deleted"], true);
    refused(server.get(&format!("/v1/files/{id}/content")), 404, "No such File object");
    drop((server, model_folder));
}

#[test]
fn a_batch_is_cancelled_and_keeps_what_it_has() {
    let (model_folder, model) = tiny_chat();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = Batching::start(&model, with_folder(folder.path()));
    let file = server.upload(&(0..400).map(of_completion).collect::<String>(), "batch").ok();
    let id = server.create(file["id"].as_str().expect("an id"), "/v1/completions")["id"].clone();
    let id = id.as_str().expect("an id");
    server.wait(id, |batch| batch["request_counts"]["completed"].as_u64() >= Some(5));
    let cancelling = server.bench.post(&format!("/v1/batches/{id}/cancel"), &json!({})).ok();
    assert!(["cancelling", "cancelled"].contains(&cancelling["status"].as_str().expect("a status")), "{cancelling}");
    let batch = server.wait(id, |batch| batch["status"] == "cancelled");
    let n = batch["request_counts"]["completed"].as_u64().expect("a number");
    assert!((5..400).contains(&n), "{batch}");
    assert_eq!(server.lines(&batch["output_file_id"]).len() as u64, n);
    drop((server, model_folder));
}

#[test]
fn without_a_folder_there_are_none() {
    let bench = Bench::tiny(options());
    let reply = bench.get("/v1/batches");
    assert!(reply.status == 404 && reply.body.clone().contains("--batch-dir"), "{}", reply.body.clone());
}
