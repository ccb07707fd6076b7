//! What a log writes, what a verification finds, and what is erased.

use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use tempfile::TempDir;

use super::*;
use crate::quality::Scores;
use crate::store::{MasterKey, OpenOptions, Scan, Table, open, time_of};
use crate::trajectory::Latency;

mod anchors;
mod faults;

const LINKS: Table = Table::new("witness links");
const CONTENTS: Table = Table::new("witness");

fn store() -> (TempDir, Arc<dyn Store>) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder.path().join("sona.redb"), &OpenOptions::default()).expect("a store");
    (folder, store)
}

fn served(request: u64) -> Served {
    Served {
        request,
        model: [request as u8 % 2; 32],
        adapter_generation: 1,
        template: [3; 32],
        settings: "top-k 40, temperature 0.8".into(),
        seed: request * 7,
        prompt: Content::new(&[1, 2, 3], request.is_multiple_of(2)),
        completion: Content::new(&[4], true),
        finish: "stop".into(),
        n_cached_tokens: 2,
        n_disk_tokens: 1,
        routing: "small: simple question".into(),
        policy: "guesses up to 24: learned".into(),
        scores: Scores { diversity: request.is_multiple_of(2).then_some(0.75), ..Scores::default() },
        latency: Latency { queue_us: 1, prefill_us: 20, decode_us: 300 },
        quality: request.is_multiple_of(3).then_some(request as f32 / 100.0),
        error: request.is_multiple_of(5).then(|| format!("out of blocks at {request}")),
    }
}

/// A log of `n` records of two tenants.
fn written(store: &Arc<dyn Store>, n: u64) -> Anchor {
    let log = WitnessLog::start(store.clone(), LogOptions::default()).expect("a log");
    for request in 0..n {
        assert!(log.record(["one", "two"][request as usize % 2], Event::Served(Box::new(served(request)))));
    }
    log.flush().expect("writable")
}

