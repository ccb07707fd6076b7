//! Fuzzes [`ruvllm_fuzz::grammar`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::grammar(bytes));
