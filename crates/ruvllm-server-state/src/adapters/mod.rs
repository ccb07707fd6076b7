//! Adapters by name: which a model has, over all the times that it is loaded; what requests say to have them; and the
//! endpoints that load, list and remove them.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use ruvllm_api::adapters::{ADAPTER, Strength};
use ruvllm_api::error::ApiError;
use ruvllm_engine::{Engine, EngineError, FactorFormat};
use ruvllm_lora::manager::{AdapterInfo, AdapterManager, ManagerStats, Residency, check_name};
use ruvllm_lora::{LoraError, LoraErrorKind};

use crate::keys::Tenant;

/// Names of adapters that a refusal lists.
const N_SHOWN: usize = 20;

/// The adapters of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterOptions {
    /// Folder whose entries (GGUF files, PEFT folders) are known by name, and read when it is first used; requests may
    /// load from it, and from nowhere else.
    pub folder: Option<PathBuf>,
    /// Names and what they stand for: files that are read and checked when the model is loaded.
    pub named: Vec<(String, PathBuf)>,
    /// The most bytes that adapters ready for use take, in whole pages of 2 MiB, of the memory for the model's keys and
    /// values: idle ones are evicted for those, and cached prompts to adapters.
    pub bytes_max: usize,
}

impl Default for AdapterOptions {
    /// None, and 256 MiB for those to come.
    fn default() -> AdapterOptions {
        AdapterOptions { folder: None, named: Vec::new(), bytes_max: 256 << 20 }
    }
}

/// The adapters of a model, loaded or not.
pub struct Adapters {
    options: AdapterOptions,
    state: Mutex<State>,
}

struct State {
    /// While the model is loaded.
    manager: Option<Arc<AdapterManager>>,
    /// While it is not: what was known when it was dropped.
    known: Vec<AdapterInfo>,
    /// Whether those of the options were made known.
    has_begun: bool,
    /// Names that stand for files; those of the options at first.
    named: Vec<(String, PathBuf)>,
    /// Those of them that are read when the model is loaded the next time.
    pending: Vec<(String, PathBuf)>,
    /// Those that requests of a tenant have which name none.
    defaults: HashMap<u64, Vec<Strength>>,
}

