//! Records and snapshots as bytes: little-endian numbers, texts and lists with their lengths before them, and a reader that
//! believes no length before it has counted the bytes behind it. Small records have lengths of 32 bits; snapshots begin with a
//! name of eight letters, have numbers of 64 bits, and rows whose length is known from elsewhere ("plain").

use std::fmt::Display;
use std::ops::RangeInclusive;

use crate::error::{SonaError, SonaErrorKind, invalid};

/// Writes values one after another.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer::default()
    }

    /// Begins with a name.
    pub(crate) fn of(magic: [u8; 8]) -> Writer {
        Writer(magic.to_vec())
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

    pub(crate) fn f64(&mut self, value: f64) -> &mut Writer {
        self.u64(value.to_bits())
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
        self.count(values.len()).plain_u32s(values)
    }

    pub(crate) fn f32s(&mut self, values: &[f32]) -> &mut Writer {
        self.count(values.len()).plain_f32s(values)
    }

    /// Values without a length.
    pub(crate) fn plain_u32s(&mut self, values: &[u32]) -> &mut Writer {
        values.iter().for_each(|x| self.0.extend(x.to_le_bytes()));
        self
    }

    /// Values without a length.
    pub(crate) fn plain_f32s(&mut self, values: &[f32]) -> &mut Writer {
        values.iter().for_each(|x| self.0.extend(x.to_le_bytes()));
        self
    }

    /// Values without a length.
    pub(crate) fn i8s(&mut self, values: &[i8]) -> &mut Writer {
        self.raw(bytemuck::cast_slice(values))
    }

    /// A length of 64 bits and the bytes: a snapshot within a snapshot.
    pub(crate) fn part(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u64(bytes.len() as u64).raw(bytes)
    }

    /// Returns what was written and starts anew.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

/// Returns the number that a record's key is; `what` names the records in errors.
pub(crate) fn number_of_key(key: &[u8], what: &str) -> Result<u64, SonaError> {
    let bytes = key.try_into().map_err(|_| invalid(format!("{what}: a key of {} bytes instead of 8", key.len())))?;
    Ok(u64::from_be_bytes(bytes))
}

/// Reads values from bytes that may be anything; `what` names them in errors.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    n_bytes: usize,
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { rest: bytes, n_bytes: bytes.len(), what }
    }

    /// Starts behind the name, which must be this one.
    pub(crate) fn of(bytes: &'a [u8], magic: [u8; 8], what: &'static str) -> Result<Reader<'a>, SonaError> {
        match bytes.strip_prefix(&magic) {
            Some(rest) => Ok(Reader { rest, n_bytes: bytes.len(), what }),
            None => {
                let line = format!("these bytes are no {what} of this version; make a new one");
                Err(SonaError::new(SonaErrorKind::Invalid, line))
            }
        }
    }

    /// The first byte of a record: its format, which must be one of those that are read.
    pub(crate) fn format(&mut self, known: RangeInclusive<u8>) -> Result<u8, SonaError> {
        let format = self.u8()?;
        if known.contains(&format) {
            return Ok(format);
        }
        let (what, first, last) = (self.what, known.start(), known.end());
        let reads = if first == last { format!("{last}") } else { format!("{first} to {last}") };
        let line = format!("{what}: format {format}, this program reads {reads}");
        Err(SonaError::new(SonaErrorKind::Version, line))
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
        self.finite(f64::from(value))?;
        Ok(value)
    }

    /// A number that is finite.
    pub(crate) fn f64(&mut self) -> Result<f64, SonaError> {
        let value = f64::from_bits(self.u64()?);
        self.finite(value)
    }

    fn finite(&self, value: f64) -> Result<f64, SonaError> {
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
            self.invalid(format_args!("truncated: need {n} bytes, have {have} (at byte {at})"))
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
            false => Err(self.invalid(format_args!("it counts {n} parts and has room for {room}"))),
        }
    }

    /// A number of 64 bits that is at most `max`.
    pub(crate) fn number(&mut self, max: usize) -> Result<usize, SonaError> {
        let n = self.u64()?;
        match usize::try_from(n).ok().filter(|&n| n <= max) {
            Some(n) => Ok(n),
            None => Err(self.invalid(format_args!("a count of {n}, at most {max} is read"))),
        }
    }

    pub(crate) fn u32s(&mut self) -> Result<Vec<u32>, SonaError> {
        let n = self.count(4)?;
        self.plain_u32s(n)
    }

    pub(crate) fn f32s(&mut self) -> Result<Vec<f32>, SonaError> {
        let n = self.count(4)?;
        self.plain_f32s(n)
    }

    fn words(&mut self, n: usize) -> Result<impl Iterator<Item = [u8; 4]> + use<'a>, SonaError> {
        let n_bytes = n.checked_mul(4).ok_or_else(|| self.invalid(format_args!("{n} values")))?;
        Ok(self.raw(n_bytes)?.as_chunks::<4>().0.iter().copied())
    }

    /// Values whose number is known.
    pub(crate) fn plain_u32s(&mut self, n: usize) -> Result<Vec<u32>, SonaError> {
        Ok(self.words(n)?.map(u32::from_le_bytes).collect())
    }

    /// Finite values whose number is known.
    pub(crate) fn plain_f32s(&mut self, n: usize) -> Result<Vec<f32>, SonaError> {
        let values: Vec<f32> = self.words(n)?.map(f32::from_le_bytes).collect();
        values.iter().try_for_each(|&value| self.finite(f64::from(value)).map(drop))?;
        Ok(values)
    }

    /// Bytes of keys: all but -128, which they never hold.
    pub(crate) fn i8s(&mut self, n: usize) -> Result<Vec<i8>, SonaError> {
        let values: &[i8] = bytemuck::cast_slice(self.raw(n)?);
        match values.contains(&i8::MIN) {
            true => Err(self.invalid("a key holds -128")),
            false => Ok(values.to_vec()),
        }
    }

    /// A length of 64 bits and the bytes.
    pub(crate) fn part(&mut self) -> Result<&'a [u8], SonaError> {
        let n = self.number(self.rest.len())?;
        self.raw(n)
    }

    /// Checks that nothing is left.
    pub(crate) fn end(self) -> Result<(), SonaError> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(self.invalid(format_args!("{n} bytes too many"))),
        }
    }

    /// An error of these bytes.
    pub(crate) fn invalid(&self, why: impl Display) -> SonaError {
        SonaError::new(SonaErrorKind::Invalid, format!("{}: {why}", self.what))
    }
}
