//! Instruction sets: which exist, which this machine grants, and how a kernel's row is picked.

use std::fmt;
use std::str::FromStr;

/// An instruction set a kernel may be written for, in rising order of preference.
///
/// A name stands for all the features its kernels may use, so one check covers a whole file:
///
/// | name | features |
/// |---|---|
/// | `scalar` | none beyond the target's baseline |
/// | `simd128` | WebAssembly's 128-bit SIMD, for which the module is built |
/// | `neon` | aarch64 NEON (always there on aarch64), `fp16` conversions |
/// | `avx2` | AVX2, FMA, F16C, BMI2 (Haswell, Zen and later) |
/// | `avxvnni` | AVX-VNNI (Alder Lake, Zen 5 and later), and all of `avx2` |
/// | `avx512` | AVX-512 F, BW, DQ, VL, VNNI, VBMI (Ice Lake, Zen 4 and later), and all of `avx2` |
/// | `amx` | AMX with int8 tiles (Sapphire Rapids and later), granted by Linux, and all of `avx512` |
///
/// ```
/// use ruvllm_kernels::Isa;
/// assert!(Isa::best().is_available());
/// assert_eq!("avx2".parse::<Isa>(), Ok(Isa::Avx2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain loops; the truth the others are tested against.
    Scalar,
    /// WebAssembly simd128.
    Simd128,
    /// aarch64 NEON.
    Neon,
    /// x86-64 AVX2 + FMA + F16C + BMI2.
    Avx2,
    /// x86-64 AVX-VNNI: dot products of integers in 256 bits, beside all of AVX2.
    AvxVnni,
    /// x86-64 AVX-512 F/BW/DQ/VL/VNNI/VBMI.
    Avx512,
    /// x86-64 AMX: int8 tiles, beside all of AVX-512.
    Amx,
}

impl Isa {
    /// Every instruction set, best first.
    pub const ALL: [Isa; 7] = [Isa::Amx, Isa::Avx512, Isa::AvxVnni, Isa::Avx2, Isa::Neon, Isa::Simd128, Isa::Scalar];

    /// Returns the name used on the command line and in benchmark output.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Simd128 => "simd128",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }

    /// Asks the CPU (and, through it, the operating system) whether all features of this set are granted.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Isa::Simd128 => true,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("bmi2")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("avx512vbmi")
            }
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Isa::Amx => Isa::Avx512.is_available() && amx::is_granted(),
            #[allow(unreachable_patterns, reason = "every set is matched on no single architecture")]
            _ => false,
        }
    }

    /// Iterates over the sets of this machine, best first; ends with [`Isa::Scalar`].
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Returns the best set of this machine.
    pub fn best() -> Isa {
        Isa::available().next().unwrap_or(Isa::Scalar)
    }
}

/// What the standard library does not detect.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx {
    use std::arch::{asm, x86_64::__cpuid_count};
    use std::sync::OnceLock;

    /// Returns whether the CPU has tiles of int8 and the system lets this process use them. The answer never changes,
    /// and asking for it is what makes the system grant it, to all threads.
    pub(super) fn is_granted() -> bool {
        static GRANTED: OnceLock<bool> = OnceLock::new();
        *GRANTED.get_or_init(|| has_tiles() && request_tile_data())
    }

    /// AMX-BF16, AMX-TILE and AMX-INT8 are bits 22, 24 and 25 of edx in leaf 7 (Intel SDM, volume 2, CPUID).
    fn has_tiles() -> bool {
        const BITS: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & BITS == BITS
    }

    /// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)` (Linux, Documentation/arch/x86/xstate.rst). Kernels that
    /// do not know it, or that do not save tiles, refuse.
    fn request_tile_data() -> bool {
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const XFEATURE_XTILEDATA: u64 = 18;
        let result: i64;
        // SAFETY: the call takes two numbers and reads no memory; the kernel leaves all registers but these three.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XFEATURE_XTILEDATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack)
            );
        }
        result == 0
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name is none of [`Isa::ALL`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownIsa(String);

impl fmt::Display for UnknownIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown instruction set '{}'; known are scalar, simd128, neon, avx2, avxvnni, avx512, amx", self.0)
    }
}

impl std::error::Error for UnknownIsa {}

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Isa, UnknownIsa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name).ok_or_else(|| UnknownIsa(name.to_owned()))
    }
}

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
