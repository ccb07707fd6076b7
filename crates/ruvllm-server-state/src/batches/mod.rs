//! Files and batches of tenants: requests that are answered while nobody else asks, and survive restarts.
//!
//! Each tenant has a folder. An uploaded file is `FILE.data` with `FILE.json` beside it; a batch is `BATCH.json`, and its answers are
//! lines of two more files. An answer is on the disk before it counts, so a request is lost by no crash and answered twice by none: what
//! is answered after a restart is what no line has.

mod disk;
mod input;
mod running;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use ruvllm_api::error::{ApiError, without_numbers};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::options::ServerError;
use input::Input;
use running::Running;

pub use running::Job;

/// The most bytes of an uploaded file.
pub const FILE_BYTES_MAX: u64 = 200 << 20;
/// The most files and batches of a tenant.
const FILES_MAX: usize = 10_000;
/// Seconds that a batch may take.
const WINDOW_S: u64 = 24 * 60 * 60;
/// Endpoints that a batch may ask.
pub const ENDPOINTS: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"];
/// States in which a batch has requests to answer.
const ACTIVE: [&str; 2] = ["in_progress", "cancelling"];

/// Options of files and batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Folder that keeps them.
    pub folder: PathBuf,
    /// The most bytes of a tenant's files, answers included.
    pub tenant_bytes_max: u64,
}

/// The files and batches of all tenants.
pub struct Batches {
    options: BatchOptions,
    tenants: Mutex<BTreeMap<String, TenantFiles>>,
    /// There is something to do.
    changed: Notify,
    /// Requests that are being answered.
    n_in_flight: AtomicUsize,
    n_ids: AtomicUsize,
    /// Keeps others from the folder.
    _lock: File,
}

/// Files and batches of a tenant.
struct TenantFiles {
    folder: PathBuf,
    files: BTreeMap<String, Value>,
    batches: BTreeMap<String, Batch>,
    /// Bytes of files that are not described yet: uploads, and answers of batches.
    n_open_bytes: u64,
}

/// A batch: what clients see of it, and its requests while they are answered.
struct Batch {
    object: Value,
    running: Option<Running>,
}

impl Batch {
    fn status(&self) -> &str {
        self.object["status"].as_str().unwrap_or_default()
    }

    fn is_active(&self) -> bool {
        ACTIVE.contains(&self.status())
    }
}

impl TenantFiles {
    fn n_bytes(&self) -> u64 {
        self.n_open_bytes + self.files.values().filter_map(|file| file["bytes"].as_u64()).sum::<u64>()
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.data"))
    }
}

