//! Who is taken in, and how many tokens of whom a step computes. Data in, data out: nothing here runs a model.
//!
//! - Whoever writes an answer gets its rows in every step: one, or a few that are known beforehand.
//! - Prompts share the rest of the step, the oldest first: long ones are cut, and beside answers they get less, so that
//!   those go on evenly.
//! - A request is taken in, in order of arrival, once all it may come to need (its whole context) fits beside what those
//!   that run may come to need. One that runs alone always is.
//! - A request whose beginning somebody else is computing waits for it and lets younger ones pass.

/// What a step may hold.
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
    /// Those of them that every step computes, because they belong to its answer; 0 while it reads its prompt.
    pub n_answer: usize,
    /// Bytes of keys and values that it may still come to need.
    pub growth_bytes: usize,
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub id: u64,
    pub n_left: usize,
    /// Bytes that it may come to need, but for what is shared with those that run.
    pub need_bytes: usize,
    pub standing: Standing,
}

/// Whether a waiting request can be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Once there is room.
    Ready,
    /// Not yet; younger ones may pass.
    Passed,
    /// Not yet, and nobody passes.
    Blocking,
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
pub(super) struct Room {
    /// Bytes for keys and values that nobody holds, or the prefix cache alone.
    pub free_bytes: usize,
    /// Sequences that can be opened.
    pub free_seqs: usize,
}

/// Plans a step. `running` and `waiting` are sorted by age, the oldest first; of `waiting` no more is looked at than
/// there is room for.
pub(super) fn plan(limits: Limits, room: Room, running: &[Running], waiting: impl Iterator<Item = Waiting>) -> Plan {
    let (admit, mut all) = admit(room, running, waiting);
    all.extend_from_slice(running);
    all.sort_unstable_by_key(|request| request.id);
    let n_decode: usize = all.iter().map(|request| request.n_answer).sum();
    let share = if n_decode == 0 { limits.step_tokens } else { limits.prefill_tokens };
    // However many write, the oldest prompt goes on.
    let mut n_prefill = share.min(limits.step_tokens.saturating_sub(n_decode)).max(1);
    let rows = all.iter().filter_map(|request| {
        let n = match request.n_answer {
            0 => request.n_left.min(n_prefill),
            n_answer => n_answer,
        };
        if request.n_answer == 0 {
            n_prefill -= n;
        }
        (n > 0).then_some((request.id, n))
    });
    Plan { admit, rows: rows.collect() }
}

/// Returns who is taken in, by their ids and as those that run then.
fn admit(room: Room, running: &[Running], waiting: impl Iterator<Item = Waiting>) -> (Vec<u64>, Vec<Running>) {
    let promised: usize = running.iter().map(|request| request.growth_bytes).sum();
    let mut free_bytes = room.free_bytes.saturating_sub(promised);
    let (mut ids, mut admitted) = (Vec::new(), Vec::new());
    if room.free_seqs == 0 {
        return (ids, admitted);
    }
    for request in waiting {
        match request.standing {
            Standing::Ready => {}
            Standing::Passed => continue,
            Standing::Blocking => break,
        }
        let is_alone = running.is_empty() && ids.is_empty();
        if request.need_bytes > free_bytes && !is_alone {
            break;
        }
        free_bytes = free_bytes.saturating_sub(request.need_bytes);
        ids.push(request.id);
        let (n_left, n_answer) = (request.n_left, usize::from(request.n_left == 1));
        admitted.push(Running { id: request.id, n_left, n_answer, growth_bytes: request.need_bytes });
        if ids.len() == room.free_seqs {
            break;
        }
    }
    (ids, admitted)
}

#[cfg(test)]
mod tests;
