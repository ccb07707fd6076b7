//! `ruvllm lora`: adapters under names, what is in them, and merging.

#[cfg(feature = "train")]
mod train;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use ruvllm_engine::{AdapterSet, Engine, FactorFormat, LoadOptions};
use ruvllm_gguf::GgufFile;
use ruvllm_lora::format::{self, ModelFacts, gguf, peft};
use ruvllm_lora::manager::check_name;
use ruvllm_lora::merge::{Merged, Method, merge};
use ruvllm_lora::{Adapter, LoraError, mixture};
use serde_json::json;

use super::App;
use crate::args::{ModelArgs, OutputArgs};
use crate::check;
use crate::error::{Error, Result};
use crate::output::{bytes, count, print, print_json, print_line, table};

const EXAMPLES: &str = "\
Examples:
  ruvllm lora info ./adapter
  ruvllm lora add poet ./adapter && ruvllm run --lora poet --prompt \"A line about rain.\"
  ruvllm lora merge ./a:0.7 ./b:0.3 --rank 8 --out merged.gguf
  ruvllm lora merge poet --into-model --out poet-model.gguf
  ruvllm lora export poet --out ./peft-folder

An adapter is a PEFT folder (adapter_config.json, adapter_model.safetensors), a GGUF file, or a name
that 'ruvllm lora add' gave.";

/// `ruvllm lora`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct LoraCommand {
    #[command(subcommand)]
    command: LoraSubcommand,
}

#[derive(Debug, Subcommand)]
enum LoraSubcommand {
    /// List the adapters that have a name
    List(ListArgs),
    /// Check an adapter against a model and keep a copy under a name
    Add(AddArgs),
    /// Remove a named adapter
    Rm(RmArgs),
    /// Show what is in an adapter
    Info(InfoArgs),
    /// Make one adapter of several
    Merge(MergeArgs),
    /// Write an adapter as a GGUF file or a PEFT folder
    Export(ExportArgs),
    /// Train an adapter on examples
    #[cfg(feature = "train")]
    Train(Box<train::TrainArgs>),
}

