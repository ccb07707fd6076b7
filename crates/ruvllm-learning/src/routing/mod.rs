//! What `ruvllm-router` asks of whoever has models and an index: vectors of texts, and the nearest of many.

mod router;

use ruvllm_engine::{Engine, EngineError, Service};
use ruvllm_router::routes::{Hit, VectorIndex};
use ruvllm_router::{Embedder, RouterError, RouterErrorKind};
use ruvllm_sona::index::{self, IndexConfig};
use ruvllm_sona::{SonaError, SonaErrorKind};
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};

pub use router::{Decision, EmbedderName, ModelRouter};

/// Makes vectors of texts with a model: an encoder, or one that writes text, pooled as its file says (by the mean where it
/// says nothing). Of a text that is longer than the context, the beginning counts.
///
/// ```
/// use ruvllm_engine::{Engine, LoadOptions};
/// use ruvllm_learning::ModelEmbedder;
/// use ruvllm_router::Embedder;
///
/// // Any GGUF file; here a tiny encoder of the test data.
/// let path = ruvllm_testkit::Golden::load("bert-a").model("f32");
/// let mut engine = Engine::load(&path, &LoadOptions::default(), &mut |_| {})?;
/// let mut embedder = ModelEmbedder::new(&mut engine);
/// let vector = embedder.embed("a cat sat")?;
/// assert_eq!(vector.len(), embedder.dim());
/// assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ModelEmbedder<'a>(&'a mut Engine);

impl<'a> ModelEmbedder<'a> {
    /// An embedder of this model.
    pub fn new(engine: &'a mut Engine) -> ModelEmbedder<'a> {
        ModelEmbedder(engine)
    }
}

impl Embedder for ModelEmbedder<'_> {
    fn dim(&self) -> usize {
        self.0.info().n_embd
    }

    fn embed(&mut self, text: &str) -> Result<Vec<f32>, RouterError> {
        let n_max = self.0.info().n_ctx;
        let tokens = self.0.tokenizer().and_then(|tokenizer| encode(tokenizer, text, n_max)).map_err(not_embedded)?;
        self.0.embed(&tokens).map_err(not_embedded)
    }
}

/// Embedder by a model that runs in a [`Service`]: the caller's thread waits until the vector is computed, between
/// steps of others.
#[derive(Clone, Debug)]
pub struct ServiceEmbedder(Service);

impl ServiceEmbedder {
    /// An embedder of the model in a service.
    pub fn new(service: Service) -> ServiceEmbedder {
        ServiceEmbedder(service)
    }
}

impl Embedder for ServiceEmbedder {
    fn dim(&self) -> usize {
        self.0.info().n_embd
    }

    fn embed(&mut self, text: &str) -> Result<Vec<f32>, RouterError> {
        let service = &self.0;
        let tokens = encode(service.text().tokenizer(), text, service.info().n_ctx);
        tokens.and_then(|tokens| service.embed_now(tokens)).map_err(not_embedded)
    }
}

/// Returns the tokens of a text, at most `n_max`: what closes a text (an encoder's last token) stays.
fn encode(tokenizer: &Tokenizer, text: &str, n_max: usize) -> Result<Vec<u32>, EngineError> {
    let mut tokens = tokenizer.encode(text, EncodeOptions::EMBEDDED)?;
    if tokens.len() > n_max {
        let last = tokens.last().copied();
        tokens.truncate(n_max - 1);
        tokens.extend(last);
    }
    Ok(tokens)
}

fn not_embedded(error: EngineError) -> RouterError {
    let line = error.to_string();
    RouterError::new(RouterErrorKind::Embed, line).with_source(error)
}

/// The index of `ruvllm-sona` for semantic routes: all vectors are compared while there are some thousands, and a graph
/// (HNSW) is used beyond.
pub struct NearestIndex(index::VectorIndex);

impl NearestIndex {
    /// Makes an empty index of vectors of `dim` values.
    ///
    /// # Errors
    /// Kind `Shape` if `dim` is 0 or too large.
    pub fn new(dim: usize) -> Result<NearestIndex, RouterError> {
        index::VectorIndex::new(dim, IndexConfig::default()).map(NearestIndex).map_err(of_sona)
    }
}

impl VectorIndex for NearestIndex {
    fn dim(&self) -> usize {
        self.0.dim()
    }

