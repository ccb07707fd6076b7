//! Files that are read piece by piece: the same values as from memory, and what sources do wrong.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use ruvllm_gguf::{ByteSource, GgmlType, GgufError, GgufErrorKind, GgufFile, GgufWriter, StringArray, Value, limits};

use crate::base::{self, Raw};
use crate::counting::peak_bytes;

/// A file of which each read gives a few bytes, and behind some byte none, or an error.
struct Slow {
    bytes: Bytes,
    n_each: usize,
    /// Where it ends, whatever it said.
    ends: AtomicU64,
    error: Option<ErrorKind>,
    n_reads: AtomicUsize,
}

impl Slow {
    fn new(bytes: Vec<u8>, n_each: usize) -> Slow {
        let ends = (bytes.len() as u64).into();
        Slow { bytes: bytes.into(), n_each, ends, error: None, n_reads: 0.into() }
    }
}

impl ByteSource for Slow {
    fn n_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        // Every third read is to be done again.
        if self.n_reads.fetch_add(1, Ordering::Relaxed) % 3 == 1 {
            return Err(ErrorKind::Interrupted.into());
        }
        let left = self.ends.load(Ordering::Relaxed).saturating_sub(offset) as usize;
        if let (0, Some(kind)) = (left, self.error) {
            return Err(kind.into());
        }
        let n = self.n_each.min(to.len()).min(left);
        self.bytes.read_at(offset, &mut to[..n])
    }
}

/// A source that says what it likes.
struct Wrong {
    n_bytes: u64,
    n_read: usize,
}

impl ByteSource for Wrong {
    fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        Ok(self.n_read)
    }
}

fn open(source: impl ByteSource + 'static) -> Result<GgufFile, GgufError> {
    GgufFile::from_source(Arc::new(source))
}

/// A file whose metadata are longer than what is read first.
fn long() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.metadata_mut().set("tokens", (0..300_000).map(|i| format!("token {i}")).collect::<StringArray>());
    writer.add_tensor("large", GgmlType::I8, &[3 << 20], vec![7; 3 << 20]).expect("sound");
    let mut out = Vec::new();
    writer.write_to(&mut out).expect("a vector takes everything");
    out
}

#[test]
fn what_is_read_is_what_memory_has() {
    for (bytes, n_each) in [(base::bytes(1), 1), (base::bytes(2), 7), (base::bytes(3), 1 << 20), (long(), 50_000)] {
        let whole = GgufFile::from_bytes(bytes.clone().into()).expect("sound");
        let file = open(Slow::new(bytes.clone(), n_each)).expect("sound");
        assert_eq!((file.total_bytes(), file.has_data(), whole.has_data()), (bytes.len() as u64, false, true));
        assert!(file.metadata().iter().eq(whole.metadata().iter()) && file.tensors().eq(whole.tensors()));
        for tensor in file.tensors() {
            let (n, data) = (tensor.n_bytes(), whole.data(tensor));
            for range in [0..n, 0..n / 2, n / 2..n, n..n] {
                assert_eq!(file.read(tensor, range.clone()).expect("it is there"), data.slice(range.clone()));
                assert_eq!(whole.read(tensor, range.clone()).expect("it is there"), data.slice(range));
            }
            file.release(tensor, 0..n);
            file.read_ahead(tensor, 0, n);
        }
        file.check().expect("nothing was cut");
    }
}

#[test]
fn no_more_is_kept_than_what_lies_before_the_tensors() {
    let bytes = long();
    let n_header = bytes.len() - (3 << 20);
    let source: Arc<dyn ByteSource> = Arc::new(Bytes::from(bytes));
    let (file, peak) = peak_bytes(|| GgufFile::from_source(source).expect("sound"));
    let kept: usize = file.bytes().map(Bytes::len).sum();
    assert!(kept <= n_header && kept + 32 > n_header, "{kept} of {n_header}");
    assert!(peak < 3 * n_header, "{peak} bytes for a header of {n_header}");
}

