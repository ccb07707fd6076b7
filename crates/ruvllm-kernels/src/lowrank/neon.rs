//! NEON: a group of 16 floats is four of 32 registers.

use super::{ExpandArgs, ShrinkArgs, tiles};
use crate::lanes::neon::NeonQuads;

/// # Safety
/// The CPU has the features, and `args` were checked.
#[target_feature(enable = "neon")]
pub(super) unsafe fn shrink(args: &mut ShrinkArgs<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's promise.
    unsafe { tiles::shrink::<NeonQuads, 2, 2>(args) }
}

/// # Safety
/// The CPU has the features, and `args` were checked.
#[target_feature(enable = "neon")]
pub(super) unsafe fn expand(args: &mut ExpandArgs<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's promise.
    unsafe { tiles::expand::<NeonQuads, 2, 2, 4>(args) }
}
