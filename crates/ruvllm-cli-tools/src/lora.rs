//! LoRA adapters on the command line: what names them, where they lie, and loading them.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use ruvllm_engine::{AdapterSet, Engine, FactorFormat};
use ruvllm_gguf::GgufFile;
use ruvllm_lora::format::{self, ModelFacts};
use ruvllm_lora::manager::check_name;
use ruvllm_lora::{LoraError, mixture};

use crate::app::App;
use crate::check;
use crate::error::{Error, Result};

/// An adapter and the number behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraArg {
    /// Its name or path.
    pub adapter: String,
    /// The number behind it.
    pub scale: f32,
}

impl FromStr for LoraArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<LoraArg, String> {
        // A path may hold colons; what is no number belongs to it.
        let split = text.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        let (adapter, scale) = split.unwrap_or((text, 1.0));
        if adapter.is_empty() || !scale.is_finite() {
            return Err("use PATH or PATH:SCALE".to_owned());
        }
        Ok(LoraArg { adapter: adapter.to_owned(), scale })
    }
}

/// Adapters that a command applies.
#[derive(Args, Clone, Debug)]
pub struct LoraArgs {
    /// Apply a LoRA adapter, with a scale behind ':' if it is not 1; may be given several times
    #[arg(long, value_name = "NAME|PATH[:SCALE]", help_heading = "Model")]
    pub lora: Vec<LoraArg>,
}

impl LoraArgs {
    /// Checks that the adapters are there.
    ///
    /// # Errors
    /// One is not, or adapters with a gate do not stand alone.
    pub fn check(&self, app: &App) -> Result<()> {
        let paths: Vec<PathBuf> = self.lora.iter().map(|arg| locate(app, &arg.adapter)).collect();
        paths.iter().try_for_each(|path| check_there(path))?;
        self.mixture(&paths).map(drop)
    }

    /// Checks that the adapters can be read for a model's file.
    ///
    /// # Errors
    /// One is damaged, or of another architecture.
    pub fn check_for(&self, app: &App, model: &Path) -> Result<()> {
        if self.lora.is_empty() {
            return Ok(());
        }
        let facts = ModelFacts::of_file(&GgufFile::open(model)?)?;
        let paths = self.lora.iter().map(|arg| locate(app, &arg.adapter));
        paths.filter(|path| !mixture::is_mixture(path)).try_for_each(|path| Ok(format::read(&path, &facts).map(drop)?))
    }

    /// Returns the folder of adapters with a gate, if one is meant.
    fn mixture<'a>(&self, paths: &'a [PathBuf]) -> Result<Option<&'a Path>> {
        match paths.iter().find(|path| mixture::is_mixture(path)) {
            Some(folder) if self.lora.len() > 1 || self.lora[0].scale != 1.0 => {
                let folder = folder.display();
                Err(Error::usage(format_args!(
                    "{folder} is several adapters with a gate; it stands alone and has no scale"
                )))
            }
            folder => Ok(folder.map(PathBuf::as_path)),
        }
    }

    /// Loads the adapters for a model.
    ///
    /// # Errors
    /// One cannot be read or does not fit the model, or they are too many.
    pub fn load(&self, app: &App, engine: &Engine) -> Result<AdapterSet> {
        if self.lora.is_empty() {
            return Ok(AdapterSet::default());
        }
        let loader = engine.adapter_loader()?;
        let paths: Vec<PathBuf> = self.lora.iter().map(|arg| locate(app, &arg.adapter)).collect();
        if let Some(folder) = self.mixture(&paths)? {
            return Ok(loader.load_mixture(folder, FactorFormat::default())?);
        }
        let mut adapters = Vec::with_capacity(self.lora.len());
        for (path, arg) in paths.iter().zip(&self.lora) {
            adapters.push((loader.load(path, FactorFormat::default())?, arg.scale));
        }
        Ok(AdapterSet::new(adapters)?)
    }
}

/// Checks that an adapter is there: a folder, or a file that can be read.
///
/// # Errors
/// It is not.
pub fn check_there(path: &Path) -> Result<()> {
    if path.is_dir() { Ok(()) } else { check::readable(path) }
}

/// Returns the folder of named adapters.
pub fn folder(app: &App) -> PathBuf {
    app.settings.home.join("adapters")
}

/// Returns where an adapter is: what was added under the name, else the path.
pub fn locate(app: &App, adapter: &str) -> PathBuf {
    let is_name = check_name(adapter).is_ok();
    let named = [folder(app).join(format!("{adapter}.gguf")), folder(app).join(adapter)];
    named.into_iter().find(|path| is_name && path.exists()).unwrap_or_else(|| PathBuf::from(adapter))
}

impl From<LoraError> for Error {
    fn from(error: LoraError) -> Error {
        Error::failure(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_stand_behind_the_last_colon() {
        let of = |text: &str| text.parse::<LoraArg>().map(|arg| (arg.adapter, arg.scale));
        assert_eq!(of("a/b"), Ok(("a/b".to_owned(), 1.0)));
        assert_eq!(of("a/b:0.5"), Ok(("a/b".to_owned(), 0.5)));
        assert_eq!(of("a:b:-2"), Ok(("a:b".to_owned(), -2.0)));
        assert_eq!(of("C:\\a"), Ok(("C:\\a".to_owned(), 1.0)));
        assert!(of(":1").is_err() && of("a:nan").is_err());
    }
}
