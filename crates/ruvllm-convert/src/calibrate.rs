//! Calibration with a model that runs, which is asked through a trait: importance matrices and sensitivities.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, TensorInfo};

use crate::error::{ConvertError, ConvertErrorKind};
use crate::imatrix::{ImatrixCollector, ImportanceMatrix, ImportanceSums};
use crate::mixture::fallback;
use crate::plan::{PlannedTensor, weights};
use crate::role::is_quantized;
use crate::rows::Rows;

/// A model that runs, as far as calibration asks it.
pub trait CalibrationModel {
    /// Reads a window of tokens from an empty context, and tells `collector` the inputs of all products.
    ///
    /// # Errors
    /// The model's.
    fn observe(&mut self, window: &[u32], collector: &mut ImatrixCollector) -> Result<(), ConvertError>;

    /// Returns the mean KL divergence, in nats, of the predictions with another tensor in the place of the file's from those
    /// without, on a text of its own.
    ///
    /// # Errors
    /// The model's.
    fn divergence(&mut self, replaced: ReplacedTensor<'_>) -> Result<f64, ConvertError>;
}

/// A tensor with other weights.
#[derive(Debug)]
pub struct ReplacedTensor<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Type of the weights.
    pub ty: GgmlType,
    /// Its rows, behind each other.
    pub weights: Vec<u8>,
}

/// A run over a text, which adds up an importance matrix.
#[derive(Debug)]
pub struct ImatrixRun<'a> {
    /// Windows of tokens, all of one length.
    pub windows: &'a [Vec<u32>],
    /// Name of the text.
    pub dataset: String,
    /// Hash of model and text: a run is gone on with only if it is the same.
    pub source: u64,
    /// File that keeps what was done, for a run that is broken off; removed when all is done.
    pub checkpoint: PathBuf,
    /// Go on with what the checkpoint has, if it is there.
    pub resume: bool,
    /// Time between checkpoints.
    pub checkpoint_after: Duration,
}

/// Progress of [`compute_imatrix`] and [`measure_sensitivities`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImatrixProgress {
    /// Windows, or tensors, that are done.
    pub n_done: usize,
    /// All of them.
    pub n_all: usize,
}

/// Computes the sums of an importance matrix. The result is the same bits whether the run was broken off between windows or not.
///
/// # Errors
/// The model's; the checkpoint cannot be written, or is that of another run; `progress` breaks it off, after which the checkpoint
/// has all windows that were read.
pub fn compute_imatrix(
    model: &mut dyn CalibrationModel,
    mut collector: ImatrixCollector,
    run: &ImatrixRun<'_>,
    progress: &mut dyn FnMut(ImatrixProgress) -> ControlFlow<()>,
) -> Result<ImportanceSums, ConvertError> {
    let n_all = run.windows.len();
    let mut sums = begin(run)?;
    let mut saved = Instant::now();
    for window in run.windows.iter().skip(sums.n_chunks as usize) {
        model.observe(window, &mut collector)?;
        collector.finish_window(&mut sums);
        let n_done = sums.n_chunks as usize;
        let is_over = progress(ImatrixProgress { n_done, n_all }).is_break();
        if is_over || saved.elapsed() >= run.checkpoint_after && n_done < n_all {
            sums.write(&run.checkpoint)?;
            saved = Instant::now();
        }
        if is_over {
            let line = format!("stopped after {n_done} of {n_all} windows; pass --resume to go on");
            return Err(ConvertError::new(ConvertErrorKind::Cancelled, line));
        }
    }
    sums.source = None;
    Ok(sums)
}

/// Returns the sums that a run begins with.
fn begin(run: &ImatrixRun<'_>) -> Result<ImportanceSums, ConvertError> {
    let chunk_size = run.windows.first().map_or(0, Vec::len) as u32;
    if !run.resume || !run.checkpoint.exists() {
        let datasets = vec![run.dataset.clone()];
        let mut sums = ImportanceSums::default();
        (sums.datasets, sums.chunk_size, sums.source) = (datasets, chunk_size, Some(run.source));
        return Ok(sums);
    }
    let sums = ImportanceSums::open(&run.checkpoint)?;
    if sums.source != Some(run.source) || sums.chunk_size != chunk_size || sums.n_chunks as usize > run.windows.len() {
        let line = "it is of another model, text or --ctx, or of more chunks; remove it, or leave --resume out";
        return Err(ConvertError::usage(line).at(&run.checkpoint));
    }
    Ok(sums)
}

/// Type that a tensor is brought to for its sensitivity: an error that predictions show, and that is still small.
fn probe_type(info: &TensorInfo) -> GgmlType {
    match info.shape[0].is_multiple_of(256) {
        true => GgmlType::Q3_K,
        false => fallback(GgmlType::IQ4_XS, info.shape[0]),
    }
}

/// Measures the sensitivity of every tensor that is quantised, one by one: the divergence of the predictions with the tensor in
/// fewer bits, for each unit of its relative error. Tensors that have one already are passed over, and so are those that
/// the model does not multiply with.
///
/// # Errors
/// The model's; the sums are those of another model; `progress` breaks it off, and what was measured is in `sums`.
pub fn measure_sensitivities(
    model: &mut dyn CalibrationModel,
    path: &Path,
    sums: &mut ImportanceSums,
    n_threads: usize,
    progress: &mut dyn FnMut(ImatrixProgress, &ImportanceSums) -> ControlFlow<()>,
) -> Result<(), ConvertError> {
    let file = GgufFile::open(path)?;
    let matrix = ImportanceMatrix::from(sums.clone());
    let infos: Vec<&TensorInfo> = file.tensors().filter(|info| is_quantized(info)).collect();
    for (i, info) in infos.iter().enumerate() {
        if !sums.has_sensitivity(&info.name) {
            let ty = probe_type(info);
            let weights = weights(info, &matrix)?;
            let planned = PlannedTensor { info, ty, weights, is_unknown: false, instead_of: None };
            let rows = Rows::new(&planned, file.data(info));
            let error = rows.relative_error(n_threads).map_err(|error| error.of_tensor(&info.name))?;
            let mut out = Vec::new();
            rows.quantize(0..rows.n_rows(), &mut out, n_threads).map_err(|error| error.of_tensor(&info.name))?;
            file.release(info, 0..info.n_bytes());
            let kl = model.divergence(ReplacedTensor { name: &info.name, ty, weights: out })?;
            if error > 0.0 && kl.is_finite() {
                sums.set_sensitivity(&info.name, (kl / error) as f32);
            }
        }
        if progress(ImatrixProgress { n_done: i + 1, n_all: infos.len() }, sums).is_break() {
            return Err(ConvertError::new(ConvertErrorKind::Cancelled, "stopped; pass --resume to go on"));
        }
    }
    Ok(())
}
