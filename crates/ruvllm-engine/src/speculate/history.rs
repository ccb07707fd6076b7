//! Draft tokens from what a tenant was served before: what followed the last tokens when they stood in its earlier prompts
//! and answers (suffix decoding, Oliaro et al. 2024, arXiv:2411.04975).
//!
//! ```text
//! history … let mut sum = 0 ; for x in … │ … let mut sum = 0.0 ; for v in …      earlier prompts and answers of one tenant
//! context … let mut sum = 0                                                     matches both: draft ; (2 of 3) for (…) …
//! ```
//! The longest suffix of the context that the history holds is looked up, and of its places the most frequent next token is
//! drafted, then the next one of the places that are left, as long as enough of them agree.
//!
//! The paper keeps a suffix tree, some 50 bytes a token. Here places of equal runs of [`RUN`] tokens are chained as LZ77
//! coders chain them: 12 to 16 bytes a token, and what is old falls out by chaining the newer half anew. A request looks at
//! [`PLACES`] places at most.
//!
//! Tenants do not meet: each has tables of its own, and is found by nothing but its number.

use std::collections::HashMap;

/// Tokens that must be the same before anything is drafted.
const RUN: usize = 4;

/// Longest match that is told from a longer one.
const MATCH_MAX: usize = 64;

/// Places that are looked at for one draft, the newest first.
const PLACES: usize = 64;

/// A draft ends before the token that fewer of the matches than this agree on.
const AGREEMENT_MIN: f32 = 0.25;

/// Tokens of a text that are left out if they stand in the history as they are.
const KNOWN: usize = 256;

/// A token that stands between texts. No vocabulary has it.
const SEPARATOR: u32 = u32::MAX;

/// No place.
const NONE: u32 = u32::MAX;

/// Bytes that a token takes at most: itself, its link, and two heads of chains.
const TOKEN_BYTES: usize = 16;

/// Least tokens of a tenant's tables.
const TOKENS_MIN: usize = 1 << 10;

/// Function that is told what was appended to a tenant's texts, on the thread of the engine: it must not block. What it is told
/// goes to [`ModelRunner::restore_history`](crate::ModelRunner::restore_history) in another process, in the same order.
pub type HistoryKeeper = Box<dyn FnMut(u64, &[u32]) + Send>;

/// Earlier prompts and answers of all tenants.
pub(crate) struct History {
    budget_bytes: usize,
    tenants: HashMap<u64, Texts>,
    /// Counts uses, to know the tenant that was used longest ago.
    clock: u64,
    keeper: Option<HistoryKeeper>,
}

/// A place of the history that goes on from where the context ends.
pub(super) struct Match<'a> {
    texts: &'a Texts,
    /// Where the next tokens stand, the newest place first.
    places: Vec<u32>,
    /// Number of tokens before them that are the context's last.
    pub(super) len: usize,
}

impl History {
    /// Makes an empty history of so many bytes; of 0 it stays empty.
    pub(crate) fn new(budget_bytes: usize) -> History {
        History { budget_bytes, tenants: HashMap::new(), clock: 0, keeper: None }
    }

    /// Returns the bytes that its tables may take.
    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    /// Forgets everything, and has another budget from now on.
    pub(crate) fn set_budget(&mut self, budget_bytes: usize) {
        self.budget_bytes = budget_bytes;
        self.tenants.clear();
    }

    /// Has `keeper` told what is appended from now on.
    pub(crate) fn set_keeper(&mut self, keeper: HistoryKeeper) {
        self.keeper = Some(keeper);
    }

    /// Returns the bytes that its tables take.
    pub(crate) fn n_bytes(&self) -> usize {
        self.tenants.values().map(Texts::n_bytes).sum()
    }

    /// Takes a text of a tenant, the context of an answer that is over. A tenant has at most half of the budget, and the one that
    /// was served longest ago gives its place up.
    pub(crate) fn add(&mut self, tenant: u64, tokens: &[u32]) {
        let n_max = self.n_tokens_max();
        if n_max < TOKENS_MIN || tokens.len() <= RUN {
            return;
        }
        let texts = self.texts_of(tenant);
        let start = texts.tokens.len();
        texts.append(&tokens[tokens.len().saturating_sub(n_max / 2)..]);
        if let Some(keeper) = &mut self.keeper {
            keeper(tenant, &self.tenants[&tenant].tokens[start..]);
        }
        self.trim(tenant);
    }

