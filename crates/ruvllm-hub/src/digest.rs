//! Length and SHA-256 of files.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::progress::Progress;

/// Size and digest of a file, as far as they are known before it is fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// SHA-256, lower-case hexadecimal.
    pub sha256: Option<String>,
    /// Length in bytes.
    pub n_bytes: Option<u64>,
    /// SHA-256 of files that earlier versions of this program made of the same source: they stay in use where they are there.
    pub earlier: Vec<String>,
}

impl Expected {
    /// Returns whether a file with this SHA-256 is the one, or one of an earlier version.
    pub fn is_known(&self, sha256: &str) -> bool {
        self.sha256.as_ref().is_none_or(|sha| sha == sha256) || self.earlier.iter().any(|sha| sha == sha256)
    }

    /// Checks what arrived: the SHA-256 and length where they are known, the GGUF magic always.
    ///
    /// # Errors
    /// One line that says what differs.
    pub fn verify(&self, arrived: &Digested) -> Result<(), String> {
        if let Some(n_bytes) = self.n_bytes.filter(|n| *n != arrived.n_bytes) {
            return Err(format!("the file has {} bytes, expected {n_bytes}", arrived.n_bytes));
        }
        if let Some(sha256) = self.sha256.as_ref().filter(|sha| **sha != arrived.sha256) {
            return Err(format!("the file has sha256 {}, expected {sha256}", arrived.sha256));
        }
        if arrived.magic != *b"GGUF" {
            return Err("the file is not a GGUF file (its first bytes are not 'GGUF')".to_owned());
        }
        Ok(())
    }
}

/// Length, SHA-256 and first bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digested {
    /// Length in bytes.
    pub n_bytes: u64,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: String,
    /// The first four bytes; zeros where the file is shorter.
    pub magic: [u8; 4],
}

/// Copies every reader to `out` in order, hashing on the way; `on_bytes` hears of every piece.
///
/// # Errors
/// The first read or write error.
pub(crate) fn copy_digesting(
    readers: &mut dyn Iterator<Item = io::Result<Box<dyn Read + '_>>>,
    out: &mut dyn Write,
    on_bytes: &dyn Fn(u64),
) -> io::Result<Digested> {
    let (mut hash, mut digested) = (Sha256::new(), Digested::default());
    let mut buffer = vec![0u8; 1 << 20];
    for reader in readers {
        let mut reader = reader?;
        loop {
            let n = reader.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            let seen = digested.n_bytes as usize;
            for (slot, byte) in digested.magic.iter_mut().skip(seen).zip(&buffer[..n]) {
                *slot = *byte;
            }
            hash.update(&buffer[..n]);
            out.write_all(&buffer[..n])?;
            digested.n_bytes += n as u64;
            on_bytes(n as u64);
        }
    }
    digested.sha256 = hex::encode(hash.finalize());
    Ok(digested)
}

/// Returns length, SHA-256 and magic of a file.
///
/// # Errors
/// The read error.
pub(crate) fn digest_file(path: &Path, progress: &dyn Progress) -> io::Result<Digested> {
    let file = File::open(path)?;
    let task = progress.begin("verifying", Some(file.metadata()?.len()));
    let mut readers = std::iter::once(Ok(Box::new(file) as Box<dyn Read>));
    copy_digesting(&mut readers, &mut io::sink(), &|n| task.add(n))
}

/// Returns the SHA-256 of bytes, lower-case hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(parts: &[&[u8]]) -> (Vec<u8>, Digested) {
        let mut out = Vec::new();
        let mut readers = parts.iter().map(|part| Ok(Box::new(*part) as Box<dyn Read>));
        let digested = copy_digesting(&mut readers, &mut out, &|_| ()).expect("memory does not fail");
        (out, digested)
    }

    #[test]
    fn parts_are_joined_and_hashed_as_one() {
        let (out, digested) = join(&[b"GG", b"", b"UFabc"]);
        assert_eq!(out, b"GGUFabc");
        assert_eq!(digested, join(&[b"GGUFabc"]).1);
        assert_eq!((digested.n_bytes, digested.magic), (7, *b"GGUF"));
        // printf abc | sha256sum
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(join(&[b"a", b"bc"]).1.sha256, abc);
        assert_eq!(sha256(b"abc"), abc);
    }

    #[test]
    fn what_arrives_must_be_what_is_expected() {
        let digested = join(&[b"GGUF..."]).1;
        let expected = |sha256: Option<&str>, n_bytes| Expected {
            sha256: sha256.map(str::to_owned),
            n_bytes,
            ..Expected::default()
        };
        assert_eq!(expected(None, None).verify(&digested), Ok(()));
        assert_eq!(expected(Some(&digested.sha256), Some(7)).verify(&digested), Ok(()));
        assert!(expected(Some("00"), None).verify(&digested).is_err_and(|e| e.contains("sha256")));
        assert!(expected(None, Some(8)).verify(&digested).is_err_and(|e| e.contains("7 bytes")));
        let earlier = Expected { earlier: vec!["11".to_owned()], ..expected(Some("00"), None) };
        assert!(earlier.is_known("00") && earlier.is_known("11") && !earlier.is_known("22"));
        assert!(expected(None, None).verify(&join(&[b"PK"]).1).is_err_and(|e| e.contains("not a GGUF")));
    }
}
