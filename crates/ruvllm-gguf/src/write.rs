//! Writing files.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use bytes::Bytes;
use ruvllm_ggml::GgmlType;

use crate::error::{GgufError, GgufErrorKind};
use crate::file::{GgufFile, read_alignment};
use crate::header::{MAGIC, VERSIONS};
use crate::index;
use crate::limits;
use crate::metadata::{Metadata, check_key, shown};
use crate::split;
use crate::tensor::{check_name, tensor_bytes};
use crate::value::{Array, Scalar, Value};

/// Where the bytes of a tensor to be written come from.
pub enum TensorData<'a> {
    /// Bytes at hand, shared.
    Shared(Bytes),
    /// Bytes at hand, borrowed.
    Borrowed(&'a [u8]),
    /// A stream, read while the file is written; it must give exactly the bytes of the tensor.
    Reader(Box<dyn Read + 'a>),
}

impl<'a> TensorData<'a> {
    /// Makes a source of a stream.
    pub fn reader(reader: impl Read + 'a) -> TensorData<'a> {
        TensorData::Reader(Box::new(reader))
    }
}

impl From<Bytes> for TensorData<'_> {
    fn from(bytes: Bytes) -> Self {
        TensorData::Shared(bytes)
    }
}

impl From<Vec<u8>> for TensorData<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        TensorData::Shared(bytes.into())
    }
}

impl<'a> From<&'a [u8]> for TensorData<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        TensorData::Borrowed(bytes)
    }
}

/// Collects metadata and tensors and writes them as one GGUF file.
pub struct GgufWriter<'a> {
    version: u32,
    metadata: Metadata,
    tensors: Vec<Entry<'a>>,
}

struct Entry<'a> {
    name: String,
    ty: GgmlType,
    shape: Vec<usize>,
    n_bytes: usize,
    data: TensorData<'a>,
}

impl Default for GgufWriter<'_> {
    fn default() -> Self {
        GgufWriter::new()
    }
}

