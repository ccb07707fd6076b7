//! A pack that runs: its kernels as functions.

use std::fmt;

use ruvllm_ggml::GgmlType;
use ruvllm_pack_kernels::{AttentionInputs, AttentionShape, MatrixShape};
use wasmtime::TypedFunc;

use crate::error::{PackError, PackErrorKind};
use crate::manifest::{Manifest, Op};
use crate::sandbox::{Compiled, Sandbox};

/// Version of the interface between host and module.
const INTERFACE: i32 = 1;
/// Bytes at whose multiples inputs and results begin.
const ALIGN: usize = 64;

/// A function of a type, a length, and the addresses of a row and of its result.
type RowFunction = TypedFunc<(u32, u32, u32, u32), i32>;
/// Attention: heads, heads of keys, length, positions, and the addresses of query, keys, values and result.
type AttentionFunction = TypedFunc<(u32, u32, u32, u32, u32, u32, u32, u32), i32>;

/// A pack that runs.
pub struct Pack {
    manifest: Manifest,
    sandbox: Sandbox,
    reserve: TypedFunc<u32, u32>,
    embed: Option<RowFunction>,
    quantize: Option<RowFunction>,
    matmul: Option<MatmulFunctions>,
    attention: Option<AttentionFunction>,
}

/// Functions of matrices.
struct MatmulFunctions {
    /// Type, rows, columns and address give a matrix's number.
    load: RowFunction,
    /// A matrix's number, rows, and the addresses of inputs and results.
    matmul: TypedFunc<(i32, u32, u32, u32), i32>,
    unload: TypedFunc<i32, i32>,
}

/// A matrix in a pack's memory.
#[derive(Debug)]
pub struct PackMatrix {
    number: i32,
    shape: MatrixShape,
}

/// Addresses in a module's memory.
struct Placed<const N: usize> {
    inputs: [u32; N],
    out: u32,
}

