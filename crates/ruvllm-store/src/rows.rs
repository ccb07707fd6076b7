//! Records as rows of redb's tables: how keys lie there, and what is read of a table.

use std::ops::Bound;

use redb::{ReadableDatabase as _, ReadableTable, TableDefinition, TableError, TableHandle as _};

use crate::error::{StoreError, StoreErrorKind, invalid};
use crate::{Scan, Table, Visit};

pub(crate) type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// Where the store's size stands, so that opening need not count.
pub(crate) const SIZE: TableDefinition<'static, (), u64> = TableDefinition::new("size");

/// Bytes of keys and values, as they were counted last.
pub(crate) fn size(db: &redb::Database) -> Result<u64, StoreError> {
    let read = || -> Result<u64, redb::Error> {
        match db.begin_read()?.open_table(SIZE) {
            Ok(table) => Ok(table.get(())?.map_or(0, |n| n.value())),
            Err(TableError::TableDoesNotExist(_)) => Ok(0),
            Err(error) => Err(error.into()),
        }
    };
    read().map_err(db_error)
}

/// Copies all records of all tables.
pub(crate) fn copy(from: &redb::Database, to: &redb::Database) -> Result<(), redb::Error> {
    let (read, write) = (from.begin_read()?, to.begin_write()?);
    for table in read.list_tables()? {
        if table.name() == SIZE.name() {
            if let Some(n_bytes) = read.open_table(SIZE)?.get(())? {
                write.open_table(SIZE)?.insert((), n_bytes.value())?;
            }
            continue;
        }
        let definition: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new(table.name());
        let (old, mut new) = (read.open_table(definition)?, write.open_table(definition)?);
        for record in old.range::<&[u8]>(..)? {
            let (key, value) = record?;
            new.insert(key.value(), value.value())?;
        }
    }
    Ok(write.commit()?)
}

/// The line for what redb says.
pub(crate) fn db_error(error: impl Into<redb::Error>) -> StoreError {
    let error = error.into();
    let (kind, message) = match &error {
        redb::Error::DatabaseAlreadyOpen => {
            (StoreErrorKind::Io, "another process has the store open: stop it first".to_owned())
        }
        redb::Error::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => {
            (StoreErrorKind::Invalid, format!("this is no store: {io}"))
        }
        redb::Error::Io(io) if io.kind() == std::io::ErrorKind::UnexpectedEof => {
            (StoreErrorKind::Invalid, "the store is damaged: it is cut short".to_owned())
        }
        redb::Error::Io(io) => (StoreErrorKind::Io, io.to_string()),
        redb::Error::PreviousIo => {
            (StoreErrorKind::Io, "the store could not be written before; it is opened again within a second".to_owned())
        }
        redb::Error::Corrupted(why) => (StoreErrorKind::Invalid, format!("the store is damaged: {why}")),
        redb::Error::UpgradeRequired(version) => {
            (StoreErrorKind::Version, format!("the store's file has format {version}, which is too old"))
        }
        other => (StoreErrorKind::Io, other.to_string()),
    };
    StoreError::new(kind, message).with_source(error)
}

pub(crate) fn definition(table: Table) -> Definition {
    TableDefinition::new(table.name())
}

/// A record's key in the file: the scope with its length before it, then the key.
pub(crate) fn file_key(scope: &[u8], key: &[u8]) -> Vec<u8> {
    [&[scope.len() as u8], scope, key].concat()
}

/// The smallest key in the file behind everything that begins with `prefix`; `None` if there is nothing behind it.
pub(crate) fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let n = prefix.iter().rposition(|&byte| byte != u8::MAX)? + 1;
    let mut next = prefix[..n].to_vec();
    next[n - 1] += 1;
    Some(next)
}

/// The scope and the key of a key in the file.
pub(crate) fn split(file_key: &[u8]) -> Result<(&[u8], &[u8]), StoreError> {
    let parts = file_key.split_first().and_then(|(n, rest)| rest.split_at_checked(usize::from(*n)));
    parts.ok_or_else(|| invalid("a key is cut short"))
}

pub(crate) type Bytes = &'static [u8];

pub(crate) fn get(
    rows: &impl ReadableTable<Bytes, Bytes>,
    scope: &[u8],
    key: &[u8],
) -> Result<Option<Vec<u8>>, StoreError> {
    let found = rows.get(file_key(scope, key).as_slice()).map_err(db_error)?;
    Ok(found.map(|value| value.value().to_vec()))
}

pub(crate) fn scan(
    rows: &impl ReadableTable<Bytes, Bytes>,
    scan: &Scan<'_>,
    visit: &mut Visit<'_>,
) -> Result<(), StoreError> {
    let from = file_key(scan.scope, scan.from);
    let to = match scan.to {
        Some(to) => Some(file_key(scan.scope, to)),
        None => behind(&file_key(scan.scope, b"")),
    };
    if to.as_ref().is_some_and(|to| *to <= from) {
        return Ok(());
    }
    let end = to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut range = rows.range::<&[u8]>((Bound::Included(from.as_slice()), end)).map_err(db_error)?;
    loop {
        let next = if scan.newest_first { range.next_back() } else { range.next() };
        let Some(record) = next else { return Ok(()) };
        let (key, value) = record.map_err(db_error)?;
        if !visit(split(key.value())?.1, value.value())? {
            return Ok(());
        }
    }
}

pub(crate) fn scopes(rows: &impl ReadableTable<Bytes, Bytes>) -> Result<Vec<Vec<u8>>, StoreError> {
    let (mut scopes, mut from) = (vec![], vec![]);
    loop {
        let mut range = rows.range::<&[u8]>(from.as_slice()..).map_err(db_error)?;
        let Some(record) = range.next() else { break };
        let (key, _) = record.map_err(db_error)?;
        let scope = split(key.value())?.0.to_vec();
        let next = behind(&file_key(&scope, b""));
        scopes.push(scope);
        match next {
            Some(next) => from = next,
            None => break,
        }
    }
    scopes.sort();
    Ok(scopes)
}
