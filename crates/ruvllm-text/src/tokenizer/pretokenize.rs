//! Cutting text into words before byte-pair encoding: the rule a file names in `tokenizer.ggml.pre`.
//!
//! The rules are the ones llama.cpp applies under the same names. They are written for engines with look-ahead, whose
//! cost can explode; here every pattern runs on the `regex` crate's automata in linear time, because the one look-ahead
//! they need, `\s+(?!\S)|\s+` (white space, but leave the last one to the word that follows), is a rule of its own
//! ([`Spaces`]). llama.cpp folds the classes `\p{Lu}`, `\p{Ll}`, … into `\p{L}`, so `(?=\p{L})[^a-z]` is `[\p{L}--[a-z]]`.

mod rules;

use regex::Regex;

use crate::error::{TextError, TextErrorKind};
use rules::RULES;

/// What a match that is all white space gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spaces {
    /// Nothing.
    Keep,
    /// Its last character, if a word follows: `\s+(?!\S)|\s+`.
    GiveLast,
    /// The same unless it ends a line: `\s*[\r\n]+|\s+(?!\S)|\s+`.
    GiveLastInLine,
    /// As in a line, but in runs of 512, 256, …, 8, 4, 2 and 1.
    Cascade,
}

/// One pass over the words so far.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Matches become words of their own, and so does what lies between them.
    Match(&'static str, Spaces),
    /// Runs of digits are cut into threes, counted from the right. The class says what a digit is.
    Threes(&'static str),
}

/// How a file's byte-pair encoding treats text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// A word that is a token is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// BOS is added unless the file says otherwise.
    pub(super) add_bos: bool,
    /// The vocabulary has no default BOS.
    pub(super) no_bos: bool,
    /// Tokens are plain UTF-8 with `▁` for a space and `<0x41>` for bytes, not GPT-2's alphabet of bytes.
    pub(super) sentencepiece: bool,
    /// A run of line ends that is a token is that token, whatever the merges say.
    pub(super) newline_tokens: bool,
}

/// Returns the rule of a name.
///
/// # Errors
/// A name that no rule has.
pub(super) fn rule(name: &str) -> Result<&'static Rule, TextError> {
    RULES.iter().find(|rule| rule.names.contains(&name)).ok_or_else(|| {
        let line = format!(
            "pre-tokenizer '{name}' (tokenizer.ggml.pre) is not supported; use a file converted with a known one"
        );
        TextError::new(TextErrorKind::Unsupported, line)
    })
}

enum Compiled {
    Match(Regex, Spaces),
    Threes(Regex),
}

/// A rule ready to cut.
pub(super) struct PreTokenizer {
    steps: Vec<Compiled>,
}

impl PreTokenizer {
    /// Compiles a rule's patterns.
    pub(super) fn new(rule: &Rule) -> PreTokenizer {
        let regex = |pattern: &str| Regex::new(pattern).expect("the patterns are constants that a test compiles");
        let compile = |step: &Step| match *step {
            Step::Match(pattern, spaces) => Compiled::Match(regex(pattern), spaces),
            Step::Threes(pattern) => Compiled::Threes(regex(pattern)),
        };
        PreTokenizer { steps: rule.steps.iter().map(compile).collect() }
    }

    /// Cuts a text into words: they are its pieces in order, none of them empty.
    pub(super) fn words<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut words = if text.is_empty() { vec![] } else { vec![text] };
        for step in &self.steps {
            let mut next = Vec::with_capacity(words.len());
            for word in words {
                match step {
                    Compiled::Match(regex, spaces) => cut(word, regex, *spaces, &mut next),
                    Compiled::Threes(regex) => cut_threes(word, regex, &mut next),
                }
            }
            words = next;
        }
        words
    }
}

fn cut<'t>(text: &'t str, regex: &Regex, spaces: Spaces, out: &mut Vec<&'t str>) {
    let mut done = 0;
    let mut add = |from: usize, to: usize| {
        if from < to {
            out.push(&text[from..to]);
        }
    };
    while let Some(found) = regex.find_at(text, done).filter(|found| !found.is_empty()) {
        add(done, found.start());
        done = found.start();
        let blank = spaces != Spaces::Keep && found.as_str().chars().all(char::is_whitespace);
        if blank && spaces == Spaces::Cascade && !found.as_str().ends_with(['\r', '\n']) {
            for len in cascade(found.as_str(), found.end() < text.len()) {
                add(done, done + len);
                done += len;
            }
        } else {
            let gives = blank && found.end() < text.len();
            let end = if gives { found.start() + kept(found.as_str(), spaces) } else { found.end() };
            add(done, end);
            done = end;
        }
    }
    add(done, text.len());
}