    /// Takes what a keeper was told of a tenant in another process; of tokens of a vocabulary of `n_vocab`. Returns false for
    /// others: then nothing is taken.
    pub(crate) fn restore(&mut self, tenant: u64, tokens: &[u32], n_vocab: usize) -> bool {
        let is_known = |&token: &u32| token == SEPARATOR || (token as usize) < n_vocab;
        if !tokens.iter().all(is_known) {
            return false;
        }
        if self.n_tokens_max() >= TOKENS_MIN {
            let texts = self.texts_of(tenant);
            tokens.iter().for_each(|&token| texts.push(token));
            texts.push(SEPARATOR);
            self.trim(tenant);
        }
        true
    }

    /// Forgets all of a tenant's texts.
    pub(crate) fn forget(&mut self, tenant: u64) {
        self.tenants.remove(&tenant);
    }

    /// Forgets the texts of all other tenants.
    pub(crate) fn forget_others(&mut self, tenants: &[u64]) {
        self.tenants.retain(|tenant, _| tenants.contains(tenant));
    }

    /// Returns the most tokens that a tenant has.
    fn n_tokens_max(&self) -> usize {
        self.budget_bytes / 2 / TOKEN_BYTES
    }

    /// Returns the texts of a tenant, which is used now.
    fn texts_of(&mut self, tenant: u64) -> &mut Texts {
        self.clock += 1;
        let texts = self.tenants.entry(tenant).or_insert_with(|| Texts::with_capacity(TOKENS_MIN));
        texts.used = self.clock;
        texts
    }

    /// Makes room after a tenant's texts have grown.
    fn trim(&mut self, tenant: u64) {
        let n_max = self.n_tokens_max();
        if let Some(texts) = self.tenants.get_mut(&tenant) {
            texts.trim(n_max);
        }
        while self.n_bytes() > self.budget_bytes
            && let Some(&oldest) = self.tenants.iter().min_by_key(|(_, texts)| texts.used).map(|(tenant, _)| tenant)
        {
            self.tenants.remove(&oldest);
        }
    }

    /// Returns the places where a tenant's texts go on from the end of `context`.
    pub(super) fn find(&self, tenant: u64, context: &[u32]) -> Option<Match<'_>> {
        self.tenants.get(&tenant)?.find(context)
    }
}

impl Match<'_> {
    /// Appends up to `n` draft tokens to `context`.
    pub(super) fn continue_with(mut self, context: &mut Vec<u32>, n: usize) {
        let mut agreement = 1.0;
        for _ in 0..n {
            let Some((token, share)) = self.most_frequent() else { return };
            agreement *= share;
            if agreement < AGREEMENT_MIN {
                return;
            }
            context.push(token);
            let texts = self.texts;
            self.places.retain_mut(|place| {
                let agrees = texts.token(*place) == Some(token);
                *place += 1;
                agrees
            });
        }
    }

    /// Returns the token that most of the places go on with, the newest of them where there are several, and their share.
    fn most_frequent(&self) -> Option<(u32, f32)> {
        let mut counts: Vec<(u32, usize)> = Vec::new();
        for token in self.places.iter().filter_map(|&place| self.texts.token(place)) {
            match counts.iter_mut().find(|(known, _)| *known == token) {
                Some((_, n)) => *n += 1,
                None => counts.push((token, 1)),
            }
        }
        let n_all: usize = counts.iter().map(|(_, n)| n).sum();
        let (token, n) = counts.into_iter().rev().max_by_key(|(_, n)| *n)?;
        Some((token, n as f32 / n_all as f32))
    }
}

/// The texts of one tenant, one behind the other, with a [`SEPARATOR`] between them.
struct Texts {
    tokens: Vec<u32>,
    /// Of each place the one before it that ends the same run, or one of the same hash.
    before: Vec<u32>,
    /// The newest place of each hash; a power of two of them.
    heads: Vec<u32>,
    /// When it was used last.
    used: u64,
}

impl Texts {
    fn with_capacity(n_tokens: usize) -> Texts {
        let heads = vec![NONE; n_tokens.next_power_of_two()];
        Texts { tokens: Vec::with_capacity(n_tokens), before: Vec::with_capacity(n_tokens), heads, used: 0 }
    }

    fn n_bytes(&self) -> usize {
        4 * (self.tokens.capacity() + self.before.capacity() + self.heads.len())
    }

    /// Returns the token of a place, if a text goes on there.
    fn token(&self, place: u32) -> Option<u32> {
        self.tokens.get(place as usize).copied().filter(|&token| token != SEPARATOR)
    }

    fn head(&self, run: &[u32]) -> usize {
        super::ngram::hash(run) as usize >> 7 & (self.heads.len() - 1)
    }

