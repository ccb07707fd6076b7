//! An answer's text as it comes, cut into what is said and what is called.

use super::cursor::{Cursor, Miss};
use super::json::Object;
use super::{Syntax, ToolFormat, bare};

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEvent {
    /// Text that is no call.
    Text(String),
    /// A call begins. Calls are counted from 0.
    Begin {
        /// Which call of the answer it is.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of the call's arguments: JSON, piece by piece.
    Arguments {
        /// Which call of the answer it is.
        index: usize,
        /// The piece.
        json: String,
    },
    /// The call is over. Its arguments are whole, unless the answer was cut.
    End {
        /// Which call of the answer it is.
        index: usize,
    },
}

/// Where in an answer a call may begin.
pub(super) struct Place<'r> {
    /// The functions that there are.
    pub names: &'r [String],
    /// Nothing but white space and calls came before.
    pub is_start: bool,
    /// Number of calls that came before.
    pub n_calls: usize,
}

/// A call whose arguments come next.
#[derive(Debug)]
pub(super) struct Opened {
    pub name: String,
    /// Its arguments, if they were read with it.
    pub arguments: Option<String>,
}

/// Takes arguments as they come.
pub(super) trait Arguments: std::fmt::Debug + Send {
    /// Takes as much of a text as it can, all of it if no more comes (`is_end`), and adds what that is as JSON. What is
    /// left over is given again, with more behind it.
    fn take(&mut self, text: &str, is_end: bool, json: &mut String) -> Taken;
}

/// What came of a text.
pub(super) struct Taken {
    pub n_bytes: usize,
    /// The arguments are whole.
    pub is_done: bool,
}

#[derive(Debug)]
enum State {
    Text,
    Arguments(Box<dyn Arguments>),
    /// What closes a call comes next; whether its object is closed already.
    Close(bool),
}

/// Reads the calls out of an answer. Text that may become a call is held back until it is one or is not.
pub struct CallReader {
    syntax: &'static dyn Syntax,
    names: Vec<String>,
    held: String,
    state: State,
    n_calls: usize,
    is_start: bool,
    /// The last call came without the marks of the form.
    is_bare: bool,
    /// Every byte of the answer, by what it was taken for.
    #[cfg(test)]
    pub(super) taken: Vec<(char, String)>,
}

impl std::fmt::Debug for CallReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallReader").field("held", &self.held).field("state", &self.state).finish_non_exhaustive()
    }
}

impl CallReader {
    /// Reads calls of these functions in this form.
    pub fn new(format: ToolFormat, names: Vec<String>) -> CallReader {
        CallReader {
            syntax: format.syntax(),
            names,
            held: String::new(),
            state: State::Text,
            n_calls: 0,
            is_start: true,
            is_bare: false,
            #[cfg(test)]
            taken: Vec::new(),
        }
    }

    /// Returns how many calls have begun.
    pub fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Takes more of the answer, and returns what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<CallEvent> {
        self.held.push_str(text);
        let mut events = Vec::new();
        while self.advance(false, &mut events) {}
        events
    }

    /// Takes note that the answer is over, and returns what was held back.
    pub fn finish(&mut self) -> Vec<CallEvent> {
        let mut events = Vec::new();
        while self.advance(true, &mut events) {}
        if matches!(self.state, State::Arguments(_)) {
            self.end_call(&mut events);
        }
        events
    }

    /// Takes note that the answer was cut, and returns what was held back, but for the beginning of a call.
    pub fn finish_cut(&mut self) -> Vec<CallEvent> {
        if matches!(self.state, State::Text) {
            // What is held may be a call's beginning: of a model that was not cut it would have become one.
            self.held.clear();
        }
        self.finish()
    }

    /// Goes a step further; returns whether there may be another.
    fn advance(&mut self, is_end: bool, events: &mut Vec<CallEvent>) -> bool {
        if self.held.is_empty() {
            return false;
        }
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text => self.text(is_end, events),
            State::Arguments(mut arguments) => {
                let mut json = String::new();
                let Taken { n_bytes, is_done } = arguments.take(&self.held, is_end, &mut json);
                self.take(n_bytes, 'a');
                self.state = State::Arguments(arguments);
                if !json.is_empty() {
                    events.push(CallEvent::Arguments { index: self.n_calls - 1, json });
                }
                if is_done {
                    self.end_call(events);
                    self.state = State::Close(false);
                }
                is_done
            }
            State::Close(is_object_closed) => {
                let mut cursor = Cursor::new(&self.held, is_end);
                let result = match self.is_bare {
                    true => bare::close(&mut cursor, is_object_closed),
                    false => self.syntax.close(&mut cursor, is_object_closed),
                };
                let n_bytes = cursor.at();
                if result == Err(Miss::More) {
                    self.state = State::Close(is_object_closed);
                    return false;
                }
                self.take(if result.is_ok() { n_bytes } else { 0 }, 'c');
                true
            }
        }
    }

    fn end_call(&mut self, events: &mut Vec<CallEvent>) {
        events.push(CallEvent::End { index: self.n_calls - 1 });
    }

    /// Looks for the beginning of a call.
    fn text(&mut self, is_end: bool, events: &mut Vec<CallEvent>) -> bool {
        for (at, _) in self.held.char_indices() {
            let is_start = self.is_start && self.held[..at].trim_ascii().is_empty();
            let place = Place { names: &self.names, is_start, n_calls: self.n_calls };
            let mut cursor = Cursor::new(&self.held[at..], is_end);
            let own = self.syntax.open(&mut cursor, &place);
            // What may become a call of the model's own form is none without it.
            let is_bare = matches!(own, Err(Miss::No));
            let result = if is_bare {
                cursor = Cursor::new(&self.held[at..], is_end);
                bare::open(&mut cursor, &place)
            } else {
                own
            };
            match result {
                Ok(opened) => {
                    let n_bytes = cursor.at();
                    self.say(at, events);
                    self.take(n_bytes, 'o');
                    self.is_bare = is_bare;
                    self.begin(opened, events);
                    return true;
                }
                Err(Miss::No) => {}
                Err(Miss::More) => {
                    self.say(at, events);
                    return false;
                }
            }
        }
        self.say(self.held.len(), events);
        false
    }

    fn begin(&mut self, opened: Opened, events: &mut Vec<CallEvent>) {
        let index = self.n_calls;
        self.n_calls += 1;
        self.is_start = true;
        events.push(CallEvent::Begin { index, name: opened.name });
        self.state = match opened.arguments {
            Some(json) => {
                events.push(CallEvent::Arguments { index, json });
                self.end_call(events);
                State::Close(true)
            }
            None if self.is_bare => State::Arguments(Box::<Object>::default()),
            None => State::Arguments(self.syntax.arguments()),
        };
    }

    fn say(&mut self, n_bytes: usize, events: &mut Vec<CallEvent>) {
        if n_bytes > 0 {
            let text = self.take(n_bytes, 't');
            self.is_start &= text.trim_ascii().is_empty();
            events.push(CallEvent::Text(text));
        }
    }

    fn take(&mut self, n_bytes: usize, _what: char) -> String {
        let text: String = self.held.drain(..n_bytes).collect();
        #[cfg(test)]
        self.taken.push((_what, text.clone()));
        text
    }
}
