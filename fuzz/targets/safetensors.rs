//! Fuzzes [`ruvllm_fuzz::safetensors`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::safetensors(bytes));
