//! Repacked weights kept in the cache folder: the next process maps what the first one made.
//!
//! Taking fresh memory from the system and repacking into it is most of the life of a process that answers once. A file
//! holds a model's panels in the order in which loading asks for them, then [`Trailer`]. It is named by what was
//! packed and by the sources of what packs it, and a fingerprint of its bytes is checked before one of them is used:
//! a file that a power failure left half written is removed and made again.
//!
//! The first process packs into the file where the system takes that much without waiting for the disk, and maps what it
//! wrote: no byte takes memory twice. Else it packs into memory of its own and writes behind its first answer. In either
//! case the file gets its trailer and its name behind that.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use ruvllm_backend::identity::by_pieces;
use ruvllm_gguf::{MappedFile, Watch};
use ruvllm_kernels::matmul::PanelSink;
use ruvllm_kvcache::NamespaceBuilder;
use ruvllm_kvcache::disk::fingerprint;

/// What the file ends with.
#[derive(Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Trailer {
    magic: [u8; 8],
    /// Bytes before the trailer, little-endian.
    n_bytes: [u8; 8],
    /// SHA-256 of the file's key and of the fingerprints of its pieces.
    hash: [u8; 32],
}

type Fingerprint = [u8; 16];

const MAGIC: [u8; 8] = *b"ruvllmW1";

/// How old a file in the making must be to have been left behind.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);

const FINISHED: &str = "panels";
const IN_THE_MAKING: &str = "making";

/// Repacked weights that an earlier process made.
pub(super) struct Packed {
    pub bytes: Bytes,
    /// Tells whether their file was cut.
    pub watch: Watch,
}

/// The file of one model's repacked weights, whether it is there or not.
#[derive(Clone)]
pub(super) struct PackedFile {
    path: PathBuf,
    key: [u8; 32],
    max_bytes: u64,
}

impl PackedFile {
    /// Names the file for the model of a content hash, in a cache folder that may have `max_bytes` of such files.
    pub(super) fn new(folder: &Path, identity: &[u8; 32], max_bytes: u64) -> PackedFile {
        let key = NamespaceBuilder::new("packed weights 1").part("model", identity);
        let key = key.part("numerics", &crate::NUMERICS_VERSION.to_le_bytes());
        let name = format!("{}.{FINISHED}", key.clone().finish());
        PackedFile { path: folder_of(folder).join(name), key: key.identity(), max_bytes }
    }

    /// Maps the weights, if they are there and sound, and marks them as used.
    pub(super) fn open(&self, n_threads: usize) -> Option<Packed> {
        let file = File::open(&self.path).ok()?;
        let found = MappedFile::new(&file).ok().and_then(|map| self.check(map, n_threads));
        match found {
            // What cannot be marked goes sooner, no more.
            Some(_) => drop(file.set_modified(SystemTime::now())),
            None => drop(fs::remove_file(&self.path)),
        }
        found
    }

    fn check(&self, map: MappedFile, n_threads: usize) -> Option<Packed> {
        let n_bytes = map.len().checked_sub(size_of::<Trailer>())?;
        let trailer: Trailer = bytemuck::pod_read_unaligned(&map[n_bytes..]);
        let prints = by_pieces(&[&map[..n_bytes]], n_threads, fingerprint);
        let watch = map.watch().clone();
        let is_sound = trailer == self.trailer(n_bytes, &prints) && !watch.is_cut();
        is_sound.then(|| Packed { bytes: Bytes::from_owner(map).slice(..n_bytes), watch })
    }

    fn trailer(&self, n_bytes: usize, prints: &[Fingerprint]) -> Trailer {
        let hash = NamespaceBuilder::new("packed weights 1").part("key", &self.key);
        let hash = hash.part("pieces", prints.as_flattened()).identity();
        Trailer { magic: MAGIC, n_bytes: (n_bytes as u64).to_le_bytes(), hash }
    }

    /// Begins to make the file, with room for `n_bytes`, after making room for it by those that were used longest ago.
    ///
    /// # Errors
    /// The system's, and if it is larger than all of them may be. Then no file is left.
    pub(super) fn begin(self, n_bytes: usize) -> io::Result<Making> {
        let n_file = n_bytes as u64 + size_of::<Trailer>() as u64;
        let room = self.max_bytes.checked_sub(n_file).ok_or(io::ErrorKind::FileTooLarge)?;
        let folder = self.path.parent().unwrap_or(&self.path);
        fs::create_dir_all(folder)?;
        trim(folder, room);
        Making::new(self, n_bytes)
    }

