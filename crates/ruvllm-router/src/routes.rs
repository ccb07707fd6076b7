//! Semantic routes: names for kinds of queries, each given by examples.
//!
//! ```
//! use ruvllm_router::routes::{ExactIndex, SemanticRoutes};
//! use ruvllm_router::HashedWords;
//!
//! let words = HashedWords::new(512);
//! let mut routes = SemanticRoutes::new(ExactIndex::new(512));
//! routes.add_route("refunds", 0.3)?;
//! routes.add_example("refunds", &words.vector("I want my money back"))?;
//! routes.add_route("delivery", 0.3)?;
//! routes.add_example("delivery", &words.vector("where is my parcel"))?;
//! assert_eq!(routes.route(&words.vector("money back please"))?.unwrap().name, "refunds");
//! assert_eq!(routes.route(&words.vector("good morning"))?, None);
//! # Ok::<(), ruvllm_router::RouterError>(())
//! ```

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::json;

use crate::error::{RouterError, RouterErrorKind, invalid, shape, value};
use crate::math::{dot, normalise};
use crate::rows::Rows;
use crate::state::{Reader, Writer};

/// A vector that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// The number it was inserted with.
    pub id: u64,
    /// Its cosine with the query.
    pub similarity: f32,
}

/// Finds the vectors nearest to another. Exact search is one; a graph index may take its place where there are many.
pub trait VectorIndex {
    /// Returns the length of the vectors.
    fn dim(&self) -> usize;

    /// Inserts a vector of length 1, in place of an earlier one of the same number.
    ///
    /// # Errors
    /// It cannot be stored.
    fn insert(&mut self, id: u64, vector: &[f32]) -> Result<(), RouterError>;

    /// Removes a vector and tells whether it was there.
    ///
    /// # Errors
    /// It cannot be removed.
    fn remove(&mut self, id: u64) -> Result<bool, RouterError>;

    /// Returns up to `k` vectors nearest to `query` (of length 1), nearest first.
    ///
    /// # Errors
    /// The search failed.
    fn search(&self, query: &[f32], k: usize) -> Result<Vec<Hit>, RouterError>;

    /// Returns the vector of a number: `[dim]`.
    fn vector(&self, id: u64) -> Option<&[f32]>;
}

/// Compares with every vector: exact, and fast enough for some thousands.
#[derive(Clone, Debug)]
pub struct ExactIndex {
    dim: usize,
    ids: Vec<u64>,
    vectors: Vec<f32>,
}

impl ExactIndex {
    /// Makes an empty index of vectors of `dim` values.
    ///
    /// # Panics
    /// `dim` is 0.
    pub fn new(dim: usize) -> ExactIndex {
        assert!(dim > 0, "a vector has at least one value");
        ExactIndex { dim, ids: Vec::new(), vectors: Vec::new() }
    }
}

impl VectorIndex for ExactIndex {
    fn dim(&self) -> usize {
        self.dim
    }

    fn insert(&mut self, id: u64, vector: &[f32]) -> Result<(), RouterError> {
        check_vector(vector, self.dim)?;
        match self.ids.binary_search(&id) {
            Ok(at) => self.vectors[at * self.dim..][..self.dim].copy_from_slice(vector),
            Err(at) => {
                self.ids.insert(at, id);
                self.vectors.splice(at * self.dim..at * self.dim, vector.iter().copied());
            }
        }
        Ok(())
    }

    fn remove(&mut self, id: u64) -> Result<bool, RouterError> {
        let found = self.ids.binary_search(&id);
        if let Ok(at) = found {
            self.ids.remove(at);
            self.vectors.drain(at * self.dim..(at + 1) * self.dim);
        }
        Ok(found.is_ok())
    }

    fn search(&self, query: &[f32], k: usize) -> Result<Vec<Hit>, RouterError> {
        check_vector(query, self.dim)?;
        let rows = self.ids.iter().zip(self.vectors.chunks_exact(self.dim));
        let mut hits: Vec<Hit> = rows.map(|(&id, row)| Hit { id, similarity: dot(row, query) }).collect();
        hits.sort_unstable_by(|a, b| b.similarity.total_cmp(&a.similarity).then(a.id.cmp(&b.id)));
        hits.truncate(k);
        Ok(hits)
    }

