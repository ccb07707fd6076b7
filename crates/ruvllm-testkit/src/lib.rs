//! ruvllm-testkit.
