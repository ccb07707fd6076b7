//! Encryption at rest, around any store.

use zeroize::Zeroizing;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::{Cipher, MasterKey, SEAL_BYTES, random};
use crate::{Durability, META, Removed, Retention, SCOPE_BYTES_MAX, Scan, Snapshot, Store, Table, Transaction, Visit};

/// Where the wrapped key lies in the inner store.
const WRAPPED: &[u8] = b"wrapped key";
/// Stands in every file that was written: its name is that of the crate which the store was part of.
const WRAP_AAD: &[u8] = b"ruvllm-sona store key 1";

/// Bytes of what stands for a scope.
const DIGEST_BYTES: usize = 16;

/// A store whose disk sees no content.
///
/// *Values* are sealed one by one with XChaCha20-Poly1305 under a random nonce each, bound to their place (table, scope,
/// key), so that no record can stand in for another. *Scopes* are names and are replaced by a keyed BLAKE3 digest; the
/// name itself is within each sealed value. *Keys*, which are numbers and times, stay as they are, and so does what a
/// size tells: whoever has the disk learns how many records there are, of which table, how long and when, and can put an
/// older state of the whole file back. The digests and seals hang on a random key of the store, which lies in it sealed
/// by the [`MasterKey`].
pub struct Sealed<S> {
    inner: S,
    keys: Keys,
}

struct Keys {
    cipher: Cipher,
    scopes: Zeroizing<[u8; 32]>,
}

impl<S: Store> Sealed<S> {
    /// Opens what `inner` holds with `key`, or starts an encrypted store in it if it is new.
    ///
    /// # Errors
    /// With kind `Key` if it was sealed with another key, or holds records and is not encrypted.
    pub fn open(inner: S, key: &MasterKey) -> Result<Sealed<S>, StoreError> {
        let data_key = match wrapped(&inner)? {
            Some(wrapped) => unwrap(&wrapped, key)?,
            None => {
                let mut is_new = true;
                inner.snapshot()?.scan(META, &Scan::all(b""), &mut |_, _| {
                    is_new = false;
                    Ok(false)
                })?;
                if !is_new {
                    let message = "the store is not encrypted: open it without a key, or start a new one with it";
                    return Err(StoreError::new(StoreErrorKind::Key, message));
                }
                let data_key = Zeroizing::new(random::<32>()?);
                wrap(&inner, &data_key, key)?;
                data_key
            }
        };
        let derive = |context: &str| blake3::derive_key(context, &data_key[..]);
        let cipher = Cipher::new(&Zeroizing::new(derive("ruvllm-sona store 2026 values")));
        let scopes = Zeroizing::new(derive("ruvllm-sona store 2026 scopes"));
        Ok(Sealed { inner, keys: Keys { cipher, scopes } })
    }

    /// Puts `new` in the place of the master key `old`; no record is written anew.
    ///
    /// # Errors
    /// With kind `Key` if `old` is not this store's.
    pub fn change_key(&self, old: &MasterKey, new: &MasterKey) -> Result<(), StoreError> {
        let wrapped = wrapped(&self.inner)?.ok_or_else(|| crate::error::invalid("the store has lost its key"))?;
        wrap(&self.inner, &*unwrap(&wrapped, old)?, new)
    }
}

/// Returns whether a store is encrypted.
pub(crate) fn is_sealed(inner: &dyn Store) -> Result<bool, StoreError> {
    Ok(wrapped(inner)?.is_some())
}

fn wrapped(inner: &dyn Store) -> Result<Option<Vec<u8>>, StoreError> {
    inner.snapshot()?.get(META, b"", WRAPPED)
}

fn wrap(inner: &dyn Store, data_key: &[u8; 32], key: &MasterKey) -> Result<(), StoreError> {
    let mut change = inner.begin(Durability::Durable)?;
    change.put(META, b"", WRAPPED, &key.cipher().seal(data_key, WRAP_AAD)?)?;
    change.commit()
}

fn unwrap(wrapped: &[u8], key: &MasterKey) -> Result<Zeroizing<[u8; 32]>, StoreError> {
    let opened = key.cipher().open(wrapped, WRAP_AAD).map(Zeroizing::new);
    let data_key = opened.and_then(|bytes| bytes.as_slice().try_into().ok());
    data_key.map(Zeroizing::new).ok_or_else(|| StoreError::new(StoreErrorKind::Key, "the key does not open this store"))
}