    fn vector(&self, id: u64) -> Option<&[f32]> {
        let at = self.ids.binary_search(&id).ok()?;
        Some(&self.vectors[at * self.dim..][..self.dim])
    }
}

fn check_vector(vector: &[f32], dim: usize) -> Result<(), RouterError> {
    if vector.len() != dim {
        return Err(shape(format!("a vector has {} values; the routes have {dim}", vector.len())));
    }
    match vector.iter().all(|x| x.is_finite()) {
        true => Ok(()),
        false => Err(value("a vector has a value that is not finite")),
    }
}

/// The route of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteMatch {
    /// Its name.
    pub name: String,
    /// The cosine of the query with the route's nearest example.
    pub similarity: f32,
    /// The next best route that is above its own threshold, and its similarity.
    pub runner_up: Option<(String, f32)>,
}

/// Named routes with examples; each has a threshold below which it is not taken.
#[derive(Clone, Debug)]
pub struct SemanticRoutes<I> {
    index: I,
    routes: BTreeMap<String, Route>,
    /// The route of every example.
    owners: BTreeMap<u64, String>,
    next_id: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Route {
    threshold: f32,
    n_examples: usize,
}

const KIND: &str = "routes";
/// The most examples that are read of a saved state.
const N_EXAMPLES_MAX: usize = 1 << 20;

impl<I: VectorIndex> SemanticRoutes<I> {
    /// Makes routes over an empty index.
    pub fn new(index: I) -> SemanticRoutes<I> {
        SemanticRoutes { index, routes: BTreeMap::new(), owners: BTreeMap::new(), next_id: 0 }
    }

    /// Adds a route without examples; a query is not taken below the `threshold` (a cosine).
    ///
    /// # Errors
    /// There is one of this name, or it is empty (kind `Name`); the threshold is not from -1 to 1 (kind `Value`).
    pub fn add_route(&mut self, name: &str, threshold: f32) -> Result<(), RouterError> {
        if name.is_empty() || self.routes.contains_key(name) {
            let message = format!("a route needs a name that no other has; '{name}' cannot be taken");
            return Err(RouterError::new(RouterErrorKind::Name, message));
        }
        check_threshold(threshold)?;
        self.routes.insert(name.to_owned(), Route { threshold, n_examples: 0 });
        Ok(())
    }

    /// Adds an example of a route and returns its number. The vector is brought to length 1.
    ///
    /// # Errors
    /// There is no such route (kind `Name`), the vector does not fit or is all zeros (kinds `Shape`, `Value`), or it
    /// cannot be stored.
    pub fn add_example(&mut self, name: &str, vector: &[f32]) -> Result<u64, RouterError> {
        check_vector(vector, self.index.dim())?;
        let route = self.routes.get_mut(name).ok_or_else(|| unknown(name))?;
        if vector.iter().all(|&x| x == 0.0) {
            return Err(value(format!("an example of '{name}' is all zeros; it has no direction")));
        }
        let mut vector = vector.to_vec();
        normalise(&mut vector);
        let id = self.next_id;
        self.index.insert(id, &vector)?;
        (self.next_id, route.n_examples) = (id + 1, route.n_examples + 1);
        self.owners.insert(id, name.to_owned());
        Ok(id)
    }

    /// Removes an example and tells whether it was there.
    ///
    /// # Errors
    /// It cannot be removed from the index.
    pub fn remove_example(&mut self, id: u64) -> Result<bool, RouterError> {
        let Some(name) = self.owners.remove(&id) else { return Ok(false) };
        self.routes.get_mut(&name).expect("an example's route exists").n_examples -= 1;
        self.index.remove(id)
    }

