//! Fuzzes [`ruvllm_fuzz::template`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::template(bytes));
