//! ruvllm-kvcache.
