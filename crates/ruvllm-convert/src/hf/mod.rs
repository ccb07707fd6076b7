//! Folders of the Hugging Face hub, made into GGUF files.
//!
//! ```text
//! config.json ──► architecture (a table of names, keys and treatments) ──► keys
//! tokenizer.* ──► tokens, merges, special ids, templates ───────────────► keys
//! *.safetensors ──► directory, checked ──► plan: views and arithmetic ──► tensors, a part at a time
//! ```
//! The names, the order of values and the keys are those of llama.cpp's converter. Everything is planned and checked before the first value
//! is read, also by reading the description of the model that the file would hold.

mod arch;
mod card;
mod checkpoint;
mod config;
mod folder;
mod front_matter;
mod pooling;
mod stored;
mod stream;
mod tensors;
mod view;
mod vocab;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, GgufWriter, Metadata};
use ruvllm_model::ModelSpec;

use self::arch::{Architecture, Keys, MadeTensor};
use self::card::{CardOptions, ParameterCounts};
use self::checkpoint::{Checkpoint, Quantization};
use self::config::Config;
use self::folder::Folder;
use self::stream::Run;
use self::tensors::{Planned, Planner};
use crate::error::{ConvertError, ConvertErrorKind};
use crate::options::{KeepRule, QuantizeOptions};
use crate::quantize::{planned_bytes, quantize};
use crate::recipe::Recipe;
use crate::space;

/// Version of the block formats that files name (`general.quantization_version`).
const QUANTIZATION_VERSION: u32 = 2;

/// Type of the matrices of a converted file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertType {
    /// 32 bits.
    F32,
    /// 16 bits, or fewer by a recipe.
    Recipe(Recipe),
}

impl ConvertType {
    /// Finds a type by its name, in capital or small letters.
    ///
    /// # Errors
    /// There is none of this name; the line lists them.
    pub fn parse(name: &str) -> Result<ConvertType, ConvertError> {
        match name.eq_ignore_ascii_case("F32") {
            true => Ok(ConvertType::F32),
            false => Recipe::parse(name).map(ConvertType::Recipe),
        }
    }

    /// Returns the name, e.g. `F16`.
    pub fn name(self) -> &'static str {
        match self {
            ConvertType::F32 => "F32",
            ConvertType::Recipe(recipe) => recipe.name(),
        }
    }

    /// Checks that [`convert`] makes files of this type, before there is a folder.
    ///
    /// # Errors
    /// It needs an importance matrix.
    pub fn check(self) -> Result<(), ConvertError> {
        match self {
            ConvertType::Recipe(recipe) if recipe.needs_importance() => {
                let line = format!(
                    "{recipe} needs an importance matrix: convert to F16, then quantise with 'ruvllm quantize --imatrix'"
                );
                Err(ConvertError::usage(line))
            }
            _ => Ok(()),
        }
    }
}

/// Options of [`convert`].
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// Type of the matrices; none: the 16 bits that the checkpoint has, else F16.
    pub ty: Option<ConvertType>,
    /// The model's name; none: as its card or its folder says.
    pub name: Option<String>,
    /// The folder's name, in the place of the one it has here.
    pub folder_name: Option<String>,
    /// The card is not read, as if there were none.
    pub is_without_card: bool,
    /// Name of the rule by which texts are cut into words, for tokenizers of which it is not known.
    pub pre: Option<String>,
    /// Threads; none: as many as the machine has.
    pub n_threads: Option<NonZeroUsize>,
}

/// Progress of [`convert`], told a few times a second; work ends when the callback breaks.
#[derive(Clone, Copy, Debug)]
pub struct ConvertProgress<'a> {
    /// Whether the converted file is quantised by now.
    pub is_quantizing: bool,
    /// Name of the tensor that is written.
    pub tensor: &'a str,
    /// Bytes of tensors that were read, in this step.
    pub done_bytes: u64,
    /// Bytes of all tensors, in this step.
    pub total_bytes: u64,
}

/// Outcome of [`convert`].
#[derive(Clone, Debug)]
pub struct ConvertSummary {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Type of the matrices.
    pub ty: ConvertType,
    /// Bytes of the checkpoint's tensors.
    pub input_bytes: u64,
    /// Size of the file in bytes.
    pub output_bytes: u64,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Number of values.
    pub n_values: u64,
    /// Number of tokens.
    pub n_tokens: usize,
    /// Name of the rule by which texts are cut into words.
    pub pre: String,
}

