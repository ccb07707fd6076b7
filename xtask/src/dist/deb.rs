//! Debian packages: an `ar` archive of two `tar.gz` files.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;

/// A file of a package or an archive.
pub(super) struct Entry {
    /// Path without a slash in front.
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
    /// Whether a person changes it, and keeps it when another version is installed.
    pub(super) is_config: bool,
}

impl Entry {
    /// A file that everybody may read.
    pub(super) fn new(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Entry {
        Entry { path: path.into(), bytes: bytes.into(), mode: 0o644, is_config: false }
    }

    /// A program.
    pub(super) fn program(path: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Entry {
        Entry { mode: 0o755, ..Entry::new(path, bytes) }
    }
}

/// Returns a package of files, with the fields of its control file and its scripts by their names.
///
/// # Errors
/// Memory cannot be written, which does not happen.
pub(super) fn package(control: &str, scripts: &[(&str, &str)], files: &[Entry]) -> Result<Vec<u8>> {
    let mut control_files = vec![Entry::new("control", control)];
    let conffiles: Vec<String> =
        files.iter().filter(|file| file.is_config).map(|file| format!("/{}\n", file.path)).collect();
    if !conffiles.is_empty() {
        control_files.push(Entry::new("conffiles", conffiles.concat()));
    }
    control_files.extend(scripts.iter().map(|(name, text)| Entry::program(*name, *text)));
    let mut builder = ar::Builder::new(Vec::new());
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", tar_gz(&control_files)?),
        ("data.tar.gz", tar_gz(files)?),
    ];
    for (name, bytes) in members {
        let mut header = ar::Header::new(name.as_bytes().to_vec(), bytes.len() as u64);
        header.set_mode(0o100_644);
        builder.append(&header, &bytes[..]).with_context(|| format!("cannot add {name}"))?;
    }
    Ok(builder.into_inner()?)
}

/// Returns a `tar.gz` of files with the folders that they lie in. It has the same bytes each time.
///
/// # Errors
/// A path that is too long.
pub(super) fn tar_gz(files: &[Entry]) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    let mut folders = BTreeSet::new();
    for file in files {
        let mut path = file.path.as_str();
        while let Some((folder, _)) = path.rsplit_once('/') {
            folders.insert(format!("{folder}/"));
            path = folder;
        }
    }
    for folder in folders {
        let mut header = header(0o755, 0);
        header.set_entry_type(tar::EntryType::Directory);
        tar.append_data(&mut header, &folder, std::io::empty())?;
    }
    for file in files {
        tar.append_data(&mut header(file.mode, file.bytes.len() as u64), &file.path, &file.bytes[..])?;
    }
    Ok(tar.into_inner()?.finish()?)
}

fn header(mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Returns bytes in gzip, with nothing of their time or name.
///
/// # Errors
/// Memory cannot be written, which does not happen.
pub(super) fn gz(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn a_package_has_its_files_with_their_modes_and_the_same_bytes_each_time() {
        let control = "Package: tiny\nVersion: 1\nArchitecture: amd64\nMaintainer: x\nDescription: y\n";
        let config = Entry { is_config: true, ..Entry::new("etc/tiny.toml", "a = 1\n") };
        let files = [Entry::program("usr/bin/tiny", "#!/bin/sh\n"), config];
        let make = || package(control, &[("postinst", "#!/bin/sh\n")], &files).expect("a package");
        let bytes = make();
        assert_eq!(bytes, make(), "the same bytes");
        assert!(bytes.starts_with(b"!<arch>\ndebian-binary   "));
        let mut archive = ar::Archive::new(&bytes[..]);
        let mut listed = Vec::new();
        while let Some(member) = archive.next_entry() {
            let mut member = member.expect("a member");
            let name = String::from_utf8_lossy(member.header().identifier()).into_owned();
            let mut bytes = Vec::new();
            member.read_to_end(&mut bytes).expect("its bytes");
            if name == "debian-binary" {
                assert_eq!(bytes, b"2.0\n");
                continue;
            }
            for entry in tar::Archive::new(GzDecoder::new(&bytes[..])).entries().expect("entries") {
                let entry = entry.expect("an entry");
                let (path, mode) = (entry.path().expect("a path").display().to_string(), entry.header().mode());
                listed.push(format!("{name} {:o} {path}", mode.expect("a mode")));
            }
        }
        assert_eq!(
            listed,
            [
                "control.tar.gz 644 control",
                "control.tar.gz 644 conffiles",
                "control.tar.gz 755 postinst",
                "data.tar.gz 755 etc/",
                "data.tar.gz 755 usr/",
                "data.tar.gz 755 usr/bin/",
                "data.tar.gz 755 usr/bin/tiny",
                "data.tar.gz 644 etc/tiny.toml",
            ]
        );
    }
}
