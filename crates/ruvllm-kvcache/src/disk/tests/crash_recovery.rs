//! Processes that are killed while they write, and two processes on one folder.
//!
//! A test starts its own binary again with only itself to run and [`CHILD`] in the environment; the child works in the
//! folder that the variable names until it is killed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::*;

const CHILD: &str = "RUVLLM_TEST_DISK_CHILD";
/// Chains that a child writes, and sessions.
const N_CHAINS: usize = 4;

/// Starts `test` again as a child with these words for it.
fn spawn(test: &str, words: &[&str]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "--test-threads=1", &format!("disk::tests::crash_recovery::{test}")]);
    command.env(CHILD, words.join(":")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Returns the words for this process, if it is a child.
fn words() -> Option<Vec<String>> {
    std::env::var(CHILD).ok().map(|words| words.split(':').map(str::to_owned).collect())
}

/// Tells the parent something.
fn say(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "\n@{line}").and_then(|()| out.flush()).unwrap();
}

/// What a child does, in order; the parent makes the same list from the same seed.
#[derive(Debug)]
enum Op {
    Put { chain: usize },
    Save { name: usize, tokens: Vec<u32> },
    Delete { name: usize },
    Flush,
}

fn ops(seed: u64) -> impl Iterator<Item = Op> {
    let mut rng = Rng::new(seed);
    (0..).map(move |i| match rng.below(50) {
        0 => Op::Flush,
        1 | 2 => Op::Save { name: rng.below(N_CHAINS), tokens: vec![i; rng.below(300)] },
        3 => Op::Delete { name: rng.below(N_CHAINS) },
        _ => Op::Put { chain: rng.below(N_CHAINS) },
    })
}

/// Returns the chains of a round. They differ from those of all other rounds.
fn chains(seed: u64) -> [Chain; N_CHAINS] {
    std::array::from_fn(|i| Chain::new(seed * N_CHAINS as u64 + i as u64))
}

fn kill_options(max_bytes: u64, seed: u64) -> StoreOptions {
    // A killed process leaves what it wrote to the system, synced or not.
    let fsync = match seed % 4 {
        0 => FsyncPolicy::EachBatch,
        1 => FsyncPolicy::Interval(Duration::from_millis(2)),
        _ => FsyncPolicy::Never,
    };
    StoreOptions { fsync, ..options(max_bytes) }
}

/// The child: works until it is killed, and says which operations it finished.
fn work(folder: &str, max_bytes: u64, seed: u64) -> ! {
    let store = DiskStore::open(Path::new(folder), kill_options(max_bytes, seed)).unwrap();
    let chains = chains(seed);
    let mut ends = chains.map(|chain| (0, store.root(chain.namespace)));
    say("open");
    for (i, op) in ops(seed).enumerate() {
        match op {
            Op::Put { chain } => {
                let (block_idx, parent) = ends[chain];
                let (_, key) = chains[chain].put_after(&store, block_idx, parent);
                ends[chain] = (block_idx + 1, key);
            }
            Op::Save { name, tokens } => {
                store.save_session(&name.to_string(), &tokens, "").unwrap();
                say(&i.to_string());
            }
            Op::Delete { name } => {
                store.delete_session(&name.to_string()).unwrap();
                say(&i.to_string());
            }
            Op::Flush => {
                store.flush().unwrap();
                say(&i.to_string());
            }
        }
    }
    unreachable!("there is always more to do")
}

/// Kills a child at a random point, and returns the last operation that it said it finished.
fn kill_one(folder: &Path, max_bytes: u64, seed: u64, rng: &mut Rng) -> Option<usize> {
    let mut child = spawn(
        "killed_writers_lose_nothing_they_flushed",
        &[folder.to_str().unwrap(), &max_bytes.to_string(), &seed.to_string()],
    );
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    // Every eighth child is killed while it starts.
    let mut wait_us = rng.below(8_000);
    if !seed.is_multiple_of(8) {
        while !said.contains("@open") {
            assert!(out.read_line(&mut said).unwrap() > 0, "the child ended: {said}");
        }
        wait_us = rng.below(40_000);
    }
    std::thread::sleep(Duration::from_micros(wait_us as u64));
    child.kill().unwrap();
    child.wait().unwrap();
    out.read_to_string(&mut said).unwrap();
    let whole_lines = said.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.strip_prefix('@'));
    whole_lines.filter_map(|line| line.parse().ok()).next_back()
}

