//! Processes that are killed while they learn: what was acknowledged is there afterwards, and is what they knew.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

use super::*;
use crate::store::MasterKey;
use ruvllm_testkit::killed;

/// Says to a process that it is one of those.
const CHILD: &str = "RUVLLM_SONA_HISTORY_TEST_CHILD";

fn open(path: &std::path::Path, toy: &mut Toy) -> History {
    let key = MasterKey::new([5; 32]);
    let store = store::open(path, &OpenOptions { key: Some(&key), ..OpenOptions::default() }).expect("a store");
    History::open(store, "t", setup(toy, HistoryLimits::default()), toy).expect("a history")
}

/// The process that learns, takes back, publishes and goes back; each is acknowledged on standard output with a digest of what it
/// knows then.
#[test]
fn learns_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let mut toy = Toy::new();
    let mut history = open(path.as_ref(), &mut toy);
    loop {
        let id = history.next_item;
        match id % 7 {
            3 if history.undo(id - 2, &mut toy).is_ok() => {}
            5 => drop(history.publish("a test", &[]).expect("a store")),
            6 if id.is_multiple_of(4) => history.rollback(history.generation(), &mut toy).expect("kept"),
            _ => {}
        }
        Request::new(id as u32 % 9).end(&toy, &mut history).expect("learned");
        // By itself in a line, whatever the test runner writes around it.
        println!("\nacknowledged {} {}", history.next_item, digest(&history));
    }
}

fn digest(history: &History) -> String {
    blake3::hash(&history.state()).to_hex().to_string()
}

/// The next item and the digest that a line acknowledges.
fn read(line: &str) -> Option<(u64, String)> {
    let (next, digest) = line.strip_prefix("acknowledged ")?.split_once(' ')?;
    Some((next.parse().ok()?, digest.to_owned()))
}

#[test]
fn a_hundred_kills_lose_nothing_that_was_ingested() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sona.redb");
    let mut rng = ChaCha8Rng::seed_from_u64(29);
    let (mut n_acknowledged, mut toy) = (0, Toy::new());
    for _ in 0..100 {
        let test = "history::tests::kill::learns_until_it_is_killed";
        let last = killed::run((test, CHILD, &path), &mut rng, read);
        let Some((next, known)) = last else { continue };
        n_acknowledged += 1;
        let history = open(&path, &mut toy);
        assert!(history.next_item >= next, "{} items, {next} were acknowledged", history.next_item);
        if history.next_item == next && history.head.first <= next {
            assert_eq!(digest(&history), known, "what was known before it was killed");
        }
    }
    assert!(n_acknowledged > 50, "only {n_acknowledged} of a hundred processes learned: this test tests nothing");
}
