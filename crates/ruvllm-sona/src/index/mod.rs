//! Which vectors are nearest: exact while they are few, by a graph (HNSW; Malkov & Yashunin 2016, arXiv:1603.09320) when
//! they are many.
//!
//! The graph is the crate `hnsw-stable`'s; what is around it is here: ids, deletion, filters, when to rebuild, and what
//! lies on disk. Vectors are compared by the cosine of their angle. A deleted vector stays as a way through the graph
//! until [`VectorIndex::rebuild`]; a filter that lets few pass is answered exactly, since a graph is slow and poor there.
//!
//! An index holds nothing that the store does not: it can always be made anew from it, and what [`VectorIndex::to_bytes`]
//! saves is the graph alone, to save that time.
//!
//! ```
//! use ruvllm_sona::index::{IndexConfig, VectorIndex};
//!
//! let mut index = VectorIndex::new(2, IndexConfig::default())?;
//! index.insert(10, &[1.0, 0.0])?;
//! index.insert(20, &[0.8, 0.6])?;
//! index.insert(30, &[0.0, 1.0])?;
//! let ids = |hits: Vec<ruvllm_sona::index::VectorHit>| hits.iter().map(|hit| hit.id).collect::<Vec<_>>();
//! assert_eq!(ids(index.search(&[2.0, 0.1], 2, None)?), [10, 20]);
//! assert_eq!(ids(index.search(&[2.0, 0.1], 2, Some(&|id| id != 10))?), [20, 30]);
//! index.remove(20);
//! assert_eq!(ids(index.search(&[2.0, 0.1], 2, None)?), [10, 30]);
//! # Ok::<(), ruvllm_sona::SonaError>(())
//! ```

use std::collections::HashMap;

use crate::codec::{Reader, Writer};
use crate::error::{SonaError, SonaErrorKind, invalid};

mod graph;
#[cfg(test)]
mod tests;

use graph::{Graph, similarity};

/// The widest vectors.
pub const DIM_MAX: usize = 65_536;

/// Options of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexConfig {
    /// Up to how many vectors there is no graph.
    pub n_exact_max: usize,
    /// Links of a vector in the graph (twice as many on its lowest layer).
    pub n_links: usize,
    /// Number of candidates that an insertion looks at.
    pub n_insert: usize,
    /// Number of candidates that a search looks at; more find more and take longer.
    pub n_search: usize,
    /// Seed of the layers of the graph.
    pub seed: u64,
}

impl Default for IndexConfig {
    /// The values of docs/lab/vector-index.md for 100,000 vectors of 384 and 576 values: recall@10 ≥ 0.95 below 2 ms.
    fn default() -> IndexConfig {
        IndexConfig { n_exact_max: 2048, n_links: 16, n_insert: 100, n_search: 96, seed: 1 }
    }
}

/// One of the nearest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VectorHit {
    /// The id it was inserted with.
    pub id: u64,
    /// The cosine of the angle to the query, -1 to 1.
    pub similarity: f32,
}

/// Decides by id what may be found.
pub type IdFilter<'a> = &'a dyn Fn(u64) -> bool;

/// Vectors of one width, found by their nearness.
pub struct VectorIndex {
    config: IndexConfig,
    dim: usize,
    /// `[n_slots, dim]`, each of length one.
    rows: Vec<f32>,
    ids: Vec<u64>,
    is_alive: Vec<bool>,
    slots: HashMap<u64, u32>,
    graph: Option<Graph>,
}

/// A search that a filter leaves no more than this many vectors compares all of them.
const N_SCANNED_MAX: usize = 8192;

/// How many vectors are asked to guess what a filter lets pass.
const N_SAMPLED: usize = 512;

/// The share of deleted vectors from which on a rebuild pays.
const DEAD_SHARE_MAX: f64 = 0.25;

/// First byte of a saved graph.
const FORMAT: u8 = 1;

impl VectorIndex {
    /// An empty index for vectors of `dim` values.
    ///
    /// # Errors
    /// With kind `Shape` if `dim` is 0 or greater than [`DIM_MAX`].
    pub fn new(dim: usize, config: IndexConfig) -> Result<VectorIndex, SonaError> {
        if dim == 0 || dim > DIM_MAX {
            let message = format!("vectors of {dim} values; an index takes 1 to {DIM_MAX}");
            return Err(SonaError::new(SonaErrorKind::Shape, message));
        }
        let (rows, ids, is_alive) = (vec![], vec![], vec![]);
        Ok(VectorIndex { config, dim, rows, ids, is_alive, slots: HashMap::new(), graph: None })
    }

    /// The width of its vectors.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the number of vectors.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether a vector has this id.
    pub fn contains(&self, id: u64) -> bool {
        self.slots.contains_key(&id)
    }