/// What sessions hold.
type Sessions = BTreeMap<String, Vec<u32>>;

fn sessions(store: &DiskStore) -> Sessions {
    let load = |name: &str| store.load_session(name).unwrap().expect("a session that is listed").tokens;
    store.sessions().into_iter().map(|info| (info.name.clone(), load(&info.name))).collect()
}

/// Checks the store after a child of this seed finished operation `last`.
fn check(store: &DiskStore, seed: u64, last: Option<usize>, before: Sessions, all_blocks: bool) -> Sessions {
    let (chains, mut n_put, mut n_flushed) = (chains(seed), [0; N_CHAINS], [0; N_CHAINS]);
    let mut expected = before;
    let found = sessions(store);
    let mut n_unsure = 0;
    for (i, op) in ops(seed).enumerate() {
        // Of what comes after the last operation that was said, one may be done.
        if last.is_none_or(|last| i > last) && !matches!(op, Op::Put { .. }) {
            n_unsure += 1;
        }
        if n_unsure > 0 && (n_unsure > 1 || found == expected) {
            break;
        }
        match op {
            Op::Put { chain } => n_put[chain] += 1,
            Op::Flush if n_unsure == 0 => n_flushed = n_put,
            Op::Flush => {}
            Op::Save { name, tokens } => drop(expected.insert(name.to_string(), tokens)),
            Op::Delete { name } => drop(expected.remove(&name.to_string())),
        }
    }
    assert_eq!(found, expected, "seed {seed}, last {last:?}");
    for (chain, n_flushed) in chains.iter().zip(n_flushed) {
        let n_intact = chain.n_intact(store, 2000);
        assert!(!all_blocks || n_intact >= n_flushed, "seed {seed}: {n_intact} of {n_flushed} flushed blocks");
    }
    found
}

/// Kills `n` children one after the other on one folder, and checks the store after each. Returns how many left a torn
/// record.
fn kill_many(n: u64, max_bytes: u64) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let (mut expected, mut rng) = (Sessions::new(), Rng::new(max_bytes));
    let mut n_torn = 0;
    for seed in 0..n {
        let last = kill_one(folder.path(), max_bytes, seed, &mut rng);
        let store = DiskStore::open(folder.path(), kill_options(max_bytes, seed)).unwrap();
        expected = check(&store, seed, last, expected, max_bytes > 100 << 20);
        assert!(store.stats().bytes <= max_bytes);
        n_torn += u64::from(store.stats().n_corrupt > 0);
        // What earlier rounds left is still right.
        for earlier in 0..seed {
            let chain = chains(earlier)[rng.below(N_CHAINS)];
            let n_found = chain.find(&store, 50).keys.len();
            assert_eq!(chain.n_intact(&store, 50), n_found, "seed {seed}, earlier {earlier}");
        }
    }
    // With the small limit, the first segments are gone.
    let store = DiskStore::open(folder.path(), kill_options(max_bytes, 0)).unwrap();
    assert_eq!(store.path().join("0000000000000001.seg").exists(), max_bytes > 100 << 20);
    n_torn
}

#[test]
fn killed_writers_lose_nothing_they_flushed() {
    if let Some(words) = words() {
        work(&words[0], words[1].parse().unwrap(), words[2].parse().unwrap());
    }
    // Without a limit that matters, all that was flushed must be there. With a small one, segments are given up and
    // copied all the time, and sessions must be there.
    let n_torn = [1 << 30, 512 << 10].map(|max_bytes| kill_many(60, max_bytes));
    println!("{n_torn:?} of 60 children each left a torn record");
}

#[test]
fn two_processes_exclude_each_other() {
    if let Some(words) = words() {
        let _store = open(Path::new(&words[0]));
        say("open");
        // Until the parent kills it.
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = spawn("two_processes_exclude_each_other", &[folder.path().to_str().unwrap()]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "@open"));
    let (kind, line) = fault(DiskStore::open(folder.path(), options(16 << 20)));
    let path: PathBuf = folder.path().join("07".repeat(16));
    let (path, pid) = (path.display(), child.id());
    assert_eq!(kind, DiskFault::Locked);
    assert_eq!(line, format!("cache folder {path} is in use by process {pid}; end it or choose another folder"));
    child.kill().unwrap();
    child.wait().unwrap();
    open(folder.path());
}