    /// Removes a route with its examples.
    ///
    /// # Errors
    /// There is no such route (kind `Name`), or an example cannot be removed.
    pub fn remove_route(&mut self, name: &str) -> Result<(), RouterError> {
        self.routes.remove(name).ok_or_else(|| unknown(name))?;
        let ids: Vec<u64> = self.owners.iter().filter(|(_, owner)| *owner == name).map(|(&id, _)| id).collect();
        self.owners.retain(|_, owner| owner != name);
        ids.into_iter().try_for_each(|id| self.index.remove(id).map(drop))
    }

    /// Sets the cosine below which a route is not taken.
    ///
    /// # Errors
    /// There is no such route (kind `Name`); the threshold is not from -1 to 1 (kind `Value`).
    pub fn set_threshold(&mut self, name: &str, threshold: f32) -> Result<(), RouterError> {
        check_threshold(threshold)?;
        self.routes.get_mut(name).ok_or_else(|| unknown(name))?.threshold = threshold;
        Ok(())
    }

    /// Returns the name, threshold and number of examples of every route, by name.
    pub fn routes(&self) -> impl Iterator<Item = (&str, f32, usize)> {
        self.routes.iter().map(|(name, route)| (name.as_str(), route.threshold, route.n_examples))
    }

    /// Returns the route of a query's nearest example among the routes that are not below their threshold, or `None`
    /// where all of them are, or the query is all zeros.
    ///
    /// # Errors
    /// The vector does not fit, or the search failed.
    pub fn route(&self, query: &[f32]) -> Result<Option<RouteMatch>, RouterError> {
        let ranked = self.ranked(query, None)?;
        let mut taken = ranked.into_iter().filter(|(name, similarity)| *similarity >= self.routes[name].threshold);
        let best = taken.next();
        Ok(best.map(|(name, similarity)| RouteMatch { name, similarity, runner_up: taken.next() }))
    }

    /// Every example in the order of their numbers.
    fn examples(&self) -> impl Iterator<Item = (u64, &[f32])> {
        self.owners.keys().map(|&id| (id, self.index.vector(id).expect("the index holds every example")))
    }

    /// Returns the routes by their nearest example, nearest first, without the example `but`.
    fn ranked(&self, query: &[f32], but: Option<u64>) -> Result<Vec<(String, f32)>, RouterError> {
        check_vector(query, self.index.dim())?;
        if query.iter().all(|&x| x == 0.0) {
            return Ok(Vec::new());
        }
        let mut query = query.to_vec();
        normalise(&mut query);
        // Enough that a second route shows, as long as none has more examples near the query than this.
        const N_NEAR: usize = 64;
        let mut ranked: Vec<(String, f32)> = Vec::new();
        for hit in self.index.search(&query, N_NEAR)? {
            let owner = self.owners.get(&hit.id).filter(|_| Some(hit.id) != but);
            if let Some(owner) = owner.filter(|&owner| ranked.iter().all(|(name, _)| name != owner)) {
                ranked.push((owner.clone(), hit.similarity));
            }
        }
        Ok(ranked)
    }

    /// Sets every route's threshold to the cosine that tells its own examples best from those of the other routes and
    /// from `others` (vectors of no route): the greatest harmonic mean of precision and recall, each example left out
    /// of the search for itself. Routes of fewer than two examples keep theirs.
    ///
    /// # Errors
    /// A vector does not fit, or a search failed.
    pub fn fit_thresholds(&mut self, others: &Rows) -> Result<(), RouterError> {
        let mut examples: Vec<_> = self.examples().map(|(id, vector)| (Some(id), vector.to_vec())).collect();
        examples.extend(others.iter().map(|vector| (None, vector.to_vec())));
        // By route: similarity to its nearest example, and whether that was right.
        let mut seen: BTreeMap<String, Vec<(f32, bool)>> = BTreeMap::new();
        for (id, vector) in &examples {
            if let Some((name, similarity)) = self.ranked(vector, *id)?.into_iter().next() {
                let right = id.is_some_and(|id| self.owners[&id] == name);
                seen.entry(name).or_default().push((similarity, right));
            }
        }
        for (name, mut pairs) in seen {
            let route = self.routes.get_mut(&name).expect("it was found by the name of a route");
            if route.n_examples >= 2 {
                pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
                route.threshold = best_threshold(&pairs, route.n_examples).unwrap_or(route.threshold);
            }
        }
        Ok(())
    }

