//! How the row of a kernel is picked for the machine.

use std::fmt;

pub use ruvllm_cpu::isa::{Isa, UnknownIsa};

/// Kernels of one instruction set: a row of a family's dispatch table. `Ops` holds their function pointers.
///
/// A value exists only in the static tables, and is reached only where this machine has the instruction set: that is why its
/// methods may call the pointers.
#[derive(Clone, Copy)]
pub struct Dispatch<Ops> {
    isa: Isa,
    name: &'static str,
    /// Whether the row is for this machine, which has its instruction set.
    suits: fn() -> bool,
    pub(crate) ops: Ops,
}

impl<Ops> Dispatch<Ops> {
    /// Returns the instruction set that the kernels are written for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Returns the row's name: the instruction set's, with what it needs beyond.
    pub fn name(&self) -> &'static str {
        self.name
    }

    fn is_available(&self) -> bool {
        self.isa.is_available() && (self.suits)()
    }
}

impl<Ops: Copy> Dispatch<Ops> {
    /// Makes the row of an instruction set.
    pub(crate) const fn new(isa: Isa, ops: Ops) -> Dispatch<Ops> {
        Dispatch { isa, name: isa.name(), suits: || true, ops }
    }

    /// Restricts the row to machines for which `suits` returns true.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) const fn only_if(self, suits: fn() -> bool) -> Dispatch<Ops> {
        Dispatch { suits, ..self }
    }

    /// Names the row for what it needs beyond its instruction set.
    #[cfg(any(all(test, target_arch = "x86_64"), target_arch = "aarch64"))]
    pub(crate) const fn named(self, name: &'static str) -> Dispatch<Ops> {
        Dispatch { name, ..self }
    }
}

impl<Ops> fmt::Debug for Dispatch<Ops> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dispatch({})", self.name)
    }
}

/// Iterates over the rows this machine can run, best first.
pub(crate) fn available<Ops: 'static>(all: &'static [Dispatch<Ops>]) -> impl Iterator<Item = &'static Dispatch<Ops>> {
    all.iter().filter(|row| row.is_available())
}

/// Returns the best row that needs no more than `isa`. Panics if `isa` is not available here.
pub(crate) fn pick<Ops: 'static>(all: &'static [Dispatch<Ops>], isa: Isa) -> &'static Dispatch<Ops> {
    assert!(isa.is_available(), "instruction set {isa} is not available on this machine");
    available(all).find(|row| row.isa <= isa).expect("every table ends with a scalar row")
}

/// Writes a family's dispatch table, best row first and the scalar one last, and the functions that read it. The rows are given, or,
/// where each instruction set has a module with the same functions, the names of those.
macro_rules! table {
    ($ops:ident by isa { $($f:ident),* $(,)? }) => {
        $crate::isa::table! {
            $ops {
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Dispatch::new($crate::Isa::Avx512, $ops { $($f: avx512::$f),* }),
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Dispatch::new($crate::Isa::Avx2, $ops { $($f: avx2::$f),* }),
                #[cfg(target_arch = "aarch64")]
                $crate::isa::Dispatch::new($crate::Isa::Neon, $ops { $($f: neon::$f),* }),
                #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
                $crate::isa::Dispatch::new($crate::Isa::Simd128, $ops { $($f: simd128::$f),* }),
                $crate::isa::Dispatch::new($crate::Isa::Scalar, $ops { $($f: scalar::$f),* }),
            }
        }
    };
    ($ops:ident { $($rows:tt)* }) => {
        static ALL: &[$crate::isa::Dispatch<$ops>] = &[$($rows)*];

        /// Iterates over the rows this machine can run, best first.
        pub fn available() -> impl Iterator<Item = &'static $crate::isa::Dispatch<$ops>> {
            $crate::isa::available(ALL)
        }

        /// Returns the best row that needs no more than `isa`.
        ///
        /// # Panics
        /// If `isa` is not available on this machine.
        pub fn pick(isa: $crate::isa::Isa) -> &'static $crate::isa::Dispatch<$ops> {
            $crate::isa::pick(ALL, isa)
        }
    };
}
pub(crate) use table;