impl Adapters {
    /// Returns an empty list of adapters.
    pub fn new(options: AdapterOptions) -> Adapters {
        let (named, pending) = (options.named.clone(), options.named.clone());
        let (manager, known, has_begun, defaults) = (None, Vec::new(), false, HashMap::new());
        Adapters { options, state: Mutex::new(State { manager, known, has_begun, named, pending, defaults }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes known to the manager of an engine that was just loaded what there is. Returns the manager; `None` if the
    /// engine's backend applies no adapters and none was asked for.
    ///
    /// # Errors
    /// The folder cannot be read; a named one cannot be read or does not fit the model; the backend applies none.
    pub fn attach(
        &self,
        engine: &Engine,
        quotas: &[(u64, Option<usize>)],
    ) -> Result<Option<Arc<AdapterManager>>, EngineError> {
        let (folder, has_named) = (&self.options.folder, !self.lock().named.is_empty());
        if engine.runner().model().adapters().is_none() && folder.is_none() && !has_named {
            return Ok(None);
        }
        let manager = engine.adapter_manager(FactorFormat::default(), self.options.bytes_max)?;
        quotas.iter().for_each(|&(tenant, bytes)| manager.set_quota(tenant, bytes));
        let mut state = self.lock();
        if state.has_begun {
            manager.adopt(&state.known);
        } else {
            for (name, path) in self.options.folder.iter().flat_map(|folder| found(folder)) {
                manager.register(&name, &path, 0)?;
            }
        }
        for (name, path) in &state.pending {
            manager.add(name, path, 0).map_err(|error| error.within(format_args!("adapter '{name}'")))?;
        }
        let manager = Arc::new(manager);
        (state.manager, state.known, state.has_begun) = (Some(Arc::clone(&manager)), Vec::new(), true);
        state.pending.clear();
        Ok(Some(manager))
    }

    /// Names other files. New ones are read and checked, when the model is loaded if it is not; those that are gone are removed,
    /// and requests that have them go on with them. Returns a line for each that cannot be used, which is left out. Not for
    /// threads that others wait for.
    pub fn set_named(&self, named: &[(String, PathBuf)]) -> Vec<String> {
        let mut state = self.lock();
        let (mut wanted, before) = (named.to_vec(), state.named.clone());
        let gone = before.iter().filter(|old| !named.contains(old));
        let manager = state.manager.clone();
        for (name, _) in gone {
            match &manager {
                // A request may have removed it.
                Some(manager) => drop(manager.remove(name, 0)),
                None => state.known.retain(|info| info.tenant != 0 || info.name != *name),
            }
        }
        if manager.is_none() {
            state.pending.retain(|old| named.contains(old));
            state.pending.extend(named.iter().filter(|new| !before.contains(new)).cloned());
        }
        drop(state);
        let mut lines = Vec::new();
        if let Some(manager) = manager {
            wanted.retain(|new| {
                let added = if before.contains(new) { Ok(0) } else { manager.add(&new.0, &new.1, 0) };
                lines.extend(added.as_ref().err().map(|error| format!("adapter '{}': {error}", new.0)));
                added.is_ok()
            });
        }
        self.lock().named = wanted;
        lines
    }

    /// Keeps what is known, without the engine.
    pub fn detach(&self) {
        let mut state = self.lock();
        if let Some(manager) = state.manager.take() {
            let cold = |info| AdapterInfo { residency: Residency::Cold, n_bytes: 0, ..info };
            state.known = manager.list().into_iter().map(cold).collect();
        }
    }

    /// Returns the manager of the engine that is loaded.
    ///
    /// # Errors
    /// 503: the model was dropped just now.
    pub fn manager(&self) -> Result<Arc<AdapterManager>, ApiError> {
        self.lock().manager.clone().ok_or_else(|| {
            let line = "the model was dropped while its adapters were looked for; try again";
            ApiError { retry_after_s: Some(1), ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line) }
        })
    }

    /// Limits what adapters of tenants take.
    pub fn set_quotas(&self, quotas: &[(u64, Option<usize>)]) {
        if let Some(manager) = &self.lock().manager {
            quotas.iter().for_each(|&(tenant, bytes)| manager.set_quota(tenant, bytes));
        }
    }

    /// Returns what the manager did and holds; `None` while the model is not loaded.
    pub fn stats(&self) -> Option<ManagerStats> {
        self.lock().manager.as_ref().map(|manager| manager.stats())
    }

    /// Returns what a tenant may use: its own, and everybody's that have other names.
    pub fn visible(&self, tenant: &Tenant) -> Vec<AdapterInfo> {
        let state = self.lock();
        let mut all = state.manager.as_ref().map_or_else(|| state.known.clone(), |manager| manager.list());
        all.retain(|info| info.tenant == 0 || info.tenant == tenant.id);
        // Everybody's come first; a tenant's own hides the one before it.
        all.dedup_by(|own, before| {
            let is_same = own.name == before.name;
            if is_same {
                std::mem::swap(own, before);
            }
            is_same
        });
        all
    }

    /// Returns the adapters that a tenant's requests have which name none, as far as they are still there.
    pub fn defaults(&self, tenant: &Tenant) -> Vec<Strength> {
        let defaults = self.lock().defaults.get(&tenant.id).cloned().unwrap_or_default();
        if defaults.is_empty() {
            return defaults;
        }
        let visible = self.visible(tenant);
        defaults.into_iter().filter(|default| visible.iter().any(|info| info.name == default.name)).collect()
    }

    /// Sets the adapters that a tenant's requests have which name none; those of no strength are left out.
    pub fn set_defaults(&self, tenant: &Tenant, mut defaults: Vec<Strength>) {
        defaults.retain(|default| default.scale != 0.0);
        self.lock().defaults.insert(tenant.id, defaults);
    }

    /// Checks that a tenant may use an adapter of this name.
    ///
    /// # Errors
    /// 404, with the names that there are.
    pub fn check(&self, name: &str, tenant: &Tenant) -> Result<(), ApiError> {
        match self.manager()?.find(name, tenant.id) {
            Some(_) => Ok(()),
            None => Err(self.unknown(name, tenant)),
        }
    }

    /// Returns the error for a name that no adapter of the tenant has.
    pub fn unknown(&self, name: &str, tenant: &Tenant) -> ApiError {
        let known = self.visible(tenant);
        let names: Vec<String> = known.iter().take(N_SHOWN).map(|info| format!("'{}'", info.name)).collect();
        let there = match known.len() {
            0 => "none is loaded".to_owned(),
            1 => format!("{} is there", names[0]),
            n if n <= N_SHOWN => format!("{} are there", names.join(", ")),
            n => format!("{} and {} more are there", names.join(", "), n - N_SHOWN),
        };
        let shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
        let line = format!("the model has no adapter '{shown}'; {there}");
        let error = ApiError::new(StatusCode::NOT_FOUND, line).code("adapter_not_found");
        ApiError { param: Some(ADAPTER.name.to_owned()), ..error }
    }

    /// Returns where the files are that a request names: within the folder, whatever it says.
    ///
    /// # Errors
    /// 400: there is no folder, or the path leads out of it or to nothing.
    pub fn locate(&self, name: &str, path: Option<&str>) -> Result<PathBuf, ApiError> {
        check_name(name).map_err(|error| self.refused(&error, "name"))?;
        let Some(folder) = &self.options.folder else {
            let line = "the server has no folder of adapters; start it with --adapters DIR";
            return Err(ApiError::bad("path", line).code("no_adapter_folder"));
        };
        let tried = match path {
            Some(path) => vec![PathBuf::from(path)],
            None => vec![format!("{name}.gguf").into(), name.into()],
        };
        let found = tried.iter().find_map(|path| within(folder, path));
        found.ok_or_else(|| {
            let shown: String = path.unwrap_or(name).chars().take(80).flat_map(char::escape_debug).collect();
            let line =
                format!("'{shown}' is no adapter in the server's folder; put a GGUF file or a PEFT folder there");
            ApiError::bad("path", line).code("adapter_file_not_found")
        })
    }

    /// Turns what is wrong with an adapter's files into a refusal, without the way to the folder.
    pub fn refused(&self, error: &LoraError, param: &str) -> ApiError {
        let (status, code) = match error.kind() {
            LoraErrorKind::Name if param == "name" => (StatusCode::BAD_REQUEST, "invalid_value"),
            LoraErrorKind::Name => (StatusCode::NOT_FOUND, "adapter_not_found"),
            LoraErrorKind::Denied => (StatusCode::FORBIDDEN, "not_yours"),
            LoraErrorKind::Budget => (StatusCode::SERVICE_UNAVAILABLE, "adapter_memory_full"),
            _ => (StatusCode::BAD_REQUEST, "adapter_refused"),
        };
        let mut line = error.to_string();
        for folder in self.options.folder.iter().flat_map(|folder| [folder.canonicalize().ok(), Some(folder.clone())]) {
            let folder = folder.map(|folder| format!("{}/", folder.display()));
            line = folder.map_or(line.clone(), |folder| line.replace(&folder, ""));
        }
        let retry_after_s = (error.kind() == LoraErrorKind::Budget).then_some(1);
        ApiError { param: Some(param.to_owned()), retry_after_s, ..ApiError::new(status, line).code(code) }
    }
}

/// Returns the adapters in a folder with their names: GGUF files, and folders with PEFT's settings.
fn found(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "the folder of adapters cannot be read");
            return Vec::new();
        }
    };
    let named = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        let name = match path.is_dir() {
            true => path.join(ruvllm_lora::format::peft::CONFIG).is_file().then_some(name)?,
            false => name.strip_suffix(".gguf")?.to_owned(),
        };
        check_name(&name).is_ok().then_some((name, path))
    };
    let mut all: Vec<_> = entries.flatten().filter_map(|entry| named(entry.path())).collect();
    // A file goes before a folder of its name, as in `locate`.
    all.sort_by(|a, b| (&a.0, a.1.is_file()).cmp(&(&b.0, b.1.is_file())));
    all
}

/// Returns where a path within a folder leads, if it leads to an adapter within it: links are followed before that is
/// asked, those of a PEFT folder's two files as well.
fn within(folder: &Path, path: &Path) -> Option<PathBuf> {
    use ruvllm_lora::format::peft::{CONFIG, WEIGHTS};
    let is_plain = !path.as_os_str().is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)));
    let folder = folder.canonicalize().ok()?;
    let inside = |path: &Path| path.canonicalize().ok().filter(|path| path.starts_with(&folder));
    let found = inside(&folder.join(path).to_owned()).filter(|_| is_plain)?;
    match found.is_dir() {
        true => [CONFIG, WEIGHTS].iter().all(|file| inside(&found.join(file)).is_some()).then_some(found),
        false => Some(found),
    }
}

#[cfg(test)]
mod tests;
