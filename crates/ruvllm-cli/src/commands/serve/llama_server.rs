//! Options under the names that llama.cpp's server has for them, and the folder of models that it serves.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_cli_tools::error::{Error, Result, one_line};

/// The fewest characters of a key.
const KEY_CHARS_MIN: usize = 8;

/// Options of llama.cpp's server.
#[derive(Args, Clone, Debug)]
pub struct LlamaServerArgs {
    /// API key that requests need; may be given several times, also with commas between keys. Others on this machine see it in
    /// the list of processes: --api-key-file and RUVLLM_API_KEYS hide it
    #[arg(long, value_name = "KEY", value_delimiter = ',', value_parser = api_key, help_heading = "Server")]
    pub api_key: Vec<String>,
    /// Words about the model that /v1/models tells, with commas between them; the second one is of the second --model
    #[arg(long, value_name = "WORD,...", help_heading = "Server")]
    pub tags: Vec<String>,
    /// Do not tell at /slots which places are taken
    #[arg(long, overrides_with = "slots", help_heading = "Server")]
    pub no_slots: bool,
    /// Tell at /slots which places are taken; so by default
    #[arg(long, overrides_with = "no_slots", help_heading = "Server")]
    pub slots: bool,
    /// Serve no page at /
    #[arg(long, visible_alias = "no-webui", help_heading = "Server")]
    pub no_ui: bool,
    /// Drop the oldest tokens of prompts that are too long, as 'truncation: auto' of a request does; an answer ends where the
    /// context does in any case
    #[arg(long, help_heading = "Server")]
    pub context_shift: bool,
    /// Add to answers of /v1/chat/completions and /v1/completions all that is known of them as '__verbose': the prompt as the
    /// model read it, how tokens were chosen. --log-level is about the log
    #[arg(long, help_heading = "Server")]
    pub verbose: bool,
    /// Load no model because a request asks for it; POST /models/load does. The first --model is loaded in any case
    #[arg(long, help_heading = "Model")]
    pub no_models_autoload: bool,
    /// Folder whose models are served in addition to those of --model, or alone: each file DIR/NAME.gguf or DIR/NAME/*.gguf as
    /// NAME, loaded when it is asked for
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub models_dir: Option<PathBuf>,
}

impl LlamaServerArgs {
    /// Returns the keys as lines of a key file.
    pub fn key_lines(&self) -> impl Iterator<Item = String> {
        self.api_key.iter().enumerate().map(|(i, key)| format!("api-key-{} {key}", i + 1))
    }

    /// Returns the words about the model that stands in this place.
    pub fn tags_of(&self, i: usize) -> Vec<String> {
        self.tags.get(i).map(|words| words_of(words)).unwrap_or_default()
    }

    /// Returns the model files in the folder, by name.
    ///
    /// # Errors
    /// The folder cannot be read, or has no model.
    pub fn models(&self) -> Result<Vec<PathBuf>> {
        let Some(folder) = &self.models_dir else { return Ok(Vec::new()) };
        let cannot = |error: std::io::Error| {
            let line = format!("--models-dir {}: {}", folder.display(), one_line(&error.to_string()));
            Error::failure(line)
        };
        let mut paths = entries(folder).map_err(cannot)?;
        paths.sort();
        let file = |path: PathBuf| match path.is_dir() {
            true => entries(&path).ok()?.into_iter().filter(|path| is_model(path)).min(),
            false => is_model(&path).then_some(path),
        };
        let models: Vec<PathBuf> = paths.into_iter().filter_map(file).collect();
        match models.is_empty() {
            true => Err(Error::failure(format!("--models-dir {}: there is no .gguf file in it", folder.display()))),
            false => Ok(models),
        }
    }

    /// Returns what a model of the folder is called: its folder within it, or its file.
    pub fn name_of(&self, path: &Path) -> Option<String> {
        let own = path.strip_prefix(self.models_dir.as_ref()?).ok()?;
        let first = own.components().next()?.as_os_str().to_string_lossy().into_owned();
        Some(first.strip_suffix(".gguf").map(str::to_owned).unwrap_or(first))
    }
}

/// Returns the words of a list with commas.
pub fn words_of(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn entries(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

/// Returns whether a file is a model, or the first part of one.
fn is_model(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let part = name.strip_suffix(".gguf").and_then(|stem| stem.rsplit_once("-of-"));
    let is_later = part.is_some_and(|(stem, _)| !stem.ends_with("-00001"));
    path.is_file() && name.ends_with(".gguf") && !name.starts_with("mmproj") && !is_later
}

/// Reads a key.
fn api_key(text: &str) -> std::result::Result<String, String> {
    if text.chars().count() < KEY_CHARS_MIN || text.contains(|c: char| c.is_whitespace() || c == '#') {
        return Err(format!("a key has at least {KEY_CHARS_MIN} characters, none of them '#' or white space"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_of_a_folder_are_files_and_folders() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, "").expect("written");
        };
        for name in ["b.gguf", "a/x-00001-of-00002.gguf", "a/x-00002-of-00002.gguf", "c/mmproj-c.gguf", "notes.txt"] {
            file(name);
        }
        let mut args = LlamaServerArgs {
            api_key: vec!["secret-key".to_owned()],
            tags: vec!["a, b,".to_owned()],
            no_slots: false,
            slots: false,
            no_ui: false,
            context_shift: false,
            verbose: false,
            no_models_autoload: false,
            models_dir: Some(folder.path().to_owned()),
        };
        let models = args.models().expect("two models");
        let names: Vec<_> = models.iter().filter_map(|path| args.name_of(path)).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(models[0].ends_with("a/x-00001-of-00002.gguf"));
        assert_eq!(args.key_lines().collect::<Vec<_>>(), ["api-key-1 secret-key"]);
        assert_eq!((args.tags_of(0), args.tags_of(1)), (vec!["a".to_owned(), "b".to_owned()], vec![]));
        args.models_dir = Some(folder.path().join("c"));
        assert!(format!("{:?}", args.models()).contains("there is no .gguf file in it"));
        assert!(api_key("short").is_err() && api_key("with blank").is_err() && api_key("with#mark").is_err());
    }
}
