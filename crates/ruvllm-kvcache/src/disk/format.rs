//! Numbers that name what a block's contents are.

use crate::pool::KvType;

/// Returns the number that [`BlockRef::format`](super::BlockRef::format) has for blocks of this element type. Numbers
/// are never given to another type.
pub fn format_of(kv: KvType) -> u32 {
    match kv {
        KvType::F16 => 1,
        KvType::F32 => 2,
    }
}
