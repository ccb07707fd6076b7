//! The store that a server wrote.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ruvllm_sona::store::Store;
use ruvllm_witness::{STORE_FILE, WitnessOptions, open_store};

use crate::args::OutputArgs;
use crate::check;
use crate::error::{Error, Result};

/// Where what a server keeps beside its log lies.
#[derive(Args, Clone, Debug)]
pub struct StoreArgs {
    /// The folder that 'ruvllm serve --witness' writes to
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// File with the store's key, if it is encrypted
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Form of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}

impl StoreArgs {
    /// Opens it; as [`open_written`].
    pub fn open(&self, what: [&str; 2]) -> Result<Arc<dyn Store>> {
        check::key(self.key.as_deref())?;
        let (folder, key) = (self.folder.clone(), self.key.clone());
        open_written(&WitnessOptions { folder, key, ..WitnessOptions::default() }, what)
    }
}

/// Opens the store that a server wrote; `what` says what is missing where there is none, and what a server does about it.
pub fn open_written(options: &WitnessOptions, what: [&str; 2]) -> Result<Arc<dyn Store>> {
    if !options.folder.join(STORE_FILE).is_file() {
        let ([missing, remedy], folder) = (what, options.folder.display());
        return Err(Error::failure(format_args!("{missing} in {folder}; 'ruvllm serve --witness' {remedy}")));
    }
    open_store(options).map_err(Error::failure)
}