#[test]
fn events_come_back_and_damaged_ones_are_refused() {
    let events = [
        Event::Served(Box::new(served(6))),
        Event::Served(Box::new(served(5))),
        Event::Feedback { request: 4, quality: 0.5 },
        Event::Learning { what: "rolled back to 3".into() },
        Event::Lost { n: 12 },
        Event::Erased { seqs: vec![1, 5, 7] },
    ];
    for event in events {
        let bytes = event.to_bytes();
        assert_eq!(Event::from_bytes(&bytes).expect("its own bytes"), event);
        assert!((0..bytes.len()).all(|n| Event::from_bytes(&bytes[..n]).is_err()));
        assert!(Event::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    }
    assert!(Event::from_bytes(&[1, 9]).is_err());
    assert!(Event::from_bytes(&[0, 3]).is_err() && Event::from_bytes(&[3, 3]).is_err());
}

#[test]
fn records_of_the_first_format_are_read() {
    let new = Served { policy: String::new(), scores: Scores::default(), ..served(6) };
    let bytes = Event::Served(Box::new(new.clone())).to_bytes();
    // It ended with the error: an empty policy takes 4 bytes, each score 5.
    let old = [&[1], &bytes[1..bytes.len() - 4 - 5 * 5]].concat();
    assert_eq!(Event::from_bytes(&old).expect("an old record"), Event::Served(Box::new(new)));
}

/// What takes time to know is there when a flush says so, and one that breaks takes nothing along.
#[test]
fn records_are_completed_before_they_are_written() {
    let (_folder, store) = store();
    let log = WitnessLog::start(store.clone(), LogOptions::default()).expect("a log");
    for request in 0..20 {
        log.record_then("one", Event::Served(Box::new(served(request))), move |event| {
            assert_ne!(request, 7, "this one breaks, as the test wants it");
            if let Event::Served(served) = event {
                served.quality = Some(0.5);
            }
        });
    }
    let anchor = log.flush().expect("writable");
    let found = search(store.as_ref(), "one", &Query::default()).expect("readable");
    let quality = |recorded: &Recorded| (recorded.seq, recorded.quality);
    let expected = (0..20).rev().map(|i| (i, if i == 7 { served(7).quality } else { Some(0.5) }));
    assert_eq!(found.iter().map(quality).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert!(verify(store.as_ref(), Some(&anchor)).expect("readable").faults.is_empty());
}

#[test]
fn a_log_goes_on_where_it_ended_and_verifies() {
    let (_folder, store) = store();
    assert_eq!(verify(store.as_ref(), None).expect("readable").n_records, 0);
    let first = written(&store, 50);
    let second = written(&store, 30);
    assert_eq!((first.n_links, second.n_links), (50, 80));
    for anchor in [first, second] {
        let parsed = Anchor::parse(&anchor.to_string()).expect("its own text");
        let verified = verify(store.as_ref(), Some(&parsed)).expect("readable");
        assert_eq!(verified, Verified { n_records: 80, n_erased: 0, n_lost: 0, faults: vec![], head: second });
    }
    for bad in ["", "5", "5:00", "x:00", &format!("5:{}", "é".repeat(32))] {
        assert!(Anchor::parse(bad).is_err(), "{bad}");
    }
}

type Rows = Vec<(Vec<u8>, Vec<u8>, Vec<u8>)>;

fn rows(store: &dyn Store, table: Table) -> Rows {
    let (snapshot, mut rows) = (store.snapshot().expect("a snapshot"), vec![]);
    for scope in snapshot.scopes(table).expect("readable") {
        let visit: &mut crate::store::Visit<'_> = &mut |key, value| {
            rows.push((scope.clone(), key.to_vec(), value.to_vec()));
            Ok(true)
        };
        snapshot.scan(table, &Scan::all(&scope), visit).expect("readable");
    }
    rows
}

fn seq(table: Table, row: &(Vec<u8>, Vec<u8>, Vec<u8>)) -> u64 {
    let (first, second) = time_of(&row.1);
    if table == LINKS { first } else { second }
}

/// A thousand random edits, deletions, swaps and truncations: each found where it was made.
#[test]
fn locates_a_thousand_random_changes() {
    let (_folder, store) = store();
    let anchor = written(&store, 60);
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut draw = move |n: usize| (rng.next_u64() % n as u64) as usize;
    let clean: [(Table, Rows); 2] = [LINKS, CONTENTS].map(|table| (table, rows(store.as_ref(), table)));
    for turn in 0..1000 {
        let (table, rows) = &clean[draw(2)];
        let (a, b) = (draw(60), draw(60));
        let mut change = store.begin(Durability::Relaxed).expect("a transaction");
        let mut touched = vec![seq(*table, &rows[a])];
        match draw(4) {
            0 => {
                let mut value = rows[a].2.clone();
                let at = draw(value.len());
                value[at] ^= 1 << draw(8);
                change.put(*table, &rows[a].0, &rows[a].1, &value).expect("room");
            }
            1 => drop(change.remove(*table, &rows[a].0, &rows[a].1).expect("writable")),
            2 => {
                let b = if a == b { (a + 1) % 60 } else { b };
                touched.push(seq(*table, &rows[b]));
                change.put(*table, &rows[a].0, &rows[a].1, &rows[b].2).expect("room");
                change.put(*table, &rows[b].0, &rows[b].1, &rows[a].2).expect("room");
            }
            _ => {
                // The end of both tables, as somebody would do it who knows how.
                let from = seq(*table, &rows[a]);
                touched = (from..60).collect();
                for (table, rows) in &clean {
                    for row in rows.iter().filter(|row| seq(*table, row) >= from) {
                        change.remove(*table, &row.0, &row.1).expect("writable");
                    }
                }
            }
        }
        change.commit().expect("a commit");
        let verified = verify(store.as_ref(), Some(&anchor)).expect("readable");
        let found: Vec<u64> = verified.faults.iter().map(|fault| fault.seq).collect();
        for seq in &touched {
            assert!(found.contains(seq), "turn {turn}: {seq} was touched, found {:?}", verified.faults);
        }
        // A changed hash shows at the link behind as well, and nowhere else.
        assert!(found.iter().all(|seq| touched.iter().any(|t| seq == t || *seq == t + 1)), "turn {turn}: {found:?}");
        let mut change = store.begin(Durability::Relaxed).expect("a transaction");
        for (table, rows) in &clean {
            for row in rows {
                change.put(*table, &row.0, &row.1, &row.2).expect("room");
            }
        }
        change.commit().expect("a commit");
    }
    assert!(verify(store.as_ref(), Some(&anchor)).expect("readable").faults.is_empty());
}

/// Whoever computes the whole chain anew is betrayed by the anchor alone.
#[test]
fn an_anchor_tells_a_chain_that_was_computed_anew() {
    let (_folder, store) = store();
    let anchor = written(&store, 20);
    let (_other_folder, other) = self::store();
    written(&other, 25);
    assert!(verify(other.as_ref(), None).expect("readable").faults.is_empty());
    let faults = verify(other.as_ref(), Some(&anchor)).expect("readable").faults;
    assert_eq!(faults, [Fault { seq: 19, kind: FaultKind::AnchorMissed }]);
}

/// Also from the file of a store without encryption: the tenant's name, tokens and lines stand nowhere.
#[test]
fn an_erased_tenant_leaves_no_trace_in_the_file() {
    let (folder, store) = store();
    let log = WitnessLog::start(store.clone(), LogOptions::default()).expect("a log");
    let mark = [0x1234_5678, 0x0BAD_CAFE, 0x7654_3210];
    for request in 0..50 {
        let error = Some("her own words".to_owned());
        let hers = Served { completion: Content::new(&mark, true), error, ..served(request) };
        log.record("alice@example.org", Event::Served(Box::new(hers)));
        log.record("bob", Event::Served(Box::new(served(request))));
    }
    log.flush().expect("writable");
    let bytes = mark.iter().flat_map(|token: &u32| token.to_le_bytes()).collect::<Vec<u8>>();
    let finds = |needle: &[u8]| {
        let raw = std::fs::read(folder.path().join("sona.redb")).expect("a file");
        raw.windows(needle.len()).any(|window| window == needle)
    };
    let traces = [b"alice@example.org".as_slice(), b"her own words", &bytes];
    assert!(traces.iter().all(|trace| finds(trace)) && finds(b"bob"));
    assert_eq!(log.erase_tenant("alice@example.org").expect("writable"), 50);
    assert_eq!(traces.map(finds), [false; 3]);
    let verified = verify(store.as_ref(), Some(&log.flush().expect("writable"))).expect("readable");
    assert!(finds(b"bob") && verified.faults.is_empty() && verified.n_erased == 50);
}

#[test]
fn erased_contents_are_gone_and_the_chain_stands() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, key) = (folder.path().join("sona.redb"), MasterKey::new([6; 32]));
    let options = OpenOptions { key: Some(&key), ..OpenOptions::default() };
    let store = open(&path, &options).expect("a store");
    let before = written(&store, 40);
    let log = WitnessLog::start(store.clone(), LogOptions::default()).expect("a log");
    assert_eq!(log.erase_tenant("one").expect("writable"), 20);
    assert_eq!(log.erase_tenant("nobody").expect("writable"), 0);
    let all = |tenant: &str| search(store.as_ref(), tenant, &Query::default()).expect("readable");
    assert!(all("one").is_empty() && all("two").len() == 20);
    assert_eq!(all("").len(), 1, "the erasure itself");
    let rules = Retention { n_records_max: Some(5), ..Retention::default() };
    assert_eq!(log.retain(&rules).expect("writable").n_records, 15);
    let left: Vec<u64> = all("two").iter().map(|recorded| recorded.seq).collect();
    assert_eq!(left, [39, 37, 35, 33, 31]);
    let verified = verify(store.as_ref(), Some(&before)).expect("readable");
    assert_eq!((verified.n_records, verified.n_erased, verified.faults), (42, 35, vec![]));

    // Without the record of it, the same is a fault.
    let erasure = rows(store.as_ref(), CONTENTS).into_iter().find(|row| row.0.is_empty()).expect("it is there");
    let mut change = store.begin(Durability::Durable).expect("a transaction");
    assert!(change.remove(CONTENTS, &erasure.0, &erasure.1).expect("writable"));
    change.commit().expect("a commit");
    let verified = verify(store.as_ref(), Some(&before)).expect("readable");
    assert_eq!(verified.faults.len(), 21);
    assert!(verified.faults.iter().all(|fault| fault.kind == FaultKind::ContentsMissing));
}

