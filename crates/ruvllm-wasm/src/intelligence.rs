//! What needs no model: routes by examples over a graph of vectors, a MicroLoRA over vectors that somebody else makes, and the
//! instant loop over them. It is small enough to come with a page.

use std::sync::Arc;

use ruvllm_kernels::Isa;
use ruvllm_learning::NearestIndex;
use ruvllm_lora::micro::{Gradient, HeadRows, MicroLora, StateRows, UpdateOptions};
use ruvllm_router::routes::{RouteMatch, SemanticRoutes};
use ruvllm_router::{HashedWords, RouterError};
use ruvllm_sona::{Calibration, CalibrationBuilder, LearnOptions, Learned, RequestTrace};

/// An error of this module: one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntelligenceError(String);

impl std::fmt::Display for IntelligenceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for IntelligenceError {}

fn failed(error: impl std::fmt::Display) -> IntelligenceError {
    IntelligenceError(error.to_string())
}

/// Checks the length of a vector.
fn check(what: &str, values: &[f32], n: usize) -> Result<(), IntelligenceError> {
    match values.len() == n && values.iter().all(|x| x.is_finite()) {
        true => Ok(()),
        false => Err(failed(format!("{what} has {} values; it must have {n} finite numbers", values.len()))),
    }
}

/// Semantic routes: names for kinds of queries, each given by examples, over a graph of their vectors (HNSW).
///
/// ```
/// use ruvllm_wasm::intelligence::Routes;
///
/// let mut routes = Routes::new(256)?;
/// routes.add_route("refunds", 0.3)?;
/// routes.add_text("refunds", "I want my money back")?;
/// assert_eq!(routes.route_text("money back please")?.map(|found| found.name).as_deref(), Some("refunds"));
/// assert_eq!(Routes::from_bytes(256, &routes.to_bytes())?.route_text("good morning")?, None);
/// # Ok::<(), ruvllm_wasm::intelligence::IntelligenceError>(())
/// ```
pub struct Routes {
    dim: usize,
    routes: SemanticRoutes<NearestIndex>,
}

impl Routes {
    /// Makes routes over vectors of `dim` values: 1 to 65,536.
    ///
    /// # Errors
    /// There are no vectors of this length.
    pub fn new(dim: usize) -> Result<Routes, IntelligenceError> {
        Ok(Routes { dim, routes: SemanticRoutes::new(NearestIndex::new(dim).map_err(failed)?) })
    }

    /// Adds a route, which a query is not taken to below a cosine.
    ///
    /// # Errors
    /// The name is taken or empty, or the threshold is no cosine.
    pub fn add_route(&mut self, name: &str, threshold: f32) -> Result<(), IntelligenceError> {
        self.routes.add_route(name, threshold).map_err(failed)
    }

    /// Adds a vector as an example; returns its number.
    ///
    /// # Errors
    /// There is no such route, or the vector has another length or is all zeros.
    pub fn add_vector(&mut self, name: &str, vector: &[f32]) -> Result<u64, IntelligenceError> {
        self.routes.add_example(name, vector).map_err(failed)
    }

    /// Adds a text as an example, by the hashes of its words.
    ///
    /// # Errors
    /// As [`Routes::add_vector`]; a text without words is all zeros.
    pub fn add_text(&mut self, name: &str, text: &str) -> Result<u64, IntelligenceError> {
        self.add_vector(name, &HashedWords::new(self.dim).vector(text))
    }

    /// Removes a route with its examples.
    ///
    /// # Errors
    /// There is no such route.
    pub fn remove_route(&mut self, name: &str) -> Result<(), IntelligenceError> {
        self.routes.remove_route(name).map_err(failed)
    }

    /// Returns the route of a vector.
    ///
    /// # Errors
    /// It has another length.
    pub fn route_vector(&self, vector: &[f32]) -> Result<Option<RouteMatch>, IntelligenceError> {
        self.routes.route(vector).map_err(failed)
    }

    /// Returns the route of a text, by the hashes of its words.
    ///
    /// # Errors
    /// None: words are always vectors of this length.
    pub fn route_text(&self, text: &str) -> Result<Option<RouteMatch>, IntelligenceError> {
        self.route_vector(&HashedWords::new(self.dim).vector(text))
    }

