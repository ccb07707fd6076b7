//! Matrices of weights: repacked and uploaded piece by piece, split where they are larger than a binding.

use ruvllm_shaders::{WeightFormat, repack};

use crate::error::{GpuError, GpuErrorKind};
use crate::gpu::{Gpu, GpuBuffer};

/// A matrix of weights as a file has it.
#[derive(Clone, Copy)]
pub struct WeightSource<'a> {
    /// Name for messages.
    pub name: &'a str,
    /// Format of the rows.
    pub format: WeightFormat,
    /// Values of a row.
    pub k: usize,
    /// Rows that stay in one part: 1, or those of an expert.
    pub rows_together: usize,
    /// The rows, one after another.
    pub bytes: &'a [u8],
}

/// A matrix of weights on a device.
pub struct WeightMatrix {
    /// Format of the rows.
    pub format: WeightFormat,
    /// Values of a row.
    pub k: usize,
    /// Number of rows.
    pub n_rows: usize,
    /// Its rows in order, each part within a binding.
    pub parts: Vec<WeightPart>,
}

/// Rows of a matrix that lie in one buffer.
pub struct WeightPart {
    /// Number of its first row.
    pub first_row: usize,
    /// Number of its rows.
    pub n_rows: usize,
    /// The repacked rows.
    pub buffer: GpuBuffer,
}

/// Bytes that are repacked at once, and bytes that may wait for the device.
const PIECE_BYTES: usize = 4 << 20;
const WAITING_BYTES_MAX: usize = 64 << 20;

impl Gpu {
    /// Uploads a matrix. Host memory for it is bounded, whatever its size.
    ///
    /// # Errors
    /// The bytes are not whole rows, rows that must stay together are larger than a binding, the memory is used up, or
    /// the device is lost.
    pub fn upload(&self, source: &WeightSource<'_>) -> Result<WeightMatrix, GpuError> {
        let WeightSource { name, format, k, rows_together, bytes } = *source;
        let invalid = |why: String| GpuError::new(GpuErrorKind::InvalidInput, format!("{name}: {why}"));
        let row_bytes = (k / format.block_len()).checked_mul(format.block_bytes()).unwrap_or(0);
        let group_bytes = row_bytes.checked_mul(rows_together).unwrap_or(0);
        // Before anything else is computed of `k`: one that is larger than the bytes is refused here.
        if group_bytes == 0 || bytes.is_empty() || !bytes.len().is_multiple_of(group_bytes) {
            let n = bytes.len();
            return Err(invalid(format!(
                "{n} bytes are not rows of {k} values in {} by {rows_together}",
                format.name()
            )));
        }
        let row_words = format.row_words(k);
        let n_rows = bytes.len() / row_bytes;
        let max = usize::try_from(self.info().binding_bytes_max).unwrap_or(usize::MAX) / 4;
        let part_rows = max / (row_words * rows_together) * rows_together;
        if part_rows == 0 {
            let n = 4 * row_words * rows_together;
            let message =
                format!("{name}: {n} bytes must stay together, a binding of {} has {}", self.info().name, 4 * max);
            return Err(GpuError::new(GpuErrorKind::Unsupported, message));
        }
        let mut parts = Vec::new();
        for (first_row, rows) in (0..).step_by(part_rows).zip(bytes.chunks(part_rows * row_bytes)) {
            let n_rows = rows.len() / row_bytes;
            let buffer = self.buffer(name, n_rows * row_words)?;
            self.upload_rows(source, row_bytes, rows, &buffer)?;
            parts.push(WeightPart { first_row, n_rows, buffer });
        }
        Ok(WeightMatrix { format, k, n_rows, parts })
    }

    fn upload_rows(
        &self,
        source: &WeightSource<'_>,
        row_bytes: usize,
        rows: &[u8],
        to: &GpuBuffer,
    ) -> Result<(), GpuError> {
        let row_words = source.format.row_words(source.k);
        let piece_rows = (PIECE_BYTES / row_bytes).max(1);
        let (mut words, mut offset, mut n_waiting) = (Vec::new(), 0, 0);
        for piece in rows.chunks(piece_rows * row_bytes) {
            words.resize(piece.len() / row_bytes * row_words, 0);
            repack(source.format, source.k, piece, &mut words)
                .map_err(|error| GpuError::new(GpuErrorKind::InvalidInput, format!("{}: {error}", source.name)))?;
            self.write(to, offset, &words)?;
            offset += words.len();
            n_waiting += piece.len();
            if n_waiting >= WAITING_BYTES_MAX {
                self.flush()?;
                n_waiting = 0;
            }
        }
        self.flush()
    }

    /// Hands what was written to the device and waits for it.
    fn flush(&self) -> Result<(), GpuError> {
        self.queue.submit([]);
        self.wait()
    }
}
