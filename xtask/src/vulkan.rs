//! The step `vulkan` of `cargo xtask ci`: a driver for the tests of the GPU kernels, in software where there is no other.

use std::path::Path;

use anyhow::{Context, Result};

use crate::shell;

/// Folders in which drivers of Vulkan say that they are there.
const FOLDERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];

/// Installs Mesa's drivers, which have one in software, unless this machine has a driver or another way to its GPU.
///
/// # Errors
/// There is none and it cannot be installed.
pub(crate) fn run() -> Result<()> {
    let has_driver = |folder: &&str| Path::new(folder).read_dir().is_ok_and(|mut entries| entries.next().is_some());
    if cfg!(target_os = "macos") || FOLDERS.iter().any(has_driver) {
        return Ok(());
    }
    shell::apt_install(&["mesa-vulkan-drivers"]).context("the tests of the GPU kernels need Vulkan")
}
