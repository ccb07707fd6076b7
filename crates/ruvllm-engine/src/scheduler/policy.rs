//! Admission of requests, and the tokens of each that a step computes. Data in, data out: nothing here runs a model.
//!
//! - A request that decodes gets its rows in every step: one, or a few that are known beforehand.
//! - Prompts share the rest of the step, by effective priority and then the oldest first: long ones are cut, and next to
//!   decoding requests they get less, so that those go on evenly.
//! - Requests wait in the order of [`order`]: by effective priority, which is their priority and rises while they wait. Where
//!   it is equal, the tenants take turns, so that each gets as many tokens computed as the others
//!   ([`VirtualTokenCounters`]); a tenant's own come in order of arrival. A tenant with fewer places than its share comes
//!   before those that have theirs.
//! - Prompts of the tenant that had the fewest tokens are read first.
//! - A tenant that waits with fewer places than its share takes one of a tenant that has more ([`holder_to_preempt`]).
//! - A request is taken in, in that order, once all it may come to need (its whole context) fits beside what those that
//!   run may come to need. One that runs alone always is.
//! - A request whose beginning somebody else is computing waits for it and lets others pass.
//! - Requests of [`IDLE_PRIORITY`] are there while nobody else is: the first other one has those that run preempted, and they wait
//!   until it is over.
//! - Where memory runs out, the request of the lowest priority is preempted, the youngest of those ([`victim`]).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// Priority of requests that are computed while there are no others.
pub const IDLE_PRIORITY: i8 = i8::MIN;

/// Waiting this long raises a request's effective priority by one.
const AGE_STEP: Duration = Duration::from_secs(5);

/// Limits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Tokens in all.
    pub step_tokens: usize,
    /// Tokens of prompts in a step in which others write answers.
    pub prefill_tokens: usize,
}

/// A request that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Running {
    pub id: u64,
    /// Tokens to compute before its next one can be chosen.
    pub n_left: usize,
    /// Number of them that every step computes, because they belong to its answer; 0 while it reads its prompt.
    pub n_answer: usize,
    /// Bytes of KV cache that it may still come to need.
    pub growth_bytes: usize,
    pub effective_priority: i32,
    /// Tokens that its tenant had computed.
    pub n_served: u64,
}

/// A request in the queue, as far as its place there goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queued {
    pub id: u64,
    pub tenant: u64,
    pub effective_priority: i32,
    /// Tokens that it is likely to have computed.
    pub n_tokens: u64,
    /// It ran before and was preempted for want of memory.
    pub was_running: bool,
}

/// A request that runs, as far as others may have its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub id: u64,
    pub tenant: u64,
    pub priority: i32,
    /// Tokens that it got computed since it was taken in.
    pub n_turn: usize,
    /// It waits for its reader.
    pub is_unread: bool,
}

/// Who would have a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub tenant: u64,
    pub effective_priority: i32,
}

/// Tokens after which a request gives its place to a tenant that has none, where each has one at most.
pub(super) const TURN_TOKENS: usize = 256;

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub id: u64,
    pub n_left: usize,
    /// Bytes that it may come to need, but for what is shared with those that run.
    pub need_bytes: usize,
    pub admission: Admission,
    pub effective_priority: i32,
    /// Tokens that its tenant had computed.
    pub n_served: u64,
}

/// Whether a waiting request can be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Once there is capacity.
    Ready,
    /// Not yet; younger ones may pass.
    Deferred,
    /// Not yet, and nobody passes.
    Blocked,
}

/// What a step does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Requests to take in, in order.
    pub admit: Vec<u64>,
    /// Requests and how many tokens of them to compute, by age.
    pub rows: Vec<(u64, usize)>,
}

/// What there is to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    /// Bytes of the KV cache that nobody holds, or the prefix cache alone.
    pub free_bytes: usize,
    /// Sequences that can be opened.
    pub free_seqs: usize,
}

