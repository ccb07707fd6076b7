//! What tells one model file from all others: a hash of every byte of it.
//!
//! A cache folder is shared by processes and outlives files, so a sample of the bytes is not enough to name what lies
//! in it. Hashing takes some 0.01 s for 100 MB on two cores, so it is done once a file: the folder remembers the hash with
//! the file's place, size and times, and does not believe it when one of them has changed.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use ruvllm_gguf::GgufFile;
use ruvllm_kvcache::NamespaceBuilder;

/// Bytes that one thread hashes at a time. The hash depends on it.
pub const PIECE: usize = 4 << 20;

/// How long ago a file's last change must be for its hash to be kept: a second change within the same tick of the file
/// system's clock would not show.
const SETTLED: Duration = Duration::from_secs(2);

/// Returns the hash of a model's files: what `folder` remembers, else of their bytes, on `n_threads` threads.
pub fn remembered_hash(file: &GgufFile, folder: &Path, n_threads: usize) -> [u8; 32] {
    let before = facts(file).ok();
    let path = record_path(folder, file);
    let known = fs::read_to_string(&path).ok().zip(before.as_ref());
    if let Some(hash) = known.and_then(|(text, facts)| decode(&text, &facts.text)) {
        return hash;
    }
    let hash = content_hash(file, n_threads);
    if let Some(facts) = before.filter(|facts| facts.is_settled) {
        // A folder that cannot be written costs the next start this much time, no more.
        let text = encode(&facts.text, &hash);
        let _ = in_one_step(&path, |path| fs::write(path, text));
    }
    hash
}

/// Hashes the bytes of every part: BLAKE3 of pieces, which every CPU does fast, and SHA-256 of the pieces' hashes.
///
/// # Panics
/// If the file is read piece by piece ([`GgufFile::has_data`]).
pub fn content_hash(file: &GgufFile, n_threads: usize) -> [u8; 32] {
    assert!(file.has_data(), "a file that is read piece by piece is not hashed");
    let parts: Vec<&[u8]> = file.bytes().map(|bytes| &bytes[..]).collect();
    let hashes = by_pieces(&parts, n_threads, |piece| *blake3::hash(piece).as_bytes());
    let lengths = file.bytes().map(|bytes| (bytes.len() as u64).to_le_bytes());
    let builder = lengths.fold(NamespaceBuilder::new("model files 2"), |builder, len| builder.part("length", &len));
    builder.part("pieces", hashes.as_flattened()).identity()
}

/// Hashes pieces of 4 MiB on some threads.
pub fn by_pieces<const N: usize>(parts: &[&[u8]], n_threads: usize, hash: fn(&[u8]) -> [u8; N]) -> Vec<[u8; N]> {
    let pieces: Vec<&[u8]> = parts.iter().flat_map(|bytes| bytes.chunks(PIECE)).collect();
    let (next, hashes) = (AtomicUsize::new(0), Mutex::new(vec![[0; N]; pieces.len()]));
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(i) else { return };
            let hash = hash(piece);
            hashes.lock().expect("no thread panics while it holds the lock")[i] = hash;
        }
    };
    thread::scope(|scope| {
        for _ in 1..n_threads.min(pieces.len()) {
            scope.spawn(work);
        }
        work();
    });
    hashes.into_inner().expect("no thread panicked")
}

/// What the system says of a model's files.
struct Facts {
    /// A line a file.
    text: String,
    /// None of them changed just now.
    is_settled: bool,
}

fn facts(file: &GgufFile) -> io::Result<Facts> {
    let (mut text, mut is_settled) = (String::new(), true);
    for (path, bytes) in file.paths().zip(file.bytes()) {
        let (about, path) = (fs::metadata(path)?, fs::canonicalize(path)?);
        // Of another length than the map: it is another file by now.
        is_settled &= is_old(about.modified()?) && about.len() == bytes.len() as u64;
        text.push_str(&format!("{} {} {:?}\n", about.len(), marks(&about)?, path));
    }
    Ok(Facts { text, is_settled })
}

fn is_old(time: SystemTime) -> bool {
    time.elapsed().is_ok_and(|age| age >= SETTLED)
}