impl<'a> GgufWriter<'a> {
    /// Starts an empty file of version 3.
    pub fn new() -> GgufWriter<'a> {
        GgufWriter { version: 3, metadata: Metadata::new(), tensors: Vec::new() }
    }

    /// Starts with the version, metadata and tensors of another file; a split model becomes whole.
    pub fn from_file(file: &GgufFile) -> GgufWriter<'a> {
        let mut metadata = file.metadata().clone();
        for key in [split::NO, split::COUNT, split::N_TENSORS] {
            metadata.remove(key);
        }
        let entry = |tensor: &crate::TensorInfo| Entry {
            name: tensor.name.clone(),
            ty: tensor.ty,
            shape: tensor.shape.clone(),
            n_bytes: tensor.n_bytes(),
            data: file.data(tensor).into(),
        };
        GgufWriter { version: file.version(), metadata, tensors: file.tensors().map(entry).collect() }
    }

    /// Chooses the version of the format: 3 unless set; 1 and 2 are for tests of readers.
    ///
    /// # Panics
    /// If there is no such version.
    pub fn with_version(mut self, version: u32) -> GgufWriter<'a> {
        assert!(VERSIONS.contains(&version), "GGUF version {version}, versions 1 to 3 exist");
        self.version = version;
        self
    }

    /// Returns the metadata, to read and set. `general.alignment` takes effect if set; without it tensors are aligned
    /// to 32.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Adds a tensor; the file keeps the order of the calls. `shape` is in GGUF order: `shape[0]` is the contiguous
    /// size.
    ///
    /// # Errors
    /// If the type cannot have this shape, or bytes at hand are not as many as the shape asks for.
    pub fn add_tensor(
        &mut self,
        name: impl Into<String>,
        ty: GgmlType,
        shape: &[usize],
        data: impl Into<TensorData<'a>>,
    ) -> Result<(), GgufError> {
        let (name, data) = (name.into(), data.into());
        let within = |e: GgufError| e.within(format_args!("tensor '{}'", shown(&name)));
        check_name(&name).map_err(within)?;
        let n_bytes = tensor_bytes(ty, shape).map_err(within)?;
        let have = match &data {
            TensorData::Shared(bytes) => bytes.len(),
            TensorData::Borrowed(bytes) => bytes.len(),
            TensorData::Reader(_) => n_bytes,
        };
        if have != n_bytes {
            let message = format!("shape {shape:?} of {ty} needs {n_bytes} bytes, have {have}");
            return Err(within(GgufError::invalid(message)));
        }
        self.tensors.push(Entry { name, ty, shape: shape.to_vec(), n_bytes, data });
        Ok(())
    }

    /// Writes the file to a stream and returns its size in bytes.
    ///
    /// # Errors
    /// If names or sizes are such that the file could not be read again, a source gives too few or too many bytes, or
    /// the stream fails.
    pub fn write_to(self, out: impl Write) -> Result<u64, GgufError> {
        let alignment = read_alignment(&self.metadata)?;
        let head = self.head(alignment)?;
        let mut out = Counted { out, n_written: 0 };
        out.bytes(&head)?;
        out.pad(alignment)?;
        for entry in self.tensors {
            let name = entry.name.clone();
            out.tensor(entry).map_err(|e| e.within(format_args!("tensor '{}'", shown(&name))))?;
            out.pad(alignment)?;
        }
        out.out.flush().map_err(|e| GgufError::io("cannot write", e))?;
        Ok(out.n_written)
    }

    /// Writes the file and returns its size in bytes. It appears under its name only when it is complete; until then
    /// it is `path` with `.part` appended, which also takes the place of a file that another process has mapped.
    ///
    /// # Errors
    /// As [`GgufWriter::write_to`]; the error names the path.
    pub fn write_file(self, path: &Path) -> Result<u64, GgufError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".part");
        let partial = Path::new(&partial);
        let written = self.write_new(partial).and_then(|n_bytes| {
            std::fs::rename(partial, path).map_err(|e| GgufError::io("cannot rename to the final name", e))?;
            Ok(n_bytes)
        });
        written.map_err(|error| {
            // What failed is the news; that the rest of it may stay behind as well is not.
            let _ = std::fs::remove_file(partial);
            error.at(path)
        })
    }

    /// Writes the file without the bytes of its tensors, which read as zeros: enough to check names, types and shapes before
    /// slow work. Where the disk can, they take no room. Returns its size in bytes.
    ///
    /// # Errors
    /// As [`GgufWriter::write_file`], but for sources, which are not read.
    pub fn write_hollow(&self, path: &Path) -> Result<u64, GgufError> {
        let alignment = read_alignment(&self.metadata)?;
        let head = self.head(alignment)?;
        let aligned = |n_bytes: usize| (n_bytes as u64).next_multiple_of(alignment);
        let n_bytes = aligned(head.len()) + self.tensors.iter().map(|entry| aligned(entry.n_bytes)).sum::<u64>();
        let written = File::create(path).and_then(|mut file| {
            file.write_all(&head)?;
            file.set_len(n_bytes)
        });
        written.map(|()| n_bytes).map_err(|e| GgufError::io("cannot write", e).at(path))
    }

    fn write_new(self, path: &Path) -> Result<u64, GgufError> {
        let mut file = File::create(path).map_err(|e| GgufError::io("cannot create the file", e))?;
        let n_bytes = self.write_to(BufWriter::with_capacity(1 << 20, &mut file))?;
        file.sync_all().map_err(|e| GgufError::io("cannot write", e))?;
        Ok(n_bytes)
    }

    /// Everything before the padding of the data section.
    fn head(&self, alignment: u64) -> Result<Vec<u8>, GgufError> {
        self.check_counts()?;
        let mut out = Head { out: Vec::new(), narrow: self.version == 1, n_nested_arrays: 0 };
        out.out.extend_from_slice(&MAGIC);
        self.version.write(&mut out.out);
        out.len(self.tensors.len())?;
        out.len(self.metadata.len())?;
        for (key, value) in self.metadata.iter() {
            check_key(key)?;
            out.str(key)?;
            out.value(value).map_err(|e| e.within(format_args!("metadata key '{}'", shown(key))))?;
        }
        let mut offset = 0u64;
        for entry in &self.tensors {
            out.str(&entry.name)?;
            (entry.shape.len() as u32).write(&mut out.out);
            for &dim in &entry.shape {
                out.len(dim)?;
            }
            entry.ty.id().write(&mut out.out);
            offset.write(&mut out.out);
            offset += (entry.n_bytes as u64).next_multiple_of(alignment);
        }
        Ok(out.out)
    }

    /// Refuses what the reader would refuse.
    fn check_counts(&self) -> Result<(), GgufError> {
        let counts = [
            (self.metadata.len(), limits::N_METADATA_MAX, "metadata entries"),
            (self.tensors.len(), limits::N_TENSORS_MAX, "tensors"),
        ];
        for (n, most, what) in counts {
            if n as u64 > most {
                return Err(GgufError::new(GgufErrorKind::Limit, format!("{n} {what}, at most {most} can be written")));
            }
        }
        let name = |i: usize| self.tensors[i].name.as_str();
        index::by_name(self.tensors.len(), name).map_err(|(a, b)| {
            let message = format!("tensor '{}' was added twice (entries {a} and {b})", shown(name(a)));
            GgufError::new(GgufErrorKind::Duplicate, message)
        })?;
        Ok(())
    }
}

