//! Names of model files: what tells one from all others.

use std::path::Path;

use ruvllm_gguf::GgufFile;
use ruvllm_kvcache::NamespaceBuilder;

use crate::BackendError;
pub use crate::content::{PIECE, by_pieces, content_hash, remembered_hash};

/// Bytes of each tensor that go into the identity of a file: its first and its middle ones.
const SAMPLE: usize = 512;

/// Returns what a file adds to the namespace of its sequences: the hyper-parameters, every tensor's name, type and shape
/// and a sample of its bytes. A fine-tuned model differs in its samples. Where a cache folder is used, `content` is the
/// hash of all bytes and takes their place.
///
/// To be called before the tensors are taken over: it touches pages that loading reads anyway.
///
/// # Errors
/// The file is read piece by piece, and cannot be read.
pub fn of_file(file: &GgufFile, content: Option<[u8; 32]>) -> Result<NamespaceBuilder, BackendError> {
    if let Some(content) = content {
        return Ok(NamespaceBuilder::new("ruvllm kv 1").part("content", &content));
    }
    let mut builder = NamespaceBuilder::new("ruvllm kv 1").part("bytes", &file.total_bytes().to_le_bytes());
    // The vocabulary is long and decides nothing here.
    for (key, value) in file.metadata().iter().filter(|(key, _)| !key.starts_with("tokenizer.")) {
        builder = builder.part(key, format!("{value:?}").as_bytes());
    }
    for tensor in file.tensors() {
        let n_bytes = tensor.n_bytes();
        let sample = |start: usize| file.read(tensor, start..n_bytes.min(start + SAMPLE));
        builder = builder
            .part(&tensor.name, format!("{} {:?}", tensor.ty.name(), tensor.shape).as_bytes())
            .part("start", &sample(0)?)
            .part("middle", &sample(n_bytes / 2)?);
    }
    Ok(builder)
}

/// Returns what tells a model's file from others, without loading it.
///
/// # Errors
/// The file cannot be read.
pub fn identity_of(path: &Path) -> Result<[u8; 32], BackendError> {
    Ok(of_file(&GgufFile::open(path)?, None)?.identity())
}
