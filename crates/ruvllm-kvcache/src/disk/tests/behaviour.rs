//! The store as it is used when nothing goes wrong, and what it refuses.

use super::*;
use crate::disk::{self, Contents, DiskStats, NAME_MAX};

#[test]
fn blocks_come_back_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (Chain::new(1), Chain::new(2));
    {
        let store = open(folder.path());
        a.put_all(&store, 40);
        b.put_all(&store, 3);
        store.flush().unwrap();
        assert_eq!((a.n_intact(&store, 40), b.n_intact(&store, 40)), (40, 3));
    }
    let store = open(folder.path());
    assert_eq!((a.n_intact(&store, 40), b.n_intact(&store, 40)), (40, 3));
    assert_eq!(a.put(&store, 5), Put::Present);
    assert_eq!(b.put(&store, 3), Put::Queued);
    store.flush().unwrap();
    assert_eq!(b.n_intact(&store, 4), 4);
    let DiskStats { n_blocks, n_corrupt, n_dropped, bytes, live_bytes, .. } = store.stats();
    assert_eq!((n_blocks, n_corrupt, n_dropped), (44, 0, 0));
    assert!(live_bytes <= bytes && bytes < bytes_in(store.path()) && bytes + 1024 > bytes_in(store.path()));
}

#[test]
fn prefixes_diverge_and_namespaces_are_apart() {
    let folder = tempfile::tempdir().unwrap();
    let (store, chain) = (open(folder.path()), Chain::new(1));
    chain.put_all(&store, 4);
    let tokens = chain.tokens(4);
    let parent = tokens[..48].chunks(16).fold(store.root(chain.namespace), |parent, tokens| parent.child(tokens));
    let block = |tokens| BlockRef { namespace: chain.namespace, parent, block_idx: 3, format: 0, tokens };
    for n in [3, 7] {
        let partial = block(&tokens[48..48 + n]);
        assert_eq!(store.put_block(&partial, &[&payload(&partial.key())]), Put::Queued);
    }
    store.flush().unwrap();
    let n_found = |namespace, tokens: &[u32]| store.find_prefix(namespace, tokens).n_tokens;
    let other = namespace_of(77);
    assert_eq!((n_found(chain.namespace, &tokens), n_found(other, &tokens)), (64, 0));
    assert_eq!((n_found(chain.namespace, &tokens[1..]), n_found(chain.namespace, &[])), (0, 0));
    // Of partial blocks the longest that fits is found.
    for (n, found) in [(48, 48), (50, 48), (51, 51), (54, 51), (55, 55), (63, 55), (64, 64)] {
        assert_eq!(n_found(chain.namespace, &tokens[..n]), found, "{n} tokens");
    }
    let mut diverging = tokens.clone();
    diverging[20] ^= 1;
    assert_eq!(n_found(chain.namespace, &diverging), 16);
}

#[test]
fn blocks_that_cannot_be_stored_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = StoreOptions { queue_bytes: 9_000, payload_bytes_max: 10_000, ..options(16 << 20) };
    let store = DiskStore::open(folder.path(), sizes).unwrap();
    let namespace = namespace_of(5);
    let root = store.root(namespace);
    let block = |block_idx, parent| BlockRef { namespace, parent, block_idx, format: 0, tokens: &[1, 2, 3] };
    let put = |block: BlockRef<'_>, n| store.put_block(&block, &[&vec![0; n]]);
    assert_eq!(put(block(0, root), 10_001), Put::TooLarge);
    assert_eq!(put(block(0, root), 9_001), Put::QueueFull);
    assert_eq!(put(block(0, store.root(namespace_of(6))), 10), Put::NoParent);
    assert_eq!(put(block(1, block(0, root).key()), 10), Put::NoParent);
    assert_eq!(store.stats().n_dropped, 4);
    assert_eq!(put(block(0, root), 9_000), Put::Queued);
    assert_eq!(put(block(0, root), 9_000), Put::Present);
    store.flush().unwrap();
    assert_eq!((store.stats().n_dropped, store.stats().n_blocks, store.stats().queued_bytes), (4, 1, 0));
}

