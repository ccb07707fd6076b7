//! Names the code that computes keys and values by a hash of its sources, so that what another build left in a cache
//! folder is not taken for this one's: two builds of one version may round differently.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// What decides how keys and values come out. Where the kernels are not beside this crate, they come from a registry,
/// and their version is this crate's.
const SOURCES: [&str; 2] = ["src/model", "../ruvllm-kernels/src"];

fn main() -> io::Result<()> {
    let mut hasher = DefaultHasher::new();
    for folder in SOURCES.map(Path::new).into_iter().filter(|folder| folder.is_dir()) {
        println!("cargo::rerun-if-changed={}", folder.display());
        let mut files = Vec::new();
        list(folder, &mut files)?;
        files.sort();
        for file in files {
            hasher.write(file.to_string_lossy().as_bytes());
            hasher.write(&fs::read(&file)?);
        }
    }
    println!("cargo::rustc-env=RUVLLM_SOURCES_HASH={:016x}", hasher.finish());
    Ok(())
}

/// Lists the files in a folder and those below it.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
