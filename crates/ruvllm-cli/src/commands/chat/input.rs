//! Lines of a conversation: read with editing and history at a terminal, plainly from a pipe; and what they mean.

use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use ruvllm_cli_tools::error::{Error, Result, io_reason};

/// Request of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Nothing.
    Empty,
    /// To be answered.
    Say(String),
    /// `/help`
    Help,
    /// `/system [TEXT]`
    System(Option<String>),
    /// `/clear`
    Clear,
    /// `/regen`
    Regen,
    /// `/save FILE`
    Save(PathBuf),
    /// `/load FILE`
    Load(PathBuf),
    /// `/set [KEY VALUE]`
    Set(Option<(String, String)>),
    /// `/stats`
    Stats,
    /// `/tools`
    Tools,
    /// `/good`
    Good,
    /// `/bad`
    Bad,
    /// `/correct TEXT`
    Correct(String),
    /// `/exit`
    Exit,
    /// A command that does not exist or lacks something: what to tell.
    Wrong(String),
}

/// Returns what `text` asks for: a command if it begins with `/`, else something to be answered.
pub fn parse(text: &str) -> Line {
    let text = text.trim();
    let Some(command) = text.strip_prefix('/') else {
        return if text.is_empty() { Line::Empty } else { Line::Say(text.to_owned()) };
    };
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    let given = (!rest.is_empty()).then(|| rest.to_owned());
    match (name, given) {
        ("help" | "?", _) => Line::Help,
        ("system", text) => Line::System(text),
        ("clear", _) => Line::Clear,
        ("regen", _) => Line::Regen,
        ("save", Some(file)) => Line::Save(PathBuf::from(file)),
        ("load", Some(file)) => Line::Load(PathBuf::from(file)),
        ("save" | "load", None) => Line::Wrong(format!("/{name} needs a file; write /{name} FILE")),
        ("set", None) => Line::Set(None),
        ("set", Some(pair)) => match pair.split_once(|c: char| c.is_whitespace() || c == '=') {
            Some((key, value)) => Line::Set(Some((key.to_owned(), value.trim().to_owned()))),
            None => Line::Wrong(format!("/set {pair} needs a value; write /set {pair} VALUE")),
        },
        ("stats", _) => Line::Stats,
        ("tools", _) => Line::Tools,
        ("good", _) => Line::Good,
        ("bad", _) => Line::Bad,
        ("correct", Some(text)) => Line::Correct(text),
        ("correct", None) => Line::Wrong("/correct needs the right answer; write /correct TEXT".to_owned()),
        ("exit" | "quit" | "bye", _) => Line::Exit,
        _ => Line::Wrong(format!("unknown command '/{name}'; /help shows the commands")),
    }
}

/// Gathers the lines of one text: a trailing backslash or an open `"""` asks for another.
#[derive(Debug, Default)]
struct Gather {
    text: String,
    is_block: bool,
}

impl Gather {
    /// Adds a line; returns the whole text once it is complete.
    fn push(&mut self, line: &str) -> Option<String> {
        const FENCE: &str = "\"\"\"";
        if self.is_block {
            let Some((last, _)) = line.split_once(FENCE) else {
                self.text.push_str(line);
                self.text.push('\n');
                return None;
            };
            self.text.push_str(last);
        } else if let Some(first) = line.trim_start().strip_prefix(FENCE).filter(|_| self.text.is_empty()) {
            if let Some((whole, _)) = first.split_once(FENCE) {
                return Some(whole.to_owned());
            }
            self.is_block = true;
            if !first.is_empty() {
                self.text = format!("{first}\n");
            }
            return None;
        } else if let Some(line) = line.strip_suffix('\\') {
            self.text.push_str(line);
            self.text.push('\n');
            return None;
        } else {
            self.text.push_str(line);
        }
        Some(std::mem::take(self).text)
    }

    fn is_open(&self) -> bool {
        self.is_block || !self.text.is_empty()
    }
}

/// Reads lines.
pub enum Reader {
    /// From a person, with editing and history.
    Editor {
        /// The line editor.
        editor: Box<DefaultEditor>,
        /// Where the history is kept.
        history: PathBuf,
    },
    /// From a pipe or file.
    Plain(io::Lines<io::StdinLock<'static>>),
}

impl Reader {
    /// Opens standard input. The line editor writes to standard output: with `is_plain`, or where that is no terminal, lines are
    /// read without it, so that nothing but answers is there.
    ///
    /// # Errors
    /// A failure if the terminal cannot be used.
    pub fn new(history: &Path, is_plain: bool) -> Result<Reader> {
        if is_plain || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(Reader::Plain(io::stdin().lock().lines()));
        }
        let mut editor = DefaultEditor::new().map_err(|error| terminal_error(&error))?;
        // The first time there is no history.
        let _ = editor.load_history(history);
        Ok(Reader::Editor { editor: Box::new(editor), history: history.to_path_buf() })
    }

