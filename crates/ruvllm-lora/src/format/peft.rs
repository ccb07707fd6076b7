//! PEFT folders: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Tensors are `base_model.model.{module}.lora_A.weight` (`[rank, n_in]`), `.lora_B.weight` (`[n_out, rank]`) and, of
//! DoRA, `.lora_magnitude_vector`. The scale is `lora_alpha / r`, or `/ √r` with `use_rslora`, where patterns may give
//! some modules another rank or alpha (`get_pattern_key` of `peft/utils/other.py`). What would change the result and is
//! not applied here is refused by name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use regex::{Regex, RegexBuilder};
use ruvllm_gguf::MappedFile;
use ruvllm_kernels::GgmlType;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

use super::{ModelFacts, name_of, names};
use crate::adapter::{Adapter, Delta, FactorPair, RowOrder, Values, cut};
use crate::error::{LoraError, LoraErrorKind, invalid, shape, shown, unsupported};

/// The file of settings.
pub const CONFIG: &str = super::PEFT_CONFIG;
/// The file of values.
pub const WEIGHTS: &str = "adapter_model.safetensors";

/// The longest settings that are read, in bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// The longest directory of tensors that is read, in bytes.
const HEADER_BYTES_MAX: u64 = 16 << 20;
/// Patterns of modules, and the memory one may take when compiled.
const N_PATTERNS_MAX: usize = 4096;
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Settings that must be absent, null, false, empty or 0: each changes the result in a way that is not applied.
const REFUSED: &[(&str, &str)] = &[
    ("modules_to_save", "whole modules saved beside the factors"),
    ("layer_replication", "repeated layers"),
    ("alora_invocation_tokens", "an adapter that begins in the middle of a prompt"),
    ("trainable_token_indices", "token embeddings of its own"),
    ("target_parameters", "changes of parameters that are no linear layers"),
    ("lora_bias", "a bias of its own"),
    ("use_qalora", "QA-LoRA"),
    ("use_bdlora", "BD-LoRA"),
    ("kasa_config", "KaSA, which changes the base,"),
    ("lora_ga_config", "LoRA-GA, which changes the base,"),
    ("monteclora_config", "MonteCLoRA"),
    ("arrow_config", "routing between adapters"),
    ("megatron_config", "a Megatron layout"),
];

/// Ways to begin training that change the base weights as well.
const CHANGED_BASE: [&str; 4] = ["pissa", "olora", "corda", "loftq"];

/// Architectures whose converter multiplies weights by numbers that their files do not keep: what `transformers` adds to a weight is not
/// what is to be added to theirs.
const MULTIPLIED: [&str; 1] = ["falcon-h1"];

/// Reads the adapter in a folder.
///
/// # Errors
/// A file is missing, damaged or larger than it may be; the adapter is of a kind that is not applied; a module is not
/// known of this architecture.
pub fn read(folder: &Path, model: &ModelFacts) -> Result<Adapter, LoraError> {
    check_arch(model).map_err(|error| error.within(folder.display()))?;
    let path = folder.join(CONFIG);
    let config = Config::read(&path).map_err(|error| error.within(path.display()))?;
    let path = folder.join(WEIGHTS);
    let within = |error: LoraError| error.within(path.display());
    let map = map(&path).map_err(within)?;
    let watch = map.watch().clone();
    let deltas = read_tensors(&Bytes::from_owner(map), &config, model);
    let adapter = deltas.and_then(|deltas| Adapter::new(name_of(folder), deltas));
    // What was read of a file that was cut meanwhile may look like anything.
    cut(&watch).map_err(within)?;
    Ok(adapter.map_err(within)?.watching(vec![watch]))
}

/// Checks that what is added to weights of `transformers` is what is to be added to those of a file.
fn check_arch(model: &ModelFacts) -> Result<(), LoraError> {
    match MULTIPLIED.contains(&&*model.arch) {
        false => Ok(()),
        true => Err(unsupported(format!(
            "files of {} have its multipliers in their weights, and adapters of transformers do not; use a GGUF adapter",
            model.arch
        ))),
    }
}

/// What of the settings decides the result.
struct Config {
    rank: usize,
    alpha: f64,
    is_rs: bool,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
}

