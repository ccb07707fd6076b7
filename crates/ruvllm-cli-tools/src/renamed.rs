//! Options that had another name before: they are taken for one more release, and a line names the new one.

use std::ffi::OsString;

/// Old names of options, each with the new one. Every old name is a hidden alias of its option.
pub const RENAMED: [(&str, &str); 6] = [
    ("--no-screen", "--no-head-shortlist"),
    ("--dry-breaker", "--dry-sequence-breaker"),
    ("--dry-last-n", "--dry-penalty-last-n"),
    ("--rough", "--approx-logits"),
    ("--optimise", "--autotune"),
    ("--optimise-kv", "--autotune-kv"),
];

/// Old names of fields of policies, each with the new one.
const FIELDS: [(&str, &str); 2] = [("guessed_rows", "draft_rows"), ("guesses_max", "draft_tokens_max")];

/// Returns a line for every old name among the arguments, each once.
pub fn notices(args: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let before_texts = args.into_iter().take_while(|arg| arg != "--");
    let names = before_texts.filter_map(|arg| arg.to_str().map(|arg| arg.split('=').next().unwrap_or(arg).to_owned()));
    let mut lines: Vec<String> = Vec::new();
    for line in names.filter_map(|name| notice(&name)) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Returns the line for an option, or a field of a policy, if its name is an old one.
pub fn notice(name: &str) -> Option<String> {
    let (old, new) = RENAMED.iter().chain(&FIELDS).find(|(old, _)| *old == name)?;
    Some(format!("{old} is now {new}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(args: &str) -> Vec<String> {
        notices(args.split(' ').map(OsString::from))
    }

    #[test]
    fn old_names_are_told_once() {
        assert_eq!(lines("run --no-head-shortlist --prompt x"), Vec::<String>::new());
        assert_eq!(lines("run --dry-breaker a --dry-breaker=b"), ["--dry-breaker is now --dry-sequence-breaker"]);
        assert_eq!(lines("tokenize -- --no-screen"), Vec::<String>::new());
    }
}
