//! The settings of this process: the environment's, and what it leaves open from the settings file.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use ruvllm_hub::{HubConfig, SourceKind, TokenPlaces};
use ruvllm_kernels::Isa;

use crate::config::ConfigFile;
use crate::env::{config_dir, lookup, settings, user_home, variable_of_setting};
use crate::error::{Error, Result, io_reason};
use crate::machine::{MAX_THREADS, default_threads};
use crate::values::count;

/// The most bytes of a file with a key.
const KEY_BYTES_MAX: u64 = 4096;
/// The most MiB of earlier texts that can be asked for.
pub(crate) const DRAFT_HISTORY_MIB_MAX: usize = 1 << 14;

/// The settings of this process, read once at start.
#[derive(Clone, Debug)]
pub struct ProcessSettings {
    /// Folder for models, cache and history (`RUVLLM_HOME`).
    pub home: PathBuf,
    /// Allowed sources in order (`RUVLLM_SOURCES`); `None`: as each entry lists them.
    pub sources: Option<Vec<SourceKind>>,
    /// Instruction set to use (`RUVLLM_ISA`), checked to be available.
    pub isa: Isa,
    /// Threads to use where `--threads` is not given (`RUVLLM_THREADS`).
    pub n_threads: Option<usize>,
    /// GPU to run on (`RUVLLM_GPU`): a number or a part of a name.
    pub gpu: Option<String>,
    /// MiB of texts that drafts are made of, where `--draft-history` is not given (`RUVLLM_DRAFT_HISTORY`).
    pub draft_history_mib: Option<usize>,
    /// API keys of a server (`RUVLLM_API_KEYS`), each 'name key'.
    pub api_keys: Vec<String>,
    /// Key of the other server (`RUVLLM_REMOTE_KEY`).
    pub remote_key: Option<String>,
    /// The hub: its address, cache folder and where a token may stand (`HF_*`).
    pub hub: HubConfig,
    /// File with names of the person's own (`XDG_CONFIG_HOME`), where a place for it is known.
    pub registry_file: Option<PathBuf>,
    /// Folder of Ollama's models (`OLLAMA_MODELS`, or the one in the home folder).
    pub ollama_dir: Option<PathBuf>,
    /// Whether colours are unwelcome (`NO_COLOR`).
    pub no_color: bool,
    /// Variables that programs started here get, such as `PATH`.
    pub inherited: Vec<(String, String)>,
}

impl ProcessSettings {
    /// Reads the environment, and what it leaves open from a settings file.
    ///
    /// # Errors
    /// A usage error that names the variable, or the line of the file, if one has a value that cannot be used.
    pub fn read(file: Option<&ConfigFile>) -> Result<ProcessSettings> {
        let of_env = ProcessSettings::from_lookup(&lookup)?;
        let Some(file) = file else { return Ok(of_env) };
        let of_file = |name: &str| file.general(setting_of(name)?).map(str::to_owned);
        ProcessSettings::from_lookup(&|name| lookup(name).or_else(|| of_file(name))).map_err(|error| {
            let line = error.line().unwrap_or_default();
            let meant = settings().find_map(|(key, _)| {
                let name = variable_of_setting(key).filter(|name| line.contains(name))?;
                Some((name, key, file.general_line(key)?))
            });
            let Some((name, key, n)) = meant else { return error };
            let path = file.path.display();
            Error::usage(format_args!("{path} line {n}: {}", line.replace(name, &format!("{key} in [general]"))))
        })
    }

    /// Reads the environment through `lookup`; empty values count as unset.
    fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<ProcessSettings> {
        let get = |name: &str| lookup(name).filter(|value| !value.is_empty());
        Ok(ProcessSettings {
            home: home_dir(&get)?,
            sources: get("RUVLLM_SOURCES").map(|list| parse_sources(&list)).transpose()?,
            isa: get("RUVLLM_ISA").map_or(Ok(Isa::best()), |name| parse_isa(&name))?,
            n_threads: get("RUVLLM_THREADS").map(|count| parse_threads(&count)).transpose()?,
            gpu: get("RUVLLM_GPU"),
            draft_history_mib: get("RUVLLM_DRAFT_HISTORY").map(|mib| parse_mib(&mib)).transpose()?,
            api_keys: get("RUVLLM_API_KEYS").map_or(Ok(Vec::new()), |list| parse_api_keys(&list))?,
            remote_key: match get("RUVLLM_REMOTE_KEY") {
                None => get("RUVLLM_REMOTE_KEY_FILE").map(|file| read_key(Path::new(&file))).transpose()?,
                key => key,
            },
            hub: hub_config(&get)?,
            registry_file: config_dir(&get).map(|dir| dir.join("ruvllm").join("registry.toml")),
            ollama_dir: ollama_dir(&get),
            no_color: get("NO_COLOR").is_some(),
            inherited: ruvllm_mcp::INHERITED.iter().filter_map(|name| Some(((*name).to_owned(), get(name)?))).collect(),
        })
    }

