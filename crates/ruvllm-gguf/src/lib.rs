//! ruvllm-gguf.
