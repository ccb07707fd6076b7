//! A model file (or the files of a split model), memory-mapped, in memory, or read piece by piece.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::cursor::Cursor;
use crate::error::{GgufError, GgufErrorKind};
use crate::header::Header;
use crate::index;
use crate::limits;
use crate::mapped::{MappedFile, Watch};
use crate::metadata::{Metadata, shown};
use crate::source::{self, ByteSource};
use crate::split::{self, SplitInfo};
use crate::tensor::{self, TensorInfo};

/// Bytes of a file that are read first where they are read piece by piece; more if the tensor directory ends behind them.
const HEADER_BYTES: u64 = 1 << 20;

/// A GGUF model: metadata, tensor directory, and the bytes of one file or of every part of a split model.
#[derive(Clone, Debug)]
pub struct GgufFile {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Positions in `tensors`, sorted by name.
    order: Vec<u32>,
    parts: Vec<Part>,
}

#[derive(Clone)]
struct Part {
    path: Option<PathBuf>,
    /// What `bytes` lie in; `None` for bytes in memory and for an empty file.
    map: Option<Arc<MappedFile>>,
    /// The whole file, or its beginning where only that was read.
    bytes: Bytes,
    /// Where the tensors' bytes are read from, if they are not in `bytes`.
    source: Option<Arc<dyn ByteSource>>,
    /// Length of the whole file.
    n_bytes: u64,
    data_start: usize,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Part { path, bytes, data_start, .. } = self;
        write!(f, "Part {{ path: {path:?}, bytes: {}, data_start: {data_start} }}", bytes.len())
    }
}

/// One file, read.
struct Parsed {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    data_start: usize,
}

impl GgufFile {
    /// Maps a file and reads its header, metadata and tensor directory; of a split model, every part, from the first.
    ///
    /// Tensor bytes are read by the system when they are first touched. The file should not be changed while the value or
    /// any [`Bytes`] from it lives. Of one that is cut short zeros are read, where the system allows to see that (Unix), and
    /// [`GgufFile::check`] tells; elsewhere the system ends the process.
    ///
    /// # Errors
    /// If a file cannot be mapped, is not a sound GGUF file, or a part of a split model is missing. The error names
    /// the file.
    pub fn open(path: &Path) -> Result<GgufFile, GgufError> {
        let (map, bytes) = map(path).map_err(|e| e.at(path))?;
        let parsed = Parsed::read(&bytes, 0).map_err(|e| e.at(path))?;
        let split = SplitInfo::read(&parsed.metadata).map_err(|e| e.at(path))?;
        if split.no != 0 {
            return Err(split::not_first(path, split).at(path));
        }
        let mut file = GgufFile::first(bytes, parsed, Some((path, map)));
        for no in 1..split.count {
            let part = split::part_path(path, split, no).ok_or_else(|| split::misnamed(split.count).at(path))?;
            file.add_part(&part, no, split.count).map_err(|e| e.at(&part))?;
        }
        let file = file.finish(split).map_err(|e| e.at(path))?;
        file.check()?;
        Ok(file)
    }

    /// Reads a file that is already in memory.
    ///
    /// # Errors
    /// If the bytes are not a sound GGUF file, or are a part of a split model (open that by path).
    pub fn from_bytes(bytes: Bytes) -> Result<GgufFile, GgufError> {
        let parsed = Parsed::read(&bytes, 0)?;
        let split = whole(&parsed)?;
        GgufFile::first(bytes, parsed, None).finish(split)
    }

