//! The native backend keeps the contract, with the same bits however it is asked.

use ruvllm_backend::conformance::{Case, Tolerances, check};
use ruvllm_kernels::Isa;
use ruvllm_kvcache::KvPolicy;
use ruvllm_testkit::{Golden, GoldenKind};

use super::NativeBackend;
use crate::load::LoadOptions;

/// Every golden model that writes text, on every instruction set of this machine.
#[test]
fn every_architecture_keeps_the_contract() {
    let tolerances = Tolerances::default();
    let mut n = 0;
    for golden in Golden::all().into_iter().filter(|golden| golden.kind == GoldenKind::Logits) {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let options = LoadOptions { isa, n_threads: 2, n_seq_max: 4, ..LoadOptions::default() };
            let mut model = NativeBackend::load(&golden.model("f32"), &options, &mut |_| {}).expect("it loads");
            let tokens: Vec<u32> = (0..40).map(|i| (i * 7 + 3) % 61).collect();
            check(&mut model, &Case { tokens: &tokens, tolerances });
            n += 1;
        }
    }
    assert!(n > 20, "{n} models");
}

/// Other ways to keep the KV cache, where going back or forking is refused or not.
#[test]
fn every_kv_policy_keeps_the_contract() {
    for kv in [KvPolicy::F32, KvPolicy::F16, KvPolicy::Auto] {
        let options = LoadOptions { kv, n_seq_max: 4, ..LoadOptions::default() };
        let path = Golden::load("llama-a").model("f32");
        let mut model = NativeBackend::load(&path, &options, &mut |_| {}).expect("it loads");
        let tokens: Vec<u32> = (0..40).collect();
        check(&mut model, &Case { tokens: &tokens, tolerances: Tolerances::default() });
    }
}
