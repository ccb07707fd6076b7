//! Names of tools as models and APIs take them: letters, digits, `_` and `-`, at most 64.

use std::collections::HashSet;

/// The most characters of a name, as OpenAI's API has it.
const N_CHARS_MAX: usize = 64;
/// The most characters of a server's part of it.
const N_PREFIX_MAX: usize = 24;

/// Returns a server's part of its tools' names: without `__`, so that where it ends is certain. Empty if the name has no
/// letter and no digit.
pub(crate) fn prefix(server: &str) -> String {
    let mut name = String::new();
    for c in server.chars().map(allowed) {
        if c != '_' || !name.ends_with('_') {
            name.push(c);
        }
    }
    let name = name.trim_matches(['_', '-']);
    let end = name.len().min(N_PREFIX_MAX);
    name[..end].trim_end_matches('_').to_owned()
}

/// Gives tools of servers names that no two have.
#[derive(Debug, Default)]
pub(crate) struct Names(HashSet<String>);

impl Names {
    /// Returns the name of a tool.
    pub(crate) fn of(&mut self, prefix: &str, tool: &str) -> String {
        let whole: String = format!("{prefix}__").chars().chain(tool.chars().map(allowed)).take(N_CHARS_MAX).collect();
        let mut name = whole.clone();
        let mut n = 1;
        while !self.0.insert(name.clone()) {
            n += 1;
            let suffix = format!("_{n}");
            name = whole.chars().take(N_CHARS_MAX - suffix.len()).chain(suffix.chars()).collect();
        }
        name
    }
}

fn allowed(c: char) -> char {
    if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_servers_end_where_it_can_be_seen() {
        for (server, expected) in
            [("fs", "fs"), ("My Files!", "My_Files"), ("a__b", "a_b"), ("_x_", "x"), ("…", ""), ("a.b/c", "a_b_c")]
        {
            assert_eq!(prefix(server), expected, "{server}");
        }
        assert_eq!(prefix(&"ab_".repeat(20)).len(), 23);
    }

    #[test]
    fn no_two_tools_have_one_name() {
        let mut names = Names::default();
        assert_eq!(names.of("fs", "read_file"), "fs__read_file");
        assert_eq!(names.of("fs", "read.file"), "fs__read_file_2");
        assert_eq!(names.of("fs", "read file"), "fs__read_file_3");
        let (long, other) = (names.of("fs", &"x".repeat(100)), names.of("fs", &"x".repeat(101)));
        assert_eq!((long.len(), other.len()), (64, 64));
        assert!(other.ends_with("_2") && long != other);
    }
}
