//! Values as a checkpoint has them: floats of several widths, read as f32.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use ruvllm_gguf::MappedFile;
use safetensors::Dtype;

use crate::error::{ConvertError, shown};

/// A tensor of a checkpoint: row-major, the contiguous dimension last.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) map: Arc<MappedFile>,
    pub(super) range: Range<usize>,
    /// What values of 8 bits are multiplied with.
    pub(super) scale: Option<Arc<Scale>>,
}

impl Stored {
    /// Returns the number of values.
    pub(super) fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }

    /// Returns whether results of arithmetic on it are rounded to halves, as frameworks do with tensors of halves.
    pub(super) fn is_half(&self) -> bool {
        self.dtype == Dtype::F16
    }

    /// Checks that it has floats, or codes of 8 bits.
    ///
    /// # Errors
    /// It has others.
    pub(super) fn check_floats(&self) -> Result<(), ConvertError> {
        use Dtype::*;
        match self.dtype {
            F32 | F16 | BF16 | F64 | F8_E4M3 | F8_E5M2 => Ok(()),
            other => Err(ConvertError::unsupported(format!("has values of type {other:?}, which are no weights"))
                .of_tensor(&self.name)),
        }
    }

    /// Returns all values.
    pub(super) fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.n_elements()];
        self.read(0, 1, &mut values);
        values
    }

    /// Reads values that lie `stride` values from each other.
    pub(super) fn read(&self, start: usize, stride: usize, out: &mut [f32]) {
        let bytes = self.bytes();
        match self.dtype {
            Dtype::F32 => read_as(bytes, start, stride, out, f32::from_le_bytes),
            Dtype::F64 => read_as(bytes, start, stride, out, |bytes| f64::from_le_bytes(bytes) as f32),
            Dtype::F16 => read_as(bytes, start, stride, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => read_as(bytes, start, stride, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Dtype::F8_E4M3 => read_as(bytes, start, stride, out, |[code]| e4m3()[usize::from(code)]),
            Dtype::F8_E5M2 => read_as(bytes, start, stride, out, |[code]| e5m2(code)),
            Dtype::F8_E8M0 => read_as(bytes, start, stride, out, |[code]| (f32::from(code) - 127.0).exp2()),
            // Others were refused by `check_floats`.
            _ => out.fill(f32::NAN),
        }
        if let Some(scale) = &self.scale {
            scale.apply(&self.shape, start, stride, out);
        }
    }

    /// Lets go of the memory that its bytes take.
    pub(super) fn release(&self) {
        self.map.release(self.range.start, self.range.len());
    }
}

fn read_as<const N: usize>(bytes: &[u8], start: usize, stride: usize, out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (values, _) = bytes.as_chunks::<N>();
    match stride {
        1 => {
            let n = out.len();
            out.iter_mut().zip(&values[start..start + n]).for_each(|(out, bytes)| *out = value(*bytes));
        }
        _ => out.iter_mut().enumerate().for_each(|(i, out)| *out = value(values[start + i * stride])),
    }
}

/// The values of OCP's E4M3 (no infinities; all ones are no number).
fn e4m3() -> &'static [f32; 256] {
    static TABLE: OnceLock<[f32; 256]> = OnceLock::new();
    TABLE.get_or_init(|| {
        std::array::from_fn(|code| {
            let (exponent, mantissa) = ((code >> 3 & 15) as i32, (code & 7) as f32);
            let size = match (exponent, code & 7) {
                (15, 7) => f32::NAN,
                (0, _) => mantissa * (-9f32).exp2(),
                _ => (8.0 + mantissa) * ((exponent - 10) as f32).exp2(),
            };
            if code >> 7 == 1 { -size } else { size }
        })
    })
}

/// The value of an E5M2, which is the upper byte of a half.
fn e5m2(code: u8) -> f32 {
    f16::from_bits(u16::from(code) << 8).to_f32()
}

/// Scales of blocks of a tensor.
#[derive(Debug)]
pub(super) struct Scale {
    values: Vec<f32>,
    /// Values of the tensor that share a scale, by dimension.
    blocks: Vec<usize>,
    /// From one block to the next, by dimension.
    strides: Vec<usize>,
}

impl Scale {
    /// Fits scales to a tensor: one for all, one a row, or one a block of `block` (by the last dimensions).
    ///
    /// # Errors
    /// Their shape is another.
    pub(super) fn new(of: &Stored, scale: &Stored, block: Option<&[usize]>) -> Result<Scale, ConvertError> {
        let shape = &of.shape;
        let mut dims = scale.shape.clone();
        // Scales of rows may lack the dimension of columns.
        while dims.len() < shape.len() && block.is_none() && !dims.is_empty() {
            dims.push(1);
        }
        while dims.len() < shape.len() {
            dims.insert(0, 1);
        }
        let wrong = || {
            let line = format!("has shape {shape:?}, which scales of shape {:?} do not fit", scale.shape);
            ConvertError::invalid(line).of_tensor(&of.name)
        };
        if dims.len() != shape.len() {
            return Err(wrong());
        }
        let mut blocks = Vec::with_capacity(shape.len());
        for (i, (&n, &n_scales)) in shape.iter().zip(&dims).enumerate() {
            let own = block.and_then(|block| (i + block.len()).checked_sub(shape.len()).map(|i| block[i]));
            let size = match own {
                Some(size) => size,
                None if n_scales == n => 1,
                None => n.max(1),
            };
            if size == 0 || n.div_ceil(size) != n_scales {
                return Err(wrong());
            }
            blocks.push(size);
        }
        let mut strides = vec![1; dims.len()];
        (1..dims.len()).rev().for_each(|i| strides[i - 1] = strides[i] * dims[i]);
        scale.check_scale()?;
        Ok(Scale { values: scale.values(), blocks, strides })
    }

    fn apply(&self, shape: &[usize], start: usize, stride: usize, out: &mut [f32]) {
        for (i, value) in out.iter_mut().enumerate() {
            let mut rest = start + i * stride;
            let mut place = 0;
            for ((&n, &block), &stride) in shape.iter().zip(&self.blocks).zip(&self.strides).rev() {
                place += rest % n / block * stride;
                rest /= n;
            }
            *value *= self.values[place];
        }
    }
}

impl Stored {
    fn check_scale(&self) -> Result<(), ConvertError> {
        match self.dtype {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F64 | Dtype::F8_E8M0 => Ok(()),
            other => {
                Err(ConvertError::unsupported(format!("scales '{}' have values of type {other:?}", shown(&self.name))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_8_bits_are_those_of_their_formats() {
        let e4m3 = e4m3();
        assert_eq!((e4m3[0x38], e4m3[0x7e], e4m3[0x01], e4m3[0xb8]), (1.0, 448.0, 0.001953125, -1.0));
        assert!(e4m3[0x7f].is_nan() && e4m3[0xff].is_nan());
        assert_eq!((e5m2(0x3c), e5m2(0x7b), e5m2(0x01)), (1.0, 57344.0, 2f32.powi(-16)));
        assert!(e5m2(0x7c).is_infinite());
    }
}
