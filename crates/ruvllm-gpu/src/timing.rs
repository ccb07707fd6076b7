//! Times of the steps of a pass, by the device's own clock.

use std::sync::atomic::Ordering::Relaxed;

use web_time::Instant;

use crate::error::{GpuError, GpuErrorKind};
use crate::gpu::Gpu;
use crate::pass::{PassBuffers, PassInput, PassPlan};

/// Time of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTime {
    /// Name of its kernel.
    pub kernel: String,
    /// Nanoseconds from its begin to its end on the device; 0 if it had no rows.
    pub ns: f64,
}

/// Bytes of the buffers that [`Gpu::copy_gbps`] copies, and how often it does.
const COPIED_BYTES: u64 = 128 << 20;
const COPIES: usize = 16;

impl Gpu {
    /// Measures at how many 1e9 bytes a second the device copies large buffers, reading and writing counted: what decoding is
    /// held against, since it reads all weights for a token.
    ///
    /// # Errors
    /// The memory is used up, or the device is lost.
    pub fn copy_gbps(&self) -> Result<f64, GpuError> {
        let n_words = (COPIED_BYTES.min(self.info().binding_bytes_max) / 4) as usize;
        let [from, to] = [self.buffer("copied bytes", n_words)?, self.buffer("copied bytes", n_words)?];
        let mut seconds = f64::INFINITY;
        // The first round makes the pages real.
        for _ in 0..3 {
            self.wait()?;
            let start = Instant::now();
            let mut encoder =
                self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("copies") });
            for _ in 0..COPIES {
                encoder.copy_buffer_to_buffer(&from.buffer, 0, &to.buffer, 0, 4 * n_words as u64);
            }
            self.submit(encoder, &[])?;
            self.wait()?;
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
        Ok(2.0 * 4.0 * (COPIES * n_words) as f64 / seconds / 1e9)
    }

    /// Runs a pass with each step on its own between two timestamps, and returns their times. It is slower than
    /// [`Gpu::run`], and its steps do not overlap.
    ///
    /// # Errors
    /// The device has no timestamps or too few for the plan, and those of [`Gpu::run`].
    pub fn time(
        &self,
        plan: &PassPlan,
        buffers: &PassBuffers,
        input: PassInput<'_>,
    ) -> Result<Vec<StepTime>, GpuError> {
        let n_stamps = 2 * plan.n_steps();
        let unsupported = |what: &str| GpuError::new(GpuErrorKind::Unsupported, format!("{} {what}", self.info().name));
        if !self.device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            return Err(unsupported("has no timestamps"));
        }
        if n_stamps > wgpu::QUERY_SET_MAX_QUERIES as usize {
            return Err(unsupported(&format!("has {} timestamps, not {n_stamps}", wgpu::QUERY_SET_MAX_QUERIES)));
        }
        if n_stamps == 0 {
            return Ok(Vec::new());
        }
        self.write_pass(buffers, input)?;
        let queries = self.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("times of steps"),
            ty: wgpu::QueryType::Timestamp,
            count: n_stamps as u32,
        });
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let stamps = self.make_buffer("times of steps", 2 * n_stamps, usage)?;
        let read = self.read_back(&stamps)?;
        let mut encoder =
            self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("timed pass") });
        let mut names = Vec::new();
        for (i, step) in (0..).zip(plan.steps()) {
            let times = wgpu::ComputePassTimestampWrites {
                query_set: &queries,
                beginning_of_pass_write_index: Some(2 * i),
                end_of_pass_write_index: Some(2 * i + 1),
            };
            let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes: Some(times) };
            let mut pass = encoder.begin_compute_pass(&descriptor);
            pass.set_bind_group(1, buffers.group(), &[]);
            let n_dispatches = step.encode(&mut pass, input.counts);
            self.counters.n_dispatches.fetch_add(n_dispatches, Relaxed);
            names.push((step.name(), n_dispatches > 0));
        }
        encoder.resolve_query_set(&queries, 0..n_stamps as u32, &stamps.buffer, 0);
        let words = self.submit(encoder, &[read.whole()])?.pop().unwrap_or_default();
        let ticks: Vec<u64> =
            words.as_chunks::<2>().0.iter().map(|[low, high]| u64::from(*low) | u64::from(*high) << 32).collect();
        let period = f64::from(self.queue.get_timestamp_period());
        let time = |((kernel, has_run), stamps): ((String, bool), &[u64; 2])| {
            let ns = if has_run { stamps[1].saturating_sub(stamps[0]) as f64 * period } else { 0.0 };
            StepTime { kernel, ns }
        };
        Ok(names.into_iter().zip(ticks.as_chunks::<2>().0).map(time).collect())
    }
}
