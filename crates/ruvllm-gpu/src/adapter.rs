//! Adapters: the GPUs of a machine, and the choice of one.

use std::fmt;

use crate::error::{GpuError, GpuErrorKind};
use crate::waiting;

/// An adapter as people and programs see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Name of the device.
    pub name: String,
    /// API that it is reached by, e.g. `vulkan`.
    pub api: String,
    /// Driver with its version.
    pub driver: String,
    /// Class of the device: it decides which one is taken by default.
    pub class: GpuClass,
    /// Fewest and most lanes of a subgroup; 0 if it has no subgroups.
    pub subgroup_len: (u32, u32),
    /// Whether shaders may compute in f16.
    pub has_f16: bool,
    /// Largest binding in bytes: larger matrices are split.
    pub binding_bytes_max: u64,
    /// Largest buffer in bytes.
    pub buffer_bytes_max: u64,
}

/// Class of a device, the preferred one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuClass {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the memory of the CPU.
    Integrated,
    /// A GPU of a virtual machine, or one that does not tell.
    Other,
    /// The CPU, as a software device.
    Software,
}

impl fmt::Display for GpuInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self.class {
            GpuClass::Discrete => "discrete",
            GpuClass::Integrated => "integrated",
            GpuClass::Other => "other",
            GpuClass::Software => "software",
        };
        let (min, max) = self.subgroup_len;
        let subgroups = if max == 0 { "no subgroups".to_owned() } else { format!("subgroups of {min} to {max}") };
        let f16 = if self.has_f16 { ", f16" } else { "" };
        let mib = self.binding_bytes_max >> 20;
        write!(f, "{} ({}, {class}, {}): {subgroups}{f16}, {mib} MiB a binding", self.name, self.api, self.driver)
    }
}

/// Choice of an adapter: the value of `RUVLLM_GPU`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuChoice {
    /// The first of the most preferred class; no software device.
    #[default]
    Default,
    /// The adapter of this number in [`gpus`].
    Index(usize),
    /// The first whose name contains this, whatever the case; also a software device.
    Name(String),
}

impl GpuChoice {
    /// Reads a choice: nothing, a number, or a part of a name.
    pub fn parse(text: &str) -> GpuChoice {
        match text.trim() {
            "" => GpuChoice::Default,
            text => text.parse().map_or_else(|_| GpuChoice::Name(text.to_lowercase()), GpuChoice::Index),
        }
    }

    /// Returns the index of the chosen adapter.
    pub(crate) fn pick(&self, gpus: &[GpuInfo]) -> Result<usize, GpuError> {
        let list = || match gpus {
            [] => "there is none".to_owned(),
            _ => gpus.iter().enumerate().map(|(i, gpu)| format!("{i}: {}", gpu.name)).collect::<Vec<_>>().join(", "),
        };
        let missing = |what: String| GpuError::new(GpuErrorKind::NoAdapter, what);
        match self {
            GpuChoice::Default => (gpus.iter().enumerate())
                .filter(|(_, gpu)| gpu.class != GpuClass::Software)
                .min_by_key(|(_, gpu)| gpu.class)
                .map(|(index, _)| index)
                .ok_or_else(|| {
                    missing(format!("no GPU ({}); use the native backend, or set RUVLLM_GPU to one of them", list()))
                }),
            GpuChoice::Index(index) if *index < gpus.len() => Ok(*index),
            GpuChoice::Index(index) => Err(missing(format!("no GPU has number {index} ({})", list()))),
            GpuChoice::Name(name) => (gpus.iter().position(|gpu| gpu.name.to_lowercase().contains(name)))
                .ok_or_else(|| missing(format!("no GPU is called '{name}' ({})", list()))),
        }
    }
}

/// Name of an adapter that tells none: browsers keep it back.
const NAMELESS: &str = "a GPU";

/// The adapters of this machine, in an order that stays. A browser shows the one that it chose.
pub fn gpus() -> Vec<GpuInfo> {
    adapters().iter().map(info).collect()
}

pub(crate) fn adapters() -> Vec<wgpu::Adapter> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    waiting::until(instance.enumerate_adapters(wgpu::Backends::all()))
}

pub(crate) fn info(adapter: &wgpu::Adapter) -> GpuInfo {
    let (info, features, limits) = (adapter.get_info(), adapter.features(), adapter.limits());
    let has_subgroups = features.contains(wgpu::Features::SUBGROUP);
    GpuInfo {
        class: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => GpuClass::Discrete,
            wgpu::DeviceType::IntegratedGpu => GpuClass::Integrated,
            wgpu::DeviceType::Cpu => GpuClass::Software,
            wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => GpuClass::Other,
        },
        api: info.backend.to_string(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        name: if info.name.is_empty() { NAMELESS.to_owned() } else { info.name },
        subgroup_len: if has_subgroups { (info.subgroup_min_size, info.subgroup_max_size) } else { (0, 0) },
        has_f16: features.contains(wgpu::Features::SHADER_F16),
        binding_bytes_max: limits.max_storage_buffer_binding_size,
        buffer_bytes_max: limits.max_buffer_size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(name: &str, class: GpuClass) -> GpuInfo {
        GpuInfo {
            name: name.to_owned(),
            api: "vulkan".to_owned(),
            driver: "driver 1".to_owned(),
            class,
            subgroup_len: (8, 32),
            has_f16: true,
            binding_bytes_max: 128 << 20,
            buffer_bytes_max: 256 << 20,
        }
    }

    #[test]
    fn choices() {
        let gpus = [
            gpu("llvmpipe", GpuClass::Software),
            gpu("Iris Xe", GpuClass::Integrated),
            gpu("RTX 4090", GpuClass::Discrete),
        ];
        for (text, expected) in [("", 2), (" 1 ", 1), ("0", 0), ("rtx", 2), ("LLVMpipe", 0)] {
            assert_eq!(GpuChoice::parse(text).pick(&gpus).expect("there is one"), expected, "{text}");
        }
        for (text, gpus, message) in [
            ("", &gpus[..1], "no GPU (0: llvmpipe); use the native backend, or set RUVLLM_GPU to one of them"),
            ("", &[], "no GPU (there is none); use the native backend, or set RUVLLM_GPU to one of them"),
            ("3", &gpus[..2], "no GPU has number 3 (0: llvmpipe, 1: Iris Xe)"),
            ("arc", &gpus[1..2], "no GPU is called 'arc' (0: Iris Xe)"),
        ] {
            let error = GpuChoice::parse(text).pick(gpus).expect_err("there is none");
            assert_eq!((error.kind(), error.to_string().as_str()), (GpuErrorKind::NoAdapter, message));
        }
    }

    #[test]
    fn one_line_each() {
        let line = "Arc (vulkan, discrete, driver 1): subgroups of 8 to 32, f16, 128 MiB a binding";
        assert_eq!(gpu("Arc", GpuClass::Discrete).to_string(), line);
    }
}
