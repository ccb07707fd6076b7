//! The bytes of a record, and how they are checked.
//!
//! A record starts at a multiple of [`ALIGN`] and is padded with zeros to one. All numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0–3 | `RKV2` |
//! | 4–7 | kind: 1 block, 2 session, 3 deleted session, 4 deleted namespace |
//! | 8–11 | length of the description, at most [`META_MAX`] |
//! | 12–15 | length of the payload |
//! | 16–23 | XXH3-64 of the payload |
//! | 24–31 | XXH3-64 of bytes 0–23 and the description |
//! | 32… | description ([`Meta`]), then payload |
//!
//! Both hashes are seeded with the segment's random number and the record's place. So a record is valid only where it
//! was written: bytes left over from elsewhere, or a record written into a session's settings, are none. The
//! description can be checked without its payload, which makes opening a folder fast.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::key::BlockKey;
use super::{BLOCK_TOKENS, NAME_MAX};
use crate::key::Namespace;

/// Records start at multiples of this many bytes.
pub(super) const ALIGN: u64 = 64;
/// Bytes before the description.
pub(super) const HEADER_LEN: usize = 32;
/// The longest description.
pub(super) const META_MAX: usize = 320;
/// Every record starts with these.
pub(super) const MAGIC: [u8; 4] = *b"RKV2";

/// A place in the log. Later records have greater places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meta {
    /// KV cache of some tokens; it is the payload.
    Block(BlockMeta),
    /// A session; tokens and settings are the payload.
    Session(SessionMeta),
    /// The session of this name is deleted, as far as it was written before.
    DeleteSession(String),
    /// All blocks of this namespace are deleted, as far as they were written before.
    DeleteNamespace(Namespace),
}

/// Which block it is. Its key follows from `parent` and `tokens` and is not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockMeta {
    pub(super) namespace: Namespace,
    pub(super) parent: BlockKey,
    /// Blocks before this one in its prefix.
    pub(super) block_idx: u32,
    /// Facts that the caller says the contents are.
    pub(super) format: u32,
    /// 1 to 16.
    pub(super) tokens: Vec<u32>,
}

impl BlockMeta {
    pub(super) fn key(&self) -> BlockKey {
        self.parent.child(&self.tokens)
    }
}

/// Which session it is, and what a list shows of it. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionMeta {
    pub(super) name: String,
    pub(super) n_tokens: u32,
    pub(super) created_ms: u64,
    pub(super) used_ms: u64,
}

/// The frame of a record whose header and description are intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) meta_len: u32,
    pub(super) payload_len: u32,
    pub(super) payload_hash: u64,
}

impl Frame {
    /// Returns the bytes of the whole record with its padding.
    pub(super) fn record_len(&self) -> u64 {
        record_len(self.meta_len as usize, self.payload_len as usize)
    }

    /// Returns where the payload starts, from the start of the record.
    pub(super) fn payload_at(&self) -> u64 {
        HEADER_LEN as u64 + u64::from(self.meta_len)
    }
}

/// Returns the bytes of a record with its padding.
pub(super) fn record_len(meta_len: usize, payload_len: usize) -> u64 {
    (HEADER_LEN as u64 + meta_len as u64 + payload_len as u64).next_multiple_of(ALIGN)
}

/// Returns the seed of the hashes of a record at `offset` of a segment with the random number `nonce`.
pub(super) fn seed(nonce: u64, offset: u64) -> u64 {
    nonce ^ offset
}

/// Returns the hash that guards a payload.
pub(super) fn hash(payload: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(payload, seed)
}

/// Returns the bytes of a description.
pub(super) fn encode_meta(meta: &Meta) -> Vec<u8> {
    let mut out = Vec::with_capacity(META_MAX);
    match meta {
        Meta::Block(block) => {
            out.extend(block.namespace.to_bytes());
            out.extend(block.parent.0);
            out.extend(block.block_idx.to_le_bytes());
            out.extend(block.format.to_le_bytes());
            block.tokens.iter().for_each(|token| out.extend(token.to_le_bytes()));
        }
        Meta::Session(session) => {
            out.extend(session.n_tokens.to_le_bytes());
            out.extend(session.created_ms.to_le_bytes());
            out.extend(session.used_ms.to_le_bytes());
            out.extend(session.name.as_bytes());
        }
        Meta::DeleteSession(name) => out.extend(name.as_bytes()),
        Meta::DeleteNamespace(namespace) => out.extend(namespace.to_bytes()),
    }
    out
}