#[test]
fn searches_by_time_model_request_quality_and_error() {
    let (_folder, store) = store();
    let log = WitnessLog::start(store.clone(), LogOptions::default()).expect("a log");
    for request in 1..=30 {
        log.record("t", Event::Served(Box::new(served(request))));
    }
    log.record("t", Event::Feedback { request: 2, quality: 0.9 });
    log.record("t", Event::Feedback { request: 3, quality: 0.05 });
    log.record("t", Event::Learning { what: "merged".into() });
    log.record("other", Event::Served(Box::new(served(2))));
    log.flush().expect("writable");
    let requests = |query: Query| -> Vec<u64> {
        let found = search(store.as_ref(), "t", &query).expect("readable");
        assert!(found.is_sorted_by(|a, b| a.seq > b.seq));
        let request = |recorded: &Recorded| match &recorded.event {
            Event::Served(served) => Some(served.request),
            Event::Feedback { request, .. } => Some(100 + request),
            _ => None,
        };
        found.iter().filter_map(request).collect()
    };
    let all = Query::default();
    assert_eq!(search(store.as_ref(), "t", &all).expect("readable").len(), 33);
    assert_eq!(requests(Query { n_max: 3, ..all.clone() }), [103, 102]);
    assert_eq!(requests(Query { request: Some(3), ..all.clone() }), [103, 3]);
    assert_eq!(requests(Query { model: Some([1; 32]), n_max: 2, ..all.clone() }), [29, 27]);
    // Said last counts: 2 is better than its record says, 3 is worse.
    assert_eq!(requests(Query { quality_min: Some(0.3), ..all.clone() }), [30, 2]);
    assert_eq!(requests(Query { quality_max: Some(0.06), ..all.clone() }), [6, 3]);
    assert_eq!(requests(Query { has_failed: Some(true), ..all.clone() }), [30, 25, 20, 15, 10, 5]);
    assert_eq!(requests(Query { error: Some("at 2".into()), ..all.clone() }), [25, 20]);
    assert_eq!(requests(Query { to_ms: 1000, ..all.clone() }), [0u64; 0]);
    assert_eq!(requests(Query { from_ms: now_ms() + 60_000, ..all }), [0u64; 0]);
}

