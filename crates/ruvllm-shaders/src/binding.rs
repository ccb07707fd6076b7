//! Bindings of kernels: group 0 is a kernel's own and never changes after load, group 1 is the pass's and is shared.

/// A buffer that a kernel sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Name in the WGSL.
    pub name: &'static str,
    /// Type in the WGSL.
    pub ty: &'static str,
    /// Way in which the kernel uses it.
    pub access: Access,
}

/// Way in which a kernel uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A uniform buffer.
    Uniform,
    /// A storage buffer that is read.
    Read,
    /// A storage buffer that is written, and may be read.
    Write,
}

impl Binding {
    pub(crate) const fn read(name: &'static str, ty: &'static str) -> Binding {
        Binding { name, ty, access: Access::Read }
    }

    pub(crate) const fn write(name: &'static str, ty: &'static str) -> Binding {
        Binding { name, ty, access: Access::Write }
    }

    /// WGSL that declares it.
    pub(crate) fn wgsl(&self, group: u32, binding: usize) -> String {
        let space = match self.access {
            Access::Uniform => "uniform",
            Access::Read => "storage, read",
            Access::Write => "storage, read_write",
        };
        format!("@group({group}) @binding({binding}) var<{space}> {}: {};\n", self.name, self.ty)
    }
}

/// The first binding of every kernel's group 0: its record of parameters, a uniform buffer.
pub const PARAMS_BINDING: Binding = Binding { name: "params", ty: "Params", access: Access::Uniform };

/// The bindings of group 1, the same for every kernel. They are written before each pass:
///
/// - `pass_counts`: four numbers, of which a kernel's parameters name the one that is its rows. The first is the rows of the
///   pass, the second those whose logits are wanted; the others are the backend's, such as k of the largest values.
/// - `rows`: a [`RowRecord`](crate::RowRecord) for each row.
/// - `tables`: block tables, one after another.
pub const PASS_BINDINGS: [Binding; 3] = [
    Binding { name: "pass_counts", ty: "vec4<u32>", access: Access::Uniform },
    Binding::read("rows", "array<RowRecord>"),
    Binding::read("tables", "array<u32>"),
];

/// Metal's index of the first of [`PASS_BINDINGS`]. Those of group 0 have the number of their binding, so an encoder binds
/// the buffers of the pass once.
pub const METAL_PASS_INDEX: usize = 16;

/// Metal's index of a buffer that the translations name and never read (naga's lengths of buffers): anything of 64 bytes.
pub const METAL_SIZES_INDEX: usize = 30;