    /// Reads header, metadata and tensor directory of a file whose tensors are read when they are asked for
    /// ([`GgufFile::read`]): nothing else of it is kept in memory.
    ///
    /// # Errors
    /// As [`GgufFile::from_bytes`]; what was read of the source failed; or the tensor directory ends more than
    /// [`HEADER_BYTES_MAX`](limits::HEADER_BYTES_MAX) bytes behind the file's beginning.
    pub fn from_source(source: Arc<dyn ByteSource>) -> Result<GgufFile, GgufError> {
        let (n_bytes, mut beginning) = (source.n_bytes(), Vec::new());
        let mut wanted = HEADER_BYTES;
        let n_header = loop {
            let n_more = wanted.min(n_bytes) - beginning.len() as u64;
            source::append(&*source, beginning.len() as u64, n_more as usize, &mut beginning)?;
            let bytes = Bytes::from(std::mem::take(&mut beginning));
            match Parsed::of_beginning(&bytes, n_bytes, 0) {
                Ok(parsed) => {
                    drop(parsed.metadata);
                    beginning = bytes.into();
                    break parsed.data_start.min(beginning.len());
                }
                Err(error) => match error.wanted() {
                    None => return Err(error),
                    Some(more) if more > limits::HEADER_BYTES_MAX => return Err(too_long()),
                    // Twice as much each time, so that all attempts together take no longer than two.
                    Some(more) => wanted = more.max(2 * wanted).min(limits::HEADER_BYTES_MAX),
                },
            }
            beginning = bytes.into();
        };
        // What was read of the tensors goes.
        beginning.truncate(n_header);
        beginning.shrink_to_fit();
        let bytes = Bytes::from(beginning);
        let parsed = Parsed::of_beginning(&bytes, n_bytes, 0)?.checked(n_bytes)?;
        let split = whole(&parsed)?;
        let mut file = GgufFile::first(bytes, parsed, None);
        (file.parts[0].source, file.parts[0].n_bytes) = (Some(source), n_bytes);
        file.finish(split)
    }

    /// Returns whether the beginning of a file holds all of its metadata and its tensor directory.
    ///
    /// # Errors
    /// The bytes are not the beginning of a sound GGUF file.
    pub fn has_header(beginning: &Bytes) -> Result<bool, GgufError> {
        match Parsed::directory(beginning, 0) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == GgufErrorKind::Truncated => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads metadata and tensor directory of a model that lies elsewhere, from the beginning of each of its files and the length
    /// of the whole file. [`GgufFile::data`], [`GgufFile::read`] and [`GgufFile::bytes`] are not for such a value: it has no
    /// tensor bytes.
    ///
    /// # Errors
    /// As [`GgufFile::from_bytes`], and if a beginning is too short or the files are not all parts of one model.
    pub fn from_headers(files: Vec<(Bytes, u64)>) -> Result<GgufFile, GgufError> {
        let count = files.len() as u32;
        let mut files = files.into_iter();
        let none = || GgufError::new(GgufErrorKind::Split, "a model of no files");
        let (bytes, n_bytes) = files.next().ok_or_else(none)?;
        let parsed = Parsed::directory(&bytes, 0)?.checked(n_bytes)?;
        let split = SplitInfo::read(&parsed.metadata)?;
        split::check_part(split, 0, count)?;
        let mut file = GgufFile::first(bytes, parsed, None);
        file.parts[0].n_bytes = n_bytes;
        for (no, (bytes, n_bytes)) in (1..).zip(files) {
            let parsed = Parsed::directory(&bytes, file.parts.len())?.checked(n_bytes)?;
            file.add_parsed(
                parsed,
                Part { path: None, map: None, bytes, source: None, n_bytes, data_start: 0 },
                no,
                count,
            )?;
        }
        file.finish(split)
    }

    fn first(bytes: Bytes, parsed: Parsed, file: Option<(&Path, Option<Arc<MappedFile>>)>) -> GgufFile {
        let Parsed { version, alignment, mut metadata, tensors, data_start } = parsed;
        let (path, map) = file.map_or((None, None), |(path, map)| (Some(path.to_owned()), map));
        if let Some(path) = &path {
            metadata.set_path(path);
        }
        let n_bytes = bytes.len() as u64;
        let part = Part { path, map, bytes, source: None, n_bytes, data_start };
        GgufFile { version, alignment, metadata, tensors, order: Vec::new(), parts: vec![part] }
    }

    fn add_part(&mut self, path: &Path, no: u32, count: u32) -> Result<(), GgufError> {
        let (map, bytes) = map(path).map_err(|error| {
            let missing = matches!(std::error::Error::source(&error), Some(e)
                if e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::NotFound));
            if !missing {
                return error;
            }
            let message = format!("part {} of {count} is missing: put it beside the others", no + 1);
            GgufError::new(GgufErrorKind::Split, message)
        })?;
        let parsed = Parsed::read(&bytes, self.parts.len())?;
        let n_bytes = bytes.len() as u64;
        let part = Part { path: Some(path.to_owned()), map, bytes, source: None, n_bytes, data_start: 0 };
        self.add_parsed(parsed, part, no, count)
    }