/// Returns the effective priority of a request: its priority, and one more for every [`AGE_STEP`] since it came, up to the
/// highest priority of all requests (or its own).
pub(super) fn effective_priority(priority: i32, waited: Duration, highest: i32) -> i32 {
    let steps = waited.as_millis() / AGE_STEP.as_millis();
    let aged = priority.saturating_add(i32::try_from(steps).unwrap_or(i32::MAX));
    aged.min(highest.max(priority))
}

/// How many tokens were computed for whom: who had less comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VirtualTokenCounters {
    n_tokens: BTreeMap<u64, u64>,
}

impl VirtualTokenCounters {
    /// Takes note that a tenant has a request again. What it did not use while it had none is not made up for: it
    /// stands where the least served of `active` does, or later (Sheng 2024, arXiv:2401.00588, alg. 2). `active` are the
    /// tenants of all requests but this one.
    pub(super) fn join(&mut self, tenant: u64, active: impl Iterator<Item = u64> + Clone) {
        if active.clone().any(|other| other == tenant) {
            return;
        }
        let least = active.clone().map(|other| self.served(other)).min();
        let own = self.served(tenant).max(least.unwrap_or(0));
        if least.is_none() {
            // Nobody is there to be fair to: what was is forgotten, and the list stays short.
            self.n_tokens.clear();
        }
        self.n_tokens.insert(tenant, if least.is_none() { 0 } else { own });
    }

    /// Takes note of computed tokens.
    pub(super) fn charge(&mut self, tenant: u64, n_tokens: u64) {
        *self.n_tokens.entry(tenant).or_default() += n_tokens;
    }

    /// Returns how many tokens were computed for a tenant.
    pub(super) fn served(&self, tenant: u64) -> u64 {
        self.n_tokens.get(&tenant).copied().unwrap_or(0)
    }
}

/// How many places each tenant has, and how many it may have while others wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    n_held: BTreeMap<u64, usize>,
    n_fair: usize,
}

impl Shares {
    /// Divides `n_places` among the tenants of those that run and those that wait.
    pub(super) fn new(
        n_places: usize,
        running: impl Iterator<Item = u64>,
        waiting: impl Iterator<Item = u64>,
    ) -> Shares {
        let mut n_held: BTreeMap<u64, usize> = BTreeMap::new();
        running.for_each(|tenant| *n_held.entry(tenant).or_default() += 1);
        waiting.for_each(|tenant| *n_held.entry(tenant).or_default() += 0);
        let n_fair = (n_places / n_held.len().max(1)).max(1);
        Shares { n_held, n_fair }
    }

    /// Returns how many tenants there are.
    pub(super) fn n_tenants(&self) -> usize {
        self.n_held.len()
    }

    fn held(&self, tenant: u64) -> usize {
        self.n_held.get(&tenant).copied().unwrap_or(0)
    }
}

/// Returns which of `holders` gives its place to `claim`: one that waits for its reader, else one of the tenant that has
/// most, if that is more than its share; else, where the claim's tenant has none, the one whose turn is over. None does
/// for a tenant that has its share, and none that is more important.
pub(super) fn holder_to_preempt(holders: &[Holder], shares: &Shares, claim: Claim) -> Option<u64> {
    let rivals = || holders.iter().filter(|holder| holder.priority <= claim.effective_priority);
    let youngest = |some: &mut dyn Iterator<Item = &Holder>| some.map(|holder| holder.id).max();
    if let Some(id) = youngest(&mut rivals().filter(|holder| holder.is_unread)) {
        return Some(id);
    }
    let others = || rivals().filter(|holder| holder.tenant != claim.tenant);
    let n_held = shares.held(claim.tenant);
    if n_held >= shares.n_fair {
        return None;
    }
    let most = others().max_by_key(|holder| (shares.held(holder.tenant), holder.tenant))?;
    if shares.held(most.tenant) > shares.n_fair {
        return youngest(&mut others().filter(|holder| holder.tenant == most.tenant));
    }
    let is_over = |holder: &&Holder| n_held == 0 && holder.n_turn >= TURN_TOKENS;
    others().filter(is_over).max_by_key(|holder| (holder.n_turn, holder.id)).map(|holder| holder.id)
}

