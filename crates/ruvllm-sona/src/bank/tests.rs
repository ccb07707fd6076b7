//! The bank over restarts, its limits, clusters, and files between nodes.

use std::path::Path;

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use super::*;
use crate::store::{MasterKey, OpenOptions, open};

const DIM: usize = 8;

fn pattern(group: usize, i: u64, verdict: Verdict, quality: f32) -> Pattern {
    let mut rng = ChaCha8Rng::seed_from_u64(1000 * group as u64 + i);
    let noise = |_| 0.05 * (rng.next_u32() as f32 / u32::MAX as f32 - 0.5);
    let mut embedding: Vec<f32> = (0..DIM).map(noise).collect();
    embedding[group] += 1.0;
    let steps = vec![Step { action: format!("look at {i}"), outcome: format!("group {group}") }];
    let made = Pattern::new(format!("task {group}/{i}"), embedding, steps, verdict, quality);
    Pattern { created_ms: 1000 + i, ..made }
}

fn store(folder: &Path) -> Arc<dyn Store> {
    open(&folder.join("sona.redb"), &OpenOptions::default()).expect("a store")
}

fn config() -> BankConfig {
    let index = IndexConfig { n_exact_max: 64, ..IndexConfig::default() };
    BankConfig { index, ..BankConfig::new("test space", DIM) }
}

fn bank(store: &Arc<dyn Store>, tenant: &str, config: BankConfig) -> ReasoningBank {
    ReasoningBank::open(store.clone(), tenant, config, &mut |_, _| {}).expect("a bank")
}

fn refused<T>(result: Result<T, SonaError>) -> (SonaErrorKind, String) {
    let error = result.err().expect("this must be refused");
    assert!(!error.to_string().contains('\n'), "{error}");
    (error.kind(), error.to_string())
}

fn everything(bank: &ReasoningBank) -> Vec<(u64, Pattern)> {
    let ids = sorted_ids(&bank.read().facts);
    ids.into_iter().map(|id| (id, bank.get(id).expect("readable").expect("it is there"))).collect()
}

#[test]
fn a_bank_is_the_same_after_a_restart_and_nobody_elses() {
    let folder = tempfile::tempdir().expect("a folder");
    let query = pattern(2, 999, Verdict::Success, 1.0).embedding;
    let (before, all) = {
        let store = store(folder.path());
        let (alice, bob) = (bank(&store, "alice", config()), bank(&store, "bob", config()));
        let mut built = 0;
        for i in 0..200 {
            let verdict = Verdict::ALL[i % 4];
            alice.add(&pattern(i % DIM, i as u64, verdict, 0.5)).expect("room");
        }
        alice.maintain(&mut |_, _| built += 1).expect("writable");
        assert_eq!(built, 0, "nothing was deleted");
        let late = alice.add(&pattern(2, 5000, Verdict::Failure, 0.1)).expect("room");
        assert!(alice.record_use(late, 0.6).expect("writable") && !alice.record_use(9999, 0.5).expect("writable"));
        let noted = alice.get(late).expect("readable").expect("it is there");
        assert!((noted.quality - 0.2).abs() < 1e-6 && noted.n_uses == 1);
        assert!(alice.remove(3).expect("writable") && !alice.remove(3).expect("writable"));
        assert!(bob.is_empty() && bob.search(&query, 3, &Select::default()).expect("sound").is_empty());
        let select = Select::default().verdict(Verdict::Failure).verdict(Verdict::Partial);
        (alice.search(&query, 5, &select).expect("sound"), everything(&alice))
    };
    let store = store(folder.path());
    let mut built = 0;
    let alice = ReasoningBank::open(store.clone(), "alice", config(), &mut |_, _| built += 1).expect("a bank");
    assert_eq!(built, 200, "the saved graph knew what was deleted, so it went with it");
    assert_eq!(everything(&alice), all);
    let select = Select::default().verdict(Verdict::Failure).verdict(Verdict::Partial);
    assert_eq!(alice.search(&query, 5, &select).expect("sound"), before);
    assert!(before.iter().all(|found| matches!(found.pattern.verdict, Verdict::Failure | Verdict::Partial)));
    alice.maintain(&mut |_, _| {}).expect("writable");
    drop(alice);
    built = 0;
    let alice = ReasoningBank::open(store.clone(), "alice", config(), &mut |_, _| built += 1).expect("a bank");
    assert_eq!((built, alice.len()), (0, 200), "the saved graph was taken");

    let mut change = store.begin(Durability::Durable).expect("a transaction");
    assert_eq!(forget_tenant(change.as_mut(), "alice").expect("writable"), 200);
    change.commit().expect("a commit");
    assert!(bank(&store, "alice", config()).is_empty());
}

