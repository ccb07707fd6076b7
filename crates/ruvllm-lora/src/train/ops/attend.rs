//! Attention within the sequences of a packed batch. Scores are computed again for the gradient instead of being kept.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use rayon::prelude::*;
use ruvllm_kernels::{Isa, softmax};

use super::{PIECE, tensor, values, with_values};

/// What all sequences share.
#[derive(Clone, Copy, Debug)]
pub(in crate::train) struct Geometry {
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub window: Option<usize>,
    pub is_causal: bool,
}

/// Attention over queries `[n, n_heads·k_dim]`, keys `[n, n_kv_heads·k_dim]` and values `[n, n_kv_heads·v_dim]`, giving
/// `[n, n_heads·v_dim]`. A row sees rows of its own sequence only.
pub(in crate::train) struct Attend {
    pub geometry: Geometry,
    /// Rows of each sequence, one after the other.
    pub lengths: Arc<[usize]>,
}

/// One sequence's heads: queries `[n_kv_heads, group·n, k_dim]`, keys and values `[n_kv_heads, n, dim]`.
struct Heads {
    n: usize,
    q: Tensor,
    k: Tensor,
    v: Tensor,
}

impl Attend {
    fn sequences(&self) -> impl Iterator<Item = Range<usize>> {
        self.lengths.iter().scan(0, |end, n| {
            *end += n;
            Some(*end - n..*end)
        })
    }

    fn heads(&self, rows: &Range<usize>, q: &[f32], k: &[f32], v: &[f32]) -> Result<Heads> {
        let g = &self.geometry;
        let n = rows.len();
        let q = tensor(by_head(q, rows, g.n_heads, g.k_dim), (g.n_kv_heads, g.n_heads / g.n_kv_heads * n, g.k_dim))?;
        let k = tensor(by_head(k, rows, g.n_kv_heads, g.k_dim), (g.n_kv_heads, n, g.k_dim))?;
        let v = tensor(by_head(v, rows, g.n_kv_heads, g.v_dim), (g.n_kv_heads, n, g.v_dim))?;
        Ok(Heads { n, q, k, v })
    }

    /// Returns which keys a query at `pos` of `n` sees.
    fn seen(&self, pos: usize, n: usize) -> Range<usize> {
        let end = if self.geometry.is_causal { pos + 1 } else { n };
        self.geometry.window.map_or(0, |window| (pos + 1).saturating_sub(window))..end
    }

    /// Returns the probabilities: `[n_kv_heads, group·n, n]`, and the scores they were made of.
    fn probabilities(&self, heads: &Heads) -> Result<(Vec<f32>, Vec<f32>)> {
        let (n, g) = (heads.n, &self.geometry);
        let scores = super::to_vec(&heads.q.matmul(&heads.k.t()?)?)?;
        let (mut p, table) = (scores.clone(), softmax::pick(Isa::best()));
        each_query(&mut p, n, |pos, row| {
            let seen = self.seen(pos, n);
            row[..seen.start].fill(0.0);
            row[seen.end..].fill(0.0);
            let row = &mut row[seen];
            row.iter_mut().for_each(|x| *x *= g.scale);
            if let Some(cap) = g.softcap {
                row.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
            }
            table.softmax(row);
        });
        Ok((p, scores))
    }
}

/// Calls `f` with position and row of every query's `[n]` values.
fn each_query(rows: &mut [f32], n: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let n_rows = (PIECE / n).max(1);
    rows.par_chunks_mut(n_rows * n).enumerate().for_each(|(piece, rows)| {
        for (i, row) in rows.chunks_exact_mut(n).enumerate() {
            f((piece * n_rows + i) % n, row);
        }
    });
}

/// Brings rows of `[n, n_heads, dim]` into `[n_heads, n, dim]`.
fn by_head(x: &[f32], rows: &Range<usize>, n_heads: usize, dim: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len() * n_heads * dim);
    for head in 0..n_heads {
        rows.clone().for_each(|row| out.extend_from_slice(&x[(row * n_heads + head) * dim..][..dim]));
    }
    out
}

