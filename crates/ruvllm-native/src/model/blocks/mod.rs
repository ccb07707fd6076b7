//! Building blocks that every architecture is wired from. A block knows its weights and how to run on a batch of
//! rows; which blocks a layer has is the architecture's business.

mod attention;
mod buffers;
mod causal_conv;
mod latent;
mod linear;
mod mamba;
mod mamba2;
mod mlp;
mod moe;
mod norm;
mod residual;
mod scan;
mod short_conv;

pub(crate) use attention::{Attention, AttentionInputs, AttentionShape, HeadNorm, KvAccess, PREFETCH_ROWS, Rows, Tail};
pub(crate) use buffers::{Angles, Buffers, Sizes};
pub(crate) use causal_conv::{CausalConv, Recurrent};
pub(crate) use latent::{Expansion, LatentAttention};
pub(crate) use linear::{Adapted, Linear, Operand};
pub(crate) use mamba::Mamba;
pub(crate) use mamba2::Mamba2;
pub(crate) use mlp::Mlp;
pub(crate) use moe::{Moe, SharedExpert};
pub(crate) use norm::Norm;
pub(crate) use residual::{Branches, Join, Pending, Reader, Residual};
pub(crate) use short_conv::ShortConv;
