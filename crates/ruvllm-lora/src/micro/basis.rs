//! The basis that steps of `B` are taken in.
//!
//! ```text
//! G = E[g·gᵀ] = U·Λ·Uᵀ       of gradients g = Wᵀ·(p - y) of the final hidden state
//! turn:       z = Uᵀ·d       a gradient's row in the basis
//! step:       by the rule, value by value, on z
//! turn back:  U·step
//! ```
//! A rule with a rate for each value (RMSprop) supposes that the values' gradients have little to do with each other. Those
//! of a final hidden state do: rows of the head share a few loud directions, which every value has a part in. In the
//! eigenvectors of `G` they are apart: Vyas et al. 2024 (SOAP, arXiv:2409.11321), with a basis that is fitted once and stays.

use bytemuck::cast_slice;
use half::f16;
use ruvllm_kernels::Isa;
use ruvllm_kernels::lowrank::{self, Factor, stride};

use super::N_EMBD_MAX;
use crate::error::{LoraError, invalid};

/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvbasi1";

/// Directions that are upright to each other: `[n_embd, n_embd]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Basis {
    n_embd: usize,
    /// `[n_embd, stride(n_embd)]`, a direction each.
    rows: Vec<f16>,
    isa: Isa,
}

impl Basis {
    /// Makes one of its directions: `[n_embd, n_embd]`, each of length 1, kept in 16 bits.
    ///
    /// # Errors
    /// Their number does not fit the width, or one holds what is no finite number.
    pub fn new(n_embd: usize, directions: &[f64], isa: Isa) -> Result<Basis, LoraError> {
        let fits = n_embd > 0 && n_embd <= N_EMBD_MAX && n_embd.checked_mul(n_embd) == Some(directions.len());
        if !fits || directions.iter().any(|x| !x.is_finite()) {
            let line = format!("{} values are no basis of states of {n_embd}", directions.len());
            return Err(invalid(line));
        }
        let mut rows = vec![f16::ZERO; n_embd * stride(n_embd)];
        for (row, direction) in rows.chunks_exact_mut(stride(n_embd)).zip(directions.chunks_exact(n_embd)) {
            row.iter_mut().zip(direction).for_each(|(to, &x)| *to = f16::from_f64(x));
        }
        Ok(Basis { n_embd, rows, isa })
    }

    /// Returns the width.
    pub fn n_embd(&self) -> usize {
        self.n_embd
    }

    /// Returns rows in the basis: `[n, n_embd]`. Each has the same bits whatever the others are.
    pub(super) fn turn(&self, rows: &[f32]) -> Vec<f32> {
        let mut turned = vec![0.0; rows.len()];
        let kernels = lowrank::pick(self.isa);
        kernels.shrink(Factor::F16(&self.rows), self.n_embd, rows, self.n_embd, &mut turned);
        turned
    }

    /// Adds rows that are in the basis, `[n, n_embd]`, to others that are not.
    pub(super) fn add_back(&self, turned: &[f32], rows: &mut [f32]) {
        let kernels = lowrank::pick(self.isa);
        kernels.expand(Factor::F16(&self.rows), self.n_embd, turned, rows, self.n_embd);
    }

    /// Returns everything as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((self.n_embd as u64).to_le_bytes());
        bytes.extend_from_slice(cast_slice(&self.rows));
        bytes
    }

    /// Reads what [`Basis::snapshot`] gave.
    ///
    /// # Errors
    /// The bytes are no snapshot, are cut off, or hold what is no finite number.
    pub fn restore(bytes: &[u8], isa: Isa) -> Result<Basis, LoraError> {
        let damaged = || invalid(format!("{} bytes are no basis of a MicroLoRA", bytes.len()));
        let rest = bytes.strip_prefix(&MAGIC).ok_or_else(damaged)?;
        let (head, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
        let n_embd = u64::from_le_bytes(*head) as usize;
        if n_embd == 0 || n_embd > N_EMBD_MAX || rest.len() / size_of::<f16>() / n_embd != stride(n_embd) {
            return Err(damaged());
        }
        let rows: Vec<f16> = rest.as_chunks().0.iter().map(|x| f16::from_le_bytes(*x)).collect();
        match rest.len() == n_embd * stride(n_embd) * size_of::<f16>() && rows.iter().all(|x| x.is_finite()) {
            true => Ok(Basis { n_embd, rows, isa }),
            false => Err(damaged()),
        }
    }
}
