//! A device: buffers within a budget, pipelines made once, failures as errors.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ruvllm_shaders::{Access, Binding, Kernel, PASS_BINDINGS, Reduction};

use crate::adapter::{self, GpuChoice, GpuInfo};
use crate::error::{GpuError, GpuErrorKind};
use crate::waiting;

/// Settings of a device.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Adapter to open.
    pub choice: GpuChoice,
    /// Most bytes of all buffers; what the device has, if it is not set.
    pub memory_bytes_max: Option<u64>,
    /// Largest binding, if it is to be smaller than the device's.
    pub binding_bytes_max: Option<u64>,
}

/// An open device.
pub struct Gpu {
    info: GpuInfo,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) pass_layout: wgpu::BindGroupLayout,
    pipelines: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
    /// First failure that no call could return, or the loss of the device.
    failure: Arc<OnceLock<GpuError>>,
    memory_bytes_max: u64,
    allocated: Arc<AtomicU64>,
    pub(crate) counters: Counters,
}

/// A kernel that is ready to run.
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// Counts of what was made and done.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) n_buffers: AtomicU64,
    pub(crate) n_bind_groups: AtomicU64,
    pub(crate) n_pipelines: AtomicU64,
    pub(crate) n_command_buffers: AtomicU64,
    pub(crate) n_dispatches: AtomicU64,
    pub(crate) n_bytes_read: AtomicU64,
}

/// Counts since a device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuStats {
    /// Buffers that were made.
    pub n_buffers: u64,
    /// Bind groups that were made.
    pub n_bind_groups: u64,
    /// Pipelines that were made.
    pub n_pipelines: u64,
    /// Command buffers that were submitted.
    pub n_command_buffers: u64,
    /// Dispatches in them.
    pub n_dispatches: u64,
    /// Bytes that the host read back.
    pub n_bytes_read: u64,
    /// Bytes of the buffers that are there.
    pub allocated_bytes: u64,
}

/// A buffer on a device, counted in words of four bytes.
pub struct GpuBuffer {
    pub(crate) buffer: wgpu::Buffer,
    n_words: usize,
    allocated: Arc<AtomicU64>,
}

impl GpuBuffer {
    /// Number of words.
    pub fn n_words(&self) -> usize {
        self.n_words
    }
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        self.allocated.fetch_sub(self.buffer.size(), Relaxed);
    }
}