/// Returns how many bytes of a run of white space stand, given that text follows it.
fn kept(blank: &str, spaces: Spaces) -> usize {
    let last = blank.chars().next_back().map_or(0, char::len_utf8);
    let in_line = spaces == Spaces::GiveLast || !blank.ends_with(['\r', '\n']);
    if in_line && last < blank.len() { blank.len() - last } else { blank.len() }
}

/// Returns the byte lengths of the pieces of a run of white space; the last one before text stands alone.
fn cascade(mut blank: &str, followed: bool) -> Vec<usize> {
    let mut lens = Vec::new();
    let mut n_chars = blank.chars().count();
    while n_chars > 0 {
        let room = if followed { n_chars.max(2) - 1 } else { n_chars };
        let n = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1].into_iter().find(|&n| n <= room).unwrap_or(1);
        let len = blank.char_indices().nth(n).map_or(blank.len(), |(at, _)| at);
        lens.push(len);
        blank = &blank[len..];
        n_chars -= n;
        if followed && n_chars == 1 {
            break;
        }
    }
    lens
}

fn cut_threes<'t>(text: &'t str, regex: &Regex, out: &mut Vec<&'t str>) {
    let mut done = 0;
    for found in regex.find_iter(text) {
        if done < found.start() {
            out.push(&text[done..found.start()]);
        }
        let mut rest = found.as_str();
        let mut first = (rest.chars().count() + 2) % 3 + 1;
        while !rest.is_empty() {
            let at = rest.char_indices().nth(first).map_or(rest.len(), |(at, _)| at);
            out.push(&rest[..at]);
            (rest, first) = (&rest[at..], 3);
        }
        done = found.end();
    }
    if done < text.len() {
        out.push(&text[done..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pre: &str, text: &str, expected: &[&str]) {
        assert_eq!(PreTokenizer::new(rule(pre).unwrap()).words(text), expected, "{pre}: {text:?}");
    }

    #[test]
    fn every_rule_compiles_and_loses_nothing() {
        let text = "Hello  World's 1234567 x²\n\n \t  end… 中文カナ 한국어 नमस्ते İŞ don'T\r\n   a    ";
        for rule in RULES {
            let words = PreTokenizer::new(rule).words(text);
            assert_eq!(words.concat(), text, "{:?}", rule.names);
            assert!(words.iter().all(|word| !word.is_empty()), "{:?}", rule.names);
        }
        let mut names: Vec<_> = RULES.iter().flat_map(|rule| rule.names).collect();
        let n = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), n, "a name with two rules");
    }

    #[test]
    fn words_are_the_ones_the_models_were_trained_on() {
        check("gpt-2", "I'll go  to 2024!\n x", &["I", "'ll", " go", " ", " to", " 2024", "!", "\n", " x"]);
        check("smollm", "a 123", &["a", " ", "1", "2", "3"]);
        check("llama-bpe", "1234567  \n\n  X", &["123", "456", "7", "  \n\n", " ", " X"]);
        check("qwen2", "I'M 12 ...\n\n", &["I", "'M", " ", "1", "2", " ...\n\n"]);
        check("gpt-4o", "helloWorld'S XMLHttp", &["hello", "World'S", " XMLHttp"]);
        check("tekken", "camelCase ÄÖÜß", &["camel", "Case", " ÄÖÜß"]);
        check("deepseek-v3", "a中文.b 12", &["a", "中文", ".b", " ", "12"]);
        check("superbpe", "by the way 1234567", &["by the way ", "1", "234", "567"]);
        check("jais-2", "a           b", &["a", "        ", "  ", " b"]);
        check("kimi-k2", "中文abc's 12345", &["中文", "abc's", " ", "123", "45"]);
        check("gemma4", "a b\n\n c", &["a b", "\n\n", " c"]);
        check("bloom", "Hi, there", &["Hi", ",", " there"]);
    }

    #[test]
    fn unknown_names_are_refused_by_name() {
        let error = rule("rwkv-next").unwrap_err();
        assert_eq!(error.kind(), TextErrorKind::Unsupported);
        assert!(error.to_string().contains("'rwkv-next'"), "{error}");
    }

    #[test]
    fn a_megabyte_of_one_character_stays_linear() {
        for c in ["a", " ", "\n", "1", "!", "中", "A"] {
            let text = c.repeat((1 << 20) / c.len());
            let start = std::time::Instant::now();
            for rule in RULES {
                assert_eq!(
                    PreTokenizer::new(rule).words(&text).iter().map(|word| word.len()).sum::<usize>(),
                    text.len()
                );
            }
            assert!(start.elapsed().as_secs() < 60, "{c:?} took {:?} for {} rules", start.elapsed(), RULES.len());
        }
    }
}
