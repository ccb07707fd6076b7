//! The place where a write to the disk can be made to fail, which only tests do.

use std::io;
use std::path::Path;

/// The disk under a store's folder.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    #[cfg(test)]
    faults: Option<std::sync::Arc<ruvllm_testkit::Faults>>,
}

impl Disk {
    /// Returns the disk under the folder of a store's segments.
    #[cfg_attr(not(test), expect(unused_variables, reason = "only tests name folders that fail"))]
    pub(super) fn under(path: &Path) -> Disk {
        Disk {
            #[cfg(test)]
            faults: ruvllm_testkit::Faults::of(path),
        }
    }

    /// Called before each write, sync and change of length.
    ///
    /// # Errors
    /// What a test has said.
    #[cfg_attr(not(test), expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "only tests let it fail"))]
    pub(super) fn ask(&self) -> io::Result<()> {
        #[cfg(test)]
        if let Some(faults) = &self.faults {
            return faults.ask();
        }
        Ok(())
    }
}
