//! What a program needs of the system: versions of the C library, and libraries that are loaded with it.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::shell;

/// Needs of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Newest version of the GNU C library that a symbol of it asks for; `None` if it asks for none.
    pub(crate) glibc: Option<(u32, u32)>,
    /// Libraries that are loaded with it.
    pub(crate) libraries: Vec<String>,
}

/// Reads them by `objdump` (binutils).
///
/// # Errors
/// There is no `objdump`, or the file is no program.
pub(crate) fn needs(program: &Path) -> Result<Needs> {
    Ok(parse(&shell::output(Command::new("objdump").arg("-p").arg(program))?))
}

fn parse(text: &str) -> Needs {
    let version = |word: &str| {
        let (major, minor) = word.strip_prefix("GLIBC_")?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    };
    let library = |line: &str| Some(line.trim().strip_prefix("NEEDED")?.trim().to_owned());
    Needs {
        glibc: text.split_whitespace().filter_map(version).max(),
        libraries: text.lines().filter_map(library).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_read() {
        let text = "Dynamic Section:\n  NEEDED               libm.so.6\n  NEEDED               libc.so.6\n\
            Version References:\n  required from libc.so.6:\n    0x09691974 0x00 05 GLIBC_2.3.4\n    0x069691b4 0x00 04 GLIBC_2.34\n";
        let needs = parse(text);
        assert_eq!(needs.glibc, Some((2, 34)));
        assert_eq!(needs.libraries, ["libm.so.6", "libc.so.6"]);
        assert_eq!(parse("a.out: file format elf64").glibc, None);
    }
}
