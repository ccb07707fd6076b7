//! Passes: dispatches whose bind groups are made once, run as one command buffer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ruvllm_shaders::{Extent, Kernel, RECORD_WORDS, RowRecord};

use crate::error::{GpuError, GpuErrorKind};
use crate::gpu::{Gpu, GpuBuffer, Pipeline};

/// Words between records of parameters: the alignment of uniform bindings that every device grants.
const RECORD_STRIDE: usize = 64;

/// A dispatch of a pass.
pub struct Step<'a> {
    /// The kernel.
    pub kernel: Kernel,
    /// Its parameters.
    pub params: [u32; RECORD_WORDS],
    /// Its buffers, in the order of the kernel's bindings after the parameters.
    pub buffers: Vec<&'a GpuBuffer>,
    /// Things along a row, as [`Extent::n`] says.
    pub n: u32,
    /// Slots of experts, or 1.
    pub slots: u32,
    /// Count of the pass that is its number of rows: the one that its parameters name.
    pub count: usize,
}

/// Buffers that change with each pass.
pub struct PassBuffers {
    counts: GpuBuffer,
    rows: GpuBuffer,
    tables: GpuBuffer,
    group: wgpu::BindGroup,
}

/// Input of a pass: everything that changes with it.
#[derive(Clone, Copy)]
pub struct PassInput<'a> {
    /// Numbers of rows, and what else kernels take from there.
    pub counts: [u32; 4],
    /// The rows.
    pub rows: &'a [RowRecord],
    /// Block tables of their sequences.
    pub tables: &'a [u32],
}

/// A pass that is ready to run, any number of times.
pub struct PassPlan {
    steps: Vec<ReadyStep>,
    /// The parameters of all steps; the bind groups use it.
    _params: GpuBuffer,
}

/// A step whose pipeline and bind group are there.
pub(crate) struct ReadyStep {
    kernel: Kernel,
    pipeline: Arc<Pipeline>,
    group: wgpu::BindGroup,
    n: u32,
    slots: u32,
    count: usize,
}

/// A buffer whose words the host reads after passes.
pub struct ReadBack {
    from: wgpu::Buffer,
    staging: GpuBuffer,
}

/// Words at the beginning of a buffer that the host reads after a pass.
#[derive(Clone, Copy)]
pub struct ReadPart<'a> {
    read: &'a ReadBack,
    n_words: usize,
}

/// Copy of words from one place of a buffer to another.
#[derive(Clone, Copy)]
pub struct WordCopy<'a> {
    /// The buffer.
    pub buffer: &'a GpuBuffer,
    /// First word that is read.
    pub from: usize,
    /// First word that is written.
    pub to: usize,
    /// Number of words.
    pub n_words: usize,
}

impl ReadBack {
    /// The first `n_words` words, or all there are.
    pub fn first(&self, n_words: usize) -> ReadPart<'_> {
        ReadPart { read: self, n_words: n_words.min(self.staging.n_words()) }
    }

    /// All words.
    pub fn whole(&self) -> ReadPart<'_> {
        self.first(usize::MAX)
    }
}

impl ReadPart<'_> {
    /// Bytes of the words.
    fn n_bytes(&self) -> u64 {
        4 * self.n_words as u64
    }
}

impl Gpu {
    /// Makes the buffers of passes of at most so many rows, with tables of so many words.
    ///
    /// # Errors
    /// The memory is used up, or the device is lost.
    pub fn pass_buffers(&self, n_rows_max: usize, n_table_words_max: usize) -> Result<PassBuffers, GpuError> {
        let uniform = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let counts = self.make_buffer("counts of a pass", 4, uniform)?;
        let rows = self.buffer("rows of a pass", n_rows_max * RowRecord::WORDS)?;
        let tables = self.buffer("block tables", n_table_words_max)?;
        let buffers = [&counts, &rows, &tables];
        let group = self.bind_group(&self.pass_layout, buffers.map(|buffer| buffer.buffer.as_entire_binding()).into());
        Ok(PassBuffers { counts, rows, tables, group })
    }

