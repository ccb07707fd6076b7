//! Routes: taken, abstained from, removed, saved, and spoiled bytes.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ruvllm_sona::index::IndexConfig;

use super::*;
use crate::embed::HashedWords;

const DIM: usize = 512;

fn words(text: &str) -> Vec<f32> {
    HashedWords::new(DIM).vector(text)
}

fn sample() -> SemanticRoutes<ExactIndex> {
    let mut routes = SemanticRoutes::new(ExactIndex::new(DIM));
    let examples = [
        ("refunds", ["I want my money back", "refund my last order", "please give my money back now"]),
        ("delivery", ["where is my parcel", "when does my parcel arrive", "the parcel did not arrive"]),
        ("weather", ["will it rain today", "is it cold today", "rain or sun today"]),
    ];
    for (name, texts) in examples {
        routes.add_route(name, 0.2).unwrap();
        for text in texts {
            routes.add_example(name, &words(text)).unwrap();
        }
    }
    routes
}

#[test]
fn the_nearest_route_is_taken_or_none() {
    let routes = sample();
    let name = |text: &str| routes.route(&words(text)).unwrap().map(|found| found.name);
    assert_eq!(name("my money back"), Some("refunds".into()));
    assert_eq!(name("parcel where?"), Some("delivery".into()));
    assert_eq!(name("rain today?"), Some("weather".into()));
    assert_eq!(name("prove the theorem"), None);
    assert_eq!(routes.route(&vec![0.0; DIM]).unwrap(), None);
}

#[test]
fn a_threshold_belongs_to_its_route() {
    let mut routes = sample();
    routes.set_threshold("weather", 0.99).unwrap();
    assert_eq!(routes.route(&words("rain maybe today")).unwrap(), None);
    assert_eq!(routes.route(&words("will it rain today")).unwrap().unwrap().name, "weather");
    assert_eq!(routes.set_threshold("weather", 1.5).unwrap_err().kind(), RouterErrorKind::Value);
    assert_eq!(routes.set_threshold("wetter", 0.5).unwrap_err().kind(), RouterErrorKind::Name);
}

#[test]
fn what_is_removed_is_not_found() {
    let mut routes = sample();
    routes.remove_route("delivery").unwrap();
    assert_eq!(routes.route(&words("where is my parcel")).unwrap(), None);
    assert!(routes.remove_example(0).unwrap());
    assert!(!routes.remove_example(0).unwrap());
    assert_eq!(routes.routes().map(|(name, _, n)| (name, n)).collect::<Vec<_>>(), [("refunds", 2), ("weather", 3)]);
}

#[test]
fn thresholds_part_examples_from_others() {
    let mut routes = sample();
    for name in ["refunds", "delivery", "weather"] {
        routes.set_threshold(name, -1.0).unwrap();
    }
    let mut others = Rows::new(DIM);
    for text in ["my cat is back", "what is the time", "today I learned to cook"] {
        others.push(&words(text)).unwrap();
    }
    routes.fit_thresholds(&others).unwrap();
    assert_eq!(routes.route(&words("what is the time")).unwrap(), None);
    assert!(routes.route(&words("please refund my last order, money back")).unwrap().is_some());
}

#[test]
fn saved_routes_answer_the_same() {
    let routes = sample();
    let bytes = routes.to_bytes();
    let read = SemanticRoutes::from_bytes(ExactIndex::new(DIM), &bytes).unwrap();
    for text in ["money back", "where is my parcel", "hello"] {
        assert_eq!(read.route(&words(text)).unwrap(), routes.route(&words(text)).unwrap());
    }
    assert_eq!(read.to_bytes(), bytes);
    let other = SemanticRoutes::from_bytes(ExactIndex::new(8), &bytes).unwrap_err();
    assert_eq!(
        (other.kind(), other.to_string().as_str()),
        (RouterErrorKind::Shape, "saved routes have vectors of 512; 8 are needed here")
    );
}

#[test]
fn vectors_that_do_not_fit_are_refused() {
    let mut routes = sample();
    assert_eq!(routes.add_example("refunds", &[1.0; 8]).unwrap_err().kind(), RouterErrorKind::Shape);
    assert_eq!(routes.add_example("refunds", &[f32::NAN; DIM]).unwrap_err().kind(), RouterErrorKind::Value);
    assert_eq!(routes.add_example("refunds", &[0.0; DIM]).unwrap_err().kind(), RouterErrorKind::Value);
    assert_eq!(routes.add_route("refunds", 0.1).unwrap_err().kind(), RouterErrorKind::Name);
}