#[derive(Args, Debug)]
struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct AddArgs {
    /// What to call it: letters, digits, '.', '_' and '-'
    name: String,
    /// A PEFT folder or a GGUF file
    path: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct RmArgs {
    /// The name
    name: String,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct InfoArgs {
    /// A name, a PEFT folder or a GGUF file
    adapter: String,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct MergeArgs {
    /// Adapters, each with its weight behind ':' if it is not 1
    #[arg(required = true, value_name = "ADAPTER[:WEIGHT]")]
    adapters: Vec<LoraArg>,
    /// How
    #[arg(long, value_enum, default_value_t = MethodArg::Linear)]
    method: MethodArg,
    /// The rank of the result [default: the sum of the ranks; ties and dare: the largest]
    #[arg(long, value_name = "N")]
    rank: Option<usize>,
    /// The share of values that ties and dare keep
    #[arg(long, value_name = "P", default_value_t = 0.5)]
    density: f64,
    /// How far slerp goes from the first to the second
    #[arg(long, value_name = "T", default_value_t = 0.5)]
    t: f64,
    /// Decides which values dare drops
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Where to write: a GGUF file, or a PEFT folder if the name has another ending
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// Write the model with the adapters in it instead of an adapter: each is added with its weight
    #[arg(long, conflicts_with_all = ["method", "rank", "density", "t", "seed"])]
    into_model: bool,
    /// How the changed tensors of the model are written
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = MergedArg::F16, requires = "into_model")]
    tensors: MergedArg,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MergedArg {
    /// 32-bit floats
    F32,
    /// 16-bit floats
    F16,
    /// 8 bits with a scale per 32
    Q8,
}

#[derive(Args, Debug)]
struct ExportArgs {
    /// A name, a PEFT folder or a GGUF file
    adapter: String,
    /// Where to write: a GGUF file, or a PEFT folder if the name has another ending
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MethodArg {
    /// The weighted mean
    Linear,
    /// The weighted sum (task arithmetic); with a rank it is cut back to that
    Sum,
    /// Along the arc between two
    Slerp,
    /// Trim, elect signs, mean
    Ties,
    /// Drop at random and rescale
    Dare,
}

/// An adapter and the number behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraArg {
    adapter: String,
    scale: f32,
}

impl FromStr for LoraArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<LoraArg, String> {
        // A path may hold colons; what is no number belongs to it.
        let split = text.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        let (adapter, scale) = split.unwrap_or((text, 1.0));
        if adapter.is_empty() || !scale.is_finite() {
            return Err("use PATH or PATH:SCALE".to_owned());
        }
        Ok(LoraArg { adapter: adapter.to_owned(), scale })
    }
}

/// Adapters that a command applies.
#[derive(Args, Clone, Debug)]
pub struct LoraArgs {
    /// Apply a LoRA adapter, with a scale behind ':' if it is not 1; may be given several times
    #[arg(long, value_name = "NAME|PATH[:SCALE]", help_heading = "Model")]
    pub lora: Vec<LoraArg>,
}

impl LoraArgs {
    /// Checks that the adapters are there.
    ///
    /// # Errors
    /// One is not, or adapters with a gate do not stand alone.
    pub fn check(&self, app: &App) -> Result<()> {
        let paths: Vec<PathBuf> = self.lora.iter().map(|arg| locate(app, &arg.adapter)).collect();
        paths.iter().try_for_each(|path| check_there(path))?;
        self.mixture(&paths).map(drop)
    }

    /// Checks that the adapters can be read for a model's file.
    ///
    /// # Errors
    /// One is damaged, or of another architecture.
    pub fn check_for(&self, app: &App, model: &Path) -> Result<()> {
        if self.lora.is_empty() {
            return Ok(());
        }
        let facts = ModelFacts::of_file(&GgufFile::open(model)?)?;
        let paths = self.lora.iter().map(|arg| locate(app, &arg.adapter));
        paths.filter(|path| !mixture::is_mixture(path)).try_for_each(|path| Ok(format::read(&path, &facts).map(drop)?))
    }

    /// Returns the folder of adapters with a gate, if one is meant.
    fn mixture<'a>(&self, paths: &'a [PathBuf]) -> Result<Option<&'a Path>> {
        match paths.iter().find(|path| mixture::is_mixture(path)) {
            Some(folder) if self.lora.len() > 1 || self.lora[0].scale != 1.0 => {
                let folder = folder.display();
                Err(Error::usage(format_args!(
                    "{folder} is several adapters with a gate; it stands alone and has no scale"
                )))
            }
            folder => Ok(folder.map(PathBuf::as_path)),
        }
    }

    /// Loads the adapters for a model.
    ///
    /// # Errors
    /// One cannot be read or does not fit the model, or they are too many.
    pub fn load(&self, app: &App, engine: &Engine) -> Result<AdapterSet> {
        if self.lora.is_empty() {
            return Ok(AdapterSet::default());
        }
        let loader = engine.adapter_loader()?;
        let paths: Vec<PathBuf> = self.lora.iter().map(|arg| locate(app, &arg.adapter)).collect();
        if let Some(folder) = self.mixture(&paths)? {
            return Ok(loader.load_mixture(folder, FactorFormat::default())?);
        }
        let mut adapters = Vec::with_capacity(self.lora.len());
        for (path, arg) in paths.iter().zip(&self.lora) {
            adapters.push((loader.load(path, FactorFormat::default())?, arg.scale));
        }
        Ok(AdapterSet::new(adapters)?)
    }
}

/// Checks that an adapter is there: a folder, or a file that can be read.
///
/// # Errors
/// It is not.
pub(super) fn check_there(path: &Path) -> Result<()> {
    if path.is_dir() { Ok(()) } else { check::readable(path) }
}

/// Checks that an adapter can be written in the form that the path's ending asks for.
fn check_out(path: &Path) -> Result<()> {
    if is_gguf(path) { check::writable(path, &[]) } else { check::writable_folder(path) }
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "gguf")
}