    /// Writes the file from memory.
    ///
    /// # Errors
    /// As [`PackedFile::begin`]; no part of a file is left either.
    fn save(self, weights: &[Bytes]) -> io::Result<()> {
        let making = self.begin(weights.iter().map(Bytes::len).sum())?;
        for part in weights {
            if let Some(at) = making.room(part.len()) {
                making.put(at, part);
            }
        }
        making.finish()
    }
}

/// A file in the making. It is removed unless it is finished.
pub(super) struct Making {
    target: PackedFile,
    path: PathBuf,
    file: Mutex<File>,
    /// All the room there is. What was not written is zeros.
    map: Bytes,
    /// Tells whether the file was cut.
    pub(super) watch: Watch,
    /// How much of it was given out.
    n_bytes: AtomicUsize,
    error: Mutex<Option<io::Error>>,
}

impl Making {
    fn new(target: PackedFile, n_bytes: usize) -> io::Result<Making> {
        // Two engines of a process may make the same file.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = target.path.with_extension(format!("{}-{count}.{IN_THE_MAKING}", std::process::id()));
        // Never one that is there: another process may map it.
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        let mapped = file.set_len(n_bytes.max(1) as u64).and_then(|()| MappedFile::new(&file));
        let map = mapped.inspect_err(|_| drop(fs::remove_file(&path)))?;
        let (file, n_bytes, error) = (file.into(), 0.into(), Mutex::default());
        let watch = map.watch().clone();
        Ok(Making { target, path, file, map: Bytes::from_owner(map), watch, n_bytes, error })
    }

    /// Returns whether something could not be written, so that the panels are not to be used.
    pub(super) fn has_failed(&self) -> bool {
        lock(&self.error).is_some() || self.watch.is_cut()
    }

    fn fail(&self, error: io::Error) {
        lock(&self.error).get_or_insert(error);
    }

    /// Gives the file its trailer and its name.
    ///
    /// # Errors
    /// The system's, that of an earlier write first. Then no part of a file is left.
    fn finish(self) -> io::Result<()> {
        if let Some(error) = lock(&self.error).take() {
            return Err(error);
        }
        let n_bytes = self.n_bytes.load(Ordering::Relaxed);
        let prints = by_pieces(&[&self.map[..n_bytes]], 1, fingerprint);
        if self.watch.is_cut() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let trailer = self.target.trailer(n_bytes, &prints);
        let mut file = lock(&self.file);
        file.set_len(n_bytes as u64)?;
        file.seek(SeekFrom::Start(n_bytes as u64))?;
        file.write_all(bytemuck::bytes_of(&trailer))?;
        fs::rename(&self.path, &self.target.path)
    }
}

impl PanelSink for Making {
    fn room(&self, n_bytes: usize) -> Option<usize> {
        let after = |at: usize| at.checked_add(n_bytes).filter(|end| *end <= self.map.len());
        let room = self.n_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok();
        if room.is_none() {
            self.fail(io::ErrorKind::FileTooLarge.into());
        }
        room
    }

    fn put(&self, at: usize, panels: &[u8]) {
        let mut file = lock(&self.file);
        let written = file.seek(SeekFrom::Start(at as u64)).and_then(|_| file.write_all(panels));
        if let Err(error) = written {
            self.fail(error);
        }
    }

    fn panels(&self, room: Range<usize>) -> Bytes {
        self.map.slice(room)
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        // Once it has its name there is none of this one.
        let _ = fs::remove_file(&self.path);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

/// Returns the folder of such files in a cache folder.
fn folder_of(cache: &Path) -> PathBuf {
    cache.join("packed")
}

/// A model's repacked weights in a cache folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedWeights {
    /// Where they are.
    pub path: PathBuf,
    /// Their size in bytes.
    pub bytes: u64,
    /// When they were written or last used.
    pub used: SystemTime,
}

impl PackedWeights {
    /// Lists what a cache folder ([`LoadOptions::packed_dir`](crate::LoadOptions::packed_dir)) has, last used last. A folder
    /// that is not there has nothing.
    pub fn list(cache: &Path) -> Vec<PackedWeights> {
        list(&folder_of(cache), FINISHED)
    }

