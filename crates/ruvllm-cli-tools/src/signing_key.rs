//! Files with a secret key to sign with: 32 bytes, readable by their owner only.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use ruvllm_learning::SigningKey;

use crate::error::{Error, Result};
use crate::out_file::folder_of;

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
    let key = generate()?;
    write_new(path, &key).map_err(|error| Error::io("write", path, &error))?;
    Ok(key)
}

/// Reads a secret key, or makes it where there is none.
///
/// # Errors
/// As [`read`] and [`create`].
pub fn read_or_create(path: &Path) -> Result<SigningKey> {
    match fs::read(path) {
        Ok(bytes) => of_bytes(path, &bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = generate()?;
            match write_new(path, &key) {
                Ok(()) => Ok(key),
                // Another process has made one meanwhile.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(path),
                Err(error) => Err(Error::io("write", path, &error)),
            }
        }
        Err(error) => Err(Error::io("read", path, &error)),
    }
}

fn generate() -> Result<SigningKey> {
    SigningKey::generate().map_err(|error| Error::failure(format_args!("no key was made: {error}")))
}

/// Writes a key that nobody finds before it is whole.
fn write_new(path: &Path, key: &SigningKey) -> io::Result<()> {
    // Such files are their owner's only.
    let mut part = tempfile::Builder::new().prefix(".ruvllm-").tempfile_in(folder_of(path))?;
    part.write_all(&key.seed())?;
    part.as_file().sync_all()?;
    part.persist_noclobber(path).map(drop).map_err(|error| error.error)
}

fn of_bytes(path: &Path, bytes: &[u8]) -> Result<SigningKey> {
    let seed = <[u8; 32]>::try_from(bytes);
    let line = || Error::failure(format_args!("{} has {} bytes; a key has 32", path.display(), bytes.len()));
    Ok(SigningKey::from_seed(seed.map_err(|_| line())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_ask_at_once_have_one_key() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("node.key");
        let ask = || read_or_create(&path).expect("a key").public().to_string();
        let keys: Vec<String> = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            asking.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        let refused = create(&path).err().and_then(|error| error.line());
        assert!(refused.is_some_and(|line| line.contains("node.key")));
    }
}
