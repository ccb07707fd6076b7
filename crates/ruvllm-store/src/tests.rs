//! The store against a map in memory, its limits, its schema, its encryption; processes killed while they write.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

mod faults;
mod kill;

const A: Table = Table::new("a");
const B: Table = Table::new("b");

fn file() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sona.redb");
    (folder, path)
}

fn key(byte: u8) -> MasterKey {
    MasterKey::new([byte; 32])
}

fn with<'a>(key: Option<&'a MasterKey>) -> OpenOptions<'a> {
    OpenOptions { key, ..OpenOptions::default() }
}

fn put(store: &dyn Store, table: Table, scope: &[u8], records: &[(&[u8], &[u8])]) {
    let mut change = store.begin(Durability::Durable).expect("a transaction");
    for (key, value) in records {
        change.put(table, scope, key, value).expect("room");
    }
    change.commit().expect("a commit");
}

fn all(store: &dyn Store, table: Table, scan: Scan<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut records = vec![];
    let snapshot = store.snapshot().expect("a snapshot");
    let visit: &mut Visit<'_> = &mut |key, value| {
        records.push((key.to_vec(), value.to_vec()));
        Ok(true)
    };
    snapshot.scan(table, &scan, visit).expect("a scan");
    records
}

/// The one line of an error that must come.
fn refused<T>(result: Result<T, StoreError>) -> (StoreErrorKind, String) {
    let error = result.err().expect("this must be refused");
    assert!(!error.to_string().contains('\n'), "{error}");
    (error.kind(), error.to_string())
}

#[derive(Clone, Debug)]
enum Op {
    Put(u8, u8, Vec<u8>, u8),
    Remove(u8, u8, Vec<u8>),
    RemoveScope(u8, u8),
    /// Starts anew from what was committed.
    Abort,
    Commit,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let key = || prop::collection::vec(prop::sample::select(vec![0u8, 1, 255]), 0..4);
    prop_oneof![
        8 => (0u8..2, 0u8..4, key(), any::<u8>()).prop_map(|(t, s, k, v)| Op::Put(t, s, k, v)),
        3 => (0u8..2, 0u8..4, key()).prop_map(|(t, s, k)| Op::Remove(t, s, k)),
        1 => (0u8..2, 0u8..4).prop_map(|(t, s)| Op::RemoveScope(t, s)),
        1 => Just(Op::Abort),
        3 => Just(Op::Commit),
        1 => Just(Op::Reopen),
    ]
}

/// Scopes that are prefixes of each other, empty, and full of the greatest byte.
const SCOPES: [&[u8]; 4] = [b"", b"t", b"tt", &[255; 255]];

type Model = BTreeMap<(u8, u8, Vec<u8>), Vec<u8>>;