    /// Returns the vector of an id, of length one: `[dim]`.
    pub fn vector(&self, id: u64) -> Option<&[f32]> {
        self.slots.get(&id).map(|&slot| self.row(slot as usize))
    }

    /// Returns whether so many vectors were deleted that [`VectorIndex::rebuild`] pays.
    pub fn wants_rebuild(&self) -> bool {
        let n_dead = self.ids.len() - self.slots.len();
        self.graph.is_some() && n_dead as f64 > DEAD_SHARE_MAX * self.ids.len() as f64
    }

    /// Adds a vector, or puts it in the place of the one with this id. About a millisecond; but the first one that is too
    /// many for exact search, and each that finds the graph full (at four times what it was made for), makes
    /// the graph anew.
    ///
    /// # Errors
    /// With kind `Shape` or `Value` if the vector has another width, no length, or values that are not finite.
    pub fn insert(&mut self, id: u64, vector: &[f32]) -> Result<(), SonaError> {
        let row = unit(self.dim, vector)?;
        self.remove(id);
        self.push(id, &row);
        match &self.graph {
            Some(graph) if graph.has_room() => graph.insert(&self.rows, self.ids.len() - 1),
            Some(_) => self.build_graph(&mut |_, _| {}),
            None if self.ids.len() > self.config.n_exact_max => self.build_graph(&mut |_, _| {}),
            None => {}
        }
        Ok(())
    }

    /// Adds many vectors at once to an empty index and makes the graph behind; `progress` hears how many of how many
    /// are in it. A minute for 100,000 of 384.
    ///
    /// # Errors
    /// As [`VectorIndex::insert`].
    pub fn build<'a>(
        dim: usize,
        config: IndexConfig,
        vectors: impl IntoIterator<Item = (u64, &'a [f32])>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<VectorIndex, SonaError> {
        let mut index = VectorIndex::new(dim, config)?;
        for (id, vector) in vectors {
            let row = unit(dim, vector)?;
            index.remove(id);
            index.push(id, &row);
        }
        index.build_graph(progress);
        Ok(index)
    }

    /// Deletes a vector; returns whether there was one.
    pub fn remove(&mut self, id: u64) -> bool {
        let Some(slot) = self.slots.remove(&id) else { return false };
        self.is_alive[slot as usize] = false;
        // Without a graph nobody needs it as a way. Gaps are closed from time to time, not each at a cost of all rows.
        if self.graph.is_none() && self.ids.len() > 2 * self.slots.len() {
            self.forget_dead();
        }
        true
    }

    /// Lets go of deleted vectors and makes the graph anew, as if they had never been there.
    pub fn rebuild(&mut self, progress: &mut dyn FnMut(usize, usize)) {
        self.graph = None;
        self.build_graph(progress);
    }

    /// Returns the nearest `k` of those that `filter` lets pass, nearest first; equally near ones by their ids.
    ///
    /// # Errors
    /// As [`VectorIndex::insert`].
    pub fn search(&self, query: &[f32], k: usize, filter: Option<IdFilter<'_>>) -> Result<Vec<VectorHit>, SonaError> {
        let query = unit(self.dim, query)?;
        if k == 0 || self.is_empty() {
            return Ok(vec![]);
        }
        let passes = |slot: usize| self.is_alive[slot] && filter.is_none_or(|filter| filter(self.ids[slot]));
        let scanned = match &self.graph {
            None => true,
            Some(_) => filter.is_some() && self.n_passing(&passes) <= N_SCANNED_MAX.max(4 * k),
        };
        let mut hits: Vec<VectorHit> = match &self.graph {
            Some(graph) if !scanned => {
                let found = graph.search(&self.rows, &query, k, &passes);
                found.into_iter().map(|(slot, similarity)| VectorHit { id: self.ids[slot], similarity }).collect()
            }
            _ => {
                let hit = |slot| VectorHit { id: self.ids[slot], similarity: similarity(&query, self.row(slot)) };
                (0..self.ids.len()).filter(|&slot| passes(slot)).map(hit).collect()
            }
        };
        let order = |a: &VectorHit, b: &VectorHit| b.similarity.total_cmp(&a.similarity).then(a.id.cmp(&b.id));
        if hits.len() > k {
            hits.select_nth_unstable_by(k - 1, order);
            hits.truncate(k);
        }
        hits.sort_by(order);
        Ok(hits)
    }

