//! Models of the Hugging Face hub, through the standard cache folder (`HF_HOME`), with resume.
//!
//! The hub tells a file's SHA-256 before the download, so a file that is not the expected one costs no traffic.

use std::path::{Path, PathBuf};

use crate::cache::RepoCache;
use crate::checksums::{Checksums, SUMS_BYTES_MAX, SUMS_FILE, is_sha256};
use crate::digest::{Digested, Expected, digest_file};
use crate::download::{Downloaded, FileFacts, HubFile, download, facts, small_text};
use crate::error::io_reason;
use crate::http::Http;
use crate::shards::{N_SHARDS_MAX, ShardName};
use crate::source::{FetchContext, Fetched, FetchedFile, OFFLINE, Wanted, convert, is_folder};

/// Returns a file (repository, revision, path) from the hub's cache folder, downloading it first if it is not there,
/// verified. Of a folder a GGUF file is made in `work`; of a model in several files all are brought.
///
/// # Errors
/// One line: no network, no such file, or what differs from what is expected.
pub(crate) fn fetch(
    from: &HubFile<'_>,
    work: &Path,
    wanted: &Wanted<'_>,
    context: &FetchContext<'_>,
) -> Result<Fetched, String> {
    let hub = Hub::new(from, context)?;
    let expected = wanted.expected;
    if is_folder(from.file) {
        let folder = hub.folder(from, &wanted.order)?;
        return convert(&folder, work, wanted, context);
    }
    let Some(shard) = ShardName::parse(from.file) else { return Ok(Fetched::of_file(hub.verified(from, expected)?)) };
    if shard.no != 1 {
        let first = shard.part(1);
        return Err(format!("the file is part {} of {}; name the first one, {first}", shard.no, shard.count));
    }
    if shard.count > N_SHARDS_MAX {
        return Err(format!("a model in {} files; {N_SHARDS_MAX} are the most", shard.count));
    }
    let first = hub.verified(from, expected)?;
    let mut more = Vec::with_capacity(shard.count as usize - 1);
    for no in 2..=shard.count {
        let file = shard.part(no);
        let part = hub.verified(&HubFile { file: &file, ..*from }, &Expected::default());
        more.push(part.map_err(|reason| format!("{file}: {reason}"))?);
    }
    Ok(Fetched { first, more })
}

/// A file in the cache folder.
pub(super) struct Cached {
    pub(super) path: PathBuf,
    /// Its digest, if it had to be read for that.
    digest: Option<Digested>,
}

/// Returns the SHA-256 that the hub told of a file of the cache folder: the name of the blob that it leads to, if it does.
fn told_sha256(path: &Path) -> Option<String> {
    let blob = path.canonicalize().ok()?;
    blob.file_name()?.to_str().filter(|name| is_sha256(name)).map(str::to_owned)
}

/// A repository of the hub while something is fetched from it.
pub(super) struct Hub<'a> {
    pub(super) http: Http<'a>,
    cache: RepoCache,
    pub(super) context: &'a FetchContext<'a>,
}

