//! A hundred processes that are killed while they write: what they were told is durable is there afterwards.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

use super::*;
use ruvllm_testkit::killed;

/// Says to a process that it is one of those.
const CHILD: &str = "RUVLLM_SONA_STORE_TEST_CHILD";

/// Records of a transaction.
const BATCH: u64 = 8;

/// The process that writes: batches of records, each acknowledged on standard output when it is durable.
#[test]
fn writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let key = key(5);
    let store = open(path.as_ref(), &with(Some(&key))).expect("a store");
    let newest = all(store.as_ref(), A, Scan::all(b"s").newest_first()).first().map(|(key, _)| time_of(key).0);
    let mut batch = newest.map_or(0, |n| n / BATCH + 1);
    loop {
        let mut change = store.begin(Durability::Durable).expect("a transaction");
        for i in batch * BATCH..(batch + 1) * BATCH {
            change.put(A, b"s", &time_key(i, 0), &i.to_le_bytes().repeat(1 + i as usize % 40)).expect("room");
        }
        change.commit().expect("a commit");
        // By itself in a line, whatever the test runner writes around it.
        println!("\nacknowledged {batch}");
        batch += 1;
    }
}

/// The batch that a line acknowledges.
fn read(line: &str) -> Option<u64> {
    line.strip_prefix("acknowledged ")?.parse().ok()
}

#[test]
fn a_hundred_kills_lose_nothing_acknowledged() {
    let (_folder, path) = file();
    let key = key(5);
    let mut rng = ChaCha8Rng::seed_from_u64(17);
    let mut acknowledged: Option<u64> = None;
    for _ in 0..100 {
        let test = "tests::kill::writes_until_it_is_killed";
        acknowledged = killed::run((test, CHILD, &path), &mut rng, read).or(acknowledged);
    }
    let acknowledged = acknowledged.expect("some of a hundred came to write");
    let store = open(&path, &with(Some(&key))).expect("a store");
    let records = all(store.as_ref(), A, Scan::all(b"s"));
    let n = records.len() as u64;
    assert!(n >= (acknowledged + 1) * BATCH, "{n} records, batch {acknowledged} was acknowledged");
    assert_eq!(n % BATCH, 0, "a batch is there as a whole or not at all");
    for (i, (key, value)) in records.iter().enumerate() {
        let i = i as u64;
        assert_eq!((time_of(key).0, value), (i, &i.to_le_bytes().repeat(1 + i as usize % 40)));
    }
    assert!(acknowledged > 50, "only {acknowledged} batches in a hundred processes: this test tests nothing");
}
