//! The folder of packs: taking packs in, listing them, and starting them.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ruvllm_store::signed::PublicKey;

use crate::allow::{Allow, Allowed, InstalledPack, Revocation, TrustedKey, digest, write_whole};
use crate::bench::Timing;
use crate::check::{Finding, check};
use crate::error::{PackError, PackErrorKind};
use crate::manifest::{Manifest, PACK_BYTES_MAX, check_name, shown, too_large};
use crate::pack::Pack;
use crate::pool::PackPool;
use crate::sandbox::Compiled;

/// Name of the file with keys, revocations and packs.
const ALLOW_FILE: &str = "packs.toml";

/// The folder of packs.
#[derive(Debug)]
pub struct PackFolder {
    folder: PathBuf,
    allow: Allow,
}

/// A pack that was found to be signed, allowed and right.
#[derive(Debug)]
pub struct VerifiedPack {
    /// The manifest.
    pub manifest: Manifest,
    /// The key that signed it.
    pub key: PublicKey,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Comparison with native, a finding for each kernel.
    pub findings: Vec<Finding>,
    /// The pack, which runs.
    pub pack: Pack,
}

impl PackFolder {
    /// Opens a folder; one that is not there is empty and trusts nobody.
    ///
    /// # Errors
    /// With kind `Io` or `Invalid` if its file cannot be used.
    pub fn open(folder: &Path) -> Result<PackFolder, PackError> {
        Ok(PackFolder { folder: folder.to_owned(), allow: Allow::read(&folder.join(ALLOW_FILE))? })
    }

    /// Returns the packs.
    pub fn packs(&self) -> &[InstalledPack] {
        &self.allow.packs
    }

    /// Returns the trusted keys.
    pub fn keys(&self) -> &[TrustedKey] {
        &self.allow.trusted
    }

    /// Returns the revoked keys and packs.
    pub fn revocations(&self) -> &[Revocation] {
        &self.allow.revocations
    }

    /// Trusts a key, or changes the oldest epoch of one that is trusted.
    ///
    /// # Errors
    /// With kind `Signature` if the text is no key, with `Revoked` if it was revoked, with `Io`.
    pub fn trust(&mut self, key: TrustedKey) -> Result<(), PackError> {
        PublicKey::parse(&key.key)?;
        if self.allow.revocations.iter().any(|one| one.revoked.eq_ignore_ascii_case(&key.key)) {
            return Err(PackError::new(PackErrorKind::Revoked, "this key was revoked, and stays so"));
        }
        self.change(|allow| {
            allow.trusted.retain(|one| !one.key.eq_ignore_ascii_case(&key.key));
            allow.trusted.push(key);
        })
    }

    /// Revokes a key or a pack, by its public key or its SHA-256. Packs that it concerns do not start any more.
    ///
    /// # Errors
    /// With kind `Invalid` if the text is neither, with `Io`.
    pub fn revoke(&mut self, revocation: Revocation) -> Result<(), PackError> {
        if PublicKey::parse(&revocation.revoked).is_err() {
            let line = format!(
                "'{}' is neither a public key nor a SHA-256: both have 64 hexadecimal digits",
                shown(&revocation.revoked)
            );
            return Err(PackError::new(PackErrorKind::Invalid, line));
        }
        self.change(|allow| allow.revocations.push(revocation))
    }