#[test]
fn sessions_are_saved_listed_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.save_session("b", &[1, 2, 3], "{}").unwrap();
    store.save_session("a ü", &[4; 100], r#"{"temp":0.5}"#).unwrap();
    let created = store.load_session("b").unwrap().unwrap().info.created;
    std::thread::sleep(Duration::from_millis(3));
    store.save_session("b", &[1, 2, 3, 4], "").unwrap();
    drop(store);

    let store = open(folder.path());
    let names: Vec<_> = store.sessions().into_iter().map(|info| (info.name, info.n_tokens)).collect();
    assert_eq!(names, [("a ü".to_owned(), 100), ("b".to_owned(), 4)]);
    let b = store.load_session("b").unwrap().unwrap();
    assert_eq!((b.tokens, b.settings, b.info.created), (vec![1, 2, 3, 4], String::new(), created));
    assert!(b.info.used > created);
    assert_eq!(store.load_session("a ü").unwrap().unwrap().settings, r#"{"temp":0.5}"#);
    assert_eq!(store.load_session("c").unwrap(), None);
    assert_eq!((store.delete_session("b").unwrap(), store.delete_session("b").unwrap()), (true, false));
    assert_eq!(store.expire_sessions(Duration::from_secs(60)).unwrap(), 0);
    drop(store);

    let store = open(folder.path());
    assert_eq!(store.sessions().len(), 1);
    std::thread::sleep(Duration::from_millis(3));
    assert_eq!(store.expire_sessions(Duration::ZERO).unwrap(), 1);
    drop(store);
    assert_eq!(open(folder.path()).sessions(), []);
}

#[test]
fn session_names_and_sizes_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let store = DiskStore::open(folder.path(), options(64 << 10)).unwrap();
    for name in ["", "a\nb", &"x".repeat(NAME_MAX + 1)] {
        let (kind, line) = fault(store.save_session(name, &[1], ""));
        assert_eq!((kind, line.lines().count()), (DiskFault::Invalid, 1), "{line}");
    }
    let (kind, line) = fault(store.save_session("long", &[1; 5000], ""));
    assert_eq!(kind, DiskFault::TooLarge);
    assert_eq!(line, "session 'long' has 20000 bytes, the store takes 16384; start a new session");
    let longest = "x".repeat(NAME_MAX);
    store.save_session(&longest, &[1], "").unwrap();
    assert!(store.load_session(&longest).unwrap().is_some());
}

#[test]
fn deleted_namespaces_stay_deleted() {
    let folder = tempfile::tempdir().unwrap();
    // Chains 1 and 4 share a namespace, 2 has another.
    let chains = [1, 4, 2].map(Chain::new);
    let n_intact = |store: &DiskStore| chains.map(|chain| chain.n_intact(store, 5));
    let store = open(folder.path());
    chains.iter().for_each(|chain| chain.put_all(&store, 5));
    store.delete_namespace(chains[0].namespace).unwrap();
    store.flush().unwrap();
    assert_eq!(n_intact(&store), [0, 0, 5]);
    chains[1].put_all(&store, 5);
    drop(store);
    let store = open(folder.path());
    assert_eq!(n_intact(&store), [0, 5, 5]);
    store.save_session("s", &[1], "").unwrap();
    store.clear().unwrap();
    assert_eq!((n_intact(&store), store.sessions().len(), store.stats().bytes), ([0; 3], 0, 0));
    chains[2].put_all(&store, 2);
    drop(store);
    assert_eq!(n_intact(&open(folder.path())), [0, 0, 2]);
}

#[test]
fn every_policy_flushes() {
    for fsync in [FsyncPolicy::Never, FsyncPolicy::EachBatch, FsyncPolicy::Interval(Duration::ZERO)] {
        let folder = tempfile::tempdir().unwrap();
        let store = DiskStore::open(folder.path(), StoreOptions { fsync, ..options(16 << 20) }).unwrap();
        store.flush().unwrap();
        Chain::new(1).put_all(&store, 30);
        store.save_session("s", &[1], "").unwrap();
        store.flush().unwrap();
        assert_eq!((store.stats().n_blocks, store.stats().n_sessions), (30, 1), "{fsync:?}");
    }
}

