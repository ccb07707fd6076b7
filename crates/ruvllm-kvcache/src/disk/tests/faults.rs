//! A disk that fails at each write: what was acknowledged is there, nothing wrong is served, and the store goes on when the
//! disk does.

use super::*;
use ruvllm_testkit::Faults;

const BLOCKS: usize = 8;
/// Errors of the system: no space left, and one of the device.
const CODES: [i32; 2] = [28, 5];

fn open_each_batch(folder: &Path) -> DiskStore {
    let options = StoreOptions { fsync: FsyncPolicy::EachBatch, segment_bytes: 16 << 10, ..options(16 << 20) };
    DiskStore::open(folder, options).expect("the folder can be used")
}

/// Checks what must be there, whatever failed.
fn check_kept(store: &DiskStore, saved: &[u32], what: &str) {
    assert_eq!(Chain::new(0).n_intact(store, 3), 3, "{what}: flushed before");
    for &number in saved {
        let session = store.load_session(&format!("s{number}")).expect("files can be read");
        assert_eq!(session.expect(what).tokens, [number; 40], "{what}: a session that was acknowledged");
    }
    // What failed is not there, or as it was written.
    for seed in 1..4 {
        Chain::new(seed).n_intact(store, BLOCKS);
    }
}

/// Runs until a run has more writes than are let through, and returns how many runs there were.
fn check(code: i32) -> u64 {
    for n in 0.. {
        let folder = tempfile::tempdir().expect("a folder");
        let faults = Faults::watch(folder.path());
        let store = open_each_batch(folder.path());
        Chain::new(0).put_all(&store, 3);
        store.flush().expect("the disk works");
        let before = faults.n_done();
        faults.after(n, code);
        let mut saved = Vec::new();
        for number in 1..4 {
            for block_idx in 0..BLOCKS {
                Chain::new(u64::from(number)).put(&store, block_idx);
            }
            let flushed = store.flush();
            saved.extend(store.save_session(&format!("s{number}"), &[number; 40], "").ok().map(|()| number));
            assert!(flushed.is_ok() || store.stats().last_failure.is_some(), "call {n}");
        }
        let has_failed = faults.n_done() - before > n;
        let what = format!("call {n}, error {code}");
        if has_failed {
            // As long as the disk does not work, that is said, as often as somebody asks.
            Chain::new(50).put(&store, 0);
            let (kind, line) = fault(store.flush());
            assert!(kind == DiskFault::Io && line.contains(&format!("os error {code}")), "{what}: {line}");
            assert!(store.flush().is_err() && store.stats().is_failing, "{what}: and again");
        }
        faults.clear();
        store.flush().expect("the disk works again, and what is lost is counted");
        let stats = store.stats();
        assert!(!stats.is_failing && (has_failed == (stats.n_failed > 0 || stats.last_failure.is_some())), "{what}");
        Chain::new(9).put_all(&store, 5);
        store.save_session("after", &[9; 40], "").expect("the disk works again");
        store.flush().expect("the disk works again");
        check_kept(&store, &saved, &what);
        drop(store);
        let store = open_each_batch(folder.path());
        check_kept(&store, &saved, &what);
        assert_eq!(Chain::new(9).n_intact(&store, 5), 5, "{what}: written after it");
        assert_eq!(store.load_session("after").expect("files can be read").expect(&what).tokens, [9; 40]);
        if !has_failed {
            return n;
        }
    }
    unreachable!("a run ends")
}

#[test]
fn a_store_goes_on_when_the_disk_does() {
    let n_runs: u64 = CODES.map(check).iter().sum();
    // With those of the stores of ruvllm-sona, which assert 130, more than 200.
    assert!(n_runs >= 150, "{n_runs} runs");
}
