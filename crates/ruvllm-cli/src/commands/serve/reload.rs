//! The settings file of a running server: read again when it changes, and on SIGHUP.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use clap::{ArgMatches, Command, FromArgMatches as _};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::config::{self, ConfigFile, Setting, is_reloaded};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_server::{ModelUpdate, Reload, Update};

use super::llama_server::words_of;
use super::log::LevelsHandle;
use super::{ServeArgs, lora};

/// Name of the command whose settings these are.
const SERVE: &str = "serve";

/// Settings of a server that runs.
pub(super) struct SettingsReload {
    app: App,
    path: PathBuf,
    settings: Vec<Setting>,
    levels: LevelsHandle,
    /// Names of the models, which stay.
    names: Vec<String>,
    state: Mutex<State>,
}

struct State {
    stamp: Option<(SystemTime, u64)>,
    values: Values,
}

/// Values of all settings, as text.
type Values = BTreeMap<String, Vec<OsString>>;

/// Settings whose values have changed.
struct Changed {
    reloaded: Vec<String>,
    /// Settings that take a restart.
    others: Vec<String>,
}

impl SettingsReload {
    /// Watches the settings file, if there is one.
    ///
    /// # Errors
    /// It cannot be read any more.
    pub(super) fn watch(
        app: &App,
        args: &ServeArgs,
        levels: LevelsHandle,
        names: Vec<String>,
    ) -> Result<Option<Arc<dyn Reload>>> {
        let Some(path) = app.config.clone() else { return Ok(None) };
        let settings = config::all(app.invocation.command());
        let stamp = stamp(&path);
        let (app, state) = (app.in_log(), Mutex::new(State { stamp, values: Values::new() }));
        let reload = SettingsReload { app, path, settings, levels, names, state };
        let (values, _) = reload.read()?;
        reload.lock().values = values;
        tracing::debug!(file = %reload.path.display(), models = args.model.len(), "the settings file is watched");
        Ok(Some(Arc::new(reload)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file, under the command line and the environment of this process.
    fn read(&self) -> Result<(Values, ServeArgs)> {
        let file = ConfigFile::load(&self.path, &self.settings)?;
        let line = |error: clap::Error| Error::usage(error.to_string().trim_start_matches("error: "));
        let parsed = self.app.invocation.parse(Some(&file)).map_err(line)?;
        let own = parsed.matches.subcommand_matches(SERVE);
        let own = own.ok_or_else(|| Error::usage("the command line is not that of 'ruvllm serve'"))?;
        let args = ServeArgs::from_arg_matches(own).map_err(line)?;
        let mut values =
            self.app.invocation.command().find_subcommand(SERVE).map(|serve| values(serve, own)).unwrap_or_default();
        for setting in self.settings.iter().filter(|setting| setting.table == "general") {
            let value = file.general(&setting.key).map(OsString::from);
            values.insert(setting.key.clone(), value.into_iter().collect());
        }
        Ok((values, args))
    }

    /// Reads the file and makes options of it, if something has changed.
    fn update(&self) -> Result<Option<Update>> {
        let (values, args) = self.read()?;
        let mut changed = changed(&self.lock().values, &values);
        if changed.reloaded.is_empty() && changed.others.is_empty() {
            return Ok(None);
        }
        args.sampling.check()?;
        args.speculation.check(&self.app)?;
        let args = args.with_models()?;
        let options = args.options(&self.app)?;
        let models = self.models(&args, &mut changed)?;
        self.levels.set(args.log_level.clone());
        self.lock().values = values;
        if !changed.others.is_empty() {
            tracing::warn!("these settings have changed, and hold after a restart: {}", changed.others.join(", "));
        }
        if !changed.reloaded.is_empty() {
            tracing::info!("the settings file was read again: {}", changed.reloaded.join(", "));
        }
        Ok(Some(Update { options, models }))
    }

    /// Returns the options of the models that are served.
    fn models(&self, args: &ServeArgs, changed: &mut Changed) -> Result<Vec<ModelUpdate>> {
        // The first name of a model is that of its folders, too.
        if changed.reloaded.iter().any(|key| key == "alias") && args.names() != self.names {
            changed.others.push("alias (the first name of a model)".to_owned());
        }
        let of_model = |(i, name): (usize, &String)| {
            let aliases = args.alias.get(i).map(|names| words_of(names)).unwrap_or_default();
            let aliases = aliases.into_iter().skip(1).collect();
            let is_its_own = |arg: &&super::AdapterArg| arg.model.as_deref().map_or(i == 0, |named| named == *name);
            let adapters = args.adapter.iter().filter(is_its_own);
            let adapters = adapters.map(|arg| (arg.name.clone(), lora::locate(&self.app, &arg.path))).collect();
            ModelUpdate { aliases, tags: args.llama_server.tags_of(i), adapters }
        };
        args.check_adapters(&self.names)?;
        Ok(self.names.iter().enumerate().map(of_model).collect())
    }
}

impl Reload for SettingsReload {
    fn look(&self, asked: bool) -> Option<Update> {
        let now = stamp(&self.path);
        let before = std::mem::replace(&mut self.lock().stamp, now);
        if now == before && !asked {
            return None;
        }
        match self.update() {
            Ok(update) => update,
            // A file that is being written is read the next time.
            Err(error) => {
                let line = error.line().unwrap_or_default();
                tracing::error!(error = line, "the settings file was not read again");
                None
            }
        }
    }
}

/// Returns what tells a file from the one before.
fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// Returns the values of all options of a command.
fn values(command: &Command, own: &ArgMatches) -> Values {
    let value = |arg: &clap::Arg| {
        let values = own.get_raw(arg.get_id().as_str()).into_iter().flatten().map(OsString::from);
        Some((arg.get_long()?.to_owned(), values.collect()))
    };
    command.get_arguments().filter_map(value).collect()
}

/// Returns what differs.
fn changed(before: &Values, now: &Values) -> Changed {
    let differs = now.iter().filter(|(key, value)| before.get(*key) != Some(*value)).map(|(key, _)| key.clone());
    let (reloaded, others) = differs.partition(|key| is_reloaded(SERVE, key));
    Changed { reloaded, others }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_take_a_restart_are_told_apart() {
        let of = |pairs: &[(&str, &str)]| -> Values {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), vec![OsString::from(value)])).collect()
        };
        let before = of(&[("port", "1"), ("timeout", "2"), ("temp", "0")]);
        let found = changed(&before, &of(&[("port", "2"), ("timeout", "3"), ("temp", "0")]));
        assert_eq!((found.reloaded, found.others), (vec!["timeout".to_owned()], vec!["port".to_owned()]));
    }
}
