//! Weights as candle's tensors, and the two operations that read them alone: linear layers and norms.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{D, Device, Module, Result, Tensor};
use ruvllm_backend::loading::{LoadProgress, weight_tensor, weight_values};
use ruvllm_backend::{BackendError, BackendErrorKind};
use ruvllm_gguf::{GgmlType, GgufFile};
use ruvllm_kernels::dequant;
use ruvllm_model::{LinearSpec, NormKind, NormSpec, TensorRows};

/// The weights of a file on their way to a device.
pub(crate) struct Weights<'a> {
    file: &'a Arc<GgufFile>,
    pub device: Device,
    is_f32: bool,
    done_bytes: Cell<u64>,
    total_bytes: u64,
    progress: RefCell<&'a mut dyn FnMut(LoadProgress)>,
}

/// Makes a backend's error of candle's.
pub(crate) fn failed(error: candle_core::Error) -> BackendError {
    // Backtraces, where they are switched on, are part of candle's text.
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default().to_owned();
    BackendError::new(BackendErrorKind::Model, format!("candle: {line}"))
}

impl<'a> Weights<'a> {
    pub(crate) fn new(
        file: &'a Arc<GgufFile>,
        device: Device,
        is_f32: bool,
        progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Weights<'a> {
        let total_bytes = file.tensors().map(|tensor| tensor.n_bytes() as u64).sum();
        Weights { file, device, is_f32, done_bytes: Cell::new(0), total_bytes, progress: RefCell::new(progress) }
    }

    fn tell(&self, n_bytes: usize) {
        let done_bytes = (self.done_bytes.get() + n_bytes as u64).min(self.total_bytes);
        self.done_bytes.set(done_bytes);
        (self.progress.borrow_mut())(LoadProgress { done_bytes, total_bytes: self.total_bytes });
    }

    /// Reads values in f32.
    pub(crate) fn values(&self, rows: &TensorRows) -> std::result::Result<Vec<f32>, BackendError> {
        weight_values(self.file, rows)
    }

    /// Reads values as a tensor `[n_rows, n_cols]`; of one row `[n_cols]`.
    pub(crate) fn table(&self, rows: &TensorRows) -> std::result::Result<Tensor, BackendError> {
        let values = self.values(rows)?;
        let tensor = match rows.n_rows() {
            1 => Tensor::from_vec(values, rows.n_cols, &self.device),
            n_rows => Tensor::from_vec(values, (n_rows, rows.n_cols), &self.device),
        };
        tensor.map_err(failed)
    }

    /// Reads a vector, whatever rows its file has it in.
    pub(crate) fn vector(&self, rows: &TensorRows) -> std::result::Result<Tensor, BackendError> {
        Tensor::from_vec(self.values(rows)?, rows.n_values(), &self.device).map_err(failed)
    }

    /// Reads a matrix `[n_rows, n_cols]`, of one row as well.
    pub(crate) fn matrix(&self, rows: &TensorRows) -> std::result::Result<Tensor, BackendError> {
        Tensor::from_vec(self.values(rows)?, (rows.n_rows(), rows.n_cols), &self.device).map_err(failed)
    }

    pub(crate) fn table_if_any(&self, rows: Option<&TensorRows>) -> std::result::Result<Option<Tensor>, BackendError> {
        rows.map(|rows| self.table(rows)).transpose()
    }

