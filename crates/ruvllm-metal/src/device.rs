//! The device: kernels compiled once, and passes.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder,
    MTLComputePipelineState, MTLCreateSystemDefaultDevice, MTLDevice, MTLLibrary, MTLResourceOptions, MTLSize,
};
use ruvllm_shaders::METAL_SIZES_INDEX;
use ruvllm_shaders::MetalKernel;

use crate::buffer::MetalBuffer;
use crate::error::{MetalError, MetalErrorKind};

type Pipeline = Retained<ProtocolObject<dyn MTLComputePipelineState>>;
type Encoder = ProtocolObject<dyn MTLComputeCommandEncoder>;

/// Bytes of the buffer that kernels name and never read.
const SIZES_BYTES: usize = 64;

/// The default Metal device, its queue, and the kernels that it has compiled.
#[derive(Debug)]
pub struct MetalDevice {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    pipelines: Mutex<HashMap<&'static str, Pipeline>>,
    sizes: MetalBuffer,
}

/// A kernel, its buffers and its grid.
#[derive(Clone, Copy, Debug)]
pub struct MetalStep<'a> {
    /// The kernel.
    pub kernel: &'static MetalKernel,
    /// Buffers by the names that the kernel gives them ([`MetalKernel::buffers`]), all of them.
    pub buffers: &'a [(&'a str, &'a MetalBuffer)],
    /// Number of threadgroups in each dimension: `Kernel::grid` of ruvllm-shaders.
    pub groups: [u32; 3],
}

impl MetalDevice {
    /// Opens the default device.
    ///
    /// # Errors
    /// [`MetalErrorKind::NoDevice`]; [`MetalErrorKind::OutOfMemory`].
    pub fn open() -> Result<MetalDevice, MetalError> {
        let no_device = || MetalError::new(MetalErrorKind::NoDevice, "this machine has no Metal device");
        let device = MTLCreateSystemDefaultDevice().ok_or_else(no_device)?;
        let queue = device.newCommandQueue().ok_or_else(no_device)?;
        let sizes = new_buffer(&device, SIZES_BYTES)?;
        Ok(MetalDevice { device, queue, pipelines: Mutex::default(), sizes })
    }

    /// The device's name.
    pub fn name(&self) -> String {
        self.device.name().to_string()
    }

    /// Number of bytes that the device recommends to use at most.
    pub fn memory_bytes(&self) -> u64 {
        self.device.recommendedMaxWorkingSetSize()
    }

    /// Makes a buffer of zeros.
    ///
    /// # Errors
    /// [`MetalErrorKind::OutOfMemory`]; [`MetalErrorKind::InvalidInput`] if `n_bytes` is 0.
    pub fn buffer(&self, n_bytes: usize) -> Result<MetalBuffer, MetalError> {
        new_buffer(&self.device, n_bytes)
    }

