//! Metadata and tensor directory of a model on the hub, read by requests for the beginning of its files.

use bytes::Bytes;
use ruvllm_gguf::GgufFile;
use std::io::Read;

use crate::config::HubConfig;
use crate::download::{HubFile, ask};
use crate::error::{HubError, HubErrorKind, io_reason};
use crate::http::{Http, HttpError};
use crate::progress::Progress;
use crate::shards::{N_SHARDS_MAX, ShardName};

/// Bytes of a file that are read first; each step after that has four times as many.
const FIRST_BYTES: u64 = 256 << 10;
/// The most bytes that are read of all files of a model.
const TOTAL_BYTES_MAX: u64 = 128 << 20;

/// Beginning of a file on the hub.
struct Beginning {
    bytes: Bytes,
    /// Length of the whole file.
    n_bytes: u64,
}

/// Reads the header of a model on the hub; of one in several files, that of each. No tensor is read.
///
/// # Errors
/// The hub's, a file that is no GGUF file, or one whose header is larger than any sound one.
pub fn read_header(config: &HubConfig, from: &HubFile<'_>, progress: &dyn Progress) -> Result<GgufFile, HubError> {
    let http = Http::new(config, progress)?;
    let invalid =
        |line: String| HubError::new(HubErrorKind::Invalid, format_args!("hf:{}/{}: {line}", from.repo, from.file));
    let shard = ShardName::parse(from.file);
    if let Some(shard) = shard.as_ref().filter(|shard| shard.no != 1 || shard.count > N_SHARDS_MAX) {
        return Err(invalid(format!(
            "the file is part {} of {}; name the first one, {}",
            shard.no,
            shard.count,
            shard.part(1)
        )));
    }
    let _task = progress.begin("reading the header", None);
    let mut left = TOTAL_BYTES_MAX;
    let mut beginnings = Vec::new();
    for no in 1..=shard.as_ref().map_or(1, |shard| shard.count) {
        let name = shard.as_ref().map_or_else(|| from.file.to_owned(), |shard| shard.part(no));
        let found = beginning(&http, &HubFile { file: &name, ..*from }, left);
        let found =
            found.map_err(|error| HubError::new(HubErrorKind::Remote, format_args!("{name}: {}", error.line)))?;
        left = left.saturating_sub(found.bytes.len() as u64);
        beginnings.push((found.bytes, found.n_bytes));
    }
    GgufFile::from_headers(beginnings).map_err(|error| invalid(error.to_string()))
}

/// Reads the beginning of a file until it holds the header.
fn beginning(http: &Http<'_>, from: &HubFile<'_>, n_bytes_max: u64) -> Result<Beginning, HttpError> {
    let url = from.url(http.endpoint);
    let (mut bytes, mut want) = (Vec::new(), FIRST_BYTES.min(n_bytes_max));
    let mut etag: Option<String> = None;
    loop {
        let start = bytes.len() as u64;
        let answer = ask(http, &url, (start, Some(want.max(1) - 1)))?;
        if etag.get_or_insert_with(|| answer.facts.etag.clone()) != &answer.facts.etag {
            return Err(HttpError::new("the file was replaced on the hub while it was read; try again"));
        }
        if answer.start != start {
            return Err(HttpError::new(
                "the hub gives no parts of files, so the header cannot be read without a download",
            ));
        }
        let n_bytes = answer.facts.n_bytes;
        let n = want.min(n_bytes) - start;
        let read = answer.response.into_body().into_reader().take(n).read_to_end(&mut bytes);
        read.map_err(|error| HttpError::new(http.hide(&format!("the hub's answer broke off: {}", io_reason(&error)))))?;
        if bytes.len() as u64 != start + n {
            return Err(HttpError::new("the hub's answer broke off"));
        }
        let shared = Bytes::from(bytes);
        if GgufFile::has_header(&shared).map_err(|error| HttpError::new(error.to_string()))?
            || shared.len() as u64 >= n_bytes
        {
            return Ok(Beginning { bytes: shared, n_bytes });
        }
        if shared.len() as u64 >= n_bytes_max {
            return Err(HttpError::new(format!(
                "its header has more than {n_bytes_max} bytes, so it is no sound GGUF file"
            )));
        }
        bytes = Vec::from(shared);
        want = (want * 4).min(n_bytes_max);
    }
}
