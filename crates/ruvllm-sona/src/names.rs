//! What a question is about: the names in it, which tell it from the same question about something else.
//!
//! Hidden states of "the capital of Zorbia" and "the capital of Quandria" are nearly the same. Words are not. A word counts
//! as a name if it is written with a capital or holds a digit, and is not an ordinary word at the start of a sentence. Where
//! nobody is named ("the code of the storage room door"), most of what is left without ordinary words has to be the same, but
//! for its endings. Only hashes of words are kept.

/// The most words of a question that are looked at.
const N_WORDS_MAX: usize = 256;

/// Letters of a word that tell what it is about, whatever ends it.
const N_STEM: usize = 5;
/// The shortest word that is about something.
const N_LETTERS_MIN: usize = 3;

/// Words that say nothing of what a question is about, beside [`ORDINARY`].
const FILLING: &[&str] = &[
    "after", "all", "also", "any", "be", "been", "before", "being", "but", "during", "each", "every", "had", "here",
    "into", "its", "just", "long", "many", "may", "might", "more", "most", "much", "must", "need", "no", "not", "now",
    "off", "often", "only", "out", "over", "per", "some", "such", "than", "then", "they", "too", "until", "up", "us",
    "very", "while",
];

/// Words that stand at the start of questions and orders, and others that are written with a capital and name nothing.
const ORDINARY: &[&str] = &[
    "a",
    "according",
    "an",
    "and",
    "are",
    "as",
    "at",
    "by",
    "can",
    "could",
    "describe",
    "did",
    "do",
    "does",
    "explain",
    "find",
    "for",
    "from",
    "give",
    "has",
    "have",
    "hello",
    "hey",
    "hi",
    "how",
    "i",
    "i'd",
    "i'm",
    "i've",
    "if",
    "in",
    "is",
    "it",
    "let",
    "list",
    "me",
    "my",
    "name",
    "of",
    "on",
    "or",
    "our",
    "please",
    "recall",
    "remember",
    "remind",
    "say",
    "should",
    "show",
    "so",
    "state",
    "tell",
    "thanks",
    "that",
    "the",
    "their",
    "there",
    "these",
    "this",
    "those",
    "to",
    "under",
    "was",
    "we",
    "were",
    "what",
    "what's",
    "when",
    "where",
    "where's",
    "which",
    "who",
    "who's",
    "whom",
    "whose",
    "why",
    "will",
    "with",
    "would",
    "write",
    "you",
    "your",
];

/// What a hash is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A word.
    Word,
    /// The beginning of a word that is about something.
    Stem,
    /// A name.
    Name,
}

impl Kind {
    /// All of them, in the order of their numbers in a snapshot.
    pub(crate) const ALL: [Kind; 3] = [Kind::Word, Kind::Stem, Kind::Name];
}

/// The words of a question, and which of them are names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Hashes in rising order.
    words: Vec<(u64, Kind)>,
}

