//! Signed kernel packs: WebAssembly modules with kernels (dequantise, quantise, multiply, attend) that come from somebody else.
//!
//! A pack is a manifest and a module in one file with an Ed25519 signature. It is taken in this order, and refused in one line at the first
//! that fails: a trusted key, an intact file, no revocation, no older epoch; a module without imports whose functions are there, within
//! bounds of memory and time ([`MEMORY_BYTES_MAX`], [`CALL_TIME_MAX`]); the same results as native on random inputs ([`check`]).
//!
//! ```
//! use ruvllm_packs::{PackFolder, PackErrorKind};
//!
//! let folder = tempfile::tempdir()?;
//! let packs = PackFolder::open(folder.path())?;
//! let refused = packs.verify(b"not a pack").expect_err("nobody signed it");
//! assert_eq!(refused.kind(), PackErrorKind::Invalid);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod allow;
mod bench;
mod check;
mod error;
mod folder;
mod manifest;
mod pack;
mod pool;
mod sandbox;
#[cfg(test)]
mod tests;

pub use allow::{InstalledPack, Revocation, TrustedKey};
pub use bench::{Timing, bench};
pub use check::{Finding, check};
pub use error::{PackError, PackErrorKind};
pub use folder::{PackFolder, VerifiedPack, read_pack};
pub use manifest::{Manifest, Op, PACK_BYTES_MAX, PackFile, PackKernel, TypeName};
pub use pack::{Pack, PackMatrix};
pub use pool::PackPool;
pub use ruvllm_pack_kernels::{AttentionInputs, AttentionShape, MatrixShape};
pub use ruvllm_store::signed::{PublicKey, SigningKey};
pub use sandbox::{CALL_TIME_MAX, MEMORY_BYTES_MAX};
