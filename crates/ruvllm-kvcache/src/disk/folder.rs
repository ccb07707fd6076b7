//! The cache folder: one subfolder per identity, its manifest, and the lock that keeps two processes apart.
//!
//! ```text
//! <folder>/1f0c….lock            held by the process that has the store open; never removed
//! <folder>/1f0c…/MANIFEST        format version, identity and label, as text
//! <folder>/1f0c…/0000….seg       segments
//! ```
//! A subfolder is named by the first half of the identity in hexadecimal.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use xxhash_rust::xxh3::xxh3_64;

use super::segment::sync_folder;
use super::{DiskStore, FORMAT_VERSION, StoreOptions, contents, io_error};
use crate::error::{DiskFault, KvError};

/// How often a lock that is held is tried again.
const N_TRIES_MAX: usize = 60;
/// The longest label, in bytes.
const LABEL_MAX: usize = 100;

/// A store in a cache folder, as [`stores`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreInfo {
    /// Its identity.
    pub identity: [u8; 32],
    /// Its label: [`StoreOptions::label`] when it was made.
    pub label: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// When it was last written to.
    pub used: SystemTime,
    /// Some process has it open.
    pub in_use: bool,
}

/// Holds the lock of a store until it is dropped, or its process ends however.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of the store at `path`, creating the folder that `path` is in.
    ///
    /// # Errors
    /// Another process, or another store of this process, holds it; or the folder cannot be written.
    pub(super) fn take(path: &Path) -> Result<Lock, KvError> {
        if let Some(folder) = path.parent() {
            create(folder)?;
        }
        let lock_path = path.with_extension("lock");
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock_path);
        let mut file = open.map_err(|error| io_error("open", &lock_path, &error))?;
        let mut n_tries = 0;
        while let Err(error) = file.try_lock() {
            match error {
                // A list of stores holds each lock for a moment.
                TryLockError::WouldBlock if n_tries < N_TRIES_MAX => std::thread::sleep(Duration::from_millis(5)),
                TryLockError::WouldBlock => return Err(in_use(path, &lock_path)),
                TryLockError::Error(error) => return Err(io_error("lock", &lock_path, &error)),
            }
            n_tries += 1;
        }
        // The number is for people only: the lock counts, not the file.
        let noted = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        noted.map_err(|error| io_error("write", &lock_path, &error))?;
        Ok(Lock { _file: file })
    }
}

/// Says who holds a lock.
fn in_use(path: &Path, lock_path: &Path) -> KvError {
    let pid = read_start(lock_path).ok().and_then(|bytes| str::from_utf8(&bytes).ok()?.trim().parse::<u32>().ok());
    let by = pid.map_or("another process".to_owned(), |pid| format!("process {pid}"));
    let line = format!("cache folder {} is in use by {by}; end it or choose another folder", path.display());
    KvError::disk(DiskFault::Locked, line)
}

/// Creates a folder for its owner only, and those it is in.
pub(super) fn create(folder: &Path) -> Result<(), KvError> {
    private::create_folders(folder).map_err(|error| {
        let line =
            format!("cannot create cache folder {}: {error}; choose a folder that can be written", folder.display());
        KvError::disk(DiskFault::Io, line)
    })
}

/// Returns where in `folder` the store of this identity lies.
pub(super) fn path(folder: &Path, identity: &[u8; 32]) -> PathBuf {
    folder.join(hex::encode(&identity[..16]))
}

