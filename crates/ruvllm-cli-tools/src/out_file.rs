//! A file that a command writes: under another name until it is whole, and never over what the command reads.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempPath};

use crate::error::{Error, Result};

/// Bytes that are written at once.
const BUFFER_BYTES: usize = 1 << 20;

/// The file while it is written. Dropped before [`OutFile::finish`] it leaves what was there before.
pub struct OutFile {
    to: BufWriter<File>,
    /// The name it has meanwhile; none for pipes and devices, which are written to as they are.
    part: Option<TempPath>,
    path: PathBuf,
}

impl OutFile {
    /// Begins a file for `path`, which may be none of `inputs`.
    ///
    /// # Errors
    /// A usage error if it is one of them; a failure if its folder cannot be written to.
    pub fn create(path: &Path, inputs: &[&Path]) -> Result<OutFile> {
        refuse_inputs(path, inputs)?;
        let failed = |error: std::io::Error| Error::io("write", path, &error);
        if path.metadata().is_ok_and(|there| !there.is_file()) {
            let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
            return Ok(OutFile { to: BufWriter::with_capacity(BUFFER_BYTES, file), part: None, path: path.to_owned() });
        }
        // What a link leads to is replaced, not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let folder = folder_of(&path);
        let mut builder = Builder::new();
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let (file, part) = builder.prefix(".ruvllm-").tempfile_in(folder).map_err(failed)?.into_parts();
        Ok(OutFile { to: BufWriter::with_capacity(BUFFER_BYTES, file), part: Some(part), path })
    }

    /// Writes all there is to write, and finishes.
    ///
    /// # Errors
    /// As [`OutFile::finish`].
    pub fn write_whole(mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes).map_err(|error| Error::io("write", &self.path, &error))?;
        self.finish()
    }

    /// Writes what is left and gives the file its name.
    ///
    /// # Errors
    /// A failure if that does not work; what was there before is there still.
    pub fn finish(mut self) -> Result<()> {
        self.to.flush().map_err(|error| Error::io("write", &self.path, &error))?;
        let Some(part) = self.part else { return Ok(()) };
        part.persist(&self.path).map_err(|error| Error::io("write", &self.path, &error.error))
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// Returns the folder that a file lies in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that a file to be written is none of those that are read.
///
/// # Errors
/// A usage error that names it.
pub(crate) fn refuse_inputs(path: &Path, inputs: &[&Path]) -> Result<()> {
    let Ok(real) = path.canonicalize() else { return Ok(()) };
    match inputs.iter().any(|input| input.canonicalize().is_ok_and(|input| input == real)) {
        true => {
            Err(Error::usage(format_args!("{} is read by this very command; write to another file", path.display())))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_as_it_was() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("out");
        std::fs::write(&path, "before").expect("a temporary folder is writable");
        let mut half = OutFile::create(&path, &[]).expect("a place to write");
        half.write_all(b"half").expect("memory");
        drop(half);
        assert_eq!(std::fs::read(&path).expect("a file"), b"before");
        assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 1);
        let mut whole = OutFile::create(&path, &[]).expect("a place to write");
        whole.write_all(b"after").expect("a file");
        whole.finish().expect("a place to write");
        assert_eq!(std::fs::read(&path).expect("a file"), b"after");
    }

    #[test]
    fn what_is_read_is_not_written_over() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let input = dir.path().join("model");
        std::fs::write(&input, "weights").expect("a temporary folder is writable");
        let same = dir.path().join(".").join("model");
        assert_eq!(OutFile::create(&same, &[&input]).err().expect("the input").exit_code(), 2);
        assert_eq!(std::fs::read(&input).expect("a file"), b"weights");
    }
}
