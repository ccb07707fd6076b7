//! Fuzzes [`ruvllm_fuzz::imatrix`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::imatrix(bytes));
