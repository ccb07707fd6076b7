//! Policies: how something is to be done, who says so, how sure that is and how long it holds.
//!
//! A [`Policy`] belongs to a kind, a context (the workload it is for; empty is any) and a tenant (or all). Its value is JSON
//! of whoever uses it. What counts is what [`PolicyStore::best`] finds: an operator's word over what was learned, what was
//! learned over a default; among those a tenant's own over everybody's, the context's own over any context's. Of the same
//! place and source the newest counts, those before are history. What has expired, or is not sure enough, does not count.
//!
//! ```
//! use ruvllm_sona::policy::{NewPolicy, PolicyKind, PolicyStore, Source, StoredPolicies, Wanted};
//! use ruvllm_sona::store::{self, OpenOptions};
//!
//! # let folder = tempfile::tempdir()?;
//! let store = store::open(&folder.path().join("sona.redb"), &OpenOptions::default())?;
//! let policies = StoredPolicies::open(store, Default::default())?;
//! let learned = NewPolicy::new(PolicyKind::Speculation, "alone", &24)?.learned(0.9);
//! policies.put(learned, 1_000)?;
//! let wanted = Wanted::new(PolicyKind::Speculation, "alone");
//! assert_eq!(policies.best(&wanted, 2_000).expect("it was learned").read::<u32>()?, 24);
//!
//! // The operator knows better, for an hour.
//! let fixed = NewPolicy::new(PolicyKind::Speculation, "", &8)?.by_operator().until(3_600_000);
//! policies.put(fixed, 2_000)?;
//! assert_eq!(policies.best(&wanted, 3_000).expect("said").read::<u32>()?, 8);
//! assert_eq!(policies.best(&wanted, 3_700_000).expect("learned").source, Source::Learned);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bandit;
mod stored;
#[cfg(test)]
mod tests;

use std::ops::Deref;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::codec::{Reader, Writer};
use crate::error::{SonaError, SonaErrorKind, invalid, limit};

pub use bandit::{BanditOptions, SafeBandit};
pub use stored::{PolicyLimits, StoredPolicies};

/// Kind of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum PolicyKind {
    /// How keys and values are kept.
    Kv,
    /// How models are chosen.
    Router,
    /// How what was learned before is held.
    Ewc,
    /// Which patterns are used, and how.
    Pattern,
    /// Whether tokens are drafted, and how many.
    Speculation,
    /// How many tokens a step has.
    Batch,
}

impl PolicyKind {
    /// All kinds; their places are their numbers on disk.
    pub const ALL: [PolicyKind; 6] = [
        PolicyKind::Kv,
        PolicyKind::Router,
        PolicyKind::Ewc,
        PolicyKind::Pattern,
        PolicyKind::Speculation,
        PolicyKind::Batch,
    ];

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyKind::Kv => "kv",
            PolicyKind::Router => "router",
            PolicyKind::Ewc => "ewc",
            PolicyKind::Pattern => "pattern",
            PolicyKind::Speculation => "speculation",
            PolicyKind::Batch => "batch",
        }
    }
}

impl std::str::FromStr for PolicyKind {
    type Err = String;

    fn from_str(name: &str) -> Result<PolicyKind, String> {
        PolicyKind::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| {
            let names = PolicyKind::ALL.map(PolicyKind::as_str).join(", ");
            format!("'{name}' is no kind of policy; use {names}")
        })
    }
}

/// Who says so. The later overrules the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// What is done where nobody says anything.
    Default,
    /// What was measured.
    Learned,
    /// Whoever runs the program.
    Operator,
}

impl Source {
    const ALL: [Source; 3] = [Source::Default, Source::Learned, Source::Operator];

    /// Returns its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Source::Default => "default",
            Source::Learned => "learned",
            Source::Operator => "operator",
        }
    }
}

/// A policy that is to be kept.
#[derive(Clone, Debug, PartialEq)]
pub struct NewPolicy {
    /// Its kind.
    pub kind: PolicyKind,
    /// The workload it is for; empty for any.
    pub context: String,
    /// Whose requests it is for; `None` for everybody's.
    pub tenant: Option<String>,
    /// Value of the policy.
    pub value: Value,
    /// Confidence in it, 0 to 1.
    pub confidence: f32,
    /// Who says so.
    pub source: Source,
    /// In Unix milliseconds: from then on it does not count.
    pub expires_ms: Option<u64>,
    /// Why, in one line.
    pub reason: String,
}

impl NewPolicy {
    /// A default of this value, for everybody and for ever.
    ///
    /// # Errors
    /// The value cannot be written as JSON.
    pub fn new(kind: PolicyKind, context: &str, value: &impl Serialize) -> Result<NewPolicy, SonaError> {
        let value = serde_json::to_value(value).map_err(|error| {
            SonaError::new(SonaErrorKind::Value, format!("a policy of kind {}: {error}", kind.as_str()))
        })?;
        let (context, tenant, expires_ms, reason) = (context.to_owned(), None, None, String::new());
        Ok(NewPolicy { kind, context, tenant, value, confidence: 1.0, source: Source::Default, expires_ms, reason })
    }

    /// It was measured, and is so sure (0 to 1).
    pub fn learned(self, confidence: f32) -> NewPolicy {
        NewPolicy { confidence, source: Source::Learned, ..self }
    }

    /// Whoever runs the program says so.
    pub fn by_operator(self) -> NewPolicy {
        NewPolicy { source: Source::Operator, ..self }
    }

    /// For this tenant's requests only.
    pub fn of_tenant(self, tenant: &str) -> NewPolicy {
        NewPolicy { tenant: Some(tenant.to_owned()), ..self }
    }

    /// Until this time, in Unix milliseconds.
    pub fn until(self, expires_ms: u64) -> NewPolicy {
        NewPolicy { expires_ms: Some(expires_ms), ..self }
    }