/// Appends header and description of a record to `out` and returns its frame.
pub(super) fn encode(meta: &Meta, payload: &[u8], seed: u64, out: &mut Vec<u8>) -> Frame {
    let described = encode_meta(meta);
    assert!(described.len() <= META_MAX, "a description of {} bytes cannot be read back", described.len());
    let kind: u32 = match meta {
        Meta::Block(_) => 1,
        Meta::Session(_) => 2,
        Meta::DeleteSession(_) => 3,
        Meta::DeleteNamespace(_) => 4,
    };
    let payload_len = u32::try_from(payload.len()).expect("the store limits payloads to less than 4 GiB");
    let frame = Frame { meta_len: described.len() as u32, payload_len, payload_hash: hash(payload, seed) };
    let start = out.len();
    out.extend(MAGIC);
    out.extend(kind.to_le_bytes());
    out.extend(frame.meta_len.to_le_bytes());
    out.extend(frame.payload_len.to_le_bytes());
    out.extend(frame.payload_hash.to_le_bytes());
    out.extend([0; 8]);
    out.extend(described);
    let check = header_hash(&out[start..], seed);
    out[start + 24..start + 32].copy_from_slice(&check.to_le_bytes());
    frame
}

/// Reads the record that `bytes` start with. `bytes` may be longer than header and description, or cut.
///
/// Returns `None` unless header and description are exactly what was written with `seed`. The length of the payload is
/// then what was written, but whether so many bytes follow is for the caller to check.
pub(super) fn decode(bytes: &[u8], seed: u64) -> Option<(Frame, Meta)> {
    let header: &[u8; HEADER_LEN] = bytes.first_chunk()?;
    let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let frame = Frame {
        meta_len: u32_at(8),
        payload_len: u32_at(12),
        payload_hash: u64::from(u32_at(16)) | u64::from(u32_at(20)) << 32,
    };
    if header[..4] != MAGIC || frame.meta_len as usize > META_MAX {
        return None;
    }
    let whole = bytes.get(..HEADER_LEN + frame.meta_len as usize)?;
    let check = u64::from(u32_at(24)) | u64::from(u32_at(28)) << 32;
    if header_hash(whole, seed) != check {
        return None;
    }
    Some((frame, decode_meta(u32_at(4), &whole[HEADER_LEN..])?))
}

/// Hashes a record's header, without the hash itself, and its description.
fn header_hash(bytes: &[u8], seed: u64) -> u64 {
    let mut flat = [0; HEADER_LEN + META_MAX];
    let described = &bytes[HEADER_LEN..];
    flat[..24].copy_from_slice(&bytes[..24]);
    flat[24..24 + described.len()].copy_from_slice(described);
    xxh3_64_with_seed(&flat[..24 + described.len()], seed)
}

fn decode_meta(kind: u32, bytes: &[u8]) -> Option<Meta> {
    let mut fields = Fields(bytes);
    let meta = match kind {
        1 => Meta::Block(BlockMeta {
            namespace: Namespace::from_bytes(fields.take()?),
            parent: BlockKey(fields.take()?),
            block_idx: u32::from_le_bytes(fields.take()?),
            format: u32::from_le_bytes(fields.take()?),
            tokens: fields.tokens()?,
        }),
        2 => Meta::Session(SessionMeta {
            n_tokens: u32::from_le_bytes(fields.take()?),
            created_ms: u64::from_le_bytes(fields.take()?),
            used_ms: u64::from_le_bytes(fields.take()?),
            name: fields.name()?,
        }),
        3 => Meta::DeleteSession(fields.name()?),
        4 => Meta::DeleteNamespace(Namespace::from_bytes(fields.take()?)),
        _ => return None,
    };
    fields.0.is_empty().then_some(meta)
}

/// What is left to read of a description.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn tokens(&mut self) -> Option<Vec<u32>> {
        let (tokens, rest) = self.0.as_chunks();
        self.0 = rest;
        (1..=BLOCK_TOKENS)
            .contains(&tokens.len())
            .then(|| tokens.iter().map(|&token| u32::from_le_bytes(token)).collect())
    }

    fn name(&mut self) -> Option<String> {
        let name = str::from_utf8(std::mem::take(&mut self.0)).ok()?;
        (1..=NAME_MAX).contains(&name.len()).then(|| name.to_owned())
    }
}
