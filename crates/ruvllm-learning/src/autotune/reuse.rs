//! What of prompts would still be cached if keys and values took fewer bytes.
//!
//! Where prompts that come again (documents that are asked about in turns, long conversations) need more memory than there is,
//! each evicts the next and all are computed again. No window of steps shows what fewer bytes are worth then: it shows when
//! later requests come. But it can be counted. The cache evicts what was read longest ago, so a piece of a prompt is found
//! if what was read since, and the piece, fit in memory (Mattson et al. 1970, "Evaluation techniques for storage
//! hierarchies"): for each way to keep keys and values, whether that one is used or not.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Tokens of a piece of a prompt.
const PIECE_TOKENS: usize = 128;
/// Pieces that are remembered: a million tokens.
const N_PIECES_MAX: usize = 8192;
/// The share of memory that prompts can have; answers and what is being computed need some too.
const SHARE: f64 = 0.9;
/// The share that what was counted keeps when a prompt comes.
const MEMORY: f64 = 0.95;
/// Prompts that must have been read again only for want of memory before that counts.
const N_PROMPTS_MIN: usize = 3;
/// Another way is taken where it saves such a share of the time, and left again where it saves less than the second.
const TAKE: f64 = 0.1;
const LEAVE: f64 = 0.03;

/// A long prompt.
pub(super) struct Prompt<'a> {
    pub tokens: &'a [u32],
    /// Whose it is, and with which adapters: others share nothing with it.
    pub owner: u64,
    /// Bytes that cached keys and values can have at present; 0 where nothing is kept of them.
    pub room_bytes: usize,
    /// Bytes of its own, by the way they are kept.
    pub bytes: &'a [usize],
}

/// Counts what each way to keep keys and values would find cached.
#[derive(Debug)]
pub(super) struct Reuse {
    /// Pieces by when they were read last, the latest last.
    seen: Vec<u64>,
    /// Tokens that each way would have found and the default would not, those long ago less.
    saved: Vec<f64>,
    /// Prompts of which each way would have found more.
    n_prompts: Vec<usize>,
    /// Seconds that requests took.
    seconds: f64,
    /// The most bytes that there were: what runs takes its room for a while only.
    room_bytes: usize,
    /// The way that is taken, and the share of the time that it saves.
    taken: Option<(usize, f64)>,
}

impl Reuse {
    pub(super) fn new(n_arms: usize) -> Reuse {
        let (saved, n_prompts) = (vec![0.0; n_arms], vec![0; n_arms]);
        Reuse { seen: Vec::new(), saved, n_prompts, seconds: 0.0, room_bytes: 0, taken: None }
    }

    /// Takes note of what steps of long prompts took.
    pub(super) fn spend(&mut self, seconds: f64) {
        self.seconds += seconds;
    }

    /// Takes note of a prompt; `row_seconds` is what a row of one takes, if that is known. Returns how many of its leading
    /// tokens were read before.
    pub(super) fn read(&mut self, prompt: &Prompt<'_>, row_seconds: Option<f64>) -> usize {
        let pieces = pieces(prompt);
        let n_since: Vec<usize> = pieces.iter().map_while(|piece| self.n_since(*piece)).collect();
        self.saved.iter_mut().for_each(|tokens| *tokens *= MEMORY);
        self.seconds *= MEMORY;
        self.room_bytes = self.room_bytes.max(prompt.room_bytes);
        let room_bytes = SHARE * self.room_bytes as f64;
        let found = |bytes: usize| {
            let piece_bytes = bytes as f64 * PIECE_TOKENS as f64 / prompt.tokens.len() as f64;
            let fits = |n_since: usize| (n_since + 1) as f64 * piece_bytes <= room_bytes;
            n_since.iter().take_while(|&&n_since| fits(n_since)).count() * PIECE_TOKENS
        };
        let by_default = found(prompt.bytes[0]);
        for (arm, &bytes) in prompt.bytes.iter().enumerate().skip(1) {
            let more = found(bytes).saturating_sub(by_default);
            self.saved[arm] += more as f64;
            self.n_prompts[arm] += usize::from(more > 0);
        }
        // What comes first is evicted last.
        self.seen.retain(|piece| !pieces.contains(piece));
        self.seen.extend(pieces.iter().rev());
        self.seen.drain(..self.seen.len().saturating_sub(N_PIECES_MAX));
        if let Some(row_seconds) = row_seconds {
            self.decide(row_seconds);
        }
        n_since.len() * PIECE_TOKENS
    }

