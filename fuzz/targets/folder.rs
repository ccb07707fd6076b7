//! Fuzzes [`ruvllm_fuzz::folder`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::folder(bytes));
