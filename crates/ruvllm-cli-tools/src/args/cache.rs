//! Options of the cache and of sessions.

use std::path::PathBuf;

use clap::Args;
use ruvllm_engine::LoadOptions;
use ruvllm_kvcache::disk;

use crate::check;
use crate::error::Result;
use crate::settings::ProcessSettings;
use crate::values::count;

/// Whether what was computed is used again, and what is gone on with.
#[derive(Args, Clone, Debug)]
pub struct CacheArgs {
    /// Go on with the session of this name, or begin it; it is saved after every answer
    #[arg(long, value_name = "NAME", value_parser = session_name, help_heading = "Cache")]
    pub session: Option<String>,
    /// Begin the session as a copy of this one; both go on by themselves
    #[arg(long, value_name = "NAME", requires = "session", value_parser = session_name, help_heading = "Cache")]
    pub fork: Option<String>,
    /// Folder that keeps computed prompts and sessions for the next start [default: kv in RUVLLM_HOME]
    #[arg(long, value_name = "DIR", help_heading = "Cache")]
    pub cache_dir: Option<PathBuf>,
    /// Bound of what is kept on disk.
    #[command(flatten)]
    pub size: CacheSizeArgs,
    /// Compute every prompt from its first token on, also what is known from before
    #[arg(long, help_heading = "Cache")]
    pub no_prefix_cache: bool,
}

/// Bound of what is kept on disk.
#[derive(Args, Clone, Debug)]
pub struct CacheSizeArgs {
    /// Most MiB on disk for computed prompts and sessions, and as many beside them for weights as they are computed with
    /// [default: 4096]
    ///
    /// A model whose weights take more is prepared at each start: 8 billion parameters in 4 bits want 5000.
    #[arg(long, value_name = "MIB", value_parser = count::<64, { 1 << 24 }>, help_heading = "Cache")]
    pub cache_mib: Option<usize>,
}

impl CacheSizeArgs {
    /// Returns the most bytes on disk, if the option says so.
    pub fn bytes_max(&self) -> Option<u64> {
        self.cache_mib.map(|mib| (mib as u64) << 20)
    }
}

impl CacheArgs {
    /// Checks that the folder can be written, where somebody asked for it.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self, settings: &ProcessSettings) -> Result<()> {
        match self.must_have_disk() {
            true => check::writable_folder(&self.folder(settings)),
            false => Ok(()),
        }
    }

    fn folder(&self, settings: &ProcessSettings) -> PathBuf {
        self.cache_dir.clone().unwrap_or_else(|| settings.cache_dir())
    }

    /// Returns the options with the cache on or off, in memory and on disk.
    pub fn apply(&self, options: LoadOptions, settings: &ProcessSettings) -> LoadOptions {
        let folder = self.folder(settings);
        let uses_disk = !self.no_prefix_cache || self.must_have_disk();
        let cache_bytes = self.size.bytes_max();
        LoadOptions {
            prefix_cache: !self.no_prefix_cache,
            cache_dir: uses_disk.then_some(folder),
            cache_bytes,
            ..options
        }
    }

    /// Returns whether a folder that cannot be used is an error: somebody asked for it.
    pub(crate) fn must_have_disk(&self) -> bool {
        self.cache_dir.is_some() || self.session.is_some()
    }
}

/// Reads the name of a session.
pub fn session_name(text: &str) -> std::result::Result<String, String> {
    disk::check_name(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}