    /// Iterates over places that may end `run`, the newest first.
    fn places<'a>(&'a self, run: &[u32]) -> impl Iterator<Item = u32> + 'a {
        let first = Some(self.heads[self.head(run)]).filter(|&place| place != NONE);
        let next = |&place: &u32| Some(self.before[place as usize - 1]).filter(|&place| place != NONE);
        std::iter::successors(first, next).take(PLACES)
    }

    /// Appends a token, and makes its place known.
    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        let end = self.tokens.len();
        let run = end.checked_sub(RUN).map(|start| &self.tokens[start..]);
        let Some(run) = run.filter(|run| !run.contains(&SEPARATOR)) else {
            self.before.push(NONE);
            return;
        };
        let head = self.head(run);
        self.before.push(std::mem::replace(&mut self.heads[head], end as u32));
    }

    /// Appends a text, but for what stands here already, as the longest match says.
    fn append(&mut self, text: &[u32]) {
        let mut at = 0;
        while at < text.len() {
            if at.is_multiple_of(KNOWN / 4)
                && let n_known = self.n_known(&text[at..])
                && n_known >= KNOWN
            {
                // What follows it is found by its last tokens, as many as are compared.
                self.push(SEPARATOR);
                at += n_known;
                text[at - MATCH_MAX..at].iter().for_each(|&token| self.push(token));
                continue;
            }
            self.push(text[at]);
            at += 1;
        }
        self.push(SEPARATOR);
    }

    /// Keeps the newer half of more than `n_max` tokens; makes more heads where there are more tokens than those.
    fn trim(&mut self, n_max: usize) {
        if self.tokens.len() > n_max {
            let newer = self.tokens.split_off(self.tokens.len() - n_max / 2);
            self.chain_anew(newer, n_max);
        } else if self.tokens.len() > self.heads.len() {
            let tokens = std::mem::take(&mut self.tokens);
            self.chain_anew(tokens, n_max);
        }
    }

    fn chain_anew(&mut self, tokens: Vec<u32>, n_max: usize) {
        let used = self.used;
        *self = Texts::with_capacity((2 * tokens.len()).min(n_max + RUN));
        self.used = used;
        tokens.into_iter().for_each(|token| self.push(token));
    }

    /// Returns how many of the first tokens of `text` stand here, one behind the other.
    fn n_known(&self, text: &[u32]) -> usize {
        let Some(run) = text.get(..RUN) else { return 0 };
        let n_common = |place: u32| {
            let here = &self.tokens[place as usize - RUN..];
            here.iter().zip(text).take_while(|(a, b)| a == b).count()
        };
        self.places(run).map(n_common).max().unwrap_or(0)
    }

    fn find(&self, context: &[u32]) -> Option<Match<'_>> {
        let run = &context[context.len().checked_sub(RUN)?..];
        let (mut longest, mut places) = (RUN, Vec::new());
        for place in self.places(run).filter(|&place| self.token(place).is_some()) {
            let len = n_common_last(&self.tokens[..place as usize], context);
            if len > longest {
                places.clear();
            }
            longest = longest.max(len);
            if len == longest {
                places.push(place);
            }
        }
        (!places.is_empty()).then_some(Match { texts: self, places, len: longest })
    }
}

