//! A pack for several threads: an instance for each that asks at the same time.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::error::PackError;
use crate::manifest::Manifest;
use crate::pack::Pack;
use crate::sandbox::Compiled;

/// A compiled pack with its idle instances.
pub struct PackPool {
    manifest: Manifest,
    compiled: Compiled,
    idle: Mutex<Vec<Pack>>,
}

impl PackPool {
    pub(crate) fn new(manifest: Manifest, compiled: Compiled) -> PackPool {
        PackPool { manifest, compiled, idle: Mutex::default() }
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns an instance: an idle one, or a new one.
    ///
    /// # Errors
    /// With kind `Sandbox` if the module does not start.
    pub fn take(&self) -> Result<Pack, PackError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| Pack::start(self.manifest.clone(), &self.compiled), Ok)
    }

    /// Runs something on an instance, which is idle again unless it failed.
    ///
    /// # Errors
    /// That of [`PackPool::take`] or of `run`.
    pub fn with<T>(&self, run: impl FnOnce(&mut Pack) -> Result<T, PackError>) -> Result<T, PackError> {
        let mut pack = self.take()?;
        let result = run(&mut pack)?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(pack);
        Ok(result)
    }
}

impl fmt::Debug for PackPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackPool").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}
