//! Tools that are allowed by name.

use crate::error::{McpError, McpErrorKind};
use crate::servers::McpTool;

/// Patterns of tools that may run, by their whole names. `*` stands for anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct McpPatterns(Vec<String>);

impl McpPatterns {
    /// Makes them of texts such as `fs__read_file`, `fs__*` or `*`.
    ///
    /// # Errors
    /// One is empty.
    pub fn new(patterns: &[String]) -> Result<McpPatterns, McpError> {
        if patterns.iter().any(String::is_empty) {
            let line = "--mcp-allow needs the name of a tool: fs__read_file, fs__* or *";
            return Err(McpError::new(McpErrorKind::Config, line));
        }
        Ok(McpPatterns(patterns.to_vec()))
    }

    /// Returns whether there are none: nothing is allowed then.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether one of them is that of a tool.
    pub fn allows(&self, tool: &McpTool) -> bool {
        self.0.iter().any(|pattern| fits(pattern, &tool.name))
    }
}

/// Returns whether a name fits a pattern as a whole.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(begin) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        // The first place leaves the most for those behind it.
        let Some((_, behind)) = name.split_once(part) else { return false };
        name = behind;
    }
    name.ends_with(end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn allows(pattern: &str, name: &str) -> bool {
        let (server, tool) = name.split_once("__").expect("a name has both");
        let (server, tool) = (server.to_owned(), tool.to_owned());
        let tool = McpTool { name: name.to_owned(), server, tool, description: None, parameters: json!({}) };
        McpPatterns::new(&[pattern.to_owned()]).expect("a sound pattern").allows(&tool)
    }

    #[test]
    fn patterns_allow_whole_names() {
        for pattern in ["fs__read_file", "fs__*", "*", "fs__read*file", "*read*", "f*_*_*e", "**", "fs__read_file*"] {
            assert!(allows(pattern, "fs__read_file"), "{pattern}");
        }
        for pattern in
            ["fs__read", "fs2__*", "f.__read_file", "read*", "*read", "fs__read_file*e", "*_file_*file", "FS__*"]
        {
            assert!(!allows(pattern, "fs__read_file"), "{pattern}");
        }
        assert!(!allows("fs__*", "fs2__read_file") && !allows("a__b*b", "a__b") && allows("a__b*b", "a__bb"));
    }

    #[test]
    fn no_pattern_allows_nothing_and_an_empty_one_is_refused() {
        assert!(McpPatterns::default().is_empty());
        assert!(McpPatterns::new(&[String::new()]).expect_err("no name").to_string().contains("--mcp-allow"));
    }
}
