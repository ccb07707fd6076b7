//! A batch while it runs: which requests are left, and the files of their answers.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use ruvllm_api::error::ApiError;
use serde_json::{Value, json};

use super::input::{Input, LINE_BYTES_MAX, Request, parse};
use super::{Batch, Batches, TenantFiles, describe, disk, now_s};

/// A request of a batch that is to be answered.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name of the tenant whose batch it is.
    pub tenant: String,
    /// The path that it asks.
    pub endpoint: String,
    /// Its fields.
    pub body: Value,
    batch: String,
    request: Request,
}

/// The requests of a batch, and its answers.
pub(super) struct Running {
    input: File,
    left: VecDeque<Request>,
    n_in_flight: usize,
    output: Answers,
    errors: Answers,
}

/// A file of answers, a line each.
struct Answers {
    path: PathBuf,
    file: File,
    n_lines: usize,
    n_bytes: u64,
}

impl Answers {
    /// Opens a file of answers, and returns whose they are. A line that a crash cut short is removed.
    fn open(path: PathBuf) -> io::Result<(Answers, Vec<String>)> {
        let file = disk::append(&path)?;
        let mut reader = BufReader::new(&file);
        let (mut ids, mut line, mut n_whole) = (Vec::new(), Vec::new(), 0_u64);
        loop {
            line.clear();
            let n = reader.by_ref().take(8 * LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
            let object = parse(line.trim_ascii());
            match object {
                Ok(object) if line.ends_with(b"\n") && object["custom_id"].is_string() => {
                    ids.extend(object["custom_id"].as_str().map(str::to_owned));
                    n_whole += n as u64;
                }
                _ => break,
            }
        }
        file.set_len(n_whole)?;
        let answers = Answers { path, n_lines: ids.len(), n_bytes: n_whole, file };
        Ok((answers, ids))
    }

    /// Adds a line, which is on the disk then.
    fn add(&mut self, line: &str) -> io::Result<()> {
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if written.is_err() {
            // What was written of it is no line.
            let _ = self.file.set_len(self.n_bytes);
            return written;
        }
        (self.n_lines, self.n_bytes) = (self.n_lines + 1, self.n_bytes + line.len() as u64);
        Ok(())
    }
}

impl Running {
    /// Begins to answer requests, or goes on with those that have no answer yet.
    pub(super) fn begin(requests: Input, input: &Path, [output, errors]: [PathBuf; 2]) -> io::Result<Running> {
        let (output, mut done) = Answers::open(output)?;
        let (errors, more) = Answers::open(errors)?;
        done.extend(more);
        let done: HashSet<String> = done.into_iter().collect();
        let left = requests.0.into_iter().filter(|request| !done.contains(&request.custom_id)).collect();
        Ok(Running { input: File::open(input)?, left, n_in_flight: 0, output, errors })
    }

    pub(super) fn n_left(&self) -> usize {
        self.left.len() + self.n_in_flight
    }

    pub(super) fn n_completed(&self) -> usize {
        self.output.n_lines
    }

    pub(super) fn n_failed(&self) -> usize {
        self.errors.n_lines
    }

    pub(super) fn n_bytes(&self) -> u64 {
        self.output.n_bytes + self.errors.n_bytes
    }

    /// Reads a request's fields.
    fn body(&mut self, request: &Request) -> io::Result<Value> {
        self.input.seek(SeekFrom::Start(request.offset))?;
        let mut line = vec![0; request.n_bytes];
        self.input.read_exact(&mut line)?;
        let mut object = parse(line.trim_ascii()).map_err(io::Error::other)?;
        Ok(object["body"].take())
    }
}

impl Batches {
    /// Returns the next request to answer: tenants in turn, of each the oldest batch first. Those whose key is gone wait.
    pub fn next(&self, is_known: impl Fn(&str) -> bool) -> Option<Job> {
        let mut tenants = self.lock();
        // Who has fewest requests at work comes first.
        let at_work = |files: &TenantFiles| -> usize {
            files.batches.values().filter_map(|batch| batch.running.as_ref()).map(|running| running.n_in_flight).sum()
        };
        let has_work = |files: &TenantFiles| files.batches.values().any(has_requests);
        let name = tenants.iter().filter(|(name, files)| has_work(files) && is_known(name));
        let name = name.min_by_key(|(_, files)| at_work(files)).map(|(name, _)| name.clone())?;
        let files = tenants.get_mut(&name)?;
        let (id, batch) = files.batches.iter_mut().find(|(_, batch)| has_requests(batch))?;
        let endpoint = batch.object["endpoint"].as_str().unwrap_or_default().to_owned();
        let running = batch.running.as_mut()?;
        let request = running.left.pop_front()?;
        match running.body(&request) {
            Ok(body) => {
                running.n_in_flight += 1;
                self.n_in_flight.fetch_add(1, Ordering::AcqRel);
                Some(Job { tenant: name, endpoint, body, batch: id.clone(), request })
            }
            Err(error) => {
                tracing::error!(batch = id, %error, "the file of a batch cannot be read");
                running.left.push_front(request);
                None
            }
        }
    }