    /// Makes the pipelines, parameters and bind groups of a pass.
    ///
    /// # Errors
    /// A step has other buffers than its kernel, the device lacks what a kernel needs, the memory is used up, or the
    /// device is lost.
    pub fn plan(&self, steps: &[Step<'_>]) -> Result<PassPlan, GpuError> {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let params = self.make_buffer("parameters of a pass", steps.len() * RECORD_STRIDE, usage)?;
        let mut ready = Vec::new();
        for (i, step) in steps.iter().enumerate() {
            let n_buffers = step.kernel.bindings().len() - 1;
            if step.buffers.len() != n_buffers || step.count > 3 {
                let (name, n) = (step.kernel.name(), step.buffers.len());
                let message = format!(
                    "step {i}: {name} has {n_buffers} buffers and a count of 0 to 3, not {n} and {}",
                    step.count
                );
                return Err(GpuError::new(GpuErrorKind::InvalidInput, message));
            }
            self.write(&params, i * RECORD_STRIDE, &step.params)?;
            let pipeline = self.pipeline(step.kernel)?;
            let record = wgpu::BufferBinding {
                buffer: &params.buffer,
                offset: 4 * (i * RECORD_STRIDE) as u64,
                size: std::num::NonZeroU64::new(4 * RECORD_WORDS as u64),
            };
            let bindings = std::iter::once(wgpu::BindingResource::Buffer(record))
                .chain(step.buffers.iter().map(|buffer| buffer.buffer.as_entire_binding()));
            let group = self.bind_group(&pipeline.layout, bindings.collect());
            let Step { kernel, n, slots, count, .. } = *step;
            ready.push(ReadyStep { kernel, pipeline, group, n, slots, count });
        }
        self.check()?;
        Ok(PassPlan { steps: ready, _params: params })
    }

    /// Makes a place for the host's copy of a buffer.
    ///
    /// # Errors
    /// The memory is used up, or the device is lost.
    pub fn read_back(&self, from: &GpuBuffer) -> Result<ReadBack, GpuError> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = self.make_buffer("copy for the host", from.n_words(), usage)?;
        Ok(ReadBack { from: from.buffer.clone(), staging })
    }

    /// Runs a pass as one command buffer, and returns the words of the buffers that are read back. Without those it does
    /// not wait for the device.
    ///
    /// # Errors
    /// There are more rows or tables than the buffers hold, or the device is lost.
    pub fn run(
        &self,
        plan: &PassPlan,
        buffers: &PassBuffers,
        input: PassInput<'_>,
        read: &[&ReadBack],
    ) -> Result<Vec<Vec<u32>>, GpuError> {
        let read: Vec<ReadPart<'_>> = read.iter().map(|read| read.whole()).collect();
        self.run_all(&[plan], buffers, input, &read)
    }