    /// Returns routes and examples as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.routes.to_bytes()
    }

    /// Reads what [`Routes::to_bytes`] gave.
    ///
    /// # Errors
    /// The bytes are damaged, or of vectors of another length.
    pub fn from_bytes(dim: usize, bytes: &[u8]) -> Result<Routes, IntelligenceError> {
        let read = |index| -> Result<_, RouterError> { SemanticRoutes::from_bytes(index, bytes) };
        let routes = NearestIndex::new(dim).and_then(read).map_err(failed)?;
        Ok(Routes { dim, routes })
    }
}

/// A MicroLoRA over vectors: it learns to bring those of a label nearer to that label's row.
///
/// ```
/// use ruvllm_wasm::intelligence::MicroAdapter;
///
/// // Two labels over vectors of four values.
/// let rows = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0];
/// let mut adapter = MicroAdapter::new(4, 1, &rows)?;
/// let vector = [0.6, 0.4, -0.5, 1.0];
/// for _ in 0..50 {
///     adapter.learn(&vector, 1, 0.2)?;
/// }
/// let likely = adapter.probabilities(&vector)?;
/// assert!(likely[1] > 0.9, "{likely:?}");
/// # Ok::<(), ruvllm_wasm::intelligence::IntelligenceError>(())
/// ```
pub struct MicroAdapter {
    micro: MicroLora,
    gradient: Gradient,
    head: Labels,
}

/// Rows of labels, `[n_labels, dim]`.
struct Labels {
    dim: usize,
    rows: Vec<f32>,
}

impl HeadRows for Labels {
    fn row(&self, token: u32, out: &mut [f32]) {
        out.copy_from_slice(&self.rows[token as usize * self.dim..][..self.dim]);
    }
}

impl MicroAdapter {
    /// Makes one that changes nothing yet, over vectors of `dim` values and labels whose rows are `[n_labels, dim]`.
    ///
    /// # Errors
    /// The rank is not 1 to 4, or the rows are no whole ones.
    pub fn new(dim: usize, rank: usize, rows: &[f32]) -> Result<MicroAdapter, IntelligenceError> {
        MicroAdapter::of(MicroLora::new(dim, rank, 1.0, 7).map_err(failed)?, rows)
    }

    /// Reads what [`MicroAdapter::to_bytes`] gave, for labels with these rows.
    ///
    /// # Errors
    /// The bytes are damaged, or the rows are no whole ones.
    pub fn from_bytes(bytes: &[u8], rows: &[f32]) -> Result<MicroAdapter, IntelligenceError> {
        MicroAdapter::of(MicroLora::restore(bytes).map_err(failed)?, rows)
    }

    fn of(micro: MicroLora, rows: &[f32]) -> Result<MicroAdapter, IntelligenceError> {
        let dim = micro.n_embd();
        check("a list of rows", rows, (rows.len() / dim).max(1) * dim)?;
        Ok(MicroAdapter { gradient: micro.gradient_buffer(), head: Labels { dim, rows: rows.to_vec() }, micro })
    }

    /// Returns a vector as it is changed: `[dim]`.
    ///
    /// # Errors
    /// It has another length.
    pub fn forward(&self, vector: &[f32]) -> Result<Vec<f32>, IntelligenceError> {
        check("a vector", vector, self.head.dim)?;
        let mut out = vector.to_vec();
        self.micro.forward(StateRows { hidden: vector, stream: &[] }, &mut out);
        Ok(out)
    }

    /// Returns how likely each label is for a vector: `[n_labels]`, of sum 1.
    ///
    /// # Errors
    /// As [`MicroAdapter::forward`].
    pub fn probabilities(&self, vector: &[f32]) -> Result<Vec<f32>, IntelligenceError> {
        let changed = self.forward(vector)?;
        let dot = |row: &[f32]| row.iter().zip(&changed).map(|(w, x)| w * x).sum();
        Ok(softmax(self.head.rows.chunks_exact(self.head.dim).map(dot).collect()))
    }

    /// Takes one step towards a label; `rate` is the learning rate.
    ///
    /// # Errors
    /// As [`MicroAdapter::forward`]; there is no such label.
    pub fn learn(&mut self, vector: &[f32], label: u32, rate: f32) -> Result<(), IntelligenceError> {
        let likely = self.probabilities(vector)?;
        if label as usize >= likely.len() {
            return Err(failed(format!("label {label} of {}", likely.len())));
        }
        let likely: Vec<(u32, f32)> = (0..).zip(likely).collect();
        let state = StateRows { hidden: vector, stream: &[] };
        self.micro.gradient(state, &likely, label, &self.head, &mut self.gradient);
        self.micro.update(&mut self.gradient, &UpdateOptions::sgd(rate));
        Ok(())
    }