    fn add_parsed(&mut self, parsed: Parsed, part: Part, no: u32, count: u32) -> Result<(), GgufError> {
        split::check_part(SplitInfo::read(&parsed.metadata)?, no, count)?;
        if self.tensors.len() + parsed.tensors.len() > limits::N_TENSORS_MAX as usize {
            let message = format!("more than {} tensors in all parts together", limits::N_TENSORS_MAX);
            return Err(GgufError::new(GgufErrorKind::Limit, message));
        }
        self.tensors.extend(parsed.tensors);
        self.parts.push(Part { data_start: parsed.data_start, ..part });
        Ok(())
    }

    /// Checks what only the whole can show.
    fn finish(mut self, split: SplitInfo) -> Result<GgufFile, GgufError> {
        let (found, n_parts) = (self.tensors.len() as u64, self.parts.len());
        if let Some(expected) = split.n_tensors.filter(|&expected| expected != found) {
            let message = format!("{} is {expected}, the {n_parts} parts hold {found} tensors", split::N_TENSORS);
            return Err(GgufError::new(GgufErrorKind::Split, message));
        }
        let tensors = &self.tensors;
        self.order = index::by_name(tensors.len(), |i| tensors[i].name.as_str()).map_err(|(a, b)| {
            let message = format!("tensor '{}' occurs twice (entries {a} and {b})", shown(&tensors[a].name));
            GgufError::new(GgufErrorKind::Duplicate, message)
        })?;
        Ok(self)
    }