#[test]
fn a_source_that_ends_early_or_fails_is_one_error() {
    let bytes = base::bytes(3);
    let n = bytes.len() as u64;
    for ends in [0, 3, 24, 100] {
        let source = Slow::new(bytes.clone(), 11);
        source.ends.store(ends, Ordering::Relaxed);
        let error = open(source).expect_err("it ends there");
        let line = format!("the file was cut short while it was in use: it ends at byte {ends} of {n}; load it again");
        assert_eq!((error.kind(), error.to_string()), (GgufErrorKind::Io, line));
    }
    // Behind the tensor directory.
    let source = Arc::new(Slow::new(bytes.clone(), 11));
    let file = GgufFile::from_source(Arc::clone(&source) as Arc<dyn ByteSource>).expect("sound");
    let tensor = file.tensor("output.weight").expect("there");
    source.ends.store(n - 60, Ordering::Relaxed);
    let error = file.read(tensor, 0..tensor.n_bytes()).expect_err("it was cut");
    assert!(error.to_string().starts_with("tensor 'output.weight': the file was cut short"), "{error}");
    source.ends.store(n, Ordering::Relaxed);
    assert!(file.read(tensor, 0..tensor.n_bytes()).is_ok(), "it is there again");

    let mut source = Slow::new(bytes, 11);
    (source.error, *source.ends.get_mut()) = (Some(ErrorKind::PermissionDenied), 40);
    let error = open(source).expect_err("it fails");
    assert_eq!(
        (error.kind(), error.to_string()),
        (GgufErrorKind::Io, "cannot read the file (at byte 40): permission denied".into())
    );
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn lengths_that_are_not_true_are_refused() {
    let error = open(Wrong { n_bytes: 100, n_read: 101 }).expect_err("there is no room");
    assert_eq!(error.to_string(), "101 bytes were read where there is room for 100 (at byte 0)");
    let error = open(Wrong { n_bytes: u64::MAX, n_read: 0 }).expect_err("it has none");
    assert_eq!(error.kind(), GgufErrorKind::Io);
    assert_eq!(open(Bytes::new()).expect_err("it is empty").kind(), GgufErrorKind::Truncated);
    assert_eq!(open(Bytes::from_static(b"html")).expect_err("it is another file").kind(), GgufErrorKind::NotGguf);
    // Tensors that reach over the end.
    let bytes = base::bytes(3);
    let short = Bytes::from(bytes[..bytes.len() - 100].to_vec());
    let (error, memory) = (open(short.clone()).expect_err("short"), GgufFile::from_bytes(short).expect_err("short"));
    assert_eq!((error.kind(), error.to_string()), (memory.kind(), memory.to_string()));
    assert_eq!(open(Bytes::from(bytes[..60].to_vec())).expect_err("short").kind(), GgufErrorKind::Truncated);
}

/// Of what a file says of its lengths nothing is believed, nor read, that does not fit the file.
#[test]
fn a_hostile_header_costs_no_more_than_a_beginning() {
    struct Huge(Vec<u8>, AtomicU64);
    impl ByteSource for Huge {
        fn n_bytes(&self) -> u64 {
            1 << 40
        }

        fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
            self.1.fetch_max(offset + to.len() as u64, Ordering::Relaxed);
            to.fill(0);
            let head = self.0.get(offset as usize..).unwrap_or_default();
            let n = head.len().min(to.len());
            to[..n].copy_from_slice(&head[..n]);
            Ok(to.len())
        }
    }
    let string = |n: u64| Raw::new(0, 1).str("k").u32(8).u64(n).0;
    let array = |n: u64| Raw::new(0, 1).key_array("k", 0, n).0;
    for (head, kind) in [
        (string(1 << 41), GgufErrorKind::Truncated),
        (string(1 << 39), GgufErrorKind::Limit),
        (array(u64::MAX), GgufErrorKind::Truncated),
        (array(limits::HEADER_BYTES_MAX), GgufErrorKind::Limit),
    ] {
        let source = Arc::new(Huge(head, 0.into()));
        let open = || GgufFile::from_source(Arc::clone(&source) as Arc<dyn ByteSource>).map_err(|error| error.kind());
        let (found, peak) = peak_bytes(open);
        assert_eq!(found.err(), Some(kind));
        assert!(peak < 3 << 20 && source.1.load(Ordering::Relaxed) == 1 << 20, "{peak}");
    }
    // One that fits is read, as far as it is needed.
    let fits = Raw::new(0, 1).key_array("k", 0, 5 << 20).0;
    let source = Arc::new(Huge(fits, 0.into()));
    let file = GgufFile::from_source(Arc::clone(&source) as Arc<dyn ByteSource>).expect("sound");
    let found = match file.metadata().get("k") {
        Some(Value::Array(array)) => Some(array.len()),
        _ => None,
    };
    assert_eq!((found, source.1.load(Ordering::Relaxed) < 6 << 20), (Some(5 << 20), true));
}