/// Returns the places of `queue` (sorted by age) in the order in which they are looked at. A tenant's requests lie on a
/// line, one behind the other, that starts at what the tenant had (start-time fair queueing, Goyal 1996).
pub(super) fn order(queue: &[Queued], counters: &VirtualTokenCounters, shares: &Shares) -> Vec<usize> {
    let mut lines: BTreeMap<(i32, u64), u64> = BTreeMap::new();
    let mut n_held = shares.n_held.clone();
    let has_share = |request: &Queued| {
        let n = n_held.entry(request.tenant).or_default();
        *n += 1;
        *n > shares.n_fair
    };
    let beyond: Vec<bool> = queue.iter().map(has_share).collect();
    let start = |request: &Queued| {
        let line = lines
            .entry((request.effective_priority, request.tenant))
            .or_insert_with(|| counters.served(request.tenant));
        let start = *line;
        *line += request.n_tokens;
        start
    };
    let starts: Vec<u64> = queue.iter().map(start).collect();
    let mut places: Vec<usize> = (0..queue.len()).collect();
    places.sort_by_key(|&i| {
        let request = &queue[i];
        (Reverse(request.effective_priority), beyond[i], !request.was_running, starts[i], request.id)
    });
    places
}

/// Returns who of `rivals` (priority and id of those that run) is preempted.
pub(super) fn victim(rivals: impl Iterator<Item = (i32, u64)>) -> Option<u64> {
    rivals.min_by_key(|&(priority, id)| (priority, Reverse(id))).map(|(_, id)| id)
}

/// Plans a step. `running` is sorted by age, `waiting` as [`order`] has it; of `waiting` no more is looked at than there
/// is room for.
pub(super) fn plan(
    limits: Limits,
    capacity: Capacity,
    running: &[Running],
    waiting: impl Iterator<Item = Waiting>,
) -> Plan {
    let (admit, mut all) = admit(capacity, running, waiting);
    all.extend_from_slice(running);
    all.sort_unstable_by_key(|request| request.id);
    let n_decode: usize = all.iter().map(|request| request.n_answer).sum();
    let share = if n_decode == 0 { limits.step_tokens } else { limits.prefill_tokens };
    // However many write, the first prompt goes on.
    let mut n_prefill = share.min(limits.step_tokens.saturating_sub(n_decode)).max(1);
    let (answers, mut prompts): (Vec<&Running>, Vec<&Running>) = all.iter().partition(|request| request.n_answer > 0);
    prompts.sort_by_key(|request| (Reverse(request.effective_priority), request.n_served));
    let mut rows: Vec<(u64, usize)> = answers.iter().map(|request| (request.id, request.n_answer)).collect();
    for request in prompts {
        let n = request.n_left.min(n_prefill);
        n_prefill -= n;
        if n > 0 {
            rows.push((request.id, n));
        }
    }
    rows.sort_unstable();
    Plan { admit, rows }
}

/// Returns who is taken in, by their ids and as those that run then.
fn admit(capacity: Capacity, running: &[Running], waiting: impl Iterator<Item = Waiting>) -> (Vec<u64>, Vec<Running>) {
    let promised: usize = running.iter().map(|request| request.growth_bytes).sum();
    let mut free_bytes = capacity.free_bytes.saturating_sub(promised);
    let (mut ids, mut admitted) = (Vec::new(), Vec::new());
    if capacity.free_seqs == 0 {
        return (ids, admitted);
    }
    for request in waiting {
        match request.admission {
            Admission::Ready => {}
            Admission::Deferred => continue,
            Admission::Blocked => break,
        }
        let is_alone = running.is_empty() && ids.is_empty();
        if request.need_bytes > free_bytes && !is_alone {
            break;
        }
        free_bytes = free_bytes.saturating_sub(request.need_bytes);
        ids.push(request.id);
        let Waiting { id, n_left, need_bytes, effective_priority, n_served, .. } = request;
        let n_answer = usize::from(n_left == 1);
        admitted.push(Running { id, n_left, n_answer, growth_bytes: need_bytes, effective_priority, n_served });
        if ids.len() == capacity.free_seqs {
            break;
        }
    }
    (ids, admitted)
}

#[cfg(test)]
mod tests;
