//! The limit of bytes: never exceeded, whatever is written, and what is in use stays.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const MAX_BYTES: u64 = 512 << 10;

fn open_small(folder: &Path) -> DiskStore {
    DiskStore::open(folder, options(MAX_BYTES)).unwrap()
}

/// Panics if the store has more bytes than allowed, by its own count or on the disk.
fn check_limit(store: &DiskStore, max_bytes: u64) {
    let (bytes, found) = (store.stats().bytes, bytes_in(store.path()));
    assert!(bytes <= max_bytes && found <= max_bytes + 200, "{bytes} counted, {found} found");
}

#[test]
fn the_oldest_go_and_the_wanted_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, hot) = (open_small(folder.path()), Chain::new(0));
    hot.put_all(&store, 5);
    store.save_session("kept", &[9; 50], "settings").unwrap();
    store.save_session("deleted", &[9; 50], "settings").unwrap();
    assert!(store.delete_session("deleted").unwrap());
    let mut n_evicted = 0;
    for round in 1..120 {
        let chain = Chain::new(round);
        chain.put_all(&store, 12);
        store.flush().unwrap();
        check_limit(&store, MAX_BYTES);
        assert_eq!(hot.n_intact(&store, 5), 5, "round {round}");
        // What was written last is there.
        assert_eq!(chain.n_intact(&store, 12), 12, "round {round}");
        if round % 10 == 0 {
            n_evicted += store.stats().n_evicted;
            drop(store);
            store = open_small(folder.path());
            check_limit(&store, MAX_BYTES);
            // What was wanted is not remembered, so it must be wanted again.
            assert_eq!(hot.n_intact(&store, 5), 5, "round {round}");
            assert_eq!(store.load_session("kept").unwrap().unwrap().tokens, [9; 50]);
            assert_eq!(store.load_session("deleted").unwrap(), None);
        }
    }
    assert!(n_evicted > 500, "{n_evicted} evicted");
    assert_eq!((Chain::new(1).n_intact(&store, 12), store.stats().n_corrupt), (0, 0));
}

#[test]
fn a_lower_limit_holds_from_opening_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    for seed in 0..40 {
        Chain::new(seed).put_all(&store, 20);
    }
    store.save_session("kept", &[1], "").unwrap();
    drop(store);
    let store = DiskStore::open(folder.path(), options(MAX_BYTES / 2)).unwrap();
    check_limit(&store, MAX_BYTES / 2);
    assert!(store.stats().bytes > MAX_BYTES / 4, "{:?}", store.stats());
    assert!(store.load_session("kept").unwrap().is_some());
    assert_eq!(Chain::new(39).n_intact(&store, 20), 20);
}

#[test]
fn sessions_alone_respect_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_small(folder.path());
    for i in 0..400 {
        store.save_session(&format!("session {i}"), &[i; 1000], "").unwrap();
        check_limit(&store, MAX_BYTES);
        assert_eq!(store.load_session(&format!("session {i}")).unwrap().unwrap().tokens, [i; 1000]);
    }
    let n_sessions = store.sessions().len();
    assert!((40..130).contains(&n_sessions), "{n_sessions} of 400 sessions of 4 kB in 512 KiB");
}

#[test]
fn records_as_large_as_allowed_fit() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_small(folder.path());
    let large = vec![3; MAX_BYTES as usize / 4];
    for i in 0..20 {
        let namespace = namespace_of(i);
        let block = BlockRef { namespace, parent: store.root(namespace), block_idx: 0, format: 9, tokens: &[1] };
        assert_eq!(store.put_block(&block, &[&large]), Put::Queued);
        store.flush().unwrap();
        check_limit(&store, MAX_BYTES);
        let mut read = Vec::new();
        assert!(store.read_block(&block.key(), &mut read).unwrap() == Some(9) && read == large);
    }
}

#[test]
fn reading_while_segments_go() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_small(folder.path());
    let n_writers = AtomicUsize::new(3);
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (store, n_writers) = (&store, &n_writers);
            scope.spawn(move || {
                for i in 0..60 {
                    let chain = Chain::new(1000 * writer + i);
                    for block_idx in 0..8 {
                        chain.put(store, block_idx);
                    }
                    store.flush().unwrap();
                    store.save_session(&format!("{writer}"), &[i as u32], "").unwrap();
                }
                n_writers.fetch_sub(1, Ordering::Relaxed);
            });
        }
        for reader in 0..2 {
            let (store, n_writers) = (&store, &n_writers);
            scope.spawn(move || {
                let mut rng = Rng::new(reader);
                while n_writers.load(Ordering::Relaxed) > 0 {
                    Chain::new(1000 * (rng.next() % 3) + rng.next() % 60).n_intact(store, 8);
                }
            });
        }
    });
    check_limit(&store, MAX_BYTES);
    let stats = store.stats();
    assert_eq!((stats.n_corrupt, stats.n_sessions), (0, 3), "{stats:?}");
    assert!(stats.n_evicted > 0, "{stats:?}");
}