/// Returns how many of the last tokens of two texts are the same, up to [`MATCH_MAX`].
pub(super) fn n_common_last(a: &[u32], b: &[u32]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(MATCH_MAX).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(texts: &[&[u32]], context: &[u32], n: usize, expected: &[u32]) {
        let mut history = History::new(1 << 20);
        texts.iter().for_each(|text| history.add(7, text));
        let mut all = context.to_vec();
        if let Some(found) = history.find(7, context) {
            found.continue_with(&mut all, n);
        }
        assert_eq!(&all[context.len()..], expected, "after {context:?}");
        assert!(history.find(8, context).is_none(), "another tenant's");
        history.forget(7);
        assert!(history.find(7, context).is_none(), "it is forgotten");
    }

    #[test]
    fn the_longest_match_goes_on_as_most_of_its_places_do() {
        let [a, b, c] = [&[1, 2, 3, 4, 5, 6, 7][..], &[9, 2, 3, 4, 5, 8], &[2, 3, 4, 5, 8, 1]];
        check(&[a], &[1, 2, 3, 4], 8, &[5, 6, 7]);
        check(&[a], &[1, 2, 3, 4], 2, &[5, 6]);
        // A longer match counts, not a later one.
        check(&[a, b], &[1, 2, 3, 4, 5], 1, &[6]);
        check(&[a, b], &[9, 2, 3, 4, 5], 1, &[8]);
        // Of matches of one length most decide, and one place goes on alone.
        check(&[a, b, c], &[2, 3, 4, 5], 3, &[8, 1]);
        // Texts do not run into each other, and short ones match nothing.
        check(&[&[1, 2, 3, 4, 5], &[6, 7, 8, 9, 10]], &[2, 3, 4, 5], 4, &[]);
        check(&[a], &[5, 6, 7], 4, &[]);
        check(&[], &[1, 2, 3, 4], 4, &[]);
    }

    #[test]
    fn drafts_end_where_too_few_agree() {
        let text = |next: u32| [1, 2, 3, 4, next, 100 + next];
        let texts: Vec<[u32; 6]> = (10..20).map(text).collect();
        let texts: Vec<&[u32]> = texts.iter().map(|text| &text[..]).collect();
        check(&texts, &[1, 2, 3, 4], 4, &[]);
        check(&texts[..3], &[1, 2, 3, 4], 4, &[12, 112]);
    }

    #[test]
    fn what_is_known_is_not_kept_twice() {
        let text: Vec<u32> = (0..5000).collect();
        let mut history = History::new(1 << 20);
        let drafted = |history: &History| {
            let mut context = text[4900..].to_vec();
            history.find(1, &context).expect("it is there").continue_with(&mut context, 3);
            context[100..].to_vec()
        };
        for n in 0..20 {
            history.add(1, &[&text[..], &[9000 + n; 3]].concat());
            let newest = vec![9000 + n; 3];
            assert_eq!(
                drafted(&history),
                if n < 4 { newest } else { vec![] },
                "the newest of equally many, and of few"
            );
        }
        let n_tokens = history.tenants[&1].tokens.len();
        assert!((5000..5000 + 20 * (KNOWN + 20)).contains(&n_tokens), "{n_tokens} tokens");
    }

    #[test]
    fn what_a_keeper_was_told_is_drafted_from_in_another_process() {
        use std::sync::{Arc, Mutex};
        type Told = Vec<(u64, Vec<u32>)>;
        let told: Arc<Mutex<Told>> = Arc::default();
        let (mut history, of_keeper) = (History::new(1 << 20), Arc::clone(&told));
        history.set_keeper(Box::new(move |tenant, tokens| {
            of_keeper.lock().expect("no panic").push((tenant, tokens.to_vec()));
        }));
        let text: Vec<u32> = (0..1000).collect();
        for n in 0..3 {
            history.add(1, &[&text[..], &[5000 + n; 3]].concat());
        }
        history.add(2, &[9, 8, 7, 6, 5, 4]);
        history.add(2, &[1, 2]);
        let told = std::mem::take(&mut *told.lock().expect("no panic"));
        let lengths: Vec<usize> = told.iter().map(|(_, tokens)| tokens.len()).collect();
        assert!(lengths[0] > 1000 && lengths[1] < KNOWN && lengths.len() == 4, "only what is new is told: {lengths:?}");
        let mut again = History::new(1 << 20);
        assert!(told.iter().all(|(tenant, tokens)| again.restore(*tenant, tokens, 6000)));
        for (tenant, context) in [(1, &text[900..]), (1, &[100, 101, 102, 103, 104]), (2, &[9, 8, 7, 6])] {
            let drafted = |history: &History| {
                let mut all = context.to_vec();
                history.find(tenant, context).expect("it is there").continue_with(&mut all, 8);
                all
            };
            assert_eq!(drafted(&again), drafted(&history), "{tenant}: {context:?}");
        }
        assert!(again.find(2, &text[900..]).is_none() && again.find(1, &[9, 8, 7, 6]).is_none());
        // Tokens of another vocabulary are not taken.
        assert!(!again.restore(3, &[1, 2, 3, 4, 5, 6000], 6000) && again.find(3, &[1, 2, 3, 4]).is_none());
        again.forget_others(&[2]);
        assert!(again.find(1, &text[900..]).is_none() && again.find(2, &[9, 8, 7, 6]).is_some());
        again.set_budget(0);
        assert!(again.restore(1, &[1, 2, 3, 4, 5], 6000) && again.n_bytes() == 0);
    }

    #[test]
    fn it_stays_within_its_budget_and_keeps_what_is_new() {
        let mut history = History::new(256 << 10);
        for round in 0..60u32 {
            for tenant in 0..4 {
                let start = round * 10_000 + tenant as u32 * 1000;
                history.add(tenant, &(start..start + 900).collect::<Vec<u32>>());
                assert!(history.n_bytes() <= 256 << 10, "{} bytes", history.n_bytes());
            }
        }
        let newest = 59 * 10_000 + 3 * 1000;
        let mut context: Vec<u32> = (newest + 10..newest + 20).collect();
        history.find(3, &context).expect("the newest is there").continue_with(&mut context, 4);
        assert_eq!(context[10..], [newest + 20, newest + 21, newest + 22, newest + 23]);
        let old: Vec<u32> = (10..20).collect();
        assert!(history.find(0, &old).is_none(), "what is old fell out");
    }
}
