//! The real models, where `cargo xtask models` puts them.

use std::env;
use std::path::PathBuf;

/// Registry names of the real models that tests use.
pub const REAL_MODELS: [&str; 4] = ["smollm2:135m", "minilm:l6", "gemma3:270m", "qwen2.5-coder:0.5b"];

/// Returns the file of a real model, e.g. `smollm2:135m`. It is sought as `smollm2-135m.gguf` in the folder that
/// `RUVLLM_MODELS` names, or else in `models` under the folder of `ruvllm pull`: `$RUVLLM_HOME`, or
/// `$XDG_CACHE_HOME/ruvllm`, or `~/.cache/ruvllm`.
///
/// # Panics
/// If the file is not there: a test that needs it fails and says how to get it.
pub fn real_model(name: &str) -> PathBuf {
    assert!(REAL_MODELS.contains(&name), "no real model '{name}' in tests, only {REAL_MODELS:?}");
    let dir = models_dir(|key| env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from));
    let path = dir.join(file_name(name));
    assert!(path.is_file(), "{} is missing: run `cargo xtask models`", path.display());
    path
}

fn file_name(name: &str) -> String {
    format!("{}.gguf", name.replace(':', "-"))
}

fn models_dir(var: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    if let Some(dir) = var("RUVLLM_MODELS") {
        return dir;
    }
    let home = var("RUVLLM_HOME")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("ruvllm")))
        .or_else(|| Some(var("HOME")?.join(".cache/ruvllm")));
    home.expect("RUVLLM_HOME, XDG_CACHE_HOME or HOME must be set to find the real models").join("models")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_follows_the_environment() {
        let check = |vars: &[(&str, &str)], expected: &str| {
            let var = |key: &str| vars.iter().find(|(name, _)| *name == key).map(|(_, value)| PathBuf::from(value));
            assert_eq!(models_dir(var), PathBuf::from(expected));
        };
        let home = ("HOME", "/home/u");
        check(&[home], "/home/u/.cache/ruvllm/models");
        check(&[home, ("XDG_CACHE_HOME", "/c")], "/c/ruvllm/models");
        check(&[home, ("XDG_CACHE_HOME", "/c"), ("RUVLLM_HOME", "/r")], "/r/models");
        check(&[home, ("RUVLLM_HOME", "/r"), ("RUVLLM_MODELS", "/m")], "/m");
        assert_eq!(file_name("qwen2.5-coder:0.5b"), "qwen2.5-coder-0.5b.gguf");
    }

    #[test]
    #[should_panic(expected = "no real model 'gpt-5'")]
    fn other_names_are_refused() {
        real_model("gpt-5");
    }
}
