//! Instruction sets: which exist, and which this machine grants.

use std::fmt;
use std::str::FromStr;

/// An instruction set a kernel may be written for, from few features to many; [`Isa::best`] is the preferred one.
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
/// use ruvllm_cpu::Isa;
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

    /// Returns the set of this machine whose kernels are the fastest. That is the best one but AMX, whose products take longer than
    /// those of AVX-512 (`docs/lab/matmul.md`): it is for those who ask for it.
    pub fn best() -> Isa {
        Isa::available().find(|isa| *isa != Isa::Amx).unwrap_or(Isa::Scalar)
    }
}

/// Detection of AMX, which the standard library has not.
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