    /// Tells whether a person writes.
    pub fn is_person() -> bool {
        io::stdin().is_terminal()
    }

    /// Returns whether somebody can be asked in between: a person at a terminal who is answered there.
    pub fn can_ask(&self) -> bool {
        matches!(self, Reader::Editor { .. })
    }

    /// Returns what the next text asks for, `None` at the end of input.
    ///
    /// # Errors
    /// A failure if standard input cannot be read.
    pub fn next_line(&mut self) -> Result<Option<Line>> {
        let mut gather = Gather::default();
        loop {
            let line = match self {
                Reader::Plain(lines) => lines.next().transpose().map_err(|error| {
                    Error::failure(format_args!("cannot read standard input: {}", io_reason(&error)))
                })?,
                Reader::Editor { editor, .. } => match editor.readline(if gather.is_open() { ". " } else { "> " }) {
                    Ok(line) => Some(line),
                    Err(ReadlineError::Eof) => None,
                    Err(ReadlineError::Interrupted) => {
                        if !gather.is_open() {
                            eprintln!("Ctrl-D or /exit leaves");
                        }
                        gather = Gather::default();
                        continue;
                    }
                    Err(error) => return Err(terminal_error(&error)),
                },
            };
            let Some(line) = line else {
                let rest = std::mem::take(&mut gather.text);
                return Ok((!rest.trim().is_empty()).then(|| parse(&rest)));
            };
            let is_literal = gather.is_block || line.trim_start().starts_with("\"\"\"");
            if let Some(text) = gather.push(&line) {
                self.remember(&text);
                let is_empty = text.trim().is_empty();
                return Ok(Some(if is_literal && !is_empty { Line::Say(text) } else { parse(&text) }));
            }
        }
    }

    fn remember(&mut self, text: &str) {
        if let Reader::Editor { editor, .. } = self
            && !text.trim().is_empty()
        {
            // History is a convenience; a line it does not take is not worth a word.
            let _ = editor.add_history_entry(text);
        }
    }

    /// Writes the history file; a folder that cannot be written costs only the history.
    pub fn save_history(&mut self) {
        if let Reader::Editor { editor, history } = self {
            let _ = history.parent().map(std::fs::create_dir_all);
            let _ = editor.save_history(history);
        }
    }
}

fn terminal_error(error: &ReadlineError) -> Error {
    Error::failure(format_args!("cannot use the terminal: {error}; pipe the questions in instead"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(lines: &[&str]) -> Vec<String> {
        let mut gather = Gather::default();
        lines.iter().filter_map(|line| gather.push(line)).collect()
    }

    #[test]
    fn commands_are_told_from_text() {
        assert_eq!(parse("  hello / there "), Line::Say("hello / there".to_owned()));
        assert_eq!(parse("  "), Line::Empty);
        assert_eq!(parse("/help"), Line::Help);
        assert_eq!(parse("/system Be  brief."), Line::System(Some("Be  brief.".to_owned())));
        assert_eq!(parse("/system"), Line::System(None));
        assert_eq!(parse("/save a b.json"), Line::Save(PathBuf::from("a b.json")));
        assert_eq!(parse("/set temp 0.5"), Line::Set(Some(("temp".to_owned(), "0.5".to_owned()))));
        assert_eq!(parse("/set temp=0.5"), Line::Set(Some(("temp".to_owned(), "0.5".to_owned()))));
        assert_eq!((parse("/quit"), parse("/tools")), (Line::Exit, Line::Tools));
        for wrong in ["/save", "/load", "/set temp", "/", "/sing"] {
            assert!(matches!(parse(wrong), Line::Wrong(_)), "{wrong}");
        }
    }

    #[test]
    fn long_texts_are_gathered() {
        assert_eq!(gathered(&["a"]), ["a"]);
        assert_eq!(gathered(&["a\\", "b\\", "c", "d"]), ["a\nb\nc", "d"]);
        assert_eq!(gathered(&["\"\"\"a", "", "b\"\"\"", "c"]), ["a\n\nb", "c"]);
        assert_eq!(gathered(&["\"\"\"one line\"\"\""]), ["one line"]);
        assert_eq!(gathered(&["\"\"\"", "a\\", "\"\"\""]), ["a\\\n"]);
        assert!(gathered(&["\"\"\"a", "b"]).is_empty());
    }
}