impl Gpu {
    /// Opens a device.
    ///
    /// # Errors
    /// No adapter is as `options` ask for, or it grants less than the kernels need.
    pub fn open(options: &GpuOptions) -> Result<Gpu, GpuError> {
        let adapters = adapter::adapters();
        let infos: Vec<GpuInfo> = adapters.iter().map(adapter::info).collect();
        let index = options.choice.pick(&infos)?;
        let (adapter, mut info) = (&adapters[index], infos[index].clone());
        info.binding_bytes_max = info.binding_bytes_max.min(options.binding_bytes_max.unwrap_or(u64::MAX));
        let granted = adapter.limits();
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("ruvllm"),
            required_features: adapter.features()
                & (wgpu::Features::SUBGROUP | wgpu::Features::SHADER_F16 | wgpu::Features::TIMESTAMP_QUERY),
            required_limits: wgpu::Limits {
                max_storage_buffer_binding_size: granted.max_storage_buffer_binding_size,
                max_buffer_size: granted.max_buffer_size,
                ..wgpu::Limits::default()
            },
            ..wgpu::DeviceDescriptor::default()
        };
        let unsupported =
            |error| GpuError::new(GpuErrorKind::Unsupported, format!("{} cannot be used: {error}", info.name));
        let (device, queue) = waiting::until(adapter.request_device(&descriptor)).map_err(unsupported)?;
        let failure = Arc::new(OnceLock::new());
        watch(&device, &failure);
        Ok(Gpu {
            pass_layout: layout(&device, &PASS_BINDINGS),
            info,
            device,
            queue,
            pipelines: Mutex::default(),
            failure,
            memory_bytes_max: options.memory_bytes_max.unwrap_or(u64::MAX),
            allocated: Arc::default(),
            counters: Counters::default(),
        })
    }

    /// The adapter of the device, with the largest binding as the options have it.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// Way in which kernels on this device should add up.
    pub fn reduction(&self) -> Reduction {
        if self.info.subgroup_len.1 > 0 { Reduction::Subgroup } else { Reduction::Shared }
    }

    /// Counts of what was made and done.
    pub fn stats(&self) -> GpuStats {
        let Counters { n_buffers, n_bind_groups, n_pipelines, n_command_buffers, n_dispatches, n_bytes_read } =
            &self.counters;
        GpuStats {
            n_buffers: n_buffers.load(Relaxed),
            n_bind_groups: n_bind_groups.load(Relaxed),
            n_pipelines: n_pipelines.load(Relaxed),
            n_command_buffers: n_command_buffers.load(Relaxed),
            n_dispatches: n_dispatches.load(Relaxed),
            n_bytes_read: n_bytes_read.load(Relaxed),
            allocated_bytes: self.allocated.load(Relaxed),
        }
    }

    /// Makes a buffer of so many words, at least four, that kernels read and write. It holds zeros.
    ///
    /// # Errors
    /// It is larger than a binding, the memory is used up, or the device is lost.
    pub fn buffer(&self, name: &str, n_words: usize) -> Result<GpuBuffer, GpuError> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        let n_bytes = 4 * n_words as u64;
        if n_bytes > self.info.binding_bytes_max {
            let max = self.info.binding_bytes_max;
            let message = format!("{name} has {n_bytes} bytes, a binding of {} at most {max}", self.info.name);
            return Err(GpuError::new(GpuErrorKind::Unsupported, message));
        }
        self.make_buffer(name, n_words, usage)
    }

    /// Makes a buffer for any use.
    pub(crate) fn make_buffer(
        &self,
        name: &str,
        n_words: usize,
        usage: wgpu::BufferUsages,
    ) -> Result<GpuBuffer, GpuError> {
        self.check()?;
        let n_words = n_words.max(4);
        let size = 4 * n_words as u64;
        let used = self.allocated.fetch_add(size, Relaxed);
        // From here on the buffer's drop takes the bytes back; before it is there, `give_back` does.
        let give_back = || self.allocated.fetch_sub(size, Relaxed);
        let no_memory = |limit: &str| {
            let message =
                format!("no memory for {name} ({size} bytes) on {}: {used} bytes are used{limit}", self.info.name);
            GpuError::new(GpuErrorKind::OutOfMemory, message)
        };
        if used.saturating_add(size) > self.memory_bytes_max {
            give_back();
            return Err(no_memory(&format!(" of {}", self.memory_bytes_max)));
        }
        let scopes = [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation]
            .map(|filter| self.device.push_error_scope(filter));
        let descriptor = wgpu::BufferDescriptor { label: Some(name), size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        let [memory, validation] = scopes;
        let (invalid, full) = (waiting::until(validation.pop()), waiting::until(memory.pop()));
        if full.is_some() {
            give_back();
            return Err(no_memory(""));
        }
        if let Some(error) = invalid {
            give_back();
            return Err(GpuError::new(GpuErrorKind::Unsupported, format!("{name} of {size} bytes: {error}")));
        }
        self.counters.n_buffers.fetch_add(1, Relaxed);
        Ok(GpuBuffer { buffer, n_words, allocated: self.allocated.clone() })
    }

    /// Writes words into a buffer, before anything that is submitted later.
    ///
    /// # Errors
    /// They reach past its end, or the device is lost.
    pub fn write(&self, buffer: &GpuBuffer, offset: usize, words: &[u32]) -> Result<(), GpuError> {
        self.check()?;
        if offset.checked_add(words.len()).is_none_or(|end| end > buffer.n_words) {
            let (n, end) = (words.len(), buffer.n_words);
            let message = format!("{n} words at word {offset} do not fit into a buffer of {end} words");
            return Err(GpuError::new(GpuErrorKind::InvalidInput, message));
        }
        self.queue.write_buffer(&buffer.buffer, 4 * offset as u64, bytemuck::cast_slice(words));
        Ok(())
    }

    /// Waits until everything that was submitted is done.
    ///
    /// # Errors
    /// The device is lost.
    pub fn wait(&self) -> Result<(), GpuError> {
        let waited = waiting::for_device(&self.device, &self.queue);
        self.check()?;
        waited.map_err(|error| GpuError::new(GpuErrorKind::DeviceLost, format!("{}: {error}", self.info.name)))
    }

    /// Gives the device up: its memory is free at once, and every later call fails as on a lost device.
    pub fn destroy(&self) {
        self.device.destroy();
        let _ = self.failure.set(lost("it was given up"));
    }

    /// Returns what went wrong before and could not be returned then.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Returns the kernel's pipeline, made at its first use.
    pub(crate) fn pipeline(&self, kernel: Kernel) -> Result<Arc<Pipeline>, GpuError> {
        self.check()?;
        let (needs, info) = (kernel.needs(), &self.info);
        if needs.subgroups && info.subgroup_len.1 == 0 || needs.f16 && !info.has_f16 {
            let message = format!("{} lacks what {} needs: {needs:?}", info.name, kernel.name());
            return Err(GpuError::new(GpuErrorKind::Unsupported, message));
        }
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = pipelines.get(&kernel) {
            return Ok(pipeline.clone());
        }
        let pipeline = Arc::new(self.make_pipeline(&kernel.name(), kernel.source(), &kernel.bindings())?);
        self.counters.n_pipelines.fetch_add(1, Relaxed);
        Ok(pipelines.entry(kernel).or_insert(pipeline).clone())
    }

    fn make_pipeline(&self, name: &str, source: String, bindings: &[Binding]) -> Result<Pipeline, GpuError> {
        let scopes = [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::Validation]
            .map(|filter| self.device.push_error_scope(filter));
        let source = wgpu::ShaderSource::Wgsl(source.into());
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: Some(name), source });
        let own = layout(&self.device, bindings);
        let layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            bind_group_layouts: &[Some(&own), Some(&self.pass_layout)],
            ..wgpu::PipelineLayoutDescriptor::default()
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let [internal, validation] = scopes;
        // The inner scope ends first.
        let invalid = waiting::until(validation.pop());
        match invalid.or(waiting::until(internal.pop())) {
            None => Ok(Pipeline { pipeline, layout: own }),
            Some(error) => {
                let text = error.to_string();
                let why: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(4).collect();
                let message = format!(
                    "{} does not compile the kernel {name}: {}; use the native backend, and report it",
                    self.info.name,
                    why.join(" ")
                );
                Err(GpuError::new(GpuErrorKind::Unsupported, message))
            }
        }
    }
}

