//! Files that are not as they were written: never a wrong byte, never a panic.

use std::fs;
use std::io::Cursor;

use super::*;
use crate::disk::record::{self, Frame, HEADER_LEN, META_MAX, Meta, Place};
use crate::disk::recover;
use crate::disk::segment::{SEGMENT_HEADER_LEN, SegmentHeader};

const CHAINS: [u64; 4] = [1, 2, 3, 4];

/// Returns the files of a store with some of everything, by name.
fn written(folder: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let store = open(folder);
    for seed in CHAINS {
        Chain::new(seed).put_all(&store, 9);
        store.save_session(&format!("session {seed}"), &[seed as u32; 40], "{\"a\":1}").unwrap();
    }
    store.save_session("deleted", &[0], "").unwrap();
    assert!(store.delete_session("deleted").unwrap());
    let path = store.path().to_owned();
    drop(store);
    let read = |path: std::path::PathBuf| (path.clone(), fs::read(path).unwrap());
    let mut files: Vec<_> = fs::read_dir(path).unwrap().map(|entry| read(entry.unwrap().path())).collect();
    files.sort();
    files
}

/// Checks everything that a damaged store serves; returns how many blocks and sessions it has, all of them intact.
fn check(folder: &Path) -> (usize, u64) {
    let options = StoreOptions { fsync: FsyncPolicy::Never, ..options(16 << 20) };
    let store = DiskStore::open(folder, options).unwrap();
    let mut n_intact = 0;
    for seed in CHAINS {
        n_intact += Chain::new(seed).n_intact(&store, 9);
        let session = store.load_session(&format!("session {seed}")).unwrap();
        if let Some(session) = session {
            assert_eq!((session.tokens, session.settings.as_str()), (vec![seed as u32; 40], "{\"a\":1}"));
            n_intact += 1;
        }
    }
    (n_intact, store.stats().n_corrupt)
}

#[test]
fn thousand_bit_flips_are_detected_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    let files = written(folder.path());
    let n_whole = CHAINS.len() * 10;
    assert_eq!(check(folder.path()), (n_whole, 0));
    let (mut rng, mut n_detected) = (Rng::new(11), 0);
    for round in 0..1000 {
        // Every twentieth hits the manifest or a segment's header, which are small.
        let i = if round % 20 == 0 { rng.below(files.len()) } else { 1 + rng.below(files.len() - 1) };
        let mut damaged = files[i].1.clone();
        let n = if round % 20 == 0 { damaged.len().min(SEGMENT_HEADER_LEN as usize) } else { damaged.len() };
        let bit = rng.below(8 * n);
        damaged[bit / 8] ^= 1 << (bit % 8);
        let dir = files[0].0.parent().unwrap();
        fs::read_dir(dir).unwrap().for_each(|entry| fs::remove_file(entry.unwrap().path()).unwrap());
        for (j, (path, bytes)) in files.iter().enumerate() {
            fs::write(path, if i == j { &damaged } else { bytes }).unwrap();
        }
        let (n_intact, n_corrupt) = check(folder.path());
        assert!(n_corrupt > 0 || n_intact == n_whole, "bit {bit} of {}: {n_intact} of {n_whole}", files[i].0.display());
        n_detected += u64::from(n_corrupt > 0);
    }
    // The others hit padding.
    assert!(n_detected > 900, "{n_detected} of 1000 detected");
}

#[test]
fn a_file_cut_anywhere_serves_what_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let options = StoreOptions { fsync: FsyncPolicy::Never, ..options(16 << 20) };
        DiskStore::open(folder.path(), options).unwrap()
    };
    let store = open();
    let path = store.path().join("0000000000000001.seg");
    let namespace = namespace_of(1);
    let tokens: Vec<u32> = (0..80).collect();
    let (mut parent, mut ends) = (store.root(namespace), vec![SEGMENT_HEADER_LEN]);
    for (block_idx, tokens) in tokens.chunks(16).enumerate() {
        let block = BlockRef { namespace, parent, block_idx: block_idx as u32, format: 7, tokens };
        assert_eq!(store.put_block(&block, &[&block.key().0]), Put::Queued);
        store.flush().unwrap();
        ends.push(fs::metadata(&path).unwrap().len());
        parent = block.key();
    }
    drop(store);
    let whole = fs::read(&path).unwrap();
    let mut payload = Vec::new();
    for len in 0..=whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        let n_whole = ends.iter().filter(|&&end| end <= len as u64).count().saturating_sub(1);
        for _ in 0..if len % 8 == 0 { 2 } else { 1 } {
            let store = open();
            let prefix = store.find_prefix(namespace, &tokens);
            assert_eq!(prefix.keys.len(), n_whole, "cut to {len}");
            for key in &prefix.keys {
                assert!(store.read_block(key, &mut payload).unwrap() == Some(7) && payload == key.0);
            }
            // What is written behind the cut is found the second time.
            store.save_session("after", &[len as u32], "").unwrap();
            assert_eq!(store.load_session("after").unwrap().unwrap().tokens, [len as u32]);
        }
        // Where the file was no segment at all, the session went to another.
        fs::remove_file(path.with_file_name("0000000000000002.seg")).ok();
    }
}