    /// Returns the way that saves enough, and the share of the default's time that it does.
    pub(super) fn taken(&self) -> Option<(usize, f64)> {
        self.taken
    }

    /// Returns how many other pieces were read since this one was.
    fn n_since(&self, piece: u64) -> Option<usize> {
        self.seen.iter().rev().position(|other| *other == piece)
    }

    fn decide(&mut self, row_seconds: f64) {
        let now = self.taken.map(|(arm, _)| arm);
        // What requests would have taken by the default.
        let all = self.seconds + row_seconds * now.map_or(0.0, |arm| self.saved[arm]);
        let share = |arm: usize| if all > 0.0 { (row_seconds * self.saved[arm] / all).min(1.0) } else { 0.0 };
        let arms = (1..self.saved.len()).filter(|&arm| self.n_prompts[arm] >= N_PROMPTS_MIN);
        // Of those that find as much the first: it was named first.
        let best = arms.map(|arm| (arm, share(arm))).reduce(|a, b| if b.1 > a.1 { b } else { a });
        self.taken = best.filter(|&(arm, share)| share >= if now == Some(arm) { LEAVE } else { TAKE });
    }
}

/// Returns what names each whole piece of a prompt, with all before it.
fn pieces(prompt: &Prompt<'_>) -> Vec<u64> {
    let mut hasher = DefaultHasher::new();
    prompt.owner.hash(&mut hasher);
    let name = |piece: &[u32]| {
        piece.hash(&mut hasher);
        hasher.finish()
    };
    prompt.tokens.chunks_exact(PIECE_TOKENS).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks about documents of 3,000 tokens in turns, with memory for so many of them by the default; the other way takes 40 % of
    /// its bytes. A row takes 1 ms, an answer 1 s. Returns what is taken behind each.
    fn play(documents: &[u32], room: f64) -> Vec<Option<(usize, f64)>> {
        let mut reuse = Reuse::new(2);
        let one = |&document: &u32| {
            let tokens: Vec<u32> = (0..3000).map(|i| 10_000 * document + i).collect();
            let room_bytes = (room * 1000.0 / SHARE) as usize;
            let prompt = Prompt { tokens: &tokens, owner: 1, room_bytes, bytes: &[1000, 400] };
            let is_found = reuse.read(&prompt, Some(0.001)) > 0 && reuse.taken().is_some();
            reuse.spend(if is_found { 1.0 } else { 4.0 });
            reuse.taken()
        };
        documents.iter().map(one).collect()
    }

    #[test]
    fn fewer_bytes_are_taken_where_they_keep_prompts_that_come_again() {
        let in_turns: Vec<u32> = (0..20).map(|i| i % 4).collect();
        let taken = play(&in_turns, 2.5);
        // Four that are new, and three that would have been found.
        assert!(taken[..6].iter().all(Option::is_none), "{taken:?}");
        assert!(taken[6..].iter().all(|taken| matches!(taken, Some((1, share)) if *share > 0.3)), "{taken:?}");
        // There is room for all anyway, for none, and nothing comes again.
        assert!(play(&in_turns, 4.5).iter().all(Option::is_none));
        assert!(play(&in_turns, 1.0).iter().all(Option::is_none));
        assert!(play(&in_turns, 0.0).iter().all(Option::is_none));
        assert!(play(&(0..20).collect::<Vec<_>>(), 2.5).iter().all(Option::is_none));
    }

    #[test]
    fn it_is_left_when_they_come_no_more() {
        let documents: Vec<u32> = (0..20).map(|i| i % 4).chain(100..160).collect();
        let taken = play(&documents, 2.5);
        assert!(taken[19].is_some() && taken[79].is_none(), "{taken:?}");
    }

    #[test]
    fn what_was_read_before_is_told_and_only_to_its_owner() {
        let mut reuse = Reuse::new(2);
        let tokens: Vec<u32> = (0..1000).collect();
        let prompt = |owner| Prompt { tokens: &tokens, owner, room_bytes: 10_000, bytes: &[1000, 400] };
        assert_eq!(reuse.read(&prompt(1), None), 0);
        assert_eq!(reuse.read(&prompt(1), None), 896);
        assert_eq!(reuse.read(&prompt(2), None), 0);
    }
}
