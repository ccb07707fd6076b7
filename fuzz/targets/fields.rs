//! Fuzzes [`ruvllm_fuzz::fields`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::fields(bytes));