impl Config {
    fn read(path: &Path) -> Result<Config, LoraError> {
        let mut text = String::new();
        let mut file = File::open(path).map_err(io)?.take(CONFIG_BYTES_MAX + 1);
        file.read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > CONFIG_BYTES_MAX {
            let line = format!("more than {CONFIG_BYTES_MAX} bytes of settings");
            return Err(LoraError::new(LoraErrorKind::Limit, line));
        }
        let value = serde_json::from_str(&text).map_err(|error| invalid(format!("no JSON: {error}")))?;
        let Value::Object(fields) = value else { return Err(invalid("the settings are no JSON object")) };
        Config::of(&fields)
    }

    fn of(fields: &Map<String, Value>) -> Result<Config, LoraError> {
        let kind = fields.get("peft_type").and_then(Value::as_str).unwrap_or_default();
        if kind != "LORA" {
            return Err(unsupported(format!("peft_type '{}'; only LORA is applied", shown(kind))));
        }
        for (key, what) in REFUSED {
            if fields.get(*key).is_some_and(|value| !is_nothing(value)) {
                let value = shown(&fields[*key].to_string());
                return Err(unsupported(format!("{key} is {value}: {what} cannot be applied; train without")));
            }
        }
        let bias = fields.get("bias").and_then(Value::as_str).unwrap_or("none");
        if bias != "none" {
            return Err(unsupported(format!("bias is '{}': trained biases cannot be applied", shown(bias))));
        }
        let start = fields.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default();
        if CHANGED_BASE.iter().any(|name| start.to_lowercase().starts_with(name)) {
            let line =
                format!("init_lora_weights is '{}', which changes the base; convert it to a plain LoRA", shown(start));
            return Err(unsupported(line));
        }
        let number = |key: &str, default: f64| match fields.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| invalid(format!("{key} is no number"))),
        };
        let rank = number("r", 8.0)?;
        let is_rs = fields.get("use_rslora").and_then(Value::as_bool).unwrap_or(false);
        let (ranks, alphas) = (patterns(fields, "rank_pattern")?, patterns(fields, "alpha_pattern")?);
        Ok(Config { rank: rank as usize, alpha: number("lora_alpha", 8.0)?, is_rs, ranks, alphas })
    }

    /// Returns the rank and the scale of a module.
    fn of_module(&self, module: &str) -> (usize, f32) {
        let find = |patterns: &[(Regex, f64)]| {
            patterns.iter().find(|(pattern, _)| pattern.is_match(module)).map(|&(_, value)| value)
        };
        let rank = find(&self.ranks).map_or(self.rank, |rank| rank as usize);
        let alpha = find(&self.alphas).unwrap_or(self.alpha);
        let by = if self.is_rs { (rank as f64).sqrt() } else { rank as f64 };
        (rank, (alpha / by) as f32)
    }
}

/// Returns whether a setting says nothing.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Reads a table of module patterns. A key is a regular expression for a module or its end.
fn patterns(fields: &Map<String, Value>, name: &str) -> Result<Vec<(Regex, f64)>, LoraError> {
    let table = match fields.get(name) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(table)) => table,
        Some(_) => return Err(invalid(format!("{name} is no table"))),
    };
    if table.len() > N_PATTERNS_MAX {
        let line = format!("{name} has {} entries, at most {N_PATTERNS_MAX} are read", table.len());
        return Err(LoraError::new(LoraErrorKind::Limit, line));
    }
    let one = |(key, value): (&String, &Value)| {
        let value = value.as_f64().ok_or_else(|| invalid(format!("{name} of '{}' is no number", shown(key))))?;
        let regex = RegexBuilder::new(&format!(r"^(?:.*\.)?(?:{key})$")).size_limit(PATTERN_BYTES_MAX).build();
        let regex =
            regex.map_err(|_| invalid(format!("{name} has the pattern '{}', which cannot be read", shown(key))))?;
        Ok((regex, value))
    };
    table.iter().map(one).collect()
}

fn io(error: std::io::Error) -> LoraError {
    LoraError::new(LoraErrorKind::Io, error.to_string()).with_source(error)
}

