//! Models split over several files, as `llama-gguf-split` writes them: `NAME-00001-of-00003.gguf` and so on, with the
//! keys `split.no` (from 0), `split.count` and `split.tensors.count`. Only the first part has the model's own
//! metadata.

use std::path::{Path, PathBuf};

use crate::error::{GgufError, GgufErrorKind};
use crate::metadata::Metadata;

/// Key of a part's number, from 0.
pub(crate) const NO: &str = "split.no";
/// Key of the number of parts.
pub(crate) const COUNT: &str = "split.count";
/// Key of the number of tensors in all parts together.
pub(crate) const N_TENSORS: &str = "split.tensors.count";

/// What a part says of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitInfo {
    /// Which part this is, from 0.
    pub(crate) no: u32,
    /// How many parts there are, at least 1.
    pub(crate) count: u32,
    /// Tensors in all parts together, where the file says.
    pub(crate) n_tensors: Option<u64>,
}

impl SplitInfo {
    /// Reads the split keys; a file without them is a whole of one part.
    pub(crate) fn read(metadata: &Metadata) -> Result<SplitInfo, GgufError> {
        let count = metadata.u32(COUNT)?.unwrap_or(0).max(1);
        let no = metadata.u32(NO)?.unwrap_or(0);
        if no >= count || count > 99_999 {
            return Err(GgufError::new(GgufErrorKind::Split, format!("{NO} is {no} and {COUNT} is {count}")));
        }
        Ok(SplitInfo { no, count, n_tensors: metadata.u64(N_TENSORS)? })
    }
}

/// Returns `name-00002-of-00003.gguf` for part 1 of 3 of a model whose part `no` is `path`, or `None` if the name of
/// `path` does not have that form.
pub(crate) fn part_path(path: &Path, split: SplitInfo, no: u32) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&suffix(split.no, split.count))?;
    Some(path.with_file_name(format!("{stem}{}", suffix(no, split.count))))
}

fn suffix(no: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

/// The error for opening a part that is not the first.
pub(crate) fn not_first(path: &Path, split: SplitInfo) -> GgufError {
    let SplitInfo { no, count, .. } = split;
    let first = match part_path(path, split, 0) {
        Some(first) => format!("open {} instead", first.display()),
        None => format!("open the part whose name ends in {} instead", suffix(0, count)),
    };
    GgufError::new(GgufErrorKind::Split, format!("this is part {} of {count} of a split model: {first}", no + 1))
}

/// The error for a first part whose name does not lead to the others.
pub(crate) fn misnamed(count: u32) -> GgufError {
    let message = format!("part 1 of {count} of a split model must have a name ending in {}", suffix(0, count));
    GgufError::new(GgufErrorKind::Split, message)
}

/// Checks that the file opened as part `no` of `count` says that it is.
pub(crate) fn check_part(found: SplitInfo, no: u32, count: u32) -> Result<(), GgufError> {
    if (found.no, found.count) == (no, count) {
        return Ok(());
    }
    let message =
        format!("expected part {} of {count}, the file says part {} of {}", no + 1, found.no + 1, found.count);
    Err(GgufError::new(GgufErrorKind::Split, message))
}
