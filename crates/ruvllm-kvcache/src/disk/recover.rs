//! Reading a segment whose bytes are not to be trusted.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::index::Located;
use super::record::{self, ALIGN, Frame, HEADER_LEN, MAGIC, META_MAX, Meta};
use super::segment::{self, SEGMENT_HEADER_LEN, SEGMENT_LEN_MAX, SegmentHeader};

/// What reading a segment found beside its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recovered {
    /// Where the last intact record ends: what follows is to be cut.
    pub(super) end: u64,
    /// Stretches of bytes that are no records, a torn end among them.
    pub(super) n_corrupt: u64,
}

/// Reads the header of a segment of `len` bytes. Returns `None` unless it is intact, of this identity, and the file is
/// no longer than ours are.
pub(super) fn header(source: &mut impl Read, len: u64, identity: &[u8; 32]) -> io::Result<Option<SegmentHeader>> {
    if !(SEGMENT_HEADER_LEN..=SEGMENT_LEN_MAX).contains(&len) {
        return Ok(None);
    }
    let mut bytes = [0; SEGMENT_HEADER_LEN as usize];
    source.read_exact(&mut bytes)?;
    Ok(SegmentHeader::decode(&bytes, identity))
}

/// Calls `visit` with offset, frame and description of every record of a segment, in order.
///
/// Payloads are not read: that they are all there is checked, that they are intact is for whoever reads them. After
/// bytes that are no record, the next record is searched. Memory is a constant, whatever the bytes are.
///
/// # Errors
/// The file cannot be read.
pub(super) fn records(
    source: &mut (impl Read + Seek),
    len: u64,
    header: &SegmentHeader,
    payload_len_max: usize,
    visit: &mut dyn FnMut(u64, Frame, Meta),
) -> io::Result<Recovered> {
    let mut recovered = Recovered { end: SEGMENT_HEADER_LEN, n_corrupt: 0 };
    let mut offset = SEGMENT_HEADER_LEN;
    while offset < len {
        match record_at(source, offset, len, header, payload_len_max)? {
            Some((frame, meta)) => {
                visit(offset, frame, meta);
                offset += frame.record_len();
                recovered.end = offset;
            }
            None => {
                recovered.n_corrupt += 1;
                offset = find_record(source, offset + ALIGN, len, header, payload_len_max)?;
            }
        }
    }
    Ok(recovered)
}

/// Reads header and description of the record at `offset`, if there is one that ends inside `len`.
fn record_at(
    source: &mut (impl Read + Seek),
    offset: u64,
    len: u64,
    header: &SegmentHeader,
    payload_len_max: usize,
) -> io::Result<Option<(Frame, Meta)>> {
    let mut bytes = [0; HEADER_LEN + META_MAX];
    let n = bytes.len().min(usize::try_from(len - offset).unwrap_or(usize::MAX));
    source.seek(SeekFrom::Start(offset))?;
    source.read_exact(&mut bytes[..n])?;
    let found = record::decode(&bytes[..n], record::seed(header.nonce, offset));
    Ok(found.filter(|(frame, _)| frame.payload_len as usize <= payload_len_max && frame.record_len() <= len - offset))
}

/// Returns where the first record from `offset` on starts, or `len`.
fn find_record(
    source: &mut (impl Read + Seek),
    mut offset: u64,
    len: u64,
    header: &SegmentHeader,
    payload_len_max: usize,
) -> io::Result<u64> {
    let mut bytes = [0; 512 * ALIGN as usize];
    while offset < len {
        let n = bytes.len().min(usize::try_from(len - offset).unwrap_or(usize::MAX));
        source.seek(SeekFrom::Start(offset))?;
        source.read_exact(&mut bytes[..n])?;
        for (i, _) in bytes[..n].chunks(ALIGN as usize).enumerate().filter(|(_, chunk)| chunk.starts_with(&MAGIC)) {
            let at = offset + i as u64 * ALIGN;
            if record_at(source, at, len, header, payload_len_max)?.is_some() {
                return Ok(at);
            }
        }
        offset += n as u64;
    }
    Ok(len)
}

/// Reads the payload of a record in `folder` into `payload`, and returns its description. `None` if it is not what was
/// written; `payload` is then not to be used.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(folder: &Path, at: &Located, payload: &mut Vec<u8>) -> io::Result<Option<Meta>> {
    let mut file = File::open(segment::path(folder, at.place.segment))?;
    let (seed, frame) = (record::seed(at.nonce, at.place.offset), at.frame);
    let mut bytes = [0; HEADER_LEN + META_MAX];
    let bytes = &mut bytes[..frame.payload_at() as usize];
    // The length was checked against the file when the record was found. What does not fit that is an error below.
    payload.resize(frame.payload_len as usize, 0);
    file.seek(SeekFrom::Start(at.place.offset))?;
    match file.read_exact(bytes).and_then(|()| file.read_exact(payload)) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        done => done?,
    }
    let found = record::decode(bytes, seed).filter(|(found, _)| *found == frame);
    Ok(found.filter(|_| record::hash(payload, seed) == frame.payload_hash).map(|(_, meta)| meta))
}
