//! The key that opens an encrypted store, and what is done with it.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use crate::error::{StoreError, StoreErrorKind};

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// Bytes of the nonce that stands before what is sealed.
const NONCE_BYTES: usize = 24;

/// Bytes by which sealing lengthens: the nonce and the tag.
pub(crate) const SEAL_BYTES: usize = NONCE_BYTES + 16;

/// The 32 secret bytes that open a store. They do not encrypt its records but the store's own random key, so another
/// master key can be put in their place without writing the records anew.
///
/// It is a key, not a passphrase: make it of random bytes, for example `head -c 32 /dev/urandom > sona.key`.
pub struct MasterKey(Zeroizing<[u8; KEY_BYTES]>);

impl MasterKey {
    /// The key of these bytes.
    pub fn new(bytes: [u8; KEY_BYTES]) -> MasterKey {
        MasterKey(Zeroizing::new(bytes))
    }

    /// The key as a file or an environment variable has it: 32 bytes as they are, or 64 hexadecimal digits.
    ///
    /// # Errors
    /// With kind `Key` if it is neither; the line tells lengths, never contents.
    pub fn parse(text: &[u8]) -> Result<MasterKey, StoreError> {
        if let Ok(bytes) = <[u8; KEY_BYTES]>::try_from(text) {
            return Ok(MasterKey::new(bytes));
        }
        let trimmed = text.trim_ascii();
        let refused = || {
            let n = text.len();
            let message = format!("a key is 32 bytes or 64 hexadecimal digits, this has {n} bytes and is neither");
            StoreError::new(StoreErrorKind::Key, message)
        };
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        if trimmed.len() != 2 * KEY_BYTES {
            return Err(refused());
        }
        for (byte, digits) in bytes.iter_mut().zip(trimmed.as_chunks::<2>().0) {
            let digit = |d: u8| char::from(d).to_digit(16).map(|value| value as u8).ok_or_else(refused);
            *byte = digit(digits[0])? << 4 | digit(digits[1])?;
        }
        Ok(MasterKey(bytes))
    }

    pub(crate) fn cipher(&self) -> Cipher {
        Cipher::new(&self.0)
    }
}

impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterKey(…)")
    }
}

/// XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha-03) with a new random nonce for whatever is sealed. A nonce has 192 bits,
/// so that even after 2^64 records under one key two are equal with a probability of about 2^-65: no counter has to
/// survive a crash or to be shared.
pub(crate) struct Cipher(XChaCha20Poly1305);

impl Cipher {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Cipher {
        Cipher(XChaCha20Poly1305::new(key.into()))
    }

    /// Seals `plain` for the place that `aad` names: nonce, ciphertext, tag.
    pub(crate) fn seal(&self, plain: &[u8], aad: &[u8]) -> Result<Vec<u8>, StoreError> {
        let nonce: [u8; NONCE_BYTES] = random()?;
        let sealed = self.0.encrypt(&XNonce::from(nonce), Payload { msg: plain, aad });
        let sealed = sealed.map_err(|_| crate::error::limit(format!("{} bytes are too many to seal", plain.len())))?;
        Ok([&nonce[..], &sealed].concat())
    }

    /// Opens what [`Cipher::seal`] made; `None` if it is not that, or of another place or key.
    pub(crate) fn open(&self, sealed: &[u8], aad: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>()?;
        self.0.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad }).ok()
    }
}

/// Returns random bytes of the system.
///
/// # Errors
/// With kind `Io` if it gives none.
pub fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::new(StoreErrorKind::Io, format!("the system gives no random bytes: {error}")))?;
    Ok(bytes)
}