/// The graph of ruvllm-sona as an index of routes.
struct Graph(ruvllm_sona::index::VectorIndex);

impl VectorIndex for Graph {
    fn dim(&self) -> usize {
        self.0.dim()
    }

    fn insert(&mut self, id: u64, vector: &[f32]) -> Result<(), RouterError> {
        self.0.insert(id, vector).map_err(|error| value(error.to_string()).with_source(error))
    }

    fn remove(&mut self, id: u64) -> Result<bool, RouterError> {
        Ok(self.0.remove(id))
    }

    fn search(&self, query: &[f32], k: usize) -> Result<Vec<Hit>, RouterError> {
        let hits = self.0.search(query, k, None).map_err(|error| value(error.to_string()).with_source(error))?;
        Ok(hits.into_iter().map(|hit| Hit { id: hit.id, similarity: hit.similarity }).collect())
    }

    fn vector(&self, id: u64) -> Option<&[f32]> {
        self.0.vector(id)
    }
}

/// Forty routes of fifty examples around their own centre, searched exactly and by a graph: at most 1 of 100 queries
/// is routed otherwise, also after a route is gone.
#[test]
fn a_graph_takes_the_place_of_exact_search() {
    const DIM: usize = 24;
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let mut vector = |about: &[f32], spread: f32| -> Vec<f32> {
        about.iter().map(|x| x + spread * ((random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0)).collect()
    };
    let config = IndexConfig { n_exact_max: 100, ..IndexConfig::default() };
    let mut exact = SemanticRoutes::new(ExactIndex::new(DIM));
    let mut graph = SemanticRoutes::new(Graph(ruvllm_sona::index::VectorIndex::new(DIM, config).unwrap()));
    let centres: Vec<Vec<f32>> = (0..40).map(|_| vector(&[0.0; DIM], 1.0)).collect();
    for (i, centre) in centres.iter().enumerate() {
        let name = format!("route {i}");
        exact.add_route(&name, 0.8).unwrap();
        graph.add_route(&name, 0.8).unwrap();
        for _ in 0..50 {
            let example = vector(centre, 0.7);
            assert_eq!(exact.add_example(&name, &example).unwrap(), graph.add_example(&name, &example).unwrap());
        }
    }
    let mut compare = |exact: &SemanticRoutes<ExactIndex>, graph: &SemanticRoutes<Graph>| {
        let (mut same, mut routed) = (0, 0);
        for i in 0..200 {
            let query = vector(&centres[i % 40], 0.9);
            let name = |found: Option<RouteMatch>| found.map(|found| found.name);
            let (a, b) = (name(exact.route(&query).unwrap()), name(graph.route(&query).unwrap()));
            routed += usize::from(a.is_some());
            same += usize::from(a == b);
        }
        assert!(same >= 198 && (20..200).contains(&routed), "{same} and {routed} of 200");
    };
    compare(&exact, &graph);
    exact.remove_route("route 7").unwrap();
    graph.remove_route("route 7").unwrap();
    compare(&exact, &graph);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Exact search agrees with sorting everything, after any insertions and removals.
    #[test]
    fn search_is_exact(steps in prop::collection::vec((0u64..12, any::<bool>(), prop::array::uniform4(-1f32..1.0)), 1..60)) {
        let mut index = ExactIndex::new(4);
        let mut all = BTreeMap::new();
        for (id, insert, mut vector) in steps {
            normalise(&mut vector);
            if insert {
                index.insert(id, &vector).unwrap();
                all.insert(id, vector);
            } else {
                prop_assert_eq!(index.remove(id).unwrap(), all.remove(&id).is_some());
            }
        }
        let query = [0.5, 0.5, 0.5, 0.5];
        let mut expected: Vec<(u64, f32)> = all.iter().map(|(&id, vector)| (id, dot(vector, &query))).collect();
        expected.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        expected.truncate(5);
        let found: Vec<(u64, f32)> = index.search(&query, 5).unwrap().iter().map(|hit| (hit.id, hit.similarity)).collect();
        prop_assert_eq!(found, expected);
    }

    /// Spoiled bytes are an error or sound routes, and never a panic.
    #[test]
    fn spoiled_bytes_are_refused(at in 0usize..100_000, with in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = sample().to_bytes();
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] = with }
        if let Ok(routes) = SemanticRoutes::from_bytes(ExactIndex::new(DIM), &bytes) {
            routes.route(&words("money back")).unwrap();
        }
    }
}
