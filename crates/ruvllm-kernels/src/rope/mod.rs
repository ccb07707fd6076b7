//! Rotary position embedding: the angles of a position, and the rotation of a row of heads by them.
//!
//! ```text
//! angle(pos, i)  = pos · base^(-2i / n_rot) · …scaling            i in 0..n_rot/2
//! rotate         (a, b) -> (a·cos - b·sin, a·sin + b·cos)         for pair i of each head
//! pairs          Norm: (2i, 2i + 1)       Neox: (i, i + n_rot/2)
//! ```
//! Dimensions from `n_rot` on stay as they are (partial rotary). Angles are f64 until their cosine is taken: at
//! position 100,000 an f32 angle would be off by up to 0.004.
//!
//! Source: Su et al. 2021, arXiv:2104.09864; YaRN: Peng et al. 2023, arXiv:2309.00071, with the corrections of
//! llama.cpp (`ggml_rope_ext`).

mod angles;
mod scalar;
mod vector;

#[cfg(test)]
mod tests;

pub use angles::{Rope, RopeConfig, RopeScaling};

use crate::isa::{self, Dispatch};
use crate::lanes;

/// Dimensions of a head that form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours: `2i` and `2i + 1` (llama, mistral as GGUF stores them).
    Norm,
    /// Halves: `i` and `i + n_rot/2` (qwen, gemma, phi and most others).
    Neox,
}

/// Rotates every head of `[n_heads, head_dim]` by `cos`, `sin`: `[n_rot/2]`.
type Rotate = unsafe fn(&mut [f32], usize, &[f32], &[f32]);

/// Rotation kernels of one instruction set.
pub type RopeKernels = Dispatch<RopeOps>;

/// Function pointers of [`RopeKernels`].
#[derive(Clone, Copy, Debug)]
pub struct RopeOps {
    norm: Rotate,
    neox: Rotate,
}

lanes::compile! {
    vector {
        norm(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]);
        neox(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]);
    }
}

isa::table! { RopeOps by isa { norm, neox } }

impl RopeKernels {
    /// Rotates the first `2 * cos.len()` dimensions of every head in place.
    ///
    /// Shapes: `heads`: `[n_heads, head_dim]` (one position); `cos`, `sin`: `[n_rot/2]` from [`Rope::angles`].
    /// A result is off by at most `2ε·(|a·cos| + |b·sin|)`.
    ///
    /// # Panics
    /// If the shapes do not fit.
    pub fn rotate(&self, style: RopeStyle, heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
        assert!(
            head_dim > 0 && heads.len().is_multiple_of(head_dim),
            "rope: {} values are no heads of {head_dim}",
            heads.len()
        );
        assert!(
            cos.len() == sin.len() && 2 * cos.len() <= head_dim,
            "rope: {} cosines, {} sines for heads of {head_dim}",
            cos.len(),
            sin.len()
        );
        let rotate = match style {
            RopeStyle::Norm => self.ops.norm,
            RopeStyle::Neox => self.ops.neox,
        };
        // SAFETY: rows escape only through `available` and `pick`, which asked the CPU first.
        unsafe { rotate(heads, head_dim, cos, sin) }
    }
}