    /// Returns the folder that holds the pulled models.
    pub fn models_dir(&self) -> PathBuf {
        self.home.join("models")
    }

    /// Returns the folder that notes uploads which were cut off.
    pub fn uploads_dir(&self) -> PathBuf {
        self.home.join("uploads")
    }

    /// Returns the folder that keeps computed prompts and sessions.
    pub fn cache_dir(&self) -> PathBuf {
        self.home.join("kv")
    }

    /// Returns the folder of what models were taught.
    pub fn learned_dir(&self) -> PathBuf {
        self.home.join("learned")
    }

    /// Returns the number of worker threads: the option, else `RUVLLM_THREADS`, else what the machine grants.
    pub fn threads(&self, option: Option<usize>) -> usize {
        option.or(self.n_threads).unwrap_or_else(default_threads)
    }
}

/// Returns the setting of `[general]` that a variable has.
fn setting_of(name: &str) -> Option<&'static str> {
    settings().map(|(key, _)| key).find(|key| variable_of_setting(key) == Some(name))
}

/// Reads the key in a file, which is one word. No message holds it.
fn read_key(path: &Path) -> Result<String> {
    let (path, name) = (path, "RUVLLM_REMOTE_KEY_FILE");
    let cannot = |error: std::io::Error| {
        Error::usage(format_args!("{name}: cannot read {}: {}", path.display(), io_reason(&error)))
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(cannot)?;
    file.take(KEY_BYTES_MAX).read_to_string(&mut text).map_err(cannot)?;
    let key = text.trim();
    match key.is_empty() || key.contains(char::is_whitespace) {
        true => Err(Error::usage(format_args!("{name}: {} does not hold one key and nothing else", path.display()))),
        false => Ok(key.to_owned()),
    }
}

fn home_dir(get: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf> {
    if let Some(home) = get("RUVLLM_HOME") {
        return Ok(PathBuf::from(home));
    }
    if let Some(cache) = get("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(cache).join("ruvllm"));
    }
    let home = get("HOME").or_else(|| get("USERPROFILE"));
    let home = home.ok_or_else(|| Error::usage("no home folder is known; set RUVLLM_HOME to a folder for models"))?;
    Ok(PathBuf::from(home).join(".cache").join("ruvllm"))
}

fn hub_config(get: &dyn Fn(&str) -> Option<String>) -> Result<HubConfig> {
    let home = get("HF_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(user_home(get)?.join(".cache").join("huggingface")));
    let token = TokenPlaces {
        env: get("HF_TOKEN"),
        file: get("HF_TOKEN_PATH").map(PathBuf::from),
        standard: home.as_ref().map(|home| home.join("token")),
    };
    Ok(HubConfig::new(get("HF_ENDPOINT").as_deref(), home.map(|home| home.join("hub")), token)?)
}

fn ollama_dir(get: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let home = || get("HOME").or_else(|| get("USERPROFILE"));
    let own = get("OLLAMA_MODELS").map(PathBuf::from);
    own.or_else(|| Some(PathBuf::from(home()?).join(".ollama").join("models")))
}

fn parse_sources(list: &str) -> Result<Vec<SourceKind>> {
    let kinds = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    let parsed: Option<Vec<_>> = kinds.map(SourceKind::from_name).collect();
    parsed.filter(|kinds| !kinds.is_empty()).ok_or_else(|| {
        Error::usage(format_args!("RUVLLM_SOURCES is '{list}'; use a comma-separated list of hub and pypi"))
    })
}

/// The message holds no part of the list: there are keys in it.
fn parse_api_keys(list: &str) -> Result<Vec<String>> {
    let pair = |pair: &str| {
        let (name, key) = pair.trim().split_once(':')?;
        let is_word = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c == '#');
        (is_word(name) && is_word(key)).then(|| format!("{name} {key}"))
    };
    let keys: Option<Vec<_>> = list.split(',').filter(|part| !part.trim().is_empty()).map(pair).collect();
    keys.filter(|keys| !keys.is_empty())
        .ok_or_else(|| Error::usage("RUVLLM_API_KEYS is not of the form 'name:key,name:key'"))
}

fn parse_isa(name: &str) -> Result<Isa> {
    let isa: Isa = name.parse().map_err(|error| Error::usage(format_args!("RUVLLM_ISA: {error}")))?;
    if !isa.is_available() {
        let known: Vec<_> = Isa::available().map(Isa::name).collect();
        return Err(Error::usage(format_args!(
            "RUVLLM_ISA: {isa} is not available on this machine; available are {}",
            known.join(", ")
        )));
    }
    Ok(isa)
}

fn parse_threads(count: &str) -> Result<usize> {
    count
        .parse()
        .ok()
        .filter(|n| (1..=MAX_THREADS).contains(n))
        .ok_or_else(|| Error::usage(format_args!("RUVLLM_THREADS is '{count}'; use a number from 1 to 1024")))
}

fn parse_mib(mib: &str) -> Result<usize> {
    count::<0, DRAFT_HISTORY_MIB_MAX>(mib)
        .map_err(|range| Error::usage(format_args!("RUVLLM_DRAFT_HISTORY is '{mib}'; {range}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<ProcessSettings> {
        let find = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        ProcessSettings::from_lookup(&find)
    }

    #[test]
    fn home_follows_the_documented_order() {
        let all = [("RUVLLM_HOME", "/r"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        let home = |pairs| read(pairs).expect("valid settings").home;
        assert_eq!(home(&all), PathBuf::from("/r"));
        assert_eq!(home(&all[1..]), PathBuf::from("/x/ruvllm"));
        assert_eq!(home(&all[2..]), PathBuf::from("/h/.cache/ruvllm"));
        assert!(read(&[]).is_err());
    }

    #[test]
    fn sources_keep_their_order() {
        let settings = read(&[("HOME", "/h"), ("RUVLLM_SOURCES", "pypi, hub")]).expect("valid settings");
        assert_eq!(settings.sources, Some(vec![SourceKind::Pypi, SourceKind::Hub]));
    }

    #[test]
    fn the_hub_is_where_its_own_tools_have_it() {
        let settings = |pairs| read(pairs).expect("valid settings");
        let own = settings(&[("HOME", "/h"), ("HF_ENDPOINT", "http://127.0.0.1:1/"), ("HF_TOKEN", "hf_secret")]);
        assert_eq!(own.hub.endpoint, "http://127.0.0.1:1");
        assert_eq!(own.hub.cache_dir, Some(PathBuf::from("/h/.cache/huggingface/hub")));
        assert_eq!(own.hub.token.standard, Some(PathBuf::from("/h/.cache/huggingface/token")));
        assert_eq!(own.registry_file, Some(PathBuf::from("/h/.config/ruvllm/registry.toml")));
        assert!(!format!("{own:?}").contains("secret"));
        let own = settings(&[("HOME", "/h"), ("HF_HOME", "/f"), ("XDG_CONFIG_HOME", "/c")]);
        assert_eq!(own.hub.token.standard, Some(PathBuf::from("/f/token")));
        assert_eq!(own.registry_file, Some(PathBuf::from("/c/ruvllm/registry.toml")));
    }

    #[test]
    fn a_key_may_stand_in_a_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("key");
        let path = file.to_str().expect("a plain path");
        let settings =
            |pairs: &[(&str, &str)]| read(&[&[("HOME", "/h"), ("RUVLLM_REMOTE_KEY_FILE", path)], pairs].concat());
        let line = |error: Error| error.line().unwrap_or_default();
        assert!(settings(&[]).is_err_and(|error| line(error).contains("RUVLLM_REMOTE_KEY_FILE: cannot read")));
        std::fs::write(&file, "secret-key\n").expect("written");
        assert_eq!(settings(&[]).expect("a key").remote_key.as_deref(), Some("secret-key"));
        let own = settings(&[("RUVLLM_REMOTE_KEY", "other")]).expect("a key");
        assert_eq!(own.remote_key.as_deref(), Some("other"));
        std::fs::write(&file, "secret key\n").expect("written");
        let error = settings(&[]).expect_err("two words");
        assert!(!line(error).contains("secret key"));
    }

    #[test]
    fn api_keys_have_names() {
        let settings = read(&[("HOME", "/h"), ("RUVLLM_API_KEYS", "ann:key-1, bob:key:2")]).expect("valid settings");
        assert_eq!(settings.api_keys, ["ann key-1", "bob key:2"]);
    }

    #[test]
    fn wrong_values_name_the_variable() {
        for (name, value) in [
            ("RUVLLM_SOURCES", "ftp"),
            ("RUVLLM_SOURCES", ","),
            ("RUVLLM_ISA", "mmx"),
            ("RUVLLM_THREADS", "0"),
            ("RUVLLM_DRAFT_HISTORY", "-1"),
            ("RUVLLM_DRAFT_HISTORY", "lots"),
            ("RUVLLM_API_KEYS", "secret"),
            ("RUVLLM_API_KEYS", "a:b c"),
            ("HF_ENDPOINT", "huggingface.co"),
        ] {
            let error = read(&[("HOME", "/h"), (name, value)]).expect_err(value);
            assert_eq!(error.exit_code(), 2);
            assert!(error.line().is_some_and(|line| line.contains(name)), "{error:?}");
        }
    }
}
