//! Weights of a file on their way to the device.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use half::f16;
use ruvllm_backend::BackendError;
use ruvllm_backend::loading::{LoadProgress, weight_tensor, weight_values};
use ruvllm_gguf::{GgufFile, TensorInfo};
use ruvllm_gpu::{Gpu, GpuBuffer, WeightMatrix, WeightSource};
use ruvllm_kernels::dequant;
use ruvllm_model::{LinearSpec, NormKind, NormSpec, TensorRows};
use ruvllm_shaders::WeightFormat;

use crate::error::failed;

/// The weights of a file, and the device that they go to.
pub(crate) struct Weights<'a> {
    pub file: &'a GgufFile,
    pub gpu: &'a Gpu,
    done_bytes: Cell<u64>,
    total_bytes: u64,
    progress: RefCell<&'a mut dyn FnMut(LoadProgress)>,
}

/// A linear layer on the device; of experts the first one's number.
pub(crate) struct Linear {
    pub id: usize,
    pub matrix: WeightMatrix,
    pub bias: Option<GpuBuffer>,
}

/// The matrices of a layer's experts, one after another.
pub(crate) struct Experts {
    pub linear: Linear,
    pub n_experts: usize,
}

/// A norm on the device.
pub(crate) struct Norm {
    pub kind: NormKind,
    /// `[n_sets, width]`
    pub weight: GpuBuffer,
    pub bias: Option<GpuBuffer>,
    pub eps: f32,
    pub width: usize,
    pub n_sets: usize,
}

/// Bytes of values as they go to the device.
enum Source<'a> {
    /// In a format that the kernels read.
    AsTheyAre(WeightFormat, &'a [u8]),
    /// Brought to f16.
    Halves(Vec<u8>),
}

