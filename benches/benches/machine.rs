//! What can this machine do at best? The figures that the kernels' own are held against.
//!
//! `read` is memory ([`ruvllm_benches::read`]): buffers of the size of a second- and a third-level cache and of neither.
//! `matmul.rs` does the same beside each model, as memory is faster in one minute than in another. `dot` is arithmetic: one thread issues the dot
//! product of signed with unsigned bytes that each row of the matmul table is built on, between registers, in sums
//! that do not wait for each other. It counts multiply-adds of bytes. Activations of 16 bits take two of them for
//! each of a product's own.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::{criterion, read};

fn reads(c: &mut Criterion) {
    let mut group = c.benchmark_group("machine");
    for mib in [1, 16, 256] {
        read::bench(&mut group, &format!("read/{mib}MiB"), mib << 20);
    }
}

/// Times that a pass goes round its loop.
const N_LOOPS: u64 = 10_000;

fn dot(c: &mut Criterion) {
    let mut group = c.benchmark_group("machine");
    for peak in peak::ALL.iter().filter(|peak| (peak.supported)()) {
        group.throughput(Throughput::Elements(N_LOOPS * peak.n_madds));
        // SAFETY: the CPU has what the row asks for.
        group.bench_function(format!("dot/{}", peak.name), |b| b.iter(|| unsafe { (peak.run)(N_LOOPS) }));
    }
}

/// Loops of dot products of bytes, in assembly so that nothing is hoisted out of them.
mod peak {
    use std::arch::asm;

    /// A loop, under the name of the row of the matmul table that is built on its instructions.
    pub(super) struct Peak {
        pub(super) name: &'static str,
        pub(super) supported: fn() -> bool,
        /// Multiply-adds of bytes a round.
        pub(super) n_madds: u64,
        /// Runs some rounds (more than none). Safe to call where `supported`.
        pub(super) run: unsafe fn(u64),
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) static ALL: &[Peak] = &[
        Peak { name: "avx512", supported: || is_x86_feature_detected!("avx512vnni"), n_madds: 16 * 64, run: avx512 },
        Peak { name: "avxvnni", supported: || is_x86_feature_detected!("avxvnni"), n_madds: 12 * 32, run: avxvnni },
        Peak { name: "avx2", supported: || is_x86_feature_detected!("avx2"), n_madds: 12 * 32, run: avx2 },
    ];
    #[cfg(target_arch = "aarch64")]
    pub(super) static ALL: &[Peak] = &[Peak {
        name: "neon+dotprod",
        supported: || std::arch::is_aarch64_feature_detected!("dotprod"),
        n_madds: 16 * 16,
        run: neon_dotprod,
    }];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub(super) static ALL: &[Peak] = &[];

    /// A loop of `$body` for each register `r` of `$sums`.
    macro_rules! rounds {
        ($n:ident, [$($sum:tt),*], [$($other:tt),*], $list:literal, $($body:literal),+; $next:literal, $jump:literal) => {
            // SAFETY: only registers are touched, and all of them are named.
            unsafe {
                asm!(
                    "2:", concat!(".irp r, ", $list), $($body,)+ ".endr", $next, $jump,
                    n = inout(reg) $n => _,
                    $(out($sum) _,)* $(out($other) _,)*
                    options(nomem, nostack),
                );
            }
        };
    }

    /// `vpdpbusd` of 64 bytes.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn avx512(n: u64) {
        rounds!(n,
            ["zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12",
             "zmm13", "zmm14", "zmm15"], ["zmm16", "zmm17"],
            "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
            "vpdpbusd zmm\\r, zmm16, zmm17"; "dec {n}", "jnz 2b");
    }

    /// `vpdpbusd` of 32 bytes.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,avxvnni")]
    fn avxvnni(n: u64) {
        rounds!(n,
            ["ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11"],
            ["ymm14", "ymm15"], "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11",
            "{{vex}} vpdpbusd ymm\\r, ymm14, ymm15"; "dec {n}", "jnz 2b");
    }

    /// `vpmaddubsw`, `vpmaddwd`, `vpaddd` of 32 bytes.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn avx2(n: u64) {
        rounds!(n,
            ["ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11"],
            ["ymm12", "ymm13", "ymm14", "ymm15"], "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11",
            "vpmaddubsw ymm13, ymm14, ymm15", "vpmaddwd ymm13, ymm13, ymm12", "vpaddd ymm\\r, ymm\\r, ymm13";
            "dec {n}", "jnz 2b");
    }

    /// `sdot` of 16 bytes.
    #[cfg(target_arch = "aarch64")]
    #[target_feature(enable = "neon,dotprod")]
    fn neon_dotprod(n: u64) {
        rounds!(n,
            ["v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23"],
            ["v24", "v25"], "0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23",
            "sdot v\\r\\().4s, v24.16b, v25.16b"; "subs {n}, {n}, #1", "b.ne 2b");
    }
}

criterion_group! { name = benches; config = criterion(); targets = reads, dot }
criterion_main!(benches);