    /// Returns what was learned as bytes; the rows of the labels are no part of it.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.micro.snapshot()
    }
}

fn softmax(mut logits: Vec<f32>) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|x| *x = (*x - most).exp());
    let sum: f32 = logits.iter().sum();
    logits.iter_mut().for_each(|x| *x /= sum);
    logits
}

/// The instant loop over vectors: what was seen once is known at once, from the next question on (a kNN datastore and its gate).
///
/// ```
/// use ruvllm_wasm::intelligence::InstantLearner;
///
/// // Vectors of eight values; the first ones say how they usually lie.
/// let vector = |i: usize| -> Vec<f32> { (0..8).map(|j| ((i * 7 + j * 3) as f32).sin()).collect() };
/// let usual: Vec<f32> = (0..32).flat_map(vector).collect();
/// let mut learner = InstantLearner::new(8, 4, &usual)?;
/// for _ in 0..20 {
///     learner.learn(&vector(40), 2, 1.0)?;
/// }
/// let likely = learner.probabilities(&vector(40))?;
/// assert!(likely[2] > likely[0], "{likely:?}");
/// # Ok::<(), ruvllm_wasm::intelligence::IntelligenceError>(())
/// ```
pub struct InstantLearner {
    dim: usize,
    n_labels: usize,
    calibration: Arc<Calibration>,
    learned: Learned,
}

/// Nothing asks for rows where there is no MicroLoRA.
struct NoRows;

impl HeadRows for NoRows {
    fn row(&self, _: u32, _: &mut [f32]) {}
}

impl InstantLearner {
    /// Makes one that knows nothing, for vectors of `dim` values and so many labels. `usual` are vectors as they come, `[n, dim]`: by
    /// them others are compared.
    ///
    /// # Errors
    /// A size is 0, or there are fewer than two vectors.
    pub fn new(dim: usize, n_labels: usize, usual: &[f32]) -> Result<InstantLearner, IntelligenceError> {
        if dim == 0 || n_labels == 0 || n_labels > 1 << 20 {
            return Err(failed(format!("{n_labels} labels over vectors of {dim} values; both must be at least 1")));
        }
        check("a list of usual vectors", usual, (usual.len() / dim).max(2) * dim)?;
        let mut builder = CalibrationBuilder::new(dim, Isa::best()).map_err(failed)?;
        let logits = vec![0.0; n_labels];
        usual
            .chunks_exact(dim)
            .zip(0u32..)
            .for_each(|(vector, i)| builder.push(vector, &logits, i % n_labels as u32, true));
        InstantLearner::of(dim, n_labels, builder.finish(dim).map_err(failed)?)
    }

    fn of(dim: usize, n_labels: usize, calibration: Calibration) -> Result<InstantLearner, IntelligenceError> {
        let calibration = Arc::new(calibration);
        let options = LearnOptions { micro: None, ..LearnOptions::default() };
        let learned = Learned::new(Arc::clone(&calibration), options, Isa::best()).map_err(failed)?;
        Ok(InstantLearner { dim, n_labels, calibration, learned })
    }

    /// Returns how likely each label is for a vector: `[n_labels]`, of sum 1.
    ///
    /// # Errors
    /// It has another length.
    pub fn probabilities(&self, vector: &[f32]) -> Result<Vec<f32>, IntelligenceError> {
        check("a vector", vector, self.dim)?;
        let mut logits = vec![0.0; self.n_labels];
        RequestTrace::default().adjust(&self.learned, StateRows { hidden: vector, stream: &[] }, &mut logits[..]);
        Ok(softmax(logits))
    }

