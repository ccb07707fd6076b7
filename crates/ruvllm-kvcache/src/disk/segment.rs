//! Segment files: their header, and the one that is being appended to.
//!
//! A segment is a header of [`SEGMENT_HEADER_LEN`] bytes and then records. It is only ever appended to, at its end or at
//! the end of what recovery found intact.
//!
//! | bytes | what |
//! |---|---|
//! | 0–7 | `RUVLLMKV` |
//! | 8–11 | format version |
//! | 12–15 | zero |
//! | 16–23 | number of the segment, also its file name |
//! | 24–31 | a random number |
//! | 32–63 | identity of the store |
//! | 64–71 | XXH3-64 of bytes 0–63 |

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::FORMAT_VERSION;
use super::faults::Disk;
use super::record::{self, ALIGN, Frame, Meta, Place};

/// Bytes before the first record.
pub(super) const SEGMENT_HEADER_LEN: u64 = 2 * ALIGN;
/// The longest file that is looked at. Files of ours are shorter.
pub(super) const SEGMENT_LEN_MAX: u64 = 1 << 32;

/// What the header of a segment says, beside the store's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    pub(super) id: u64,
    pub(super) nonce: u64,
}

impl SegmentHeader {
    /// Makes the header of a new segment.
    pub(super) fn new(id: u64) -> SegmentHeader {
        // Each `RandomState` has keys of its own that come from the system's randomness.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(id);
        SegmentHeader { id, nonce: hasher.finish() }
    }

    pub(super) fn encode(&self, identity: &[u8; 32]) -> [u8; SEGMENT_HEADER_LEN as usize] {
        let mut out = [0; SEGMENT_HEADER_LEN as usize];
        out[..8].copy_from_slice(b"RUVLLMKV");
        out[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        out[24..32].copy_from_slice(&self.nonce.to_le_bytes());
        out[32..64].copy_from_slice(identity);
        let check = xxh3_64(&out[..64]);
        out[64..72].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// Reads a header. Returns `None` unless it is intact and of this identity and version.
    pub(super) fn decode(bytes: &[u8], identity: &[u8; 32]) -> Option<SegmentHeader> {
        let bytes: &[u8; SEGMENT_HEADER_LEN as usize] = bytes.first_chunk()?;
        let number = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("inside the header"));
        let header = SegmentHeader { id: number(16), nonce: number(24) };
        (header.encode(identity)[..72] == bytes[..72]).then_some(header)
    }
}

/// Returns the path of segment `id` in `folder`.
pub(super) fn path(folder: &Path, id: u64) -> PathBuf {
    folder.join(format!("{id:016x}.seg"))
}

/// Returns the number in the name of a segment file, or `None` for the name of another file.
pub(super) fn id_of(name: &str) -> Option<u64> {
    let hex = name.strip_suffix(".seg")?;
    let id = u64::from_str_radix(hex, 16).ok()?;
    (format!("{id:016x}") == hex).then_some(id)
}

/// Makes names in `folder` durable. Systems that cannot open a folder as a file need no such call.
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    Disk::under(folder).ask()?;
    File::open(folder).map_or(Ok(()), |folder| folder.sync_all())
}

/// Tries whether the disk under `folder` takes a file with some bytes in it.
pub(super) fn probe(folder: &Path) -> io::Result<()> {
    Disk::under(folder).ask()?;
    let path = folder.join("probe");
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(&[0x5a; 4096])?;
        file.sync_all()
    });
    let removed = std::fs::remove_file(&path);
    written.and(removed)
}

/// The segment that is being appended to.
pub(super) struct Active {
    pub(super) header: SegmentHeader,
    /// Bytes of the file that are whole records.
    pub(super) len: u64,
    file: File,
    disk: Disk,
    /// Header and description of the record being written.
    scratch: Vec<u8>,
}

impl Active {
    /// Creates segment `id` in `folder` with its header.
    pub(super) fn create(folder: &Path, id: u64, identity: &[u8; 32]) -> io::Result<Active> {
        let header = SegmentHeader::new(id);
        let path = path(folder, id);
        let disk = Disk::under(folder);
        disk.ask()?;
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        if let Err(error) = disk.ask().and_then(|()| file.write_all(&header.encode(identity))) {
            // Without its header the file would be in the way of the next attempt.
            std::fs::remove_file(&path)?;
            return Err(error);
        }
        Ok(Active { header, len: SEGMENT_HEADER_LEN, file, disk, scratch: Vec::new() })
    }

    /// Opens a segment that recovery read, and cuts what follows its last intact record.
    pub(super) fn reopen(folder: &Path, header: SegmentHeader, len: u64) -> io::Result<Active> {
        let mut file = OpenOptions::new().write(true).open(path(folder, header.id))?;
        let disk = Disk::under(folder);
        if file.metadata()?.len() != len {
            disk.ask()?;
            file.set_len(len)?;
        }
        file.seek(SeekFrom::Start(len))?;
        Ok(Active { header, len, file, disk, scratch: Vec::new() })
    }

    /// Appends a record and returns its place and frame.
    ///
    /// # Errors
    /// The bytes could not be written. What was written of them is cut off again; where even that fails, the segment
    /// takes no more records.
    pub(super) fn append(&mut self, meta: &Meta, payload: &[u8]) -> io::Result<(Place, Frame)> {
        let place = Place { segment: self.header.id, offset: self.len };
        self.scratch.clear();
        let frame = record::encode(meta, payload, record::seed(self.header.nonce, place.offset), &mut self.scratch);
        let n_padding = frame.record_len() - frame.payload_at() - payload.len() as u64;
        let padding = &[0; ALIGN as usize][..n_padding as usize];
        let mut parts = [&self.scratch[..], payload, padding].into_iter();
        let written = parts.try_for_each(|part| self.disk.ask().and_then(|()| self.file.write_all(part)));
        if let Err(error) = written {
            let undone = self
                .disk
                .ask()
                .and_then(|()| self.file.set_len(self.len))
                .and_then(|()| self.file.seek(SeekFrom::Start(self.len)));
            if undone.is_err() {
                self.len = SEGMENT_LEN_MAX;
            }
            return Err(error);
        }
        self.len += frame.record_len();
        Ok((place, frame))
    }

    /// Waits until what was written is durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.disk.ask().and_then(|()| self.file.sync_data())
    }
}