/// Writes the model in a folder of the Hugging Face hub to a GGUF file.
///
/// The folder has `config.json`, safetensors in one file or several, and a tokenizer. The output appears under its name when it is whole
/// and on the disk. In memory there are some values at a time, whatever the size of the model. A type of fewer than 16 bits
/// is made of an intermediate file beside the output, which is removed.
///
/// # Errors
/// Before anything slow: the model is of a class that is not converted, a file is missing, damaged or contradicts another, the disk is too
/// full. Later: `progress` breaks it off, values that are not finite or too large for the type, and files that cannot be read or
/// written.
pub fn convert(
    folder: &Path,
    output: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress<'_>) -> ControlFlow<()>,
) -> Result<ConvertSummary, ConvertError> {
    options.ty.map_or(Ok(()), ConvertType::check)?;
    let source = Source::open(folder, options)?;
    space::check_output(folder, output)?;
    let ty = options.ty.unwrap_or_else(|| natural(tensors::natural_type(&source.checkpoint)));
    let base = match ty {
        ConvertType::F32 => GgmlType::F32,
        ConvertType::Recipe(Recipe::F16) => GgmlType::F16,
        ConvertType::Recipe(Recipe::BF16) => GgmlType::BF16,
        ConvertType::Recipe(_) => tensors::exact_type(&source.checkpoint),
    };
    let plan = source.plan(base, options).map_err(|error| error.at(folder))?;
    let mut summary = plan.summary(&source, ty);
    let recipe = match ty {
        ConvertType::Recipe(recipe) if !matches!(recipe, Recipe::F16 | Recipe::BF16) => recipe,
        _ => {
            summary.output_bytes = plan.write(&source, output, None, progress)?;
            return Ok(summary);
        }
    };
    let mut quantize_options = QuantizeOptions::new(recipe);
    quantize_options.n_threads = options.n_threads;
    // Experts that were trained in MXFP4 stay in it.
    quantize_options.keep = if plan.has_mxfp4() { vec![KeepRule::parse("_exps.weight=MXFP4")?] } else { Vec::new() };
    let between = Temporary::beside(output, ".unquantised.part");
    plan.write(&source, &between.0, Some(&quantize_options), progress)?;
    let quantized = quantize(&between.0, output, &quantize_options, &mut |told| {
        let (tensor, done_bytes, total_bytes) = (told.tensor, told.done_bytes, told.total_bytes);
        progress(ConvertProgress { is_quantizing: true, tensor, done_bytes, total_bytes })
    })?;
    summary.output_bytes = quantized.output_bytes;
    Ok(summary)
}

/// Checks what the descriptions in a folder say of its model, as [`convert`] does before it looks at weights, which need not be there: a
/// download of them that would be refused need not begin. Cheap: files of some megabytes are read. `ty`: as in [`ConvertOptions`].
///
/// # Errors
/// As [`convert`]: the type, the class of the model, how it was quantised, its settings or its tokenizer are not converted. How the
/// tokenizer cuts texts is asked by [`convert`] alone, as its caller may name it.
pub fn check_folder(folder: &Path, ty: Option<ConvertType>) -> Result<(), ConvertError> {
    ty.map_or(Ok(()), ConvertType::check)?;
    let described = Described::read(folder, None)?;
    let checked = described.vocab(Some("default")).and_then(|_| described.own());
    checked.map(drop).map_err(|error| error.at(folder))
}

/// Files of a folder that [`convert`] reads where they are there, but for those with weights ([`weight_files`]): what a download needs. The
/// first must be there, and one of the tokenizers. A `*` stands for any name.
pub const DESCRIPTION_FILES: [&str; 16] = [
    "config.json",
    checkpoint::INDEX,
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "chat_template.json",
    "generation_config.json",
    "modules.json",
    "1_Pooling/config.json",
    CARD,
];

/// The card of a folder, among [`DESCRIPTION_FILES`].
pub const CARD: &str = "README.md";

/// Returns the names of the files with the weights of a folder whose descriptions are there.
///
/// # Errors
/// There is no such folder, or its index is damaged.
pub fn weight_files(folder: &Path) -> Result<Vec<String>, ConvertError> {
    checkpoint::weight_files(&Folder::open(folder)?)
}

/// Returns whether a folder is one that [`convert`] may read: it has a configuration and no GGUF file is meant.
pub fn is_model_folder(path: &Path) -> bool {
    path.is_dir() && path.join("config.json").is_file()
}

fn natural(ty: GgmlType) -> ConvertType {
    ConvertType::Recipe(if ty == GgmlType::BF16 { Recipe::BF16 } else { Recipe::F16 })
}

