//! The index against comparing all; deletion, filters, saving.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use super::*;

/// Vectors around a few hundred middles, as embeddings of texts lie: `[n, dim]`.
fn clustered(n: usize, dim: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut normal = move || (0..4).map(|_| rng.next_u32() as f32 / u32::MAX as f32 - 0.5).sum::<f32>();
    let mut row = |spread: f32, around: Option<&Vec<f32>>| -> Vec<f32> {
        (0..dim).map(|i| around.map_or(0.0, |row| row[i]) + spread * normal()).collect()
    };
    let middles: Vec<_> = (0..n / 20 + 1).map(|_| row(1.0, None)).collect();
    (0..n).map(|i| row(0.6, Some(&middles[i * 7919 % middles.len()]))).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The ids of the nearest `k`, by comparing all in double precision.
fn truth(vectors: &HashMap<u64, Vec<f32>>, query: &[f32], k: usize, passes: &dyn Fn(u64) -> bool) -> Vec<u64> {
    let mut all: Vec<_> =
        vectors.iter().filter(|(id, _)| passes(**id)).map(|(id, v)| (cosine(query, v), *id)).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    all.into_iter().take(k).map(|(_, id)| id).collect()
}

fn small(n_exact_max: usize) -> IndexConfig {
    IndexConfig { n_exact_max, ..IndexConfig::default() }
}

fn build(vectors: &[Vec<f32>], config: IndexConfig) -> VectorIndex {
    let vectors = vectors.iter().enumerate().map(|(id, vector)| (id as u64, vector.as_slice()));
    VectorIndex::build(24, config, vectors, &mut |_, _| {}).expect("sound vectors")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever was inserted, replaced and deleted: what is found is alive, passes, is in order and has its own
    /// similarity; without a graph it is exactly the truth, with one nearly.
    #[test]
    fn finds_what_is_there(
        ops in prop::collection::vec((any::<bool>(), 0u64..150), 100..400),
        has_graph: bool,
        modulus in 1u64..4,
    ) {
        let pool = clustered(400, 24, 5);
        let mut index = VectorIndex::new(24, small(if has_graph { 40 } else { 1000 })).expect("a width");
        let mut model: HashMap<u64, Vec<f32>> = HashMap::new();
        for (i, (inserts, id)) in ops.iter().enumerate() {
            if *inserts || i < 60 {
                index.insert(*id, &pool[i]).expect("a sound vector");
                model.insert(*id, pool[i].clone());
            } else {
                prop_assert_eq!(index.remove(*id), model.remove(id).is_some());
            }
            if index.wants_rebuild() && i % 5 == 0 {
                index.rebuild(&mut |_, _| {});
            }
            prop_assert_eq!(index.len(), model.len());
        }
        let passes = |id: u64| id.is_multiple_of(modulus);
        let (mut n_found, mut n_true) = (0, 0);
        for query in clustered(10, 24, 6) {
            let hits = index.search(&query, 10, Some(&passes)).expect("a sound query");
            let expected = truth(&model, &query, 10, &passes);
            prop_assert_eq!(hits.len(), expected.len());
            prop_assert!(hits.is_sorted_by(|a, b| a.similarity >= b.similarity));
            for hit in &hits {
                prop_assert!(passes(hit.id));
                prop_assert!((cosine(&query, &model[&hit.id]) - f64::from(hit.similarity)).abs() < 1e-5);
            }
            n_true += expected.len();
            n_found += hits.iter().filter(|hit| expected.contains(&hit.id)).count();
        }
        prop_assert!(n_found == n_true || (has_graph && n_found * 100 >= n_true * 98), "{} of {}", n_found, n_true);
    }
}

/// A graph that is searched, not scanned: no filter, and one that lets most pass.
#[test]
fn the_graph_finds_nineteen_of_twenty() {
    let vectors = clustered(6000, 24, 1);
    let mut index = build(&vectors, small(500));
    let mut model: HashMap<u64, Vec<f32>> = (0u64..).zip(vectors).collect();
    for id in (0..6000).step_by(7) {
        assert!(index.remove(id) && model.remove(&id).is_some());
    }
    let graph = index.graph.as_ref().expect("there are enough for one");
    let passes = |slot: usize| index.is_alive[slot] && !index.ids[slot].is_multiple_of(3);
    let (mut plain, mut filtered) = (0, 0);
    for query in clustered(100, 24, 2) {
        let expected = truth(&model, &query, 10, &|_| true);
        let hits = index.search(&query, 10, None).expect("a sound query");
        plain += hits.iter().filter(|hit| expected.contains(&hit.id)).count();
        let expected = truth(&model, &query, 10, &|id| !id.is_multiple_of(3));
        let query = unit(24, &query).expect("a sound query");
        let hits = graph.search(&index.rows, &query, 10, &passes);
        filtered += hits.iter().filter(|(slot, _)| expected.contains(&index.ids[*slot])).count();
    }
    assert!(plain >= 950 && filtered >= 950, "{plain} and {filtered} of 1000");
}

#[test]
fn a_rebuilt_index_never_had_what_was_deleted() {
    let vectors = clustered(800, 24, 3);
    let mut index = build(&vectors, small(100));
    assert!(!index.wants_rebuild());
    for id in 0..800 {
        if id % 3 == 0 {
            index.remove(id);
        }
    }
    assert!(index.wants_rebuild() && index.to_bytes().is_none());
    index.rebuild(&mut |_, _| {});
    let left = vectors.iter().enumerate().filter(|(id, _)| id % 3 != 0).map(|(id, v)| (id as u64, v.as_slice()));
    let fresh = VectorIndex::build(24, small(100), left, &mut |_, _| {}).expect("sound vectors");
    assert_eq!(index.to_bytes().expect("a graph"), fresh.to_bytes().expect("a graph"));
}

#[test]
fn a_saved_graph_is_taken_only_for_its_vectors() {
    let vectors = clustered(700, 24, 4);
    let index = build(&vectors[..600], small(100));
    let bytes = index.to_bytes().expect("a graph");
    let named = |n: usize| -> HashMap<u64, &[f32]> { (0..n).map(|i| (i as u64, vectors[i].as_slice())).collect() };
    let load = |bytes: &[u8], vectors: &HashMap<u64, &[f32]>| {
        VectorIndex::from_bytes(small(100), bytes, vectors).expect("sound vectors")
    };
    let same = load(&bytes, &named(600)).expect("its own bytes");
    assert_eq!(same.to_bytes().expect("a graph"), bytes);
    for query in clustered(20, 24, 9) {
        assert_eq!(same.search(&query, 5, None).expect("sound"), index.search(&query, 5, None).expect("sound"));
    }
    // What came since the graph was saved is found too.
    let newer = load(&bytes, &named(700)).expect("its own bytes");
    assert_eq!(newer.len(), 700);
    assert_eq!(newer.search(&vectors[650], 1, None).expect("sound")[0].id, 650);
    // One is missing, one is another, and each byte counts.
    assert!(load(&bytes, &named(599)).is_none());
    let mut other = named(600);
    other.insert(7, &vectors[650]);
    assert!(load(&bytes, &other).is_none());
    for i in (0..bytes.len()).step_by(997) {
        let mut damaged = bytes.clone();
        damaged[i] ^= 1;
        assert!(load(&damaged, &named(600)).is_none(), "byte {i}");
        assert!(load(&bytes[..i], &named(600)).is_none(), "cut at {i}");
    }
}

#[test]
fn refuses_what_has_no_direction() {
    let mut index = VectorIndex::new(3, IndexConfig::default()).expect("a width");
    let kind = |result: Result<(), SonaError>| result.expect_err("must be refused").kind();
    assert_eq!(kind(index.insert(1, &[1.0, 2.0])), SonaErrorKind::Shape);
    assert_eq!(kind(index.insert(1, &[0.0; 3])), SonaErrorKind::Value);
    assert_eq!(kind(index.insert(1, &[f32::NAN, 0.0, 1.0])), SonaErrorKind::Value);
    assert_eq!(kind(index.insert(1, &[f32::INFINITY, 0.0, 1.0])), SonaErrorKind::Value);
    assert!(index.is_empty() && index.search(&[1.0, 0.0, 0.0], 3, None).expect("sound").is_empty());
    assert!(VectorIndex::new(0, IndexConfig::default()).is_err());
    // The largest that there are: no overflow.
    index.insert(1, &[f32::MAX; 3]).expect("a direction");
    assert!((index.search(&[1.0; 3], 1, None).expect("sound")[0].similarity - 1.0).abs() < 1e-6);
}