/// Maps a file of tensors whose directory is of a sensible length.
fn map(path: &Path) -> Result<MappedFile, LoraError> {
    let file = File::open(path).map_err(io)?;
    let about = file.metadata().map_err(io)?;
    if !about.is_file() {
        return Err(invalid("it is no regular file"));
    }
    let n_bytes = about.len();
    let map = MappedFile::new(&file).map_err(io)?;
    let head = map.first_chunk::<8>().map(|head| u64::from_le_bytes(*head));
    match head {
        Some(head) if head <= HEADER_BYTES_MAX && head <= n_bytes - 8 => Ok(map),
        Some(head) if head <= n_bytes - 8 => {
            let line = format!("a directory of {head} bytes, at most {HEADER_BYTES_MAX} are read");
            Err(LoraError::new(LoraErrorKind::Limit, line))
        }
        _ => Err(invalid(format!("{n_bytes} bytes are no safetensors file; download it again"))),
    }
}

/// The parts of one module's change, as they are found.
#[derive(Default)]
struct Parts<'a> {
    a: Option<TensorView<'a>>,
    b: Option<TensorView<'a>>,
    magnitude: Option<TensorView<'a>>,
}

fn read_tensors(bytes: &Bytes, config: &Config, model: &ModelFacts) -> Result<Vec<Delta>, LoraError> {
    let tensors = SafeTensors::deserialize(bytes)
        .map_err(|error| invalid(format!("no sound safetensors file: {error}")).with_source(error))?;
    let mut parts: BTreeMap<String, Parts<'_>> = BTreeMap::new();
    // What is frozen is the model's own; PEFT saves that of a head or of embeddings beside its factors.
    for (name, view) in tensors.iter().filter(|(name, _)| !name.ends_with(".base_layer.weight")) {
        let (module, kind) = split_name(name).ok_or_else(|| {
            unsupported(format!(
                "tensor '{}' is no factor of a LoRA on a linear layer; only those are applied",
                shown(name)
            ))
        })?;
        let part = parts.entry(module.to_owned()).or_default();
        let place = match kind {
            Kind::A => &mut part.a,
            Kind::B => &mut part.b,
            Kind::Magnitude => &mut part.magnitude,
        };
        if place.replace(view).is_some() {
            return Err(invalid(format!("module '{}' has two adapters in one file; save one", shown(module))));
        }
    }
    let take = |(module, part): (String, Parts<'_>)| {
        take(bytes, &module, part, config, model).map_err(|error| error.within(format_args!("'{}'", shown(&module))))
    };
    parts.into_iter().map(take).collect()
}

#[derive(Clone, Copy)]
enum Kind {
    A,
    B,
    Magnitude,
}

/// Splits a tensor's name into module and part. Some writers leave the adapter's name in it (`.lora_A.default.weight`).
fn split_name(name: &str) -> Option<(&str, Kind)> {
    let name = name.strip_prefix("base_model.model.").unwrap_or(name);
    let marks = [(".lora_A.", Kind::A), (".lora_B.", Kind::B), (".lora_magnitude_vector", Kind::Magnitude)];
    let (at, mark, kind) = marks.iter().find_map(|&(mark, kind)| Some((name.rfind(mark)?, mark, kind)))?;
    let (module, rest) = (&name[..at], &name[at + mark.len()..]);
    let is_whole = match kind {
        Kind::Magnitude => rest.is_empty() || rest == ".weight" || rest.matches('.').count() <= 2,
        Kind::A | Kind::B => rest == "weight" || rest.strip_suffix(".weight").is_some_and(|name| !name.contains('.')),
    };
    is_whole.then_some((module, kind))
}

fn take(bytes: &Bytes, module: &str, part: Parts<'_>, config: &Config, model: &ModelFacts) -> Result<Delta, LoraError> {
    let (Some(a), Some(b)) = (part.a, part.b) else { return Err(invalid("lora_A or lora_B is missing")) };
    let (target, order) = names::to_gguf(module, model).ok_or_else(|| {
        shape(format!("the module is no linear layer of the architecture '{}' that is known", model.arch))
    })?;
    let (a, b) = (values(bytes, &a)?, values(bytes, &b)?);
    let (rank, scale) = config.of_module(module);
    if a.n_rows() != rank {
        return Err(invalid(format!("the settings say rank {rank}, the tensor has {}", a.n_rows())));
    }
    let magnitude = part.magnitude.map(|view| values(bytes, &view)).transpose()?;
    Delta::new(target, scale, FactorPair { a, b }, magnitude, order)
}

