//! `--chat-template`: another chat template than the model's own.

use std::path::PathBuf;

use clap::Args;
use ruvllm_engine::Engine;
use ruvllm_engine::template::ChatTemplate;

use super::read_text;
use crate::error::{Error, Result};

/// Another chat template.
#[derive(Args, Clone, Debug)]
pub struct TemplateArgs {
    /// File with the chat template (Jinja) to use in place of the model's own; with several models, of the first
    #[arg(long, visible_alias = "chat-template-file", value_name = "FILE", help_heading = "Model")]
    chat_template: Option<PathBuf>,
}

impl TemplateArgs {
    /// Returns whether there is one.
    pub fn is_given(&self) -> bool {
        self.chat_template.is_some()
    }

    /// Reads the template and compiles it once, before a model is loaded for it.
    ///
    /// # Errors
    /// The file cannot be read, or is no template.
    pub fn read(&self) -> Result<Option<String>> {
        let Some(path) = &self.chat_template else { return Ok(None) };
        let source = read_text(path)?;
        ChatTemplate::new(&source, "", "")
            .map_err(|error| Error::usage(format_args!("--chat-template {}: {error}", path.display())))?;
        Ok(Some(source))
    }
}

/// Gives an engine the template that was read, if one was.
///
/// # Errors
/// The engine's.
pub fn apply(engine: &mut Engine, source: Option<&str>) -> std::result::Result<(), ruvllm_engine::EngineError> {
    source.map_or(Ok(()), |source| engine.set_chat_template(source))
}
