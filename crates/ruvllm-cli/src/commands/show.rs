//! `ruvllm show`: what is in a model file.

use std::path::PathBuf;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{NamedModelArgs, OutputArgs};
use ruvllm_cli_tools::describe::{quantization, type_totals};
use ruvllm_cli_tools::error::{Result, one_line};
use ruvllm_cli_tools::hub::{Header, open_header};
use ruvllm_cli_tools::output::{bytes, count, print, print_json, table};
use ruvllm_gguf::{Array, GgufFile, Value};
use ruvllm_hub::OllamaParts;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  ruvllm show smollm2:135m
  ruvllm show ./model.gguf --tensors
  ruvllm show hf:owner/repo/model.gguf     reads the header of a file on the hub, and pulls nothing";

/// Options of `ruvllm show`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ShowArgs {
    #[command(flatten)]
    model: NamedModelArgs,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// List every metadata key
    #[arg(long)]
    metadata: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl ShowArgs {
    /// Prints the summary and the lists asked for.
    ///
    /// # Errors
    /// A failure if the file cannot be read.
    pub fn run(&self, app: &App) -> Result<()> {
        let header = open_header(app, self.model.name(), false)?;
        let ollama = app.store().ollama_parts(self.model.name())?;
        match self.output.json {
            true => self.print_json(&header, ollama.as_ref()),
            false => self.print_text(&header, ollama.as_ref()),
        }
    }

    fn print_text(&self, header: &Header, ollama: Option<&OllamaParts>) -> Result<()> {
        let file = &header.file;
        let mut rows = summary(header)?;
        rows.extend(ollama.map(ollama_rows).unwrap_or_default());
        let mut text = table(&rows, &[]);
        text.push('\n');
        let mut rows = vec![["TYPE", "TENSORS", "VALUES", "SIZE"].map(str::to_owned).to_vec()];
        for (ty, total) in type_totals(file) {
            rows.push(vec![ty.to_string(), total.n_tensors.to_string(), count(total.n_values), bytes(total.n_bytes)]);
        }
        text.push_str(&table(&rows, &[1, 2, 3]));
        if self.metadata {
            let rows = file.metadata().iter().map(|(key, value)| vec![key.to_owned(), brief(value)]);
            text.push_str(&format!("\n{}", table(&rows.collect::<Vec<_>>(), &[])));
        }
        if self.tensors {
            let rows = file.tensors().map(|tensor| {
                vec![
                    tensor.name.clone(),
                    tensor.ty.to_string(),
                    format!("{:?}", tensor.shape),
                    bytes(tensor.n_bytes() as u64),
                ]
            });
            text.push_str(&format!("\n{}", table(&rows.collect::<Vec<_>>(), &[3])));
        }
        print(&text)
    }

    fn print_json(&self, header: &Header, ollama: Option<&OllamaParts>) -> Result<()> {
        let Header { file, place, is_remote } = header;
        let types = type_totals(file).into_iter().map(|(ty, total)| {
            let facts = json!({ "tensors": total.n_tensors, "values": total.n_values, "bytes": total.n_bytes });
            (ty.name().to_owned(), facts)
        });
        let facts = Facts::read(file)?;
        let mut object = json!({
            "path": place,
            "remote": is_remote,
            "bytes": file.total_bytes(),
            "name": facts.name,
            "architecture": facts.architecture,
            "parameters": facts.n_params,
            "quantization": quantization(file),
            "context_length": facts.context,
            "layers": facts.layers,
            "embedding_length": facts.embedding,
            "vocabulary": facts.n_vocab,
            "tokenizer": facts.tokenizer,
            "license": facts.license,
            "chat_template": facts.has_template,
            "gguf_version": file.version(),
            "types": types.collect::<serde_json::Map<_, _>>(),
        });
        if let Some(parts) = ollama {
            object["ollama"] = json!({
                "template": parts.template,
                "system": parts.system,
                "parameters": parts.parameters,
                "messages": parts.messages,
                "adapters": parts.adapters,
                "projectors": parts.projectors,
                "licenses": parts.licenses,
            });
        }
        if self.metadata {
            let pairs = file.metadata().iter().map(|(key, value)| (key.to_owned(), brief(value).into()));
            object["metadata"] = serde_json::Value::Object(pairs.collect());
        }
        if self.tensors {
            let tensors = file.tensors().map(|tensor| {
                let (name, ty, shape) = (&tensor.name, tensor.ty.name(), &tensor.shape);
                json!({ "name": name, "type": ty, "shape": shape, "bytes": tensor.n_bytes() })
            });
            object["tensors"] = tensors.collect();
        }
        print_json(&object)
    }
}

/// What the metadata says, as far as it says it.
struct Facts {
    name: Option<String>,
    architecture: Option<String>,
    n_params: u64,
    context: Option<u32>,
    layers: Option<u32>,
    embedding: Option<u32>,
    n_vocab: Option<usize>,
    tokenizer: Option<String>,
    license: Option<String>,
    has_template: bool,
}