    fn insert(&mut self, id: u64, vector: &[f32]) -> Result<(), RouterError> {
        self.0.insert(id, vector).map_err(of_sona)
    }

    fn remove(&mut self, id: u64) -> Result<bool, RouterError> {
        let was_there = self.0.remove(id);
        if self.0.wants_rebuild() {
            self.0.rebuild(&mut |_, _| {});
        }
        Ok(was_there)
    }

    fn search(&self, query: &[f32], k: usize) -> Result<Vec<Hit>, RouterError> {
        let hits = self.0.search(query, k, None).map_err(of_sona)?;
        Ok(hits.into_iter().map(|index::VectorHit { id, similarity }| Hit { id, similarity }).collect())
    }

    fn vector(&self, id: u64) -> Option<&[f32]> {
        self.0.vector(id)
    }
}

fn of_sona(error: SonaError) -> RouterError {
    let kind = match error.kind() {
        SonaErrorKind::Shape => RouterErrorKind::Shape,
        SonaErrorKind::Value => RouterErrorKind::Value,
        SonaErrorKind::Limit => RouterErrorKind::Limit,
        _ => RouterErrorKind::Data,
    };
    let line = error.to_string();
    RouterError::new(kind, line).with_source(error)
}

#[cfg(test)]
mod tests {
    use ruvllm_router::HashedWords;
    use ruvllm_router::routes::{ExactIndex, SemanticRoutes};
    use ruvllm_testkit::Golden;

    use super::*;
    use ruvllm_engine::{LoadOptions, ServiceOptions};

    #[test]
    fn a_service_embeds_as_its_engine_does_and_long_texts_are_cut() {
        let path = Golden::load("bert-a").model("f32");
        let mut engine = Engine::load(&path, &LoadOptions::default(), &mut |_| {}).expect("it loads");
        let n_ctx = engine.info().n_ctx;
        let long = "a cat ".repeat(n_ctx);
        let expected: Vec<Vec<f32>> = {
            let mut own = ModelEmbedder::new(&mut engine);
            ["a cat sat", &long].map(|text| own.embed(text).expect("it fits")).to_vec()
        };
        let (service, thread) = Service::start(engine, ServiceOptions::default()).expect("it starts");
        let mut served = ServiceEmbedder::new(service.clone());
        let found = ["a cat sat", &long].map(|text| served.embed(text).expect("it fits")).to_vec();
        assert_eq!(found, expected);
        service.drain(std::time::Duration::ZERO);
        thread.join().expect("no panic");
        assert_eq!(served.embed("x").expect_err("it has ended").kind(), RouterErrorKind::Embed);
    }

    /// Beyond the size from which on there is a graph, routes are those of the exact scan.
    #[test]
    fn routes_over_the_graph_are_those_over_all() {
        let (words, dim) = (HashedWords::new(64), 64);
        let mut exact = SemanticRoutes::new(ExactIndex::new(dim));
        let mut nearest = SemanticRoutes::new(NearestIndex::new(dim).expect("a width"));
        let n = IndexConfig::default().n_exact_max + 200;
        for route in ["even", "odd"] {
            exact.add_route(route, 0.5).expect("a new name");
            nearest.add_route(route, 0.5).expect("a new name");
        }
        let text = |i: usize| format!("order {} of {} in box {}", i % 97, i % 89, i);
        for i in 0..n {
            let (route, vector) = (["even", "odd"][i % 2], words.vector(&text(i)));
            exact.add_example(route, &vector).expect("it fits");
            nearest.add_example(route, &vector).expect("it fits");
        }
        let route = |i: usize| (exact.route(&words.vector(&text(i))), nearest.route(&words.vector(&text(i))));
        let same = (0..n).step_by(23).filter(|&i| {
            let (exact, nearest) = route(i);
            exact.expect("it fits").map(|found| found.name) == nearest.expect("it fits").map(|found| found.name)
        });
        let (n_same, n_asked) = (same.count(), n.div_ceil(23));
        assert!(n_same * 100 >= n_asked * 95, "{n_same} of {n_asked}");
        nearest.remove_route("odd").expect("it is there");
        let left = nearest.route(&words.vector(&text(1))).expect("it fits");
        assert!(left.is_none_or(|found| found.name == "even"));
    }
}
