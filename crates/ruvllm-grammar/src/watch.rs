//! An answer in JSON while it is written: which value closes with a token, and whether it is right.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::GrammarError;
use crate::error::refused;
use crate::judge::{Judge, Step};

/// The most ways back of one answer.
const REWINDS_MAX: usize = 64;
/// The most tokens of one answer that are ruled out by what they close.
const REFUSALS_MAX: usize = 2_000;
/// How often an array or object may be refused to close before one of its items is given up.
const PATIENCE: usize = 4;
/// How many ways one item may begin with before one in front of it is given up.
const WAYS_MAX: usize = 3;

/// The text so far, and where in it the answer stands; what was ruled out at which token.
pub(crate) struct Watch {
    judge: Arc<Judge>,
    text: Vec<u8>,
    stand: Stand,
    /// Before each token: the token, the length of the text, and where the answer stood.
    before: Vec<(u32, usize, Stand)>,
    ruled_out: BTreeMap<usize, Vec<u32>>,
    /// The array or object that was refused to close last, and how often.
    refused: (usize, usize),
    n_refused: usize,
    /// How many ways an item was begun, by its token.
    ways: BTreeMap<usize, usize>,
    n_rewinds: usize,
}

/// Where an answer stands.
#[derive(Clone)]
struct Stand {
    open: Vec<Open>,
    state: State,
    is_whole: bool,
}

/// An array or object that is not closed.
#[derive(Clone)]
struct Open {
    /// Where its bracket is.
    start: usize,
    is_object: bool,
    /// The key of the value that is written.
    key: String,
    n_items: usize,
    is_unique: bool,
    pointers: Vec<Arc<str>>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Between values.
    Between { expects_key: bool },
    /// In a text from there on.
    Text { start: usize, is_key: bool, is_escaped: bool },
    /// In a number, `true` and the like.
    Word { start: usize },
}

impl Watch {
    pub(crate) fn new(judge: Arc<Judge>) -> Watch {
        let stand = Stand { open: Vec::new(), state: State::Between { expects_key: false }, is_whole: false };
        Watch {
            judge,
            text: Vec::new(),
            stand,
            before: Vec::new(),
            ruled_out: BTreeMap::new(),
            refused: (0, 0),
            n_refused: 0,
            ways: BTreeMap::new(),
            n_rewinds: 0,
        }
    }

    /// Returns whether the answer may end here.
    pub(crate) fn is_right(&self) -> bool {
        self.judge.is_right(&self.text)
    }

    /// Returns the tokens that are ruled out here.
    pub(crate) fn ruled_out(&self) -> &[u32] {
        self.ruled_out.get(&self.before.len()).map_or(&[], Vec::as_slice)
    }

    /// Takes a token over, or rules it out: a value that is not right closes with it.
    pub(crate) fn take(&mut self, id: u32, bytes: &[u8]) -> bool {
        let (n_text, stand) = (self.text.len(), self.stand.clone());
        let is_right =
            bytes.iter().all(|&byte| self.take_byte(byte)) && (!self.stand.is_whole || self.judge.is_right(&self.text));
        if is_right {
            self.before.push((id, n_text, stand));
            return true;
        }
        self.text.truncate(n_text);
        self.stand = stand;
        self.rule_out(id);
        let open = self.stand.open.last().map_or(0, |open| open.start);
        self.refused = (open, if self.refused.0 == open { self.refused.1 + 1 } else { 1 });
        false
    }

    /// Gives the last token up, if the answer would end with it and is not right.
    pub(crate) fn give_up_last(&mut self) -> bool {
        if self.stand.is_whole || self.judge.is_right(&self.text) {
            return false;
        }
        if let Some((id, n_text, stand)) = self.before.pop() {
            self.text.truncate(n_text);
            self.stand = stand;
            self.rule_out(id);
        }
        true
    }

    /// Rules a token out here.
    pub(crate) fn rule_out(&mut self, id: u32) {
        self.n_refused += 1;
        self.ruled_out.entry(self.before.len()).or_default().push(id);
    }

    /// Returns whether it is time to go back, or `Err` if that was done as often as may be.
    ///
    /// # Errors
    /// [`crate::GrammarErrorKind::Invalid`].
    pub(crate) fn must_rewind(&self, is_stuck: bool) -> Result<bool, GrammarError> {
        if self.n_refused > REFUSALS_MAX || (is_stuck && self.before.is_empty()) {
            return Err(self.gives_up());
        }
        Ok(is_stuck || self.refused.1 > PATIENCE)
    }

    fn gives_up(&self) -> GrammarError {
        refused(&format!(
            "no answer was found that fits all of the schema ({}), after {} ways back and {} tokens that were ruled out; \
             say more of it in the prompt",
            self.judge.keywords(),
            self.n_rewinds,
            self.n_refused
        ))
    }