    /// Returns the version of the format: 1, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the alignment of tensor data in the (first) file, in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Returns the metadata; of a split model, that of the first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Iterates over the tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// Returns the tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let place = index::search(&self.order, name, |i| self.tensors[i].name.as_str()).ok()?;
        Some(&self.tensors[self.order[place] as usize])
    }

    /// Returns the bytes of a tensor of this file, sharing the map: nothing is copied.
    ///
    /// # Panics
    /// If the file is read piece by piece ([`GgufFile::has_data`]), or `tensor` is of another file and reaches outside this one.
    pub fn data(&self, tensor: &TensorInfo) -> Bytes {
        assert!(self.has_data(), "the file is read piece by piece");
        let part = &self.parts[tensor.part()];
        let start = part.data_start + tensor.offset() as usize;
        part.bytes.slice(start..start + tensor.n_bytes())
    }

    /// Returns whether the bytes of the tensors are mapped or in memory, so that to share them costs none.
    pub fn has_data(&self) -> bool {
        self.parts.iter().all(|part| part.source.is_none())
    }

    /// Returns `range` of the bytes of a tensor of this file: a part of the map, or of a file that is read piece by piece a
    /// copy, which takes memory until it is dropped.
    ///
    /// # Errors
    /// The source of the bytes failed, or has not as many as it said.
    ///
    /// # Panics
    /// If the range is not within the tensor, or `tensor` is of another file and reaches outside this one.
    pub fn read(&self, tensor: &TensorInfo, range: Range<usize>) -> Result<Bytes, GgufError> {
        assert!(range.start <= range.end && range.end <= tensor.n_bytes(), "{range:?} of {} bytes", tensor.n_bytes());
        let part = &self.parts[tensor.part()];
        let Some(source) = &part.source else { return Ok(self.data(tensor).slice(range)) };
        let (start, mut bytes) = (part.data_start as u64 + tensor.offset() + range.start as u64, Vec::new());
        source::append(&**source, start, range.len(), &mut bytes)
            .map_err(|error| error.within(format_args!("tensor '{}'", shown(&tensor.name))))?;
        Ok(bytes.into())
    }

    /// Lets go of the memory that holds `range` of a tensor's bytes; what reads them later reads the file again.
    ///
    /// For tensors that were copied into another form: their pages would stay resident beside the copy. It is a hint:
    /// systems without it, and bytes in memory, keep what they have.
    ///
    /// # Panics
    /// As [`GgufFile::data`], and if the range is not within the tensor.
    pub fn release(&self, tensor: &TensorInfo, range: Range<usize>) {
        let part = &self.parts[tensor.part()];
        assert!(range.start <= range.end && range.end <= tensor.n_bytes(), "{range:?} of {} bytes", tensor.n_bytes());
        let start = part.data_start + tensor.offset() as usize + range.start;
        assert!(start as u64 + range.len() as u64 <= part.n_bytes, "the tensor is of another file");
        if let Some(map) = part.map.as_ref().filter(|_| !range.is_empty()) {
            map.release(start, range.len());
        }
    }

    /// Asks the system to read `n_bytes` of a tensor's file in the background: those from `start` of the tensor on, which may
    /// reach into the tensors behind it.
    ///
    /// For tensors that are about to be copied into another form: the disk reads what comes next while this one is computed. It
    /// is a hint: systems without it, and bytes in memory, read when they are asked. What lies behind the file's end is left out.
    ///
    /// # Panics
    /// As [`GgufFile::data`].
    pub fn read_ahead(&self, tensor: &TensorInfo, start: usize, n_bytes: usize) {
        let part = &self.parts[tensor.part()];
        let start =
            part.data_start.saturating_add(tensor.offset() as usize).saturating_add(start).min(part.bytes.len());
        let n_bytes = n_bytes.min(part.bytes.len() - start);
        if let Some(map) = part.map.as_ref().filter(|_| n_bytes > 0) {
            map.read_ahead(start, n_bytes);
        }
    }

    /// Returns whether all that was read of the files so far was there.
    ///
    /// # Errors
    /// A file was cut short, or could not be read, while it was in use; the error names it. What was computed of it is
    /// worth nothing.
    pub fn check(&self) -> Result<(), GgufError> {
        let is_cut = |part: &&Part| part.map.as_ref().is_some_and(|map| map.watch().is_cut());
        match self.parts.iter().find(is_cut) {
            None => Ok(()),
            Some(part) => {
                let line = "the file was cut short while it was in use, or its disk failed; load it again";
                let error = GgufError::new(GgufErrorKind::Io, line);
                Err(part.path.iter().fold(error, |error, path| error.at(path)))
            }
        }
    }

    /// Returns what tells whether the maps were cut, for those who keep their bytes and not the file.
    pub fn watches(&self) -> impl Iterator<Item = &Watch> {
        self.parts.iter().filter_map(|part| part.map.as_deref().map(MappedFile::watch))
    }

    /// Returns how many files the model is in.
    pub fn n_parts(&self) -> usize {
        self.parts.len()
    }

    /// Returns the paths of the files; none for bytes in memory.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().filter_map(|part| part.path.as_deref())
    }

    /// Returns the whole bytes of each file, sharing the map; of one that is read piece by piece only those before its tensors.
    pub fn bytes(&self) -> impl Iterator<Item = &Bytes> {
        self.parts.iter().map(|part| &part.bytes)
    }

    /// Returns the size of all files together, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.n_bytes).sum()
    }

    /// Returns the size of all tensors together, in bytes, without padding.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.n_bytes() as u64).sum()
    }
}