impl<'a> Weights<'a> {
    pub(crate) fn new(file: &'a GgufFile, gpu: &'a Gpu, progress: &'a mut dyn FnMut(LoadProgress)) -> Weights<'a> {
        let (done_bytes, total_bytes) = (Cell::new(0), file.tensor_bytes());
        Weights { file, gpu, done_bytes, total_bytes, progress: RefCell::new(progress) }
    }

    fn tell(&self, n_bytes: usize) {
        let done_bytes = (self.done_bytes.get() + n_bytes as u64).min(self.total_bytes);
        self.done_bytes.set(done_bytes);
        (self.progress.borrow_mut())(LoadProgress { done_bytes, total_bytes: self.total_bytes });
    }

    /// Uploads numbers.
    pub(crate) fn floats(&self, name: &str, values: &[f32]) -> Result<GpuBuffer, BackendError> {
        let buffer = self.gpu.buffer(name, values.len()).map_err(failed)?;
        self.gpu.write(&buffer, 0, bytemuck::cast_slice(values)).map_err(failed)?;
        Ok(buffer)
    }

    /// Reads a vector, or a small table.
    pub(crate) fn values(&self, rows: &TensorRows) -> Result<Vec<f32>, BackendError> {
        weight_values(self.file, rows)
    }

    /// Uploads a vector, or a small table.
    pub(crate) fn vector(&self, rows: &TensorRows) -> Result<GpuBuffer, BackendError> {
        self.floats(&rows.tensor, &self.values(rows)?)
    }

    /// Uploads a matrix in the format of the file; in f16 if no kernel reads that.
    pub(crate) fn matrix(&self, rows: &TensorRows) -> Result<WeightMatrix, BackendError> {
        self.stack(std::slice::from_ref(rows), 1)
    }

    /// Uploads the rows of several matrices one after another, of which `rows_together` are never in two parts.
    fn stack(&self, all: &[TensorRows], rows_together: usize) -> Result<WeightMatrix, BackendError> {
        let (first, last) = (&all[0], &all[all.len() - 1]);
        let is_one_tensor = all.windows(2).all(|two| {
            two[0].tensor == two[1].tensor && two[0].rows.end == two[1].rows.start && two[0].n_cols == two[1].n_cols
        });
        let merged = TensorRows { rows: first.rows.start..last.rows.end, ..first.clone() };
        let parts = if is_one_tensor { std::slice::from_ref(&merged) } else { all };
        let data: Vec<_> = parts
            .iter()
            .map(|rows| {
                let (tensor, place) = self.place(rows)?;
                Ok::<_, BackendError>(self.file.read(tensor, place)?)
            })
            .collect::<Result<_, _>>()?;
        let sources: Vec<Source<'_>> =
            parts.iter().zip(&data).map(|(rows, data)| self.source(rows, data)).collect::<Result<_, _>>()?;
        let formats: Vec<WeightFormat> = sources.iter().map(Source::format).collect();
        let format = formats[0];
        if let Some(other) = formats.iter().find(|other| **other != format) {
            let line = format!(
                "backend gpu takes the experts of a layer in one type, and those of '{}' are {} and {}; use native",
                first.tensor,
                format.name(),
                other.name()
            );
            return Err(BackendError::unsupported(line));
        }
        let joined;
        let bytes = match &sources[..] {
            [only] => only.bytes(),
            several => {
                joined = several.iter().flat_map(Source::bytes).copied().collect::<Vec<u8>>();
                &joined[..]
            }
        };
        let source = WeightSource { name: &first.tensor, format, k: first.n_cols, rows_together, bytes };
        let matrix = self.gpu.upload(&source).map_err(failed)?;
        parts.iter().try_for_each(|rows| self.release(rows))?;
        self.tell(bytes.len());
        Ok(matrix)
    }

    /// Returns a tensor, and where in its bytes these rows are.
    fn place(&self, rows: &TensorRows) -> Result<(&TensorInfo, Range<usize>), BackendError> {
        let (tensor, range) = (weight_tensor(self.file, rows)?, rows.values());
        let ty = tensor.ty;
        let place = ty.row_bytes(range.start).zip(ty.row_bytes(range.end));
        let (start, end) = place.filter(|_| ty.row_bytes(rows.n_cols).is_some()).ok_or_else(|| {
            let line = format!("the rows of tensor '{}' ({ty}) are not whole blocks; use native", rows.tensor);
            BackendError::unsupported(line)
        })?;
        Ok((tensor, start..end))
    }

    /// Returns the bytes of rows as they go to the device.
    fn source<'b>(&self, rows: &TensorRows, data: &'b [u8]) -> Result<Source<'b>, BackendError> {
        let ty = weight_tensor(self.file, rows)?.ty;
        Ok(match WeightFormat::from_ggml_id(ty.id()) {
            Some(format) => Source::AsTheyAre(format, data),
            None => {
                let mut values = vec![0.0; rows.values().len()];
                dequant::dequantize(ty, data, &mut values);
                Source::Halves(values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect())
            }
        })
    }

    /// Lets go of the memory of rows that are on the device.
    fn release(&self, rows: &TensorRows) -> Result<(), BackendError> {
        let (tensor, place) = self.place(rows)?;
        self.file.release(tensor, place);
        Ok(())
    }

    pub(crate) fn linear(&self, spec: &LinearSpec) -> Result<Linear, BackendError> {
        let bias = spec.bias.as_ref().map(|bias| self.vector(bias)).transpose()?;
        Ok(Linear { id: spec.id, matrix: self.matrix(&spec.weight)?, bias })
    }

    /// Uploads the matrices of experts, which all have the same shape.
    pub(crate) fn experts(&self, specs: &[LinearSpec]) -> Result<Experts, BackendError> {
        let (rows, n_out) = (specs.iter().map(|spec| spec.weight.clone()).collect::<Vec<_>>(), specs[0].n_out());
        let mut biases = Vec::new();
        if specs.iter().any(|spec| spec.bias.is_some()) {
            for spec in specs {
                match &spec.bias {
                    Some(bias) => biases.extend(weight_values(self.file, bias)?),
                    None => biases.resize(biases.len() + n_out, 0.0),
                }
            }
        }
        let bias = (!biases.is_empty()).then(|| self.floats("biases of experts", &biases)).transpose()?;
        let linear = Linear { id: specs[0].id, matrix: self.stack(&rows, n_out)?, bias };
        Ok(Experts { linear, n_experts: specs.len() })
    }

    pub(crate) fn norm(&self, spec: &NormSpec) -> Result<Norm, BackendError> {
        let NormSpec { kind, weight, bias, eps } = spec;
        Ok(Norm {
            kind: *kind,
            weight: self.vector(weight)?,
            bias: bias.as_ref().map(|bias| self.vector(bias)).transpose()?,
            eps: *eps,
            width: weight.n_cols,
            n_sets: weight.n_rows(),
        })
    }

    /// Makes an RMS norm of rows of `width` values without weights.
    pub(crate) fn plain_norm(&self, width: usize, eps: f32) -> Result<Norm, BackendError> {
        let weight = self.floats("ones", &vec![1.0; width])?;
        Ok(Norm { kind: NormKind::Rms, weight, bias: None, eps, width, n_sets: 1 })
    }

    pub(crate) fn norm_if_any(&self, spec: Option<&NormSpec>) -> Result<Option<Norm>, BackendError> {
        spec.map(|spec| self.norm(spec)).transpose()
    }
}

impl Source<'_> {
    fn format(&self) -> WeightFormat {
        match self {
            Source::AsTheyAre(format, _) => *format,
            Source::Halves(_) => WeightFormat::F16,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Source::AsTheyAre(_, bytes) => bytes,
            Source::Halves(bytes) => bytes,
        }
    }
}