#[test]
fn a_record_damaged_while_open_is_dropped_with_what_follows_it() {
    let folder = tempfile::tempdir().unwrap();
    let (store, chain) = (open(folder.path()), Chain::new(1));
    chain.put_all(&store, 4);
    store.flush().unwrap();
    let path = store.path().join("0000000000000001.seg");
    let key = chain.find(&store, 4).keys[2];
    let mut bytes = fs::read(&path).unwrap();
    let wanted = payload(&key);
    let at = bytes.windows(wanted.len()).position(|window| window == wanted).expect("the block is in the file");
    bytes[at + wanted.len() / 2] ^= 0x10;
    fs::write(&path, &bytes).unwrap();
    assert_eq!((chain.n_intact(&store, 4), store.stats().n_corrupt), (2, 1));
    // It can be stored again.
    assert_eq!(chain.put(&store, 2), Put::Queued);
    store.flush().unwrap();
    assert_eq!(chain.n_intact(&store, 4), 4);
    // A file that is gone, or shorter, is damage too.
    fs::write(&path, &bytes[..1000]).unwrap();
    assert!(chain.n_intact(&store, 4) < 4);
    fs::remove_file(&path).unwrap();
    assert_eq!(chain.n_intact(&store, 4), 0);
}

/// A segment in memory, with where its records start.
struct Segment {
    bytes: Vec<u8>,
    header: SegmentHeader,
    offsets: Vec<usize>,
}

/// Returns a segment with `n` records of all kinds.
fn segment(n: usize) -> Segment {
    let header = SegmentHeader::new(3);
    let mut bytes = header.encode(&IDENTITY).to_vec();
    let (mut offsets, mut rng) = (Vec::new(), Rng::new(5));
    for i in 0..n {
        let meta = match i % 5 {
            0..3 => Meta::Block(record::BlockMeta {
                namespace: namespace_of(1),
                parent: BlockKey::root(&IDENTITY, namespace_of(i as u128)),
                block_idx: i as u32,
                format: 1,
                tokens: (0..1 + i as u32 % 16).collect(),
            }),
            3 => {
                Meta::Session(record::SessionMeta { name: format!("name {i}"), n_tokens: 2, created_ms: 3, used_ms: 4 })
            }
            _ => Meta::DeleteSession(format!("name {}", i - 1)),
        };
        let payload: Vec<u8> = (0..rng.below(500)).map(|_| rng.next() as u8).collect();
        let offset = bytes.len();
        record::encode(&meta, &payload, record::seed(header.nonce, offset as u64), &mut bytes);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        offsets.push(offset);
    }
    Segment { bytes, header, offsets }
}

impl Segment {
    /// Returns what the reader finds in `bytes`. Panics if it believes a length that cannot be.
    fn read(&self, bytes: &[u8]) -> Vec<(Place, Frame, Meta)> {
        let len = bytes.len() as u64;
        let mut source = Cursor::new(bytes);
        let Ok(Some(header)) = recover::header(&mut source, len, &IDENTITY) else { return Vec::new() };
        let (mut found, mut end) = (Vec::new(), SEGMENT_HEADER_LEN);
        let mut visit = |offset, frame: Frame, meta| {
            assert!(offset >= end && frame.payload_len <= 4096 && offset + frame.record_len() <= len, "{frame:?}");
            end = offset + frame.record_len();
            found.push((Place { segment: header.id, offset }, frame, meta));
        };
        let recovered = recover::records(&mut source, len, &header, 4096, &mut visit).expect("memory can be read");
        assert!(recovered.end == end && recovered.end <= len.max(SEGMENT_HEADER_LEN));
        found
    }

    /// Changes `bytes` in one of the ways that disks, programs and enemies do. Returns whether checksums were forged.
    fn mutate(&self, bytes: &mut Vec<u8>, rng: &mut Rng) -> bool {
        let at = rng.below(bytes.len());
        let n = 1 + rng.below(200.min(bytes.len() - at));
        match rng.below(7) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at..at + n].fill(0),
            2 => bytes[at..at + n].fill_with(|| rng.next() as u8),
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..at + n)),
            5 => {
                let copy = bytes[at..at + n].to_vec();
                bytes.splice(at..at, copy);
            }
            // Fields with values of all sizes, and a checksum that fits them.
            _ => {
                let at = self.offsets[rng.below(self.offsets.len())];
                let field = [4, 8, 12, 16, 32, 48, 64][rng.below(7)];
                let value = (rng.next() >> rng.below(64)) as u32;
                if bytes.len() < at + HEADER_LEN + META_MAX {
                    return false;
                }
                bytes[at + field..at + field + 4].copy_from_slice(&value.to_le_bytes());
                let meta_len = u32::from_le_bytes(*bytes[at + 8..].first_chunk().unwrap()) as usize;
                let described = bytes[at + HEADER_LEN..].get(..meta_len).unwrap_or_default();
                let checked = [&bytes[at..at + 24], described].concat();
                let check = record::hash(&checked, record::seed(self.header.nonce, at as u64));
                bytes[at + 24..at + 32].copy_from_slice(&check.to_le_bytes());
                return true;
            }
        }
        false
    }
}

#[test]
fn ten_thousand_mutated_segments() {
    let segment = segment(25);
    let whole = segment.read(&segment.bytes);
    assert_eq!(whole.len(), 25);
    let (mut rng, mut n_lost, mut n_forged) = (Rng::new(2026), 0, 0);
    for round in 0..10_000 {
        let mut bytes = segment.bytes.clone();
        let mut forged = false;
        for _ in 0..1 + round % 3 {
            forged |= segment.mutate(&mut bytes, &mut rng);
            if bytes.is_empty() {
                break;
            }
        }
        let found = segment.read(&bytes);
        // Without forged checksums, nothing is found but what was written, where it was written.
        assert!(forged || found.iter().all(|record| whole.contains(record)), "round {round}");
        n_lost += usize::from(found.len() < whole.len());
        n_forged += usize::from(forged);
    }
    assert!(n_lost > 5_000 && n_forged > 1_000, "{n_lost} lost records, {n_forged} forged");
}
