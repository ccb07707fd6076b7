//! Reading what a store holds without opening it: for lists, also while a process has it open.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::index::Index;
use super::key::BlockKey;
use super::record::Place;
use super::segment;
use super::session::SessionInfo;
use super::store::list_segments;
use super::{StoreOptions, folder, io_error, recover};
use crate::error::KvError;
use crate::key::Namespace;

/// Contents of a store, as [`contents`] finds them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Its sessions by name.
    pub sessions: Vec<SessionInfo>,
    /// Its prefixes that are not the beginning of another, the longest first.
    pub prefixes: Vec<StoredPrefix>,
    /// Blocks of all prefixes, each counted once.
    pub n_blocks: usize,
}

/// A prefix in a store that is not the beginning of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPrefix {
    /// The name of its last block.
    pub key: BlockKey,
    /// Whom it belongs to.
    pub namespace: Namespace,
    /// Number of its tokens.
    pub n_tokens: usize,
    /// Bytes of its blocks on disk, those included that it shares with others.
    pub bytes: u64,
    /// When the file that its last block is in was last written to.
    pub written: SystemTime,
}

/// Reads what the store of an identity holds, whether a process has it open or not, and changes nothing. A store that
/// is not there holds nothing. Contents are not read: what is listed may turn out damaged when it is used.
///
/// # Errors
/// A file cannot be read.
pub fn contents(folder: &Path, identity: &[u8; 32]) -> Result<Contents, KvError> {
    let path = folder::path(folder, identity);
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let ids = match list_segments(&path) {
        Err(error) if gone(&error) => return Ok(Contents::default()),
        ids => ids.map_err(|error| io_error("read", &path, &error))?,
    };
    let (mut index, mut written) = (Index::default(), Vec::new());
    for id in ids {
        let file = segment::path(&path, id);
        match read_segment(&mut index, &file, id, identity) {
            Ok(modified) => written.extend(modified.map(|modified| (id, modified))),
            // It was given up just now.
            Err(error) if gone(&error) => {}
            Err(error) => return Err(io_error("read", &file, &error)),
        }
    }
    index.drop_orphans(identity);
    let written = |id| written.iter().find(|(other, _)| *other == id).map_or(SystemTime::UNIX_EPOCH, |(_, time)| *time);
    let prefixes = index.prefixes().into_iter();
    Ok(Contents {
        sessions: index.sessions().map(|(meta, bytes)| SessionInfo::new(meta, bytes)).collect(),
        prefixes: prefixes.map(|(prefix, id)| StoredPrefix { written: written(id), ..prefix }).collect(),
        n_blocks: index.n_blocks(),
    })
}

/// Takes up the records of a segment and returns when it was last written to; `None` if it is no segment of the store.
fn read_segment(index: &mut Index, path: &Path, id: u64, identity: &[u8; 32]) -> io::Result<Option<SystemTime>> {
    let mut file = File::open(path)?;
    let about = file.metadata()?;
    let header = recover::header(&mut file, about.len(), identity)?;
    let Some(header) = header.filter(|header| header.id == id) else { return Ok(None) };
    index.add_segment(id, header.nonce, about.len());
    let payload_bytes_max = StoreOptions::new(*identity).payload_bytes_max;
    let mut visit = |offset, frame, meta| index.apply(Place { segment: id, offset }, frame, meta);
    recover::records(&mut file, about.len(), &header, payload_bytes_max, &mut visit)?;
    about.modified().map(Some)
}