impl Parsed {
    fn read(bytes: &Bytes, part: usize) -> Result<Parsed, GgufError> {
        Parsed::directory(bytes, part)?.checked(bytes.len() as u64)
    }

    /// Reads all but what only the length of the file can show.
    fn directory(bytes: &Bytes, part: usize) -> Result<Parsed, GgufError> {
        Parsed::of_beginning(bytes, bytes.len() as u64, part)
    }

    /// Reads that of a file of `n_bytes` from its beginning. An error of a sound file whose beginning is too short says how
    /// long it has to be.
    fn of_beginning(bytes: &Bytes, n_bytes: u64, part: usize) -> Result<Parsed, GgufError> {
        let mut cursor = Cursor::new(bytes, n_bytes);
        let header = Header::read(&mut cursor)?;
        let metadata = Metadata::read(&mut cursor, header.n_metadata)?;
        let alignment = read_alignment(&metadata)?;
        let tensors = TensorInfo::read_all(&mut cursor, header.n_tensors, part)?;
        let data_start = (cursor.pos() as u64).next_multiple_of(alignment);
        // Past the end of a file without tensors this is used for nothing.
        let data_start = usize::try_from(data_start).unwrap_or(usize::MAX);
        Ok(Parsed { version: header.version, alignment, metadata, tensors, data_start })
    }

    /// Checks that the tensors lie in a file of this length.
    fn checked(self, n_bytes: u64) -> Result<Parsed, GgufError> {
        tensor::check_layout(&self.tensors, self.alignment, self.data_start as u64, n_bytes)?;
        Ok(self)
    }
}

/// Returns what a file says of its parts: that it is a whole.
fn whole(parsed: &Parsed) -> Result<SplitInfo, GgufError> {
    let split = SplitInfo::read(&parsed.metadata)?;
    if split.count == 1 {
        return Ok(split);
    }
    let message = format!("part {} of {} of a split model: open it by path", split.no + 1, split.count);
    Err(GgufError::new(GgufErrorKind::Split, message))
}

fn too_long() -> GgufError {
    let message = format!("metadata and tensor directory have more than {} bytes", limits::HEADER_BYTES_MAX);
    GgufError::new(GgufErrorKind::Limit, message)
}

/// Returns `general.alignment`, or the format's default.
pub(crate) fn read_alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let alignment = metadata.u64("general.alignment")?.unwrap_or(limits::ALIGNMENT_DEFAULT);
    if !alignment.is_power_of_two() || alignment > limits::ALIGNMENT_MAX {
        let most = limits::ALIGNMENT_MAX;
        return Err(GgufError::invalid(format!(
            "general.alignment is {alignment}, expected a power of two up to {most}"
        )));
    }
    Ok(alignment)
}

/// A map as the owner of [`Bytes`].
struct Owner(Arc<MappedFile>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn map(path: &Path) -> Result<(Option<Arc<MappedFile>>, Bytes), GgufError> {
    let cannot_open = |error| GgufError::io("cannot open the file", error);
    // Before it is opened: a pipe would wait for somebody to write into it.
    let stat = std::fs::metadata(path).map_err(cannot_open)?;
    if stat.is_dir() {
        return Err(cannot_open(ErrorKind::IsADirectory.into()));
    }
    if !stat.is_file() {
        return Err(cannot_open(std::io::Error::new(
            ErrorKind::InvalidInput,
            "it is no regular file; it must be mapped",
        )));
    }
    let file = File::open(path).map_err(cannot_open)?;
    if stat.len() == 0 {
        return Ok((None, Bytes::new()));
    }
    let map = MappedFile::new(&file).map_err(|e| GgufError::io("cannot map the file", e))?;
    let map = Arc::new(map);
    Ok((Some(Arc::clone(&map)), Bytes::from_owner(Owner(map))))
}
