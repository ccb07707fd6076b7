//! What a question is about: the names in it, which tell it from the same question about something else.
//!
//! Hidden states of "the capital of Zorbia" and "the capital of Quandria" are nearly the same. Words are not. A word counts
//! as a name if it is written with a capital or holds a digit, and is not an ordinary word at the start of a sentence. Only
//! hashes of words are kept.

/// The most words of a question that are looked at.
const N_WORDS_MAX: usize = 256;

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

/// The words of a question, and which of them are names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Hashes in rising order, each with whether it is a name.
    words: Vec<(u64, bool)>,
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
        let mut words: Vec<(u64, bool)> = Vec::new();
        for word in question.split_whitespace().take(N_WORDS_MAX) {
            let word = word.trim_matches(|c: char| !c.is_alphanumeric());
            let word = ["'s", "’s"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
            if word.is_empty() {
                continue;
            }
            let lower = word.to_lowercase();
            let marked = word.chars().any(|c| c.is_uppercase() || c.is_numeric());
            let is_name = marked && ORDINARY.binary_search(&lower.as_str()).is_err();
            words.push((hash(&lower), is_name));
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

    /// Returns how many names there are, and how many of them the other question does not have as words.
    fn missing_in(&self, other: &Names) -> (usize, usize) {
        let names = || self.words.iter().filter(|word| word.1);
        (names().count(), names().filter(|word| !other.has(word.0)).count())
    }

    /// Returns whether two questions may be about the same thing: not if each has a name that the other lacks, and not if
    /// one has names of which the other has none.
    pub fn fit(&self, other: &Names) -> bool {
        let ((n, n_missing), (n_other, n_other_missing)) = (self.missing_in(other), other.missing_in(self));
        let substituted = n_missing > 0 && n_other_missing > 0;
        let strange = n > 0 && n == n_missing || n_other > 0 && n_other == n_other_missing;
        !substituted && !strange
    }

    /// Returns the words as a snapshot keeps them.
    pub(crate) fn values(&self) -> impl ExactSizeIterator<Item = (u64, bool)> + '_ {
        self.words.iter().copied()
    }

    /// Reads them; `None` if they are in no order.
    pub(crate) fn from_values(words: Vec<(u64, bool)>) -> Option<Names> {
        words.is_sorted_by(|a, b| a.0 < b.0).then_some(Names { words })
    }

    /// The most words there are.
    pub(crate) const N_MAX: usize = N_WORDS_MAX;
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
        assert!(ORDINARY.is_sorted());
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
        check("", "What is this?", true);
        check("Wie heißt Ümlaut?", "Wo liegt ümlaut?", false);
        check("Where is Zorbia's port?", "Which port has Zorbia?", true);
    }
}