/// Keeps the loss of a device, and errors outside of any scope, in `failure`.
fn watch(device: &wgpu::Device, failure: &Arc<OnceLock<GpuError>>) {
    let kept = failure.clone();
    device.set_device_lost_callback(move |_, message| {
        let _ = kept.set(lost(&message));
    });
    let kept = failure.clone();
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        let kind = match error {
            wgpu::Error::OutOfMemory { .. } => GpuErrorKind::OutOfMemory,
            wgpu::Error::Validation { .. } => GpuErrorKind::InvalidInput,
            wgpu::Error::Internal { .. } => GpuErrorKind::Unsupported,
        };
        let _ = kept.set(GpuError::new(kind, format!("the GPU refused a command: {error}")));
    }));
}

fn lost(why: &str) -> GpuError {
    GpuError::new(GpuErrorKind::DeviceLost, format!("the GPU was lost ({why}); the model must be loaded again"))
}

fn layout(device: &wgpu::Device, bindings: &[Binding]) -> wgpu::BindGroupLayout {
    let entry = |(binding, of): (u32, &Binding)| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: match of.access {
                Access::Uniform => wgpu::BufferBindingType::Uniform,
                Access::Read => wgpu::BufferBindingType::Storage { read_only: true },
                Access::Write => wgpu::BufferBindingType::Storage { read_only: false },
            },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    };
    let entries: Vec<wgpu::BindGroupLayoutEntry> = (0..).zip(bindings).map(entry).collect();
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_compile_is_one_line_and_the_device_goes_on() {
        let gpu =
            Gpu::open(&GpuOptions { choice: GpuChoice::Index(0), ..GpuOptions::default() }).expect("there is one");
        let source = "@compute @workgroup_size(1) fn main() { let x: u32 = 1.5; }".to_owned();
        let error = gpu.make_pipeline("broken", source, &[]).err().expect("a float is no integer");
        assert_eq!(error.kind(), GpuErrorKind::Unsupported);
        let line = error.to_string();
        assert!(line.contains("does not compile the kernel broken: ") && !line.contains('\n'), "{line}");
        gpu.buffer("x", 4).expect("the device is still there");
    }
}
