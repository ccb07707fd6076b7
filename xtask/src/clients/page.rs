//! The book's snippets: what stands in a script between `docs: NAME` and `end` stands in the page as well, letter by letter.

use std::fs;

use anyhow::{Context, Result, bail};

use super::SCRIPTS;
use crate::shell;

/// The page that has a snippet of every client.
const PAGE: &str = "docs/src/clients.md";

/// Checks that the page has every snippet of the scripts, and no other code of programs.
///
/// # Errors
/// It has not; the first snippet that differs is named.
pub(super) fn check() -> Result<()> {
    let root = shell::root();
    let page = fs::read_to_string(root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let mut known = Vec::new();
    for entry in fs::read_dir(root.join(SCRIPTS)).with_context(|| format!("cannot read {SCRIPTS}"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        known.extend(snippets(&text));
    }
    compare(&page, &known)
}

fn compare(page: &str, known: &[(String, String)]) -> Result<()> {
    let blocks = blocks(page);
    for (name, snippet) in known {
        if !blocks.contains(snippet) {
            bail!("{PAGE} lacks the snippet of {name} as its script has it:\n{snippet}");
        }
    }
    match blocks.iter().find(|block| known.iter().all(|(_, snippet)| snippet != *block)) {
        Some(block) => bail!("{PAGE} has a snippet that no script runs:\n{block}"),
        None => Ok(()),
    }
}

/// Returns the names and texts of a script's snippets.
fn snippets(script: &str) -> Vec<(String, String)> {
    let (mut found, mut open): (Vec<(String, String)>, bool) = (Vec::new(), false);
    for line in script.lines() {
        let comment = line.strip_prefix("# ").or_else(|| line.strip_prefix("// "));
        if let Some(name) = comment.and_then(|comment| comment.strip_prefix("docs: ")) {
            found.push((name.to_owned(), String::new()));
            open = true;
        } else if comment == Some("end") {
            open = false;
        } else if open && let Some((_, text)) = found.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }
    found
}

/// Returns the fenced blocks of a page, but for those that start a server or this command.
fn blocks(page: &str) -> Vec<String> {
    let (mut found, mut block): (Vec<String>, Option<String>) = (Vec::new(), None);
    for line in page.lines() {
        match (&mut block, line.starts_with("```")) {
            (Some(_), true) => found.extend(block.take()),
            (None, true) => block = Some(String::new()),
            (Some(text), false) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, false) => {}
        }
    }
    found.retain(|block| !block.starts_with("ruvllm serve") && !block.starts_with("cargo xtask"));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_what_the_scripts_run() {
        check().expect("the page and the scripts agree");
    }

    #[test]
    fn differences_are_told() {
        let known = snippets("x\n# docs: a\nimport a\n# end\ny\n// docs: b\nimport b;\n// end\n");
        assert_eq!(known, [("a".into(), "import a\n".into()), ("b".into(), "import b;\n".into())]);
        let page = "```sh\nruvllm serve\n```\n```python\nimport a\n```\n```js\nimport b;\n```\n";
        compare(page, &known).expect("they agree");
        let error = compare(&page.replace("import a", "import c"), &known).expect_err("they differ");
        assert!(error.to_string().contains("lacks the snippet of a "), "{error}");
        let error = compare(&format!("{page}```\nx\n```\n"), &known).expect_err("there is one more");
        assert!(error.to_string().contains("no script runs"), "{error}");
    }
}