#[test]
fn a_full_queue_is_counted_and_on_record() {
    let (_folder, store) = store();
    let options = LogOptions { n_queued_max: 10, n_batch: 1000, wait_ms_max: 3_600_000, ..LogOptions::default() };
    let log = WitnessLog::start(store.clone(), options).expect("a log");
    let taken = (0..25).filter(|i| log.record("t", Event::Feedback { request: *i, quality: 0.5 })).count();
    assert_eq!((taken, log.stats().n_queued, log.stats().n_lost), (10, 10, 15));
    log.flush().expect("writable");
    assert_eq!((log.stats().n_queued, log.stats().n_written, log.stats().n_lost), (0, 10, 15));
    let lost = search(store.as_ref(), "", &Query::default()).expect("readable");
    assert_eq!(lost[0].event, Event::Lost { n: 15 });
    assert_eq!(verify(store.as_ref(), None).expect("readable").n_records, 11);
}

#[test]
fn writes_batches_when_they_are_full_or_have_waited() {
    let (folder, store) = store();
    let anchor = folder.path().join("anchor");
    let options = LogOptions { n_batch: 5, wait_ms_max: 50, anchor: Some(anchor.clone()), ..LogOptions::default() };
    let log = WitnessLog::start(store.clone(), options).expect("a log");
    let wait_for = |n: u64| {
        let start = Instant::now();
        while log.stats().n_written < n {
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", log.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    log.record("t", Event::Learning { what: "alone".into() });
    wait_for(1);
    for _ in 0..5 {
        log.record("t", Event::Learning { what: "together".into() });
    }
    wait_for(6);
    log.record("t", Event::Learning { what: "at the end".into() });
    drop(log);
    let saved = Anchor::parse(&std::fs::read_to_string(anchor).expect("a file")).expect("an anchor");
    let verified = verify(store.as_ref(), Some(&saved)).expect("readable");
    assert_eq!((verified.n_records, verified.head, verified.faults), (7, saved, vec![]));
}

/// A store without room: nothing is lost before the queue is full, and `flush` says why.
#[test]
fn what_cannot_be_written_waits() {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = crate::store::Limits { store_bytes_max: 4000, ..Default::default() };
    let options = OpenOptions { limits, ..OpenOptions::default() };
    let store = open(&folder.path().join("sona.redb"), &options).expect("a store");
    let log = WitnessLog::start(store.clone(), LogOptions::default()).expect("a log");
    for request in 0..100 {
        log.record("t", Event::Served(Box::new(served(request))));
    }
    let error = log.flush().expect_err("no room");
    assert!(error.kind() == SonaErrorKind::Limit && error.to_string().contains("the store is full"), "{error}");
    let stats = log.stats();
    assert!(
        stats.n_queued == 100 && stats.n_written == 0 && stats.n_lost == 0 && stats.n_failed_batches > 0,
        "{stats:?}"
    );
    assert_eq!(
        verify(store.as_ref(), None).expect("readable").n_records,
        0,
        "a batch is written as a whole or not at all"
    );
}