/// Returns the folder of named adapters.
fn folder(app: &App) -> PathBuf {
    app.settings.home.join("adapters")
}

/// Returns where an adapter is: what was added under the name, else the path.
pub(super) fn locate(app: &App, adapter: &str) -> PathBuf {
    let is_name = check_name(adapter).is_ok();
    let named = [folder(app).join(format!("{adapter}.gguf")), folder(app).join(adapter)];
    named.into_iter().find(|path| is_name && path.exists()).unwrap_or_else(|| PathBuf::from(adapter))
}

impl LoraCommand {
    /// Does what the subcommand says.
    ///
    /// # Errors
    /// A failure that names the adapter and what is wrong with it.
    pub fn run(&self, app: &App) -> Result<()> {
        match &self.command {
            LoraSubcommand::List(args) => args.run(app),
            LoraSubcommand::Add(args) => args.run(app),
            LoraSubcommand::Rm(args) => args.run(app),
            LoraSubcommand::Info(args) => args.run(app),
            LoraSubcommand::Merge(args) => args.run(app),
            LoraSubcommand::Export(args) => args.run(app),
            #[cfg(feature = "train")]
            LoraSubcommand::Train(args) => args.run(app),
        }
    }
}

/// Returns what of the model decides how adapters are read.
fn facts(app: &App, model: &ModelArgs) -> Result<ModelFacts> {
    let path = app.store().locate(&model.model, true)?;
    Ok(ModelFacts::of_file(&GgufFile::open(&path)?)?)
}

fn read(app: &App, adapter: &str, facts: &ModelFacts) -> Result<Adapter> {
    Ok(format::read(&locate(app, adapter), facts)?)
}

/// Writes an adapter in the form that the path's ending asks for.
fn write(adapter: &Adapter, facts: &ModelFacts, path: &Path) -> Result<()> {
    Ok(if is_gguf(path) { gguf::write(adapter, facts, path) } else { peft::write(adapter, facts, path) }?)
}

impl ListArgs {
    fn run(&self, app: &App) -> Result<()> {
        let folder = folder(app);
        let mut all = Vec::new();
        // A folder that is not there has nothing in it.
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let name = name.strip_suffix(".gguf").unwrap_or(&name).to_owned();
            let files = if path.is_dir() {
                vec![path.join(peft::CONFIG), path.join(peft::WEIGHTS)]
            } else {
                vec![path.clone()]
            };
            let n_bytes: u64 =
                files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|about| about.len()).sum();
            if check_name(&name).is_ok() {
                all.push((name, path, n_bytes));
            }
        }
        all.sort();
        if self.output.json {
            let one = |(name, path, n_bytes): &(String, PathBuf, u64)| json!({ "name": name, "path": path, "bytes": n_bytes });
            return print_json(&json!({ "adapters": all.iter().map(one).collect::<Vec<_>>() }));
        }
        if all.is_empty() {
            return print_line("no adapters; 'ruvllm lora add NAME PATH' adds one");
        }
        let mut rows = vec![["NAME", "FORM", "SIZE"].map(str::to_owned).to_vec()];
        for (name, path, n_bytes) in all {
            rows.push(vec![name, if path.is_dir() { "peft" } else { "gguf" }.to_owned(), bytes(n_bytes)]);
        }
        print(&table(&rows, &[2]))
    }
}

impl AddArgs {
    fn run(&self, app: &App) -> Result<()> {
        check_name(&self.name)?;
        check_there(&self.path)?;
        check::writable_folder(&folder(app))?;
        let facts = facts(app, &self.model)?;
        let adapter = format::read(&self.path, &facts)?;
        adapter.check_values()?;
        let folder = folder(app);
        std::fs::create_dir_all(&folder).map_err(cannot_write(&folder))?;
        remove(app, &self.name)?;
        let is_peft = self.path.is_dir() || self.path.file_name().is_some_and(|name| name == peft::CONFIG);
        let to = if is_peft { folder.join(&self.name) } else { folder.join(format!("{}.gguf", self.name)) };
        if is_peft {
            let from = if self.path.is_dir() { &*self.path } else { self.path.parent().unwrap_or(Path::new(".")) };
            std::fs::create_dir_all(&to).map_err(cannot_write(&to))?;
            for file in [peft::WEIGHTS, peft::CONFIG] {
                std::fs::copy(from.join(file), to.join(file)).map_err(cannot_write(&to))?;
            }
        } else {
            std::fs::copy(&self.path, &to).map_err(cannot_write(&to))?;
        }
        if self.output.json {
            return print_json(&json!({ "name": self.name, "path": to }));
        }
        print_line(&format!("added {}, {} values of rank up to {}", self.name, adapter.n_params(), adapter.rank_max()))
    }
}