    /// Goes back to where the last item began that can begin in another way, and rules out the way that it took. Returns
    /// how many tokens that is.
    ///
    /// # Errors
    /// [`crate::GrammarErrorKind::Invalid`]: there is none, or this was done as often as may be.
    pub(crate) fn rewind(&mut self) -> Result<usize, GrammarError> {
        let n = self.before.len();
        let is_left = |at: &usize| self.ways.get(at).copied().unwrap_or(0) < WAYS_MAX;
        let begins = |at: &usize| self.begins_item(*at);
        let to = (0..n).rev().filter(begins).find(is_left).or_else(|| (0..n).rev().find(is_left));
        let Some(to) = to.filter(|_| self.n_rewinds < REWINDS_MAX) else { return Err(self.gives_up()) };
        self.n_rewinds += 1;
        let (id, n_text, stand) = self.before[to].clone();
        self.text.truncate(n_text);
        self.stand = stand;
        self.before.truncate(to);
        self.ruled_out.retain(|&at, _| at <= to);
        self.ways.retain(|&at, _| at <= to);
        *self.ways.entry(to).or_default() += 1;
        self.rule_out(id);
        self.refused = (0, 0);
        Ok(n - to)
    }

    /// Returns whether an item or property begins with a token.
    fn begins_item(&self, at: usize) -> bool {
        let (_, n_text, stand) = &self.before[at];
        let last = self.text[..*n_text].iter().rev().find(|byte| !byte.is_ascii_whitespace());
        matches!(stand.state, State::Between { .. }) && matches!(last, Some(b',' | b'[' | b'{'))
    }

    fn take_byte(&mut self, byte: u8) -> bool {
        let at = self.text.len();
        self.text.push(byte);
        match (self.stand.state, byte) {
            (State::Text { start, is_key, is_escaped: true }, _) => {
                self.stand.state = State::Text { start, is_key, is_escaped: false };
                true
            }
            (State::Text { start, is_key, .. }, b'\\') => {
                self.stand.state = State::Text { start, is_key, is_escaped: true };
                true
            }
            (State::Text { start, is_key: true, .. }, b'"') => {
                self.stand.state = State::Between { expects_key: false };
                let key = serde_json::from_slice(&self.text[start..]).unwrap_or_default();
                if let Some(open) = self.stand.open.last_mut() {
                    open.key = key;
                }
                true
            }
            (State::Text { start, .. }, b'"') => {
                self.stand.state = State::Between { expects_key: false };
                self.closes(start, at + 1)
            }
            (State::Text { .. }, _) => true,
            (State::Word { start }, b' ' | b'\t' | b'\n' | b'\r' | b',' | b']' | b'}') => {
                self.stand.state = State::Between { expects_key: false };
                self.closes(start, at) && self.take_mark(byte, at)
            }
            (State::Word { .. }, _) => true,
            (State::Between { .. }, _) => self.take_mark(byte, at),
        }
    }

    /// Takes a byte outside of values over.
    fn take_mark(&mut self, byte: u8, at: usize) -> bool {
        match byte {
            b'{' | b'[' => {
                let pointers = self.pointers();
                let (is_object, is_unique) = (byte == b'{', byte == b'[' && self.judge.is_unique(&pointers));
                self.stand.open.push(Open {
                    start: at,
                    is_object,
                    key: String::new(),
                    n_items: 0,
                    is_unique,
                    pointers,
                });
                self.stand.state = State::Between { expects_key: is_object };
            }
            b'}' | b']' => {
                let Some(open) = self.stand.open.pop() else { return false };
                self.stand.state = State::Between { expects_key: false };
                let is_right = self.judge.allows(&open.pointers, &self.text[open.start..=at]);
                return is_right && self.closed();
            }
            b',' => {
                let open = self.stand.open.last_mut();
                self.stand.state = State::Between { expects_key: open.is_some_and(|open| open.is_object) };
            }
            b'"' => {
                let is_key = self.stand.state == State::Between { expects_key: true };
                self.stand.state = State::Text { start: at, is_key, is_escaped: false };
            }
            b' ' | b'\t' | b'\n' | b'\r' | b':' => {}
            _ => self.stand.state = State::Word { start: at },
        }
        true
    }

    /// Returns the schemas for the value that comes next.
    fn pointers(&self) -> Vec<Arc<str>> {
        match self.stand.open.last() {
            None => self.judge.root(),
            Some(open) if open.pointers.is_empty() => Vec::new(),
            Some(open) if open.is_object => self.judge.step(&open.pointers, &Step::Key(&open.key)),
            Some(open) => self.judge.step(&open.pointers, &Step::Item(open.n_items)),
        }
    }

    /// Looks at a text or word that closes.
    fn closes(&mut self, start: usize, end: usize) -> bool {
        let pointers = self.pointers();
        self.judge.allows(&pointers, &self.text[start..end]) && self.closed()
    }

    /// Takes note of a value that is whole, and looks at the array that it is in.
    fn closed(&mut self) -> bool {
        let Some(open) = self.stand.open.last_mut() else {
            // A number or word at the top may go on; its end is asked for.
            self.stand.is_whole = matches!(self.text.last(), Some(b'}' | b']' | b'"'));
            return true;
        };
        open.n_items += 1;
        if !open.is_unique {
            return true;
        }
        let text = self.text[open.start..].trim_ascii_end();
        let text = text.strip_suffix(b",").or(text.strip_suffix(b"]")).unwrap_or(text);
        let items: Result<Vec<Value>, _> = serde_json::from_slice(&[text, b"]"].concat());
        let Ok(items) = items else { return true };
        let (last, others) = match items.split_last() {
            Some(split) => split,
            None => return true,
        };
        !others.iter().any(|other| crate::schema::is_equal(other, last))
    }
}
