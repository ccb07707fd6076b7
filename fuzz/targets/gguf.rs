//! Fuzzes [`ruvllm_fuzz::gguf`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::gguf(bytes));
