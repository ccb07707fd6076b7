//! `ruvllm bench --profile`: the kernels of single passes on the GPU, by the device's own clock.

use std::path::Path;

use ruvllm_backend::TokenModel;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::backend::LocalBackend;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{bytes, print, print_json, table};
use ruvllm_engine::LoadOptions;
use ruvllm_wgpu::KernelTime;
use serde_json::json;

/// The passes that are timed: a token after each so many others, and prompts of each so many tokens.
pub(super) struct Passes<'a> {
    pub n_before: &'a [usize],
    pub n_read: &'a [usize],
}

impl Passes<'_> {
    /// Times the passes and prints their kernels.
    ///
    /// # Errors
    /// Another backend than the GPU's, or one of its.
    pub(super) fn run(
        &self,
        app: &App,
        backend: LocalBackend,
        path: &Path,
        options: &LoadOptions,
        is_json: bool,
    ) -> Result<()> {
        if !backend.is_gpu() {
            return Err(Error::usage("--profile needs --backend gpu"));
        }
        let gpu = app.settings.gpu.as_deref();
        let mut model = backend.load_on_gpu(path, options, gpu, &mut |_| {}).map_err(Error::failure)?;
        let decoded = self.n_before.iter().map(|n_before| (format!("tg1@d{n_before}"), *n_before, 1));
        let read = self.n_read.iter().map(|n| (*n).min(PROFILED_ROWS_MAX)).map(|n| (format!("pp{n}"), 0, n));
        let mut profiles = Vec::new();
        for (name, n_before, n_rows) in decoded.chain(read) {
            profiles.push((name, model.profile(n_before, n_rows).map_err(Error::failure)?));
        }
        let copy_gbps = model.gpu().copy_gbps().map_err(Error::failure)?;
        let info = model.info();
        let device = ProfiledDevice { name: &info.device.name, copy_gbps, weight_bytes: info.weight_bytes };
        if is_json { print_profiles(&device, &profiles) } else { print_profile_tables(&device, &profiles) }
    }
}

/// The most rows of a pass that is profiled.
const PROFILED_ROWS_MAX: usize = 256;

/// Kernels of a pass by its name.
type Profile = (String, Vec<KernelTime>);

/// A device, the bandwidth of its copies in 1e9 bytes a second, and the bytes that decoding one token reads.
struct ProfiledDevice<'a> {
    name: &'a str,
    copy_gbps: f64,
    weight_bytes: usize,
}

fn print_profiles(device: &ProfiledDevice<'_>, profiles: &[Profile]) -> Result<()> {
    let kernel = |time: &KernelTime| json!({ "kernel": time.kernel, "dispatches": time.n_dispatches, "ms": time.ms });
    let pass = |(name, times): &Profile| {
        let ms: f64 = times.iter().map(|time| time.ms).sum();
        json!({ "test": name, "ms": ms, "kernels": times.iter().map(kernel).collect::<Vec<_>>() })
    };
    print_json(&json!({
        "device": device.name,
        "copy_gbps": device.copy_gbps,
        "weight_bytes": device.weight_bytes,
        "profile": profiles.iter().map(pass).collect::<Vec<_>>(),
    }))
}

fn print_profile_tables(device: &ProfiledDevice<'_>, profiles: &[Profile]) -> Result<()> {
    let ProfiledDevice { name, copy_gbps, weight_bytes } = device;
    let weights = bytes(*weight_bytes as u64);
    let mut text = format!("{name}: copies {copy_gbps:.1} GB/s, {weights} of weights read for every token\n");
    for (name, times) in profiles {
        let sum: f64 = times.iter().map(|time| time.ms).sum();
        let mut rows = vec![vec![name.to_uppercase(), "DISPATCHES".to_owned(), "MS".to_owned(), "SHARE".to_owned()]];
        let row = |time: &KernelTime| {
            let (n, ms) = (time.n_dispatches.to_string(), format!("{:.3}", time.ms));
            vec![time.kernel.clone(), n, ms, format!("{:.0} %", 100.0 * time.ms / sum)]
        };
        rows.extend(times.iter().map(row));
        text += &format!("\n{}", table(&rows, &[1, 2, 3]));
    }
    print(&text)
}
