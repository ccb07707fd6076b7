//! Searches against plain sorting, a full datastore, and what survives a snapshot.

use super::*;
use ruvllm_kernels::Compute;
use ruvllm_kernels::{Isa, distance};

fn key(n_key: usize, seed: usize) -> Key {
    let bytes =
        (0..n_key).map(|i| (((i * 37 + seed * 101 + 7) as f32 * 0.61).sin() * 127.0 / (1.0 + i as f32 / 90.0)) as i8);
    let bytes: Vec<i8> = bytes.collect();
    let length = bytes.iter().map(|&x| f32::from(x) * f32::from(x)).sum::<f32>().sqrt();
    Key { bytes, scale: 1.0 / length }
}

/// A context that ends with these tokens.
fn context(tokens: &[u32]) -> Context {
    let mut context = Context(u64::MAX);
    tokens.iter().for_each(|&token| context.push(token));
    context
}

fn filled(n_key: usize, n: usize, options: DatastoreOptions) -> Datastore {
    let mut datastore = Datastore::new(n_key, options).expect("options");
    (0..n).for_each(|i| datastore.push(&key(n_key, i), Context::default(), i as u32 % 50, 1.0));
    datastore
}

#[test]
fn the_nearest_are_those_that_sorting_finds() {
    let mut scratch = SearchScratch::default();
    for (n_key, n) in [(64, 1), (128, 63), (192, 1000), (576, 700)] {
        let options = DatastoreOptions { n_nearest: 16, ..DatastoreOptions::default() };
        let mut datastore = filled(n_key, n, options);
        // Equal keys: the one that lies first comes first.
        (0..3).for_each(|_| datastore.push(&key(n_key, 5), Context::default(), 7, 1.0));
        let query = key(n_key, 5);
        let similarity = |i: usize| {
            let entry = datastore.entries.key(i);
            let row = entry.head.iter().chain(entry.tail);
            let dot: i32 = row.zip(&query.bytes).map(|(&x, &y)| i32::from(x) * i32::from(y)).sum();
            dot as f32 * (entry.scale * query.scale)
        };
        let mut expected: Vec<Hit> =
            (0..datastore.len()).map(|i| Hit { index: i as u32, value: similarity(i) }).collect();
        expected.sort_by(|a, b| b.value.total_cmp(&a.value).then(a.index.cmp(&b.index)));
        expected.truncate(16);
        for kernels in distance::available() {
            let mut hits = Vec::new();
            datastore.search_exact(
                KnnQuery { key: &query, context: context(&[1]) },
                &kernels.isa().into(),
                &mut scratch,
                &mut hits,
            );
            assert_eq!(hits, expected, "{n_key} bytes, {n} entries, {}", kernels.isa());
        }
    }
    let empty = Datastore::new(64, DatastoreOptions::default()).expect("options");
    let mut hits = vec![Hit { index: 0, value: 0.0 }];
    empty.search(KnnQuery { key: &key(64, 0), context: context(&[]) }, &Isa::best().into(), &mut scratch, &mut hits);
    assert!(hits.is_empty() && empty.is_empty());
}

#[test]
fn what_was_read_before_brings_nearer() {
    let mut datastore =
        Datastore::new(64, DatastoreOptions { n_nearest: 3, ..DatastoreOptions::default() }).expect("options");
    for (token, before) in [(0, vec![1, 2, 3]), (1, vec![9, 2, 3]), (2, vec![8, 7, 6, 5, 4, 1, 2, 3]), (3, vec![3, 9])]
    {
        datastore.push(&key(64, 1), context(&before), token, 1.0);
    }
    let (mut scratch, mut hits) = (SearchScratch::default(), Vec::new());
    let before = context(&[8, 7, 6, 5, 4, 1, 2, 3]);
    datastore.search(KnnQuery { key: &key(64, 1), context: before }, &Isa::best().into(), &mut scratch, &mut hits);
    assert_eq!(hits.iter().map(|hit| datastore.token(hit.index)).collect::<Vec<_>>(), [2, 0, 1]);
    let gains: Vec<f32> = hits.iter().map(|hit| hit.value - 1.0).collect();
    for (gain, expected) in gains.iter().zip([0.16, 0.06, 0.04]) {
        assert!((gain - expected).abs() < 1e-3, "{gains:?}");
    }
}