    /// Gives a request back that was not answered.
    pub fn put_back(&self, job: Job) {
        self.n_in_flight.fetch_sub(1, Ordering::AcqRel);
        let mut tenants = self.lock();
        let batch = tenants.get_mut(&job.tenant).and_then(|files| files.batches.get_mut(&job.batch));
        if let Some(running) = batch.and_then(|batch| batch.running.as_mut()) {
            running.n_in_flight -= 1;
            running.left.push_front(job.request);
        }
    }

    /// Keeps an answer: its status and what it says. Where it cannot be kept the request is given back. Not for threads that
    /// others wait for.
    pub fn record(&self, job: Job, id: &str, status: u16, body: &Value) {
        let line = json!({
            "id": format!("batch_req_{id}"),
            "custom_id": job.request.custom_id,
            "response": { "status_code": status, "request_id": id, "body": body },
            "error": null,
        });
        let line = format!("{line}\n");
        let has_room = self.grow(&job.tenant, line.len() as u64).is_ok();
        let mut tenants = self.lock();
        let Some(files) = tenants.get_mut(&job.tenant) else { return };
        let Some(batch) = files.batches.get_mut(&job.batch) else { return };
        let Some(running) = batch.running.as_mut() else { return };
        let answers = if status == 200 { &mut running.output } else { &mut running.errors };
        let written = if has_room { answers.add(&line) } else { Ok(()) };
        if let Err(error) = written {
            tracing::error!(batch = job.batch, %error, "an answer of a batch cannot be written; it is tried again");
            files.n_open_bytes = files.n_open_bytes.saturating_sub(line.len() as u64);
            drop(tenants);
            self.put_back(job);
            return;
        }
        running.n_in_flight -= 1;
        (batch.object["request_counts"]["completed"], batch.object["request_counts"]["failed"]) =
            (running.n_completed().into(), running.n_failed().into());
        if !has_room {
            running.left.clear();
            let message = "the files of this key take as many bytes as they may; delete some and send the rest again";
            let data = json!([{ "code": "storage_full", "message": message, "param": null, "line": null }]);
            batch.object["errors"] = json!({ "object": "list", "data": data });
        }
        drop(tenants);
        self.n_in_flight.fetch_sub(1, Ordering::AcqRel);
        self.settle();
    }

    /// Ends the batches that have nothing left to do, or no time.
    pub fn settle(&self) {
        let now = now_s();
        for (tenant, files) in self.lock().iter_mut() {
            let ids: Vec<String> = files.batches.keys().cloned().collect();
            for id in ids {
                if let Err(error) = files.settle(&id, now) {
                    tracing::error!(tenant, batch = id, error = %error.message, "a batch cannot be ended yet");
                }
            }
        }
    }
}

/// Returns whether a batch has requests that nobody answers yet.
fn has_requests(batch: &Batch) -> bool {
    batch.status() == "in_progress" && batch.running.as_ref().is_some_and(|running| !running.left.is_empty())
}

impl TenantFiles {
    /// Ends a batch that has nothing left to do.
    fn settle(&mut self, id: &str, now: u64) -> Result<(), ApiError> {
        let Some(batch) = self.batches.get_mut(id).filter(|batch| batch.is_active()) else { return Ok(()) };
        let is_late = batch.object["expires_at"].as_u64().is_some_and(|end| end <= now);
        let is_cancelled = batch.status() == "cancelling";
        let Some(running) = &mut batch.running else { return Ok(()) };
        if is_late || is_cancelled {
            running.left.clear();
        }
        if running.n_left() > 0 {
            return Ok(());
        }
        let is_full = !batch.object["errors"].is_null();
        let (status, at) = match (is_full, is_cancelled, is_late) {
            (true, ..) => ("failed", "failed_at"),
            (_, true, _) => ("cancelled", "cancelled_at"),
            (_, _, true) => ("expired", "expired_at"),
            _ => ("completed", "completed_at"),
        };
        let mut object = batch.object.clone();
        (object["status"], object[at], object["finalizing_at"]) = (status.into(), now.into(), now.into());
        let mut described = Vec::new();
        for (answers, key, name) in [(&running.output, "output", "output"), (&running.errors, "errors", "error")] {
            let file = object["ruvllm"][key].as_str().unwrap_or_default().to_owned();
            if answers.n_lines == 0 {
                // Nobody asks for a file with nothing in it.
                let _ = std::fs::remove_file(&answers.path);
                continue;
            }
            object[format!("{name}_file_id")] = file.clone().into();
            described.push((describe(&file, &format!("{id}_{name}.jsonl"), "batch_output", answers.n_bytes), file));
        }
        // Files first: a batch that is over names none that is not there.
        for (file, id) in &described {
            disk::write(&self.folder.join(format!("{id}.json")), file).map_err(super::failed)?;
        }
        disk::write(&self.folder.join(format!("{id}.json")), &object).map_err(super::failed)?;
        let n_bytes = running.n_bytes();
        (batch.object, batch.running) = (object, None);
        self.n_open_bytes = self.n_open_bytes.saturating_sub(n_bytes);
        self.files.extend(described.into_iter().map(|(file, id)| (id, file)));
        tracing::info!(batch = id, status, "a batch is over");
        Ok(())
    }
}
