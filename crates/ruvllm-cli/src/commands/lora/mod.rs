//! `ruvllm lora`: adapters under names, what is in them, and merging.

#[cfg(feature = "train")]
mod train;

mod merge;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{ModelArgs, OutputArgs};
use ruvllm_cli_tools::check;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::lora::{check_there, folder, locate};
use ruvllm_cli_tools::output::{bytes, count, print, print_json, print_line, table};
use ruvllm_gguf::GgufFile;
use ruvllm_lora::Adapter;
use ruvllm_lora::format::{self, ModelFacts, gguf, peft};
use ruvllm_lora::manager::check_name;
use serde_json::json;

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
    Merge(merge::MergeArgs),
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

/// Checks that an adapter can be written in the form that the path's ending asks for, in the place of nothing that is read.
fn check_out(path: &Path, inputs: &[PathBuf]) -> Result<()> {
    let read: Vec<PathBuf> = inputs.iter().flat_map(|input| files_of(input)).collect();
    let read: Vec<&Path> = read.iter().map(PathBuf::as_path).collect();
    if is_gguf(path) {
        return check::writable(path, &read);
    }
    check::writable_folder(path)?;
    files_of(path).iter().filter(|file| file.exists()).try_for_each(|file| check::writable(file, &read))
}

/// Returns the files of an adapter: those of a PEFT folder, or itself.
fn files_of(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() { vec![path.join(peft::CONFIG), path.join(peft::WEIGHTS)] } else { vec![path.to_owned()] }
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "gguf")
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

/// Adds the model's file to `inputs`, if it is on this machine.
fn with_model(app: &App, model: &ModelArgs, mut inputs: Vec<PathBuf>) -> Vec<PathBuf> {
    inputs.extend(app.model_file(&model.model));
    inputs
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
            let files = files_of(&path);
            let n_bytes = files.iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.len())).sum();
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

impl ExportArgs {
    fn run(&self, app: &App) -> Result<()> {
        let path = locate(app, &self.adapter);
        check_there(&path)?;
        check_out(&self.out, &with_model(app, &self.model, vec![path]))?;
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
