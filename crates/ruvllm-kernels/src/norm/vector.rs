//! The sums of a norm, written once over 16 floats.

use crate::lanes::{self, Lanes};

pub(super) use crate::lanes::sum;

/// `(x - mean)²`
#[derive(Clone, Copy)]
struct Squares {
    mean: f32,
}

impl lanes::Fold for Squares {
    fn nothing(self) -> f32 {
        self.mean
    }

    #[inline(always)]
    unsafe fn add<L: Lanes>(self, sum: L::V, x: L::V) -> L::V {
        // SAFETY: the caller's.
        unsafe {
            let difference = L::sub(x, L::splat(self.mean));
            L::fma(difference, difference, sum)
        }
    }
}

/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub(super) unsafe fn sum_squares<L: Lanes>(x: &[f32], mean: f32) -> f32 {
    // SAFETY: the caller's.
    unsafe { lanes::fold::<L>(Squares { mean }, x) }
}