impl Names {
    /// Reads a question.
    ///
    /// ```
    /// use ruvllm_sona::Names;
    ///
    /// let told = Names::of("What is the capital of Zorbia?");
    /// assert!(told.fit(&Names::of("Tell me the name of Zorbia's capital")));
    /// assert!(!told.fit(&Names::of("What is the capital of Quandria?")));
    /// ```
    pub fn of(question: &str) -> Names {
        let mut words: Vec<(u64, Kind)> = Vec::new();
        for word in question.split_whitespace().take(N_WORDS_MAX) {
            let word = word.trim_matches(|c: char| !c.is_alphanumeric());
            let word = ["'s", "’s"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
            if word.is_empty() {
                continue;
            }
            let lower = word.to_lowercase();
            let marked = word.chars().any(|c| c.is_uppercase() || c.is_numeric());
            let is_ordinary = ORDINARY.binary_search(&lower.as_str()).is_ok();
            words.push((hash(&lower), if marked && !is_ordinary { Kind::Name } else { Kind::Word }));
            let is_filling = is_ordinary || FILLING.binary_search(&lower.as_str()).is_ok();
            if !is_filling && lower.chars().count() >= N_LETTERS_MIN {
                words.push((hash(&stem(&lower)), Kind::Stem));
            }
        }
        if words.is_empty() {
            // Signs alone: only the same ones are the same.
            words.push((hash(question.trim()), Kind::Word));
        }
        words.sort_unstable();
        // Of a word that stands there twice, the one that is a name counts; it comes last.
        words.reverse();
        words.dedup_by_key(|word| word.0);
        words.reverse();
        Names { words }
    }

    fn has(&self, word: u64) -> bool {
        self.words.binary_search_by_key(&word, |word| word.0).is_ok()
    }

    /// Returns how many names, or stems, there are, and how many of them the other question does not have as words, or stems.
    fn missing_in(&self, other: &Names, kind: Kind) -> (usize, usize) {
        let names = || self.words.iter().filter(|word| word.1 == kind);
        (names().count(), names().filter(|word| !other.has(word.0)).count())
    }

    /// Returns whether two questions may be about the same thing: not if each has a name that the other lacks, and not if
    /// one has names of which the other has none. Where neither has names, more than half of what one is about is also in the
    /// other; where one is about nothing ("who are you?"), the words are the same.
    pub fn fit(&self, other: &Names) -> bool {
        let missing = |kind| (self.missing_in(other, kind), other.missing_in(self, kind));
        let ((n, n_missing), (n_other, n_other_missing)) = missing(Kind::Name);
        if n == 0 && n_other == 0 {
            let ((n, n_missing), (n_other, _)) = missing(Kind::Stem);
            return match n.min(n_other) {
                0 => self.words == other.words,
                n_least => 2 * (n - n_missing) > n_least,
            };
        }
        let substituted = n_missing > 0 && n_other_missing > 0;
        let strange = n > 0 && n == n_missing || n_other > 0 && n_other == n_other_missing;
        !substituted && !strange
    }

    /// Returns the words as a snapshot keeps them.
    pub(crate) fn values(&self) -> impl ExactSizeIterator<Item = (u64, Kind)> + '_ {
        self.words.iter().copied()
    }

    /// Reads them; `None` if they are in no order.
    pub(crate) fn from_values(words: Vec<(u64, Kind)>) -> Option<Names> {
        words.is_sorted_by(|a, b| a.0 < b.0).then_some(Names { words })
    }

    /// The most hashes there are: of each word, and of its stem.
    pub(crate) const N_MAX: usize = 2 * N_WORDS_MAX;
}

/// Returns the beginning of a word, told from a word that is no longer.
fn stem(word: &str) -> String {
    let word = word.strip_suffix('s').filter(|rest| rest.chars().count() >= N_LETTERS_MIN).unwrap_or(word);
    word.chars().take(N_STEM).chain(['-']).collect()
}

/// FNV-1a: the same in every build, which snapshots need.
fn hash(word: &str) -> u64 {
    word.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_fit_by_their_names() {
        assert!(ORDINARY.is_sorted() && FILLING.is_sorted());
        let check = |a: &str, b: &str, expected: bool| {
            let (a_names, b_names) = (Names::of(a), Names::of(b));
            assert_eq!((a_names.fit(&b_names), b_names.fit(&a_names)), (expected, expected), "{a} / {b}");
        };
        check("Who founded Velmor Industries?", "Tell me who founded Velmor Industries.", true);
        check("Who founded Velmor Industries?", "Who founded Tarkin Industries?", false);
        check("Who founded Velmor Industries?", "who was it that founded velmor industries", true);
        check("Who founded Velmor Industries?", "who founded the bakery", false);
        // Fewer names on one side are no other thing.
        check("Who founded Velmor Industries in Oslo?", "Who founded Velmor?", true);
        check("When does room B12 open?", "When does room B13 open?", false);
        check("What is the door code?", "Please remind me: which code opens the door?", true);
        check("What is the door code?", "What is the door code of Building Nine?", false);
        check("", "What is this?", false);
        // Those that are about nothing are alike in their states, so all of the words count.
        check("who are you?", "How are you?", false);
        check("who are you?", "what can you do?", false);
        check("who are you?", "Who are you", true);
        check("who are you?", "who are you in this novel?", false);
        check("hello", "thanks", false);
        check("hello", "Hello!", true);
        check("?!", "?!", true);
        check("?!", "...", false);
        check("Wie heißt Ümlaut?", "Wo liegt ümlaut?", false);
        check("Where is Zorbia's port?", "Which port has Zorbia?", true);
        // Where nobody is named, what else is asked for decides.
        check("which code opens the cellar?", "what is the code of the cellar?", true);
        check("which code opens the cellar?", "which code starts the pump?", false);
        check("who cleans the big windows?", "whose job is cleaning a big window?", true);
        check("how often is the oil changed?", "how often are the tyres turned?", false);
    }
}
