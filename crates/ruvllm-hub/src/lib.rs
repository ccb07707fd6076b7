//! Models by name: where they come from, where they lie, and how they are published.
//!
//! ```no_run
//! use std::path::Path;
//! use ruvllm_hub::{HubConfig, HubFile, Silent, TokenPlaces, read_header};
//!
//! # fn main() -> Result<(), ruvllm_hub::HubError> {
//! let hub = HubConfig::new(None, None, TokenPlaces::default())?;
//! let file = HubFile { repo: "owner/name", revision: "main", file: "model.gguf" };
//! let header = read_header(&hub, &file, &Silent)?;
//! println!("{} tensors", header.tensors().len());
//! # Ok(())
//! # }
//! ```
//!
//! A [`Registry`] knows short names: those of this program (`registry.toml`) and those of a person's file. A [`Store`] is the folder
//! of pulled models: it asks the sources of a name, the hub and wheels of Python, in order, and verifies what arrives. Downloads go
//! on where they were, and never mix two versions of a file. [`Publication`] and [`push`] send models to the hub.
//!
//! It runs no model and converts none: a [`FolderConverter`] does the latter. It reads no environment: settings and the places of
//! tokens are values. It prints nothing: a [`Progress`] hears what is done.

#![forbid(unsafe_code)]

mod cache;
mod checksums;
mod config;
mod digest;
mod download;
mod error;
mod figures;
mod header;
mod http;
mod progress;
mod publish;
mod quantization;
mod registry;
mod shards;
mod source;
mod store;

pub use config::{HF_ENDPOINT, HubConfig, TokenPlaces};
pub use digest::{Digested, Expected};
pub use download::HubFile;
pub use error::{HubError, HubErrorKind, io_reason, one_line};
pub use figures::{bytes, count, timestamp};
pub use header::read_header;
pub use progress::{Progress, ProgressCalls, Silent, Step, Task};
pub use publish::{Publication, PublishOptions, PublishedFile, Pushed, PushedFile, push};
pub use quantization::quantization;
pub use registry::{DEFAULT_MODEL, Entry, Pullable, Registry, Resolved};
pub use shards::ShardName;
pub use source::{
    FetchContext, FolderConverter, FolderOrder, OllamaModel, OllamaParts, Part, Source, SourceKind, WantedFile,
    fetch_folder, pip_version,
};
pub use store::{Model, Record, RemoteFile, Store, StoreOptions};
