//! What a model thinks before it answers, told apart from the answer as the text comes.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Where the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space came, or the beginning of a tag.
    Begin,
    /// Behind the opening tag, with white space first.
    Opened,
    Thinking,
    /// Behind the closing tag, with white space first.
    Closed,
    Answering,
}

/// Reads an answer that may begin with thoughts.
#[derive(Debug)]
pub(super) struct Thoughts {
    state: State,
    /// Text that is not certain yet.
    held: String,
}

impl Thoughts {
    /// A reader; `is_open` if the prompt ends with the opening tag.
    pub(super) fn new(is_open: bool) -> Thoughts {
        Thoughts { state: if is_open { State::Opened } else { State::Begin }, held: String::new() }
    }

    /// Takes more text, and returns what is certain now: thoughts, and the answer.
    pub(super) fn push(&mut self, text: &str) -> (String, String) {
        self.held.push_str(text);
        let mut thought = String::new();
        loop {
            match self.state {
                State::Begin => {
                    let begun = self.held.trim_start();
                    if let Some(rest) = begun.strip_prefix(OPEN) {
                        (self.held, self.state) = (rest.to_owned(), State::Opened);
                    } else if OPEN.starts_with(begun) {
                        return (thought, String::new());
                    } else {
                        self.state = State::Answering;
                    }
                }
                State::Opened | State::Closed => {
                    self.held = self.held.trim_start().to_owned();
                    if self.held.is_empty() {
                        return (thought, String::new());
                    }
                    self.state = if self.state == State::Opened { State::Thinking } else { State::Answering };
                }
                State::Thinking => {
                    let Some((before, behind)) = self.held.split_once(CLOSE) else {
                        let rest = self.held.split_off(certain(&self.held));
                        thought.push_str(&std::mem::replace(&mut self.held, rest));
                        return (thought, String::new());
                    };
                    thought.push_str(before.trim_end());
                    (self.held, self.state) = (behind.to_owned(), State::Closed);
                }
                State::Answering => return (thought, std::mem::take(&mut self.held)),
            }
        }
    }

    /// Returns what was held back, when no more text comes.
    pub(super) fn finish(&mut self) -> (String, String) {
        let rest = std::mem::take(&mut self.held);
        match self.state {
            State::Opened | State::Thinking => (rest, String::new()),
            _ => (String::new(), rest),
        }
    }
}

/// Returns how many bytes of thoughts are certain: white space at the end, and what may begin a closing tag, are not.
fn certain(text: &str) -> usize {
    let n_begun = (1..CLOSE.len()).rev().find(|&n| text.ends_with(&CLOSE[..n])).unwrap_or(0);
    text[..text.len() - n_begun].trim_end().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a text in pieces of `n` characters.
    fn read(text: &str, is_open: bool, n: usize) -> (String, String) {
        let (mut thoughts, mut all) = (Thoughts::new(is_open), (String::new(), String::new()));
        let mut add = |(thought, said): (String, String)| {
            all.0.push_str(&thought);
            all.1.push_str(&said);
        };
        let chars: Vec<char> = text.chars().collect();
        chars.chunks(n).for_each(|piece| add(thoughts.push(&piece.iter().collect::<String>())));
        add(thoughts.finish());
        all
    }

    #[test]
    fn thoughts_and_answers_are_told_apart_however_they_come() {
        for (text, is_open, thought, said) in [
            ("<think>\nhm, 1 < 2 </b\n\n</think>\n\nyes\n", false, "hm, 1 < 2 </b", "yes\n"),
            ("\n<think>\n</think>yes", false, "", "yes"),
            ("hm\n</think>\nyes", true, "hm", "yes"),
            (" yes <think>no</think>", false, "", " yes <think>no</think>"),
            ("<thin", false, "", "<thin"),
            ("<think>hm </th", false, "hm </th", ""),
            ("", false, "", ""),
        ] {
            for n in 1..=text.len().max(1) {
                assert_eq!(read(text, is_open, n), (thought.to_owned(), said.to_owned()), "{text:?} by {n}");
            }
        }
    }
}