    /// Because of this.
    pub fn because(self, reason: impl Into<String>) -> NewPolicy {
        NewPolicy { reason: reason.into(), ..self }
    }

    fn check(&self, limits: &PolicyLimits) -> Result<(), SonaError> {
        let NewPolicy { context, value, confidence, reason, .. } = self;
        if !(0.0..=1.0).contains(confidence) {
            let line = format!("a policy's confidence is {confidence}; it lies between 0 and 1");
            return Err(SonaError::new(SonaErrorKind::Value, line));
        }
        let n_bytes = context.len() + reason.len() + value.to_string().len();
        if n_bytes > limits.n_bytes_max {
            return Err(limit(format!("a policy of {n_bytes} bytes; at most {}", limits.n_bytes_max)));
        }
        Ok(())
    }
}

/// A policy that is kept: what was put, which it derefs to, with its number and time.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its number: later ones are greater.
    pub version: u64,
    /// When it was made, in Unix milliseconds.
    pub created_ms: u64,
    /// The policy as it was put.
    pub put: NewPolicy,
}

impl Deref for Policy {
    type Target = NewPolicy;

    fn deref(&self) -> &NewPolicy {
        &self.put
    }
}

/// First byte of a policy's record.
const FORMAT: u8 = 1;

impl Policy {
    /// Reads its value.
    ///
    /// # Errors
    /// With kind `Value` if it is something else.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, SonaError> {
        T::deserialize(&self.value).map_err(|error| {
            let (version, kind) = (self.version, self.kind.as_str());
            SonaError::new(SonaErrorKind::Value, format!("policy {version} of kind {kind}: {error}"))
        })
    }

    /// Returns whether it counts at a time.
    pub fn holds(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at| now_ms < at)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let place = |kind: PolicyKind| PolicyKind::ALL.iter().position(|&other| other == kind).unwrap_or(0) as u8;
        let mut to = Writer::new();
        to.u8(FORMAT).u8(place(self.kind)).u8(self.source as u8).u64(self.created_ms);
        to.u64(self.expires_ms.unwrap_or(u64::MAX)).f32(self.confidence);
        to.text(&self.context).text(&self.reason).text(&self.value.to_string());
        to.take()
    }

    /// Reads what [`Policy::to_bytes`] made; number and tenant are those of its place.
    fn from_bytes(bytes: &[u8], version: u64, tenant: Option<String>) -> Result<Policy, SonaError> {
        let mut from = Reader::new(bytes, "policy");
        from.format(FORMAT..=FORMAT)?;
        let (kind, source) = (usize::from(from.u8()?), usize::from(from.u8()?));
        let kind = *PolicyKind::ALL.get(kind).ok_or_else(|| invalid(format!("policy: there is no kind {kind}")))?;
        let source = *Source::ALL.get(source).ok_or_else(|| invalid(format!("policy: there is no source {source}")))?;
        let (created_ms, expires_ms, confidence) = (from.u64()?, from.u64()?, from.f32()?);
        if !(0.0..=1.0).contains(&confidence) {
            return Err(invalid(format!("policy: its confidence is {confidence}")));
        }
        let (context, reason, value) = (from.text()?, from.text()?, from.text()?);
        from.end()?;
        let value = serde_json::from_str(&value).map_err(|error| invalid(format!("policy: its value: {error}")))?;
        let expires_ms = (expires_ms != u64::MAX).then_some(expires_ms);
        let put = NewPolicy { kind, context, tenant, value, confidence, source, expires_ms, reason };
        Ok(Policy { version, created_ms, put })
    }
}

/// Query of a policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted<'a> {
    /// About what.
    pub kind: PolicyKind,
    /// For which workload.
    pub context: &'a str,
    /// For whose requests; `None` finds only what is for everybody.
    pub tenant: Option<&'a str>,
    /// Least confidence of learned policies; those below are left out.
    pub confidence_min: f32,
}

impl<'a> Wanted<'a> {
    /// For everybody, however sure.
    pub fn new(kind: PolicyKind, context: &'a str) -> Wanted<'a> {
        Wanted { kind, context, tenant: None, confidence_min: 0.0 }
    }

    /// For this tenant's requests.
    pub fn of_tenant(self, tenant: &'a str) -> Wanted<'a> {
        Wanted { tenant: Some(tenant), ..self }
    }
}

/// Where policies are kept.
pub trait PolicyStore: Send + Sync {
    /// Keeps a policy and returns its number. An earlier one of the same kind, context, tenant and source stays as history,
    /// a bounded number of them.
    ///
    /// # Errors
    /// With kind `Value` for a confidence out of range, `Limit` if it is too large or there are too many; or if it
    /// cannot be written.
    fn put(&self, policy: NewPolicy, now_ms: u64) -> Result<u64, SonaError>;

    /// Returns the policy that counts: microseconds, whatever their number.
    fn best(&self, wanted: &Wanted<'_>, now_ms: u64) -> Option<Policy>;

    /// Returns all that are kept, by number.
    fn list(&self) -> Vec<Policy>;

    /// Takes a policy back: what it stood in the place of counts again. Returns whether there was one.
    ///
    /// # Errors
    /// If it cannot be written.
    fn retire(&self, version: u64) -> Result<bool, SonaError>;

    /// Removes those that have expired; returns how many.
    ///
    /// # Errors
    /// If it cannot be written.
    fn expire(&self, now_ms: u64) -> Result<usize, SonaError>;

    /// Removes those of a tenant, from the disk as well; returns how many.
    ///
    /// # Errors
    /// If it cannot be written.
    fn forget_tenant(&self, tenant: &str) -> Result<usize, SonaError>;
}