/// Returns what makes an error of one in writing to `path`.
fn cannot_write(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |error| Error::io("write", path, &error)
}

/// Removes a named adapter, and returns whether there was one.
fn remove(app: &App, name: &str) -> Result<bool> {
    check_name(name)?;
    let (file, dir) = (folder(app).join(format!("{name}.gguf")), folder(app).join(name));
    let is_there = file.exists() || dir.exists();
    if file.exists() {
        std::fs::remove_file(&file).map_err(|error| Error::io("remove", &file, &error))?;
    }
    if dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(|error| Error::io("remove", &dir, &error))?;
    }
    Ok(is_there)
}

impl RmArgs {
    fn run(&self, app: &App) -> Result<()> {
        if !remove(app, &self.name)? {
            return Err(Error::failure(format_args!("there is no adapter '{}'; see 'ruvllm lora list'", self.name)));
        }
        if self.output.json {
            return print_json(&json!({ "name": self.name }));
        }
        print_line(&format!("removed {}", self.name))
    }
}

impl InfoArgs {
    fn run(&self, app: &App) -> Result<()> {
        check_there(&locate(app, &self.adapter))?;
        let adapter = read(app, &self.adapter, &facts(app, &self.model)?)?;
        adapter.check_values()?;
        if self.output.json {
            let targets = adapter.deltas().map(|delta| {
                json!({
                    "tensor": delta.target, "rank": delta.rank(), "scale": delta.scale, "inputs": delta.n_in(),
                    "outputs": delta.n_out(), "type": delta.ty().name(), "dora": delta.is_dora(),
                })
            });
            let targets: Vec<_> = targets.collect();
            return print_json(&json!({
                "name": adapter.name(), "parameters": adapter.n_params(), "bytes": adapter.n_bytes(), "targets": targets,
            }));
        }
        let mut rows = vec![["TENSOR", "RANK", "SCALE", "SHAPE", "TYPE"].map(str::to_owned).to_vec()];
        for delta in adapter.deltas() {
            let ty = if delta.is_dora() { format!("{}, DoRA", delta.ty()) } else { delta.ty().to_string() };
            let shape = format!("{} x {}", delta.n_out(), delta.n_in());
            rows.push(vec![delta.target.clone(), delta.rank().to_string(), delta.scale.to_string(), shape, ty]);
        }
        let size = bytes(adapter.n_bytes() as u64);
        print_line(&format!("{}: {} values, {size}\n", adapter.name(), count(adapter.n_params() as u64)))?;
        print(&table(&rows, &[1, 2]))
    }
}

impl MergeArgs {
    fn method(&self) -> Method {
        match self.method {
            MethodArg::Linear => Method::Linear,
            MethodArg::Sum => Method::TaskArithmetic,
            MethodArg::Slerp => Method::Slerp { t: self.t },
            MethodArg::Ties => Method::Ties { density: self.density },
            MethodArg::Dare => Method::Dare { density: self.density, seed: self.seed },
        }
    }

    /// Checks what can be checked without the model.
    fn check(&self, app: &App) -> Result<()> {
        self.adapters.iter().try_for_each(|arg| check_there(&locate(app, &arg.adapter)))?;
        if self.into_model {
            return check::writable(&self.out, &[]);
        }
        let weights: Vec<f64> = self.adapters.iter().map(|arg| f64::from(arg.scale)).collect();
        self.method().check(&weights, self.rank)?;
        check_out(&self.out)
    }

