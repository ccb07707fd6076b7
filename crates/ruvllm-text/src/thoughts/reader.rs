//! Tells what a model thinks from its answer, as the text comes.

use super::ThoughtFormat;

/// The place of the text that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space came, or the beginning of a mark.
    Begin,
    /// Behind the opening mark, with white space first.
    Opened,
    Thinking,
    /// Behind the closing mark, with white space and the answer's own mark first.
    Closed,
    Answering,
}

/// Reads an answer that may begin with a thought.
#[derive(Debug)]
pub struct ThoughtReader {
    format: &'static ThoughtFormat,
    state: State,
    /// Text that is not certain yet.
    held: String,
}

impl ThoughtReader {
    /// Makes a reader; `is_open` if the prompt ends with the opening mark.
    pub fn new(format: &'static ThoughtFormat, is_open: bool) -> ThoughtReader {
        ThoughtReader { format, state: if is_open { State::Opened } else { State::Begin }, held: String::new() }
    }

    /// Takes more text, and returns what is certain now: of the thought, and of the answer.
    pub fn push(&mut self, text: &str) -> (String, String) {
        self.held.push_str(text);
        let ThoughtFormat { open, close, leads, .. } = *self.format;
        let mut thought = String::new();
        loop {
            let begun = self.held.trim_start();
            let lead = leads.iter().find(|lead| begun.starts_with(**lead));
            let may_lead = leads.iter().any(|lead| lead.starts_with(begun));
            match self.state {
                State::Begin if begun.starts_with(open) => self.go(State::Opened, open),
                State::Begin | State::Closed if lead.is_some() => self.go(State::Closed, lead.unwrap_or(&"")),
                State::Begin if may_lead || open.starts_with(begun) => return (thought, String::new()),
                State::Begin => self.state = State::Answering,
                State::Opened | State::Closed if begun.is_empty() => {
                    self.held.clear();
                    return (thought, String::new());
                }
                State::Opened => self.go(State::Thinking, ""),
                State::Closed if may_lead => return (thought, String::new()),
                State::Closed => self.go(State::Answering, ""),
                State::Thinking => {
                    let Some((before, behind)) = self.held.split_once(close) else {
                        let rest = self.held.split_off(certain(&self.held, close));
                        thought.push_str(&std::mem::replace(&mut self.held, rest));
                        return (thought, String::new());
                    };
                    thought.push_str(before.trim_end());
                    (self.held, self.state) = (behind.to_owned(), State::Closed);
                }
                State::Answering => return (thought, self.answer()),
            }
        }
    }

    /// Returns what was held back, when no more text comes.
    pub fn finish(&mut self) -> (String, String) {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Opened | State::Thinking => (rest, String::new()),
            _ => (String::new(), rest),
        }
    }

    /// Goes on behind white space and a mark.
    fn go(&mut self, state: State, mark: &str) {
        let begun = self.held.trim_start();
        self.held = begun.strip_prefix(mark).unwrap_or(begun).to_owned();
        self.state = state;
    }

    /// Returns the certain text of the answer, without the mark behind it.
    fn answer(&mut self) -> String {
        let tail = self.format.tail;
        if tail.is_empty() {
            return std::mem::take(&mut self.held);
        }
        if let Some((before, behind)) = self.held.split_once(tail) {
            self.held = format!("{}{behind}", before.trim_end());
        }
        let rest = self.held.split_off(certain(&self.held, tail));
        std::mem::replace(&mut self.held, rest)
    }
}

/// Returns how many bytes in front of a mark are certain: white space at the end, and what may begin the mark, are not.
fn certain(text: &str, mark: &str) -> usize {
    let begins = |n: usize| mark.is_char_boundary(n) && text.ends_with(&mark[..n]);
    let n_begun = (1..mark.len()).rev().find(|&n| begins(n)).unwrap_or(0);
    text[..text.len() - n_begun].trim_end().len()
}
