//! Whether an answer is right, by rules that need no judge.

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Test of an answer.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Check {
    /// Its last number (or its first) is this one.
    Number {
        /// The number.
        of: f64,
        /// Look at the first number.
        #[serde(default)]
        first: bool,
    },
    /// One of these words is in it, and none of those.
    Word {
        /// Any of them makes it right.
        of: Vec<String>,
        /// Each of them makes it wrong.
        #[serde(default)]
        not: Vec<String>,
    },
    /// The first of `among` that it says is this one.
    Choice {
        /// The right one.
        of: String,
        /// All that can be said.
        among: Vec<String>,
    },
    /// It is this text, but for white space, quotes and a full stop around it.
    Exact {
        /// The text.
        of: String,
    },
    /// There is JSON in it that is equal to this.
    Json {
        /// The value.
        of: Value,
    },
    /// This regular expression matches somewhere.
    Regex {
        /// The expression.
        of: String,
    },
}

impl Check {
    /// Returns what is wrong with the check itself.
    pub fn fault(&self) -> Option<String> {
        match self {
            Check::Regex { of } => Regex::new(of).err().map(|error| error.to_string()),
            Check::Choice { of, among } if !among.contains(of) => Some(format!("'{of}' is not among the choices")),
            Check::Word { of, .. } if of.is_empty() => Some("there is no word to look for".to_owned()),
            _ => None,
        }
    }

    /// Returns whether an answer is right.
    pub fn passes(&self, answer: &str) -> bool {
        match self {
            Check::Number { of, first } => {
                let mut numbers = numbers(answer);
                let found = if *first { numbers.next() } else { numbers.last() };
                found.is_some_and(|found| (found - of).abs() < 1e-9)
            }
            Check::Word { of, not } => {
                let says = |word: &String| position(answer, word).is_some();
                of.iter().any(says) && !not.iter().any(says)
            }
            Check::Choice { of, among } => {
                let said = among.iter().filter_map(|word| Some((position(answer, word)?, word)));
                said.min().is_some_and(|(_, word)| word == of)
            }
            Check::Exact { of } => bare(answer) == bare(of),
            Check::Json { of } => {
                let starts = answer.match_indices(['{', '[']).map(|(at, _)| at);
                starts.into_iter().any(|at| {
                    serde_json::Deserializer::from_str(&answer[at..])
                        .into_iter()
                        .next()
                        .is_some_and(|value: serde_json::Result<Value>| value.is_ok_and(|value| value == *of))
                })
            }
            Check::Regex { of } => Regex::new(of).is_ok_and(|regex| regex.is_match(answer)),
        }
    }
}

fn bare(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || "\"'`.".contains(c))
}

/// Returns where a word stands as a whole, whatever its case.
fn position(text: &str, word: &str) -> Option<usize> {
    let (text, word) = (text.to_lowercase(), word.to_lowercase());
    let is_part = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices(&word)
        .map(|(at, _)| at)
        .find(|&at| !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next()))
}

/// Returns the numbers in a text: digits with commas between thousands, a sign and a fraction.
fn numbers(text: &str) -> impl Iterator<Item = f64> + '_ {
    let is_inside = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    text.split(move |c: char| !is_inside(c) && c != '-').filter_map(move |piece| {
        let piece = piece.rsplit('-').next().map_or(piece, |digits| {
            let at = piece.len() - digits.len();
            if at > 0 { &piece[at - 1..] } else { piece }
        });
        piece.trim_end_matches(['.', ',']).replace(',', "").parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_right_by_their_rule() {
        let check = |rule: &str, right: &[&str], wrong: &[&str]| {
            let check: Check = serde_json::from_str(rule).expect("a rule");
            assert_eq!(check.fault(), None);
            right.iter().for_each(|answer| assert!(check.passes(answer), "{rule}: {answer}"));
            wrong.iter().for_each(|answer| assert!(!check.passes(answer), "{rule}: {answer}"));
        };
        check(
            r#"{"kind":"number","of":42}"#,
            &["42", "17 + 25 = 42.", "It is 42,", "forty: 42.0"],
            &["24", "42 or 43", "", "-42"],
        );
        check(r#"{"kind":"number","of":1200}"#, &["1,200", "= 1200"], &["1.200"]);
        check(r#"{"kind":"number","of":83,"first":true}"#, &["83 is larger than 38"], &["38 is less than 83"]);
        check(r#"{"kind":"word","of":["Paris"],"not":["Lyon"]}"#, &["It is paris."], &["Parisian", "Paris or Lyon"]);
        check(r#"{"kind":"word","of":["a.b1@c.org"]}"#, &["<a.b1@c.org>"], &["a.b12@c.org"]);
        check(
            r#"{"kind":"choice","of":"no","among":["yes","no"]}"#,
            &["No.", "no, not yes"],
            &["Yes", "not", "yes, no"],
        );
        check(r#"{"kind":"exact","of":"red fox"}"#, &[" \"red fox\".\n"], &["Red fox", "red fox and"]);
        check(
            r#"{"kind":"json","of":{"a":1}}"#,
            &["```json\n{\"a\": 1}\n```", "{x} {\"a\":1}"],
            &["{\"a\":2}", "{\"a\":1"],
        );
        check(r#"{"kind":"regex","of":"def f\\(.*\\):"}"#, &["def f(x):"], &["def g(x):"]);
    }

    /// The tasks of docs/lab/routing.md: each has a rule, and no answer is right by saying nothing.
    #[test]
    fn the_tasks_that_come_with_the_program_are_sound() {
        let tasks = include_str!("../../../testdata/route-tasks.jsonl");
        for line in tasks.lines() {
            let task: Value = serde_json::from_str(line).expect("JSON");
            let check: Check = serde_json::from_value(task["check"].clone()).expect("a rule");
            assert!(check.fault().is_none() && !check.passes(""), "{line}");
        }
        assert_eq!(tasks.lines().count(), 768);
    }

    #[test]
    fn rules_that_cannot_be_are_said() {
        let fault = |rule: &str| serde_json::from_str::<Check>(rule).expect("a rule").fault().is_some();
        assert!(fault(r#"{"kind":"regex","of":"("}"#));
        assert!(fault(r#"{"kind":"choice","of":"x","among":["y"]}"#));
        assert!(fault(r#"{"kind":"word","of":[]}"#));
        assert!(serde_json::from_str::<Check>(r#"{"kind":"taste","of":1}"#).is_err());
    }
}