    /// Returns routes and examples as bytes in the safetensors format.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (mut ids, mut values) = (Vec::new(), Vec::new());
        for (id, vector) in self.examples() {
            ids.push(id);
            values.extend_from_slice(vector);
        }
        let names: Vec<&String> = self.routes.keys().collect();
        let thresholds: Vec<f32> = self.routes.values().map(|route| route.threshold).collect();
        let owner = |id: &u64| names.binary_search(&&self.owners[id]).expect("an example's route exists");
        let owners: Vec<usize> = ids.iter().map(owner).collect();
        let mut writer = Writer::default();
        writer.table("thresholds", &[names.len()], &thresholds);
        writer.table("examples", &[ids.len(), self.index.dim()], &values);
        let about = json!({"kind": KIND, "version": 1, "dim": self.index.dim(), "routes": names, "owners": owners});
        writer.finish(&about)
    }

    /// Reads what [`SemanticRoutes::to_bytes`] wrote into an empty index. The bytes may come from anywhere. Examples
    /// are numbered anew.
    ///
    /// # Errors
    /// They are no routes, contradict themselves (kind `Invalid`), or have vectors of another length than the index.
    pub fn from_bytes(index: I, bytes: &[u8]) -> Result<SemanticRoutes<I>, RouterError> {
        let reader = Reader::new(bytes, KIND)?;
        let (names, dim) = (reader.names("routes")?, index.dim());
        if reader.number("dim", 1, 1 << 16)? != dim {
            return Err(shape(format!(
                "saved routes have vectors of {}; {dim} are needed here",
                reader.about()["dim"]
            )));
        }
        let owners = reader.about()["owners"].as_array().filter(|owners| owners.len() <= N_EXAMPLES_MAX);
        let owners = owners.ok_or_else(|| invalid("saved routes have no list of examples, or too long a one"))?;
        let thresholds = reader.table("thresholds", &[names.len()])?;
        let examples = reader.table("examples", &[owners.len(), dim])?;
        let mut routes = SemanticRoutes::new(index);
        for (name, threshold) in names.iter().zip(thresholds) {
            routes.add_route(name, threshold)?;
        }
        for (owner, vector) in owners.iter().zip(examples.chunks_exact(dim)) {
            let name = owner.as_u64().and_then(|owner| names.get(usize::try_from(owner).ok()?));
            routes.add_example(
                name.ok_or_else(|| invalid(format!("an example of route {owner}, which is none")))?,
                vector,
            )?;
        }
        Ok(routes)
    }
}

fn unknown(name: &str) -> RouterError {
    let shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
    RouterError::new(RouterErrorKind::Name, format!("there is no route '{shown}'"))
}

fn check_threshold(threshold: f32) -> Result<(), RouterError> {
    match (-1.0..=1.0).contains(&threshold) {
        true => Ok(()),
        false => Err(value(format!("a threshold of {threshold}; a cosine is from -1 to 1"))),
    }
}

/// The threshold of the best F1 among the similarities of `pairs`, greatest first: halfway to the next one below.
fn best_threshold(pairs: &[(f32, bool)], n_examples: usize) -> Option<f32> {
    let (mut right, mut best, mut threshold) = (0usize, 0.0, None);
    for (taken, &(similarity, is_right)) in pairs.iter().enumerate() {
        right += usize::from(is_right);
        let below = pairs.get(taken + 1).map_or(similarity - 0.1, |next| next.0);
        let f1 = 2.0 * right as f64 / (taken + 1 + n_examples) as f64;
        if below < similarity && f1 > best {
            (best, threshold) = (f1, Some((0.5 * (similarity + below)).clamp(-1.0, 1.0)));
        }
    }
    threshold
}
