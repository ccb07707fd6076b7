//! The GPU: adapters and the choice of one, buffers within a budget, weights split to fit bindings, pipelines made once, and
//! passes that run as one command buffer with bind groups made at load.
//!
//! ```no_run
//! use ruvllm_gpu::{Gpu, GpuChoice, GpuOptions, PassInput, Step};
//! use ruvllm_shaders::{Extent, Kernel, SoftmaxParams};
//!
//! let gpu = Gpu::open(&GpuOptions { choice: GpuChoice::parse("0"), ..GpuOptions::default() })?;
//! let (x, y) = (gpu.buffer("x", 4)?, gpu.buffer("y", 4)?);
//! let params = SoftmaxParams { n: 4, scale: 1.0, ..SoftmaxParams::default() }.words();
//! let kernel = Kernel::Softmax { reduction: gpu.reduction() };
//! let plan = gpu.plan(&[Step { kernel, params, buffers: vec![&x, &y], n: 1, slots: 1, count: 0 }])?;
//! let (pass, read) = (gpu.pass_buffers(1, 1)?, gpu.read_back(&y)?);
//! let words = gpu.run(&plan, &pass, PassInput { counts: [1, 0, 0, 0], rows: &[], tables: &[] }, &[&read])?;
//! assert_eq!(f32::from_bits(words[0][0]), 0.25);
//! # Ok::<(), ruvllm_gpu::GpuError>(())
//! ```
//!
//! In a page it runs over WebGPU: a call that waits for the device suspends the stack of WebAssembly (JavaScript Promise Integration),
//! so it has to come from an export that returns a promise.
//!
//! It knows no model and no tokens; kernels come from `ruvllm-shaders`. It reads no environment variable: the caller
//! hands the value of `RUVLLM_GPU` to [`GpuChoice::parse`].

#![forbid(unsafe_code)]

mod adapter;
mod error;
mod gpu;
mod pass;
mod timing;
mod waiting;
mod weights;

pub use adapter::{GpuChoice, GpuClass, GpuInfo, gpus};
pub use error::{GpuError, GpuErrorKind};
pub use gpu::{Gpu, GpuBuffer, GpuOptions, GpuStats};
pub use pass::{PassBuffers, PassInput, PassPlan, ReadBack, ReadPart, Step, WordCopy};
pub use timing::StepTime;
pub use weights::{WeightMatrix, WeightPart, WeightSource};
