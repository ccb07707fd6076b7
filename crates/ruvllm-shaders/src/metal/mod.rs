//! The kernels in Metal's language, for a host that links Metal itself: translations of the WGSL by naga.
//!
//! They were never compiled by Apple's compiler here. Each is a library of its own.

mod table;

pub use table::METAL_KERNELS;

/// A kernel in Metal's language.
#[derive(Clone, Copy, Debug)]
pub struct MetalKernel {
    /// Name of the kernel: [`Kernel::name`](crate::Kernel::name).
    pub name: &'static str,
    /// Name of its entry point.
    pub entry: &'static str,
    /// Number of threads of a threadgroup.
    pub threadgroup_len: u32,
    /// Buffers that it uses, with their indices.
    pub buffers: &'static [(&'static str, u32)],
    /// Bytes of its threadgroup memory, by index: `setThreadgroupMemoryLength`.
    pub threadgroup_bytes: &'static [u32],
    /// The text.
    pub source: &'static str,
}

impl MetalKernel {
    /// The Metal kernel of this name, or `None` if there is none: no kernel that adds up in shared memory has one.
    pub fn named(name: &str) -> Option<&'static MetalKernel> {
        METAL_KERNELS.iter().find(|kernel| kernel.name == name)
    }
}