    /// Runs plans one after another as one command buffer, with the same input, and returns the words that are read back.
    ///
    /// # Errors
    /// As [`Gpu::run`].
    pub fn run_all(
        &self,
        plans: &[&PassPlan],
        buffers: &PassBuffers,
        input: PassInput<'_>,
        read: &[ReadPart<'_>],
    ) -> Result<Vec<Vec<u32>>, GpuError> {
        self.write_pass(buffers, input)?;
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("pass") });
        for plan in plans {
            let n_dispatches = plan.encode(&mut encoder, &buffers.group, input.counts);
            self.counters.n_dispatches.fetch_add(n_dispatches, Relaxed);
        }
        self.submit(encoder, read)
    }

    /// Copies words within buffers, one copy after another. They pass through `scratch`.
    ///
    /// # Errors
    /// A copy reaches past the end of its buffer or of `scratch`, or the device is lost.
    pub fn copy(&self, copies: &[WordCopy<'_>], scratch: &GpuBuffer) -> Result<(), GpuError> {
        self.check()?;
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("copies") });
        for WordCopy { buffer, from, to, n_words } in copies {
            let ends = [*from, *to].map(|first| first.checked_add(*n_words));
            if ends.iter().any(|end| end.is_none_or(|end| end > buffer.n_words())) || *n_words > scratch.n_words() {
                let message = format!(
                    "{n_words} words from word {from} to word {to} do not fit into a buffer of {} words",
                    buffer.n_words()
                );
                return Err(GpuError::new(GpuErrorKind::InvalidInput, message));
            }
            let [from, to, n_bytes] = [*from, *to, *n_words].map(|n| 4 * n as u64);
            encoder.copy_buffer_to_buffer(&buffer.buffer, from, &scratch.buffer, 0, n_bytes);
            encoder.copy_buffer_to_buffer(&scratch.buffer, 0, &buffer.buffer, to, n_bytes);
        }
        self.submit(encoder, &[]).map(drop)
    }

    /// Writes what a pass changes.
    pub(crate) fn write_pass(&self, buffers: &PassBuffers, input: PassInput<'_>) -> Result<(), GpuError> {
        self.write(&buffers.counts, 0, &input.counts)?;
        let rows: Vec<u32> = input.rows.iter().flat_map(RowRecord::words).collect();
        self.write(&buffers.rows, 0, &rows)?;
        self.write(&buffers.tables, 0, input.tables)
    }

    /// Submits commands, and returns the words of the buffers that are read back after them.
    pub(crate) fn submit(
        &self,
        mut encoder: wgpu::CommandEncoder,
        read: &[ReadPart<'_>],
    ) -> Result<Vec<Vec<u32>>, GpuError> {
        for part in read {
            encoder.copy_buffer_to_buffer(&part.read.from, 0, &part.read.staging.buffer, 0, part.n_bytes());
        }
        self.queue.submit([encoder.finish()]);
        self.counters.n_command_buffers.fetch_add(1, Relaxed);
        if read.is_empty() {
            return self.check().map(|()| Vec::new());
        }
        for part in read.iter().filter(|part| part.n_words > 0) {
            // A failure shows when the range is asked for.
            part.read.staging.buffer.map_async(wgpu::MapMode::Read, ..part.n_bytes(), |_| {});
        }
        self.wait()?;
        read.iter().map(|part| self.mapped(*part)).collect()
    }

    fn mapped(&self, part: ReadPart<'_>) -> Result<Vec<u32>, GpuError> {
        if part.n_words == 0 {
            return Ok(Vec::new());
        }
        let buffer = &part.read.staging.buffer;
        let words = match buffer.get_mapped_range(..part.n_bytes()) {
            Ok(bytes) => bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect(),
            Err(error) => {
                return Err(GpuError::new(GpuErrorKind::DeviceLost, format!("nothing can be read back: {error}")));
            }
        };
        buffer.unmap();
        self.counters.n_bytes_read.fetch_add(part.n_bytes(), Relaxed);
        Ok(words)
    }

    fn bind_group(&self, layout: &wgpu::BindGroupLayout, resources: Vec<wgpu::BindingResource<'_>>) -> wgpu::BindGroup {
        let entries: Vec<wgpu::BindGroupEntry<'_>> =
            (0..).zip(resources).map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource }).collect();
        self.counters.n_bind_groups.fetch_add(1, Relaxed);
        self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
    }
}

impl PassPlan {
    /// Number of its dispatches.
    pub fn n_steps(&self) -> usize {
        self.steps.len()
    }

    /// The steps in order.
    pub(crate) fn steps(&self) -> &[ReadyStep] {
        &self.steps
    }

    /// Encodes the steps that have rows, and returns how many they are.
    fn encode(&self, encoder: &mut wgpu::CommandEncoder, pass_group: &wgpu::BindGroup, counts: [u32; 4]) -> u64 {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_bind_group(1, pass_group, &[]);
        self.steps.iter().map(|step| step.encode(&mut pass, counts)).sum()
    }
}

impl ReadyStep {
    /// Name of its kernel.
    pub(crate) fn name(&self) -> String {
        self.kernel.name()
    }

    /// Encodes the step if it has rows, and returns the number of dispatches: 1 or 0.
    pub(crate) fn encode(&self, pass: &mut wgpu::ComputePass<'_>, counts: [u32; 4]) -> u64 {
        let [x, y, z] = self.kernel.grid(Extent { n: self.n, rows: counts[self.count], slots: self.slots });
        if x == 0 || y == 0 || z == 0 {
            return 0;
        }
        pass.set_pipeline(&self.pipeline.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.dispatch_workgroups(x, y, z);
        1
    }
}

impl PassBuffers {
    /// The bind group of the pass.
    pub(crate) fn group(&self) -> &wgpu::BindGroup {
        &self.group
    }
}
