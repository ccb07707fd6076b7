//! `ruvllm list`: the models on this machine and those that can be pulled by name.

use std::path::Path;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::describe;
use ruvllm_cli_tools::error::Result;
use ruvllm_cli_tools::output::{bytes, print, print_json, table};
use ruvllm_gguf::GgufFile;
use ruvllm_hub::{Entry, Model, Registry};
use serde_json::json;

/// Options of `ruvllm list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
}

impl ListArgs {
    /// Prints the list.
    ///
    /// # Errors
    /// A failure if the model folder cannot be read.
    pub fn run(&self, app: &App) -> Result<()> {
        let models = app.store().list()?;
        let is_pulled = |entry: &Entry| models.iter().any(|model| model.record.name == entry.name);
        let of_ollama = app.store().list_of_ollama();
        let others: Vec<_> = app.registry().entries().iter().filter(|entry| !is_pulled(entry)).collect();
        if self.output.json {
            return print_json(&json!({
                "models": models.iter().map(model_json).collect::<Vec<_>>(),
                "ollama": of_ollama.iter().map(|model| json!({
                    "name": format!("ollama:{}", model.name),
                    "path": model.path,
                    "bytes": model.n_bytes,
                })).collect::<Vec<_>>(),
                "available": others.iter().map(|entry| json!({
                    "name": entry.name,
                    "alias": entry.alias,
                    "bytes": entry.expected.n_bytes,
                    "quantization": entry.quantization,
                    "about": entry.about,
                })).collect::<Vec<_>>(),
            }));
        }
        let mut rows = vec![["NAME", "SIZE", "QUANTISATION", "PULLED", "ABOUT"].map(str::to_owned).to_vec()];
        rows.extend(models.iter().map(|model| model_row(model, app.registry())));
        rows.extend(of_ollama.iter().map(|model| {
            let quantization = quantization(&model.path);
            let name = format!("ollama:{}", model.name);
            vec![name, bytes(model.n_bytes), quantization, "by Ollama".to_owned(), String::new()]
        }));
        rows.extend(others.iter().map(|entry| {
            let size = entry.expected.n_bytes.map_or_else(String::new, bytes);
            let (name, quantization, about) = (&entry.name, &entry.quantization, &entry.about);
            vec![name.clone(), size, quantization.clone(), "not yet".to_owned(), about.clone()]
        }));
        print(&table(&rows, &[1]))
    }
}

/// Returns the file's quantisation, or `damaged` if it cannot be read.
fn quantization(path: &Path) -> String {
    GgufFile::open(path).map_or_else(|_| "damaged".to_owned(), |file| describe::quantization(&file))
}

fn about<'a>(model: &Model, registry: &'a Registry) -> &'a str {
    registry.entries().iter().find(|entry| entry.name == model.record.name).map_or("", |entry| &entry.about)
}

fn model_row(model: &Model, registry: &Registry) -> Vec<String> {
    let record = &model.record;
    let day = record.pulled_at.split('T').next().filter(|day| !day.is_empty()).unwrap_or("by hand");
    let cells = [
        record.name.clone(),
        bytes(record.n_bytes),
        quantization(&model.path),
        day.to_owned(),
        about(model, registry).to_owned(),
    ];
    cells.to_vec()
}

fn model_json(model: &Model) -> serde_json::Value {
    let record = &model.record;
    json!({
        "name": record.name,
        "path": model.path,
        "bytes": record.n_bytes,
        "quantization": quantization(&model.path),
        "sha256": record.sha256,
        "source": record.source,
        "pulled_at": record.pulled_at,
    })
}