/// Writes `[n_heads, n, dim]` to the rows it came from.
fn by_row(x: &Tensor, out: &mut [f32], rows: &Range<usize>, n_heads: usize, dim: usize) -> Result<()> {
    with_values(x, |x| {
        for (head, x) in x.chunks_exact(rows.len() * dim).enumerate() {
            for (row, x) in rows.clone().zip(x.chunks_exact(dim)) {
                out[(row * n_heads + head) * dim..][..dim].copy_from_slice(x);
            }
        }
    })
}

impl CustomOp3 for Attend {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        q_layout: &Layout,
        k: &CpuStorage,
        k_layout: &Layout,
        v: &CpuStorage,
        v_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (q, k, v) = (values(q, q_layout)?, values(k, k_layout)?, values(v, v_layout)?);
        let g = &self.geometry;
        let (n, width) = (q_layout.shape().dims2()?.0, g.n_heads * g.v_dim);
        let mut out = vec![0.0; n * width];
        for rows in self.sequences() {
            let heads = self.heads(&rows, q, k, v)?;
            let p = tensor(self.probabilities(&heads)?.0, (g.n_kv_heads, g.n_heads / g.n_kv_heads * heads.n, heads.n))?;
            by_row(&p.matmul(&heads.v)?, &mut out, &rows, g.n_heads, g.v_dim)?;
        }
        Ok((CpuStorage::F32(out), (n, width).into()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let g = &self.geometry;
        let [q_values, k_values, v_values, grads] = [q, k, v, grad].map(super::to_vec);
        let (q_values, k_values, v_values, grads) = (q_values?, k_values?, v_values?, grads?);
        let [mut dq, mut dk, mut dv] = [&q_values, &k_values, &v_values].map(|x| vec![0.0; x.len()]);
        for rows in self.sequences() {
            let heads = self.heads(&rows, &q_values, &k_values, &v_values)?;
            let n = heads.n;
            let shape = (g.n_kv_heads, g.n_heads / g.n_kv_heads * n, n);
            let d_out = tensor(by_head(&grads, &rows, g.n_heads, g.v_dim), (shape.0, shape.1, g.v_dim))?;
            let (p, scores) = self.probabilities(&heads)?;
            // With P the probabilities: ∂/∂v = Pᵀ·g, ∂/∂P = g·vᵀ, ∂/∂scores = P·(∂/∂P - Σ P·∂/∂P).
            let mut ds = super::to_vec(&d_out.matmul(&heads.v.t()?)?)?;
            let rows_of_p = ds.par_chunks_mut(n).zip(p.par_chunks(n)).zip(scores.par_chunks(n));
            rows_of_p.for_each(|((d, p), scores)| {
                let sum: f32 = d.iter().zip(p).map(|(d, p)| d * p).sum();
                d.iter_mut().zip(p).for_each(|(d, p)| *d = g.scale * p * (*d - sum));
                if let Some(cap) = g.softcap {
                    let slope = |s: f32| 1.0 - (s * g.scale / cap).tanh().powi(2);
                    d.iter_mut().zip(scores).for_each(|(d, &s)| *d *= slope(s));
                }
            });
            let (p, ds) = (tensor(p, shape)?, tensor(ds, shape)?);
            by_row(&p.t()?.matmul(&d_out)?, &mut dv, &rows, g.n_kv_heads, g.v_dim)?;
            by_row(&ds.matmul(&heads.k)?, &mut dq, &rows, g.n_heads, g.k_dim)?;
            by_row(&ds.t()?.matmul(&heads.q)?, &mut dk, &rows, g.n_kv_heads, g.k_dim)?;
        }
        let [dq, dk, dv] = [(dq, q), (dk, k), (dv, v)].map(|(d, x)| tensor(d, x.shape()));
        Ok((Some(dq?), Some(dk?), Some(dv?)))
    }
}