impl<'a> Hub<'a> {
    /// Prepares for requests about a repository; nobody is asked yet.
    ///
    /// # Errors
    /// No cache folder is known, or a place of a token has something that is none.
    pub(super) fn new(from: &HubFile<'_>, context: &'a FetchContext<'a>) -> Result<Hub<'a>, String> {
        let cache_dir = context.hub.cache_dir.as_deref().ok_or("no home folder is known; set HF_HOME")?;
        let http = Http::new(context.hub, context.progress).map_err(|error| error.to_string())?;
        Ok(Hub { http, cache: RepoCache::new(cache_dir, from.repo, from.revision), context })
    }

    /// Brings a file of one commit into the cache folder, and returns where it lies.
    pub(super) fn file_of(&self, commit: &str, from: &HubFile<'_>) -> Result<PathBuf, String> {
        match self.cached(self.cache.get_of(commit, from.file))? {
            Some(cached) => Ok(cached.path),
            None => Ok(self.downloaded(&HubFile { revision: commit, ..*from }, &Expected::default())?.path),
        }
    }

    /// Returns whether a file of one commit is in the cache folder.
    pub(super) fn has(&self, commit: &str, file: &str) -> bool {
        self.cache.get_of(commit, file).is_some()
    }

    /// Brings a GGUF file into the cache folder and verifies it.
    fn verified(&self, from: &HubFile<'_>, expected: &Expected) -> Result<FetchedFile, String> {
        let Cached { path, digest } = self.file(from, expected)?;
        let path = path.canonicalize().map_err(|e| format!("cannot open {}: {}", path.display(), io_reason(&e)))?;
        let digest = digest.map_or_else(|| self.digest(&path), Ok)?;
        expected.verify(&digest).map_err(|reason| format!("{reason}, in {}", path.display()))?;
        Ok(FetchedFile { path, is_shared: true, digest })
    }

    /// Brings a file into the cache folder.
    pub(super) fn file(&self, from: &HubFile<'_>, expected: &Expected) -> Result<Cached, String> {
        if let Some(cached) = self.cached(self.cache.get(from.file))? {
            return Ok(cached);
        }
        let Downloaded { path, digest } = self.downloaded(from, expected)?;
        Ok(Cached { path, digest: Some(digest) })
    }

    /// Returns a file of the cache folder, if it has the SHA-256 that the hub told. A damaged one counts as missing, so that it is
    /// downloaded again; offline it is an error.
    fn cached(&self, path: Option<PathBuf>) -> Result<Option<Cached>, String> {
        let Some(path) = path else { return Ok(None) };
        let Some(told) = told_sha256(&path) else { return Ok(Some(Cached { path, digest: None })) };
        let digest = self.digest(&path)?;
        match digest.sha256 == told {
            true => Ok(Some(Cached { path, digest: Some(digest) })),
            false if self.context.is_offline => Err(format!(
                "{} in the cache is damaged: it has sha256 {}, expected {told}",
                path.display(),
                digest.sha256
            )),
            false => Ok(None),
        }
    }

    fn digest(&self, path: &Path) -> Result<Digested, String> {
        let digest = digest_file(path, self.context.progress);
        digest.map_err(|e| format!("cannot read {}: {}", path.display(), io_reason(&e)))
    }

    fn downloaded(&self, from: &HubFile<'_>, expected: &Expected) -> Result<Downloaded, String> {
        if self.context.is_offline {
            return Err(OFFLINE.to_owned());
        }
        let task = self.context.progress.begin("asking the Hugging Face hub", None);
        let facts = facts(&self.http, &from.url(self.http.endpoint));
        drop(task);
        let facts = facts?;
        let published = match (&expected.sha256, [".gguf", ".safetensors"].iter().any(|end| from.file.ends_with(end))) {
            (None, true) => self.published_sum(from)?,
            _ => None,
        };
        let check = |facts: &FileFacts| {
            let differs = |sha256: &str| facts.sha256().is_some_and(|told| told != sha256);
            if let Some(sha256) = expected.sha256.as_deref().filter(|sha256| differs(sha256)) {
                return Err(format!("the hub's file has sha256 {}, expected {sha256}", facts.etag));
            }
            match &published {
                Some((sums, sha256)) if differs(sha256) => {
                    Err(format!("the hub's file has sha256 {}, and {sums} of the repository says {sha256}", facts.etag))
                }
                _ => Ok(()),
            }
        };
        let downloaded = download(&self.http, &self.cache, from, facts, &check)?;
        if let Some((sums, sha256)) = published.filter(|(_, sha256)| *sha256 != downloaded.digest.sha256) {
            let found = &downloaded.digest.sha256;
            // It must not be found in the cache by the next pull.
            let _ = std::fs::remove_file(&downloaded.path);
            return Err(format!("the file has sha256 {found}, and {sums} of the repository says {sha256}"));
        }
        Ok(downloaded)
    }

    /// Returns the SHA-256 that a checksum file of the repository says, with the name of that file.
    fn published_sum(&self, from: &HubFile<'_>) -> Result<Option<(String, String)>, String> {
        let (folder, name) = from.file.rsplit_once('/').map_or(("", from.file), |(folder, name)| (folder, name));
        let beside = if folder.is_empty() { SUMS_FILE.to_owned() } else { format!("{folder}/{SUMS_FILE}") };
        let whole = (!folder.is_empty()).then(|| SUMS_FILE.to_owned());
        for sums in [Some(beside), Some(format!("{}.sha256", from.file)), whole].into_iter().flatten() {
            let text = small_text(&self.http, &HubFile { file: &sums, ..*from }, SUMS_BYTES_MAX)?;
            let found = text.as_deref().map(Checksums::parse);
            // Only a checksum file beside the model may name it without its folder.
            let alone = (sums != SUMS_FILE).then_some(name);
            let sum = found.as_ref().and_then(|found| found.get(from.file).or_else(|| found.get(alone?)));
            if let Some(sha256) = sum {
                return Ok(Some((sums, sha256.to_owned())));
            }
        }
        Ok(None)
    }
}
