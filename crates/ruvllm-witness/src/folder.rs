//! The folder of a witness log: its files, its options, and opening its store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_sona::SonaError;
use ruvllm_sona::store::{self, MasterKey, OpenOptions, Store};
use ruvllm_sona::witness::FaultKind;

/// The file of the store in its folder.
pub const STORE_FILE: &str = "witness.redb";
/// The file of the newest anchor beside it.
pub const ANCHOR_FILE: &str = "anchor";
/// Whose the records of a server without keys are: no key has such a name.
pub const NOBODY: &str = "no key";

/// Options of the witness log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WitnessOptions {
    /// The folder with the store and the newest anchor; it is made if it is not there.
    pub folder: PathBuf,
    /// Where the newest anchor is put instead of the folder: best on another disk, or another machine's. One that is there
    /// already has to fit the log.
    pub anchor: Option<PathBuf>,
    /// Keep the tokens of prompts and answers, not only their digests: without them nothing can be replayed.
    pub keeps_tokens: bool,
    /// Score each answer behind its end, and put the scores on record.
    pub scores: bool,
    /// A file with the store's key, 32 bytes or 64 hexadecimal digits: what lies on the disk is encrypted then.
    pub key: Option<PathBuf>,
    /// Whether each batch is on disk when it is written, or only each tenth.
    pub syncs_each_batch: bool,
    /// Refuse requests while the log cannot be written, rather than answer them without a record.
    pub is_required: bool,
}

/// Opens the store of a folder that a server with these options writes to.
///
/// # Errors
/// One line: the folder or the key cannot be read, or another process has the store.
pub fn open_store(options: &WitnessOptions) -> Result<Arc<dyn Store>, WitnessError> {
    let cannot =
        |path: &Path, error: std::io::Error| WitnessError::new(format!("the witness log: {}: {error}", path.display()));
    std::fs::create_dir_all(&options.folder).map_err(|error| cannot(&options.folder, error))?;
    let key = match &options.key {
        None => None,
        Some(path) => {
            let bytes = std::fs::read(path).map_err(|error| cannot(path, error))?;
            Some(MasterKey::parse(&bytes).map_err(|error| WitnessError::new(format!("{}: {error}", path.display())))?)
        }
    };
    let open = OpenOptions { key: key.as_ref(), ..OpenOptions::default() };
    Ok(store::open(&options.folder.join(STORE_FILE), &open).map_err(SonaError::from)?)
}

/// Returns the number by which a request stands on record: the first 16 hexadecimal digits of its id.
pub fn number_of(id: &str) -> Option<u64> {
    let digits = id.rsplit(['-', '_']).next().unwrap_or(id);
    u64::from_str_radix(digits.get(..16)?, 16).ok()
}

/// Returns the name of a kind of fault.
pub fn fault_name(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::LinkChanged => "link changed",
        FaultKind::LinkMissing => "link missing",
        FaultKind::ContentsChanged => "contents changed",
        FaultKind::ContentsMissing => "contents missing",
        FaultKind::ContentsUnlinked => "contents without a link",
        FaultKind::AnchorMissed => "chain computed anew",
    }
}

/// Error of opening the store of a witness log: one line.
#[derive(Debug)]
pub struct WitnessError {
    line: String,
    source: Option<SonaError>,
}

impl WitnessError {
    fn new(line: String) -> WitnessError {
        WitnessError { line, source: None }
    }
}

impl std::fmt::Display for WitnessError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for WitnessError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<SonaError> for WitnessError {
    fn from(error: SonaError) -> WitnessError {
        WitnessError { line: format!("the witness log: {error}"), source: Some(error) }
    }
}