#[test]
fn a_write_that_fails_is_reported_and_survived() {
    let folder = tempfile::tempdir().unwrap();
    let (store, chain) = (open(folder.path()), Chain::new(1));
    let path = store.path().to_owned();
    std::fs::rename(&path, path.with_extension("away")).unwrap();
    assert_eq!(chain.put(&store, 0), Put::Queued);
    let (kind, line) = fault(store.flush());
    assert!(
        kind == DiskFault::Io && line.starts_with("cannot write ") && line.contains(path.to_str().unwrap()),
        "{line}"
    );
    assert_eq!((store.stats().n_dropped, store.stats().last_failure), (1, Some(line)));
    assert_eq!(fault(store.save_session("s", &[1], "")).0, DiskFault::Io);
    std::fs::rename(path.with_extension("away"), &path).unwrap();
    chain.put_all(&store, 2);
    store.flush().unwrap();
    assert_eq!(chain.n_intact(&store, 2), 2);
}

#[test]
fn a_store_is_open_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let (kind, line) = fault(DiskStore::open(folder.path(), options(16 << 20)));
    let (path, pid) = (store.path().display(), std::process::id());
    assert_eq!(kind, DiskFault::Locked);
    assert_eq!(line, format!("cache folder {path} is in use by process {pid}; end it or choose another folder"));
    drop(store);
    open(folder.path());
}

#[test]
fn identities_and_versions_are_apart() {
    let folder = tempfile::tempdir().unwrap();
    let (store, chain) = (open(folder.path()), Chain::new(1));
    chain.put_all(&store, 3);
    // Another identity has a store of its own, open at the same time.
    let other = DiskStore::open(folder.path(), StoreOptions { identity: [8; 32], ..options(16 << 20) }).unwrap();
    assert_eq!(chain.n_intact(&other, 3), 0);
    let (path, other_path) = (store.path().to_owned(), other.path().to_owned());
    drop((store, other));

    // The files of one in the place of the other are refused, manifest or not.
    std::fs::copy(path.join("MANIFEST"), other_path.join("MANIFEST")).unwrap();
    let again = || DiskStore::open(folder.path(), StoreOptions { identity: [8; 32], ..options(16 << 20) });
    assert_eq!(fault(again()).0, DiskFault::Identity);
    std::fs::remove_file(other_path.join("MANIFEST")).unwrap();
    std::fs::copy(path.join("0000000000000001.seg"), other_path.join("0000000000000001.seg")).unwrap();
    let other = again().unwrap();
    assert_eq!((other.stats().n_blocks, other.stats().n_corrupt), (0, 1));

    let manifest = std::fs::read_to_string(path.join("MANIFEST")).unwrap();
    let body = manifest.split_once("check").unwrap().0.replace("version 2", "version 3");
    let check = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
    std::fs::write(path.join("MANIFEST"), format!("{body}check {check:016x}\n")).unwrap();
    let (kind, line) = fault(DiskStore::open(folder.path(), options(16 << 20)));
    assert_eq!((kind, line.contains("format version 3, this program reads 2")), (DiskFault::Version, true), "{line}");
}

#[test]
fn stores_are_listed_removed_and_trimmed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("not").join("yet");
    assert_eq!(disk::stores(&cache).unwrap(), []);
    let open = |i| DiskStore::open(&cache, StoreOptions { identity: [i; 32], ..options(16 << 20) }).unwrap();
    for i in [1, 2, 3] {
        Chain::new(1).put_all(&open(i), 10);
        std::thread::sleep(Duration::from_millis(15));
    }
    let listed =
        || disk::stores(&cache).unwrap().into_iter().map(|store| (store.identity[0], store.in_use)).collect::<Vec<_>>();
    let store = open(1);
    assert_eq!(listed().into_iter().filter(|(_, in_use)| *in_use).collect::<Vec<_>>(), [(1, true)]);
    assert_eq!(fault(disk::remove(&cache, &[1; 32])).0, DiskFault::Locked);
    let sizes = || disk::stores(&cache).unwrap().into_iter().map(|store| (store.identity[0], store.bytes));
    let (all, size): (u64, std::collections::HashMap<_, _>) =
        (sizes().map(|(_, bytes)| bytes).sum(), sizes().collect());
    // The longest unused that nobody has open goes first.
    assert_eq!((disk::trim(&cache, all).unwrap(), disk::trim(&cache, all - 1).unwrap()), (0, size[&2]));
    assert_eq!(disk::trim(&cache, 0).unwrap(), size[&3]);
    assert_eq!(listed(), [(1, true)]);
    drop(store);
    assert_eq!((disk::remove(&cache, &[1; 32]).unwrap(), disk::remove(&cache, &[1; 32]).unwrap()), (size[&1], 0));
    assert_eq!(open(1).stats().n_blocks, 0);
}

