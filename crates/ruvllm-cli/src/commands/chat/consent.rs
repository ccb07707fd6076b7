//! Whether a tool may run: allowed at the start, allowed in this chat, or asked about.

use std::collections::HashMap;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_mcp::{McpPatterns, McpTool, visible};

/// The most characters of arguments that are shown, unless all are asked for.
const SHOWN_CHARS: usize = 400;
/// The most characters of one tool's name.
const NAME_CHARS: usize = 80;

/// Whether a call may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Allowed,
    /// The person said no.
    Denied,
    /// Nobody can be asked.
    Unasked,
}

/// Decides which calls may run.
#[derive(Debug)]
pub struct Consent {
    /// Names that are allowed without a question.
    patterns: McpPatterns,
    /// Tools that the person allowed for this chat. One that its server changed since is asked about again.
    always: HashMap<String, McpTool>,
    /// Whether somebody can be asked.
    can_ask: bool,
}

impl Consent {
    /// Makes one that allows the tools of these patterns, in which `*` stands for anything.
    ///
    /// # Errors
    /// A usage error if a pattern is empty.
    pub fn new(patterns: &[String], can_ask: bool) -> Result<Consent> {
        Ok(Consent { patterns: McpPatterns::new(patterns)?, always: HashMap::new(), can_ask })
    }

    /// Returns whether a tool runs without a question.
    pub fn is_allowed(&self, tool: &McpTool) -> bool {
        self.patterns.allows(tool) || self.always.get(&tool.name) == Some(tool)
    }

    /// Returns whether a call may run, and asks the person if it has to. `arguments` are JSON.
    ///
    /// # Errors
    /// The terminal cannot be used.
    pub fn decide(&mut self, tool: &McpTool, arguments: &str) -> Result<Verdict> {
        if self.is_allowed(tool) {
            return Ok(Verdict::Allowed);
        }
        if !self.can_ask {
            return Ok(Verdict::Unasked);
        }
        let mut editor = DefaultEditor::new().map_err(terminal_error)?;
        self.ask(tool, arguments, &mut |prompt| match editor.readline(prompt) {
            Ok(line) => Ok(line),
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok("n".to_owned()),
            Err(error) => Err(terminal_error(error)),
        })
    }

    fn ask(
        &mut self,
        tool: &McpTool,
        arguments: &str,
        read: &mut dyn FnMut(&str) -> Result<String>,
    ) -> Result<Verdict> {
        eprintln!("{}", question(tool, arguments, SHOWN_CHARS));
        let is_cut = arguments.chars().count() > SHOWN_CHARS;
        let more = if is_cut { ", s show all" } else { "" };
        let prompt = format!("run it? y once, a always in this chat, n no{more}: ");
        loop {
            match read(&prompt)?.trim().to_lowercase().as_str() {
                "y" | "yes" => return Ok(Verdict::Allowed),
                "a" | "always" => {
                    self.always.insert(tool.name.clone(), tool.clone());
                    return Ok(Verdict::Allowed);
                }
                "n" | "no" => return Ok(Verdict::Denied),
                "s" | "show" => eprintln!("{}", question(tool, arguments, usize::MAX)),
                _ => {}
            }
        }
    }
}

/// Returns the lines that say what is to run. All that came from the model or the server is made visible.
fn question(tool: &McpTool, arguments: &str, n_chars: usize) -> String {
    let name = |text: &str| visible(text, NAME_CHARS);
    format!("call {} of the MCP server {}:\n  {}", name(&tool.tool), name(&tool.server), visible(arguments, n_chars))
}

fn terminal_error(error: ReadlineError) -> Error {
    Error::failure(format_args!("cannot use the terminal: {error}; allow tools with --mcp-allow instead"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str) -> McpTool {
        let (server, tool) = name.split_once("__").expect("a name has both");
        let (server, tool) = (server.to_owned(), tool.to_owned());
        McpTool { name: name.to_owned(), server, tool, description: None, parameters: json!({}) }
    }

    fn consent(patterns: &[&str], can_ask: bool) -> Consent {
        let patterns: Vec<String> = patterns.iter().map(|&text| text.to_owned()).collect();
        Consent::new(&patterns, can_ask).expect("sound patterns")
    }

    #[test]
    fn patterns_allow_whole_names() {
        let allows = |pattern: &str, name: &str| consent(&[pattern], false).is_allowed(&tool(name));
        assert!(allows("fs__*", "fs__read_file") && !allows("fs__*", "fs2__read_file"));
        assert_eq!(Consent::new(&[String::new()], false).expect_err("no name").exit_code(), 2);
        assert_eq!(consent(&[], false).decide(&tool("a__b"), "{}").expect("no terminal is used"), Verdict::Unasked);
    }

    #[test]
    fn people_are_asked_until_they_answer() {
        let mut consent = consent(&[], true);
        let mut decide = |name: &str, lines: &[&str]| {
            let mut lines = lines.iter();
            let mut read = |_: &str| Ok((*lines.next().expect("a question too many")).to_owned());
            let verdict = match consent.is_allowed(&tool(name)) {
                true => Verdict::Allowed,
                false => consent.ask(&tool(name), "{}", &mut read).expect("an answer"),
            };
            assert_eq!(lines.next(), None, "{name}");
            verdict
        };
        assert_eq!(decide("a__b", &["", "maybe", "s", " Y "]), Verdict::Allowed);
        assert_eq!(decide("a__b", &["no"]), Verdict::Denied);
        assert_eq!(decide("a__b", &["a"]), Verdict::Allowed);
        assert_eq!(decide("a__b", &[]), Verdict::Allowed);
        assert_eq!(decide("a__c", &["n"]), Verdict::Denied);
        // A tool that became another one is asked about.
        let changed = McpTool { description: Some("deletes all".to_owned()), ..tool("a__b") };
        assert!(!consent.is_allowed(&changed));
    }

    #[test]
    fn a_question_hides_nothing() {
        let mut tool = tool("fs__write");
        tool.tool = "write\u{1b}[2K".to_owned();
        let told = question(&tool, "{\"path\":\"a\u{202e}b\",\"text\":\"xyz\"}", 20);
        assert_eq!(
            told,
            "call write\\u{1b}[2K of the MCP server fs:\n  {\"path\":\"a\\u{202e}b\",\"text\"… (7 more characters)"
        );
    }
}