/// Returns what changes with the file's contents or when another takes its place.
#[cfg(unix)]
fn marks(about: &Metadata) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let (modified, changed) = ((about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec()));
    Ok(format!("{}:{} {modified:?} {changed:?}", about.dev(), about.ino()))
}

#[cfg(not(unix))]
fn marks(about: &Metadata) -> io::Result<String> {
    Ok(format!("{:?} {:?}", about.modified()?, about.created()?))
}

/// Returns where the hash of a model's files is remembered.
fn record_path(folder: &Path, file: &GgufFile) -> PathBuf {
    let full = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let paths: Vec<PathBuf> = file.paths().map(full).collect();
    let name = NamespaceBuilder::new("paths").part("paths", format!("{paths:?}").as_bytes()).finish();
    folder.join("models").join(name.to_string())
}

fn encode(facts: &str, hash: &[u8; 32]) -> String {
    let body = format!("{facts}{}\n", hex::encode(hash));
    format!("{body}{}\n", NamespaceBuilder::new("check").part("body", body.as_bytes()).finish())
}

/// Returns the hash of a record that is intact and of these facts.
fn decode(text: &str, facts: &str) -> Option<[u8; 32]> {
    let digits = text.strip_prefix(facts)?.lines().next()?;
    let mut hash = [0; 32];
    hex::decode_to_slice(digits, &mut hash).ok()?;
    (encode(facts, &hash) == text).then_some(hash)
}

/// Makes a file in one step, so that no reader sees half of it: `write` makes it under another name. The folder is made
/// where it is missing.
fn in_one_step(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)?;
    let temporary = path.with_extension(format!("{}.new", std::process::id()));
    let written = write(&temporary).and_then(|()| fs::rename(&temporary, path));
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruvllm_testkit::Golden;

    fn open(path: &Path) -> GgufFile {
        GgufFile::open(path).expect("a golden file is sound")
    }

    /// Sets when the file was last written, so that it need not be waited for.
    fn set_age(path: &Path, age_s: u64) {
        let file = fs::File::options().append(true).open(path).expect("a file of this test");
        file.set_modified(SystemTime::now() - Duration::from_secs(age_s)).expect("times can be set");
    }

    #[test]
    fn every_byte_and_no_thread_count_decides() {
        let bytes = fs::read(Golden::load("llama-a").model("f32")).expect("a golden file");
        let of = |bytes: &[u8], n_threads| {
            let file = GgufFile::from_bytes(bytes.to_vec().into()).expect("a golden file is sound");
            content_hash(&file, n_threads)
        };
        let whole = of(&bytes, 1);
        assert_eq!(of(&bytes, 3), whole);
        // The last bytes are a weight's.
        for at in [bytes.len() - 1, bytes.len() - 4096] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(of(&other, 2), whole, "byte {at}");
        }
    }

    #[test]
    fn what_is_remembered_holds_until_the_file_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.gguf");
        fs::copy(Golden::load("llama-a").model("f32"), &path).expect("a golden file");
        let record = || fs::read_to_string(record_path(folder.path(), &open(&path))).ok();
        let first = remembered_hash(&open(&path), folder.path(), 1);
        assert_eq!(record(), None, "it was changed just now");
        set_age(&path, 60);
        assert_eq!(remembered_hash(&open(&path), folder.path(), 1), first);
        let text = record().expect("the file is old enough");
        // It is believed, so a wrong one would be too; a damaged one is not.
        let facts = facts(&open(&path)).expect("a file").text;
        fs::write(record_path(folder.path(), &open(&path)), encode(&facts, &[7; 32])).expect("a record");
        assert_eq!(remembered_hash(&open(&path), folder.path(), 1), [7; 32]);
        fs::write(record_path(folder.path(), &open(&path)), text.replace(&hex::encode(first), &hex::encode([8; 32])))
            .expect("one");
        assert_eq!(remembered_hash(&open(&path), folder.path(), 1), first);
        // The same length, another weight, another time.
        let mut bytes = fs::read(&path).expect("the file");
        *bytes.last_mut().expect("a byte") ^= 1;
        fs::write(&path, &bytes).expect("the file can be written");
        assert_ne!(remembered_hash(&open(&path), folder.path(), 1), first);
        set_age(&path, 50);
        assert_ne!(remembered_hash(&open(&path), folder.path(), 1), first);
    }
}
