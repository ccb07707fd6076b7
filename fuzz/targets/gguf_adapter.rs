//! Fuzzes [`ruvllm_fuzz::gguf_adapter`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::gguf_adapter(bytes));
