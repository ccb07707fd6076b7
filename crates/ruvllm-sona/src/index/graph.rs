//! The graph over the rows of an index: `hnsw-stable`, with slots as keys and the index's rows as its vectors.

use hnsw_stable::{Dense, Hnsw, HnswConfig, Metric, NodeId, VectorStore, VectorStoreMut};

use super::IndexConfig;

/// The rows of an index as the graph wants them. Node and slot are the same number, since both are counted up.
struct Rows<'a> {
    rows: &'a [f32],
    dim: usize,
}

impl VectorStore for Rows<'_> {
    type Family = Dense<f32>;
    type Vector<'v>
        = &'v [f32]
    where
        Self: 'v;

    fn dim(&self) -> usize {
        self.dim
    }

    fn vector(&self, id: NodeId) -> Option<&[f32]> {
        self.rows.get(id.as_usize() * self.dim..)?.get(..self.dim)
    }
}

impl VectorStoreMut for Rows<'_> {
    /// The row lies there already.
    fn set(&self, _: NodeId, _: &[f32]) -> hnsw_stable::Result<()> {
        Ok(())
    }
}

/// One less the cosine, for vectors of length one. The crate's own has one sum, each step of which waits for the last, and
/// takes twice as long (docs/lab/vector-index.md).
#[derive(Clone)]
struct Angle;

impl Metric for Angle {
    type Family = Dense<f32>;

    fn distance(&self, a: &[f32], b: &[f32]) -> f32 {
        1.0 - similarity(a, b)
    }
}

pub(super) struct Graph {
    hnsw: Hnsw<u32, Angle>,
    dim: usize,
}

/// A graph's room: its number of nodes is set when it is made, at some 200 bytes each.
fn room(n: usize) -> usize {
    (4 * n).next_power_of_two().max(1 << 14)
}

/// The cosine, for two vectors of length one: 32 sums that do not wait for each other, which any compiler makes wide.
pub(super) fn similarity(a: &[f32], b: &[f32]) -> f32 {
    let ((a32, a_tail), (b32, b_tail)) = (a.as_chunks::<32>(), b.as_chunks::<32>());
    let mut sums = [0f32; 32];
    for (a, b) in a32.iter().zip(b32) {
        for lane in 0..32 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for width in [16, 8, 4, 2, 1] {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    sums[0] + a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum::<f32>()
}

impl Graph {
    /// An empty graph with room for at least four times `n` vectors.
    pub(super) fn new(dim: usize, n: usize, config: &IndexConfig) -> Graph {
        let hnsw = HnswConfig::new(dim, room(n)).m(config.n_links).ef_construction(config.n_insert);
        let hnsw = hnsw.ef_search(config.n_search).seed(config.seed);
        Graph { hnsw: Hnsw::new(Angle, hnsw), dim }
    }

    pub(super) fn has_room(&self) -> bool {
        self.hnsw.len() < self.hnsw.max_nodes()
    }

    /// Takes row `slot` in, the next one.
    pub(super) fn insert(&self, rows: &[f32], slot: usize) {
        assert_eq!(slot, self.hnsw.len(), "rows come in the order of their slots");
        let row = &rows[slot * self.dim..][..self.dim];
        let inserted = self.hnsw.insert(&Rows { rows, dim: self.dim }, slot as u32, row);
        inserted.expect("the slot is new, its row has the right width, and there is room");
    }

    /// Returns slots and similarities of about the nearest `k` that pass.
    pub(super) fn search(
        &self,
        rows: &[f32],
        query: &[f32],
        k: usize,
        passes: &dyn Fn(usize) -> bool,
    ) -> Vec<(usize, f32)> {
        let filter = |slot: &u32| passes(*slot as usize);
        let hits = self.hnsw.search(&Rows { rows, dim: self.dim }, query, k, Some(&filter));
        let hits = hits.expect("the graph is not empty and the query has its width");
        hits.into_iter().map(|hit| (hit.key as usize, 1.0 - hit.distance)).collect()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![];
        self.hnsw.save_to(&mut bytes).expect("writing to memory does not fail");
        bytes
    }

    /// Reads what [`Graph::to_bytes`] made of `n` vectors; `None` if it is something else. The caller has checked a
    /// digest: this is no guard against bytes that somebody made to harm.
    pub(super) fn from_bytes(mut bytes: &[u8], dim: usize, n: usize, config: &IndexConfig) -> Option<Graph> {
        let hnsw: Hnsw<u32, _> = Hnsw::load_from(Angle, &mut bytes).ok()?;
        hnsw.set_ef_search(config.n_search);
        (bytes.is_empty() && hnsw.dim() == dim && hnsw.len() == n).then_some(Graph { hnsw, dim })
    }
}
