//! Limits of what a file may declare. Real models stay far below; a hostile file meets one of these before it costs memory.
//!
//! Every length is first checked against the bytes left in the file. These counts bound what that check cannot: entries
//! that are larger in memory than on disk. Together they keep parsing below 64 MiB beyond the size of the file.

/// Most bytes of metadata and tensor directory of a file that is read piece by piece.
pub const HEADER_BYTES_MAX: u64 = 256 << 20;
/// Most metadata entries of one file.
pub const N_METADATA_MAX: u64 = 1 << 16;
/// Most tensors of one file.
pub const N_TENSORS_MAX: u64 = 1 << 16;
/// Most arrays inside arrays of one file, all keys together.
pub const N_NESTED_ARRAYS_MAX: u64 = 1 << 16;
/// Deepest array: an array of arrays has depth 2.
pub const ARRAY_DEPTH_MAX: usize = 4;
/// Longest metadata key, in bytes (GGUF spec, "Standardized key-value pairs").
pub const KEY_BYTES_MAX: usize = (1 << 16) - 1;
/// Most dimensions of a tensor.
pub const N_DIMS_MAX: usize = 4;
/// Largest alignment of tensor data, in bytes.
pub const ALIGNMENT_MAX: u64 = 1 << 20;
/// Alignment of tensor data when `general.alignment` is absent, in bytes.
pub const ALIGNMENT_DEFAULT: u64 = 32;