    /// Verifies a pack: signature, revocations and epoch, then the module in its sandbox, then each kernel's results on random inputs.
    ///
    /// # Errors
    /// In this order, with the kind that says which of them failed.
    pub fn verify(&self, file: &[u8]) -> Result<VerifiedPack, PackError> {
        let Allowed { manifest, module, key, sha256 } = self.allow.open(file)?;
        let mut pack = Pack::start(manifest.clone(), &Compiled::new(module)?)?;
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| PackError::new(PackErrorKind::Io, error))?;
        let seed = u64::from_le_bytes(seed);
        let findings = check(&mut pack, seed).map_err(|error| error.with_seed(seed))?;
        Ok(VerifiedPack { manifest, key, sha256, findings, pack })
    }

    /// Verifies a pack and takes it into the folder, in the place of an older one of its name.
    ///
    /// # Errors
    /// As [`PackFolder::verify`], and with kind `Io`.
    pub fn add(&mut self, file: &[u8]) -> Result<VerifiedPack, PackError> {
        let verified = self.verify(file)?;
        let VerifiedPack { manifest, key, sha256, .. } = &verified;
        write_whole(&self.path_of(&manifest.name), file)?;
        let installed = InstalledPack {
            name: manifest.name.clone(),
            version: manifest.version.clone(),
            epoch: manifest.epoch,
            sha256: sha256.clone(),
            key: key.to_string(),
            speed: Default::default(),
        };
        self.change(|allow| {
            allow.epochs.insert(installed.name.clone(), installed.epoch);
            allow.packs.retain(|pack| pack.name != installed.name);
            allow.packs.push(installed);
        })?;
        Ok(verified)
    }

    /// Returns the file of a pack in the folder.
    ///
    /// # Errors
    /// With kind `Unknown` if there is none of this name, with `Invalid` if it is not the one that was taken in, with `Io`.
    pub fn file(&self, name: &str) -> Result<Vec<u8>, PackError> {
        let installed = self.installed(name)?;
        let file = read_pack(&self.path_of(&installed.name))?;
        match digest(&file) == installed.sha256 {
            true => Ok(file),
            false => {
                let line = format!("{name} was changed since it was added; add it again");
                Err(PackError::new(PackErrorKind::Invalid, line))
            }
        }
    }

    /// Starts a pack of the folder. Its results were compared when it was added; key, revocations and epoch are looked at again.
    ///
    /// # Errors
    /// As [`PackFolder::file`] and [`PackFolder::verify`].
    pub fn start(&self, name: &str) -> Result<Pack, PackError> {
        self.pool(name)?.take()
    }

    /// Compiles a pack of the folder, for several threads. Key, revocations and epoch are looked at as in [`PackFolder::start`].
    ///
    /// # Errors
    /// As [`PackFolder::start`].
    pub fn pool(&self, name: &str) -> Result<PackPool, PackError> {
        let file = self.file(name)?;
        let Allowed { manifest, module, .. } = self.allow.open(&file)?;
        Ok(PackPool::new(manifest, Compiled::new(module)?))
    }

    /// Keeps what a pack's kernels were measured to be.
    ///
    /// # Errors
    /// With kind `Unknown` or `Io`.
    pub fn set_speed(&mut self, name: &str, timings: &[Timing]) -> Result<(), PackError> {
        self.installed(name)?;
        let speed = timings.iter().map(|timing| (timing.kernel.clone(), timing.speed())).collect();
        self.change(|allow| {
            allow.packs.iter_mut().filter(|pack| pack.name == name).for_each(|pack| pack.speed = Clone::clone(&speed))
        })
    }

    /// Removes a pack. Its epoch is remembered: an older one is refused later, too.
    ///
    /// # Errors
    /// With kind `Unknown` or `Io`.
    pub fn remove(&mut self, name: &str) -> Result<(), PackError> {
        let path = self.path_of(&self.installed(name)?.name);
        self.change(|allow| allow.packs.retain(|pack| pack.name != name))?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(PackError::new(PackErrorKind::Io, format_args!("{}: {error}", path.display())))
            }
            _ => Ok(()),
        }
    }

    fn installed(&self, name: &str) -> Result<&InstalledPack, PackError> {
        check_name(name)?;
        let found = self.allow.packs.iter().find(|pack| pack.name == name);
        found.ok_or_else(|| {
            PackError::new(
                PackErrorKind::Unknown,
                format_args!("no pack '{}'; 'ruvllm packs list' names all", shown(name)),
            )
        })
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.pack"))
    }

    /// Changes what the folder's file has, in memory when it is on the disk.
    fn change(&mut self, change: impl FnOnce(&mut Allow)) -> Result<(), PackError> {
        let mut allow = self.allow.clone();
        change(&mut allow);
        allow.write(&self.folder.join(ALLOW_FILE))?;
        self.allow = allow;
        Ok(())
    }
}

/// Reads a pack's file.
///
/// # Errors
/// With kind `Io` if it cannot be read, with `Invalid` if it is too large.
pub fn read_pack(path: &Path) -> Result<Vec<u8>, PackError> {
    let at = |error: std::io::Error| PackError::new(PackErrorKind::Io, format_args!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    let most = PACK_BYTES_MAX as u64 + 1;
    fs::File::open(path).map_err(at)?.take(most).read_to_end(&mut bytes).map_err(at)?;
    match bytes.len() <= PACK_BYTES_MAX {
        true => Ok(bytes),
        false => Err(too_large(bytes.len())),
    }
}
