//! Stores of tests on disks that fail.

use std::path::Path;
use std::sync::Arc;

use ruvllm_store::{OpenOptions, Store};
use ruvllm_testkit::Faults;

/// Opens the store of a folder, and returns what makes its disk fail.
pub(crate) fn open(folder: &Path) -> (Arc<Faults>, Arc<dyn Store>) {
    let faults = Faults::watch(folder);
    let guard = faults.guard();
    let options = OpenOptions { guard: Some(&guard), ..OpenOptions::default() };
    let store = ruvllm_store::open(&folder.join("sona.redb"), &options).expect("a store");
    (faults, store)
}
