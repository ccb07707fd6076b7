//! Facts about the files that are published, as the files themselves say them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ruvllm_gguf::{GgmlType, GgufFile, Metadata};
use serde_json::Value;

use crate::error::{HubError, HubErrorKind, shown};
use crate::publish::PublishedFile;
use crate::quantization::quantization;
use crate::shards::ShardName;

/// The most bytes of a JSON file that is read.
const JSON_BYTES_MAX: u64 = 4 << 20;
/// The most characters of a fact.
const FACT_CHARS_MAX: usize = 200;
/// Key of the digest of the witness log of the requests that a model learned from.
const WITNESS_KEY: &str = "ruvllm.witness.digest";

/// Kind of a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ModelKind {
    /// A GGUF model.
    #[default]
    Gguf,
    /// An adapter, as GGUF or as PEFT writes it.
    Adapter,
    /// A folder of safetensors.
    Safetensors,
}

/// Facts, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelFacts {
    pub(super) kind: ModelKind,
    /// Whether it is an adapter in GGUF.
    pub(super) is_gguf: bool,
    pub(super) name: Option<String>,
    pub(super) architecture: Option<String>,
    pub(super) license: Option<String>,
    /// Repository on the hub that it was made from, or its name.
    pub(super) base: Option<String>,
    pub(super) has_base_repo: bool,
    pub(super) is_quantized: bool,
    pub(super) is_embedding: bool,
    /// Further lines: a name and its value.
    pub(super) lines: Vec<(&'static str, String)>,
    /// Quantisation of each GGUF file.
    pub(super) quantizations: Vec<(String, String)>,
}

/// Reads the facts of files; of GGUF files that they are sound.
pub(super) fn read(files: &[PublishedFile]) -> Result<ModelFacts, HubError> {
    let mut facts = ModelFacts::default();
    let local = |name: &str| files.iter().find(|file| file.name == name).and_then(|file| file.path.as_deref());
    let is_model = |file: &&PublishedFile| {
        file.name.ends_with(".gguf") && ShardName::parse(&file.name).is_none_or(|shard| shard.no == 1)
    };
    let models: Vec<&PublishedFile> = files.iter().filter(is_model).collect();
    for (i, file) in models.iter().enumerate() {
        let path = file.path.as_deref().unwrap_or(Path::new(&file.name));
        let gguf = GgufFile::open(path).map_err(|error| HubError::new(HubErrorKind::Invalid, error))?;
        facts.quantizations.push((file.name.clone(), quantization(&gguf)));
        if i == 0 {
            facts.gguf(&gguf);
        }
    }
    facts.is_gguf = !models.is_empty();
    if let Some(path) = local("adapter_config.json") {
        facts.peft(&json(path)?);
    } else if models.is_empty() {
        facts.kind = ModelKind::Safetensors;
        if let Some(path) = local("config.json") {
            facts.architecture = json(path)?["model_type"].as_str().map(clean);
        }
    }
    Ok(facts)
}

impl ModelFacts {
    fn gguf(&mut self, file: &GgufFile) {
        let metadata = file.metadata();
        let is_adapter = text(metadata, "general.type").as_deref() == Some("adapter");
        self.kind = if is_adapter { ModelKind::Adapter } else { ModelKind::Gguf };
        self.name = text(metadata, "general.name");
        self.architecture = text(metadata, "general.architecture");
        self.license = text(metadata, "general.license");
        let repo = ["general.source.repo_url", "general.base_model.0.repo_url"];
        let repo = repo.iter().find_map(|key| hub_repo(&text(metadata, key)?));
        self.has_base_repo = repo.is_some();
        self.base = repo.or_else(|| text(metadata, "general.base_model.0.name"));
        self.is_quantized =
            file.tensors().any(|tensor| !matches!(tensor.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16));
        let arch = self.architecture.clone().unwrap_or_default();
        self.is_embedding = arch == "bert" || metadata.contains(&format!("{arch}.pooling_type"));
        let number = |key: &str| metadata.u32(key).ok().flatten();
        let n_values: u64 = file.tensors().map(|tensor| tensor.n_elements() as u64).sum();
        self.line("Parameters", Some(crate::figures::count(n_values)));
        self.line("Context", number(&format!("{arch}.context_length")).map(|n| format!("{n} tokens")));
        if !is_adapter {
            let bits = file.tensor_bytes() as f64 * 8.0 / n_values.max(1) as f64;
            self.line("Quantisation", Some(format!("{}, {bits:.2} bits per weight", quantization(file))));
        }
        let imatrix = text(metadata, "quantize.imatrix.file").map(|file| {
            let dataset = text(metadata, "quantize.imatrix.dataset").map(|set| format!(", of {set}"));
            let chunks = number("quantize.imatrix.chunks_count").map(|n| format!(", {n} chunks"));
            let entries = number("quantize.imatrix.entries_count").map(|n| format!(", {n} tensors"));
            [Some(file), dataset, chunks, entries].into_iter().flatten().collect::<String>()
        });
        self.line("Importance matrix", imatrix);
        self.line("Adapter", text(metadata, "adapter.type"));
        self.line(
            "Learned from",
            text(metadata, WITNESS_KEY).map(|digest| format!("requests on record, witness digest {digest}")),
        );
    }

    fn peft(&mut self, config: &Value) {
        self.kind = ModelKind::Adapter;
        if let Some(base) = config["base_model_name_or_path"].as_str().map(clean).filter(|base| !base.is_empty()) {
            self.has_base_repo = is_repo(&base);
            // A path tells about the machine it lies on.
            self.base =
                Some(if self.has_base_repo { base } else { base.rsplit('/').next().unwrap_or_default().to_owned() });
        }
        self.line("Adapter", config["peft_type"].as_str().map(clean));
        self.line("Rank", config["r"].as_u64().map(|rank| rank.to_string()));
        self.line("Alpha", config["lora_alpha"].as_f64().map(|alpha| alpha.to_string()));
        let modules = config["target_modules"].as_array();
        let modules = modules.map(|all| all.iter().filter_map(Value::as_str).map(clean).collect::<Vec<_>>().join(", "));
        self.line("Modules", modules.filter(|modules| !modules.is_empty()).map(|modules| clean(&modules)));
    }

    fn line(&mut self, name: &'static str, value: Option<String>) {
        self.lines.extend(value.map(|value| (name, value)));
    }
}

fn clean(text: &str) -> String {
    shown(text, FACT_CHARS_MAX)
}

fn text(metadata: &Metadata, key: &str) -> Option<String> {
    metadata.str(key).ok().flatten().map(clean).filter(|text| !text.is_empty())
}

/// Returns `owner/name` of an address of the hub.
fn hub_repo(url: &str) -> Option<String> {
    let path = url.strip_prefix("https://huggingface.co/")?.trim_end_matches('/');
    is_repo(path).then(|| path.to_owned())
}

fn is_repo(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.starts_with('.')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    text.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name))
}

fn json(path: &Path) -> Result<Value, HubError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(JSON_BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| HubError::io("read", path, &error))?;
    if bytes.len() as u64 > JSON_BYTES_MAX {
        let line = format_args!("{} has more than {JSON_BYTES_MAX} bytes", path.display());
        return Err(HubError::new(HubErrorKind::Invalid, line));
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| HubError::new(HubErrorKind::Invalid, format_args!("{} is no JSON: {error}", path.display())))
}
