//! Qwen 3: Qwen 2 with query and key norms; its experts' weights are normalised.

use super::qwen2;
use crate::builder::Builder;
use crate::{ModelError, ModelSpec};

pub(super) fn build(b: Builder<'_>) -> Result<ModelSpec, ModelError> {
    qwen2::build_with(b, true)
}