impl Pack {
    /// Starts a pack's module and looks for the functions that its manifest names.
    ///
    /// # Errors
    /// With kind `Sandbox` for a module that cannot run here, or lacks a function.
    pub(crate) fn start(manifest: Manifest, module: &Compiled) -> Result<Pack, PackError> {
        let mut sandbox = Sandbox::start(module)?;
        let version = sandbox.function::<(), i32>("abi")?;
        let version = sandbox.call(&version, ())?;
        if version != INTERFACE {
            let line = format!("the module has interface {version}, and this program has {INTERFACE}");
            return Err(PackError::new(PackErrorKind::Sandbox, line));
        }
        let reserve = sandbox.function("reserve")?;
        let has = |op| manifest.kernels.contains_key(&op);
        let embed = has(Op::Embed).then(|| sandbox.function("embed")).transpose()?;
        let quantize = has(Op::Quantize).then(|| sandbox.function("quantize")).transpose()?;
        let attention = has(Op::Attention).then(|| sandbox.function("attention")).transpose()?;
        let matmul = match has(Op::Matmul) {
            true => Some(MatmulFunctions {
                load: sandbox.function("load")?,
                matmul: sandbox.function("matmul")?,
                unload: sandbox.function("unload")?,
            }),
            false => None,
        };
        Ok(Pack { manifest, sandbox, reserve, embed, quantize, matmul, attention })
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Writes a row of quantised values as floats. Shapes: `row`: whole blocks of `ty`; `out`: `[n]`.
    ///
    /// # Errors
    /// With kind `Unknown` for a type that the pack does not name, with `Sandbox` if the module fails.
    pub fn embed(&mut self, ty: GgmlType, row: &[u8], out: &mut [f32]) -> Result<(), PackError> {
        let n = length(out.len())?;
        let function = self.embed.clone().filter(|_| self.manifest.has(Op::Embed, Some(ty)));
        let function = function.ok_or_else(|| lacks(Op::Embed, ty))?;
        let at = self.place([row], size_of_val(out))?;
        let status = self.sandbox.call(&function, (ty.id(), n, at.inputs[0], at.out))?;
        self.finish(Op::Embed, status, at.out, bytemuck::cast_slice_mut(out))
    }

    /// Quantises a row without importance weights. Shapes: `row`: `[n]`, whole blocks; `out`: `ty.row_bytes(n)`.
    ///
    /// # Errors
    /// As [`Pack::embed`].
    pub fn quantize(&mut self, ty: GgmlType, row: &[f32], out: &mut [u8]) -> Result<(), PackError> {
        let n = length(row.len())?;
        let function = self.quantize.clone().filter(|_| self.manifest.has(Op::Quantize, Some(ty)));
        let function = function.ok_or_else(|| lacks(Op::Quantize, ty))?;
        let at = self.place([bytemuck::cast_slice(row)], out.len())?;
        let status = self.sandbox.call(&function, (ty.id(), n, at.inputs[0], at.out))?;
        self.finish(Op::Quantize, status, at.out, out)
    }

    /// Copies a matrix into the pack's memory. Shapes: `weights`: `shape.n_out` rows of whole blocks.
    ///
    /// # Errors
    /// As [`Pack::embed`].
    pub fn load(&mut self, ty: GgmlType, shape: MatrixShape, weights: &[u8]) -> Result<PackMatrix, PackError> {
        let (n_out, n_in) = (length(shape.n_out)?, length(shape.n_in)?);
        let functions = self.matmul.as_ref().filter(|_| self.manifest.has(Op::Matmul, Some(ty)));
        let load = functions.ok_or_else(|| lacks(Op::Matmul, ty))?.load.clone();
        let at = self.place([weights], 0)?;
        let number = self.sandbox.call(&load, (ty.id(), n_out, n_in, at.inputs[0]))?;
        match number >= 0 {
            true => Ok(PackMatrix { number, shape }),
            false => Err(refuses(Op::Matmul)),
        }
    }

    /// Multiplies `n_rows` rows by a matrix. Shapes: `x`: `[n_rows, n_in]`; `out`: `[n_rows, n_out]`.
    ///
    /// # Errors
    /// As [`Pack::embed`]; with kind `Invalid` for other lengths.
    pub fn matmul(&mut self, matrix: &PackMatrix, x: &[f32], n_rows: usize, out: &mut [f32]) -> Result<(), PackError> {
        let MatrixShape { n_out, n_in } = matrix.shape;
        if (Some(x.len()), Some(out.len())) != (n_rows.checked_mul(n_in), n_rows.checked_mul(n_out)) {
            let line =
                format!("{n_rows} rows of {n_in} values and {n_out} products, not {} and {}", x.len(), out.len());
            return Err(PackError::new(PackErrorKind::Invalid, line));
        }
        let function = self.functions()?.matmul.clone();
        let at = self.place([bytemuck::cast_slice(x)], size_of_val(out))?;
        let status = self.sandbox.call(&function, (matrix.number, length(n_rows)?, at.inputs[0], at.out))?;
        self.finish(Op::Matmul, status, at.out, bytemuck::cast_slice_mut(out))
    }

    /// Forgets a matrix.
    ///
    /// # Errors
    /// With kind `Sandbox` if the module fails.
    pub fn unload(&mut self, matrix: PackMatrix) -> Result<(), PackError> {
        let function = self.functions()?.unload.clone();
        match self.sandbox.call(&function, matrix.number)? {
            0 => Ok(()),
            _ => Err(refuses(Op::Matmul)),
        }
    }

    /// Attends with one query. Shapes: `out`: `[n_heads, dim]`.
    ///
    /// # Errors
    /// As [`Pack::embed`]; with kind `Invalid` for a shape that is none.
    pub fn attention(
        &mut self,
        shape: AttentionShape,
        inputs: AttentionInputs<'_>,
        out: &mut [f32],
    ) -> Result<(), PackError> {
        let AttentionInputs { q, k, v } = inputs;
        let (n_keys, n_query) = (shape.n_keys(), shape.n_query());
        if [Some(k.len()), Some(v.len())] != [n_keys; 2] || [Some(q.len()), Some(out.len())] != [n_query; 2] {
            return Err(PackError::new(PackErrorKind::Invalid, format_args!("inputs that do not fit {shape:?}")));
        }
        let none = || PackError::new(PackErrorKind::Unknown, "the pack has no attention");
        let function = self.attention.clone().ok_or_else(none)?;
        let at = self.place([q, k, v].map(bytemuck::cast_slice), size_of_val(out))?;
        let [n_heads, n_kv_heads, dim, n_kv] =
            [shape.n_heads, shape.n_kv_heads, shape.dim, shape.n_kv].map(|n| n as u32);
        let [q, k, v] = at.inputs;
        let status = self.sandbox.call(&function, (n_heads, n_kv_heads, dim, n_kv, q, k, v, at.out))?;
        self.finish(Op::Attention, status, at.out, bytemuck::cast_slice_mut(out))
    }

    fn functions(&self) -> Result<&MatmulFunctions, PackError> {
        self.matmul.as_ref().ok_or_else(|| PackError::new(PackErrorKind::Unknown, "the pack has no matmul"))
    }

    /// Writes inputs behind each other into room that the module reserves, with room for a result.
    fn place<const N: usize>(&mut self, inputs: [&[u8]; N], n_out: usize) -> Result<Placed<N>, PackError> {
        let total = inputs.iter().map(|bytes| bytes.len().next_multiple_of(ALIGN)).sum::<usize>() + n_out;
        let mut at = self.sandbox.call(&self.reserve.clone(), length(total)?)?;
        let mut addresses = [0; N];
        for (address, bytes) in addresses.iter_mut().zip(inputs) {
            self.sandbox.write(at, bytes)?;
            *address = at;
            at = at.saturating_add(bytes.len().next_multiple_of(ALIGN) as u32);
        }
        Ok(Placed { inputs: addresses, out: at })
    }

    /// Reads a kernel's result.
    fn finish(&self, op: Op, status: i32, address: u32, out: &mut [u8]) -> Result<(), PackError> {
        match status {
            0 => self.sandbox.read(address, out),
            _ => Err(refuses(op)),
        }
    }
}

impl fmt::Debug for Pack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pack").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}

/// Returns a length as the module has it.
fn length(n: usize) -> Result<u32, PackError> {
    u32::try_from(n)
        .map_err(|_| PackError::new(PackErrorKind::Invalid, format_args!("{n} is more than a module has room for")))
}

fn lacks(op: Op, ty: GgmlType) -> PackError {
    PackError::new(PackErrorKind::Unknown, format_args!("the pack has no {} of {ty}", op.name()))
}

fn refuses(op: Op) -> PackError {
    PackError::new(
        PackErrorKind::Sandbox,
        format_args!("{} of the pack does not compute what its manifest says", op.name()),
    )
}