#[test]
fn options_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (kind, line) = fault(DiskStore::open(folder.path(), options(1000)));
    assert_eq!(kind, DiskFault::Invalid);
    assert_eq!(line, "a cache folder of 1000 bytes is too small; allow 65536 or more");
}

#[test]
#[should_panic(expected = "a block holds 1 to 16 tokens, not 17")]
fn long_blocks_are_a_mistake() {
    BlockKey::root(&IDENTITY, namespace_of(0)).child(&[0; 17]);
}

#[test]
fn contents_are_listed_while_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let label = "a model\n with a name".to_owned() + &"é".repeat(100);
    let store = DiskStore::open(folder.path(), StoreOptions { label, ..options(16 << 20) }).unwrap();
    let (long, short) = (Chain::new(1), Chain::new(2));
    long.put_all(&store, 9);
    short.put_all(&store, 2);
    store.save_session("talk", &[1, 2, 3], "").unwrap();
    store.flush().unwrap();
    let label = disk::stores(folder.path()).unwrap().remove(0).label;
    assert!(label.starts_with("a model with a name\u{e9}") && label.len() <= 100, "{label}");
    let Contents { sessions, prefixes, n_blocks } = disk::contents(folder.path(), &IDENTITY).unwrap();
    assert_eq!((sessions, n_blocks), (store.sessions(), 11));
    let found: Vec<_> = prefixes.iter().map(|prefix| (prefix.key, prefix.namespace, prefix.n_tokens)).collect();
    let last = |chain: Chain, n: usize| (chain.find(&store, n).keys[n - 1], chain.namespace, 16 * n);
    assert_eq!(found, [last(long, 9), last(short, 2)]);
    assert!(prefixes[0].bytes > prefixes[1].bytes && prefixes[0].bytes < store.stats().bytes);
    assert!(prefixes.iter().all(|prefix| prefix.written.elapsed().is_ok_and(|age| age.as_secs() < 60)));
    assert_eq!(disk::contents(folder.path(), &[9; 32]).unwrap(), Contents::default());
}

#[test]
fn blocks_of_the_newest_segment_go_when_a_session_is_copied_behind_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.save_session("talk", &[1, 2, 3], "").unwrap();
    Chain::new(1).put_all(&store, 80);
    store.flush().unwrap();
    assert!(store.stats().bytes > 2 * (32 << 10), "more than two segments");
    std::thread::sleep(Duration::from_millis(20));
    store.expire_blocks(Duration::ZERO).unwrap();
    assert_eq!((store.stats().n_blocks, store.sessions().len()), (0, 1));
}

#[test]
fn old_blocks_go_and_sessions_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    Chain::new(1).put_all(&store, 30);
    store.save_session("talk", &[1, 2, 3], "").unwrap();
    store.save_session("deleted", &[1], "").unwrap();
    store.delete_session("deleted").unwrap();
    store.flush().unwrap();
    store.expire_blocks(Duration::from_secs(3600)).unwrap();
    assert_eq!(store.stats().n_blocks, 30);
    store.expire_blocks(Duration::ZERO).unwrap();
    assert!(store.stats().n_blocks == 0 && store.stats().bytes < 1024, "{:?}", store.stats());
    Chain::new(2).put_all(&store, 3);
    drop(store);
    // The same to make room, but for stores without sessions, which go as a whole.
    let n_bytes = disk::stores(folder.path()).unwrap()[0].bytes;
    let removed = disk::trim(folder.path(), 100).unwrap();
    assert!(removed > 0 && removed < n_bytes, "{removed} of {n_bytes}");
    let store = open(folder.path());
    assert_eq!((store.stats().n_blocks, store.stats().n_corrupt), (0, 0));
    assert_eq!(store.sessions().into_iter().map(|info| info.name).collect::<Vec<_>>(), ["talk"]);
    assert_eq!(store.load_session("talk").unwrap().unwrap().tokens, [1, 2, 3]);
}
