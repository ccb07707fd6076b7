//! Trust: keys, revocations, and the newest epoch of each pack, in one file of the packs' folder.

use std::collections::BTreeMap;
use std::path::Path;

use ruvllm_store::signed::PublicKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::{PackError, PackErrorKind};
use crate::manifest::{Manifest, PackFile, shown};

/// Most bytes of the file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A key whose packs are taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustedKey {
    /// Name of its owner, for people.
    pub name: String,
    /// The public key, 64 hexadecimal digits.
    pub key: String,
    /// Packs of an older epoch are refused.
    #[serde(default)]
    pub epoch: u64,
}

/// A key or a pack that is not taken any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    /// A public key, or the SHA-256 of a pack: 64 hexadecimal digits.
    pub revoked: String,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

/// A pack in the folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstalledPack {
    /// Its name.
    pub name: String,
    /// Its version, for people.
    pub version: String,
    /// Its epoch.
    pub epoch: u64,
    /// SHA-256 of the file.
    pub sha256: String,
    /// The key that signed it.
    pub key: String,
    /// Speed of each kernel when it was measured last, as a multiple of native's.
    #[serde(default)]
    pub speed: BTreeMap<String, f64>,
}

/// Content of the folder's file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Allow {
    #[serde(default)]
    pub(crate) trusted: Vec<TrustedKey>,
    #[serde(default)]
    pub(crate) revocations: Vec<Revocation>,
    #[serde(default)]
    pub(crate) packs: Vec<InstalledPack>,
    /// The largest epoch of each name that was ever taken.
    #[serde(default)]
    pub(crate) epochs: BTreeMap<String, u64>,
}

/// A pack that was signed by somebody trusted and is not revoked.
pub(crate) struct Allowed<'a> {
    pub(crate) manifest: Manifest,
    pub(crate) module: &'a [u8],
    pub(crate) key: PublicKey,
    pub(crate) sha256: String,
}

impl Allow {
    /// Reads the file; nothing is trusted where there is none.
    ///
    /// # Errors
    /// With kind `Io` or `Invalid` for a file that cannot be used.
    pub(crate) fn read(path: &Path) -> Result<Allow, PackError> {
        let at = |kind, why: &dyn std::fmt::Display| PackError::new(kind, format_args!("{}: {why}", path.display()));
        match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Allow::default()),
            Err(error) => return Err(at(PackErrorKind::Io, &error)),
            Ok(metadata) if metadata.len() > FILE_BYTES_MAX => {
                return Err(at(PackErrorKind::Invalid, &format_args!("more than {FILE_BYTES_MAX} bytes")));
            }
            Ok(_) => {}
        }
        let text = std::fs::read_to_string(path).map_err(|error| at(PackErrorKind::Io, &error))?;
        let allow: Allow = toml_edit::de::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
            at(PackErrorKind::Invalid, &format_args!("line {line}: {}", error.message().lines().next().unwrap_or("")))
        })?;
        for key in &allow.trusted {
            PublicKey::parse(&key.key).map_err(|error| at(PackErrorKind::Invalid, &error))?;
        }
        Ok(allow)
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// With kind `Io`.
    pub(crate) fn write(&self, path: &Path) -> Result<(), PackError> {
        let text = toml_edit::ser::to_string_pretty(self);
        let text = text.map_err(|error| PackError::new(PackErrorKind::Invalid, error))?;
        write_whole(path, text.as_bytes())
    }

    /// Opens a pack whose key is trusted, and which is neither revoked nor older than one before.
    ///
    /// # Errors
    /// With kind `Signature`, `Revoked`, `Epoch` or `Invalid`.
    pub(crate) fn open<'a>(&self, file: &'a [u8]) -> Result<Allowed<'a>, PackError> {
        let keys: Vec<PublicKey> =
            self.trusted.iter().map(|key| PublicKey::parse(&key.key)).collect::<Result<_, _>>()?;
        let (PackFile { manifest, module }, key) = PackFile::open(file, &keys)?;
        let sha256 = digest(file);
        for (what, digits) in [("the key", key.to_string()), ("the pack", sha256.clone())] {
            if let Some(revocation) = self.revocations.iter().find(|one| one.revoked.eq_ignore_ascii_case(&digits)) {
                let why = if revocation.reason.is_empty() { "no reason given" } else { &revocation.reason };
                return Err(PackError::new(PackErrorKind::Revoked, format_args!("{what} {digits} was revoked: {why}")));
            }
        }
        let manifest = Manifest::parse(manifest)?;
        let least =
            self.trusted.iter().filter(|one| one.key.eq_ignore_ascii_case(&key.to_string())).map(|one| one.epoch).max();
        let before = self.epochs.get(&manifest.name).copied();
        let least = least.max(before).unwrap_or(0);
        if manifest.epoch < least {
            let (name, epoch) = (shown(&manifest.name), manifest.epoch);
            let line = format!("{name} is of epoch {epoch}, and nothing older than epoch {least} is taken");
            return Err(PackError::new(PackErrorKind::Epoch, line));
        }
        Ok(Allowed { manifest, module, key, sha256 })
    }
}

/// Returns the SHA-256 of a file in hexadecimal digits.
pub(crate) fn digest(file: &[u8]) -> String {
    hex::encode(Sha256::digest(file))
}

/// Writes a file under its name when it is whole.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), PackError> {
    let written = || {
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        std::io::Write::write_all(&mut file, bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error).map(drop)
    };
    written()
        .map_err(|error: std::io::Error| PackError::new(PackErrorKind::Io, format_args!("{}: {error}", path.display())))
}
