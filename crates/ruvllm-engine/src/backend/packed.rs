//! Repacked weights kept in the cache folder: the next process maps what the first one made.
//!
//! Taking fresh memory from the system and repacking into it is most of the life of a process that answers once. A file
//! holds a model's panels in the order in which loading asks for them, then [`Trailer`]. It is named by what was
//! packed and by the sources of what packs it, and a fingerprint of its bytes is checked before one of them is used:
//! a file that a power failure left half written is removed and made again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use memmap2::Mmap;
use ruvllm_kvcache::NamespaceBuilder;
use ruvllm_kvcache::disk::fingerprint;

use super::content::{self, PIECE};

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

/// The file of one model's repacked weights, whether it is there or not.
pub(super) struct PackedFile {
    path: PathBuf,
    key: [u8; 32],
    max_bytes: u64,
}

impl PackedFile {
    /// Names the file for the model of a content hash, in a cache folder that may have `max_bytes` of such files.
    pub(super) fn new(folder: &Path, identity: &[u8; 32], max_bytes: u64) -> PackedFile {
        let key = NamespaceBuilder::new("packed weights 1").part("model", identity);
        let key = key.part("sources", env!("RUVLLM_SOURCES_HASH").as_bytes());
        let name = format!("{}.{FINISHED}", key.clone().finish());
        PackedFile { path: folder_of(folder).join(name), key: key.identity(), max_bytes }
    }

    /// Maps the weights, if they are there and sound, and marks them as used.
    pub(super) fn open(&self, n_threads: usize) -> Option<Bytes> {
        let file = File::open(&self.path).ok()?;
        let found = map(&file).ok().and_then(|map| self.check(map, n_threads));
        match found {
            // What cannot be marked goes sooner, no more.
            Some(_) => drop(file.set_modified(SystemTime::now())),
            None => drop(fs::remove_file(&self.path)),
        }
        found
    }

    fn check(&self, map: Mmap, n_threads: usize) -> Option<Bytes> {
        let n_bytes = map.len().checked_sub(size_of::<Trailer>())?;
        let trailer: Trailer = bytemuck::pod_read_unaligned(&map[n_bytes..]);
        let prints = content::by_pieces(&[&map[..n_bytes]], n_threads, fingerprint);
        (trailer == self.trailer(n_bytes, &prints)).then(|| Bytes::from_owner(map).slice(..n_bytes))
    }

    fn trailer(&self, n_bytes: usize, prints: &[Fingerprint]) -> Trailer {
        let hash = NamespaceBuilder::new("packed weights 1").part("key", &self.key);
        let hash = hash.part("pieces", prints.as_flattened()).identity();
        Trailer { magic: MAGIC, n_bytes: (n_bytes as u64).to_le_bytes(), hash }
    }

    /// Writes the file in one step, after making room for it by those that were used longest ago.
    ///
    /// # Errors
    /// The system's, and if it is larger than all of them may be. Then no file is left, nor a part of one.
    fn save(&self, weights: &[Bytes]) -> io::Result<()> {
        let n_bytes = weights.iter().map(|part| part.len() as u64).sum::<u64>() + size_of::<Trailer>() as u64;
        let room = self.max_bytes.checked_sub(n_bytes).ok_or(io::ErrorKind::FileTooLarge)?;
        trim(self.path.parent().unwrap_or(&self.path), room);
        content::in_one_step(&self.path, IN_THE_MAKING, |path| self.write(path, weights))
    }

    fn write(&self, path: &Path, weights: &[Bytes]) -> io::Result<()> {
        let mut file = File::create(path)?;
        // Pieces that matrices share are put together, so that they are looked at as they will be found.
        let (mut piece, mut n_bytes, mut prints) = (Vec::with_capacity(PIECE), 0, Vec::new());
        let mut put = |piece: &mut Vec<u8>| {
            n_bytes += piece.len();
            prints.push(fingerprint(piece));
            file.write_all(piece).map(|()| piece.clear())
        };
        for mut part in weights.iter().map(|part| &part[..]) {
            while !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(PIECE - piece.len()));
                piece.extend_from_slice(now);
                part = later;
                if piece.len() == PIECE {
                    put(&mut piece)?;
                }
            }
        }
        if !piece.is_empty() {
            put(&mut piece)?;
        }
        let trailer = self.trailer(n_bytes, &prints);
        file.write_all(bytemuck::bytes_of(&trailer))
    }
}

fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is read-only, and any bytes are sound to read. A file has its name only when it is finished, and is
    // never written to afterwards; who cuts short what others have in the cache folder ends their processes, as with
    // the model's own file.
    unsafe { Mmap::map(file) }
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
    /// Lists what a cache folder ([`LoadOptions::packed_dir`](super::LoadOptions::packed_dir)) has, last used last. A folder
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

/// Weights that are not in their file yet, and the thread that writes them there.
#[derive(Default)]
pub(super) struct Saver {
    unsaved: Option<(PackedFile, Vec<Bytes>)>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    /// Keeps what will be saved when there is time.
    pub(super) fn new(file: PackedFile, weights: Vec<Bytes>) -> Saver {
        Saver { unsaved: Some((file, weights)), thread: None }
    }

    /// Begins to write, if that was not done yet, and does not wait.
    pub(super) fn start(&mut self) {
        let Some((file, weights)) = self.unsaved.take() else { return };
        // A folder that cannot be written to, or a full disk, costs the next start the time to pack, no more.
        let work = move || drop(file.save(&weights));
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

    const WEIGHTS: [&[u8]; 3] = [&[1; 192], &[2; 64], &[3; PIECE + 64]];

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
        assert_eq!((one.open(1), PackedWeights::list(cache.path())), (None, vec![]));
        one.save(&weights()).expect("the folder can be written to");
        for n_threads in [1, 3] {
            assert_eq!(one.open(n_threads).expect("it is there"), WEIGHTS.concat());
        }
        let two = file(cache.path(), 2, 1 << 30);
        assert_eq!(two.open(1), None);
        // Under another's name it is not believed, and goes.
        fs::copy(&one.path, &two.path).expect("a file");
        assert_eq!((two.open(1), two.path.exists(), one.path.exists()), (None, false, true));
        file(cache.path(), 3, 1 << 30).save(&[]).expect("a model without such matrices");
        assert_eq!(file(cache.path(), 3, 1 << 30).open(1), Some(Bytes::new()));
    }

    #[test]
    fn whatever_was_changed_is_not_used() {
        let cache = tempfile::tempdir().expect("a folder");
        let one = file(cache.path(), 1, 1 << 30);
        let saved = |one: &PackedFile| {
            one.save(&weights()).expect("the folder can be written to");
            fs::read(&one.path).expect("a file")
        };
        let len = saved(&one).len();
        for at in [0, 200, PIECE, PIECE + 300, len - 48, len - 40, len - 1] {
            let mut bytes = saved(&one);
            bytes[at] ^= 1;
            fs::write(&one.path, bytes).expect("a file");
            assert_eq!((one.open(2), one.path.exists()), (None, false), "byte {at}");
        }
        for len in [0, 47, 48, PIECE, len - 1] {
            let bytes = &saved(&one)[..len];
            fs::write(&one.path, bytes).expect("a file");
            assert_eq!((one.open(2), one.path.exists()), (None, false), "cut to {len} bytes");
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
    fn nothing_is_left_of_what_could_not_be_saved() {
        let cache = tempfile::tempdir().expect("a folder");
        let one = file(cache.path(), 1, 1 << 30);
        // What has its name is a folder that is not empty.
        fs::create_dir_all(one.path.join("in the way")).expect("a folder");
        one.save(&weights()).expect_err("it cannot take its name");
        let left = fs::read_dir(cache.path().join("packed")).expect("a folder").count();
        assert_eq!((left, one.open(1)), (1, None));
        let mut saver = Saver::new(one, weights());
        saver.start();
        saver.start();
    }
}
