//! Devices, buffers, weights and passes, on every adapter of the machine.

mod decoder;
mod devices;
mod passes;

use ruvllm_gpu::{Gpu, GpuChoice, GpuOptions, gpus};

/// Opens every adapter, with options that do not choose one.
///
/// # Panics
/// If there is none: these tests fail then, they are not skipped.
fn open_all(options: &GpuOptions) -> Vec<Gpu> {
    let n = gpus().len();
    assert!(n > 0, "no GPU and no software Vulkan: install one, e.g. apt-get install mesa-vulkan-drivers");
    let open = |index| {
        let options = GpuOptions { choice: GpuChoice::Index(index), ..options.clone() };
        Gpu::open(&options).unwrap_or_else(|error| panic!("{error}"))
    };
    (0..n).map(open).collect()
}
