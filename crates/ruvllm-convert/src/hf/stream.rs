//! Values of tensors as streams of bytes, computed while they are written.

use std::cell::RefCell;
use std::io::{self, Read};
use std::ops::ControlFlow;

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use ruvllm_ggml::GgmlType;
use ruvllm_gguf::TensorData;

use super::ConvertProgress;
use super::tensors::{Planned, Values};
use super::view::View;
use crate::error::{ConvertError, ConvertErrorKind};

/// Values that are computed at once.
const VALUES_AT_ONCE: usize = 1 << 18;
/// Values of a block of MXFP4, and its bytes: a scale, then codes.
const MXFP4_VALUES: usize = 32;
const MXFP4_BYTES: usize = 17;

/// A file while it is written.
pub(super) struct Run<'a> {
    total_bytes: u64,
    state: RefCell<State<'a>>,
}

struct State<'a> {
    progress: &'a mut dyn FnMut(ConvertProgress<'_>) -> ControlFlow<()>,
    done_bytes: u64,
    /// The first error of a tensor; writing stops at it.
    error: Option<ConvertError>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        progress: &'a mut dyn FnMut(ConvertProgress<'_>) -> ControlFlow<()>,
        total_bytes: u64,
    ) -> Run<'a> {
        Run { total_bytes, state: RefCell::new(State { progress, done_bytes: 0, error: None }) }
    }

    /// Returns the error that ended it.
    pub(super) fn into_error(self) -> Option<ConvertError> {
        self.state.into_inner().error
    }

    /// Returns the bytes of a tensor.
    pub(super) fn stream<'r>(&'r self, tensor: &'r Planned) -> TensorData<'r> {
        let n_values = tensor.shape.iter().product();
        TensorData::reader(Stream {
            run: self,
            tensor,
            n_values,
            next: 0,
            bytes: Vec::new(),
            at: 0,
            values: Vec::new(),
        })
    }

    /// Tells that values of a tensor were read.
    fn read(&self, tensor: &Planned, n_values: usize, of: usize) -> io::Result<()> {
        let mut state = self.state.borrow_mut();
        state.done_bytes += (u128::from(tensor.values.source_bytes()) * n_values as u128 / of.max(1) as u128) as u64;
        let done_bytes = state.done_bytes;
        let progress =
            ConvertProgress { is_quantizing: false, tensor: &tensor.name, done_bytes, total_bytes: self.total_bytes };
        match (state.progress)(progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(state.fail(ConvertError::new(ConvertErrorKind::Cancelled, "cancelled"))),
        }
    }
}

impl State<'_> {
    /// Keeps an error and returns one that stops the writer.
    fn fail(&mut self, error: ConvertError) -> io::Error {
        self.error = Some(error);
        io::Error::other("stopped")
    }
}

/// The bytes of a tensor, some at a time.
struct Stream<'r, 'a> {
    run: &'r Run<'a>,
    tensor: &'r Planned,
    n_values: usize,
    /// The first value that was not computed.
    next: usize,
    bytes: Vec<u8>,
    at: usize,
    values: Vec<f32>,
}

impl Stream<'_, '_> {
    /// Computes further bytes.
    fn fill(&mut self) -> Result<(), ConvertError> {
        let n = VALUES_AT_ONCE.min(self.n_values - self.next);
        self.bytes.clear();
        self.at = 0;
        match &self.tensor.values {
            Values::Mxfp4 { codes, scales } => mxfp4(codes, scales, self.next, n, &mut self.bytes),
            Values::Made(values) => encode(self.tensor.ty, &values[self.next..self.next + n], &mut self.bytes)?,
            Values::Floats(floats) => {
                self.values.resize(n, 0.0);
                floats.read(self.next, &mut self.values);
                encode(self.tensor.ty, &self.values, &mut self.bytes)?;
                floats.release(self.next, self.next + n);
            }
        }
        self.next += n;
        Ok(())
    }
}

impl Read for Stream<'_, '_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.bytes.len() && self.next < self.n_values {
            let before = self.next;
            if let Err(error) = self.fill() {
                return Err(self.run.state.borrow_mut().fail(error.of_tensor(&self.tensor.name)));
            }
            self.run.read(self.tensor, self.next - before, self.n_values)?;
        }
        let n = out.len().min(self.bytes.len() - self.at);
        out[..n].copy_from_slice(&self.bytes[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

/// Writes values in a type of 32 or 16 bits.
///
/// # Errors
/// A value is not finite, or too large for the type.
fn encode(ty: GgmlType, values: &[f32], out: &mut Vec<u8>) -> Result<(), ConvertError> {
    if let Some(x) = values.iter().find(|x| !x.is_finite()) {
        let line = format!("has the value {x}, which is not finite; the checkpoint is damaged");
        return Err(ConvertError::new(ConvertErrorKind::Value, line));
    }
    match ty {
        GgmlType::F16 => {
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(values);
            if let Some(i) = halves.iter().position(|half| !half.is_finite()) {
                let line = format!("has the value {}, too large for F16; convert to BF16 (--type BF16)", values[i]);
                return Err(ConvertError::new(ConvertErrorKind::Value, line));
            }
            out.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
        }
        GgmlType::BF16 => out.extend(values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes())),
        _ => out.extend(values.iter().flat_map(|&x| x.to_le_bytes())),
    }
    Ok(())
}

/// Writes blocks of MXFP4: codes that lay as neighbours lie half a block apart in files.
fn mxfp4(codes: &View, scales: &View, start: usize, n_values: usize, out: &mut Vec<u8>) {
    let (first, n) = (start / MXFP4_VALUES, n_values / MXFP4_VALUES);
    let (mut scale, mut code) = (vec![0; n], vec![0; n * 16]);
    scales.read_bytes(first, &mut scale);
    codes.read_bytes(first * 16, &mut code);
    out.reserve(n * MXFP4_BYTES);
    let (blocks, _) = code.as_chunks::<16>();
    for (scale, block) in scale.iter().zip(blocks) {
        let nibble = |value: usize| block[value / 2] >> (4 * (value % 2)) & 15;
        out.push(*scale);
        out.extend((0..16).map(|i| nibble(i) | nibble(i + 16) << 4));
    }
}
