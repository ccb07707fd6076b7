//! `ruvllm detect`: what this machine offers and what would suit it.

mod costs;
mod model;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{MAX_CTX, OutputArgs};
use ruvllm_cli_tools::error::Result;
use ruvllm_cli_tools::gpus::gpus;
use ruvllm_cli_tools::machine::{Machine, default_threads};
use ruvllm_cli_tools::output::{bytes, print, print_json, table};
use ruvllm_cli_tools::values::count;
use ruvllm_kernels::{Isa, matmul};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  ruvllm detect
  ruvllm detect --model qwen2.5-coder:0.5b
  ruvllm detect --model hf:owner/repo/model.gguf --ctx 32768     from the file's header";

/// Options of `ruvllm detect`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DetectArgs {
    /// Say which quantisation of this model fits, with which context, and what it costs
    #[arg(short, long, value_name = "NAME|PATH")]
    model: Option<String>,
    /// Context that is to fit, in tokens [default: 8192, or what the model was trained for]
    #[arg(long = "ctx", value_name = "N", requires = "model", value_parser = count::<1, MAX_CTX>)]
    n_ctx: Option<usize>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Quantisations in falling quality with the bytes a parameter takes. None above `Q8_0`: it costs nothing measurable
/// in quality and halves what F16 makes the CPU read.
const QUANTIZATIONS: &[(&str, f64)] = &[
    ("Q8_0", 8.5 / 8.0),
    ("Q6_K", 6.56 / 8.0),
    ("Q5_K_M", 5.69 / 8.0),
    ("Q4_K_M", 4.85 / 8.0),
    ("Q3_K_M", 3.91 / 8.0),
    ("Q2_K", 2.96 / 8.0),
];

/// Model sizes the hint is given for, in billions of parameters.
const SIZES: &[f64] = &[1.0, 3.0, 8.0, 14.0, 32.0, 70.0];

/// Returns the best quantisation of a model whose weights leave a fifth of the memory for the cache and the system.
fn best_quantization(params_b: f64, usable_bytes: u64) -> Option<&'static str> {
    let fits = |bytes_per_param: f64| params_b * 1e9 * bytes_per_param <= 0.8 * usable_bytes as f64;
    QUANTIZATIONS.iter().find(|(_, size)| fits(*size)).map(|(name, _)| *name)
}

impl DetectArgs {
    /// Prints the facts.
    ///
    /// # Errors
    /// A failure if standard output cannot be written, or the model cannot be read.
    pub fn run(&self, app: &App) -> Result<()> {
        if let Some(model) = &self.model {
            return model::run(app, model, self.n_ctx, self.output.json);
        }
        let machine = Machine::detect();
        let isas: Vec<_> = Isa::available().map(Isa::name).collect();
        // A row of the table can need more than the instruction set, or not stand its self-check.
        let matmul = matmul::pick(app.settings.isa).name();
        let threads = app.settings.threads(None);
        let usable = machine.usable_bytes();
        let hints = SIZES.iter().map(|size| (*size, usable.and_then(|bytes| best_quantization(*size, bytes))));
        let hints: Vec<_> = hints.collect();
        if self.output.json {
            return print_json(&json!({
                "os": machine.os,
                "arch": machine.arch,
                "cpu": machine.cpu,
                "cores": machine.n_physical,
                "hardware_threads": machine.n_logical,
                "available_threads": machine.n_available,
                "threads": threads,
                "memory_bytes": machine.memory_bytes,
                "memory_available_bytes": machine.memory_available_bytes,
                "memory_limit_bytes": machine.memory_limit_bytes,
                "huge_pages": machine.huge_pages,
                "isa": app.settings.isa.name(),
                "isa_available": isas,
                "matmul": matmul,
                "gpus": gpus().map(|gpu| gpu.json).collect::<Vec<_>>(),
                "model_folder": app.settings.models_dir(),
                "hints": hints.iter().map(|(size, name)| json!({ "params_b": size, "quantization": name })).collect::<Vec<_>>(),
            }));
        }
        let unknown = || "unknown".to_owned();
        let memory = |n: Option<u64>| n.map_or_else(unknown, bytes);
        let cores = machine.n_physical.map_or_else(unknown, |n| n.to_string());
        let (logical, available) = (machine.n_logical, machine.n_available);
        let limit = machine.memory_limit_bytes.map_or_else(String::new, |n| format!(", limited to {}", bytes(n)));
        let threads = match threads == default_threads() {
            true => threads.to_string(),
            false => format!("{threads} (RUVLLM_THREADS)"),
        };
        let rows = [
            ("system", format!("{}, {}", machine.os, machine.arch)),
            ("cpu", if machine.cpu.is_empty() { unknown() } else { machine.cpu.clone() }),
            ("cores", format!("{cores} ({logical} hardware threads, {available} for this process)")),
            ("threads used", threads),
            (
                "memory",
                format!("{}, {} free{limit}", memory(machine.memory_bytes), memory(machine.memory_available_bytes)),
            ),
            ("huge pages", machine.huge_pages.clone().unwrap_or_else(unknown)),
            ("instruction sets", format!("{} (used: {}, matmul: {matmul})", isas.join(", "), app.settings.isa)),
            ("model folder", app.settings.models_dir().display().to_string()),
        ];
        let hint = hints.iter().map(|(size, name)| format!("{size}B {}", name.unwrap_or("does not fit")));
        let mut rows = rows.map(|(key, value)| vec![key.to_owned(), value]).to_vec();
        rows.push(vec!["best quantisation".to_owned(), hint.collect::<Vec<_>>().join(", ")]);
        rows.extend(gpus().enumerate().map(|(i, gpu)| vec![format!("GPU {i}"), gpu.line]));
        print(&table(&rows, &[]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_follows_memory() {
        let gb = 1_000_000_000;
        assert_eq!(best_quantization(8.0, 16 * gb), Some("Q8_0"));
        assert_eq!(best_quantization(8.0, 8 * gb), Some("Q5_K_M"));
        assert_eq!(best_quantization(70.0, 64 * gb), Some("Q5_K_M"));
        assert_eq!(best_quantization(70.0, 8 * gb), None);
    }
}