    /// Writes the model with the adapters in it.
    fn write_model(&self, app: &App) -> Result<()> {
        let path = app.store().locate(&self.model.model, true)?;
        check::writable(&self.out, &[&path])?;
        let facts = ModelFacts::of_file(&GgufFile::open(&path)?)?;
        self.adapters.iter().try_for_each(|arg| read(app, &arg.adapter, &facts).map(drop))?;
        let load = LoadOptions { n_ctx: Some(16), prefix_cache: false, ..LoadOptions::default() };
        let loader = app.load(&path, &load)?.adapter_loader()?;
        let read = |arg: &LoraArg| Ok((loader.read(&locate(app, &arg.adapter))?, arg.scale));
        let adapters = self.adapters.iter().map(read).collect::<Result<Vec<(Adapter, f32)>>>()?;
        let borrowed: Vec<(&Adapter, f32)> = adapters.iter().map(|(adapter, scale)| (adapter, *scale)).collect();
        let merged = match self.tensors {
            MergedArg::F32 => Merged::F32,
            MergedArg::F16 => Merged::F16,
            MergedArg::Q8 => Merged::Q8,
        };
        loader.merge_into_model(&borrowed, merged, &self.out)?;
        let n_bytes = std::fs::metadata(&self.out).map_err(|error| Error::io("read", &self.out, &error))?.len();
        if self.output.json {
            return print_json(&json!({ "path": self.out, "bytes": n_bytes, "adapters": borrowed.len() }));
        }
        print_line(&format!("wrote {}: {}", self.out.display(), bytes(n_bytes)))
    }

    fn run(&self, app: &App) -> Result<()> {
        self.check(app)?;
        if self.into_model {
            return self.write_model(app);
        }
        let facts = facts(app, &self.model)?;
        let read = |arg: &LoraArg| Ok((Arc::new(read(app, &arg.adapter, &facts)?), f64::from(arg.scale)));
        let adapters = self.adapters.iter().map(read).collect::<Result<Vec<_>>>()?;
        let name = self.out.file_stem().map_or_else(|| "merged".to_owned(), |stem| stem.to_string_lossy().into_owned());
        let borrowed: Vec<(&Adapter, f64)> = adapters.iter().map(|(adapter, weight)| (&**adapter, *weight)).collect();
        let merged = merge(&name, &borrowed, self.method(), self.rank)?;
        write(&merged, &facts, &self.out)?;
        told(&merged, &self.out, self.output.json)
    }
}

impl ExportArgs {
    fn run(&self, app: &App) -> Result<()> {
        check_there(&locate(app, &self.adapter))?;
        check_out(&self.out)?;
        let facts = facts(app, &self.model)?;
        let adapter = read(app, &self.adapter, &facts)?;
        write(&adapter, &facts, &self.out)?;
        told(&adapter, &self.out, self.output.json)
    }
}

/// Says what was written.
fn told(adapter: &Adapter, path: &Path, is_json: bool) -> Result<()> {
    let (n_targets, rank) = (adapter.deltas().len(), adapter.rank_max());
    if is_json {
        let about = json!({ "path": path, "tensors": n_targets, "rank": rank, "parameters": adapter.n_params() });
        return print_json(&about);
    }
    print_line(&format!("wrote {}: {n_targets} tensors, rank up to {rank}", path.display()))
}

impl From<LoraError> for Error {
    fn from(error: LoraError) -> Error {
        Error::failure(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_stand_behind_the_last_colon() {
        let of = |text: &str| text.parse::<LoraArg>().map(|arg| (arg.adapter, arg.scale));
        assert_eq!(of("a/b"), Ok(("a/b".to_owned(), 1.0)));
        assert_eq!(of("a/b:0.5"), Ok(("a/b".to_owned(), 0.5)));
        assert_eq!(of("a:b:-2"), Ok(("a:b".to_owned(), -2.0)));
        assert_eq!(of("C:\\a"), Ok(("C:\\a".to_owned(), 1.0)));
        assert!(of(":1").is_err() && of("a:nan").is_err());
    }
}
