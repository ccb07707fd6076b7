//! The functions under the names of the packs' interface, version 1 (`docs/src/packs.md`).
//!
//! A host asks `reserve` for room in the module's memory, writes the inputs there, calls a kernel with addresses, and reads the result.
//! Kernels return 0, or -1 for what they do not compute. There is one thread. Products of matrices of floats are summed in the scalar kernels' order, so
//! that every bit is native's; integers and single values have the same bits on every instruction set. Attention has an `exp`, whose last
//! bit is the platform's.

use std::cell::RefCell;
use std::slice;

use ruvllm_ggml::GgmlType;
use ruvllm_kernels::Isa;
use ruvllm_kernels::matmul::Matrix;

use crate::{AttentionInputs, AttentionShape, MatrixShape, Weights, can_quantize};

const VERSION: i32 = 1;
const DONE: i32 = 0;
const REFUSED: i32 = -1;
/// Bytes at whose multiples the room begins.
const ALIGN: usize = 64;

thread_local! {
    static ROOM: RefCell<Vec<[u8; ALIGN]>> = const { RefCell::new(Vec::new()) };
    static MATRICES: RefCell<Vec<Option<Weights>>> = const { RefCell::new(Vec::new()) };
}

/// Returns the version of the interface.
#[unsafe(no_mangle)]
extern "C" fn abi() -> i32 {
    VERSION
}

/// Returns the address of room for so many bytes, which is the host's until the next call of `reserve`.
#[unsafe(no_mangle)]
extern "C" fn reserve(n_bytes: u32) -> u32 {
    ROOM.with_borrow_mut(|room| {
        let n = (n_bytes as usize).div_ceil(ALIGN) + 1;
        room.resize(n.max(room.len()), [0; ALIGN]);
        let address = room.as_mut_ptr() as usize;
        address.next_multiple_of(ALIGN) as u32
    })
}

/// Returns values of the host in this module's memory.
///
/// # Safety
/// The host has written them there, and no other slice writes to them while they are used.
unsafe fn values<'a, T>(address: u32, n: usize) -> &'a [T] {
    // SAFETY: the caller's promise; addresses are checked by the memory's own bounds.
    unsafe { slice::from_raw_parts(address as usize as *const T, n) }
}

/// Returns room for values in this module's memory.
///
/// # Safety
/// As [`values`], and nothing else uses them meanwhile.
unsafe fn values_mut<'a, T>(address: u32, n: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts_mut(address as usize as *mut T, n) }
}

/// Writes a row of `n` quantised values as floats.
#[unsafe(no_mangle)]
extern "C" fn embed(ty: u32, n: u32, row: u32, out: u32) -> i32 {
    let Some((ty, n_bytes)) = row_of(ty, n) else { return REFUSED };
    // SAFETY: the host gives disjoint parts of what it reserved.
    let (row, out) = unsafe { (values(row, n_bytes), values_mut(out, n as usize)) };
    crate::embed(Isa::best(), ty, row, out);
    DONE
}

/// Quantises a row of `n` values.
#[unsafe(no_mangle)]
extern "C" fn quantize(ty: u32, n: u32, row: u32, out: u32) -> i32 {
    let Some((ty, n_bytes)) = row_of(ty, n).filter(|&(ty, _)| can_quantize(ty)) else { return REFUSED };
    // SAFETY: as in `embed`.
    let (row, out) = unsafe { (values(row, n as usize), values_mut(out, n_bytes)) };
    crate::quantize(ty, row, out);
    DONE
}

/// Takes a matrix and returns its number.
#[unsafe(no_mangle)]
extern "C" fn load(ty: u32, n_out: u32, n_in: u32, weights: u32) -> i32 {
    let Some((ty, row_bytes)) = row_of(ty, n_in).filter(|&(ty, _)| Matrix::supports(ty)) else { return REFUSED };
    let shape = MatrixShape { n_out: n_out as usize, n_in: n_in as usize };
    // SAFETY: as in `embed`.
    let bytes = unsafe { values(weights, shape.n_out * row_bytes) };
    let isa = if ty.block_len() == 1 { Isa::Scalar } else { Isa::best() };
    let weights = Weights::new(isa, ty, shape, bytes);
    MATRICES.with_borrow_mut(|matrices| {
        let free = matrices.iter().position(Option::is_none).unwrap_or(matrices.len());
        match matrices.get_mut(free) {
            Some(slot) => *slot = Some(weights),
            None => matrices.push(Some(weights)),
        }
        free as i32
    })
}

/// Multiplies `n_rows` rows by a matrix.
#[unsafe(no_mangle)]
extern "C" fn matmul(matrix: i32, n_rows: u32, x: u32, out: u32) -> i32 {
    MATRICES.with_borrow(|matrices| {
        let found = usize::try_from(matrix).ok().and_then(|i| matrices.get(i)?.as_ref());
        let Some(weights) = found else { return REFUSED };
        let (MatrixShape { n_out, n_in }, n) = (weights.shape(), n_rows as usize);
        // SAFETY: as in `embed`.
        let (x, out) = unsafe { (values(x, n * n_in), values_mut(out, n * n_out)) };
        weights.multiply(x, n, out);
        DONE
    })
}

/// Forgets a matrix.
#[unsafe(no_mangle)]
extern "C" fn unload(matrix: i32) -> i32 {
    MATRICES.with_borrow_mut(|matrices| {
        let found = usize::try_from(matrix).ok().and_then(|i| matrices.get_mut(i));
        found.map_or(REFUSED, |slot| if slot.take().is_some() { DONE } else { REFUSED })
    })
}

/// Attends with one query.
#[unsafe(no_mangle)]
extern "C" fn attention(n_heads: u32, n_kv_heads: u32, dim: u32, n_kv: u32, q: u32, k: u32, v: u32, out: u32) -> i32 {
    let [n_heads, n_kv_heads, dim, n_kv] = [n_heads, n_kv_heads, dim, n_kv].map(|n| n as usize);
    let shape = AttentionShape { n_heads, n_kv_heads, dim, n_kv };
    let (Some(n_keys), Some(n_query)) = (shape.n_keys(), shape.n_query()) else { return REFUSED };
    // SAFETY: as in `embed`.
    let (inputs, out) = unsafe {
        let inputs = AttentionInputs { q: values(q, n_query), k: values(k, n_keys), v: values(v, n_keys) };
        (inputs, values_mut(out, n_query))
    };
    crate::attention(Isa::best(), shape, inputs, out);
    DONE
}

/// Returns a type with the bytes of a row of it.
fn row_of(ty: u32, n: u32) -> Option<(GgmlType, usize)> {
    let ty = GgmlType::from_id(ty)?;
    ty.row_bytes(n as usize).filter(|_| n > 0).map(|n_bytes| (ty, n_bytes))
}
