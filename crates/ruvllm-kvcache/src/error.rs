//! The one error type of this crate: the cache is full, or its folder cannot be used.

use std::fmt;

/// Why the cache refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvError {
    kind: KvErrorKind,
    /// What to show, for kinds whose facts are texts.
    line: Option<Box<str>>,
}

/// The cases of [`KvError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvErrorKind {
    /// The pool has too few free blocks.
    PoolFull {
        /// Blocks the request needs on top of what it has.
        needed: usize,
        /// Blocks that are free.
        free: usize,
        /// Blocks of the pool.
        total: usize,
    },
    /// The sequence would outgrow the length it was made for.
    SequenceFull {
        /// Positions the sequence would have.
        needed: usize,
        /// Positions it can have.
        capacity: usize,
    },
    /// The sequences of a tenant would hold more than its quota.
    QuotaFull {
        /// Bytes they would hold.
        needed: usize,
        /// Bytes they may hold.
        quota: usize,
    },
    /// The system has not so much memory.
    NoMemory {
        /// Bytes that were asked for.
        needed: usize,
    },
    /// The name is none of a policy.
    UnknownPolicy,
    /// The store on disk cannot be used.
    Disk(DiskFault),
}

/// Why the store on disk cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskFault {
    /// A file could not be opened, read, written or removed.
    Io,
    /// Another process has it open.
    Locked,
    /// It has another format version.
    Version,
    /// It is of another model or other settings.
    Identity,
    /// A setting or a name cannot be.
    Invalid,
    /// What is to be stored is larger than the store allows.
    TooLarge,
    /// The store is closing.
    Closed,
}

impl KvError {
    pub(crate) fn new(kind: KvErrorKind) -> KvError {
        KvError { kind, line: None }
    }

    /// Makes the error of a cache of `needed` bytes, which the system does not have.
    pub fn no_memory(needed: usize) -> KvError {
        KvError::new(KvErrorKind::NoMemory { needed })
    }

    pub(crate) fn unknown_policy(name: &str) -> KvError {
        let line = format!("unknown kv policy '{name}'; choose one of {}", crate::KvPolicy::NAMES);
        KvError { kind: KvErrorKind::UnknownPolicy, line: Some(line.into()) }
    }

    /// Makes an error of the store on disk that is shown as `line`.
    #[cfg(feature = "disk")]
    pub(crate) fn disk(fault: DiskFault, line: String) -> KvError {
        KvError { kind: KvErrorKind::Disk(fault), line: Some(line.into()) }
    }

    /// Returns the case and its numbers.
    pub fn kind(&self) -> KvErrorKind {
        self.kind
    }
}

impl fmt::Display for KvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            KvErrorKind::PoolFull { needed, free, total } => write!(
                f,
                "kv cache is full: {needed} more blocks of 16 positions needed, {free} of {total} free; \
                 allow more memory for it (serve --kv-mib), shorten the prompt, or wait until others have ended"
            ),
            KvErrorKind::SequenceFull { needed, capacity } => {
                write!(f, "context is full: {needed} positions needed, {capacity} available; use a larger context")
            }
            KvErrorKind::QuotaFull { needed, quota } => write!(
                f,
                "the tenant's quota is full: {needed} bytes of kv cache needed, {quota} granted; \
                 end one of its sequences or raise the quota"
            ),
            KvErrorKind::UnknownPolicy => f.write_str(self.line.as_deref().unwrap_or("unknown kv policy")),
            KvErrorKind::Disk(_) => f.write_str(self.line.as_deref().unwrap_or("the store on disk cannot be used")),
            KvErrorKind::NoMemory { needed } => {
                let gib = needed as f64 / (1u64 << 30) as f64;
                write!(
                    f,
                    "the kv cache would take {gib:.1} GiB, more than there is; choose a smaller context, or less memory for it"
                )
            }
        }
    }
}

impl std::error::Error for KvError {}
