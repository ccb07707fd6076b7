//! Adapters, and running one kernel on one of them.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use ruvllm_shaders::{Access, Binding, Extent, Kernel, PASS_BINDINGS, RECORD_WORDS, RowRecord};

/// A device of an adapter, and the pipelines that were made on it.
pub(crate) struct TestDevice {
    pub(crate) name: String,
    device: wgpu::Device,
    queue: wgpu::Queue,
    pipelines: Mutex<HashMap<Kernel, (wgpu::ComputePipeline, [wgpu::BindGroupLayout; 2])>>,
}

/// A buffer that a kernel gets.
#[derive(Clone)]
pub(crate) enum Data {
    F32(Vec<f32>),
    U32(Vec<u32>),
}

impl Data {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Data::F32(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Data::U32(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }
}

impl From<Vec<f32>> for Data {
    fn from(values: Vec<f32>) -> Self {
        Data::F32(values)
    }
}

impl From<Vec<u32>> for Data {
    fn from(values: Vec<u32>) -> Self {
        Data::U32(values)
    }
}

/// Buffers of the pass.
#[derive(Default)]
pub(crate) struct Pass {
    pub(crate) rows: Vec<RowRecord>,
    pub(crate) tables: Vec<u32>,
    /// The third count, if it is not a number that no kernel may take.
    pub(crate) third_count: Option<u32>,
}

/// A dispatch: the buffers are those of group 0 behind the parameters.
pub(crate) struct Dispatch {
    pub(crate) kernel: Kernel,
    pub(crate) params: [u32; RECORD_WORDS],
    pub(crate) extent: Extent,
    pub(crate) buffers: Vec<Data>,
    pub(crate) pass: Pass,
}

/// Every adapter that can run a kernel.
///
/// # Panics
/// If there is none: these tests fail then, they are not skipped.
pub(crate) fn devices() -> &'static [TestDevice] {
    static DEVICES: OnceLock<Vec<TestDevice>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::all()));
        assert!(
            !adapters.is_empty(),
            "no GPU and no software Vulkan: install one, e.g. apt-get install mesa-vulkan-drivers"
        );
        adapters.iter().map(open).collect()
    })
}

fn open(adapter: &wgpu::Adapter) -> TestDevice {
    let wanted = wgpu::Features::SUBGROUP | wgpu::Features::SHADER_F16;
    let descriptor = wgpu::DeviceDescriptor {
        required_features: adapter.features() & wanted,
        required_limits: wgpu::Limits::default(),
        ..wgpu::DeviceDescriptor::default()
    };
    let info = adapter.get_info();
    let name = format!("{} ({:?})", info.name, info.backend);
    let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
        .unwrap_or_else(|error| panic!("{name} gives no device: {error}"));
    println!("{name}: {:?}", adapter.features() & wanted);
    TestDevice { name, device, queue, pipelines: Mutex::default() }
}

impl TestDevice {
    /// Whether the device has what the kernel needs.
    pub(crate) fn has(&self, kernel: Kernel) -> bool {
        let (needs, has) = (kernel.needs(), self.device.features());
        (!needs.subgroups || has.contains(wgpu::Features::SUBGROUP))
            && (!needs.f16 || has.contains(wgpu::Features::SHADER_F16))
    }

    /// Runs a dispatch and returns the buffers that it may write, in order, as words.
    pub(crate) fn run(&self, dispatch: &Dispatch) -> Vec<Vec<u32>> {
        let bindings = dispatch.kernel.bindings();
        assert_eq!(dispatch.buffers.len() + 1, bindings.len(), "{}: other buffers", dispatch.kernel.name());
        let params = self.buffer(&Data::U32(dispatch.params.to_vec()), Access::Uniform);
        let own: Vec<wgpu::Buffer> = std::iter::once(params)
            .chain(dispatch.buffers.iter().zip(&bindings[1..]).map(|(data, binding)| self.buffer(data, binding.access)))
            .collect();
        let rows = match dispatch.pass.rows.is_empty() {
            true => vec![0; RowRecord::WORDS],
            false => dispatch.pass.rows.iter().flat_map(RowRecord::words).collect(),
        };
        let tables = if dispatch.pass.tables.is_empty() { vec![0] } else { dispatch.pass.tables.clone() };
        // The first count is some other number: kernels must take the one that their parameters name.
        let third = dispatch.pass.third_count.unwrap_or(1_000_000);
        let counts = vec![1_000_000, dispatch.extent.rows, third, 1_000_000];
        let pass: Vec<wgpu::Buffer> = [counts, rows, tables]
            .into_iter()
            .zip(PASS_BINDINGS)
            .map(|(words, binding)| self.buffer(&Data::U32(words), binding.access))
            .collect();
        self.submit(dispatch, &own, &pass);
        let written = own.iter().zip(&bindings).filter(|(_, binding)| binding.access == Access::Write);
        written.map(|(buffer, _)| self.read(buffer)).collect()
    }

