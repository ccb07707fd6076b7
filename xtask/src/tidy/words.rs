//! Public items are named by the words of the field, and the first sentence of their docs names its subject.
//!
//! [`NAMES`] and [`WORDS`] hold the families that are finished (`adr/0026-names-of-the-field.md`).

use std::collections::BTreeMap;

/// Identifiers that public items do not have, each with the field's.
const NAMES: [(&str, &str); 53] = [
    ("Drafting", "Drafter"),
    ("Pace", "DraftLength"),
    ("Guesses", "DraftLimits"),
    ("right_tokens", "accepted_tokens"),
    ("Standing", "Admission"),
    ("Ledger", "VirtualTokenCounters"),
    ("GaveWay", "Preempted"),
    ("gave_way", "preempted"),
    ("give_way", "evict or preempt"),
    ("gives_place", "holder_to_preempt"),
    ("known_prefix", "match_prefix"),
    ("Tops", "TopK"),
    ("Learner", "LogitsProcessor"),
    ("learner", "logits_processor"),
    ("bring_near", "prefetch"),
    ("Team", "ThreadPool"),
    ("team", "threads"),
    ("Desk", "WorkerSlot"),
    ("Bell", "Event"),
    ("Patience", "SpinPolicy"),
    ("Absence", "PreemptionDetector"),
    ("News", "Signal"),
    ("Upcoming", "NextShares"),
    ("Beside", "PrefetchPlan"),
    ("Ahead", "Prefetcher"),
    ("near", "prefetch_plan"),
    ("Cut", "Chunking"),
    ("dry_breaker", "dry_sequence_breaker"),
    ("dry_breakers", "dry_sequence_breakers"),
    ("dry_last_n", "dry_penalty_last_n"),
    ("Usual", "Baseline"),
    ("Scope", "CacheSalt"),
    ("Notes", "RequestTrace"),
    ("Came", "ObservedToken"),
    ("Told", "Corrected"),
    ("Taught", "TrainingItem"),
    ("Passage", "Span"),
    ("take_in", "ingest"),
    ("n_heard", "n_observed"),
    ("Mind", "TenantState"),
    ("Asking", "RequestLearner"),
    ("Memory", "Datastore"),
    ("Recall", "KnnDistribution"),
    ("Trail", "RunningFeatures"),
    ("Evidence", "LogOdds"),
    ("Judged", "Evaluation"),
    ("keep_up", "maintain"),
    ("held_back", "holdout"),
    ("Course", "EvaluationStream"),
    ("Shown", "TextChunk"),
    ("study", "learn_document"),
    ("dear_max", "extra_cost_max"),
    ("sure", "z_score"),
];

/// Words that are no part of a public identifier, each with the field's.
const WORDS: [(&str, &str); 17] = [
    ("guess", "draft"),
    ("guesses", "draft tokens"),
    ("guessed", "drafted"),
    ("guessing", "drafting"),
    ("screen", "head shortlist"),
    ("screened", "approximate"),
    ("rough", "approx"),
    ("optimise", "autotune"),
    ("optimiser", "autotuner"),
    ("ledger", "counters"),
    ("heir", "quantised copy"),
    ("heirs", "quantised copies"),
    ("passage", "span"),
    ("episode", "correction"),
    ("episodes", "corrections"),
    ("upkeep", "maintenance"),
    ("upkept", "maintenance outcome"),
];

/// Openings of a first sentence that put off its subject.
const OPENINGS: [&str; 6] = ["What", "Which", "How", "Those", "Such", "The same"];

/// Sources that are generated, and have the docs of what they are made from.
pub(super) const GENERATED: [&str; 1] = ["crates/ruvllm-server/src/handlers/grpc/v1.rs"];

/// Keywords of the items that have a name.
const ITEMS: [&str; 9] = ["fn", "struct", "enum", "trait", "mod", "const", "static", "type", "union"];

/// Keywords that may stand before those.
const QUALIFIERS: [&str; 3] = ["unsafe", "async", "extern"];

/// Checks the sources of the crates.
pub(super) fn check(files: &BTreeMap<String, String>, findings: &mut Vec<String>) {
    for (path, text) in files.iter().filter(|(path, _)| path.starts_with("crates/") && path.contains("/src/")) {
        if path.ends_with(".rs") {
            source(path, text, findings);
        }
    }
}

