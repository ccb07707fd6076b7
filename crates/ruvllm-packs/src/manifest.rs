//! Contents of a pack: a manifest and a module, in one signed file.

use std::collections::BTreeMap;
use std::fmt;

use ruvllm_ggml::GgmlType;
use ruvllm_store::signed::{self, FileKind, PublicKey, SigningKey};
use serde::{Deserialize, Serialize};

use crate::error::{PackError, PackErrorKind};

/// Most bytes of a pack.
pub const PACK_BYTES_MAX: usize = 16 << 20;

/// First bytes of a pack.
const MAGIC: [u8; 8] = *b"RVPACK01";
/// Most bytes of a manifest.
const MANIFEST_BYTES_MAX: usize = 64 << 10;
/// Longest name of a pack.
const NAME_BYTES_MAX: usize = 64;

/// Description of a pack by its author.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Name: letters, digits, `-` and `_`.
    pub name: String,
    /// Version, for people.
    pub version: String,
    /// Number that rises with each release; a pack never takes the place of one with a larger number.
    pub epoch: u64,
    /// Types of each kernel. `attention` has none.
    pub kernels: BTreeMap<Op, Vec<TypeName>>,
}

/// A kernel of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// A quantised row becomes floats.
    Embed,
    /// A row of floats is quantised.
    Quantize,
    /// A quantised matrix times rows of floats.
    Matmul,
    /// One query over keys and values.
    Attention,
}

impl Op {
    /// Returns the name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Op::Embed => "embed",
            Op::Quantize => "quantize",
            Op::Matmul => "matmul",
            Op::Attention => "attention",
        }
    }
}

/// A kernel for one type; its text is `quantize Q4_K`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackKernel {
    /// The operation.
    pub op: Op,
    /// The type, where the operation has one.
    pub ty: Option<GgmlType>,
}

impl fmt::Display for PackKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.name())?;
        self.ty.iter().try_for_each(|ty| write!(f, " {}", ty.name()))
    }
}

/// A type by its name in manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TypeName(pub GgmlType);

impl TryFrom<String> for TypeName {
    type Error = String;

    fn try_from(name: String) -> Result<TypeName, String> {
        let found = GgmlType::ALL.iter().find(|ty| ty.name().eq_ignore_ascii_case(&name));
        found.map(|&ty| TypeName(ty)).ok_or_else(|| format!("there is no type '{}'", shown(&name)))
    }
}

impl From<TypeName> for String {
    fn from(ty: TypeName) -> String {
        ty.0.name().to_owned()
    }
}

impl Manifest {
    /// Reads a manifest in JSON.
    ///
    /// # Errors
    /// With kind `Invalid` for another form, a name that is none, or kernels that do not fit their types.
    pub fn parse(text: &[u8]) -> Result<Manifest, PackError> {
        let invalid =
            |why: &dyn fmt::Display| PackError::new(PackErrorKind::Invalid, format_args!("the manifest: {why}"));
        if text.len() > MANIFEST_BYTES_MAX {
            return Err(invalid(&format_args!("{} bytes, and {MANIFEST_BYTES_MAX} are the most", text.len())));
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(|error| invalid(&error))?;
        check_name(&manifest.name).map_err(|error| invalid(&error))?;
        if manifest.kernels.is_empty() {
            return Err(invalid(&"no kernels; name one of embed, quantize, matmul, attention"));
        }
        for (op, types) in &manifest.kernels {
            match (op, types.is_empty()) {
                (Op::Attention, false) => return Err(invalid(&"attention has no types; write []")),
                (Op::Attention, true) | (_, false) => {}
                (op, true) => return Err(invalid(&format_args!("{} names no types", op.name()))),
            }
        }
        Ok(manifest)
    }

    /// Returns all kernels, each with one of its types.
    pub fn each(&self) -> Vec<PackKernel> {
        let of_op = |(&op, types): (&Op, &Vec<TypeName>)| match op {
            Op::Attention => vec![PackKernel { op, ty: None }],
            _ => types.iter().map(|ty| PackKernel { op, ty: Some(ty.0) }).collect(),
        };
        self.kernels.iter().flat_map(of_op).collect()
    }

    /// Returns whether the pack has a kernel, for a type where kernels have one.
    pub fn has(&self, op: Op, ty: Option<GgmlType>) -> bool {
        let types = self.kernels.get(&op);
        types.is_some_and(|types| ty.is_none_or(|ty| types.contains(&TypeName(ty))))
    }
}

/// Checks a pack's name, which becomes part of a file's.
///
/// # Errors
/// The name is empty, too long, or has other letters.
pub(crate) fn check_name(name: &str) -> Result<(), PackError> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_letter) {
        true => Ok(()),
        false => Err(PackError::new(
            PackErrorKind::Invalid,
            format_args!(
                "'{}' is no name of a pack; names have 1 to {NAME_BYTES_MAX} letters, digits, - and _",
                shown(name)
            ),
        )),
    }
}

/// The start of a text of strangers, for messages.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_default).collect()
}

/// A pack's parts.
#[derive(Clone, Copy, Debug)]
pub struct PackFile<'a> {
    /// The manifest in JSON.
    pub manifest: &'a [u8],
    /// The module.
    pub module: &'a [u8],
}

impl<'a> PackFile<'a> {
    /// Returns a signed file of the parts.
    ///
    /// # Errors
    /// With kind `Invalid` if the manifest is none or the pack is too large.
    pub fn sign(&self, key: &SigningKey) -> Result<Vec<u8>, PackError> {
        Manifest::parse(self.manifest)?;
        let mut body = MAGIC.to_vec();
        body.extend_from_slice(&(self.manifest.len() as u32).to_le_bytes());
        body.extend_from_slice(self.manifest);
        body.extend_from_slice(self.module);
        let file = signed::seal(body, key);
        match file.len() <= PACK_BYTES_MAX {
            true => Ok(file),
            false => Err(too_large(file.len())),
        }
    }

    /// Returns the parts of a file that a trusted key has signed, and the key.
    ///
    /// # Errors
    /// With kind `Signature` if no trusted key has signed it or it was changed, with `Invalid` if it is no pack.
    pub fn open(file: &'a [u8], trusted: &[PublicKey]) -> Result<(PackFile<'a>, PublicKey), PackError> {
        if file.len() > PACK_BYTES_MAX {
            return Err(too_large(file.len()));
        }
        let (body, key) = signed::open(file, FileKind { magic: &MAGIC, what: "a kernel pack" }, trusted)?;
        let cut = || PackError::new(PackErrorKind::Invalid, "the pack is cut short");
        let (n, rest) = body[MAGIC.len()..].split_first_chunk::<4>().ok_or_else(cut)?;
        let (manifest, module) = rest.split_at_checked(u32::from_le_bytes(*n) as usize).ok_or_else(cut)?;
        Ok((PackFile { manifest, module }, key))
    }
}

pub(crate) fn too_large(n_bytes: usize) -> PackError {
    let line = format!("a pack of {n_bytes} bytes, and {PACK_BYTES_MAX} are the most");
    PackError::new(PackErrorKind::Invalid, line)
}