    fn submit(&self, dispatch: &Dispatch, own: &[wgpu::Buffer], pass: &[wgpu::Buffer]) {
        let (pipeline, layouts) = self.pipeline(dispatch.kernel);
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut compute = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            compute.set_pipeline(&pipeline);
            for (group, (layout, buffers)) in (0..).zip(layouts.iter().zip([own, pass])) {
                let entries: Vec<wgpu::BindGroupEntry<'_>> = (0..)
                    .zip(buffers)
                    .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
                    .collect();
                let descriptor = wgpu::BindGroupDescriptor { label: None, layout, entries: &entries };
                compute.set_bind_group(group, &self.device.create_bind_group(&descriptor), &[]);
            }
            let [x, y, z] = dispatch.kernel.grid(dispatch.extent);
            compute.dispatch_workgroups(x, y, z);
        }
        self.queue.submit([encoder.finish()]);
    }

    fn pipeline(&self, kernel: Kernel) -> (wgpu::ComputePipeline, [wgpu::BindGroupLayout; 2]) {
        let pipelines = || self.pipelines.lock().expect("no test panics while it holds the pipelines");
        if let Some(made) = pipelines().get(&kernel) {
            return made.clone();
        }
        // Not under the lock: a software device takes a tenth of a second for the largest.
        let made = self.make_pipeline(kernel);
        pipelines().entry(kernel).or_insert(made).clone()
    }

    fn make_pipeline(&self, kernel: Kernel) -> (wgpu::ComputePipeline, [wgpu::BindGroupLayout; 2]) {
        let name = kernel.name();
        let source = wgpu::ShaderSource::Wgsl(kernel.source().into());
        let module =
            self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: Some(name.as_str()), source });
        let layouts = [self.layout(&kernel.bindings()), self.layout(&PASS_BINDINGS)];
        let layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            bind_group_layouts: &layouts.each_ref().map(Some),
            ..wgpu::PipelineLayoutDescriptor::default()
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name.as_str()),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        (pipeline, layouts)
    }

    fn layout(&self, bindings: &[Binding]) -> wgpu::BindGroupLayout {
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
        self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
    }

    fn buffer(&self, data: &Data, access: Access) -> wgpu::Buffer {
        let mut bytes = data.bytes();
        bytes.resize(bytes.len().max(16), 0);
        let kind = if access == Access::Uniform { wgpu::BufferUsages::UNIFORM } else { wgpu::BufferUsages::STORAGE };
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.len() as u64,
            usage: kind | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        self.queue.write_buffer(&buffer, 0, &bytes);
        buffer
    }

    fn read(&self, from: &wgpu::Buffer) -> Vec<u32> {
        let to = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: from.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(from, 0, &to, 0, from.size());
        self.queue.submit([encoder.finish()]);
        to.map_async(wgpu::MapMode::Read, .., |result| result.expect("the buffer can be mapped"));
        self.device.poll(wgpu::PollType::wait_indefinitely()).expect("the device finishes");
        let bytes = to.get_mapped_range(..).expect("the buffer is mapped");
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }
}

/// Runs a dispatch on every adapter that can, and hands what it wrote to `check`, with a name for messages.
///
/// # Panics
/// If no adapter can.
pub(crate) fn on_all(dispatch: &Dispatch, mut check: impl FnMut(&str, Vec<Vec<u32>>)) {
    let able: Vec<&TestDevice> = devices().iter().filter(|device| device.has(dispatch.kernel)).collect();
    assert!(!able.is_empty(), "no adapter has what {} needs: {:?}", dispatch.kernel.name(), dispatch.kernel.needs());
    for device in able {
        check(&format!("{} on {}", dispatch.kernel.name(), device.name), device.run(dispatch));
    }
}

/// The words as floats.
pub(crate) fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|word| f32::from_bits(*word)).collect()
}
