//! Branches of a draft, and the sequences that they are computed in.
//!
//! ```text
//! context … the │ cat sat on        the chain, on the request's own sequence
//!               └ dog               a branch: another first token, on a fork of it
//! ```
//! All of it is computed in one pass. A branch computes again what it shares with the chain from the last known token on:
//! rows of one pass do not see those of another sequence.

use crate::EngineError;
use crate::runner::ModelRunner;
use ruvllm_backend::{LogitRows, Segment, SeqId};

/// A way that leaves the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    /// Number of tokens of the chain that it shares.
    pub at: usize,
    /// Its own tokens; not empty.
    pub tokens: Vec<u32>,
}

impl Branch {
    /// Returns how many of `tokens` stand at the beginning of the way along `chain` and this branch.
    fn n_common(&self, chain: &[u32], tokens: &[u32]) -> usize {
        n_common(chain[..self.at].iter().chain(&self.tokens), tokens)
    }
}

fn n_common<'a>(path: impl Iterator<Item = &'a u32>, tokens: &[u32]) -> usize {
    path.zip(tokens).take_while(|(a, b)| a == b).count()
}

/// Returns the row of logits that follow `tokens`, the ones chosen so far, if they were drafted. The rows are one before the
/// chain and those behind its tokens, then those behind each branch's own tokens.
pub(crate) fn row_behind(chain: &[u32], branches: &[Branch], tokens: &[u32]) -> Option<usize> {
    let n = tokens.len();
    if n_common(chain.iter(), tokens) == n {
        return Some(n);
    }
    let mut first = 1 + chain.len();
    for branch in branches {
        if n > branch.at && branch.n_common(chain, tokens) == n {
            return Some(first + n - branch.at - 1);
        }
        first += branch.tokens.len();
    }
    None
}

/// Returns which path begins with most of `tokens`, and with how many: 0 is the chain, then come the branches.
pub(crate) fn longest_accepted(chain: &[u32], branches: &[Branch], tokens: &[u32]) -> (usize, usize) {
    let mut best = (0, n_common(chain.iter(), tokens));
    for (path, branch) in (1..).zip(branches) {
        let n = branch.n_common(chain, tokens);
        if n > best.1 {
            best = (path, n);
        }
    }
    best
}

/// The rows of a step that stay: those of the context and of the accepted draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// Path of the rows: 0 the chain's, then those of the branches.
    pub path: usize,
    /// Number of tokens of its sequence that are the context's.
    pub n_tokens: usize,
}

/// The sequences of a step's branches.
#[derive(Debug, Default)]
pub(crate) struct Forks(Vec<(SeqId, Vec<u32>, usize)>);

impl Forks {
    /// Opens a fork of `seq` for each branch, as long as there are sequences and memory, and returns how many there are.
    /// `chain` begins with the one token that is to be computed before draft tokens.
    pub(crate) fn open(&mut self, runner: &mut ModelRunner, seq: SeqId, chain: &[u32], branches: &[Branch]) -> usize {
        for Branch { at, tokens } in branches {
            let Ok(fork) = runner.fork(seq, runner.n_tokens(seq)) else { break };
            let path: Vec<u32> = [&chain[..=*at], tokens].concat();
            if runner.reserve(fork, path.len()).is_err() {
                runner.discard(fork);
                break;
            }
            self.0.push((fork, path, tokens.len()));
        }
        self.0.len()
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over their rows; those behind the chain want logits.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        self.0.iter().map(|(seq, tokens, n)| Segment { seq: *seq, tokens, logits: LogitRows::Tail(*n) })
    }

    /// Goes on with what was right: `seq` is the sequence that holds it from now on, with nothing else.
    ///
    /// # Errors
    /// As [`ModelRunner::rewind`].
    pub(crate) fn settle(
        &mut self,
        runner: &mut ModelRunner,
        seq: &mut SeqId,
        accepted: Accepted,
    ) -> Result<(), EngineError> {
        for (i, (fork, ..)) in self.0.drain(..).enumerate() {
            let lost = if i + 1 == accepted.path { std::mem::replace(seq, fork) } else { fork };
            runner.discard(lost);
        }
        runner.rewind(*seq, accepted.n_tokens)
    }

    /// Gives all of them up.
    pub(crate) fn close(&mut self, runner: &mut ModelRunner) {
        self.0.drain(..).for_each(|(fork, ..)| runner.discard(fork));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_along_the_chain_and_its_branches() {
        let chain = [1, 2, 3];
        let branches = [Branch { at: 0, tokens: vec![7, 8] }, Branch { at: 2, tokens: vec![9] }];
        let check = |tokens: &[u32], row, kept| {
            assert_eq!(
                (row_behind(&chain, &branches, tokens), longest_accepted(&chain, &branches, tokens)),
                (row, kept),
                "{tokens:?}"
            );
        };
        check(&[1], Some(1), (0, 1));
        check(&[1, 2, 3], Some(3), (0, 3));
        check(&[7], Some(4), (1, 1));
        check(&[7, 8], Some(5), (1, 2));
        check(&[1, 2, 9], Some(6), (2, 3));
        // What goes on behind all draft tokens, or leaves them, has no row.
        for (tokens, kept) in [(&[5][..], (0, 0)), (&[1, 7], (0, 1)), (&[7, 8, 1], (1, 2)), (&[1, 2, 3, 4], (0, 3))] {
            check(tokens, None, kept);
        }
    }
}
