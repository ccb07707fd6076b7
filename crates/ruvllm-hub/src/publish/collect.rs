//! The files that are published.

use std::fs;
use std::path::Path;

use crate::digest::digest_file;
use crate::error::{HubError, HubErrorKind};
use crate::progress::Progress;
use crate::publish::PublishedFile;
use crate::shards::ShardName;

/// The most files of a publication.
const N_FILES_MAX: usize = 1000;
/// The deepest folder in a folder that is published.
const DEPTH_MAX: usize = 8;

/// Returns a model file, with the others of a model in several, or the files of a folder.
pub(super) fn files(path: &Path, progress: &dyn Progress) -> Result<Vec<PublishedFile>, HubError> {
    let metadata = fs::metadata(path).map_err(|error| HubError::io("open", path, &error))?;
    let mut files = Vec::new();
    if metadata.is_dir() {
        folder(path, "", 0, &mut files)?;
    } else {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match ShardName::parse(&name) {
            Some(shard) if shard.no != 1 => {
                return Err(invalid(
                    path,
                    &format!("it is part {} of {}; publish the first one", shard.no, shard.count),
                ));
            }
            Some(shard) => {
                files.extend((1..=shard.count).map(|no| (shard.part(no), path.with_file_name(shard.part(no)))));
            }
            None => files.push((name, path.to_owned())),
        }
    }
    if !files.iter().any(|(name, _)| name.ends_with(".gguf") || name.ends_with(".safetensors")) {
        return Err(invalid(path, "it holds no model and no adapter (.gguf or .safetensors)"));
    }
    files.sort();
    files.into_iter().map(|(name, path)| read(name, &path, progress)).collect()
}

/// Adds the files of a folder; what begins with '.' is left out.
fn folder(
    path: &Path,
    prefix: &str,
    depth: usize,
    out: &mut Vec<(String, std::path::PathBuf)>,
) -> Result<(), HubError> {
    let io = |error: std::io::Error| HubError::io("read", path, &error);
    for entry in fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?;
        let (kind, path) = (entry.file_type().map_err(io)?, entry.path());
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| invalid(&path, "its name is not UTF-8"))?;
        if name.starts_with('.') {
            continue;
        }
        let name = format!("{prefix}{name}");
        if kind.is_dir() {
            if depth == DEPTH_MAX {
                return Err(invalid(&path, &format!("more than {DEPTH_MAX} folders lie in one another")));
            }
            folder(&path, &format!("{name}/"), depth + 1, out)?;
        } else if kind.is_file() {
            out.push((name, path.clone()));
        } else {
            // A link may lead to anything of this machine.
            return Err(invalid(&path, "it is a link or no file; publish a folder of plain files"));
        }
        if out.len() > N_FILES_MAX {
            return Err(invalid(&path, &format!("the folder has more than {N_FILES_MAX} files")));
        }
    }
    Ok(())
}

fn read(name: String, path: &Path, progress: &dyn Progress) -> Result<PublishedFile, HubError> {
    let digest = digest_file(path, progress).map_err(|error| HubError::io("read", path, &error))?;
    if name.ends_with(".gguf") && digest.magic != *b"GGUF" {
        return Err(invalid(path, "it is not a GGUF file (its first bytes are not 'GGUF')"));
    }
    let (n_bytes, sha256) = (digest.n_bytes, digest.sha256);
    Ok(PublishedFile { name, path: Some(path.to_owned()), text: None, n_bytes, sha256 })
}

fn invalid(path: &Path, line: &str) -> HubError {
    HubError::new(HubErrorKind::Invalid, format_args!("cannot publish {}: {line}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    #[test]
    fn folders_are_read_and_links_are_refused() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
            fs::write(path, text).expect("writable");
        };
        write("notes.txt", "x");
        let line = files(dir.path(), &Silent).expect_err("no model").to_string();
        assert!(line.contains("holds no model"), "{line}");
        write("m-00001-of-00002.gguf", "GGUF1");
        write("m-00002-of-00002.gguf", "GGUF2");
        write("d/a.safetensors", "x");
        write(".git/config", "secret");
        let names = |path: &Path| -> Vec<String> {
            files(path, &Silent).expect("files").into_iter().map(|file| file.name).collect()
        };
        assert_eq!(
            names(dir.path()),
            ["d/a.safetensors", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "notes.txt"]
        );
        assert_eq!(names(&dir.path().join("m-00001-of-00002.gguf")).len(), 2);
        assert!(files(&dir.path().join("m-00002-of-00002.gguf"), &Silent).is_err());
        write("x.gguf", "PK");
        assert!(
            files(&dir.path().join("x.gguf"), &Silent).expect_err("no model").to_string().contains("not a GGUF file")
        );
        #[cfg(unix)]
        {
            fs::remove_file(dir.path().join("x.gguf")).expect("removable");
            std::os::unix::fs::symlink("/etc/passwd", dir.path().join("p")).expect("a link");
            assert!(files(dir.path(), &Silent).expect_err("a link").to_string().contains("it is a link"));
        }
    }
}