fn check(store: &dyn Store, model: &Model) {
    for (t, table) in [A, B].into_iter().enumerate() {
        for (s, scope) in SCOPES.iter().enumerate() {
            let of = |key: &(u8, u8, Vec<u8>)| (usize::from(key.0), usize::from(key.1)) == (t, s);
            let mine = model.iter().filter(|(key, _)| of(key));
            let mut expected: Vec<_> = mine.map(|(key, value)| (key.2.clone(), value.clone())).collect();
            assert_eq!(all(store, table, Scan::all(scope)), expected);
            let within = Scan::all(scope).between(&[1], Some(&[255, 1]));
            let inside: Vec<_> =
                expected.iter().filter(|(k, _)| (&[1][..]..&[255, 1][..]).contains(&&k[..])).cloned().collect();
            assert_eq!(all(store, table, within), inside);
            expected.reverse();
            assert_eq!(all(store, table, Scan::all(scope).newest_first()), expected);
            for (key, value) in &expected {
                let found = store.snapshot().expect("a snapshot").get(table, scope, key).expect("readable");
                assert_eq!(found.as_ref(), Some(value));
            }
        }
        let here = model.keys().filter(|key| usize::from(key.0) == t);
        let mut scopes: Vec<_> = here.map(|key| SCOPES[usize::from(key.1)].to_vec()).collect();
        scopes.sort();
        scopes.dedup();
        assert_eq!(store.snapshot().expect("a snapshot").scopes(table).expect("readable"), scopes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Plain and encrypted stores are an ordered map with transactions, over restarts too.
    #[test]
    fn is_an_ordered_map(ops in prop::collection::vec(op(), 1..60), encrypted: bool) {
        let (_folder, path) = file();
        let key = key(7);
        let options = with(encrypted.then_some(&key));
        let mut store = open(&path, &options).expect("a store");
        let (mut committed, mut model, mut pending) = (Model::new(), Model::new(), vec![]);
        for op in ops {
            match op {
                Op::Put(t, s, k, v) => {
                    model.insert((t, s, k.clone()), vec![v; usize::from(v)]);
                    pending.push(Op::Put(t, s, k, v));
                }
                Op::Remove(t, s, k) => {
                    model.remove(&(t, s, k.clone()));
                    pending.push(Op::Remove(t, s, k));
                }
                Op::RemoveScope(t, s) => {
                    model.retain(|key, _| (key.0, key.1) != (t, s));
                    pending.push(Op::RemoveScope(t, s));
                }
                Op::Abort | Op::Commit | Op::Reopen => {
                    let mut change = store.begin(Durability::Durable).expect("a transaction");
                    for op in pending.drain(..) {
                        let table = |t: u8| [A, B][usize::from(t)];
                        let scope = |s: u8| SCOPES[usize::from(s)];
                        match op {
                            Op::Put(t, s, k, v) => change.put(table(t), scope(s), &k, &vec![v; usize::from(v)]).expect("room"),
                            Op::Remove(t, s, k) => drop(change.remove(table(t), scope(s), &k).expect("readable")),
                            Op::RemoveScope(t, s) => drop(change.remove_scope(table(t), scope(s)).expect("readable")),
                            _ => unreachable!("only changes are pending"),
                        }
                    }
                    match op {
                        Op::Abort => {
                            drop(change);
                            model = committed.clone();
                        }
                        _ => {
                            change.commit().expect("a commit");
                            committed = model.clone();
                        }
                    }
                    if matches!(op, Op::Reopen) {
                        drop(store);
                        store = open(&path, &options).expect("a store");
                    }
                }
            }
            check(store.as_ref(), &committed);
        }
    }
}

/// What is written: told by the number of bytes, which a restart does not change.
#[test]
fn counts_its_bytes() {
    let (_folder, path) = file();
    let store = open(&path, &with(None)).expect("a store");
    let empty = store.n_bytes();
    put(store.as_ref(), A, b"xy", &[(b"k", b"12345"), (b"l", b"")]);
    assert_eq!(store.n_bytes() - empty, (1 + 2 + 1 + 5) + (1 + 2 + 1));
    put(store.as_ref(), A, b"xy", &[(b"k", b"1")]);
    assert_eq!(store.n_bytes() - empty, (1 + 2 + 1 + 1) + (1 + 2 + 1));
    drop(store);
    let store = open(&path, &with(None)).expect("a store");
    assert_eq!(store.n_bytes() - empty, 9);
    let mut change = store.begin(Durability::Durable).expect("a transaction");
    assert_eq!(change.remove_scope(A, b"xy").expect("readable"), 2);
    change.commit().expect("a commit");
    assert_eq!(store.n_bytes(), empty);
}

#[test]
fn refuses_what_is_too_large() {
    let (_folder, path) = file();
    let limits = Limits { value_bytes_max: 100, store_bytes_max: 300, ..Limits::default() };
    let store = open(&path, &OpenOptions { limits, ..OpenOptions::default() }).expect("a store");
    let mut change = store.begin(Durability::Durable).expect("a transaction");
    let (kind, line) = refused(change.put(A, b"", b"k", &[0; 101]));
    assert_eq!((kind, line.as_str()), (StoreErrorKind::Limit, "a: a record of 101 bytes; at most 100"));
    assert_eq!(refused(change.put(A, &[0; 256], b"", b"")).0, StoreErrorKind::Limit);
    assert_eq!(refused(change.put(A, b"", &[0; 1025], b"")).0, StoreErrorKind::Limit);
    change.put(A, b"", b"1", &[0; 100]).expect("room");
    change.put(A, b"", b"2", &[0; 100]).expect("room");
    let (kind, line) = refused(change.put(A, b"", b"3", &[0; 100]));
    assert!(kind == StoreErrorKind::Limit && line.contains("of 300 bytes"), "{line}");
    // In the place of another there is room.
    change.put(A, b"", b"2", &[1; 100]).expect("room");
    change.commit().expect("a commit");
    assert_eq!(all(store.as_ref(), A, Scan::all(b"")).len(), 2);
}

#[test]
fn a_snapshot_stays_as_it_is() {
    let (_folder, path) = file();
    let store = open(&path, &with(None)).expect("a store");
    put(store.as_ref(), A, b"", &[(b"k", b"old")]);
    let snapshot = store.snapshot().expect("a snapshot");
    put(store.as_ref(), A, b"", &[(b"k", b"new")]);
    assert_eq!(snapshot.get(A, b"", b"k").expect("readable").as_deref(), Some(&b"old"[..]));
    assert_eq!(all(store.as_ref(), A, Scan::all(b""))[0].1, b"new");
}

#[test]
fn keeps_the_newest_whosever_it_is() {
    let (_folder, path) = file();
    let key = key(1);
    let store = open(&path, &with(Some(&key))).expect("a store");
    for i in 0..10u64 {
        put(store.as_ref(), A, [&b"one"[..], b"two"][i as usize % 2], &[(&time_key(1000 + i, i), &[0; 50])]);
    }
    let left = || -> Vec<u64> {
        let mut times = vec![];
        for scope in [&b"one"[..], b"two"] {
            times.extend(all(store.as_ref(), A, Scan::all(scope)).iter().map(|(key, _)| time_of(key).0 - 1000));
        }
        times.sort_unstable();
        times
    };
    let retain = |rules: Retention| store.retain(A, &rules, 1010).expect("readable").n_records;
    assert_eq!(retain(Retention::default()), 0);
    assert_eq!(retain(Retention { age_ms_max: Some(8), ..Retention::default() }), 2);
    assert_eq!(left(), (2..10).collect::<Vec<_>>());
    assert_eq!(retain(Retention { n_records_max: Some(5), ..Retention::default() }), 3);
    assert_eq!(left(), (5..10).collect::<Vec<_>>());
    // Each has 50 bytes, 4 of its scope, 40 of its seal, 16 of its key and 17 of the digest.
    assert_eq!(retain(Retention { bytes_max: Some(2 * 127), ..Retention::default() }), 3);
    assert_eq!(left(), [8, 9]);
    assert_eq!(retain(Retention { age_ms_max: Some(0), ..Retention::default() }), 2);
    assert!(store.snapshot().expect("a snapshot").scopes(A).expect("readable").is_empty());
}

#[test]
fn brings_older_schemas_up_to_date_and_refuses_newer() {
    fn double(change: &mut dyn Transaction) -> Result<(), StoreError> {
        let value = change.get(A, b"s", b"k")?.unwrap_or_default();
        change.put(A, b"s", b"k", &value.repeat(2))
    }
    fn fails(change: &mut dyn Transaction) -> Result<(), StoreError> {
        change.put(A, b"s", b"k", b"half done")?;
        Err(crate::error::invalid("this step fails"))
    }
    for key in [None, Some(&key(3))] {
        let (_folder, path) = file();
        let first = Schema { steps: &[] };
        let (third, broken) = (Schema { steps: &[double, double] }, Schema { steps: &[double, fails] });
        put(open_as(&path, &with(key), &first).expect("a store").as_ref(), A, b"s", &[(b"k", b"x")]);
        assert!(refused(open_as(&path, &with(key), &broken)).1.ends_with("this step fails"));
        let value = |store: Arc<dyn Store>| all(store.as_ref(), A, Scan::all(b"s"))[0].1.clone();
        assert_eq!(value(open_as(&path, &with(key), &first).expect("nothing has happened")), b"x");
        assert_eq!(value(open_as(&path, &with(key), &third).expect("newer")), b"xxxx");
        assert_eq!(value(open_as(&path, &with(key), &third).expect("the same")), b"xxxx");
        let (kind, line) = refused(open_as(&path, &with(key), &first));
        assert_eq!(kind, StoreErrorKind::Version);
        assert!(line.ends_with("the store has version 3, this program knows 1: use a newer one"), "{line}");
    }
}

#[test]
fn refuses_wrong_keys_in_one_line() {
    let (folder, path) = file();
    let right = key(1);
    put(open(&path, &with(Some(&right))).expect("a store").as_ref(), A, b"s", &[(b"k", b"v")]);
    let wrong = refused(open(&path, &with(Some(&key(2)))));
    assert!(wrong.0 == StoreErrorKind::Key && wrong.1.ends_with("the key does not open this store"), "{wrong:?}");
    let none = refused(open(&path, &with(None)));
    assert!(none.0 == StoreErrorKind::Key && none.1.ends_with("the store is encrypted: give its key"), "{none:?}");
    let plain = folder.path().join("plain.redb");
    drop(open(&plain, &with(None)).expect("a store"));
    let given = refused(open(&plain, &with(Some(&right))));
    assert!(given.0 == StoreErrorKind::Key && given.1.contains("is not encrypted"), "{given:?}");

    // Another master key in the place of the first.
    let sealed = Sealed::open(EmbeddedStore::open(&path, Limits::default()).expect("a file"), &right).expect("right");
    assert_eq!(refused(sealed.change_key(&key(2), &key(3))).0, StoreErrorKind::Key);
    sealed.change_key(&right, &key(2)).expect("the right old key");
    drop(sealed);
    assert_eq!(refused(open(&path, &with(Some(&right)))).0, StoreErrorKind::Key);
    let key = key(2);
    assert_eq!(all(open(&path, &with(Some(&key))).expect("the new key").as_ref(), A, Scan::all(b"s"))[0].1, b"v");
}

#[test]
fn keys_are_32_bytes_or_64_digits() {
    let digits = "0123456789abcdefABCDEF".repeat(3)[..64].to_owned() + "\n";
    assert!(MasterKey::parse(digits.as_bytes()).is_ok());
    assert!(MasterKey::parse(&[200; 32]).is_ok());
    for bad in [&b""[..], b"secret", &[b'g'; 64], &[b'0'; 63], &[0; 31]] {
        let (kind, line) = refused(MasterKey::parse(bad));
        assert!(kind == StoreErrorKind::Key && !line.contains("secret"), "{line}");
    }
}

/// Nothing that was said stands in the files, neither of values nor of scopes, also not what was removed.
#[test]
fn leaves_no_plain_text_on_disk() {
    let words = ["correct horse battery staple", "alice@example.org", "a removed secret of hers"];
    let traces = |encrypted: bool| -> Vec<bool> {
        let (folder, path) = file();
        let key = key(9);
        let store = open(&path, &with(encrypted.then_some(&key))).expect("a store");
        for i in 0..200u64 {
            let value = format!("{} {i}", words[0]);
            put(store.as_ref(), A, words[1].as_bytes(), &[(&time_key(i, i), value.as_bytes())]);
        }
        put(store.as_ref(), B, b"s", &[(b"k", words[2].as_bytes())]);
        let mut change = store.begin(Durability::Durable).expect("a transaction");
        assert!(change.remove(B, b"s", b"k").expect("readable"));
        change.commit().expect("a commit");
        assert_eq!(store.snapshot().expect("a snapshot").scopes(A).expect("readable"), [words[1].as_bytes()]);
        drop(store);
        let files = std::fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("an entry").path());
        let raw: Vec<u8> = files.flat_map(|path| std::fs::read(path).expect("a file")).collect();
        words.iter().map(|word| raw.windows(word.len()).any(|window| window == word.as_bytes())).collect()
    };
    assert_eq!(traces(true), [false; 3]);
    // The search finds what is there.
    assert_eq!(traces(false)[..2], [true; 2]);
}

/// What was removed is not in the file any more, without encryption too; who reads goes on, and so do later changes.
#[test]
fn scrubbing_takes_what_was_removed_off_the_disk() {
    for encrypted in [false, true] {
        let (folder, path) = file();
        let key = key(3);
        let store = open(&path, &with(encrypted.then_some(&key))).expect("a store");
        let secret = "a removed secret of hers";
        for i in 0..300u64 {
            put(store.as_ref(), A, b"hers", &[(&time_key(i, i), format!("{secret} {i}").as_bytes())]);
            put(store.as_ref(), B, b"his", &[(&time_key(i, i), format!("what he keeps {i}").as_bytes())]);
        }
        let mut change = store.begin(Durability::Durable).expect("a transaction");
        assert_eq!(change.remove_scope(A, b"hers").expect("readable"), 300);
        change.commit().expect("a commit");
        let finds = |text: &str| {
            let files =
                std::fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("an entry").path());
            let raw: Vec<u8> = files.flat_map(|path| std::fs::read(path).expect("a file")).collect();
            raw.windows(text.len()).any(|window| window == text.as_bytes())
        };
        assert_eq!(finds(secret), !encrypted, "it is still in a free page");
        let (before, n_bytes) = (store.snapshot().expect("a snapshot"), store.n_bytes());
        store.scrub().expect("writable");
        assert!(!finds(secret) && finds("what he keeps") != encrypted);
        assert_eq!(store.n_bytes(), n_bytes);
        assert!(before.get(B, b"his", &time_key(7, 7)).expect("readable").is_some());
        put(store.as_ref(), B, b"his", &[(&time_key(300, 300), b"later")]);
        drop(before);
        drop(store);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing lies beside it");
        let store = open(&path, &with(encrypted.then_some(&key))).expect("a store");
        assert_eq!(all(store.as_ref(), B, Scan::all(b"his")).len(), 301);
        assert!(all(store.as_ref(), A, Scan::all(b"hers")).is_empty());
    }
}

