//! Fuzzes [`ruvllm_fuzz::peft`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ruvllm_fuzz::peft(bytes));
