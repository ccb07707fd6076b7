//! Models of the Hugging Face hub, through the standard cache folder (`HF_HOME`), with resume.
//!
//! The hub tells a file's SHA-256 before the download, so a file that is not the expected one costs no traffic.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use ruvllm_gguf::convert::{FILES, N_REQUIRED};

use crate::tools::error::{io_reason, one_line};
use crate::tools::output::Ui;
use crate::tools::source::{Expected, Fetched, convert, digest_file, is_folder};
use crate::tools::work::Work;

/// What is said of a file that is not there.
const NOT_FOUND: &str = "no such file in the repository (404)";
/// How long the hub may take to say what the file is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A file of a repository of the hub.
pub struct HubFile<'a> {
    /// Owner and name of the repository.
    pub repo: &'a str,
    /// Branch, tag or commit.
    pub revision: &'a str,
    /// Path in the repository; a folder ends with '/'.
    pub file: &'a str,
}

/// Returns a file (repository, revision, path) from the hub's cache folder, downloading it first if it is not there,
/// verified. Of a folder a GGUF file is made in `work`.
///
/// # Errors
/// One line: no network, no such file, or what differs from `expected`.
pub fn fetch(from: &HubFile<'_>, work: &Path, expected: &Expected, ui: &Ui) -> Result<Fetched, String> {
    let HubFile { repo: repo_name, revision, file } = *from;
    if !crate::tools::env::has_hub_cache() {
        return Err("no home folder is known; set HF_HOME".to_owned());
    }
    let repo = Repo::with_revision(repo_name.to_owned(), RepoType::Model, revision.to_owned());
    if is_folder(file) {
        let folder = fetch_folder(&repo, file, ui)?;
        let name = repo_name.rsplit('/').next().unwrap_or(repo_name);
        return convert(&folder, name, work, expected, ui);
    }
    let path = match Cache::from_env().repo(repo.clone()).get(file) {
        Some(path) => path,
        None => download(repo, file, expected, ui)?,
    };
    let path = real_path(&path)?;
    let digest = digest_file(&path, ui).map_err(|e| format!("cannot read {}: {}", path.display(), io_reason(&e)))?;
    expected.verify(&digest).map_err(|reason| format!("{reason}, in {}", path.display()))?;
    Ok(Fetched { path, is_shared: true, digest })
}

/// Brings what is to be converted of a folder into the hub's cache, and returns where it lies there.
fn fetch_folder(repo: &Repo, folder: &str, ui: &Ui) -> Result<PathBuf, String> {
    let mut found = None;
    for (i, name) in FILES.iter().enumerate() {
        let file = format!("{folder}{name}");
        let there = Cache::from_env().repo(repo.clone()).get(&file).map(Ok);
        match there.unwrap_or_else(|| download(repo.clone(), &file, &Expected::default(), ui)) {
            // The name may itself lie in a folder.
            Ok(path) => found = path.ancestors().nth(name.split('/').count()).map(Path::to_owned).or(found),
            Err(reason) if i < N_REQUIRED || !reason.contains(NOT_FOUND) => return Err(format!("{file}: {reason}")),
            Err(_) => {}
        }
    }
    found.ok_or_else(|| "the hub's cache folder is none".to_owned())
}

fn real_path(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|e| format!("cannot open {}: {}", path.display(), io_reason(&e)))
}

fn download(repo: Repo, file: &str, expected: &Expected, ui: &Ui) -> Result<PathBuf, String> {
    let spinner = ui.spinner("asking the Hugging Face hub");
    let api = ApiBuilder::from_env().with_retries(3).build().map_err(|error| reason(&error));
    let asked = api.and_then(|api| ask(api, repo, file));
    spinner.finish_and_clear();
    let (repo, about) = asked?;
    if let Some(sha256) = expected.sha256.as_ref().filter(|sha| about.etag.len() == 64 && **sha != about.etag) {
        return Err(format!("the hub's file has sha256 {}, expected {sha256}", about.etag));
    }
    let bar = Bar(ui.bytes_bar("downloading", about.n_bytes));
    repo.download_with_progress(file, bar).map_err(|error| reason(&error))
}

/// What the hub says of a file.
struct About {
    /// The SHA-256 of large files; another hash of small ones.
    etag: String,
    n_bytes: u64,
}

/// Asks what the file is, on a thread of its own, because a network that swallows packets would hold this one for
/// minutes.
fn ask(api: Api, repo: Repo, file: &str) -> Result<(ApiRepo, About), String> {
    let repo = api.repo(repo);
    let url = repo.url(file);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let answer = api.metadata(&url).map_err(|error| reason(&error));
        // Nobody listens any more when the answer comes too late.
        let _ = sender.send(answer);
    });
    let answer = receiver.recv_timeout(ANSWER_TIMEOUT);
    let metadata = answer.map_err(|_| format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()))??;
    Ok((repo, About { etag: metadata.etag().to_owned(), n_bytes: metadata.size() as u64 }))
}

/// Returns the hub's complaint as one short line.
fn reason(error: &ApiError) -> String {
    let text = one_line(&error.to_string());
    match text.as_str() {
        text if text.contains("status: 404") => NOT_FOUND.to_owned(),
        text if text.contains("status: 401") || text.contains("status: 403") => {
            "the repository asks for a login; run 'hf auth login' or set HF_HOME to a folder with a token".to_owned()
        }
        text => {
            let cause = text.trim_start_matches("request error: ").trim_start_matches("io: ");
            format!("cannot reach the Hugging Face hub: {cause}")
        }
    }
}

struct Bar(Work);

impl Progress for Bar {
    fn init(&mut self, size: usize, _file: &str) {
        self.0.set_length(size as u64);
        self.0.set_position(0);
    }

    fn update(&mut self, size: usize) {
        self.0.inc(size as u64);
    }

    fn finish(&mut self) {
        self.0.finish_and_clear();
    }
}
