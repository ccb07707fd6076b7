//! AVX2: a group of 16 floats is two registers, so tiles are half as large.

use super::{ExpandArgs, ShrinkArgs, tiles};
use crate::lanes::avx2::Ymm;

/// # Safety
/// The CPU has the features, and `args` were checked.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(super) unsafe fn shrink(args: &mut ShrinkArgs<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's promise.
    unsafe { tiles::shrink::<Ymm, 2, 2>(args) }
}

/// # Safety
/// The CPU has the features, and `args` were checked.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(super) unsafe fn expand(args: &mut ExpandArgs<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's promise.
    unsafe { tiles::expand::<Ymm, 2, 2, 4>(args) }
}
