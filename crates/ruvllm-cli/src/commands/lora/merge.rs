//! `ruvllm lora merge`: one adapter of several, or a model with adapters in it.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{ModelArgs, OutputArgs};
use ruvllm_cli_tools::check;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::lora::{LoraArg, check_there, locate};
use ruvllm_cli_tools::output::{bytes, print_json, print_line};
use ruvllm_engine::LoadOptions;
use ruvllm_gguf::GgufFile;
use ruvllm_lora::Adapter;
use ruvllm_lora::format::ModelFacts;
use ruvllm_lora::merge::{Merged, Method, merge};
use serde_json::json;

use super::{check_out, facts, read, told, with_model, write};

/// Options of `ruvllm lora merge`.
#[derive(Args, Debug)]
pub(super) struct MergeArgs {
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
    /// Share of the way that slerp goes from the first to the second
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
    /// Type that the changed tensors of the model are written in
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
        let adapters: Vec<PathBuf> = self.adapters.iter().map(|arg| locate(app, &arg.adapter)).collect();
        adapters.iter().try_for_each(|path| check_there(path))?;
        let inputs = with_model(app, &self.model, adapters);
        if self.into_model {
            return check::writable(&self.out, &inputs.iter().map(PathBuf::as_path).collect::<Vec<_>>());
        }
        let weights: Vec<f64> = self.adapters.iter().map(|arg| f64::from(arg.scale)).collect();
        self.method().check(&weights, self.rank)?;
        check_out(&self.out, &inputs)
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

    pub(super) fn run(&self, app: &App) -> Result<()> {
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