impl Batches {
    /// Opens the folder, and goes on with the batches that are not over.
    ///
    /// # Errors
    /// It cannot be used, or another process uses it.
    pub fn open(options: BatchOptions) -> Result<Batches, ServerError> {
        let folder = &options.folder;
        let cannot = |error: std::io::Error| {
            ServerError::new(format!("--batch-dir {}: {}", folder.display(), without_numbers(&error.to_string())))
        };
        disk::make_folder(folder).map_err(cannot)?;
        let lock = File::options().create(true).append(true).open(folder.join("lock")).map_err(cannot)?;
        if lock.try_lock().is_err() {
            let line =
                format!("--batch-dir {}: another process uses it; give each a folder of its own", folder.display());
            return Err(ServerError::new(line));
        }
        let mut tenants = BTreeMap::new();
        for (name, folder) in disk::tenants(folder).map_err(cannot)? {
            tenants.insert(name, load(folder).map_err(cannot)?);
        }
        Ok(Batches {
            options,
            tenants: Mutex::new(tenants),
            changed: Notify::new(),
            n_in_flight: AtomicUsize::new(0),
            n_ids: AtomicUsize::new(0),
            _lock: lock,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, TenantFiles>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a name that nothing else here has.
    fn new_id(&self, prefix: &str) -> String {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let n = self.n_ids.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{:016x}{:06x}", now.as_nanos() as u64, n & 0x00ff_ffff)
    }

    /// Calls `change` with the files of a tenant, whose folder is made if there is none.
    fn with<T>(
        &self,
        tenant: &str,
        change: impl FnOnce(&mut TenantFiles) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let mut tenants = self.lock();
        if !tenants.contains_key(tenant) {
            let folder = disk::make_tenant(&self.options.folder, tenant).map_err(failed)?;
            let empty = TenantFiles { folder, files: BTreeMap::new(), batches: BTreeMap::new(), n_open_bytes: 0 };
            tenants.insert(tenant.to_owned(), empty);
        }
        change(tenants.get_mut(tenant).expect("it was put there"))
    }

    /// Begins an upload.
    ///
    /// # Errors
    /// The tenant has too many files, or the disk fails.
    pub fn upload(&self, tenant: &str) -> Result<Upload<'_>, ApiError> {
        let id = self.new_id("file-");
        let path = self.with(tenant, |files| {
            if files.files.len() >= FILES_MAX {
                return Err(full(format!("this key has {FILES_MAX} files; delete some")));
            }
            Ok(files.path(&id))
        })?;
        let file = disk::create(&path).map_err(failed)?;
        Ok(Upload { batches: self, tenant: tenant.to_owned(), id, path, file, n_bytes: 0, is_kept: false })
    }

    /// Counts bytes that a file of a tenant grows by.
    fn grow(&self, tenant: &str, n: u64) -> Result<(), ApiError> {
        let max = self.options.tenant_bytes_max;
        self.with(tenant, |files| match files.n_bytes() + n > max {
            true => Err(full(format!("the files of this key would take more than {max} bytes; delete some"))),
            false => {
                files.n_open_bytes += n;
                Ok(())
            }
        })
    }

    /// Returns the files of a tenant, the oldest first.
    pub fn files(&self, tenant: &str) -> Vec<Value> {
        self.lock().get(tenant).map(|files| files.files.values().cloned().collect()).unwrap_or_default()
    }

    /// Describes a file.
    ///
    /// # Errors
    /// 404: the tenant has none of this id.
    pub fn file(&self, tenant: &str, id: &str) -> Result<Value, ApiError> {
        let tenants = self.lock();
        tenants.get(tenant).and_then(|files| files.files.get(id)).cloned().ok_or_else(|| no_file(id))
    }

    /// Returns where the content of a file lies.
    ///
    /// # Errors
    /// As [`Batches::file`].
    pub fn content(&self, tenant: &str, id: &str) -> Result<PathBuf, ApiError> {
        self.file(tenant, id)?;
        let tenants = self.lock();
        tenants.get(tenant).map(|files| files.path(id)).ok_or_else(|| no_file(id))
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// As [`Batches::file`]; 400 while a batch reads it; the disk's.
    pub fn delete(&self, tenant: &str, id: &str) -> Result<(), ApiError> {
        self.file(tenant, id)?;
        self.with(tenant, |files| {
            let mut active = files.batches.values().filter(|batch| batch.is_active());
            if active.any(|batch| batch.object["input_file_id"] == id) {
                return Err(ApiError::bad("file_id", "a batch reads this file; cancel it first").code("file_in_use"));
            }
            fs::remove_file(files.folder.join(format!("{id}.json"))).map_err(failed)?;
            fs::remove_file(files.path(id)).map_err(failed)?;
            files.files.remove(id);
            Ok(())
        })
    }

    /// Makes a batch of a file. Where its lines are no requests the batch has failed, and says why. Not for threads that others
    /// wait for.
    ///
    /// # Errors
    /// 404: there is no such file; the tenant has too many batches; the disk's.
    pub fn create(&self, tenant: &str, new: NewBatch<'_>) -> Result<Value, ApiError> {
        let path = self.content(tenant, new.input_file_id)?;
        let read = Input::read(&path, new.endpoint).map_err(failed)?;
        let (id, now) = (self.new_id("batch_"), now_s());
        let (output, errors) = (self.new_id("file-"), self.new_id("file-"));
        let mut object = json!({
            "id": id,
            "object": "batch",
            "endpoint": new.endpoint,
            "errors": null,
            "input_file_id": new.input_file_id,
            "completion_window": "24h",
            "status": "in_progress",
            "output_file_id": null,
            "error_file_id": null,
            "created_at": now,
            "in_progress_at": now,
            "expires_at": now + WINDOW_S,
            "finalizing_at": null,
            "completed_at": null,
            "failed_at": null,
            "expired_at": null,
            "cancelling_at": null,
            "cancelled_at": null,
            "request_counts": { "total": 0, "completed": 0, "failed": 0 },
            "metadata": new.metadata,
            "ruvllm": { "output": output, "errors": errors },
        });
        self.with(tenant, |files| {
            if files.batches.len() >= FILES_MAX {
                return Err(full(format!("this key has {FILES_MAX} batches")));
            }
            let running = match read {
                Ok(input) => {
                    object["request_counts"]["total"] = input.len().into();
                    let paths = [&output, &errors].map(|id| files.path(id));
                    Some(Running::begin(input, &path, paths).map_err(failed)?)
                }
                Err(problems) => {
                    (object["status"], object["failed_at"], object["in_progress_at"]) =
                        ("failed".into(), now.into(), Value::Null);
                    object["errors"] = json!({ "object": "list", "data": problems });
                    None
                }
            };
            disk::write(&files.folder.join(format!("{id}.json")), &object).map_err(failed)?;
            let shown = shown(&object);
            files.batches.insert(id, Batch { object, running });
            Ok(shown)
        })
        .inspect(|_| self.changed.notify_one())
    }

    /// Returns the batches of a tenant, the newest first.
    pub fn batches(&self, tenant: &str) -> Vec<Value> {
        let tenants = self.lock();
        let batches = tenants.get(tenant).map(|files| files.batches.values().rev()).into_iter().flatten();
        batches.map(|batch| shown(&batch.object)).collect()
    }

    /// Describes a batch.
    ///
    /// # Errors
    /// 404: the tenant has none of this id.
    pub fn batch(&self, tenant: &str, id: &str) -> Result<Value, ApiError> {
        let tenants = self.lock();
        let batch = tenants.get(tenant).and_then(|files| files.batches.get(id));
        batch.map(|batch| shown(&batch.object)).ok_or_else(|| no_batch(id))
    }

    /// Takes no more requests of a batch; those that are being answered end.
    ///
    /// # Errors
    /// As [`Batches::batch`]; 400: it is over; the disk's.
    pub fn cancel(&self, tenant: &str, id: &str) -> Result<Value, ApiError> {
        self.batch(tenant, id)?;
        let object = self.with(tenant, |files| {
            let folder = files.folder.clone();
            let batch = files.batches.get_mut(id).ok_or_else(|| no_batch(id))?;
            if !batch.is_active() {
                let line = format!("the batch is {}, and cannot be cancelled", batch.status());
                return Err(ApiError::bad("batch_id", line).code("batch_over"));
            }
            (batch.object["status"], batch.object["cancelling_at"]) = ("cancelling".into(), now_s().into());
            disk::write(&folder.join(format!("{id}.json")), &batch.object).map_err(failed)?;
            Ok(shown(&batch.object))
        })?;
        self.changed.notify_one();
        self.settle();
        Ok(object)
    }

    /// Waits until there may be something to do.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns how many requests are being answered.
    pub fn n_in_flight(&self) -> usize {
        self.n_in_flight.load(Ordering::Acquire)
    }

    /// Returns how many requests of batches wait or are being answered.
    pub fn n_waiting(&self) -> usize {
        let tenants = self.lock();
        let batches = tenants.values().flat_map(|files| files.batches.values()).filter(|batch| batch.is_active());
        batches.filter_map(|batch| batch.running.as_ref()).map(Running::n_left).sum()
    }
}

/// A batch as it is asked for.
pub struct NewBatch<'a> {
    /// Path of the endpoint that answers the requests.
    pub endpoint: &'a str,
    /// Id of the uploaded file.
    pub input_file_id: &'a str,
    /// Metadata as the client sent them.
    pub metadata: Value,
}

/// A file while it is uploaded; what is not finished is removed.
pub struct Upload<'b> {
    batches: &'b Batches,
    tenant: String,
    id: String,
    path: PathBuf,
    file: File,
    n_bytes: u64,
    is_kept: bool,
}

impl Upload<'_> {
    /// Adds bytes.
    ///
    /// # Errors
    /// 413: the file is too large, or the tenant has no room for it; the disk's.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ApiError> {
        let n = bytes.len() as u64;
        if self.n_bytes + n > FILE_BYTES_MAX {
            return Err(full(format!("a file has at most {FILE_BYTES_MAX} bytes; divide it")));
        }
        self.batches.grow(&self.tenant, n)?;
        self.n_bytes += n;
        self.file.write_all(bytes).map_err(failed)
    }

    /// Keeps the file, and describes it.
    ///
    /// # Errors
    /// The disk's.
    pub fn finish(mut self, filename: &str, purpose: &str) -> Result<Value, ApiError> {
        self.file.sync_all().map_err(failed)?;
        let object = describe(&self.id, filename, purpose, self.n_bytes);
        self.batches.with(&self.tenant, |files| {
            disk::write(&files.folder.join(format!("{}.json", self.id)), &object).map_err(failed)?;
            files.files.insert(self.id.clone(), object.clone());
            Ok(())
        })?;
        self.is_kept = true;
        Ok(object)
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        let n = self.n_bytes;
        // Bytes of a file that is kept are counted by its description.
        let counted = self.batches.with(&self.tenant, |files| {
            files.n_open_bytes = files.n_open_bytes.saturating_sub(n);
            Ok(())
        });
        drop(counted);
        if !self.is_kept {
            // What cannot be removed now is at the next start: nothing describes it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns a file as clients see it.
fn describe(id: &str, filename: &str, purpose: &str, n_bytes: u64) -> Value {
    json!({
        "id": id,
        "object": "file",
        "bytes": n_bytes,
        "created_at": now_s(),
        "filename": filename,
        "purpose": purpose,
        "status": "processed",
    })
}

/// Returns a batch as clients see it.
fn shown(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove("ruvllm");
    }
    object
}

/// Reads a tenant's folder: what nothing describes is removed, and batches that are not over go on.
fn load(folder: PathBuf) -> std::io::Result<TenantFiles> {
    let described = disk::described(&folder)?;
    let is_batch = |id: &str| id.starts_with("batch_");
    let (batches, files): (Vec<_>, Vec<_>) = described.into_iter().partition(|(id, _)| is_batch(id));
    let mut loaded =
        TenantFiles { folder, files: files.into_iter().collect(), batches: BTreeMap::new(), n_open_bytes: 0 };
    let mut kept: Vec<String> = loaded.files.keys().cloned().collect();
    for (id, mut object) in batches {
        let mut running = None;
        if object["status"].as_str().is_some_and(|status| ACTIVE.contains(&status)) {
            let ids = ["output", "errors"].map(|key| object["ruvllm"][key].as_str().unwrap_or_default().to_owned());
            let input = loaded.path(object["input_file_id"].as_str().unwrap_or_default());
            match Input::read(&input, object["endpoint"].as_str().unwrap_or_default())? {
                Ok(requests) => {
                    let again = Running::begin(requests, &input, [&ids[0], &ids[1]].map(|id| loaded.path(id)))?;
                    loaded.n_open_bytes += again.n_bytes();
                    (object["request_counts"]["completed"], object["request_counts"]["failed"]) =
                        (again.n_completed().into(), again.n_failed().into());
                    running = Some(again);
                    kept.extend(ids);
                }
                Err(problems) => {
                    (object["status"], object["failed_at"]) = ("failed".into(), now_s().into());
                    object["errors"] = json!({ "object": "list", "data": problems });
                }
            }
        }
        loaded.batches.insert(id, Batch { object, running });
    }
    disk::remove_others(&loaded.folder, &kept)?;
    Ok(loaded)
}

/// Returns seconds since 1970.
fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn failed(error: std::io::Error) -> ApiError {
    let line = format!("the folder of files and batches: {}", without_numbers(&error.to_string()));
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, line)
}

fn full(line: String) -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, line).code("storage_full")
}

fn no_file(id: &str) -> ApiError {
    let id: String = id.chars().take(100).collect();
    ApiError::new(StatusCode::NOT_FOUND, format!("No such File object: {id}")).code("file_not_found")
}

fn no_batch(id: &str) -> ApiError {
    let id: String = id.chars().take(100).collect();
    ApiError::new(StatusCode::NOT_FOUND, format!("No batch found with id '{id}'.")).code("batch_not_found")
}