/// A file that is needed for a while, removed in the end.
struct Temporary(PathBuf);

impl Temporary {
    fn beside(output: &Path, ending: &str) -> Temporary {
        let mut path = output.as_os_str().to_owned();
        path.push(ending);
        Temporary(path.into())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // It is not there if writing it failed.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A folder whose descriptions were read; its weights need not be there.
struct Described {
    folder: Folder,
    config: Config,
    architecture: &'static Architecture,
    quantization: Quantization,
}

/// Keys and tensors that an architecture computes of a configuration.
struct Own {
    metadata: Metadata,
    made: Vec<MadeTensor>,
}

/// A folder's tokenizer as keys of a file.
struct Vocab {
    metadata: Metadata,
    n_tokens: usize,
}

impl Described {
    fn read(path: &Path, name: Option<String>) -> Result<Described, ConvertError> {
        let folder = Folder::open(path)?.named(name);
        let mut config = Config::read(&folder)?;
        let architecture = arch::find(config.architecture()).map_err(|error| error.at(path))?;
        config.assume(architecture.assumed);
        let quantization = Quantization::of(&config.value()).map_err(|error| error.at(path))?;
        Ok(Described { folder, config, architecture, quantization })
    }

    fn vocab(&self, pre: Option<&str>) -> Result<Vocab, ConvertError> {
        let mut metadata = Metadata::new();
        let n_tokens = vocab::write(&self.folder, &self.config, self.architecture.vocab, pre, &mut metadata)?;
        Ok(Vocab { metadata, n_tokens })
    }

    fn own(&self) -> Result<Own, ConvertError> {
        let Described { config, architecture, .. } = self;
        let mut metadata = Metadata::new();
        let mut keys = Keys::new(architecture.name, &mut metadata);
        for rules in architecture.keys {
            keys.apply(rules, config)?;
        }
        (architecture.computed)(config, &mut keys)?;
        let made = (architecture.made)(config, &mut keys)?;
        if let Some(pooling) = self.pooling(&mut keys)? {
            keys.count("pooling_type", pooling as usize);
        }
        Ok(Own { metadata, made })
    }

    /// Returns how the vectors of an encoder's tokens become one. Rankers look at the first, and encoders of sentences that do not say it
    /// mean the mean.
    fn pooling(&self, keys: &mut Keys<'_>) -> Result<Option<u32>, ConvertError> {
        let is_encoder = self.architecture.name == "bert";
        if keys.has("pooling_type") || !(is_encoder || self.architecture.name.starts_with("qwen")) {
            return Ok(None);
        }
        let found = pooling::find(&self.folder)?;
        Ok(found.or(is_encoder.then_some(1)))
    }
}

/// A folder, opened and checked.
struct Source {
    described: Described,
    checkpoint: Checkpoint,
}

impl Source {
    fn open(path: &Path, options: &ConvertOptions) -> Result<Source, ConvertError> {
        let described = Described::read(path, options.folder_name.clone())?;
        let mut checkpoint = Checkpoint::open(&described.folder)?;
        checkpoint.dequantize(&described.quantization).map_err(|error| error.at(path))?;
        Ok(Source { described, checkpoint })
    }

    /// Plans the file.
    fn plan(&self, base: GgmlType, options: &ConvertOptions) -> Result<Plan, ConvertError> {
        let Source { described, checkpoint } = self;
        let Described { folder, config, architecture, .. } = described;
        let Vocab { metadata: vocab, n_tokens } = described.vocab(options.pre.as_deref())?;
        let Own { metadata: own, made } = described.own()?;
        let tensors = Planner::new(architecture, config, checkpoint, base, n_tokens).plan(made)?;
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", architecture.name);
        metadata.set("general.type", "model");
        let card = CardOptions { name: options.name.as_deref(), is_left_out: options.is_without_card };
        card::write(folder, counts(&tensors), card, &mut metadata)?;
        own.iter().for_each(|(key, value)| metadata.set(key, value.clone()));
        metadata.set("general.file_type", file_type(base, &tensors));
        metadata.set("general.quantization_version", QUANTIZATION_VERSION);
        vocab.iter().for_each(|(key, value)| metadata.set(key, value.clone()));
        Ok(Plan { metadata, tensors, n_tokens })
    }
}

/// Returns the number of a file's type.
fn file_type(base: GgmlType, tensors: &[Planned]) -> u32 {
    match base {
        _ if tensors.iter().any(|tensor| tensor.ty == GgmlType::MXFP4) => Recipe::MXFP4_MOE.file_type(),
        GgmlType::BF16 => Recipe::BF16.file_type(),
        GgmlType::F16 => Recipe::F16.file_type(),
        _ => 0,
    }
}

/// Counts parameters.
fn counts(tensors: &[Planned]) -> ParameterCounts {
    let (mut counts, mut n_stacks, mut n_in_stacks) = (ParameterCounts::default(), 0, 0);
    for Planned { name, shape, .. } in tensors {
        let n: u64 = shape.iter().map(|&n| n as u64).product();
        counts.total += n;
        let behind = if name.ends_with(".bias") { 2 } else { 3 };
        match shape.len().checked_sub(behind).map(|place| shape[place] as u64) {
            Some(n_experts) if name.contains("_exps.") && shape.len() >= 3 => {
                counts.expert += n / n_experts;
                n_in_stacks += n_experts;
                n_stacks += 1;
            }
            _ => counts.shared += n,
        }
    }
    counts.n_experts = n_in_stacks.checked_div(n_stacks).unwrap_or(0);
    counts
}

/// Plan of a file.
struct Plan {
    metadata: Metadata,
    tensors: Vec<Planned>,
    n_tokens: usize,
}

impl Plan {
    fn has_mxfp4(&self) -> bool {
        self.tensors.iter().any(|tensor| tensor.ty == GgmlType::MXFP4)
    }

    fn summary(&self, source: &Source, ty: ConvertType) -> ConvertSummary {
        let pre = self.metadata.str("tokenizer.ggml.pre").ok().flatten().unwrap_or_default();
        ConvertSummary {
            architecture: source.described.architecture.name,
            ty,
            input_bytes: source.checkpoint.n_bytes(),
            output_bytes: 0,
            n_tensors: self.tensors.len(),
            n_values: self.tensors.iter().map(|tensor| tensor.shape.iter().map(|&n| n as u64).product::<u64>()).sum(),
            n_tokens: self.n_tokens,
            pre: pre.to_owned(),
        }
    }

    /// Writes the file, from which `next` will make another beside it.
    fn write(
        &self,
        source: &Source,
        output: &Path,
        next: Option<&QuantizeOptions>,
        progress: &mut dyn FnMut(ConvertProgress<'_>) -> ControlFlow<()>,
    ) -> Result<u64, ConvertError> {
        let total_bytes = self.tensors.iter().map(|tensor| tensor.values.source_bytes()).sum();
        let run = Run::new(progress, total_bytes);
        let mut writer = GgufWriter::new();
        *writer.metadata_mut() = self.metadata.clone();
        let mut n_bytes = 0;
        for tensor in &self.tensors {
            let shape: Vec<usize> = tensor.shape.iter().rev().copied().collect();
            n_bytes += tensor.ty.row_bytes(tensor.shape.iter().product()).unwrap_or(0) as u64;
            writer.add_tensor(&*tensor.name, tensor.ty, &shape, run.stream(tensor))?;
        }
        let folder = source.described.folder.path();
        space::check(output, n_bytes)?;
        let next_bytes = check(&writer, output, next).map_err(|error| error.at(folder))?;
        space::check(output, n_bytes + next_bytes)?;
        let written = writer.write_file(output);
        if let Some(error) = run.into_error() {
            return Err(error.at(folder));
        }
        let written = written?;
        if let Err(error) = source.checkpoint.check_whole() {
            let _ = std::fs::remove_file(output);
            return Err(error);
        }
        Ok(written)
    }
}

/// Checks that a file holds a model that can be loaded, and that `next` can be made of it, before its values are written. Returns the bytes
/// of the tensors of `next`.
fn check(writer: &GgufWriter<'_>, output: &Path, next: Option<&QuantizeOptions>) -> Result<u64, ConvertError> {
    let hollow = Temporary::beside(output, ".check.part");
    writer.write_hollow(&hollow.0)?;
    let file = GgufFile::open(&hollow.0)?;
    let wrong = |line: String| ConvertError::invalid(format!("the checkpoint makes no whole model: {line}"));
    ModelSpec::read(&file, None).map(drop).map_err(|error| wrong(error.to_string()))?;
    let tokenizer = ruvllm_text::tokenizer::Tokenizer::from_metadata(file.metadata());
    tokenizer.map(drop).map_err(|error| ConvertError::new(ConvertErrorKind::Invalid, error.to_string()))?;
    next.map_or(Ok(0), |next| planned_bytes(&file, next))
}