/// Writes the manifest of a new store, or checks the one that is there. Returns whether it was damaged.
///
/// A damaged manifest is written anew: every segment names the identity too, so nothing foreign can get in.
///
/// # Errors
/// The store is of another format version or identity, or cannot be read or written.
pub(super) fn check_manifest(path: &Path, options: &StoreOptions) -> Result<bool, KvError> {
    let identity = &options.identity;
    let file = path.join("MANIFEST");
    let found = match read_start(&file) {
        Ok(bytes) => Some(Manifest::decode(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error("read", &file, &error)),
    };
    let is_new = found.is_none();
    if let Some(Some(Manifest { version, identity: other, .. })) = found {
        let folder = path.display();
        if version != FORMAT_VERSION {
            let line = format!(
                "cache folder {folder} has format version {version}, this program reads {FORMAT_VERSION}; \
                 remove it or choose another folder"
            );
            return Err(KvError::disk(DiskFault::Version, line));
        }
        if other != *identity {
            let (there, here) = (hex::encode(other), hex::encode(identity));
            let line = format!(
                "cache folder {folder} is of another model or other settings (identity {there}, not {here}); \
                 remove it or choose another folder"
            );
            return Err(KvError::disk(DiskFault::Identity, line));
        }
        return Ok(false);
    }
    let manifest = Manifest { version: FORMAT_VERSION, identity: *identity, label: short_label(&options.label) };
    write_manifest(path, &manifest).map_err(|error| io_error("write", &file, &error))?;
    Ok(!is_new)
}

/// Reads as much of a file as a manifest can be long.
fn read_start(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(1024).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What the manifest of a store says.
struct Manifest {
    version: u32,
    identity: [u8; 32],
    label: String,
}

impl Manifest {
    fn encode(&self) -> String {
        let Manifest { version, identity, label } = self;
        let body = format!("ruvllm kv store\nversion {version}\nidentity {}\nlabel {label}\n", hex::encode(identity));
        format!("{body}check {:016x}\n", xxh3_64(body.as_bytes()))
    }

    /// Reads one back if it is intact.
    fn decode(bytes: &[u8]) -> Option<Manifest> {
        let mut lines = str::from_utf8(bytes).ok()?.lines().skip(1);
        let version = lines.next()?.strip_prefix("version ")?.parse().ok()?;
        let digits = lines.next()?.strip_prefix("identity ")?.as_bytes();
        let mut identity = [0; 32];
        for (byte, pair) in identity.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?;
        }
        let label = lines.next()?.strip_prefix("label ")?.to_owned();
        let manifest = Manifest { version, identity, label };
        (manifest.encode().as_bytes() == bytes).then_some(manifest)
    }
}

/// Returns a label that fits one line.
fn short_label(label: &str) -> String {
    let mut short: String = label.chars().filter(|c| !c.is_control()).collect();
    short.truncate(short.floor_char_boundary(LABEL_MAX));
    short
}

fn write_manifest(path: &Path, manifest: &Manifest) -> io::Result<()> {
    let temporary = path.join("MANIFEST.new");
    let mut file = File::create(&temporary)?;
    file.write_all(manifest.encode().as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path.join("MANIFEST"))?;
    sync_folder(path)
}

/// Lists the stores of a cache folder, the last used first. A folder that does not exist has none.
///
/// # Errors
/// The folder cannot be read.
pub fn stores(folder: &Path) -> Result<Vec<StoreInfo>, KvError> {
    let failed = |error| io_error("read", folder, &error);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let at = entry.map_err(failed)?.path();
        let manifest = read_start(&at.join("MANIFEST")).ok().and_then(|bytes| Manifest::decode(&bytes));
        let Some(Manifest { identity, label, .. }) = manifest else { continue };
        if path(folder, &identity) == at {
            let (bytes, used) = measure(&at).map_err(failed)?;
            found.push(StoreInfo { identity, label, bytes, used, in_use: is_locked(&at.with_extension("lock")) });
        }
    }
    found.sort_by_key(|store| std::cmp::Reverse(store.used));
    Ok(found)
}

/// Returns bytes and last change of the files in `path`.
fn measure(path: &Path) -> io::Result<(u64, SystemTime)> {
    let (mut bytes, mut used) = (0, SystemTime::UNIX_EPOCH);
    for entry in fs::read_dir(path)? {
        let about = match entry?.metadata() {
            // The store is in use and gave a segment up just now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            about => about?,
        };
        bytes += about.len();
        used = used.max(about.modified()?);
    }
    Ok((bytes, used))
}

/// Tells whether some process holds a lock, without waiting for it.
fn is_locked(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Removes a store that nobody has open, and returns the bytes it had. One that is not there has none.
///
/// # Errors
/// It is in use, or cannot be removed.
pub fn remove(folder: &Path, identity: &[u8; 32]) -> Result<u64, KvError> {
    let path = path(folder, identity);
    if !path.exists() {
        return Ok(0);
    }
    let _lock = Lock::take(&path)?;
    if !path.exists() {
        return Ok(0);
    }
    let (bytes, _) = measure(&path).map_err(|error| io_error("read", &path, &error))?;
    fs::remove_dir_all(&path).map_err(|error| io_error("remove", &path, &error))?;
    Ok(bytes)
}

/// Removes stores that nobody has open, the longest unused first, until all together have at most `max_bytes`; of those
/// that hold sessions, the blocks. Returns the bytes removed.
///
/// [`StoreOptions::max_bytes`](super::StoreOptions::max_bytes) bounds one store; a model that is not used any more
/// leaves its store behind, and this is what clears it away.
///
/// # Errors
/// The folder cannot be read or a store cannot be removed.
pub fn trim(folder: &Path, max_bytes: u64) -> Result<u64, KvError> {
    let stores = stores(folder)?;
    let (mut left, mut removed) = (stores.iter().map(|store| store.bytes).sum::<u64>(), 0);
    for store in stores.iter().rev().filter(|store| !store.in_use) {
        if left <= max_bytes {
            break;
        }
        match shrink(folder, store) {
            Ok(bytes) => (left, removed) = (left.saturating_sub(bytes), removed + bytes),
            // Somebody opened it in between: it is used after all.
            Err(error) if error.kind() == crate::KvErrorKind::Disk(DiskFault::Locked) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(removed)
}

/// Removes a store that nobody has open, or its blocks if it holds sessions. Returns the bytes removed.
fn shrink(folder: &Path, store: &StoreInfo) -> Result<u64, KvError> {
    if contents(folder, &store.identity)?.sessions.is_empty() {
        return remove(folder, &store.identity);
    }
    let open = DiskStore::open(folder, StoreOptions::new(store.identity))?;
    open.expire_blocks(Duration::ZERO)?;
    let path = open.path().to_owned();
    drop(open);
    let (bytes, _) = measure(&path).map_err(|error| io_error("read", &path, &error))?;
    Ok(store.bytes.saturating_sub(bytes))
}

/// What others wrote to the model is nobody else's business: folders of ours are for their owner only.
#[cfg(unix)]
mod private {
    use std::os::unix::fs::DirBuilderExt;

    pub(super) fn create_folders(path: &std::path::Path) -> std::io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }
}

/// Elsewhere the folder above decides who may read.
#[cfg(not(unix))]
mod private {
    pub(super) fn create_folders(path: &std::path::Path) -> std::io::Result<()> {
        std::fs::create_dir_all(path)
    }
}
