//! Files with a secret key to sign with: 32 bytes, readable by their owner only.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use ruvllm_learning::SigningKey;

use crate::error::{Error, Result};

/// Reads a secret key.
///
/// # Errors
/// The file cannot be read, or is no key.
pub fn read(path: &Path) -> Result<SigningKey> {
    of_bytes(path, &fs::read(path).map_err(|error| Error::io("read", path, &error))?)
}

/// Makes a secret key, and never in the place of another file.
///
/// # Errors
/// The file is there, or cannot be written.
pub fn create(path: &Path) -> Result<SigningKey> {
    let key = SigningKey::generate().map_err(|error| Error::failure(format_args!("no key was made: {error}")))?;
    let mut options = fs::File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(path).and_then(|mut file| file.write_all(&key.seed()));
    written.map_err(|error| Error::io("write", path, &error))?;
    Ok(key)
}

/// Reads a secret key, or makes it where there is none.
///
/// # Errors
/// As [`read`] and [`create`].
pub fn read_or_create(path: &Path) -> Result<SigningKey> {
    match fs::read(path) {
        Ok(bytes) => of_bytes(path, &bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => create(path),
        Err(error) => Err(Error::io("read", path, &error)),
    }
}

fn of_bytes(path: &Path, bytes: &[u8]) -> Result<SigningKey> {
    let seed = <[u8; 32]>::try_from(bytes);
    let line = || Error::failure(format_args!("{} has {} bytes; a key has 32", path.display(), bytes.len()));
    Ok(SigningKey::from_seed(seed.map_err(|_| line())?))
}