#[test]
fn patterns_go_with_the_items_they_came_from() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, query) = (store(folder.path()), pattern(0, 77, Verdict::Success, 1.0).embedding);
    let alice = bank(&store, "alice", config());
    for i in 0..6u64 {
        let made = pattern(i as usize / 3, i, Verdict::Success, 0.5);
        alice.add(&Pattern { items: vec![10 + i], ..made }).expect("room");
    }
    let newest = |bank: &ReasoningBank| -> Vec<u64> {
        bank.newest(4, &Select::default()).expect("readable").iter().map(|(id, _)| *id).collect()
    };
    assert_eq!(newest(&alice), [6, 5, 4, 3]);
    let remove_of = |bank: &ReasoningBank, items: &[u64], is_committed: bool| {
        let removal = bank.removal_of(items);
        let mut change = store.begin(Durability::Durable).expect("a transaction");
        removal.write(change.as_mut()).expect("writable");
        if is_committed { change.commit().map(|()| removal.committed()).expect("a commit") } else { 0 }
    };
    // What was not committed is not gone, neither here nor on the disk.
    remove_of(&alice, &[15, 99], false);
    assert_eq!(newest(&alice), [6, 5, 4, 3]);
    assert_eq!(remove_of(&alice, &[15, 99], true), 1);
    assert_eq!(newest(&alice), [5, 4, 3, 2]);
    // What several were distilled into goes with each of them.
    let how = Distill { n_clusters: 2, ..Distill::default() };
    assert_eq!(alice.distill(&how).expect("writable"), Distilled { n_removed: 5, n_added: 2 });
    let items: Vec<Vec<u64>> = everything(&alice).into_iter().map(|(_, pattern)| pattern.items).collect();
    assert!(items.contains(&vec![10, 11, 12]) && items.contains(&vec![13, 14]), "{items:?}");
    drop(alice);
    let alice = bank(&store, "alice", config());
    assert_eq!(remove_of(&alice, &[11], true), 1);
    assert_eq!(alice.search(&query, 9, &Select::default()).expect("sound").len(), 1);
    // Items are of one node's log, so another one's patterns have none.
    let (key, bob) = (SigningKey::from_seed([7; 32]), bank(&store, "bob", config()));
    let file = alice.export(&Select::default(), &key).expect("readable");
    bob.import(&file, &Trust::new(&[key.public()])).expect("a trusted file");
    assert!(everything(&bob).iter().all(|(_, pattern)| pattern.items.is_empty()));
    assert_eq!((alice.clear().expect("writable"), alice.len(), bob.len()), (1, 0, 1));
}

#[test]
fn records_without_items_are_read() {
    let made = pattern(0, 1, Verdict::Partial, 0.5);
    let mut record = made.to_bytes();
    // The count of items is the last of a record that has none.
    record.truncate(record.len() - 4);
    record[0] = 1;
    assert_eq!(Pattern::from_bytes(&record).expect("an older record"), made);
    record[0] = 3;
    assert_eq!(refused(Pattern::from_bytes(&record)).0, SonaErrorKind::Version);
    let several = Pattern { items: vec![3, 1 << 40], ..made };
    assert_eq!(Pattern::from_bytes(&several.to_bytes()).expect("a record"), several);
}

#[test]
fn selects_by_quality_and_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let bank = bank(&store(folder.path()), "t", config());
    for i in 0..10u64 {
        bank.add(&pattern(0, i, Verdict::Success, i as f32 / 10.0)).expect("room");
    }
    let query = pattern(0, 77, Verdict::Success, 1.0).embedding;
    let found = |select: Select| -> Vec<u64> {
        let mut ids: Vec<_> = bank.search(&query, 10, &select).expect("sound").iter().map(|f| f.id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(found(Select::default().quality_min(0.7)), [8, 9, 10]);
    assert_eq!(found(Select::default().since(1008)), [9, 10]);
    assert_eq!(found(Select::default().since(1008).quality_min(0.9)), [10]);
}

#[test]
fn a_full_bank_lets_the_least_useful_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let bank = bank(&store(folder.path()), "t", BankConfig { n_patterns_max: 100, ..config() });
    // The first is the best, and the failures that failed most clearly are worth as much.
    let first = bank.add(&pattern(0, 0, Verdict::Success, 1.0)).expect("room");
    let warning = bank.add(&pattern(1, 0, Verdict::Failure, 0.0)).expect("room");
    for i in 0..300 {
        bank.add(&pattern(i % DIM, i as u64, Verdict::Unknown, 0.5)).expect("room is made");
        assert!(bank.len() <= 100);
    }
    assert!(bank.get(first).expect("readable").is_some() && bank.get(warning).expect("readable").is_some());
    let n = bank.len();
    assert_eq!(bank.prune(2).expect("writable"), n - 2);
    assert_eq!(sorted_ids(&bank.read().facts), [first, warning]);
}

