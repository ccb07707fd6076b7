//! From the final state to the log-probability of a token, without keeping logits: a piece of rows at a time, and where a gradient
//! will be wanted, it is computed at once and kept in the width of the state.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;
use ruvllm_kernels::{Isa, softmax};

use super::{tensor, to_vec, values, with_values};

/// Most logits that are there at once.
const N_LOGITS_MAX: usize = 1 << 23;

/// The frozen head.
#[derive(Debug)]
pub(in crate::train) struct Head {
    /// `[n_embd, n_vocab]`: the matrix on its side, as a view.
    weight_t: Tensor,
    bias: Option<Vec<f32>>,
    scale: f32,
    softcap: Option<f32>,
}

impl Head {
    /// Takes a matrix of `[n_vocab, n_embd]`.
    pub(in crate::train) fn new(
        weight: Vec<f32>,
        n_embd: usize,
        bias: Option<Vec<f32>>,
        scale: f32,
        softcap: Option<f32>,
    ) -> Result<Head> {
        let n_vocab = weight.len() / n_embd;
        Ok(Head { weight_t: tensor(weight, (n_vocab, n_embd))?.t()?, bias, scale, softcap })
    }

    /// Returns the logits of some rows: `[n, n_vocab]`.
    fn piece(&self, x: &[f32], n: usize) -> Result<Vec<f32>> {
        let x = tensor(x.to_vec(), (n, x.len() / n))?;
        let mut logits = to_vec(&x.matmul(&self.weight_t)?)?;
        logits.par_chunks_mut(self.n_vocab()?).for_each(|row| {
            if let Some(bias) = &self.bias {
                row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
            }
            if self.scale != 1.0 {
                row.iter_mut().for_each(|x| *x *= self.scale);
            }
            if let Some(cap) = self.softcap {
                row.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
            }
        });
        Ok(logits)
    }

    fn n_vocab(&self) -> Result<usize> {
        Ok(self.weight_t.dims2()?.1)
    }

    /// Returns the logits of rows `hidden`: `[n, n_embd]`, as `[n, n_vocab]`.
    pub(in crate::train) fn logits(&self, hidden: &Tensor) -> Result<Vec<f32>> {
        let n = hidden.dims2()?.0;
        with_values(hidden, |x| self.piece(x, n))?
    }
}

/// The log-probability of a token for each row `[n, n_embd]`, as `[n]`.
pub(in crate::train) struct LogProbs {
    pub head: Arc<Head>,
    /// `[n]`
    pub tokens: Vec<u32>,
    /// Of each row with respect to its state, `[n, n_embd]`, once it was computed; none if nobody will ask.
    slopes: Option<Mutex<Vec<f32>>>,
}

impl LogProbs {
    /// Prepares for rows whose next tokens are `tokens`.
    pub(in crate::train) fn new(head: &Arc<Head>, tokens: Vec<u32>, with_gradient: bool) -> LogProbs {
        LogProbs { head: Arc::clone(head), tokens, slopes: with_gradient.then(Mutex::default) }
    }

    /// Makes of logits `[n, n_vocab]` the derivatives of each row's log-probability, in place, and returns those.
    fn turn(&self, logits: &mut [f32], n_vocab: usize, tokens: &[u32]) -> Vec<f32> {
        let table = softmax::pick(Isa::best());
        let head = &*self.head;
        let rows = logits.par_chunks_mut(n_vocab).zip(tokens);
        rows.map(|(row, &token)| {
            let sum = table.log_sum_exp(row);
            let found = (f64::from(row[token as usize]) - sum) as f32;
            if self.slopes.is_some() {
                // By the softmax p - y, then back through the soft-cap and the scale.
                let back = |x: f32| head.softcap.map_or(1.0, |cap| 1.0 - (x / cap).powi(2)) * head.scale;
                let at_token = back(row[token as usize]);
                match head.softcap {
                    None => {
                        row.iter_mut().for_each(|x| *x -= sum as f32);
                        table.exp(row);
                        row.iter_mut().for_each(|x| *x *= -head.scale);
                    }
                    Some(_) => row.iter_mut().for_each(|x| *x = -(*x - sum as f32).exp() * back(*x)),
                }
                row[token as usize] += at_token;
            }
            found
        })
        .collect()
    }
}

impl CustomOp1 for LogProbs {
    fn name(&self) -> &'static str {
        "log-probabilities"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, (n, n_embd)) = (values(x, layout)?, layout.shape().dims2()?);
        let n_vocab = self.head.n_vocab()?;
        if let Some(token) = self.tokens.iter().find(|&&token| token as usize >= n_vocab) {
            bail!("token {token} of a vocabulary of {n_vocab}");
        }
        let n_rows = (N_LOGITS_MAX / n_vocab).max(1);
        let (mut found, mut slopes) = (Vec::with_capacity(n), Vec::new());
        for (x, tokens) in x.chunks(n_rows * n_embd).zip(self.tokens.chunks(n_rows)) {
            let mut logits = self.head.piece(x, tokens.len())?;
            found.extend(self.turn(&mut logits, n_vocab, tokens));
            if self.slopes.is_some() {
                let by_logit = tensor(logits, (tokens.len(), n_vocab))?;
                slopes.extend(to_vec(&by_logit.matmul(&self.head.weight_t.t()?)?)?);
            }
        }
        if let Some(place) = &self.slopes {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = slopes;
        }
        Ok((CpuStorage::F32(found), n.into()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let Some(slopes) = &self.slopes else { bail!("these log-probabilities were computed without a gradient") };
        let mut dx = std::mem::take(&mut *slopes.lock().unwrap_or_else(PoisonError::into_inner));
        let n_embd = x.dims2()?.1;
        with_values(grad, |grad| {
            let rows = dx.chunks_exact_mut(n_embd).zip(grad);
            rows.for_each(|(row, g)| row.iter_mut().for_each(|x| *x *= g));
        })?;
        tensor(dx, x.shape()).map(Some)
    }
}
