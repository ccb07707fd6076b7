//! The kernels of `ruvllm-shaders` on Metal itself: a device, buffers, and passes as one command buffer. It links no wgpu.
//!
//! No Mac has run it: its types are checked for `aarch64-apple-darwin`, and the `.metal` texts were never compiled by
//! Apple's compiler here.
//!
#![cfg_attr(target_os = "macos", doc = "```no_run")]
#![cfg_attr(not(target_os = "macos"), doc = "```text")]
//! use ruvllm_metal::{MetalDevice, MetalStep};
//! use ruvllm_shaders::MetalKernel;
//!
//! # fn main() -> Result<(), ruvllm_metal::MetalError> {
//! let device = MetalDevice::open()?;
//! let rows = device.buffer_of(&[0; 4096])?;
//! let (params, counts) = (device.buffer_of(&[0; 64])?, device.buffer_of(&[0; 16])?);
//! let result = device.buffer(4096)?;
//! let kernel = MetalKernel::named("softmax").expect("it is in the table");
//! let buffers = [("params", &params), ("x", &rows), ("y", &result), ("pass_counts", &counts)];
//! device.run(&[MetalStep { kernel, buffers: &buffers, groups: [1, 1, 1] }])?;
//! # Ok(())
//! # }
//! ```
#![cfg(target_os = "macos")]
#![deny(missing_docs)]

mod buffer;
mod device;
mod error;

pub use buffer::MetalBuffer;
pub use device::{MetalDevice, MetalStep};
pub use error::{MetalError, MetalErrorKind};
