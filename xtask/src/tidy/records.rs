//! Rules about decision records and the links between documents.

use std::collections::BTreeMap;

/// What every decision record holds.
const SECTIONS: [&str; 5] = ["## Context", "## Options", "## Decision", "## Consequences", "## Confirmation"];

/// adr/ is numbered from 1 without gaps, and every record is whole.
pub(super) fn decisions(files: &BTreeMap<String, String>, findings: &mut Vec<String>) {
    let mut n_records = 0;
    for (path, text) in files.iter().filter(|(path, _)| path.starts_with("adr/")) {
        n_records += 1;
        let name = &path["adr/".len()..];
        let number = name.split_once('-').map(|(number, _)| number);
        if number != Some(format!("{n_records:04}").as_str()) || !name.ends_with(".md") {
            findings.push(format!("{path} should be adr/{n_records:04}-title.md; records are numbered without gaps"));
        }
        let has_line = |start: &str| text.lines().any(|line| line.starts_with(start) && line.len() > start.len());
        if !has_line("Status: ") || !has_line("Date: ") {
            findings.push(format!("{path} needs the lines 'Status: …' and 'Date: …'"));
        }
        for section in SECTIONS {
            if !text.lines().any(|line| line.trim_end() == section) {
                findings.push(format!("{path} lacks '{section}'"));
            }
        }
    }
    if n_records == 0 {
        findings.push("adr/ holds no decision record".to_owned());
    }
}

/// Every relative link of a Markdown file leads to a file, and the book lists every page.
pub(super) fn links(files: &BTreeMap<String, String>, findings: &mut Vec<String>) {
    let markdown = |path: &str| path.ends_with(".md") && !path.contains("/testdata/");
    for (path, text) in files.iter().filter(|(path, _)| markdown(path)) {
        for link in relative_links(text) {
            let target = resolve(path, link);
            let is_folder = || files.keys().any(|file| file.starts_with(&format!("{target}/")));
            if !files.contains_key(&target) && !is_folder() {
                findings.push(format!("{path} links to {link}, which is not there"));
            }
        }
    }
    let summary = files.get("docs/src/SUMMARY.md").map_or("", String::as_str);
    for page in files.keys().filter_map(|path| path.strip_prefix("docs/src/")) {
        if page.ends_with(".md") && page != "SUMMARY.md" && !relative_links(summary).any(|link| link == page) {
            findings.push(format!("docs/src/SUMMARY.md does not list {page}"));
        }
    }
}

/// Returns the targets of `[text](target)` that are neither addresses nor places in the same page.
fn relative_links(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    let prose = text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    });
    // What stands between backticks is code.
    let is_prose = |line: &str, at: usize| line[..at].matches('`').count().is_multiple_of(2);
    let links = prose.flat_map(move |line| {
        let starts = line.match_indices("](").filter(move |&(at, _)| is_prose(line, at));
        starts.map(move |(at, start)| &line[at + start.len()..])
    });
    let targets = links.filter_map(|rest| rest.split(')').next());
    let files = targets.filter_map(|target| target.split('#').next());
    files.filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
}

/// Returns the path from the root that `link` means in the file at `path`.
fn resolve(path: &str, link: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}