impl Facts {
    fn read(file: &GgufFile) -> Result<Facts> {
        let metadata = file.metadata();
        let text = |key: &str| -> Result<Option<String>> { Ok(metadata.str(key)?.map(str::to_owned)) };
        let architecture = text("general.architecture")?;
        let number = |key: &str| -> Result<Option<u32>> {
            let Some(architecture) = &architecture else { return Ok(None) };
            Ok(metadata.u32(&format!("{architecture}.{key}"))?)
        };
        let model = text("tokenizer.ggml.model")?;
        let pre = text("tokenizer.ggml.pre")?;
        Ok(Facts {
            name: text("general.name")?,
            n_params: file.tensors().map(|tensor| tensor.n_elements() as u64).sum(),
            context: number("context_length")?,
            layers: number("block_count")?,
            embedding: number("embedding_length")?,
            n_vocab: metadata.get("tokenizer.ggml.tokens").and_then(array_len),
            tokenizer: model.map(|model| pre.map_or_else(|| model.clone(), |pre| format!("{model} ({pre})"))),
            license: text("general.license")?,
            has_template: metadata.contains("tokenizer.chat_template"),
            architecture,
        })
    }
}

fn summary(header: &Header) -> Result<Vec<Vec<String>>> {
    let Header { file, place, is_remote } = header;
    let facts = Facts::read(file)?;
    let says = |value: Option<String>| value.unwrap_or_else(|| "not said".to_owned());
    let number = |value: Option<u32>| says(value.map(|n| n.to_string()));
    let parts = if file.n_parts() > 1 { format!(", {} parts", file.n_parts()) } else { String::new() };
    let there = if *is_remote { ", on the hub" } else { "" };
    let template = if facts.has_template { "yes" } else { "no (continues text; use run --raw)" };
    let rows = [
        ("name", says(facts.name)),
        ("file", format!("{place} ({}{parts}{there}, GGUF v{})", bytes(file.total_bytes()), file.version())),
        ("architecture", says(facts.architecture)),
        ("parameters", count(facts.n_params)),
        ("quantisation", quantization(file)),
        ("context", number(facts.context)),
        ("layers", number(facts.layers)),
        ("embedding", number(facts.embedding)),
        ("vocabulary", says(facts.n_vocab.map(|n| n.to_string()))),
        ("tokenizer", says(facts.tokenizer)),
        ("chat template", template.to_owned()),
        ("licence", says(facts.license)),
    ];
    Ok(rows.map(|(key, value)| vec![key.to_owned(), value]).to_vec())
}

/// Rows of what a model of Ollama's folder has beside its file.
fn ollama_rows(parts: &OllamaParts) -> Vec<Vec<String>> {
    let paths = |files: &[PathBuf]| files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
    let rows = [
        ("Ollama's template", parts.template.as_deref().map(short)),
        ("system prompt", parts.system.as_deref().map(short)),
        ("parameters", parts.parameters.as_ref().map(|all| short(&all.to_string()))),
        ("first messages", parts.messages.as_ref().map(|all| short(&all.to_string()))),
        ("adapters", (!parts.adapters.is_empty()).then(|| paths(&parts.adapters))),
        ("projectors", (!parts.projectors.is_empty()).then(|| paths(&parts.projectors))),
        (
            "licence texts",
            (!parts.licenses.is_empty())
                .then(|| parts.licenses.iter().map(|text| short(text)).collect::<Vec<_>>().join(", ")),
        ),
    ];
    rows.into_iter().filter_map(|(key, value)| Some(vec![key.to_owned(), value?])).collect()
}

fn array_len(value: &Value) -> Option<usize> {
    match value {
        Value::Array(array) => Some(array.len()),
        _ => None,
    }
}

/// Returns a metadata value in at most about 100 characters.
fn brief(value: &Value) -> String {
    let text = match value {
        Value::String(text) => return short(text),
        Value::Array(array) => return brief_array(array),
        other => {
            format!("{other:?}").split_once('(').map_or_else(String::new, |(_, v)| v.trim_end_matches(')').to_owned())
        }
    };
    short(&text)
}

/// Returns a text as one line of at most about 100 characters.
fn short(text: &str) -> String {
    const MAX_CHARS: usize = 100;
    let text = one_line(text);
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}... ({} characters)", &text[..end], text.chars().count()),
        None => text,
    }
}

fn brief_array(array: &Array) -> String {
    format!("array of {}", array.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_values_are_brief() {
        assert_eq!(brief(&Value::U32(7)), "7");
        assert_eq!(brief(&Value::F32(0.5)), "0.5");
        assert_eq!(brief(&Value::Bool(true)), "true");
        assert_eq!(brief(&Value::String("a\nb".into())), "a b");
        assert!(brief(&Value::String("x".repeat(300))).ends_with("... (300 characters)"));
    }
}
