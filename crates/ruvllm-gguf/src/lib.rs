//! Reads and writes GGUF, the file format of GGML models: versions 1 to 3, little-endian, whole or split.
//!
//! A file is memory-mapped and its metadata and tensor directory are checked once; tensor bytes are handed out as
//! [`bytes::Bytes`] that share the map. Where there are no maps, as in a browser, they are read from a [`ByteSource`]. A damaged or hostile file costs a [`GgufError`] and bounded memory, never a
//! panic: every length is checked against the bytes that are left before anything is allocated for it (see
//! [`limits`]).
//!
//! ```
//! use ruvllm_gguf::{GgmlType, GgufFile, GgufWriter};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("tiny.gguf");
//!
//! let mut writer = GgufWriter::new();
//! writer.metadata_mut().set("general.architecture", "llama");
//! writer.metadata_mut().set("llama.block_count", 2u32);
//! writer.add_tensor("output_norm.weight", GgmlType::F32, &[4], vec![0u8; 16])?;
//! writer.write_file(&path)?;
//!
//! let file = GgufFile::open(&path)?;
//! assert_eq!(file.metadata().str("general.architecture")?, Some("llama"));
//! assert_eq!(file.metadata().u32("llama.block_count")?, Some(2));
//! let norm = file.tensor("output_norm.weight").ok_or("no such tensor")?;
//! assert_eq!((norm.ty, norm.shape.as_slice()), (GgmlType::F32, &[4][..]));
//! assert_eq!(file.data(norm).len(), 16);
//! # Ok(())
//! # }
//! ```
//!
//! What it does not do: it knows sizes of block formats but never looks inside a block, and it does not know what a
//! key or a tensor is for, but for `general.alignment` and the `split.*` keys. Specification:
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

#![deny(missing_docs)]

mod cursor;
mod error;
mod file;
mod header;
mod index;
pub mod limits;
mod mapped;
mod metadata;
mod source;
mod split;
mod strings;
mod tensor;
mod value;
mod write;

pub use error::{GgufError, GgufErrorKind};
pub use file::GgufFile;
pub use mapped::{MappedFile, Watch};
pub use metadata::Metadata;
pub use ruvllm_ggml::GgmlType;
pub use source::ByteSource;
pub use strings::{StringArray, StringIter};
pub use tensor::TensorInfo;
pub use value::{Array, Value, ValueType};
pub use write::{GgufWriter, TensorData};
