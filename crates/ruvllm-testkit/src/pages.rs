//! Pages of the documentation that tests generate.

use std::fs;
use std::path::Path;

/// Checks that `docs/src/NAME` says `page`; `RUVLLM_WRITE_DOCS=1` writes it instead. `command` is the test that does.
///
/// # Panics
/// The page says something else, or cannot be written.
#[track_caller]
pub fn check_page(name: &str, page: &str, command: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src").join(name);
    if std::env::var_os("RUVLLM_WRITE_DOCS").is_some() {
        fs::write(&path, page).expect("docs/src is writable");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let line = written.lines().zip(page.lines()).position(|(old, new)| old != new);
    let line = line.unwrap_or_else(|| written.lines().count().min(page.lines().count())) + 1;
    assert!(written == page, "docs/src/{name} is out of date (line {line}): run `RUVLLM_WRITE_DOCS=1 {command}`");
}