/// Returns a tensor's values, in the file's mapping.
fn values(bytes: &Bytes, view: &TensorView<'_>) -> Result<Values, LoraError> {
    let ty = match view.dtype() {
        Dtype::F32 => GgmlType::F32,
        Dtype::F16 => GgmlType::F16,
        Dtype::BF16 => GgmlType::BF16,
        other => return Err(unsupported(format!("values of type {other:?}; save them as F32, F16 or BF16"))),
    };
    let (n_rows, n_cols) = match *view.shape() {
        [n_rows, n_cols] => (n_rows, n_cols),
        [n] => (n, 1),
        ref other => return Err(invalid(format!("shape {other:?} is no matrix"))),
    };
    Values::new(ty, n_rows, n_cols, bytes.slice_ref(view.data()))
}

/// Writes an adapter as a PEFT folder, which is made: F32 values, scales as alphas of their modules.
///
/// # Errors
/// A target has no module in the model's class, a value is not a number, or the folder cannot be written.
pub fn write(adapter: &Adapter, model: &ModelFacts, folder: &Path) -> Result<(), LoraError> {
    check_arch(model)?;
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (mut ranks, mut alphas, mut modules) = (Map::new(), Map::new(), BTreeSet::new());
    let first = adapter.deltas().next().expect("an adapter has a delta");
    let (rank, alpha) = (first.rank(), f64::from(first.scale) * first.rank() as f64);
    for delta in adapter.deltas() {
        let (module, order) = names::to_hf(&delta.target, model).ok_or_else(|| {
            let line = format!("'{}' is no module of its own in '{}' models of transformers", delta.target, model.arch);
            unsupported(line)
        })?;
        order.check(delta.n_out())?;
        let name = |part: &str| format!("base_model.model.{module}.{part}");
        let (n_rank, n_out) = (delta.rank(), delta.n_out());
        tensors.push((name("lora_A.weight"), vec![n_rank, delta.n_in()], bytes(&delta.a()?)));
        let b = reordered(&delta.b()?, order, n_rank);
        tensors.push((name("lora_B.weight"), vec![n_out, n_rank], bytes(&b)));
        if let Some(magnitude) = delta.magnitude()? {
            let magnitude = reordered(&magnitude, order, 1);
            tensors.push((name("lora_magnitude_vector"), vec![n_out], bytes(&magnitude)));
        }
        let own_alpha = f64::from(delta.scale) * n_rank as f64;
        let pattern = module.replace('.', r"\.");
        if n_rank != rank {
            ranks.insert(pattern.clone(), json!(n_rank));
        }
        if own_alpha != alpha {
            alphas.insert(pattern, json!(own_alpha));
        }
        modules.insert(module);
    }
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": null, "inference_mode": true,
        "r": rank, "lora_alpha": alpha, "lora_dropout": 0.0, "bias": "none", "use_rslora": false,
        "use_dora": adapter.deltas().any(Delta::is_dora), "fan_in_fan_out": model.arch == "gpt2",
        "target_modules": modules, "rank_pattern": ranks, "alpha_pattern": alphas,
    });
    save(folder, &tensors, &config)
}

/// Brings rows from the order of the GGUF tensor into that of the module.
fn reordered(values: &[f32], order: RowOrder, n_cols: usize) -> Vec<f32> {
    let (mut out, n) = (vec![0.0; values.len()], values.len() / n_cols);
    for (j, row) in values.chunks_exact(n_cols).enumerate() {
        out[order.source(j, n) * n_cols..][..n_cols].copy_from_slice(row);
    }
    out
}

fn save(folder: &Path, tensors: &[(String, Vec<usize>, Vec<u8>)], config: &Value) -> Result<(), LoraError> {
    std::fs::create_dir_all(folder).map_err(|error| io(error).within(folder.display()))?;
    let mut views = Vec::with_capacity(tensors.len());
    for (name, shape, bytes) in tensors {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("the shape has as many values");
        views.push((name.clone(), view));
    }
    // Both files appear when they are complete, the settings last.
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = safetensors::serialize(views, Some(about))
        .map_err(|error| invalid(format!("cannot be written: {error}")).with_source(error))?;
    let text = serde_json::to_vec_pretty(config).expect("a value is JSON");
    super::replace(&folder.join(WEIGHTS), &bytes)?;
    super::replace(&folder.join(CONFIG), &text)
}
