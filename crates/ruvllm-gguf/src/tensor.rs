//! The tensor directory: names, types, shapes and where the bytes lie.

use ruvllm_ggml::GgmlType;

use crate::cursor::Cursor;
use crate::error::{GgufError, GgufErrorKind};
use crate::limits;
use crate::metadata::shown;

/// A tensor of a file: what it is, not its bytes (those are [`crate::GgufFile::data`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the model, e.g. `blk.0.attn_q.weight`.
    pub name: String,
    /// Element type.
    pub ty: GgmlType,
    /// Sizes in GGUF order, 1 to 4 of them, none zero: `shape[0]` is the contiguous one (columns), then rows, then
    /// experts.
    pub shape: Vec<usize>,
    n_bytes: usize,
    /// From the start of the part's data section.
    offset: u64,
    /// Which file of a split model, from 0.
    part: usize,
}

impl TensorInfo {
    /// Returns how many values the tensor has: the product of its shape as the file gave it.
    pub fn n_elements(&self) -> usize {
        self.n_bytes / self.ty.block_bytes() * self.ty.block_len()
    }

    /// Returns how many bytes the tensor takes in the file.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Returns how far from the start of its file's data section the tensor lies, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns which file of a split model holds the tensor, from 0.
    pub fn part(&self) -> usize {
        self.part
    }

    /// Reads the `n` entries of the directory of part `part`.
    pub(crate) fn read_all(cursor: &mut Cursor<'_>, n: u64, part: usize) -> Result<Vec<TensorInfo>, GgufError> {
        // The least entry: a name of one byte, the count of dimensions, one dimension, type and offset.
        let len = cursor.check_fits(n, cursor.len_bytes() + 1 + 4 + cursor.len_bytes() + 4 + 8)?;
        let mut tensors = Vec::with_capacity(len);
        for i in 0..len {
            let name = cursor.str().map_err(|e| e.within(format_args!("tensor {i} of {len}")))?;
            let tensor = TensorInfo::read_rest(cursor, name, part);
            tensors.push(tensor.map_err(|e| e.within(format_args!("tensor '{}'", shown(name))))?);
        }
        Ok(tensors)
    }

    fn read_rest(cursor: &mut Cursor<'_>, name: &str, part: usize) -> Result<TensorInfo, GgufError> {
        check_name(name)?;
        let n_dims = cursor.u32()?;
        if n_dims == 0 || n_dims as usize > limits::N_DIMS_MAX {
            return Err(GgufError::invalid(format!("{n_dims} dimensions, expected 1 to {}", limits::N_DIMS_MAX)));
        }
        let mut shape = Vec::with_capacity(n_dims as usize);
        for _ in 0..n_dims {
            let dim = cursor.len()?;
            shape.push(usize::try_from(dim).map_err(|_| GgufError::invalid(format!("a dimension of {dim}")))?);
        }
        let ty = type_from_id(cursor.u32()?)?;
        let n_bytes = tensor_bytes(ty, &shape)?;
        Ok(TensorInfo { name: name.to_owned(), ty, shape, n_bytes, offset: cursor.u64()?, part })
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), GgufError> {
    if name.is_empty() { Err(GgufError::invalid("the name is empty")) } else { Ok(()) }
}

/// Returns the bytes of a tensor of this type and shape, or why there can be none such.
pub(crate) fn tensor_bytes(ty: GgmlType, shape: &[usize]) -> Result<usize, GgufError> {
    if shape.is_empty() || shape.len() > limits::N_DIMS_MAX {
        return Err(GgufError::invalid(format!("{} dimensions, expected 1 to {}", shape.len(), limits::N_DIMS_MAX)));
    }
    if shape.contains(&0) {
        return Err(GgufError::invalid(format!("shape {shape:?} has a dimension of 0")));
    }
    if !shape[0].is_multiple_of(ty.block_len()) {
        let (row, block) = (shape[0], ty.block_len());
        return Err(GgufError::invalid(format!("rows of {row} values are not whole {ty} blocks of {block}")));
    }
    // The product of the sizes is checked as well as the bytes, because types below 8 bits have fewer bytes than
    // values.
    let n_elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    n_elements
        .and_then(|n| (n / ty.block_len()).checked_mul(ty.block_bytes()))
        .filter(|&n| n <= isize::MAX as usize)
        .ok_or_else(|| GgufError::invalid(format!("shape {shape:?} of {ty} is too large for this machine")))
}

fn type_from_id(id: u32) -> Result<GgmlType, GgufError> {
    GgmlType::from_id(id).ok_or_else(|| {
        let message = match id {
            4 | 5 | 31..=33 | 36..=38 => {
                let name = match id {
                    4 => "Q4_2",
                    5 => "Q4_3",
                    31 => "Q4_0_4_4",
                    32 => "Q4_0_4_8",
                    33 => "Q4_0_8_8",
                    36 => "IQ4_NL_4_4",
                    37 => "IQ4_NL_4_8",
                    _ => "IQ4_NL_8_8",
                };
                format!("type {name} ({id}) was removed from GGML: quantise the model again")
            }
            _ => format!("unknown tensor type {id}: use a model with types read here, such as Q4_K_M or Q8_0"),
        };
        GgufError::new(GgufErrorKind::Unsupported, message)
    })
}

/// Checks that the tensors of one part are aligned, inside its data section and apart from each other.
pub(crate) fn check_layout(
    tensors: &[TensorInfo],
    alignment: u64,
    data_start: u64,
    file_bytes: u64,
) -> Result<(), GgufError> {
    for tensor in tensors {
        let (offset, need) = (tensor.offset, tensor.n_bytes as u64);
        if !offset.is_multiple_of(alignment) {
            let message = format!("tensor '{}': offset {offset} is no multiple of {alignment}", shown(&tensor.name));
            return Err(GgufError::invalid(message));
        }
        let at = data_start.saturating_add(offset);
        let have = file_bytes.saturating_sub(at);
        if need > have {
            let error = GgufError::truncated(need, have, at);
            return Err(error.within(format_args!("tensor '{}'", shown(&tensor.name))));
        }
    }
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    order.sort_unstable_by_key(|&i| tensors[i as usize].offset);
    for pair in order.windows(2) {
        let (a, b) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
        if a.offset + a.n_bytes as u64 > b.offset {
            let (first, second) = (shown(&a.name), shown(&b.name));
            let message = format!(
                "tensors '{first}' and '{second}' overlap: {} bytes at offset {} reach past offset {}",
                a.n_bytes, a.offset, b.offset
            );
            return Err(GgufError::invalid(message));
        }
    }
    Ok(())
}
