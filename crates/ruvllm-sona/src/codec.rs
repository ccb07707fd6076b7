//! Bytes of snapshots: little-endian, and read without believing a length before the bytes behind it are there.

use crate::error::{SonaError, SonaErrorKind};

/// Appends values to bytes.
#[derive(Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Begins with a name of eight letters.
    pub(crate) fn new(magic: [u8; 8]) -> Writer {
        Writer { bytes: magic.to_vec() }
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn f32s(&mut self, values: &[f32]) {
        values.iter().for_each(|x| self.bytes.extend(x.to_le_bytes()));
    }

    pub(crate) fn u32s(&mut self, values: &[u32]) {
        values.iter().for_each(|x| self.bytes.extend(x.to_le_bytes()));
    }

    pub(crate) fn i8s(&mut self, values: &[i8]) {
        self.bytes.extend_from_slice(bytemuck::cast_slice(values));
    }

    /// Appends the length, then the bytes.
    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Takes values from bytes that may be anything.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Starts behind the name, which must be this one.
    pub(crate) fn new(bytes: &'a [u8], magic: [u8; 8], what: &'static str) -> Result<Reader<'a>, SonaError> {
        match bytes.strip_prefix(&magic) {
            Some(rest) => Ok(Reader { rest, what }),
            None => {
                let line = format!("these bytes are no {what} of this version; make a new one");
                Err(SonaError::new(SonaErrorKind::Invalid, line))
            }
        }
    }

    /// Makes the error of bytes that contradict themselves.
    pub(crate) fn invalid(&self, why: impl std::fmt::Display) -> SonaError {
        SonaError::new(SonaErrorKind::Invalid, format!("a damaged {}: {why}", self.what))
    }

    pub(crate) fn take(&mut self, n: usize) -> Result<&'a [u8], SonaError> {
        match self.rest.split_at_checked(n) {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(self.invalid(format_args!("need {n} bytes, have {}", self.rest.len()))),
        }
    }

    pub(crate) fn u64(&mut self) -> Result<u64, SonaError> {
        Ok(self.take(8)?.try_into().map_or(0, u64::from_le_bytes))
    }

    /// Takes a number that is at most `max`.
    pub(crate) fn count(&mut self, max: usize) -> Result<usize, SonaError> {
        let n = self.u64()?;
        match usize::try_from(n).ok().filter(|&n| n <= max) {
            Some(n) => Ok(n),
            None => Err(self.invalid(format_args!("a count of {n}, at most {max} is read"))),
        }
    }

    fn words(&mut self, n: usize) -> Result<impl Iterator<Item = [u8; 4]> + use<'a>, SonaError> {
        let n_bytes = n.checked_mul(4).ok_or_else(|| self.invalid(format_args!("{n} values")))?;
        Ok(self.take(n_bytes)?.as_chunks::<4>().0.iter().copied())
    }

    /// Takes finite numbers.
    pub(crate) fn f32s(&mut self, n: usize) -> Result<Vec<f32>, SonaError> {
        let values: Vec<f32> = self.words(n)?.map(f32::from_le_bytes).collect();
        match values.iter().all(|x| x.is_finite()) {
            true => Ok(values),
            false => {
                Err(SonaError::new(SonaErrorKind::Value, format!("a {} with what is no finite number", self.what)))
            }
        }
    }

    pub(crate) fn f32(&mut self) -> Result<f32, SonaError> {
        Ok(self.f32s(1)?[0])
    }

    pub(crate) fn u32s(&mut self, n: usize) -> Result<Vec<u32>, SonaError> {
        Ok(self.words(n)?.map(u32::from_le_bytes).collect())
    }

    /// Takes bytes of keys: all but -128, which they never hold.
    pub(crate) fn i8s(&mut self, n: usize) -> Result<Vec<i8>, SonaError> {
        let values: &[i8] = bytemuck::cast_slice(self.take(n)?);
        match values.contains(&i8::MIN) {
            true => Err(self.invalid("a key holds -128")),
            false => Ok(values.to_vec()),
        }
    }

    /// Takes a length and the bytes.
    pub(crate) fn part(&mut self) -> Result<&'a [u8], SonaError> {
        let n = self.count(self.rest.len())?;
        self.take(n)
    }

    /// Says whether all was taken.
    pub(crate) fn finish(self) -> Result<(), SonaError> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(self.invalid(format_args!("{n} bytes too many"))),
        }
    }
}