    /// Learns that a vector has a label; `quality`, 0 to 1, says how much that is worth.
    ///
    /// # Errors
    /// As [`InstantLearner::probabilities`]; there is no such label.
    pub fn learn(&mut self, vector: &[f32], label: u32, quality: f32) -> Result<(), IntelligenceError> {
        check("a vector", vector, self.dim)?;
        if label as usize >= self.n_labels {
            return Err(failed(format!("label {label} of {}", self.n_labels)));
        }
        let (mut trace, mut logits) = (RequestTrace::default(), vec![0.0; self.n_labels]);
        trace.adjust(&self.learned, StateRows { hidden: vector, stream: &[] }, &mut logits[..]);
        trace.accept(&self.learned, label, &NoRows);
        self.learned.ingest(trace, quality);
        Ok(())
    }

    /// Returns everything as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let calibration = self.calibration.snapshot();
        let head = [self.dim as u64, self.n_labels as u64, calibration.len() as u64].map(u64::to_le_bytes);
        [head.as_flattened(), &calibration, &self.learned.snapshot()].concat()
    }

    /// Reads what [`InstantLearner::to_bytes`] gave.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<InstantLearner, IntelligenceError> {
        let damaged = || failed("these bytes are no instant learner, or are cut");
        let (head, rest) = bytes.split_first_chunk::<24>().ok_or_else(damaged)?;
        let number = |i: usize| head[8 * i..].first_chunk().and_then(|x| usize::try_from(u64::from_le_bytes(*x)).ok());
        let (Some(dim), Some(n_labels), Some(n_bytes)) = (number(0), number(1), number(2)) else {
            return Err(damaged());
        };
        let (calibration, learned) = rest.split_at_checked(n_bytes).ok_or_else(damaged)?;
        let calibration = Calibration::restore(calibration).map_err(failed)?;
        if calibration.whitener().n_embd() != dim || n_labels == 0 || n_labels > 1 << 20 {
            return Err(damaged());
        }
        let mut learner = InstantLearner::of(dim, n_labels, calibration)?;
        let options = LearnOptions { micro: None, ..LearnOptions::default() };
        let restored = Learned::restore(learned, Arc::clone(&learner.calibration), options, Isa::best());
        learner.learned = restored.map_err(failed)?;
        Ok(learner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_are_read_again_as_they_were() {
        let vector = |i: usize| -> Vec<f32> { (0..8).map(|j| ((i * 5 + j) as f32).cos()).collect() };
        let usual: Vec<f32> = (0..16).flat_map(vector).collect();
        let mut learner = InstantLearner::new(8, 3, &usual).expect("sizes");
        (0..9).for_each(|i| learner.learn(&vector(20 + i % 3), (i % 3) as u32, 1.0).expect("a label"));
        let again = InstantLearner::from_bytes(&learner.to_bytes()).expect("whole");
        assert_eq!(again.probabilities(&vector(21)), learner.probabilities(&vector(21)));
        assert!(InstantLearner::from_bytes(&learner.to_bytes()[..40]).is_err());

        let rows: Vec<f32> = (0..3).flat_map(vector).collect();
        let mut adapter = MicroAdapter::new(8, 2, &rows).expect("sizes");
        adapter.learn(&vector(4), 2, 0.1).expect("a label");
        let again = MicroAdapter::from_bytes(&adapter.to_bytes(), &rows).expect("whole");
        assert_eq!(again.probabilities(&vector(4)), adapter.probabilities(&vector(4)));

        let mut routes = Routes::new(8).expect("a length");
        routes.add_route("a", 0.5).expect("a name");
        routes.add_vector("a", &vector(1)).expect("a vector");
        let again = Routes::from_bytes(8, &routes.to_bytes()).expect("whole");
        assert_eq!(again.route_vector(&vector(1)), routes.route_vector(&vector(1)));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let line = |result: Result<(), IntelligenceError>| result.expect_err("refused").to_string();
        assert_eq!(
            line(MicroAdapter::new(4, 1, &[1.0; 6]).map(drop)),
            "a list of rows has 6 values; it must have 4 finite numbers"
        );
        let mut adapter = MicroAdapter::new(2, 1, &[1.0; 4]).expect("sizes");
        assert_eq!(line(adapter.learn(&[1.0; 3], 0, 0.1)), "a vector has 3 values; it must have 2 finite numbers");
        assert_eq!(line(adapter.learn(&[1.0; 2], 2, 0.1)), "label 2 of 2");
        assert!(line(InstantLearner::new(0, 1, &[]).map(drop)).contains("both must be at least 1"));
        assert!(line(Routes::new(0).map(drop)).contains('0'));
    }
}