    /// Removes them; processes that map them go on.
    ///
    /// # Errors
    /// The system's; what is gone already is none.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn list(folder: &Path, extension: &str) -> Vec<PackedWeights> {
    let about = |entry: fs::DirEntry| {
        let (path, about) = (entry.path(), entry.metadata().ok()?);
        let is_one = about.is_file() && path.extension().is_some_and(|found| found == extension);
        Some(PackedWeights { bytes: about.len(), used: about.modified().ok()?, path }).filter(|_| is_one)
    };
    let mut found: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(about).collect();
    found.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
    found
}

/// Removes those used longest ago until the others take no more than `max_bytes`. What cannot be removed stays.
fn trim(folder: &Path, max_bytes: u64) {
    let is_left = |file: &PackedWeights| file.used.elapsed().is_ok_and(|age| age >= LEFT_BEHIND);
    list(folder, IN_THE_MAKING).iter().filter(|file| is_left(file)).for_each(|file| drop(file.remove()));
    let found = list(folder, FINISHED);
    let mut n_bytes: u64 = found.iter().map(|file| file.bytes).sum();
    for file in found {
        if n_bytes <= max_bytes {
            break;
        }
        n_bytes -= file.remove().map_or(0, |()| file.bytes);
    }
}

/// Weights whose file is not finished yet, and the thread that does it.
#[derive(Default)]
pub(super) struct Saver {
    unsaved: Option<Unsaved>,
    /// Tells whether the file was cut that the weights lie in.
    watch: Option<Watch>,
    thread: Option<JoinHandle<()>>,
}

/// Where they are.
pub(super) enum Unsaved {
    /// In memory.
    Memory(PackedFile, Vec<Bytes>),
    /// In the file, all but the trailer.
    File(Making),
}

impl Saver {
    /// Keeps what will be saved when there is time.
    pub(super) fn new(unsaved: Unsaved) -> Saver {
        let watch = match &unsaved {
            Unsaved::File(making) => Some(making.watch.clone()),
            Unsaved::Memory(..) => None,
        };
        Saver { unsaved: Some(unsaved), watch, thread: None }
    }

    /// Watches the file that weights lie in already, if there is one.
    pub(super) fn watching(mut self, watch: Option<Watch>) -> Saver {
        self.watch = self.watch.take().or(watch);
        self
    }

    /// Returns whether the file was cut that the weights lie in.
    pub(super) fn is_cut(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_cut)
    }

    /// Begins to save, if that was not done yet, and does not wait.
    pub(super) fn start(&mut self) {
        let Some(unsaved) = self.unsaved.take() else { return };
        // A folder that cannot be written to, or a full disk, costs the next start the time to pack, no more.
        let work = move || {
            let _ = match unsaved {
                Unsaved::Memory(file, weights) => file.save(&weights),
                Unsaved::File(making) => making.finish(),
            };
        };
        self.thread = thread::Builder::new().name("ruvllm-packed".to_owned()).spawn(work).ok();
    }
}

impl Drop for Saver {
    /// Waits for what was begun: a process that ends would leave it half done.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruvllm_backend::identity::PIECE;

    const WEIGHTS: [&[u8]; 3] = [&[1; 192], &[2; 64], &[3; PIECE + 64]];

    fn open(file: &PackedFile, n_threads: usize) -> Option<Bytes> {
        file.open(n_threads).map(|packed| packed.bytes)
    }

    fn weights() -> Vec<Bytes> {
        WEIGHTS.map(Bytes::from_static).into()
    }

    fn file(cache: &Path, model: u8, max_bytes: u64) -> PackedFile {
        PackedFile::new(cache, &[model; 32], max_bytes)
    }

    #[test]
    fn what_was_saved_is_found_by_the_same_model_only() {
        let cache = tempfile::tempdir().expect("a folder");
        let one = file(cache.path(), 1, 1 << 30);
        assert_eq!((open(&one, 1), PackedWeights::list(cache.path())), (None, vec![]));
        one.clone().save(&weights()).expect("the folder can be written to");
        for n_threads in [1, 3] {
            assert_eq!(open(&one, n_threads).expect("it is there"), WEIGHTS.concat());
        }
        let two = file(cache.path(), 2, 1 << 30);
        assert_eq!(open(&two, 1), None);
        // Under another's name it is not believed, and goes.
        fs::copy(&one.path, &two.path).expect("a file");
        assert_eq!((open(&two, 1), two.path.exists(), one.path.exists()), (None, false, true));
        file(cache.path(), 3, 1 << 30).save(&[]).expect("a model without such matrices");
        assert_eq!(open(&file(cache.path(), 3, 1 << 30), 1), Some(Bytes::new()));
    }

