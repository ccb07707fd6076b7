//! The GPUs of this machine.

use serde_json::Value;
#[cfg(feature = "gpu")]
use serde_json::json;

/// A GPU as people and as programs see it.
pub struct GpuDescription {
    /// A line about it.
    pub line: String,
    /// An object about it.
    pub json: Value,
}

/// Returns the GPUs of this machine.
#[cfg(feature = "gpu")]
pub fn gpus() -> impl Iterator<Item = GpuDescription> {
    ruvllm_wgpu::gpus().into_iter().map(|gpu| GpuDescription {
        line: gpu.to_string(),
        json: json!({
            "name": gpu.name,
            "api": gpu.api,
            "driver": gpu.driver,
            "class": format!("{:?}", gpu.class).to_lowercase(),
            "subgroup_min": gpu.subgroup_len.0,
            "subgroup_max": gpu.subgroup_len.1,
            "f16": gpu.has_f16,
            "binding_bytes_max": gpu.binding_bytes_max,
            "buffer_bytes_max": gpu.buffer_bytes_max,
        }),
    })
}

/// Returns none: this program was built without a GPU backend.
#[cfg(not(feature = "gpu"))]
pub fn gpus() -> impl Iterator<Item = GpuDescription> {
    std::iter::empty()
}
