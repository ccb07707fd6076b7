//! Options of structured output.

use std::path::PathBuf;

use clap::Args;
use ruvllm_engine::GrammarSource;

use crate::error::{Error, Result};
use crate::grammar;
use crate::text_files::read_text;
use crate::values::choices;

/// Form that the answer must have.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
pub struct GrammarArgs {
    /// Answer with a JSON object
    #[arg(long, help_heading = "Structured output")]
    pub json_object: bool,
    /// Answer with JSON that is valid by the schema in this file
    #[arg(long, value_name = "FILE", help_heading = "Structured output")]
    pub json_schema: Option<PathBuf>,
    /// Answer with a text of the grammar in this file: GBNF (with '::='), or Lark
    #[arg(long, value_name = "FILE", help_heading = "Structured output")]
    pub grammar: Option<PathBuf>,
    /// Answer with a text that this regular expression matches as a whole
    #[arg(long, value_name = "REGEX", help_heading = "Structured output")]
    pub regex: Option<String>,
    /// Answer with one of these texts; where they hold commas, give the option once for each, or a JSON array:
    /// '["no, not at all","yes"]'
    #[arg(long, value_name = "A,B", help_heading = "Structured output")]
    pub choice: Vec<String>,
}

impl GrammarArgs {
    /// Returns what is asked for, if anything is, once it is known to be sound.
    ///
    /// # Errors
    /// A failure that names the file that cannot be read, or is no JSON; the engine's, if the grammar is unsound.
    pub fn source(&self) -> Result<Option<GrammarSource>> {
        let source = self.read()?;
        source.as_ref().map_or(Ok(()), grammar::check)?;
        Ok(source)
    }

    fn read(&self) -> Result<Option<GrammarSource>> {
        if let Some(path) = &self.json_schema {
            let schema = serde_json::from_str(&read_text(path)?);
            let schema =
                schema.map_err(|error| Error::failure(format_args!("{} is no JSON: {error}", path.display())))?;
            return Ok(Some(GrammarSource::JsonSchema(schema)));
        }
        if let Some(path) = &self.grammar {
            let text = read_text(path)?;
            let is_gbnf = text.contains("::=");
            return Ok(Some(if is_gbnf { GrammarSource::Gbnf(text) } else { GrammarSource::Lark(text) }));
        }
        Ok(match &self.regex {
            _ if self.json_object => Some(GrammarSource::JsonObject),
            Some(regex) => Some(GrammarSource::Regex(regex.clone())),
            None if self.choice.is_empty() => None,
            None => Some(GrammarSource::Choice(choices(&self.choice).map_err(Error::usage)?)),
        })
    }
}
