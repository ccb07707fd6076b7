//! Batches: what is kept, run again and given back.

use std::io::Write as _;

use serde_json::json;

use super::*;

fn line(id: &str) -> String {
    format!("{}\n", json!({ "custom_id": id, "method": "POST", "url": "/v1/completions", "body": { "prompt": id } }))
}

fn open(folder: &std::path::Path) -> Batches {
    Batches::open(BatchOptions { folder: folder.to_owned(), tenant_bytes_max: 1 << 16 }).expect("a folder")
}

/// Uploads a file of these requests, and makes a batch of it.
fn batch_of(batches: &Batches, tenant: &str, ids: &[&str]) -> String {
    let mut upload = batches.upload(tenant).expect("there is room");
    ids.iter().for_each(|id| upload.write(line(id).as_bytes()).expect("there is room"));
    let file = upload.finish("x.jsonl", "batch").expect("kept");
    let input_file_id = file["id"].as_str().expect("an id");
    let new = NewBatch { endpoint: "/v1/completions", input_file_id, metadata: json!({}) };
    batches.create(tenant, new).expect("made")["id"].as_str().expect("an id").to_owned()
}

#[test]
fn an_answer_that_a_crash_cut_short_is_made_again_and_no_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let batches = open(folder.path());
    let id = batch_of(&batches, "ann", &["a", "b", "c"]);
    let jobs: Vec<Job> = std::iter::from_fn(|| batches.next(|_| true)).collect();
    assert_eq!(jobs.iter().map(|job| job.body["prompt"].as_str().expect("text")).collect::<Vec<_>>(), ["a", "b", "c"]);
    let mut jobs = jobs.into_iter();
    batches.record(jobs.next().expect("a"), "1", 200, &json!({ "text": "A" }));
    batches.record(jobs.next().expect("b"), "2", 400, &json!({ "error": {} }));
    // A crash in the middle of a line: the third was never recorded, and a part of something is at the end of the file.
    let output = {
        let tenants = batches.lock();
        let object = &tenants["ann"].batches[&id].object;
        tenants["ann"].path(object["ruvllm"]["output"].as_str().expect("an id"))
    };
    drop(batches);
    std::fs::OpenOptions::new()
        .append(true)
        .open(&output)
        .and_then(|mut file| file.write_all(b"{\"custom_id\": \"c\", \"res"))
        .expect("written");
    let batches = open(folder.path());
    let left: Vec<Job> = std::iter::from_fn(|| batches.next(|_| true)).collect();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].body["prompt"], "c");
    batches.put_back(left[0].clone());
    let again = batches.next(|_| true).expect("it was given back");
    batches.record(again, "3", 200, &json!({ "text": "C" }));
    let batch = batches.batch("ann", &id).expect("it is there");
    assert_eq!(
        (&batch["status"], &batch["request_counts"]),
        (&json!("completed"), &json!({ "total": 3, "completed": 2, "failed": 1 }))
    );
    assert!(batch.get("ruvllm").is_none());
    let text = std::fs::read_to_string(&output).expect("it is there");
    assert_eq!(text.lines().count(), 2, "{text}");
    // All that is counted is described.
    assert_eq!(batches.lock()["ann"].n_open_bytes, 0);
}

#[test]
fn tenants_take_turns_and_those_without_a_key_wait() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let batches = open(folder.path());
    batch_of(&batches, "ann", &["a1", "a2", "a3"]);
    batch_of(&batches, "bob", &["b1"]);
    batch_of(&batches, "gone", &["g1"]);
    let order: Vec<Job> = std::iter::from_fn(|| batches.next(|tenant| tenant != "gone")).collect();
    let order: Vec<&str> = order.iter().map(|job| job.body["prompt"].as_str().expect("text")).collect();
    assert_eq!(order, ["a1", "b1", "a2", "a3"]);
    assert_eq!((batches.n_in_flight(), batches.n_waiting()), (4, 5));
}

#[test]
fn a_folder_is_for_one_process_and_full_folders_end_a_batch() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let batches = open(folder.path());
    let other = Batches::open(BatchOptions { folder: folder.path().to_owned(), tenant_bytes_max: 1 });
    assert!(other.is_err_and(|error| error.to_string().contains("another process uses it")));
    let id = batch_of(&batches, "ann", &["a", "b"]);
    let job = batches.next(|_| true).expect("a request");
    batches.record(job, "1", 200, &json!({ "text": "x".repeat(1 << 16) }));
    let batch = batches.batch("ann", &id).expect("it is there");
    assert_eq!(
        (&batch["status"], &batch["errors"]["data"][0]["code"]),
        (&json!("failed"), &json!("storage_full")),
        "{batch}"
    );
    assert!(batches.next(|_| true).is_none());
}

#[test]
fn uploads_that_end_early_leave_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let batches = open(folder.path());
    let mut upload = batches.upload("").expect("there is room");
    upload.write(b"half").expect("there is room");
    let path = upload.path.clone();
    assert!(path.exists());
    drop(upload);
    assert!(!path.exists() && batches.lock()[""].n_open_bytes == 0);
    // Of a crash: what nothing describes is removed at the next start.
    std::fs::write(&path, "half").expect("written");
    drop(batches);
    drop(open(folder.path()));
    assert!(!path.exists());
}
