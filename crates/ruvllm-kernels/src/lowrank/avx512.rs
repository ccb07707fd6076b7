//! AVX-512: 16 sums in 32 registers.

use super::{ExpandArgs, ShrinkArgs, tiles};
use crate::lanes::avx512::Zmm;

/// # Safety
/// The CPU has the features, and `args` were checked.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn shrink(args: &mut ShrinkArgs<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's promise.
    unsafe { tiles::shrink::<Zmm, 4, 4>(args) }
}

/// # Safety
/// The CPU has the features, and `args` were checked.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn expand(args: &mut ExpandArgs<'_>) {
    // SAFETY: the features are enabled here; the rest is the caller's promise.
    unsafe { tiles::expand::<Zmm, 4, 4, 8>(args) }
}
