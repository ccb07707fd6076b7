//! Three walks over a text: by lines, by characters, by words.

use super::at::{HASHED_AT, LEXICONS_AT, PUNCTUATION_AT, SHARES_AT, STRUCTURE_AT};
use super::lexicon::{N_LEXICONS, lexicons_of};
use super::{HASHED, N_FEATURES, PUNCTUATION, log_count, share};
use crate::embed::add_hashed;
use crate::math::normalise;

/// What lines show.
#[derive(Default)]
pub(super) struct Lines {
    n_lines: usize,
    n_paragraphs: usize,
    longest: usize,
    fences: usize,
    code_spans: usize,
    bullets: usize,
    numbered: usize,
    headings: usize,
    indented: usize,
    quoted: usize,
    tables: usize,
    choices: usize,
    code: usize,
    links: usize,
    ends: [bool; 2],
    starts_small: bool,
}

impl Lines {
    pub(super) fn of(text: &str) -> Lines {
        let mut lines = Lines { links: text.matches("://").count(), ..Lines::default() };
        let (mut in_paragraph, mut in_fence) = (false, false);
        for line in text.lines() {
            let trimmed = line.trim();
            if trimmed.is_empty() {
                in_paragraph = false;
                continue;
            }
            lines.n_lines += 1;
            lines.n_paragraphs += usize::from(!in_paragraph);
            in_paragraph = true;
            lines.longest = lines.longest.max(line.chars().count());
            if trimmed.starts_with("```") || trimmed.starts_with("~~~") {
                lines.fences += 1;
                in_fence = !in_fence;
            } else if !in_fence {
                lines.code_spans += trimmed.bytes().filter(|&b| b == b'`').count();
            }
            lines.count(line, trimmed);
        }
        let trimmed = text.trim_end();
        lines.ends = [trimmed.ends_with(['?', '？']), trimmed.ends_with(':')];
        lines.starts_small = text.chars().find(|c| c.is_alphabetic()).is_some_and(char::is_lowercase);
        lines
    }

    /// Counts what kind of line this is.
    fn count(&mut self, line: &str, trimmed: &str) {
        let bytes = trimmed.as_bytes();
        let marked = |at: usize| matches!(bytes.get(at), Some(b'.' | b')'));
        let n_digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
        let bullet = matches!(bytes, [b'-' | b'*' | b'+', b' ', ..]) || trimmed.starts_with('•');
        self.bullets += usize::from(bullet);
        self.numbered += usize::from((1..4).contains(&n_digits) && marked(n_digits));
        self.choices += usize::from(bytes[0].is_ascii_alphabetic() && marked(1));
        self.headings += usize::from(bytes[0] == b'#');
        self.quoted += usize::from(bytes[0] == b'>');
        self.indented += usize::from(line.starts_with("  ") || line.starts_with('\t'));
        self.tables += usize::from(trimmed.bytes().filter(|b| matches!(b, b'|' | b'\t')).count() >= 2);
        self.code += usize::from(trimmed.ends_with([';', '{', '}', ',']) || trimmed.starts_with("//"));
    }

    pub(super) fn write(&self, values: &mut [f32; N_FEATURES]) {
        let of_lines = |n| share(n, self.n_lines);
        values[3] = log_count(self.n_lines);
        values[4] = log_count(self.n_paragraphs);
        values[9] = log_count(self.longest);
        let structure = [
            f32::from(u8::from(self.ends[0])),
            f32::from(u8::from(self.ends[1])),
            f32::from(u8::from(self.starts_small)),
            log_count(self.fences),
            log_count(self.code_spans),
            of_lines(self.bullets),
            of_lines(self.numbered),
            of_lines(self.headings),
            of_lines(self.indented),
            of_lines(self.quoted),
            of_lines(self.tables),
            log_count(self.choices),
            of_lines(self.code),
            log_count(self.links),
        ];
        values[STRUCTURE_AT..][..structure.len()].copy_from_slice(&structure);
    }
}

/// What characters show.
#[derive(Default)]
pub(super) struct Chars {
    n_chars: usize,
    n_letters: usize,
    /// In the order of the features from `upper` to `emoji`.
    kinds: [usize; 12],
    punctuation: [usize; PUNCTUATION.len()],
    sentences: usize,
}

impl Chars {
    pub(super) fn of(text: &str) -> Chars {
        let mut chars = Chars::default();
        let mut before = ' ';
        for c in text.chars() {
            chars.n_chars += 1;
            if c.is_ascii() {
                chars.count_ascii(c)
            } else {
                chars.count_other(c)
            }
            chars.sentences += usize::from(c.is_whitespace() && matches!(before, '.' | '!' | '?' | '。'));
            before = c;
        }
        chars.sentences += usize::from(matches!(before, '.' | '!' | '?' | '。'));
        chars
    }

    fn count_ascii(&mut self, c: char) {
        match c {
            'a'..='z' => self.n_letters += 1,
            'A'..='Z' => {
                self.n_letters += 1;
                self.kinds[0] += 1;
            }
            '0'..='9' => self.kinds[1] += 1,
            _ if c.is_ascii_whitespace() => self.kinds[2] += 1,
            _ if c.is_ascii_punctuation() => {
                self.kinds[3] += 1;
                if let Some(place) = place_of(c) {
                    self.punctuation[place] += 1;
                }
            }
            _ => {}
        }
    }

