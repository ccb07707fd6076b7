//! Features of a query's text: [`N_FEATURES`] numbers, each with a name and a meaning.
//!
//! [`FEATURES`] documents them one by one, in their order: lengths (12), shares of kinds of characters and words (16),
//! punctuation (16), structure (14), words of lexicons (52: what is asked, tasks, subjects, languages) and hashed word
//! 1-grams and 2-grams (18). A count `n` is given as `ln(1 + n)` and a share as 0 to 1. The same text always gives the
//! same numbers; 1 KB takes some microseconds.
//!
//! ```
//! use ruvllm_router::features::{self, FEATURES};
//!
//! let values = features::of("Why does `cargo build` fail?\n```\nerror[E0382]: use of moved value\n```");
//! let value = |name| values[FEATURES.iter().position(|feature| feature.name == name).unwrap()];
//! assert_eq!(value("code_fences"), 3f32.ln());
//! assert!(value("ask_why") > 0.0 && value("about_errors") > 0.0);
//! ```

mod lexicon;
mod scan;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use lexicon::{LEXICONS, N_LEXICONS};

/// Number of features.
pub const N_FEATURES: usize = 128;

/// The name and the meaning of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// A short name, unique and stable.
    pub name: &'static str,
    /// Meaning of the number.
    pub meaning: &'static str,
}

/// Every feature in the order of the values.
pub static FEATURES: LazyLock<Vec<Feature>> = LazyLock::new(|| {
    let mut features: Vec<Feature> = Vec::with_capacity(N_FEATURES);
    let tables = [&LENGTHS[..], &SHARES, &PUNCTUATION, &STRUCTURE];
    features.extend(tables.into_iter().flatten().map(|&(name, meaning)| Feature { name, meaning }));
    features.extend(LEXICONS.iter().map(|&(name, meaning, _)| Feature { name, meaning }));
    features.extend(HASHED.iter().map(|&name| Feature { name, meaning: HASHED_MEANING }));
    features
});

/// Where the groups of features begin.
mod at {
    use super::{LENGTHS, N_LEXICONS, PUNCTUATION, SHARES, STRUCTURE};

    pub(super) const SHARES_AT: usize = LENGTHS.len();
    pub(super) const PUNCTUATION_AT: usize = SHARES_AT + SHARES.len();
    pub(super) const STRUCTURE_AT: usize = PUNCTUATION_AT + PUNCTUATION.len();
    pub(super) const LEXICONS_AT: usize = STRUCTURE_AT + STRUCTURE.len();
    pub(super) const HASHED_AT: usize = LEXICONS_AT + N_LEXICONS;
}

const _: () = assert!(at::HASHED_AT + HASHED.len() == N_FEATURES);

const LENGTHS: [(&str, &str); 12] = [
    ("chars", "characters, as ln(1 + n)"),
    ("words", "words, as ln(1 + n); a word is a run of letters and digits"),
    ("sentences", "ends of sentences (. ! ? before a space or the end), as ln(1 + n)"),
    ("lines", "lines that are not empty, as ln(1 + n)"),
    ("paragraphs", "runs of lines with empty lines between, as ln(1 + n)"),
    ("word_length", "mean length of words, in tens of characters"),
    ("word_length_spread", "standard deviation of the lengths of words, in tens of characters"),
    ("sentence_words", "words a sentence, as ln(1 + n)"),
    ("longest_word", "characters of the longest word, as ln(1 + n)"),
    ("longest_line", "characters of the longest line, as ln(1 + n)"),
    ("distinct_words", "share of words that are not seen before (by a hash of 12 bits)"),
    ("long_words", "share of words of 8 characters or more"),
];

const SHARES: [(&str, &str); 16] = [
    ("upper", "share of letters in upper case"),
    ("digits", "share of digits among characters"),
    ("spaces", "share of white space among characters"),
    ("symbols", "share of ASCII punctuation among characters"),
    ("non_ascii", "share of characters outside ASCII"),
    ("accented", "share of Latin letters with accents (U+00C0 to U+024F)"),
    ("greek", "share of Greek letters, as formulas have them"),
    ("cyrillic", "share of Cyrillic letters"),
    ("semitic", "share of Hebrew and Arabic letters"),
    ("cjk", "share of Chinese, Japanese and Korean characters"),
    ("maths_symbols", "share of mathematical operators and arrows (U+2190 to U+22FF)"),
    ("emoji", "share of pictographs (U+1F300 to U+1FAFF)"),
    ("capitalised_words", "share of words with a capital first and small letters behind"),
    ("capital_words", "share of words of two or more capitals only"),
    ("number_words", "share of words that are digits only"),
    ("mixed_words", "share of words with letters and digits"),
];

const PUNCTUATION: [(&str, &str); 16] = [
    ("period", "count of ."),
    ("comma", "count of ,"),
    ("colon", "count of : and ;"),
    ("exclamation", "count of !"),
    ("question", "count of ?"),
    ("quote", "count of quotation marks and apostrophes"),
    ("round", "count of ( and )"),
    ("square", "count of [ and ]"),
    ("curly", "count of { and }"),
    ("angle", "count of < and >"),
    ("equals", "count of ="),
    ("operator", "count of + * / ^ % | & ~"),
    ("hyphen", "count of -"),
    ("underscore", "count of _"),
    ("backslash", "count of \\ (paths, LaTeX)"),
    ("dollar", "count of $ (money, LaTeX, shells)"),
];

const STRUCTURE: [(&str, &str); 14] = [
    ("ends_question", "1 if the text ends with a question mark"),
    ("ends_colon", "1 if the text ends with a colon"),
    ("starts_small", "1 if the first letter is small"),
    ("code_fences", "lines that open or close fenced code, as ln(1 + n)"),
    ("code_spans", "backticks outside fences, as ln(1 + n)"),
    ("bullets", "share of lines that begin as items of a list"),
    ("numbered", "share of lines that begin with a number and . or )"),
    ("headings", "share of lines that begin with #"),
    ("indented", "share of lines that begin with two spaces or a tab"),
    ("quoted", "share of lines that begin with >"),
    ("tables", "share of lines with two or more | or tabs"),
    ("choices", "lines that begin with a letter and . or ) (answers to choose from), as ln(1 + n)"),
    ("code_lines", "share of lines that end with ; { } or , or begin with //"),
    ("links", "count of ://, as ln(1 + n)"),
];

const HASHED_MEANING: &str =
    "signed count of words and pairs of neighbours whose hash falls here; the 18 have length 1 together";

const HASHED: [&str; 18] = [
    "hashed_0",
    "hashed_1",
    "hashed_2",
    "hashed_3",
    "hashed_4",
    "hashed_5",
    "hashed_6",
    "hashed_7",
    "hashed_8",
    "hashed_9",
    "hashed_10",
    "hashed_11",
    "hashed_12",
    "hashed_13",
    "hashed_14",
    "hashed_15",
    "hashed_16",
    "hashed_17",
];

/// Returns the features of a text, as [`FEATURES`] describes them. Every value is finite, whatever the text.
pub fn of(text: &str) -> [f32; N_FEATURES] {
    let mut values = [0.0; N_FEATURES];
    scan::Lines::of(text).write(&mut values);
    scan::Chars::of(text).write(&mut values);
    scan::Words::of(text).write(&mut values);
    values
}

/// Returns `ln(1 + n)`.
fn log_count(n: usize) -> f32 {
    (n as f32).ln_1p()
}

/// Returns `part/whole`, and 0 of nothing.
fn share(part: usize, whole: usize) -> f32 {
    if whole == 0 { 0.0 } else { part as f32 / whole as f32 }
}