    pub(crate) fn linear(&self, spec: &LinearSpec) -> std::result::Result<Linear, BackendError> {
        let tensor = weight_tensor(self.file, &spec.weight)?;
        let (n_out, n_in) = (spec.n_out(), spec.n_in());
        let start = tensor.ty.row_bytes(spec.weight.values().start).unwrap_or(0);
        let n_bytes = tensor.ty.row_bytes(spec.weight.n_values()).unwrap_or(0);
        let bytes = self.file.data(tensor).slice(start..start + n_bytes);
        self.tell(n_bytes);
        let quantised =
            quantised_type(tensor.ty).filter(|_| !self.is_f32 && (bytes.as_ptr() as usize).is_multiple_of(2));
        let made = match quantised {
            Some(ty) => QStorage::from_data(Cow::Borrowed(&bytes), &self.device, ty)
                .and_then(|storage| QMatMul::from_qtensor(QTensor::new(storage, (n_out, n_in))?)),
            None => {
                let mut values = vec![0.0; n_out * n_in];
                dequant::dequantize(tensor.ty, &bytes, &mut values);
                Tensor::from_vec(values, (n_out, n_in), &self.device).map(QMatMul::Tensor)
            }
        };
        let bias = spec.bias.as_ref().map(|bias| {
            let values = self.values(bias)?;
            Tensor::from_vec(values, n_out, &self.device).map_err(failed)
        });
        Ok(Linear { weight: made.map_err(failed)?, bias: bias.transpose()? })
    }

    pub(crate) fn norm(&self, spec: Option<&NormSpec>) -> std::result::Result<Option<Norm>, BackendError> {
        let Some(NormSpec { kind, weight, bias, eps }) = spec else { return Ok(None) };
        let (weight, bias) = (self.table(weight)?, self.table_if_any(bias.as_ref())?);
        Ok(Some(Norm { kind: *kind, weight, bias, eps: f64::from(*eps) }))
    }
}

/// Returns the type as candle multiplies with it, if candle has it; floats are brought to f32.
fn quantised_type(ty: GgmlType) -> Option<GgmlDType> {
    Some(match ty {
        GgmlType::Q4_0 => GgmlDType::Q4_0,
        GgmlType::Q4_1 => GgmlDType::Q4_1,
        GgmlType::Q5_0 => GgmlDType::Q5_0,
        GgmlType::Q5_1 => GgmlDType::Q5_1,
        GgmlType::Q8_0 => GgmlDType::Q8_0,
        GgmlType::Q2_K => GgmlDType::Q2K,
        GgmlType::Q3_K => GgmlDType::Q3K,
        GgmlType::Q4_K => GgmlDType::Q4K,
        GgmlType::Q5_K => GgmlDType::Q5K,
        GgmlType::Q6_K => GgmlDType::Q6K,
        _ => return None,
    })
}

/// `y = W·x + b`.
pub(crate) struct Linear {
    weight: QMatMul,
    bias: Option<Tensor>,
}

impl Linear {
    /// Multiplies rows: `[n, n_in]` to `[n, n_out]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.weight.forward(x)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

/// A norm over the last dimension.
pub(crate) struct Norm {
    kind: NormKind,
    /// `[width]`, or `[n_heads, width]` where heads have their own.
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f64,
}

impl Norm {
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = match self.kind {
            NormKind::Rms => x.clone(),
            NormKind::Layer => x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?,
        };
        let by = (x.sqr()?.mean_keepdim(D::Minus1)? + self.eps)?.sqrt()?;
        let y = x.broadcast_div(&by)?.broadcast_mul(&self.weight)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    /// Returns the length of the runs that are normalised.
    pub(crate) fn width(&self) -> Result<usize> {
        self.weight.dim(D::Minus1)
    }
}

/// Normalises rows, or passes them on where there is no norm.
pub(crate) fn normed(norm: Option<&Norm>, x: &Tensor) -> Result<Tensor> {
    norm.map_or_else(|| Ok(x.clone()), |norm| norm.forward(x))
}

/// `cap·tanh(x / cap)`
pub(crate) fn capped(x: Tensor, cap: Option<f32>) -> Result<Tensor> {
    match cap {
        Some(cap) => (x / f64::from(cap))?.tanh()? * f64::from(cap),
        None => Ok(x),
    }
}

/// Softmax over the last dimension.
pub(crate) fn softmax(x: &Tensor) -> Result<Tensor> {
    let exp = x.broadcast_sub(&x.max_keepdim(D::Minus1)?)?.exp()?;
    exp.broadcast_div(&exp.sum_keepdim(D::Minus1)?)
}
