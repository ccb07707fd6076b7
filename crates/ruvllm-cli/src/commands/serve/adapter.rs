//! The value of `--adapter`: an adapter, its name and its model.

use std::str::FromStr;

use ruvllm_lora::manager::check_name;

/// An adapter, what to call it, and which model it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterArg {
    /// Model that it is for; the first one, if none is named.
    pub model: Option<String>,
    /// Name that requests call it by.
    pub name: String,
    /// Path or name of its files.
    pub path: String,
}

impl FromStr for AdapterArg {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<AdapterArg, String> {
        let (name, path) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path)));
        // Names of models may hold colons, those of adapters none.
        let (model, name) = name.rsplit_once(':').map_or((None, name), |(model, name)| (Some(model.to_owned()), name));
        check_name(name).map_err(|error| error.to_string())?;
        if path == Some("") {
            return Err("use NAME=PATH, or NAME alone for one that 'ruvllm lora add' keeps".to_owned());
        }
        Ok(AdapterArg { model, name: name.to_owned(), path: path.unwrap_or(name).to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_have_a_name_a_path_and_perhaps_a_model() {
        let of = |text: &str| {
            let arg = text.parse::<AdapterArg>().ok()?;
            Some((arg.model.unwrap_or_default(), arg.name, arg.path))
        };
        let some = |model: &str, name: &str, path: &str| Some((model.to_owned(), name.to_owned(), path.to_owned()));
        assert_eq!(of("poet=./a=b/c"), some("", "poet", "./a=b/c"));
        assert_eq!(of("poet"), some("", "poet", "poet"));
        assert_eq!(of("smollm2:135m:poet=p.gguf"), some("smollm2:135m", "poet", "p.gguf"));
        assert!(of("=x").is_none() && of("a/b=x").is_none() && of("a=").is_none() && of("").is_none());
    }
}
