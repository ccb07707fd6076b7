//! 16 floats at a time, for every instruction set.

pub(crate) use ruvllm_cpu::lanes::*;

/// Compiles functions for every instruction set: `compile! { file { name(argument: Type) -> Type; ... } }` makes modules `avx512`,
/// `avx2`, `neon` and `simd128`, each with a function of each name that needs the instruction set: `file::name::<L>` of its [`Lanes`]. Those of
/// `plain file { ... }` are loops without lanes.
macro_rules! compile {
    (@for $lanes:path, $features:literal,
     $file:ident { $($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)+ }
     $(plain $loops:ident { $($plain:ident($($value:ident: $of:ty),*) $(-> $to:ty)?;)+ })?) => {
        $(
            #[target_feature(enable = $features)]
            pub(super) fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: the features are enabled here.
                unsafe { $file::$name::<$lanes>($($argument),*) }
            }
        )+
        $($(
            #[target_feature(enable = $features)]
            pub(super) fn $plain($($value: $of),*) $(-> $to)? {
                $loops::$plain($($value),*)
            }
        )+)?
    };
    ($($files:tt)+) => {
        #[cfg(target_arch = "x86_64")]
        mod avx512 {
            use super::*;
            $crate::lanes::compile!(
                @for $crate::lanes::avx512::Zmm, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", $($files)+
            );
        }
        #[cfg(target_arch = "x86_64")]
        mod avx2 {
            use super::*;
            $crate::lanes::compile!(@for $crate::lanes::avx2::Ymm, "avx2,fma,f16c,bmi2", $($files)+);
        }
        #[cfg(target_arch = "aarch64")]
        mod neon {
            use super::*;
            $crate::lanes::compile!(@for $crate::lanes::neon::NeonQuads, "neon", $($files)+);
        }
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        mod simd128 {
            use super::*;
            $crate::lanes::compile!(@for $crate::lanes::simd128::WasmQuads, "simd128", $($files)+);
        }
    };
}
pub(crate) use compile;