/// Many write while the file is made anew again and again.
#[test]
fn scrubbing_loses_nothing_that_is_written_meanwhile() {
    let (_folder, path) = file();
    let store = open(&path, &with(None)).expect("a store");
    std::thread::scope(|scope| {
        for writer in 0..3u64 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..40 {
                    put(store.as_ref(), A, &[writer as u8], &[(&time_key(i, i), b"x")]);
                    assert!(!all(store.as_ref(), A, Scan::all(&[writer as u8])).is_empty());
                }
            });
        }
        (0..10).for_each(|_| store.scrub().expect("writable"));
    });
    drop(store);
    let store = open(&path, &with(None)).expect("a store");
    (0..3).for_each(|writer| assert_eq!(all(store.as_ref(), A, Scan::all(&[writer])).len(), 40));
}

/// A record that was changed, or put in the place of another, is not believed.
#[test]
fn notices_changed_and_swapped_records() {
    let (_folder, path) = file();
    let key = key(4);
    put(open(&path, &with(Some(&key))).expect("a store").as_ref(), A, b"s", &[(b"1", b"one"), (b"2", b"two")]);
    let inner = EmbeddedStore::open(&path, Limits::default()).expect("a file");
    let digest = inner.snapshot().expect("a snapshot").scopes(A).expect("readable").remove(0);
    let records = all(&inner, A, Scan::all(&digest));
    assert!(records.iter().all(|(_, value)| !value.windows(3).any(|w| w == b"one" || w == b"two")));
    let mut flipped = records[1].1.clone();
    flipped[30] ^= 1;
    put(&inner, A, &digest, &[(b"1", &records[1].1), (b"2", &flipped), (b"3", b"short")]);
    drop(inner);
    let store = open(&path, &with(Some(&key))).expect("a store");
    for k in [b"1", b"2", b"3"] {
        let read = store.snapshot().expect("a snapshot").get(A, b"s", k);
        assert_eq!(refused(read), (StoreErrorKind::Invalid, "a: a record is not what was written there".to_owned()));
    }
}

#[test]
fn refuses_files_that_are_no_store() {
    let (folder, path) = file();
    std::fs::write(&path, b"not a database, but long enough to be read as one".repeat(400)).expect("a file");
    assert_eq!(refused(open(&path, &with(None))).0, StoreErrorKind::Invalid);
    assert_eq!(refused(open(folder.path(), &with(None))).0, StoreErrorKind::Io);
    let (_folder, path) = file();
    let first = open(&path, &with(None)).expect("a store");
    let (kind, line) = refused(open(&path, &with(None)));
    assert!(
        kind == StoreErrorKind::Io && line.ends_with("another process has the store open: stop it first"),
        "{line}"
    );
    drop(first);
}