impl Keys {
    /// What stands for a scope of a table.
    fn scope(&self, table: Table, scope: &[u8]) -> [u8; DIGEST_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.scopes);
        hasher.update(&[table.name().len() as u8]).update(table.name().as_bytes()).update(scope);
        *hasher.finalize().as_bytes().first_chunk().expect("a digest has 32 bytes")
    }

    fn seal(&self, table: Table, scope: &[u8], digest: &[u8], key: &[u8], value: &[u8]) -> Result<Vec<u8>, StoreError> {
        let plain = Zeroizing::new([&[scope.len() as u8], scope, value].concat());
        self.cipher.seal(&plain, &place(table, digest, key))
    }

    /// Returns the scope and the value.
    fn open(&self, table: Table, digest: &[u8], key: &[u8], sealed: &[u8]) -> Result<(Vec<u8>, Vec<u8>), StoreError> {
        let refused = || crate::error::invalid(format!("{}: a record is not what was written there", table.name()));
        let plain = self.cipher.open(sealed, &place(table, digest, key)).ok_or_else(refused)?;
        let (n, rest) = plain.split_first().ok_or_else(refused)?;
        let (scope, value) = rest.split_at_checked(usize::from(*n)).ok_or_else(refused)?;
        Ok((scope.to_vec(), value.to_vec()))
    }

    fn get(&self, inner: &dyn Snapshot, table: Table, scope: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let digest = self.scope(table, scope);
        let sealed = inner.get(table, &digest, key)?;
        sealed.map(|sealed| Ok(self.open(table, &digest, key, &sealed)?.1)).transpose()
    }

    fn scan(
        &self,
        inner: &dyn Snapshot,
        table: Table,
        scan: &Scan<'_>,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let digest = self.scope(table, scan.scope);
        inner.scan(table, &Scan { scope: &digest, ..*scan }, &mut |key, sealed| {
            visit(key, &self.open(table, &digest, key, sealed)?.1)
        })
    }

    fn scopes(&self, inner: &dyn Snapshot, table: Table) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut scopes = vec![];
        for digest in inner.scopes(table)? {
            inner.scan(table, &Scan::all(&digest), &mut |key, sealed| {
                scopes.push(self.open(table, &digest, key, sealed)?.0);
                Ok(false)
            })?;
        }
        scopes.sort();
        Ok(scopes)
    }
}

/// What a sealed value is bound to.
fn place(table: Table, digest: &[u8], key: &[u8]) -> Vec<u8> {
    [&[table.name().len() as u8], table.name().as_bytes(), &[digest.len() as u8], digest, key].concat()
}

impl<S: Store> Store for Sealed<S> {
    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, StoreError> {
        Ok(Box::new(SealedSnapshot { inner: self.inner.snapshot()?, keys: &self.keys }))
    }

    fn begin(&self, durability: Durability) -> Result<Box<dyn Transaction + '_>, StoreError> {
        Ok(Box::new(SealedTransaction { inner: self.inner.begin(durability)?, keys: &self.keys }))
    }

    fn retain(&self, table: Table, rules: &Retention, now_ms: u64) -> Result<Removed, StoreError> {
        self.inner.retain(table, rules, now_ms)
    }

    fn n_bytes(&self) -> u64 {
        self.inner.n_bytes()
    }

    fn scrub(&self) -> Result<(), StoreError> {
        self.inner.scrub()
    }
}

struct SealedSnapshot<'a> {
    inner: Box<dyn Snapshot + 'a>,
    keys: &'a Keys,
}

impl Snapshot for SealedSnapshot<'_> {
    fn get(&self, table: Table, scope: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.keys.get(self.inner.as_ref(), table, scope, key)
    }

    fn scan(&self, table: Table, scan: &Scan<'_>, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.keys.scan(self.inner.as_ref(), table, scan, visit)
    }

    fn scopes(&self, table: Table) -> Result<Vec<Vec<u8>>, StoreError> {
        self.keys.scopes(self.inner.as_ref(), table)
    }
}

struct SealedTransaction<'a> {
    inner: Box<dyn Transaction + 'a>,
    keys: &'a Keys,
}

impl Snapshot for SealedTransaction<'_> {
    fn get(&self, table: Table, scope: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.keys.get(&*self.inner, table, scope, key)
    }

    fn scan(&self, table: Table, scan: &Scan<'_>, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        self.keys.scan(&*self.inner, table, scan, visit)
    }

    fn scopes(&self, table: Table) -> Result<Vec<Vec<u8>>, StoreError> {
        self.keys.scopes(&*self.inner, table)
    }
}

impl Transaction for SealedTransaction<'_> {
    fn put(&mut self, table: Table, scope: &[u8], key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        crate::check_names(table, scope, key)?;
        debug_assert!(scope.len() <= SCOPE_BYTES_MAX, "its length is written in one byte");
        let digest = self.keys.scope(table, scope);
        let sealed = self.keys.seal(table, scope, &digest, key, value)?;
        debug_assert_eq!(sealed.len(), SEAL_BYTES + 1 + scope.len() + value.len());
        self.inner.put(table, &digest, key, &sealed)
    }

    fn remove(&mut self, table: Table, scope: &[u8], key: &[u8]) -> Result<bool, StoreError> {
        self.inner.remove(table, &self.keys.scope(table, scope), key)
    }

    fn remove_scope(&mut self, table: Table, scope: &[u8]) -> Result<usize, StoreError> {
        self.inner.remove_scope(table, &self.keys.scope(table, scope))
    }

    fn commit(self: Box<Self>) -> Result<(), StoreError> {
        self.inner.commit()
    }
}
