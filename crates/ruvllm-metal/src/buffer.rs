//! Buffers that CPU and GPU share.

use std::ptr;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::MTLBuffer;

use crate::error::{MetalError, MetalErrorKind};

/// A buffer in memory that CPU and GPU share. A Mac's GPU reads the machine's memory, so nothing is copied.
#[derive(Debug)]
pub struct MetalBuffer(Retained<ProtocolObject<dyn MTLBuffer>>);

impl MetalBuffer {
    pub(crate) fn new(inner: Retained<ProtocolObject<dyn MTLBuffer>>) -> MetalBuffer {
        MetalBuffer(inner)
    }

    pub(crate) fn inner(&self) -> &ProtocolObject<dyn MTLBuffer> {
        &self.0
    }

    /// Number of bytes.
    pub fn n_bytes(&self) -> usize {
        self.0.length()
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Errors
    /// [`MetalErrorKind::InvalidInput`] if they do not lie in the buffer.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), MetalError> {
        self.check(offset, bytes.len())?;
        // SAFETY: the range is in the buffer, whose memory lives as long as it does. `&mut self` and passes that are waited for
        // mean that neither another thread nor the GPU uses it.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.contents().cast::<u8>().as_ptr().add(offset), bytes.len());
        }
        Ok(())
    }

    /// Copies what stands at `offset` to `bytes`.
    ///
    /// # Errors
    /// [`MetalErrorKind::InvalidInput`] if it does not lie in the buffer.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), MetalError> {
        self.check(offset, bytes.len())?;
        // SAFETY: as in `write`; `bytes` is the caller's own memory.
        unsafe {
            let from = self.0.contents().cast::<u8>().as_ptr().add(offset);
            ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
        Ok(())
    }

    fn check(&self, offset: usize, n_bytes: usize) -> Result<(), MetalError> {
        if offset.checked_add(n_bytes).is_some_and(|end| end <= self.n_bytes()) {
            return Ok(());
        }
        let line = format!("{n_bytes} bytes at {offset} are not in a buffer of {} bytes", self.n_bytes());
        Err(MetalError::new(MetalErrorKind::InvalidInput, line))
    }
}
