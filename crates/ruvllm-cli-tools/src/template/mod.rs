//! `--chat-template`: another chat template than the model's own.

mod builtin;
use std::path::Path;

use clap::Args;
use ruvllm_engine::Engine;
use ruvllm_engine::template::ChatTemplate;

use crate::error::{Error, Result};
use crate::text_files::read_text;

/// Another chat template.
#[derive(Args, Clone, Debug)]
pub struct TemplateArgs {
    /// Chat template to use in place of the model's own: a file of it (Jinja), its text, or the name of a known one, such as
    /// chatml, llama3, gemma or mistral-v7; with several models, of the first
    #[arg(long, visible_alias = "chat-template-file", value_name = "FILE|NAME|TEXT", help_heading = "Model")]
    chat_template: Option<String>,
}

impl TemplateArgs {
    /// Returns whether there is one.
    pub fn is_given(&self) -> bool {
        self.chat_template.is_some()
    }

    /// Reads the template and compiles it once, before a model is loaded for it.
    ///
    /// # Errors
    /// It is no name, no text of a template and no file that can be read, or what was found is no template.
    pub fn read(&self) -> Result<Option<String>> {
        let Some(given) = &self.chat_template else { return Ok(None) };
        if let Some(known) = builtin::find(given) {
            return Ok(Some(known.to_owned()));
        }
        let is_text = given.contains("{{") || given.contains("{%");
        let is_word = !given.contains(['/', '\\', '.']) && !Path::new(given).exists();
        if is_word && !is_text {
            let names: Vec<&str> = builtin::names().collect();
            let line = format!(
                "--chat-template {given}: there is no such file, and the known templates are {}",
                names.join(", ")
            );
            return Err(Error::failure(line));
        }
        let (source, place) = match is_text {
            true => (given.clone(), String::new()),
            false => (read_text(Path::new(given))?, format!(" {given}")),
        };
        ChatTemplate::new(&source, "", "")
            .map_err(|error| Error::usage(format_args!("--chat-template{place}: {error}")))?;
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