    #[test]
    fn whatever_was_changed_is_not_used() {
        let cache = tempfile::tempdir().expect("a folder");
        let one = file(cache.path(), 1, 1 << 30);
        let saved = |one: &PackedFile| {
            one.clone().save(&weights()).expect("the folder can be written to");
            fs::read(&one.path).expect("a file")
        };
        let len = saved(&one).len();
        for at in [0, 200, PIECE, PIECE + 300, len - 48, len - 40, len - 1] {
            let mut bytes = saved(&one);
            bytes[at] ^= 1;
            fs::write(&one.path, bytes).expect("a file");
            assert_eq!((open(&one, 2), one.path.exists()), (None, false), "byte {at}");
        }
        for len in [0, 47, 48, PIECE, len - 1] {
            let bytes = &saved(&one)[..len];
            fs::write(&one.path, bytes).expect("a file");
            assert_eq!((open(&one, 2), one.path.exists()), (None, false), "cut to {len} bytes");
        }
    }

    #[test]
    fn those_used_longest_ago_make_room() {
        let cache = tempfile::tempdir().expect("a folder");
        let size = WEIGHTS.concat().len() as u64 + 48;
        let save = |model| file(cache.path(), model, 2 * size).save(&weights());
        let is_there = || [1, 2, 3].map(|model| file(cache.path(), model, 0).path.exists());
        let set_age = |path: &Path, age_s| {
            let file = File::options().append(true).open(path).expect("a file of this test");
            file.set_modified(SystemTime::now() - Duration::from_secs(age_s)).expect("times can be set");
        };
        save(1).expect("there is room");
        save(2).expect("there is room");
        for model in [1, 2] {
            set_age(&file(cache.path(), model, 0).path, 100 - u64::from(model));
        }
        assert!(file(cache.path(), 1, 0).open(1).is_some(), "it is used");
        let left = cache.path().join("packed/left.1.making");
        fs::write(&left, [0; 9]).expect("a file");
        save(3).expect("room is made");
        assert_eq!((is_there(), left.exists()), ([true, false, true], true));
        set_age(&left, 4000);
        save(2).expect("room is made");
        assert_eq!((is_there(), left.exists()), ([false, true, true], false));
        let error = file(cache.path(), 1, size - 1).save(&weights()).expect_err("it is larger than all may be");
        assert_eq!((error.kind(), is_there()), (io::ErrorKind::FileTooLarge, [false, true, true]));
        let listed = PackedWeights::list(cache.path());
        assert_eq!(listed.iter().map(|file| file.bytes).collect::<Vec<_>>(), [size, size]);
        listed.iter().for_each(|file| file.remove().expect("it can be removed"));
        assert_eq!(PackedWeights::list(cache.path()), []);
        listed[0].remove().expect("it is gone already");
    }

    #[test]
    fn what_was_packed_into_the_file_is_found_like_what_was_saved() {
        let cache = tempfile::tempdir().expect("a folder");
        let one = file(cache.path(), 1, 1 << 30);
        let names = || fs::read_dir(cache.path().join("packed")).expect("a folder").count();
        // There is more room than is taken, and two may make it at once.
        let n_bytes = WEIGHTS.concat().len();
        let (making, other) = (one.clone().begin(n_bytes + 100), one.clone().begin(n_bytes));
        let (making, other) = (making.expect("there is room"), other.expect("there is room"));
        for part in WEIGHTS {
            let at = making.room(part.len()).expect("there is room");
            // In any order.
            making.put(at + part.len() / 2, &part[part.len() / 2..]);
            making.put(at, &part[..part.len() / 2]);
            assert_eq!(making.panels(at..at + part.len()), part);
        }
        assert_eq!((making.has_failed(), names(), PackedWeights::list(cache.path())), (false, 2, vec![]));
        let panels = making.panels(0..n_bytes);
        making.finish().expect("the folder can be written to");
        assert_eq!((panels, open(&one, 2)), (WEIGHTS.concat().into(), Some(WEIGHTS.concat().into())));
        drop(other);
        assert_eq!(names(), 1, "who does not finish leaves nothing");
        let full = file(cache.path(), 2, 1 << 30).begin(100).expect("there is room");
        assert_eq!((full.room(64), full.room(64), full.has_failed()), (Some(0), None, true));
        let error = full.finish().expect_err("it has not everything");
        assert_eq!((error.kind(), names()), (io::ErrorKind::FileTooLarge, 1));
    }

    #[test]
    fn nothing_is_left_of_what_could_not_be_saved() {
        let cache = tempfile::tempdir().expect("a folder");
        let one = file(cache.path(), 1, 1 << 30);
        // What has its name is a folder that is not empty.
        fs::create_dir_all(one.path.join("in the way")).expect("a folder");
        one.clone().save(&weights()).expect_err("it cannot take its name");
        let left = fs::read_dir(cache.path().join("packed")).expect("a folder").count();
        assert_eq!((left, open(&one, 1)), (1, None));
        let mut saver = Saver::new(Unsaved::Memory(one, weights()));
        saver.start();
        saver.start();
    }
}
