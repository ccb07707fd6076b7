//! `ruvllm rm`: remove a pulled model.

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{NamedModelArgs, OutputArgs};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{bytes, print_json, print_line};
use serde_json::json;

/// Options of `ruvllm rm`.
#[derive(Args, Debug)]
#[command(
    after_help = "Example:\n  ruvllm rm gemma3:270m\n\nA copy in the cache of the Hugging Face hub is left alone."
)]
pub struct RmArgs {
    #[command(flatten)]
    model: NamedModelArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl RmArgs {
    /// Removes the model and says what that freed.
    ///
    /// # Errors
    /// A usage error without a name or for a path, a failure if the model is not there.
    pub fn run(&self, app: &App) -> Result<()> {
        let name = self.model.explicit();
        let name = name.ok_or_else(|| Error::usage("say which model to remove; see 'ruvllm list'"))?;
        let model = app.store().remove(name)?;
        let record = &model.record;
        if self.output.json {
            return print_json(&json!({ "name": record.name, "path": model.path, "freed_bytes": record.n_bytes }));
        }
        print_line(&format!("removed {}, {} freed", record.name, bytes(record.n_bytes)))
    }
}
