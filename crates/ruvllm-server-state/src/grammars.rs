//! Compiled grammars of a model, kept for the requests of the same tenant.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use ruvllm_engine::{Grammar, GrammarSource};

/// Memory for the compiled grammars that a model keeps.
const KEPT_BYTES_MAX: usize = 128 << 20;
/// Memory for the grammars of all requests that wait or run.
pub const GRAMMAR_BYTES_MAX: usize = 512 << 20;

/// Compiled grammars of a model, each tenant's for itself, the one that was used last at the end.
#[derive(Debug, Default)]
pub struct Grammars(Mutex<VecDeque<Kept>>);

/// A grammar that is kept.
#[derive(Debug)]
struct Kept {
    tenant: u64,
    source: GrammarSource,
    grammar: Grammar,
}

impl Grammars {
    /// Returns a grammar of a tenant, if it is kept.
    pub fn find(&self, tenant: u64, source: &GrammarSource) -> Option<Grammar> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|known| known.tenant == tenant && known.source == *source)?;
        let found = kept.remove(at)?;
        let grammar = found.grammar.clone();
        kept.push_back(found);
        Some(grammar)
    }

    /// Keeps a grammar; what was used the longest ago goes, of the tenant beyond its half and of all beyond the whole.
    pub fn keep(&self, tenant: u64, source: GrammarSource, grammar: Grammar) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(Kept { tenant, source, grammar });
        let is_own = |kept: &Kept| kept.tenant == tenant;
        drop_beyond(&mut kept, if tenant == 0 { KEPT_BYTES_MAX } else { KEPT_BYTES_MAX / 2 }, is_own);
        drop_beyond(&mut kept, KEPT_BYTES_MAX, |_| true);
    }
}

/// Drops the oldest of those that `counts` until they take no more than `n_bytes_max`.
fn drop_beyond(kept: &mut VecDeque<Kept>, n_bytes_max: usize, counts: impl Fn(&Kept) -> bool) {
    let mut n_bytes: usize = kept.iter().filter(|kept| counts(kept)).map(|kept| kept.grammar.n_bytes()).sum();
    kept.retain(|kept| {
        let goes = n_bytes > n_bytes_max && counts(kept);
        n_bytes -= if goes { kept.grammar.n_bytes() } else { 0 };
        !goes
    });
}