    /// Returns the graph as bytes, for [`VectorIndex::from_bytes`]; `None` if there is none (then there is nothing worth
    /// saving) or deleted vectors are still in it (rebuild it first: what is deleted does not come to the disk).
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let graph = self.graph.as_ref().filter(|_| self.ids.len() == self.slots.len())?;
        let mut to = Writer::new();
        to.u8(FORMAT).count(self.dim).count(self.ids.len());
        self.ids.iter().for_each(|&id| {
            to.u64(id);
        });
        to.bytes(&graph.to_bytes());
        let bytes = to.take();
        let digest = self.digest(&bytes);
        Some([&digest[..], &bytes].concat())
    }

    /// Makes an index of `vectors` with a saved graph, as far as it is of these: what came since is inserted. `None` if
    /// the bytes are damaged, or of other vectors: then [`VectorIndex::build`] is the way.
    pub fn from_bytes(
        config: IndexConfig,
        bytes: &[u8],
        vectors: &HashMap<u64, &[f32]>,
    ) -> Result<Option<VectorIndex>, SonaError> {
        let Some((digest, body)) = bytes.split_first_chunk::<32>() else { return Ok(None) };
        let read = || -> Result<(usize, Vec<u64>, &[u8]), SonaError> {
            let mut from = Reader::new(body, "index");
            if from.u8()? != FORMAT {
                return Err(invalid("index: another format"));
            }
            let (dim, n) = (from.u32()? as usize, from.count(8)?);
            let ids = (0..n).map(|_| from.u64()).collect::<Result<Vec<_>, _>>()?;
            let graph = from.bytes()?;
            from.end()?;
            Ok((dim, ids, graph))
        };
        let Ok((dim, ids, graph)) = read() else { return Ok(None) };
        let mut index = VectorIndex::new(dim, config)?;
        for id in ids {
            // An id that stands there twice, or is no longer in the store: other vectors.
            let Some(vector) = vectors.get(&id).filter(|_| !index.contains(id)) else { return Ok(None) };
            index.push(id, &unit(dim, vector)?);
        }
        if index.digest(body) != *digest {
            return Ok(None);
        }
        let Some(graph) = Graph::from_bytes(graph, dim, index.ids.len(), &config) else { return Ok(None) };
        index.graph = Some(graph);
        let mut newer: Vec<_> = vectors.keys().filter(|id| !index.contains(**id)).copied().collect();
        newer.sort_unstable();
        for id in newer {
            index.insert(id, vectors[&id])?;
        }
        Ok(Some(index))
    }

    /// What binds a saved graph to its vectors.
    fn digest(&self, body: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(body.len() as u64).to_le_bytes()).update(body);
        hasher.update(bytemuck::cast_slice(&self.rows));
        *hasher.finalize().as_bytes()
    }

    fn row(&self, slot: usize) -> &[f32] {
        &self.rows[slot * self.dim..][..self.dim]
    }

    fn push(&mut self, id: u64, row: &[f32]) {
        let slot = u32::try_from(self.ids.len()).expect("memory ends before");
        self.rows.extend_from_slice(row);
        self.ids.push(id);
        self.is_alive.push(true);
        self.slots.insert(id, slot);
    }

    /// Makes the graph of what is alive, if there is enough of it.
    fn build_graph(&mut self, progress: &mut dyn FnMut(usize, usize)) {
        self.forget_dead();
        let n = self.ids.len();
        if n <= self.config.n_exact_max {
            self.graph = None;
            return;
        }
        let graph = Graph::new(self.dim, n, &self.config);
        for slot in 0..n {
            graph.insert(&self.rows, slot);
            progress(slot + 1, n);
        }
        self.graph = Some(graph);
    }

    /// Closes the gaps that deleted vectors left.
    fn forget_dead(&mut self) {
        let mut n = 0;
        for slot in 0..self.ids.len() {
            if self.is_alive[slot] {
                self.rows.copy_within(slot * self.dim..(slot + 1) * self.dim, n * self.dim);
                self.ids[n] = self.ids[slot];
                self.slots.insert(self.ids[n], n as u32);
                n += 1;
            }
        }
        self.rows.truncate(n * self.dim);
        self.ids.truncate(n);
        self.is_alive.clear();
        self.is_alive.resize(n, true);
    }

    /// Guesses how many vectors pass, from some that lie evenly among all.
    fn n_passing(&self, passes: &dyn Fn(usize) -> bool) -> usize {
        let n = self.ids.len();
        let n_sampled = n.min(N_SAMPLED);
        let n_passed = (0..n_sampled).filter(|i| passes(i * n / n_sampled)).count();
        n * n_passed / n_sampled
    }
}

/// Returns a vector with length one.
fn unit(dim: usize, vector: &[f32]) -> Result<Vec<f32>, SonaError> {
    if vector.len() != dim {
        let message = format!("a vector of {} values for an index of {dim}", vector.len());
        return Err(SonaError::new(SonaErrorKind::Shape, message));
    }
    let length = vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    if !length.is_normal() {
        let message = format!("a vector of length {length} has no direction");
        return Err(SonaError::new(SonaErrorKind::Value, message));
    }
    Ok(vector.iter().map(|&value| (f64::from(value) / length) as f32).collect())
}
