//! `ruvllm completions`: what a shell knows about commands and options, and the manual pages.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::print;

const EXAMPLES: &str = "\
Examples:
  ruvllm completions bash > ~/.local/share/bash-completion/completions/ruvllm
  ruvllm completions zsh > ~/.zfunc/_ruvllm
  ruvllm completions fish > ~/.config/fish/completions/ruvllm.fish
  ruvllm completions powershell >> $PROFILE
  ruvllm completions --man ~/.local/share/man/man1";

/// Options of `ruvllm completions`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum, required_unless_present = "man")]
    shell: Option<Shell>,
    /// Write manual pages into this folder instead, one for each command
    #[arg(long, value_name = "DIR", conflicts_with = "shell")]
    man: Option<PathBuf>,
}

impl CompletionsArgs {
    /// Prints completions, or writes the pages.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn run(&self, app: &App) -> Result<()> {
        let command = app.invocation.command();
        if let Some(folder) = &self.man {
            let failed = |error: std::io::Error| Error::io("write", folder, &error);
            std::fs::create_dir_all(folder).map_err(failed)?;
            return clap_mangen::generate_to(command.clone(), folder).map_err(failed);
        }
        let Some(shell) = self.shell else { return Ok(()) };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), command.get_name(), &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}
