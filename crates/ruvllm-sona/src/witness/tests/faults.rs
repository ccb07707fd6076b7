//! A disk that fails at each write of a log: all is on record when it works again, once, and verification says what is not.

use super::*;
use crate::failing;

fn start(store: &Arc<dyn Store>, syncs_each_batch: bool) -> WitnessLog {
    let options = LogOptions { wait_ms_max: 1, n_batch: 2, syncs_each_batch, ..LogOptions::default() };
    WitnessLog::start(Arc::clone(store), options).expect("a log")
}

fn serve(log: &WitnessLog, requests: std::ops::Range<u64>) {
    for request in requests {
        assert!(log.record("one", Event::Served(Box::new(served(request)))));
    }
}

fn check(syncs_each_batch: bool, code: i32) -> u64 {
    let mut n = 0;
    loop {
        let folder = tempfile::tempdir().expect("a folder");
        let (faults, store) = failing::open(folder.path());
        let log = start(&store, syncs_each_batch);
        serve(&log, 0..3);
        log.flush().expect("a disk that works");
        let before = faults.n_done();
        faults.after(n, code);
        for i in 0..3 {
            serve(&log, 3 + i..4 + i);
            let _ = log.flush();
        }
        let is_failing = log.stats().failing.is_some();
        let has_failed = faults.n_done() - before > n;
        assert!(!is_failing || has_failed, "call {n}");
        faults.clear();
        serve(&log, 6..8);
        let anchor = log.flush().expect("the disk works again");
        let stats = log.stats();
        assert_eq!((stats.n_queued, stats.failing), (0, None), "call {n}");
        let verified = verify(store.as_ref(), Some(&anchor)).expect("readable");
        assert_eq!((verified.faults, verified.n_lost), (vec![], stats.n_lost), "call {n}");
        let mut found: Vec<u64> = search(store.as_ref(), "one", &Query::default())
            .expect("readable")
            .iter()
            .filter_map(|recorded| match &recorded.event {
                Event::Served(served) => Some(served.request),
                _ => None,
            })
            .collect();
        found.sort_unstable();
        // What was not synced goes when the file is closed; it is told.
        match syncs_each_batch {
            true => assert_eq!((found, stats.n_lost), ((0..8).collect::<Vec<_>>(), 0), "call {n}: each once"),
            false => {
                let n_all = found.len() as u64 + stats.n_lost;
                found.dedup();
                assert_eq!((n_all, found.len() as u64), (8, 8 - stats.n_lost), "call {n}: each once, or told");
            }
        }
        if !has_failed {
            return n;
        }
        n += 1;
    }
}

#[test]
fn all_is_on_record_when_the_disk_works_again() {
    let n_runs = check(true, 28) + check(true, 5) + check(false, 28);
    assert!(n_runs >= 20, "{n_runs} runs");
}

#[test]
fn what_the_queue_has_no_room_for_is_named_by_verification() {
    let folder = tempfile::tempdir().expect("a folder");
    let (faults, store) = failing::open(folder.path());
    let options = LogOptions { n_queued_max: 2, ..LogOptions::default() };
    let log = WitnessLog::start(Arc::clone(&store), options).expect("a log");
    faults.after(0, 28);
    for request in 0..5 {
        log.record("one", Event::Served(Box::new(served(request))));
        let _ = log.flush();
    }
    let stats = log.stats();
    assert_eq!((stats.n_queued, stats.n_lost), (2, 3));
    assert!(stats.failing.expect("why").contains("No space left"), "the reason is told");
    faults.clear();
    let anchor = log.flush().expect("the disk works again");
    let verified = verify(store.as_ref(), Some(&anchor)).expect("readable");
    assert_eq!((verified.faults, verified.n_lost, verified.n_records), (vec![], 3, 3));
}
