//! simd128: a group of 16 floats is four registers of 16.

use super::{ExpandArgs, ShrinkArgs, tiles};
use crate::lanes::simd128::WasmQuads;

/// # Safety
/// `args` were checked.
#[target_feature(enable = "simd128")]
pub(super) unsafe fn shrink(args: &mut ShrinkArgs<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's promise.
    unsafe { tiles::shrink::<WasmQuads, 1, 2>(args) }
}

/// # Safety
/// `args` were checked.
#[target_feature(enable = "simd128")]
pub(super) unsafe fn expand(args: &mut ExpandArgs<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's promise.
    unsafe { tiles::expand::<WasmQuads, 1, 1, 2>(args) }
}