/// The bytes before the tensors.
struct Head {
    out: Vec<u8>,
    /// Counts and lengths have 4 bytes, as in version 1.
    narrow: bool,
    n_nested_arrays: u64,
}

impl Head {
    fn len(&mut self, n: usize) -> Result<(), GgufError> {
        if !self.narrow {
            (n as u64).write(&mut self.out);
            return Ok(());
        }
        let n = u32::try_from(n).map_err(|_| GgufError::invalid(format!("a length of {n} does not fit version 1")))?;
        n.write(&mut self.out);
        Ok(())
    }

    fn str(&mut self, text: &str) -> Result<(), GgufError> {
        self.len(text.len())?;
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn value(&mut self, value: &Value) -> Result<(), GgufError> {
        value.value_type().id().write(&mut self.out);
        match value {
            Value::U8(v) => v.write(&mut self.out),
            Value::I8(v) => v.write(&mut self.out),
            Value::U16(v) => v.write(&mut self.out),
            Value::I16(v) => v.write(&mut self.out),
            Value::U32(v) => v.write(&mut self.out),
            Value::I32(v) => v.write(&mut self.out),
            Value::U64(v) => v.write(&mut self.out),
            Value::I64(v) => v.write(&mut self.out),
            Value::F32(v) => v.write(&mut self.out),
            Value::F64(v) => v.write(&mut self.out),
            Value::Bool(v) => v.write(&mut self.out),
            Value::String(text) => self.str(text)?,
            Value::Array(array) => self.array(array, 1)?,
        }
        Ok(())
    }

    fn array(&mut self, array: &Array, depth: usize) -> Result<(), GgufError> {
        array.value_type().id().write(&mut self.out);
        self.len(array.len())?;
        match array {
            Array::U8(items) => self.items(items),
            Array::I8(items) => self.items(items),
            Array::U16(items) => self.items(items),
            Array::I16(items) => self.items(items),
            Array::U32(items) => self.items(items),
            Array::I32(items) => self.items(items),
            Array::U64(items) => self.items(items),
            Array::I64(items) => self.items(items),
            Array::F32(items) => self.items(items),
            Array::F64(items) => self.items(items),
            Array::Bool(items) => self.items(items),
            Array::String(items) => items.iter().try_for_each(|text| self.str(text))?,
            Array::Array(items) => {
                self.n_nested_arrays += items.len() as u64;
                if depth >= limits::ARRAY_DEPTH_MAX || self.n_nested_arrays > limits::N_NESTED_ARRAYS_MAX {
                    let (depth, n) = (limits::ARRAY_DEPTH_MAX, limits::N_NESTED_ARRAYS_MAX);
                    let message = format!("arrays nested deeper than {depth}, or more than {n} of them");
                    return Err(GgufError::new(GgufErrorKind::Limit, message));
                }
                items.iter().try_for_each(|item| self.array(item, depth + 1))?;
            }
        }
        Ok(())
    }

    fn items<T: Scalar>(&mut self, items: &[T]) {
        items.iter().for_each(|item| item.write(&mut self.out));
    }
}

/// A stream that knows how far it is.
struct Counted<W> {
    out: W,
    n_written: u64,
}

impl<W: Write> Counted<W> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        self.out.write_all(bytes).map_err(|e| GgufError::io("cannot write", e))?;
        self.n_written += bytes.len() as u64;
        Ok(())
    }

    fn pad(&mut self, alignment: u64) -> Result<(), GgufError> {
        let n = self.n_written.next_multiple_of(alignment) - self.n_written;
        io::copy(&mut io::repeat(0).take(n), &mut self.out).map_err(|e| GgufError::io("cannot write", e))?;
        self.n_written += n;
        Ok(())
    }

    fn tensor(&mut self, entry: Entry<'_>) -> Result<(), GgufError> {
        let mut reader = match entry.data {
            TensorData::Shared(bytes) => return self.bytes(&bytes),
            TensorData::Borrowed(bytes) => return self.bytes(bytes),
            TensorData::Reader(reader) => reader,
        };
        let need = entry.n_bytes as u64;
        let n =
            io::copy(&mut reader.as_mut().take(need), &mut self.out).map_err(|e| GgufError::io("cannot copy", e))?;
        self.n_written += n;
        let more = n == need && reader.read(&mut [0]).map_err(|e| GgufError::io("cannot copy", e))? != 0;
        if n != need || more {
            let found = if more { "more".to_owned() } else { n.to_string() };
            return Err(GgufError::invalid(format!("its source should give {need} bytes and gave {found}")));
        }
        Ok(())
    }
}
