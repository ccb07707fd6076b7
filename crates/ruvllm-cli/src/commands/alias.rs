//! `ruvllm alias`: names of the person's own.

use std::path::Path;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print, print_json, print_line, table};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  ruvllm alias small smollm2:135m
  ruvllm alias mine hf:owner/repo/model.gguf
  ruvllm run --model mine --prompt \"...\"
  ruvllm alias --list
  ruvllm alias --remove mine

Aliases stand in ruvllm/registry.toml in XDG_CONFIG_HOME [default: ~/.config], where whole models
may be described as well.";

/// Options of `ruvllm alias`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct AliasArgs {
    /// The new name
    #[arg(value_name = "NAME", requires = "target", conflicts_with_all = ["list", "remove"])]
    name: Option<String>,
    /// Name from 'ruvllm list', hf:..., pypi:..., ollama:... or path that it stands for
    #[arg(value_name = "TARGET")]
    target: Option<String>,
    /// List the aliases
    #[arg(long, conflicts_with = "remove")]
    list: bool,
    /// Remove an alias
    #[arg(long, value_name = "NAME")]
    remove: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

impl AliasArgs {
    /// Sets, lists or removes aliases.
    ///
    /// # Errors
    /// A usage error for a name or target that is none, a failure if the file cannot be written.
    pub fn run(&self, app: &App) -> Result<()> {
        let missing = || Error::usage("no home folder is known; set XDG_CONFIG_HOME to a folder for settings");
        let file = app.settings.registry_file.as_deref().ok_or_else(missing)?;
        if let Some(name) = &self.remove {
            return self.removed(app, file, name);
        }
        if self.list {
            return self.listed(app);
        }
        let (Some(name), Some(target)) = (&self.name, &self.target) else {
            return Err(Error::usage("say a name and what it stands for, or --list or --remove NAME"));
        };
        let target = absolute(target);
        app.registry().set_alias(file, name, &target)?;
        if self.output.json {
            return print_json(&json!({ "name": name, "target": target, "file": file }));
        }
        print_line(&format!("{name} is {target}, in {}", file.display()))
    }

    fn removed(&self, app: &App, file: &Path, name: &str) -> Result<()> {
        let target = app.registry().remove_alias(file, name)?;
        if self.output.json {
            return print_json(&json!({ "removed": name, "target": target, "file": file }));
        }
        print_line(&format!("{name} is no alias of {target} any more"))
    }

    fn listed(&self, app: &App) -> Result<()> {
        let aliases: Vec<(&str, &str)> = app.registry().aliases().collect();
        if self.output.json {
            let aliases = aliases.iter().map(|(name, target)| json!({ "name": name, "target": target }));
            return print_json(&json!({ "aliases": aliases.collect::<Vec<_>>() }));
        }
        if aliases.is_empty() {
            return print_line("no aliases; 'ruvllm alias NAME TARGET' makes one");
        }
        let rows = aliases.iter().map(|(name, target)| vec![(*name).to_owned(), (*target).to_owned()]);
        print(&table(&[vec![vec!["NAME".to_owned(), "TARGET".to_owned()]], rows.collect()].concat(), &[]))
    }
}

/// Returns a path of a file that is there as one from the root, since an alias is used from other folders; other names as they are.
fn absolute(target: &str) -> String {
    let path = Path::new(target);
    match path.is_file().then(|| std::path::absolute(path)) {
        Some(Ok(path)) => path.to_string_lossy().into_owned(),
        _ => target.to_owned(),
    }
}
