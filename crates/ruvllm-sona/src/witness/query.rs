//! Finding records.

use std::collections::HashMap;

use super::chain::{CONTENTS, event_of};
use super::record::Event;
use crate::error::{SonaError, invalid};
use crate::store::{Scan, Store, time_key, time_of};

/// Query of records; by default all, the newest thousand.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// From this time on, in Unix milliseconds.
    pub from_ms: u64,
    /// Before this time.
    pub to_ms: u64,
    /// Of this model only.
    pub model: Option<[u8; 32]>,
    /// Of this request only.
    pub request: Option<u64>,
    /// Served with a quality of at least this, as said last.
    pub quality_min: Option<f32>,
    /// Served with a quality of at most this, as said last.
    pub quality_max: Option<f32>,
    /// Failed (`true`) or not.
    pub has_failed: Option<bool>,
    /// Failed with a line that contains this.
    pub error: Option<String>,
    /// No more than so many, the newest.
    pub n_max: usize,
}

impl Default for Query {
    fn default() -> Query {
        let (from_ms, to_ms, n_max) = (0, u64::MAX, 1000);
        let (model, request, quality_min, quality_max, has_failed, error) = (None, None, None, None, None, None);
        Query { from_ms, to_ms, model, request, quality_min, quality_max, has_failed, error, n_max }
    }
}

/// A record that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Its number in the chain.
    pub seq: u64,
    /// When it was recorded.
    pub unix_ms: u64,
    /// Its event.
    pub event: Event,
    /// The quality of a served request as said last, in its record or in feedback since.
    pub quality: Option<f32>,
}

/// Returns a tenant's records that `query` means, newest first.
///
/// # Errors
/// If the store cannot be read.
pub fn search(store: &dyn Store, tenant: &str, query: &Query) -> Result<Vec<Recorded>, SonaError> {
    let mut found = vec![];
    // Feedback comes after what it is about, so going backwards it has been seen; it may be newer than `to_ms`.
    let mut said: HashMap<u64, f32> = HashMap::new();
    let from = time_key(query.from_ms, 0);
    let scan = Scan::all(tenant.as_bytes()).between(&from, None).newest_first();
    store.snapshot()?.scan(CONTENTS, &scan, &mut |key, value| {
        let ((unix_ms, seq), event) = (time_of(key), event_of(value)?);
        let quality = match &event {
            Event::Served(served) => said.get(&served.request).copied().or(served.quality),
            Event::Feedback { request, quality } => {
                said.entry(*request).or_insert(*quality);
                None
            }
            _ => None,
        };
        if unix_ms < query.to_ms && query.takes(&event, quality) {
            found.push(Recorded { seq, unix_ms, event, quality });
        }
        Ok(found.len() < query.n_max)
    })?;
    found.truncate(query.n_max);
    Ok(found)
}

/// Returns whose records there are, sorted; the empty name stands for what is nobody's.
///
/// # Errors
/// If the store cannot be read, or a name is not UTF-8.
pub fn tenants(store: &dyn Store) -> Result<Vec<String>, SonaError> {
    let scopes = store.snapshot()?.scopes(CONTENTS)?;
    let name = |scope| String::from_utf8(scope).map_err(|_| invalid("witness: a tenant's name is not UTF-8"));
    scopes.into_iter().map(name).collect()
}

impl Query {
    fn takes(&self, event: &Event, quality: Option<f32>) -> bool {
        let asks_of_served = self.model.is_some()
            || self.quality_min.is_some()
            || self.quality_max.is_some()
            || self.has_failed.is_some()
            || self.error.is_some();
        match event {
            Event::Served(served) => {
                let has_error =
                    |line: &String| served.error.as_ref().is_some_and(|error| error.contains(line.as_str()));
                self.request.is_none_or(|request| served.request == request)
                    && self.model.is_none_or(|model| served.model == model)
                    && self.quality_min.is_none_or(|least| quality.is_some_and(|quality| quality >= least))
                    && self.quality_max.is_none_or(|most| quality.is_some_and(|quality| quality <= most))
                    && self.has_failed.is_none_or(|failed| served.error.is_some() == failed)
                    && self.error.as_ref().is_none_or(has_error)
            }
            Event::Feedback { request, .. } => !asks_of_served && self.request.is_none_or(|wanted| wanted == *request),
            _ => !asks_of_served && self.request.is_none(),
        }
    }
}
