//! Qwen 3: Qwen 2 with query and key norms; its experts' weights are normalised.

use super::super::Model;
use super::super::builder::Builder;
use super::qwen2;
use ruvllm_backend::BackendError;

pub(super) fn build(b: Builder<'_>) -> Result<Model, BackendError> {
    qwen2::build_with(b, true)
}
