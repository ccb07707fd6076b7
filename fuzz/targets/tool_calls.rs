//! Fuzzes [`ruvllm_fuzz::tool_calls`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::tool_calls(bytes));