#[test]
fn a_coarse_scan_finds_nearly_the_same() {
    let options = DatastoreOptions { n_exact_max: 100, n_nearest: 32, ..DatastoreOptions::default() };
    let datastore = filled(576, 3000, options);
    let (mut scratch, mut coarse, mut exact) = (SearchScratch::default(), Vec::new(), Vec::new());
    let compute = Compute::from(Isa::best());
    let mut n_found = 0;
    for seed in 0..20 {
        let query = key(576, 5000 + seed * 13);
        datastore.search(KnnQuery { key: &query, context: context(&[1]) }, &compute, &mut scratch, &mut coarse);
        datastore.search_exact(KnnQuery { key: &query, context: context(&[1]) }, &compute, &mut scratch, &mut exact);
        n_found += exact.iter().filter(|hit| coarse.contains(hit)).count();
    }
    assert!(n_found * 100 >= 95 * 20 * 32, "{n_found} of {}", 20 * 32);
}

#[test]
fn a_full_datastore_lets_go_of_what_is_worth_least() {
    let n_bytes_max = 320 * (64 + ENTRY_BYTES);
    let options = DatastoreOptions { n_bytes_max, ..DatastoreOptions::default() };
    let mut datastore = filled(64, 320, options);
    assert_eq!((datastore.len(), datastore.capacity(), datastore.n_bytes()), (320, 320, n_bytes_max));
    (0..320).for_each(|i| datastore.credit(i, if i % 32 == 3 { -2.0 } else { i as f32 * 0.01 }));
    datastore.credit(900, 1.0);
    datastore.credit(0, f32::NAN);
    // The first ten are those with a loss, the oldest entry stays.
    for i in 0..10 {
        datastore.push(&key(64, 1000 + i), Context::default(), 77, 5.0);
    }
    assert_eq!((datastore.len(), datastore.n_evicted()), (320, 10));
    let replaced: Vec<usize> = (0..320).filter(|&i| datastore.token(i as u32) == 77).collect();
    assert_eq!(replaced, (0..10).map(|i| 32 * i + 3).collect::<Vec<_>>());
    datastore.push(&key(64, 1), Context::default(), 78, 0.0);
    assert_eq!(datastore.token(0), 78);
    assert!(Datastore::new(64, DatastoreOptions { n_bytes_max: 100, ..options }).is_err());
    assert!(Datastore::new(60, options).is_err());
    assert!(Datastore::new(64, DatastoreOptions { n_nearest: 0, ..options }).is_err());
}

#[test]
fn what_a_copy_learns_the_original_never_sees() {
    let options = DatastoreOptions { n_bytes_max: 1100 * (64 + ENTRY_BYTES), ..DatastoreOptions::default() };
    let (original, same) = (filled(64, 1090, options), filled(64, 1090, options));
    let mut copy = original.clone();
    // Ten are added, ten take the places of others.
    (0..20).for_each(|i| copy.push(&key(64, 1000 + i), context(&[i as u32]), 77, 5.0));
    copy.credit(0, 3.0);
    assert_eq!((&original, original.snapshot()), (&same, same.snapshot()));
    let tokens = |datastore: &Datastore| (0..datastore.len()).filter(|&i| datastore.token(i as u32) == 77).count();
    assert_eq!((tokens(&original), tokens(&copy), copy.len()), (0, 20, 1100));
    assert_eq!(copy.snapshot(), {
        let mut alone = filled(64, 1090, options);
        (0..20).for_each(|i| alone.push(&key(64, 1000 + i), context(&[i as u32]), 77, 5.0));
        alone.credit(0, 3.0);
        alone.snapshot()
    });
}

#[test]
fn snapshots_are_the_same_and_damage_is_told() {
    // More than two pages.
    let options = DatastoreOptions { n_bytes_max: 2500 * (192 + ENTRY_BYTES), ..DatastoreOptions::default() };
    let mut datastore = filled(192, 2510, options);
    datastore.credit(3, 0.5);
    let bytes = datastore.snapshot();
    let mut again = Datastore::restore(&bytes).expect("a snapshot");
    assert_eq!(again, datastore);
    for datastore in [&mut datastore, &mut again] {
        (0..20).for_each(|i| datastore.push(&key(192, 900 + i), context(&[i as u32]), 5, 1.0));
    }
    assert_eq!(again.snapshot(), datastore.snapshot());
    for cut in [0, 7, 8, 40, 63, 72, 1000, bytes.len() - 1] {
        assert!(Datastore::restore(&bytes[..cut]).is_err(), "{cut} bytes");
    }
    assert!(Datastore::restore(&[&bytes[..], &[0]].concat()).is_err());
    for at in (8..72).step_by(8) {
        let mut wrong = bytes.clone();
        wrong[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        // Only the limits that may be any number are read as they stand.
        let free = [8, 24, 64].contains(&at);
        assert_eq!(Datastore::restore(&wrong).is_ok(), free, "at byte {at}");
    }
}