    /// Makes a buffer of these bytes.
    ///
    /// # Errors
    /// As [`MetalDevice::buffer`].
    pub fn buffer_of(&self, bytes: &[u8]) -> Result<MetalBuffer, MetalError> {
        let mut buffer = self.buffer(bytes.len())?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Runs steps one after the other as one command buffer, and waits for its end. A step sees what those before it wrote.
    ///
    /// # Errors
    /// [`MetalErrorKind::InvalidInput`] if a step lacks a buffer of its kernel; [`MetalErrorKind::Kernel`] if Apple's compiler
    /// refuses one; [`MetalErrorKind::Pass`] if the pass fails.
    pub fn run(&self, steps: &[MetalStep<'_>]) -> Result<(), MetalError> {
        autoreleasepool(|_| {
            let failed = |what: &str| MetalError::new(MetalErrorKind::Pass, format!("Metal makes no {what}"));
            let pipelines = steps.iter().map(|step| self.pipeline(step.kernel)).collect::<Result<Vec<_>, _>>()?;
            steps.iter().try_for_each(check)?;
            let commands = self.queue.commandBuffer().ok_or_else(|| failed("command buffer"))?;
            let encoder = commands.computeCommandEncoder().ok_or_else(|| failed("compute encoder"))?;
            steps.iter().zip(&pipelines).for_each(|(step, pipeline)| self.encode(&encoder, step, pipeline));
            encoder.endEncoding();
            commands.commit();
            commands.waitUntilCompleted();
            match commands.error() {
                Some(error) => Err(MetalError::of(MetalErrorKind::Pass, "a pass failed", &error)),
                None if commands.status() == MTLCommandBufferStatus::Completed => Ok(()),
                None => {
                    Err(MetalError::new(MetalErrorKind::Pass, "a pass did not complete, and Metal gives no reason"))
                }
            }
        })
    }

    /// Encodes a step whose buffers were checked.
    fn encode(&self, encoder: &Encoder, step: &MetalStep<'_>, pipeline: &Pipeline) {
        encoder.setComputePipelineState(pipeline);
        let named = |name: &str| step.buffers.iter().find(|(other, _)| *other == name).map(|(_, buffer)| *buffer);
        let bound = step.kernel.buffers.iter().map(|&(name, index)| (named(name), index as usize));
        for (buffer, index) in bound.chain([(Some(&self.sizes), METAL_SIZES_INDEX)]) {
            // SAFETY: indices are below 31, Metal's bound, by the kernels' table. The command buffer retains the buffers.
            unsafe { encoder.setBuffer_offset_atIndex(buffer.map(MetalBuffer::inner), 0, index) };
        }
        for (index, &n_bytes) in step.kernel.threadgroup_bytes.iter().enumerate() {
            // SAFETY: a kernel has at most a few of them; Metal's bound is 31.
            unsafe { encoder.setThreadgroupMemoryLength_atIndex(n_bytes as usize, index) };
        }
        let [width, height, depth] = step.groups.map(|n| n as usize);
        let threads = MTLSize { width: step.kernel.threadgroup_len as usize, height: 1, depth: 1 };
        encoder.dispatchThreadgroups_threadsPerThreadgroup(MTLSize { width, height, depth }, threads);
    }

    /// Returns a kernel as the device runs it, compiled when it is first asked for.
    fn pipeline(&self, kernel: &'static MetalKernel) -> Result<Pipeline, MetalError> {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = pipelines.get(kernel.name) {
            return Ok(pipeline.clone());
        }
        let pipeline = self.compile(kernel)?;
        pipelines.insert(kernel.name, pipeline.clone());
        Ok(pipeline)
    }

    fn compile(&self, kernel: &MetalKernel) -> Result<Pipeline, MetalError> {
        let what = format!("kernel {} cannot be compiled", kernel.name);
        let refused =
            |error: Retained<objc2_foundation::NSError>| MetalError::of(MetalErrorKind::Kernel, &what, &error);
        let library = self.device.newLibraryWithSource_options_error(&NSString::from_str(kernel.source), None);
        let function = library.map_err(refused)?.newFunctionWithName(&NSString::from_str(kernel.entry));
        let function = function.ok_or_else(|| {
            MetalError::new(MetalErrorKind::Kernel, format!("{what}: it has no function {}", kernel.entry))
        })?;
        let pipeline = self.device.newComputePipelineStateWithFunction_error(&function).map_err(refused)?;
        let n_threads = pipeline.maxTotalThreadsPerThreadgroup();
        if n_threads < kernel.threadgroup_len as usize {
            let line = format!("{what}: it needs {} threads, the device grants {n_threads}", kernel.threadgroup_len);
            return Err(MetalError::new(MetalErrorKind::Kernel, line));
        }
        Ok(pipeline)
    }
}

fn new_buffer(device: &ProtocolObject<dyn MTLDevice>, n_bytes: usize) -> Result<MetalBuffer, MetalError> {
    if n_bytes == 0 {
        return Err(MetalError::new(MetalErrorKind::InvalidInput, "a buffer has 1 byte at least"));
    }
    let longest = device.maxBufferLength();
    let made = (n_bytes <= longest)
        .then(|| device.newBufferWithLength_options(n_bytes, MTLResourceOptions::StorageModeShared));
    made.flatten().map(MetalBuffer::new).ok_or_else(|| {
        let line = format!("the device has no room for a buffer of {n_bytes} bytes (the longest is {longest})");
        MetalError::new(MetalErrorKind::OutOfMemory, line)
    })
}

/// Checks that a step has the buffers of its kernel.
fn check(step: &MetalStep<'_>) -> Result<(), MetalError> {
    let is_there = |name: &str| step.buffers.iter().any(|(other, _)| *other == name);
    match step.kernel.buffers.iter().find(|(name, _)| !is_there(name)) {
        None => Ok(()),
        Some((name, _)) => {
            let line = format!("kernel {} needs a buffer {name}", step.kernel.name);
            Err(MetalError::new(MetalErrorKind::InvalidInput, line))
        }
    }
}
