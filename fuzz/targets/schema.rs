//! Fuzzes [`ruvllm_fuzz::schema`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::schema(bytes));
