//! A model's calibration: what it says of eight short texts of this project, read once in a model's life.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ruvllm_engine::{Engine, EngineError, ErrorKind};
use ruvllm_kernels::Isa;
use ruvllm_lora::micro::{Basis, HeadRows};
use ruvllm_sona::{Calibration, CalibrationBuilder};
use ruvllm_text::tokenizer::EncodeOptions;

use crate::error::of_sona;
use crate::evaluation_stream::{TextChunk, WindowOptions, read_text};
use crate::file;

/// Texts that are read: pages and sources of this project and of its licence, as they were once. They never change, for
/// what is learned is whitened by them.
const TEXTS: [&str; N_TEXTS] = [
    include_str!("calibration/license.txt"),
    include_str!("calibration/architecture.txt"),
    include_str!("calibration/kv-cache.txt"),
    include_str!("calibration/server.txt"),
    include_str!("calibration/isa.txt"),
    include_str!("calibration/norm.txt"),
    include_str!("calibration/shell.txt"),
    include_str!("calibration/adr.txt"),
];
/// Number of texts.
pub const N_TEXTS: usize = 8;
/// The most tokens of a text.
const N_TOKENS_MAX: usize = 2048;

/// Progress of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalibrationProgress {
    /// Tokens that were read.
    pub n_done: usize,
    /// All of them.
    pub n_tokens: usize,
}

/// Reads the calibration from a folder, or makes it and keeps it there.
pub(crate) fn load_or_make(
    engine: &mut Engine,
    folder: Option<&Path>,
    on_progress: &mut dyn FnMut(CalibrationProgress) -> ControlFlow<()>,
) -> Result<Calibration, EngineError> {
    let n_embd = engine.info().n_embd;
    load_or_store(
        folder,
        "calibration",
        |bytes| restored(bytes, n_embd),
        || calibrate(engine, on_progress),
        Calibration::snapshot,
    )
}

/// Returns the calibration that bytes are, of a model of this width.
pub(crate) fn restored(bytes: &[u8], n_embd: usize) -> Option<Calibration> {
    Calibration::restore(bytes).ok().filter(|read| read.whitener().n_embd() == n_embd)
}

/// Reads a file of a folder, or makes what it holds and keeps it there. One that is damaged, or of an older program, is made again.
fn load_or_store<T>(
    folder: Option<&Path>,
    name: &str,
    restore: impl FnOnce(&[u8]) -> Option<T>,
    make: impl FnOnce() -> Result<T, EngineError>,
    snapshot: impl FnOnce(&T) -> Vec<u8>,
) -> Result<T, EngineError> {
    let Some(folder) = folder else { return make() };
    let path = folder.join(name);
    if let Some(read) = file::read(&path)?.as_deref().and_then(restore) {
        return Ok(read);
    }
    let made = make()?;
    file::make_folder(folder)?;
    file::write(&path, &snapshot(&made))?;
    Ok(made)
}

/// Reads the texts that a model is calibrated by, about 11,000 tokens, and returns what it says of them: hidden states
/// are whitened by that, and λ is fitted on it.
///
/// # Errors
/// The model makes no text, has no tokenizer, or `on_progress` breaks off.
pub fn calibrate(
    engine: &mut Engine,
    on_progress: &mut dyn FnMut(CalibrationProgress) -> ControlFlow<()>,
) -> Result<Calibration, EngineError> {
    let options = EncodeOptions { add_special: false, parse_special: false };
    let mut texts = Vec::with_capacity(N_TEXTS);
    for text in TEXTS {
        let mut tokens = engine.tokenizer()?.encode(text, options)?;
        tokens.truncate(N_TOKENS_MAX);
        texts.push(tokens);
    }
    let (n_embd, n_vocab) = (engine.info().n_embd, engine.info().n_vocab);
    let (mut n_done, n_tokens) = (0, texts.iter().map(Vec::len).sum());
    let mut builder = CalibrationBuilder::new(n_embd, engine.compute().isa).map_err(of_sona)?;
    for tokens in &texts {
        read_text(engine, tokens, &WindowOptions::default(), &mut |_, TextChunk { first, rows }| {
            let states = rows.states.hidden.chunks_exact(n_embd).zip(rows.logits.chunks_exact(n_vocab));
            for (i, ((hidden, logits), &next)) in states.zip(rows.next).enumerate() {
                builder.push(hidden, logits, next, first + i == 0);
            }
            n_done += rows.next.len();
            match on_progress(CalibrationProgress { n_done, n_tokens }) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(stopped(n_done, n_tokens)),
            }
        })?;
    }
    builder.finish(n_embd).map_err(of_sona)
}

/// Reads what a MicroLoRA takes its steps in from a folder, or makes it of the calibration and the model's head, and keeps it there.
pub(crate) fn with_basis(
    calibration: Calibration,
    head: &dyn HeadRows,
    folder: Option<&Path>,
    isa: Isa,
) -> Result<Calibration, EngineError> {
    let n_embd = calibration.whitener().n_embd();
    let basis = load_or_store(
        folder,
        "basis",
        |bytes| Basis::restore(bytes, isa).ok().filter(|basis| basis.n_embd() == n_embd),
        || calibration.fit_basis(head, isa).map_err(of_sona),
        Basis::snapshot,
    )?;
    calibration.with_basis(Arc::new(basis)).map_err(of_sona)
}

/// The error of who breaks off.
pub(crate) fn stopped(n_done: usize, n_tokens: usize) -> EngineError {
    EngineError::new(ErrorKind::Cancelled, format!("stopped after {n_done} of {n_tokens} tokens"))
}