#[test]
fn refuses_patterns_that_do_not_fit() {
    let folder = tempfile::tempdir().expect("a folder");
    let bank = bank(&store(folder.path()), "t", BankConfig { text_bytes_max: 100, ..config() });
    let good = pattern(0, 1, Verdict::Success, 0.5);
    let bad = |change: &dyn Fn(&mut Pattern)| {
        let mut pattern = good.clone();
        change(&mut pattern);
        refused(bank.add(&pattern)).0
    };
    assert_eq!(bad(&|p| p.embedding.truncate(DIM - 1)), SonaErrorKind::Shape);
    assert_eq!(bad(&|p| p.embedding[1] = f32::NAN), SonaErrorKind::Value);
    assert_eq!(bad(&|p| p.embedding.fill(0.0)), SonaErrorKind::Value);
    assert_eq!(bad(&|p| p.quality = 1.1), SonaErrorKind::Value);
    assert_eq!(bad(&|p| p.task = "x".repeat(101)), SonaErrorKind::Limit);
    assert_eq!(bad(&|p| p.steps = vec![Step::default(); 2000]), SonaErrorKind::Limit);
    assert!(bank.is_empty());
    let bytes = good.to_bytes();
    assert_eq!(Pattern::from_bytes(&bytes).expect("its own bytes"), good);
    assert!((0..bytes.len()).all(|n| Pattern::from_bytes(&bytes[..n]).is_err()));
}

#[test]
fn distills_what_says_the_same() {
    let distill = |seed: u64| {
        let folder = tempfile::tempdir().expect("a folder");
        let bank = bank(&store(folder.path()), "t", config());
        for i in 0..60usize {
            bank.add(&pattern(i % 3, i as u64, Verdict::Success, 0.5 + (i / 3) as f32 / 100.0)).expect("room");
        }
        bank.add(&pattern(0, 500, Verdict::Failure, 0.2)).expect("room");
        bank.add(&pattern(7, 501, Verdict::Success, 0.9)).expect("room");
        let done = bank.distill(&Distill { n_clusters: 4, seed, ..Distill::default() }).expect("writable");
        assert_eq!(done, Distilled { n_removed: 60, n_added: 3 });
        everything(&bank)
    };
    let left = distill(1);
    assert_eq!(left.len(), 5, "three of sixty, and two that were alone");
    let of_many: Vec<_> = left.iter().filter(|(_, pattern)| pattern.n_members > 1).collect();
    for (_, pattern) in &of_many {
        assert_eq!((pattern.n_members, pattern.verdict), (20, Verdict::Success));
        assert!((pattern.quality - 0.595).abs() < 1e-4, "the mean of 0.50 to 0.69, not {}", pattern.quality);
        // The best of each group are the last of it.
        let group: u64 = pattern.task["task ".len()..].split('/').next().expect("a group").parse().expect("a number");
        assert_eq!(pattern.task, format!("task {group}/{}", 57 + group));
        assert!(pattern.embedding[group as usize] > 19.0, "the sum of twenty");
    }
    assert_eq!(distill(1), left, "the same seed gives the same");
}

#[test]
fn k_means_finds_the_groups() {
    let rows: Vec<f32> = (0..90).flat_map(|i| pattern(i % 5, i as u64, Verdict::Unknown, 0.5).embedding).collect();
    for seed in 0..20 {
        let clusters = kmeans(&rows, DIM, 5, seed, 50);
        let label = |i: usize| clusters.assigned[i];
        let pure = (0..90).all(|i| label(i) == label(i % 5));
        let apart = (0..5).all(|a| (0..a).all(|b| label(a) != label(b)));
        assert!(pure && apart, "seed {seed}: {:?}", clusters.assigned);
    }
    // Fewer different rows than clusters; none at all.
    assert_eq!(kmeans(&[1.0, 1.0, 2.0, 2.0], 1, 4, 1, 10).centroids.len(), 2);
    assert_eq!(kmeans(&[], 3, 4, 1, 10), Clusters { centroids: vec![], assigned: vec![] });
}