fn source(path: &str, text: &str, findings: &mut Vec<String>) {
    let mut first: Option<(usize, &str)> = None;
    for (at, line) in (1..).zip(text.lines().map(str::trim)) {
        if let Some(doc) = line.strip_prefix("///") {
            first.get_or_insert((at, doc.trim()));
        } else if let Some(item) = line.strip_prefix("pub ") {
            if let Some(advice) = declared(item).and_then(advice) {
                findings.push(format!("{path}:{at}: {advice}"));
            }
            if let Some((at, opening)) = first.take().and_then(|(at, doc)| Some((at, opening(doc)?)))
                && !GENERATED.iter().any(|folder| path.starts_with(folder))
            {
                findings.push(format!("{path}:{at}: opens with '{opening}'; name the subject, then say what it is"));
            }
        } else if !line.starts_with("#[") {
            first = None;
        }
    }
}

/// Returns the name that a line declares behind its `pub`: of an item, or of a field.
pub(super) fn declared(line: &str) -> Option<&str> {
    let name = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_').len();
    let mut words = line.split_whitespace().filter(|word| !QUALIFIERS.contains(word) && !word.starts_with('"'));
    let first = words.next()?;
    if let Some(field) = first.strip_suffix(':') {
        return Some(field);
    }
    let mut word = words.next().filter(|_| ITEMS.contains(&first))?;
    // A function that is `const`, or a variable that is `mut`.
    while ITEMS.contains(&word) || word == "mut" {
        word = words.next()?;
    }
    word.get(..name(word)).filter(|name| !name.is_empty())
}

/// Returns what a name should be, if the field has another word for it.
fn advice(name: &str) -> Option<String> {
    if let Some((_, field)) = NAMES.iter().find(|(ours, _)| *ours == name) {
        return Some(format!("`{name}` is `{field}` in the field's words"));
    }
    let words = words(name);
    let (ours, field) = WORDS.iter().find(|(ours, _)| words.iter().any(|word| word == ours))?;
    Some(format!("`{name}` has '{ours}'; the field's word is '{field}'"))
}

/// Returns the words of an identifier in small letters: `n_cached` has two, `HeadShortlist` too.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_small) {
            words.push(String::new());
        }
        was_small = c.is_lowercase() || c.is_numeric();
        if let (Some(word), true) = (words.last_mut(), c != '_') {
            word.extend(c.to_lowercase());
        }
    }
    words
}

/// Returns how a first sentence opens, if it puts off its subject.
fn opening(doc: &str) -> Option<&'static str> {
    let opens =
        |opening: &&&str| doc.strip_prefix(**opening).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
    OPENINGS.iter().find(opens).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        source("a.rs", text, &mut findings);
        findings
    }

    #[test]
    fn names_are_the_fields() {
        for (line, expected) in [
            ("pub struct Team {", "a.rs:1: `Team` is `ThreadPool` in the field's words"),
            ("    pub n_guessed: usize,", "a.rs:1: `n_guessed` has 'guessed'; the field's word is 'drafted'"),
            ("pub const fn rough_logits(&self) {", "a.rs:1: `rough_logits` has 'rough'; the field's word is 'approx'"),
            (
                "pub unsafe trait HeadScreen: Send {",
                "a.rs:1: `HeadScreen` has 'screen'; the field's word is 'head shortlist'",
            ),
            ("pub static mut LEDGER: u8 = 0;", "a.rs:1: `LEDGER` has 'ledger'; the field's word is 'counters'"),
        ] {
            assert_eq!(findings(line), [expected]);
        }
        for line in [
            "pub struct ThreadPool {",
            "pub(crate) struct Team {",
            "struct Team {",
            "pub fn through(&self, guess: usize) {",
            "pub use team::Team;",
            "pub type ThroughPut<'a> = &'a Team;",
        ] {
            assert_eq!(findings(line), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn docs_open_with_their_subject() {
        let line = "a.rs:1: opens with 'How'; name the subject, then say what it is";
        assert_eq!(findings("/// How many there are.\n/// None: 0.\n#[derive(Debug)]\npub n: usize,"), [line]);
        assert_eq!(findings("/// The same, but later.\npub fn later() {}").len(), 1);
        for text in [
            "/// However many there are.\npub n: usize,",
            "/// Number of tokens.\npub n: usize,",
            "/// How many there are.\nn: usize,\npub m: usize,",
            "/// How many there are.\npub(crate) n: usize,",
        ] {
            assert_eq!(findings(text), Vec::<String>::new(), "{text}");
        }
    }
}
