//! The first bytes of a file: magic, version, counts.

use crate::cursor::Cursor;
use crate::error::{GgufError, GgufErrorKind};
use crate::limits;

/// The four bytes every GGUF file starts with.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// Versions read and written.
pub(crate) const VERSIONS: std::ops::RangeInclusive<u32> = 1..=3;

/// What a file says of itself before its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) n_tensors: u64,
    pub(crate) n_metadata: u64,
}

impl Header {
    /// Reads the header and sets the cursor's width of lengths.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Header, GgufError> {
        let magic: [u8; 4] = cursor.array()?;
        if magic != MAGIC {
            return Err(not_gguf(magic));
        }
        let version = cursor.u32()?;
        if !VERSIONS.contains(&version) {
            return Err(bad_version(version));
        }
        cursor.set_version(version);
        let (n_tensors, n_metadata) = (cursor.len()?, cursor.len()?);
        if n_tensors > limits::N_TENSORS_MAX {
            let message = format!("{n_tensors} tensors, at most {} are read", limits::N_TENSORS_MAX);
            return Err(GgufError::new(GgufErrorKind::Limit, message));
        }
        Ok(Header { version, n_tensors, n_metadata })
    }
}

fn not_gguf(magic: [u8; 4]) -> GgufError {
    let hint = match &magic {
        b"vers" => " (perhaps a git-lfs pointer: fetch the file itself with `git lfs pull`)",
        b"lmgg" | b"tjgg" | b"fmgg" | b"algg" => " (an older GGML format: convert the model to GGUF)",
        b"<!do" | b"<!DO" | b"<htm" => " (an HTML page: the download went wrong)",
        _ => "",
    };
    let message = format!("not a GGUF file: starts with \"{}\", expected \"GGUF\"{hint}", magic.escape_ascii());
    GgufError::new(GgufErrorKind::NotGguf, message)
}

fn bad_version(version: u32) -> GgufError {
    let swapped = version.swap_bytes();
    let message = if VERSIONS.contains(&swapped) {
        format!(
            "a big-endian GGUF file (version {swapped}), only little-endian is read: convert it with gguf-py's gguf_convert_endian"
        )
    } else {
        format!("GGUF version {version}, versions 1 to 3 are read")
    };
    GgufError::new(GgufErrorKind::Unsupported, message)
}
