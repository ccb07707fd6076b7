//! Reading a text that may go on later: a piece of syntax is there, is not, or may still come.

/// Why something was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// It is not there.
    No,
    /// It may be, when more text comes.
    More,
}

/// A place in a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'t> {
    text: &'t str,
    at: usize,
    /// No more text comes.
    is_end: bool,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str, is_end: bool) -> Cursor<'t> {
        Cursor { text, at: 0, is_end }
    }

    /// Returns how many bytes were read.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Returns what was not read yet.
    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// Returns what a text that ended here misses.
    fn missing(&self) -> Miss {
        if self.is_end { Miss::No } else { Miss::More }
    }

    /// Reads white space, as much as there is.
    pub(super) fn spaces(&mut self) {
        self.at = self.text.len() - self.rest().trim_ascii_start().len();
    }

    /// Reads this text.
    pub(super) fn eat(&mut self, text: &str) -> Result<(), Miss> {
        let rest = self.rest();
        if rest.starts_with(text) {
            self.at += text.len();
            return Ok(());
        }
        Err(if text.starts_with(rest) { self.missing() } else { Miss::No })
    }

    /// Reads white space and this text, or nothing; returns whether it was there.
    pub(super) fn eat_optional(&mut self, text: &str) -> Result<bool, Miss> {
        let before = *self;
        self.spaces();
        match self.eat(text) {
            Ok(()) => Ok(true),
            Err(Miss::No) => {
                *self = before;
                Ok(false)
            }
            Err(Miss::More) => Err(Miss::More),
        }
    }

    /// Looks whether this text comes next, and reads nothing.
    pub(super) fn expect(&self, text: &str) -> Result<(), Miss> {
        let mut ahead = *self;
        ahead.eat(text)
    }

    /// Reads characters, at least one and up to one that is of another kind.
    pub(super) fn word(&mut self, is_part: impl Fn(char) -> bool) -> Result<&'t str, Miss> {
        let rest = self.rest();
        match rest.find(|c| !is_part(c)) {
            Some(0) => Err(Miss::No),
            Some(n) => {
                self.at += n;
                Ok(&rest[..n])
            }
            None => Err(self.missing()),
        }
    }

    /// Reads a text of JSON.
    pub(super) fn string(&mut self) -> Result<String, Miss> {
        self.eat("\"")?;
        let bytes = self.rest().as_bytes();
        let (mut i, mut is_escaped) = (0, false);
        while let Some(&byte) = bytes.get(i) {
            match byte {
                b'"' if !is_escaped => break,
                b'\\' if !is_escaped => is_escaped = true,
                _ => is_escaped = false,
            }
            i += 1;
        }
        if i == bytes.len() {
            return Err(self.missing());
        }
        let text = &self.text[self.at - 1..self.at + i + 1];
        self.at += i + 1;
        serde_json::from_str(text).map_err(|_| Miss::No)
    }

    /// Reads from a bracket to the one that closes it.
    pub(super) fn balanced(&mut self) -> Result<&'t str, Miss> {
        let rest = self.rest();
        let n = super::json::Brackets::default().end(rest).ok_or(self.missing())?;
        self.at += n;
        Ok(&rest[..n])
    }
}