    fn count_other(&mut self, c: char) {
        self.kinds[4] += 1;
        self.n_letters += usize::from(c.is_alphabetic());
        self.kinds[0] += usize::from(c.is_uppercase());
        self.kinds[2] += usize::from(c.is_whitespace());
        let kind = match c {
            '\u{C0}'..='\u{24F}' => 5,
            '\u{370}'..='\u{3FF}' => 6,
            '\u{400}'..='\u{52F}' => 7,
            '\u{590}'..='\u{6FF}' => 8,
            '\u{3040}'..='\u{30FF}' | '\u{3400}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7AF}' => 9,
            '\u{2190}'..='\u{22FF}' => 10,
            '\u{1F300}'..='\u{1FAFF}' => 11,
            '‘'..='”' | '«' | '»' => return self.punctuation[5] += 1,
            _ => return,
        };
        self.kinds[kind] += 1;
    }

    pub(super) fn write(&self, values: &mut [f32; N_FEATURES]) {
        values[0] = log_count(self.n_chars);
        values[2] = log_count(self.sentences);
        for (i, &n) in self.kinds.iter().enumerate() {
            values[SHARES_AT + i] = share(n, if i == 0 { self.n_letters } else { self.n_chars });
        }
        for (value, &n) in values[PUNCTUATION_AT..].iter_mut().zip(&self.punctuation) {
            *value = log_count(n);
        }
    }
}

/// The place of a sign among the features of punctuation.
fn place_of(c: char) -> Option<usize> {
    Some(match c {
        '.' => 0,
        ',' => 1,
        ':' | ';' => 2,
        '!' => 3,
        '?' => 4,
        '"' | '\'' => 5,
        '(' | ')' => 6,
        '[' | ']' => 7,
        '{' | '}' => 8,
        '<' | '>' => 9,
        '=' => 10,
        '+' | '*' | '/' | '^' | '%' | '|' | '&' | '~' => 11,
        '-' => 12,
        '_' => 13,
        '\\' => 14,
        '$' => 15,
        _ => return None,
    })
}

/// Words are told apart by this many hashes when distinct ones are counted.
const N_SEEN: usize = 1 << 12;

/// What words show.
pub(super) struct Words {
    n_words: usize,
    n_chars: usize,
    n_chars_squared: usize,
    longest: usize,
    distinct: usize,
    long: usize,
    /// Capitalised, all capitals, numbers, letters and digits.
    kinds: [usize; 4],
    lexicons: [u32; N_LEXICONS],
    hashed: [f32; HASHED.len()],
    seen: [u64; N_SEEN / 64],
}

impl Words {
    pub(super) fn of(text: &str) -> Words {
        let mut words = Words {
            n_words: 0,
            n_chars: 0,
            n_chars_squared: 0,
            longest: 0,
            distinct: 0,
            long: 0,
            kinds: [0; 4],
            lexicons: [0; N_LEXICONS],
            hashed: [0.0; HASHED.len()],
            seen: [0; N_SEEN / 64],
        };
        let (mut lower, mut pair) = (String::new(), String::new());
        for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
            lower.clear();
            if word.is_ascii() {
                lower.push_str(word);
                lower.make_ascii_lowercase();
            } else {
                lower.extend(word.chars().flat_map(char::to_lowercase));
            }
            words.count(word, &lower);
            if !pair.is_empty() {
                pair.push(' ');
                pair.push_str(&lower);
                add_hashed(&mut words.hashed, &pair, 1.0);
            }
            pair.clone_from(&lower);
        }
        normalise(&mut words.hashed);
        words
    }

    fn count(&mut self, word: &str, lower: &str) {
        let (mut n, mut upper, mut digits) = (0, 0, 0);
        for c in word.chars() {
            n += 1;
            upper += usize::from(c.is_uppercase());
            digits += usize::from(c.is_ascii_digit());
        }
        self.n_words += 1;
        self.n_chars += n;
        self.n_chars_squared += n * n;
        self.longest = self.longest.max(n);
        self.long += usize::from(n >= 8);
        let capital_first = word.chars().next().is_some_and(char::is_uppercase);
        self.kinds[0] += usize::from(capital_first && upper == 1 && n > 1);
        self.kinds[1] += usize::from(upper == n && n > 1);
        self.kinds[2] += usize::from(digits == n);
        self.kinds[3] += usize::from(digits > 0 && digits < n);
        let mut bits = lexicons_of(lower);
        while bits != 0 {
            self.lexicons[bits.trailing_zeros() as usize] += 1;
            bits &= bits - 1;
        }
        add_hashed(&mut self.hashed, lower, 1.0);
        let hash = xxhash_rust::xxh3::xxh3_64(lower.as_bytes()) as usize % N_SEEN;
        let bit = 1 << (hash % 64);
        self.distinct += usize::from(self.seen[hash / 64] & bit == 0);
        self.seen[hash / 64] |= bit;
    }

    pub(super) fn write(&self, values: &mut [f32; N_FEATURES]) {
        let of_words = |n| share(n, self.n_words);
        let mean = of_words(self.n_chars);
        let n_sentences = values[2].exp_m1().round().max(1.0);
        values[1] = log_count(self.n_words);
        values[5] = mean / 10.0;
        values[6] = (of_words(self.n_chars_squared) - mean * mean).max(0.0).sqrt() / 10.0;
        values[7] = (self.n_words as f32 / n_sentences).ln_1p();
        values[8] = log_count(self.longest);
        values[10] = of_words(self.distinct);
        values[11] = of_words(self.long);
        for (value, &n) in values[SHARES_AT + 12..].iter_mut().zip(&self.kinds) {
            *value = of_words(n);
        }
        for (value, &n) in values[LEXICONS_AT..].iter_mut().zip(&self.lexicons) {
            *value = log_count(n as usize);
        }
        values[HASHED_AT..].copy_from_slice(&self.hashed);
    }
}