#[test]
fn signed_files_bring_patterns_to_another_node() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = store(folder.path());
    let (from, to) = (bank(&store, "from", config()), bank(&store, "to", config()));
    for i in 0..30u64 {
        from.add(&pattern(i as usize % DIM, i, Verdict::ALL[i as usize % 2], 0.5)).expect("room");
    }
    to.add(&pattern(0, 0, Verdict::Success, 0.9)).expect("room");
    let (ours, theirs) = (SigningKey::from_seed([1; 32]), SigningKey::generate().expect("random bytes"));
    assert_eq!(SigningKey::from_seed(ours.seed()).public(), ours.public());
    let file = from.export(&Select::default().verdict(Verdict::Success), &ours).expect("readable");
    assert_eq!(file, from.export(&Select::default().verdict(Verdict::Success), &ours).expect("readable"));

    let trusted = [theirs.public(), ours.public()];
    let trust = Trust::new(&trusted);
    let kind = |file: &[u8], trust: &Trust<'_>| refused(to.import(file, trust));
    assert_eq!(kind(&file, &Trust { keys: &trusted[..1], ..trust }).0, SonaErrorKind::Key);
    assert_eq!(kind(&file, &Trust { file_bytes_max: file.len() - 1, ..trust }).0, SonaErrorKind::Limit);
    assert_eq!(kind(&file, &Trust { n_patterns_max: 14, ..trust }).0, SonaErrorKind::Limit);
    for i in 0..file.len() {
        let mut changed = file.clone();
        changed[i] ^= 1 << (i % 8);
        assert!(matches!(kind(&changed, &trust).0, SonaErrorKind::Key | SonaErrorKind::Invalid), "byte {i}");
        if i % 7 == 0 {
            assert!(matches!(kind(&file[..i], &trust).0, SonaErrorKind::Key | SonaErrorKind::Invalid), "cut at {i}");
        }
    }
    let other_width = bank(&store, "wide", BankConfig { dim: DIM + 1, ..config() });
    let line = refused(other_width.import(&file, &trust)).1;
    assert_eq!(line, "its embeddings are of test space, 8 wide; this bank's are of test space, 9 wide");
    let other_space = bank(&store, "space", BankConfig { space: "another".into(), ..config() });
    assert_eq!(refused(other_space.import(&file, &trust)).0, SonaErrorKind::Shape);
    let tiny = bank(&store, "tiny", BankConfig { n_patterns_max: 10, ..config() });
    assert_eq!(refused(tiny.import(&file, &trust)).0, SonaErrorKind::Limit);
    assert_eq!((to.len(), other_width.len(), other_space.len(), tiny.len()), (1, 0, 0, 0));

    let signed_by = ours.public();
    assert_eq!(to.import(&file, &trust).expect("trusted"), Imported { n_added: 14, n_known: 1, signed_by });
    assert_eq!(to.import(&file, &trust).expect("trusted"), Imported { n_added: 0, n_known: 15, signed_by });
    let texts = |bank: &ReasoningBank| -> Vec<String> { everything(bank).into_iter().map(|(_, p)| p.task).collect() };
    assert_eq!(texts(&to).len(), 15);
    assert!(texts(&to).iter().all(|task| texts(&from).contains(task)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A file that a trusted node signed and that is no file of patterns all the same: an error, no panic, no memory.
    #[test]
    fn signed_nonsense_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), whole: bool) {
        let folder = tempfile::tempdir().expect("a folder");
        let bank = bank(&store(folder.path()), "t", config());
        let key = SigningKey::from_seed([3; 32]);
        let real = bank.export(&Select::default(), &key).expect("readable");
        let start = if whole { real.len() - 96 } else { 8 };
        let mut file = [&real[..start], &bytes, &key.public().bytes()].concat();
        let signature = ed25519_compact::KeyPair::from_seed(ed25519_compact::Seed::new([3; 32])).sk.sign(&file, None);
        file.extend_from_slice(&*signature);
        let trusted = [key.public()];
        let result = bank.import(&file, &Trust::new(&trusted));
        prop_assert!(result.is_err() || bytes.is_empty() || bank.is_empty());
    }
}

/// The whole of an encrypted bank, its graph too, shows nothing on disk.
#[test]
fn an_encrypted_bank_leaves_no_plain_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, key) = (folder.path().join("sona.redb"), MasterKey::new([8; 32]));
    let options = OpenOptions { key: Some(&key), ..OpenOptions::default() };
    let bank = bank(&open(&path, &options).expect("a store"), "alice@example.org", config());
    for i in 0..100 {
        bank.add(&pattern(i % DIM, i as u64, Verdict::Success, 0.5)).expect("room");
    }
    bank.maintain(&mut |_, _| {}).expect("writable");
    let row = bank.read().index.vector(1).expect("it is there")[..4].to_vec();
    drop(bank);
    let raw = std::fs::read(&path).expect("a file");
    for needle in [&b"alice@example"[..], b"look at ", b"task 1", bytemuck::cast_slice(&row)] {
        assert!(!raw.windows(needle.len()).any(|window| window == needle), "{needle:?}");
    }
}
