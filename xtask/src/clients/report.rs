//! What came of a client, and the table of all.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::table::Client;

/// The checks that have a column of their own.
const COLUMNS: [&str; 5] = ["chat", "stream", "tools", "typed", "history"];

/// What came of one check; scripts print it as a line of JSON.
#[derive(Deserialize, Serialize)]
pub(super) struct Check {
    check: String,
    outcome: Outcome,
    note: String,
}

#[derive(Clone, Copy, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Ok,
    /// Client and server did their part, the model did not.
    Model,
    Failed,
}

impl Check {
    /// Tells what an agent made of its task: `text` is what the file holds.
    pub(super) fn of_file(text: Option<&str>) -> Check {
        let (outcome, note) = match text {
            Some(text) if text.trim() == "hello" => (Outcome::Ok, String::new()),
            Some(text) => (Outcome::Model, format!("the model wrote {text:?} into the file")),
            None => (Outcome::Model, "the model made no file".to_owned()),
        };
        Check { check: "file".to_owned(), outcome, note }
    }

    fn word(&self) -> &'static str {
        match self.outcome {
            Outcome::Ok => "ok",
            Outcome::Model => "model",
            Outcome::Failed => "FAILED",
        }
    }
}

/// What came of a client.
pub(super) struct Report<'a> {
    pub client: &'a Client,
    pub checks: Vec<Check>,
    /// How its script ended.
    pub end: String,
    /// Lines of the server's log: requests that it refused.
    pub refused: Vec<String>,
    pub took: Duration,
}

impl Report<'_> {
    pub(super) fn name(&self) -> &'static str {
        self.client.name
    }

    pub(super) fn failed(&self) -> bool {
        let has_failed = self.checks.iter().any(|check| check.outcome == Outcome::Failed);
        has_failed || self.end != "rc 0" || !self.refused.is_empty()
    }

    /// Returns its row.
    pub(super) fn line(&self) -> String {
        let word = |name| self.checks.iter().find(|check| check.check == name).map_or("-", Check::word);
        let columns = COLUMNS.map(word).join(" | ");
        let others = self.checks.iter().filter(|check| !COLUMNS.contains(&check.check.as_str()));
        let others: Vec<_> = others.map(|check| format!("{} {}", check.check, check.word())).collect();
        let (name, version, n_refused) = (self.name(), self.client.version(), self.refused.len());
        let (others, end, seconds) = (others.join(", "), &self.end, self.took.as_secs());
        format!("| {name} | {version} | {columns} | {others} | {end} | {n_refused} | {seconds} |")
    }

    /// Returns a line for each thing that needs words.
    fn notes(&self) -> Vec<String> {
        let checks = self.checks.iter().filter(|check| !check.note.is_empty());
        let notes = checks.map(|check| format!("- {} {}: {}", self.name(), check.check, check.note.replace('\n', " ")));
        notes.chain(self.refused.iter().map(|line| format!("- {} was refused: {line}", self.name()))).collect()
    }
}

/// Returns a Markdown table, and the notes under it.
pub(super) fn table(reports: &[Report<'_>]) -> String {
    let mut text = format!("| client | version | {} | more | end | refused | s |\n", COLUMNS.join(" | "));
    writeln!(text, "{}|", "|---".repeat(COLUMNS.len() + 6)).expect("a text takes all");
    for report in reports {
        writeln!(text, "{}", report.line()).expect("a text takes all");
    }
    let notes: Vec<_> = reports.iter().flat_map(Report::notes).collect();
    format!("{text}\n{}\n", notes.join("\n"))
}

/// Returns all on one line.
pub(super) fn json(reports: &[Report<'_>]) -> String {
    let all = reports.iter().map(|report| {
        json!({
            "client": report.name(), "version": report.client.version(), "checks": report.checks, "end": report.end,
            "refused": report.refused, "seconds": report.took.as_secs_f64(), "failed": report.failed(),
        })
    });
    serde_json::Value::from_iter(all).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_tell_what_failed() {
        let check = |text| serde_json::from_str(text).expect("a check");
        let mut report = Report {
            client: &super::super::table::CLIENTS[0],
            checks: vec![
                check(r#"{"check": "chat", "outcome": "ok", "note": ""}"#),
                check(r#"{"check": "tools", "outcome": "model", "note": "no\ncall"}"#),
            ],
            end: "rc 0".to_owned(),
            refused: Vec::new(),
            took: Duration::from_millis(1500),
        };
        assert!(!report.failed());
        let version = report.client.version();
        assert_eq!(report.line(), format!("| openai | {version} | ok | - | model | - | - |  | rc 0 | 0 | 1 |"));
        assert_eq!(report.notes(), ["- openai tools: no call"]);
        report.refused.push("status=400".to_owned());
        assert!(report.failed() && json(&[report]).contains(r#""failed":true"#));
    }
}
