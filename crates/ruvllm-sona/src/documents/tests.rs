//! Documents in stores that are opened again, full, or old.

use super::*;
use crate::error::SonaErrorKind;
use crate::store::{Limits, MasterKey, OpenOptions, in_memory, open};

const DAY: u64 = 24 * 3_600_000;

fn document(parts: &[Vec<u8>]) -> NewDocument<'_> {
    NewDocument { head: b"head", parts, is_lasting: false }
}

fn all(documents: &Documents, id: &str, newest_first: bool) -> Vec<(u64, Vec<u8>)> {
    let mut found = vec![];
    let order = Order { newest_first, now_ms: 0 };
    let visit = &mut |n: u64, part: &[u8]| {
        found.push((n, part.to_vec()));
        Ok(true)
    };
    documents.visit("t", id, order, visit).expect("it is readable");
    found
}

/// Bytes of a document of one part of a kibibyte.
const ONE: u64 = DOCUMENT_BYTES + 4 + PART_BYTES + 1024;

fn bounded(tenant_bytes_max: u64, bytes_max: u64) -> Documents {
    let limits = DocumentLimits { tenant_bytes_max, bytes_max, ..DocumentLimits::default() };
    Documents::open(in_memory(Limits::default()).expect("memory"), limits).expect("it is empty")
}

#[test]
fn documents_outlive_the_process_in_an_encrypted_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, key) = (folder.path().join("sona.redb"), MasterKey::new([2; 32]));
    let options = OpenOptions { key: Some(&key), ..OpenOptions::default() };
    let again = || Documents::open(open(&path, &options).expect("a store"), DocumentLimits::default()).expect("them");
    let documents = again();
    documents.put("t", "a", &document(&[b"one".to_vec(), b"two".to_vec()]), 5).expect("room");
    assert_eq!(documents.append("t", "a", &[b"three".to_vec()], 6).expect("room"), Some(3));
    assert!(documents.remove_part("t", "a", 2, 6).expect("it is writable"));
    assert!(!documents.remove_part("t", "a", 2, 6).expect("it is writable"));
    assert!(!documents.remove_part("t", "a", 0, 6).expect("it is writable"));
    drop(documents);
    let documents = again();
    assert_eq!(documents.append("t", "a", &[b"four".to_vec()], 7).expect("room"), Some(4));
    let parts = [(1, b"one".to_vec()), (3, b"three".to_vec()), (4, b"four".to_vec())];
    assert_eq!(all(&documents, "a", false), parts);
    assert_eq!(all(&documents, "a", true), parts.iter().rev().cloned().collect::<Vec<_>>());
    assert!(documents.set_head("t", "a", b"other", 8).expect("room"));
    assert_eq!(documents.head("t", "a", 8).expect("it is readable").as_deref(), Some(&b"other"[..]));
    // Nobody else sees it, or writes to it.
    assert_eq!(documents.head("u", "a", 8).expect("it is readable"), None);
    assert_eq!(documents.part("u", "a", 1, 8).expect("it is readable"), None);
    assert_eq!(documents.append("u", "a", &[vec![]], 8).expect("it is writable"), None);
    assert!(!documents.remove("u", "a").expect("it is writable") && !documents.set_head("u", "a", b"", 8).expect("it"));
    assert_eq!(documents.forget_tenant("t").expect("it is writable"), 1);
    assert_eq!((documents.len("t"), documents.head("t", "a", 8).expect("it is readable")), (0, None));
    drop(documents);
    assert_eq!(again().len("t"), 0);
}

#[test]
fn the_oldest_go_where_there_is_no_room() {
    let documents = bounded(3 * ONE, 5 * ONE);
    let part = [vec![7; 1024]];
    for (i, id) in ["a", "b", "c"].into_iter().enumerate() {
        documents.put("t", id, &document(&part), i as u64).expect("room");
    }
    // What was added to last is the newest.
    documents.append("t", "a", &[], 9).expect("room");
    documents.put("t", "d", &document(&part), 10).expect("room");
    let is_there = |tenant: &str, id: &str| documents.head(tenant, id, 30).expect("it is readable").is_some();
    assert_eq!(["a", "b", "c", "d"].map(|id| is_there("t", id)), [true, false, true, true]);
    // Of all, whoever has most gives.
    for id in ["x", "y", "z"] {
        documents.put("u", id, &document(&part), 20).expect("room");
    }
    assert_eq!(["a", "c", "d"].map(|id| is_there("t", id)), [true, false, true]);
    assert_eq!(documents.len("u"), 3);
    // One that grows does not go itself, and one that is too large is refused.
    assert!(documents.append("t", "a", &part, 21).is_ok() && is_there("t", "a"));
    let error = documents.put("t", "e", &document(&[vec![0; 4 * ONE as usize]]), 22).expect_err("too large");
    assert_eq!(error.kind(), SonaErrorKind::Limit);
    assert!(is_there("t", "a"));
}

#[test]
fn what_is_too_old_is_not_there_and_goes() {
    let documents = bounded(1 << 20, 1 << 20);
    documents.put("t", "a", &document(&[]), DAY).expect("room");
    documents.put("t", "b", &NewDocument { is_lasting: true, ..document(&[]) }, DAY).expect("room");
    let at = |day: u64| ["a", "b"].map(|id| documents.head("t", id, day * DAY).expect("it is readable").is_some());
    assert_eq!((at(31), at(32)), ([true, true], [false, true]));
    assert_eq!((documents.expire(31 * DAY).expect("it is writable"), documents.len("t")), (0, 2));
    assert_eq!((documents.expire(32 * DAY).expect("it is writable"), documents.len("t")), (1, 1));
    assert_eq!(documents.append("t", "a", &[], 32 * DAY).expect("it is writable"), None);
}
