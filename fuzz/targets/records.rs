//! Fuzzes [`ruvllm_fuzz::records`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::records(bytes));
