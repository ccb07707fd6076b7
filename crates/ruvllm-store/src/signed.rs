//! Files from node to node, signed with Ed25519 (RFC 8032).
//!
//! A name of eight letters, what the file says, the sender's public key, and a signature of everything before it. Nothing behind the name
//! is looked at before the signature has been checked, and no file is that no trusted key has signed.

use std::fmt;

use crate::error::{StoreError, StoreErrorKind, invalid};

const KEY_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 64;

/// A node's secret to sign with.
pub struct SigningKey(ed25519_compact::KeyPair);

/// Public key of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; KEY_BYTES]);

impl SigningKey {
    /// A new key of random bytes.
    ///
    /// # Errors
    /// If the system gives none.
    pub fn generate() -> Result<SigningKey, StoreError> {
        Ok(SigningKey::from_seed(crate::random()?))
    }

    /// The key of 32 secret bytes.
    pub fn from_seed(seed: [u8; 32]) -> SigningKey {
        SigningKey(ed25519_compact::KeyPair::from_seed(ed25519_compact::Seed::new(seed)))
    }

    /// The secret bytes, to be kept.
    pub fn seed(&self) -> [u8; 32] {
        *self.0.sk.seed()
    }

    /// Returns the public key, which others need to trust it.
    pub fn public(&self) -> PublicKey {
        PublicKey(*self.0.pk)
    }
}

impl PublicKey {
    /// The key of 32 bytes.
    pub fn new(bytes: [u8; 32]) -> PublicKey {
        PublicKey(bytes)
    }

    /// The key that a text of 64 hexadecimal digits names.
    ///
    /// # Errors
    /// With kind `Key` if it is no such text.
    pub fn parse(text: &str) -> Result<PublicKey, StoreError> {
        let digit = |i: usize| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..KEY_BYTES).map(digit).collect();
        let is_hex = text.len() == 2 * KEY_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match bytes.and_then(|bytes| bytes.try_into().ok()).filter(|_| is_hex) {
            Some(bytes) => Ok(PublicKey(bytes)),
            None => Err(StoreError::new(StoreErrorKind::Key, "a public key has 64 hexadecimal digits")),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }
}

/// As 64 hexadecimal digits.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Returns `body`, which begins with its name, as a signed file.
pub fn seal(mut body: Vec<u8>, key: &SigningKey) -> Vec<u8> {
    body.extend_from_slice(&key.public().0);
    let signature = key.0.sk.sign(&body, None);
    body.extend_from_slice(&*signature);
    body
}

/// Kind of a signed file.
#[derive(Clone, Copy, Debug)]
pub struct FileKind<'a> {
    /// First bytes of the body.
    pub magic: &'a [u8; 8],
    /// Name of the contents, for messages.
    pub what: &'a str,
}

/// Returns the body of a signed file of a kind, and the key that has signed it.
///
/// # Errors
/// With kind `Key` if nobody trusted has signed it or it was changed since, `Invalid` if it is no such file.
pub fn open<'a>(
    file: &'a [u8],
    FileKind { magic, what }: FileKind<'_>,
    trusted: &[PublicKey],
) -> Result<(&'a [u8], PublicKey), StoreError> {
    let refused = |why: &str| StoreError::new(StoreErrorKind::Key, why);
    let none = || invalid(format!("this is no file of {what}"));
    let parts = file.split_last_chunk::<SIGNATURE_BYTES>().filter(|_| file.starts_with(magic));
    let (signed, signature) = parts.ok_or_else(none)?;
    let (body, key) = signed.split_last_chunk::<KEY_BYTES>().ok_or_else(none)?;
    let key = PublicKey(*key);
    if !trusted.contains(&key) {
        return Err(refused(&format!("the key {key} that signed the file is not trusted here")));
    }
    let signature = ed25519_compact::Signature::new(*signature);
    ed25519_compact::PublicKey::new(key.0)
        .verify(signed, &signature)
        .map_err(|_| refused("the signature does not fit the file: it was changed, or not signed with this key"))?;
    Ok((body, key))
}
