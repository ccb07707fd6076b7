//! Records as bytes: little-endian numbers, texts and lists with their lengths before them, and a reader that believes
//! no length before it has counted the bytes behind it.

use crate::error::{SonaError, SonaErrorKind};

/// Writes the parts of a record one after another.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer::default()
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Writer {
        self.raw(&[value])
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Writer {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn f32(&mut self, value: f32) -> &mut Writer {
        self.u32(value.to_bits())
    }

    /// Bytes as they are, without a length.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A length of 32 bits and the bytes.
    ///
    /// # Panics
    /// If there are 4 GiB or more of them: every caller has a limit far below.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.count(bytes.len()).raw(bytes)
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Writer {
        self.bytes(text.as_bytes())
    }

    pub(crate) fn count(&mut self, n: usize) -> &mut Writer {
        self.u32(u32::try_from(n).expect("records are far below 4 GiB"))
    }

    pub(crate) fn u32s(&mut self, values: &[u32]) -> &mut Writer {
        self.count(values.len());
        for &value in values {
            self.u32(value);
        }
        self
    }

    pub(crate) fn f32s(&mut self, values: &[f32]) -> &mut Writer {
        self.count(values.len());
        for &value in values {
            self.f32(value);
        }
        self
    }

    /// Returns what was written and starts anew.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// Reads the parts of a record; `what` names it in errors.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    n_bytes: usize,
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { rest: bytes, n_bytes: bytes.len(), what }
    }

    pub(crate) fn u8(&mut self) -> Result<u8, SonaError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, SonaError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, SonaError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number that is finite.
    pub(crate) fn f32(&mut self) -> Result<f32, SonaError> {
        let value = f32::from_bits(self.u32()?);
        match value.is_finite() {
            true => Ok(value),
            false => Err(SonaError::new(SonaErrorKind::Value, format!("{}: a value is {value}", self.what))),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], SonaError> {
        Ok(self.raw(N)?.try_into().expect("as many bytes as were asked for"))
    }

    pub(crate) fn raw(&mut self, n: usize) -> Result<&'a [u8], SonaError> {
        let at = self.n_bytes - self.rest.len();
        let (part, rest) = self.rest.split_at_checked(n).ok_or_else(|| {
            let have = self.rest.len();
            self.invalid(&format!("truncated: need {n} bytes, have {have} (at byte {at})"))
        })?;
        self.rest = rest;
        Ok(part)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], SonaError> {
        let n = self.count(1)?;
        self.raw(n)
    }

    pub(crate) fn text(&mut self) -> Result<String, SonaError> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.invalid("a text is not utf-8"))
    }

    /// A count of things that take at least `size_bytes` each: no more than the rest has room for.
    pub(crate) fn count(&mut self, size_bytes: usize) -> Result<usize, SonaError> {
        let (n, room) = (self.u32()? as usize, self.rest.len() / size_bytes);
        match n <= room {
            true => Ok(n),
            false => Err(self.invalid(&format!("it counts {n} parts and has room for {room}"))),
        }
    }

    pub(crate) fn u32s(&mut self) -> Result<Vec<u32>, SonaError> {
        (0..self.count(4)?).map(|_| self.u32()).collect()
    }

    pub(crate) fn f32s(&mut self) -> Result<Vec<f32>, SonaError> {
        (0..self.count(4)?).map(|_| self.f32()).collect()
    }

    /// Checks that nothing is left.
    pub(crate) fn end(self) -> Result<(), SonaError> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(self.invalid(&format!("{n} bytes too many"))),
        }
    }

    /// An error of this record.
    pub(crate) fn invalid(&self, why: &str) -> SonaError {
        SonaError::new(SonaErrorKind::Invalid, format!("{}: {why}", self.what))
    }
}
