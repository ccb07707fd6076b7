//! Routes and learning over vectors, without a model.

use ruvllm_router::routes::RouteMatch;
use wasm_bindgen::prelude::*;

use crate::intelligence::{InstantLearner, IntelligenceError, MicroAdapter, Routes};

fn thrown(error: IntelligenceError) -> JsError {
    JsError::new(&error.to_string())
}

/// Returns a route as JSON; nothing where there is none.
fn json_of(found: Option<RouteMatch>) -> Option<String> {
    let RouteMatch { name, similarity, runner_up } = found?;
    let runner_up = runner_up.map(|(name, similarity)| serde_json::json!({ "name": name, "similarity": similarity }));
    Some(serde_json::json!({ "name": name, "similarity": similarity, "runnerUp": runner_up }).to_string())
}

/// Semantic routes: see [`Routes`].
#[wasm_bindgen(js_name = SemanticRoutes)]
pub struct JsRoutes(Routes);

#[wasm_bindgen(js_class = SemanticRoutes)]
impl JsRoutes {
    /// Makes routes over vectors of `dim` values.
    ///
    /// # Errors
    /// There are no vectors of this length.
    #[wasm_bindgen(constructor)]
    pub fn new(dim: usize) -> Result<JsRoutes, JsError> {
        Routes::new(dim).map(JsRoutes).map_err(thrown)
    }

    /// Adds a route.
    ///
    /// # Errors
    /// As [`Routes::add_route`].
    #[wasm_bindgen(js_name = addRoute)]
    pub fn add_route(&mut self, name: &str, threshold: f32) -> Result<(), JsError> {
        self.0.add_route(name, threshold).map_err(thrown)
    }

    /// Adds a text as an example.
    ///
    /// # Errors
    /// As [`Routes::add_text`].
    #[wasm_bindgen(js_name = addText)]
    pub fn add_text(&mut self, name: &str, text: &str) -> Result<(), JsError> {
        self.0.add_text(name, text).map(drop).map_err(thrown)
    }

    /// Adds a vector as an example.
    ///
    /// # Errors
    /// As [`Routes::add_vector`].
    #[wasm_bindgen(js_name = addVector)]
    pub fn add_vector(&mut self, name: &str, vector: &[f32]) -> Result<(), JsError> {
        self.0.add_vector(name, vector).map(drop).map_err(thrown)
    }

    /// Removes a route.
    ///
    /// # Errors
    /// There is no such route.
    #[wasm_bindgen(js_name = removeRoute)]
    pub fn remove_route(&mut self, name: &str) -> Result<(), JsError> {
        self.0.remove_route(name).map_err(thrown)
    }

    /// Returns the route of a text, as JSON.
    ///
    /// # Errors
    /// As [`Routes::route_text`].
    #[wasm_bindgen(js_name = routeText)]
    pub fn route_text(&self, text: &str) -> Result<Option<String>, JsError> {
        self.0.route_text(text).map(json_of).map_err(thrown)
    }

    /// Returns the route of a vector, as JSON.
    ///
    /// # Errors
    /// As [`Routes::route_vector`].
    #[wasm_bindgen(js_name = routeVector)]
    pub fn route_vector(&self, vector: &[f32]) -> Result<Option<String>, JsError> {
        self.0.route_vector(vector).map(json_of).map_err(thrown)
    }

    /// Returns everything as bytes.
    #[wasm_bindgen(js_name = toBytes)]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes()
    }

    /// Reads what `toBytes` gave.
    ///
    /// # Errors
    /// As [`Routes::from_bytes`].
    #[wasm_bindgen(js_name = fromBytes)]
    pub fn from_bytes(dim: usize, bytes: &[u8]) -> Result<JsRoutes, JsError> {
        Routes::from_bytes(dim, bytes).map(JsRoutes).map_err(thrown)
    }
}

/// A MicroLoRA over vectors: see [`MicroAdapter`].
#[wasm_bindgen(js_name = MicroAdapter)]
pub struct JsAdapter(MicroAdapter);

#[wasm_bindgen(js_class = MicroAdapter)]
impl JsAdapter {
    /// Makes one that changes nothing yet.
    ///
    /// # Errors
    /// As [`MicroAdapter::new`].
    #[wasm_bindgen(constructor)]
    pub fn new(dim: usize, rank: usize, rows: &[f32]) -> Result<JsAdapter, JsError> {
        MicroAdapter::new(dim, rank, rows).map(JsAdapter).map_err(thrown)
    }

    /// Reads what `toBytes` gave.
    ///
    /// # Errors
    /// As [`MicroAdapter::from_bytes`].
    #[wasm_bindgen(js_name = fromBytes)]
    pub fn from_bytes(bytes: &[u8], rows: &[f32]) -> Result<JsAdapter, JsError> {
        MicroAdapter::from_bytes(bytes, rows).map(JsAdapter).map_err(thrown)
    }

    /// Returns a vector as it is changed.
    ///
    /// # Errors
    /// It has another length.
    pub fn forward(&self, vector: &[f32]) -> Result<Vec<f32>, JsError> {
        self.0.forward(vector).map_err(thrown)
    }

    /// Returns how likely each label is.
    ///
    /// # Errors
    /// The vector has another length.
    pub fn probabilities(&self, vector: &[f32]) -> Result<Vec<f32>, JsError> {
        self.0.probabilities(vector).map_err(thrown)
    }

    /// Takes one step towards a label.
    ///
    /// # Errors
    /// As [`MicroAdapter::learn`].
    pub fn learn(&mut self, vector: &[f32], label: u32, rate: f32) -> Result<(), JsError> {
        self.0.learn(vector, label, rate).map_err(thrown)
    }

    /// Returns what was learned as bytes.
    #[wasm_bindgen(js_name = toBytes)]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes()
    }
}

/// The instant loop over vectors: see [`InstantLearner`].
#[wasm_bindgen(js_name = InstantLearner)]
pub struct JsLearner(InstantLearner);

#[wasm_bindgen(js_class = InstantLearner)]
impl JsLearner {
    /// Makes one that knows nothing.
    ///
    /// # Errors
    /// As [`InstantLearner::new`].
    #[wasm_bindgen(constructor)]
    pub fn new(dim: usize, n_labels: usize, usual: &[f32]) -> Result<JsLearner, JsError> {
        InstantLearner::new(dim, n_labels, usual).map(JsLearner).map_err(thrown)
    }

    /// Returns how likely each label is.
    ///
    /// # Errors
    /// The vector has another length.
    pub fn probabilities(&self, vector: &[f32]) -> Result<Vec<f32>, JsError> {
        self.0.probabilities(vector).map_err(thrown)
    }

    /// Learns that a vector has a label.
    ///
    /// # Errors
    /// As [`InstantLearner::learn`].
    pub fn learn(&mut self, vector: &[f32], label: u32, quality: f32) -> Result<(), JsError> {
        self.0.learn(vector, label, quality).map_err(thrown)
    }

    /// Returns everything as bytes.
    #[wasm_bindgen(js_name = toBytes)]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_bytes()
    }

    /// Reads what `toBytes` gave.
    ///
    /// # Errors
    /// The bytes are damaged.
    #[wasm_bindgen(js_name = fromBytes)]
    pub fn from_bytes(bytes: &[u8]) -> Result<JsLearner, JsError> {
        InstantLearner::from_bytes(bytes).map(JsLearner).map_err(thrown)
    }
}
