//! Checksum files: lines of a SHA-256 and a name, as `sha256sum` writes and reads them.

use std::collections::BTreeMap;

/// Name of the checksum file of a folder.
pub(crate) const SUMS_FILE: &str = "SHA256SUMS";
/// The most bytes of a checksum file that are read.
pub(crate) const SUMS_BYTES_MAX: u64 = 1 << 20;

/// Checksums by file name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checksums(BTreeMap<String, String>);

impl Checksums {
    /// Reads `HASH  NAME` lines (`HASH *NAME` too); others are left out.
    pub(crate) fn parse(text: &str) -> Checksums {
        let pair = |line: &str| {
            let (sha256, name) = line.trim_end().split_once([' ', '\t'])?;
            let name = name.trim_start().trim_start_matches('*');
            (is_sha256(&sha256.to_ascii_lowercase()) && !name.is_empty())
                .then(|| (name.to_owned(), sha256.to_ascii_lowercase()))
        };
        Checksums(text.lines().filter_map(pair).collect())
    }

    /// Returns the sum of a file.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sets the sum of a file.
    pub(crate) fn set(&mut self, name: &str, sha256: &str) {
        self.0.insert(name.to_owned(), sha256.to_owned());
    }

    /// Takes over the sums of others.
    pub(crate) fn extend(&mut self, others: &Checksums) {
        self.0.extend(others.0.clone());
    }

    /// Returns the text of the checksum file.
    pub(crate) fn text(&self) -> String {
        self.0.iter().map(|(name, sha256)| format!("{sha256}  {name}\n")).collect()
    }
}

/// Returns whether a text is a SHA-256 in lower-case hexadecimal.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_read_and_written() {
        let (a, b) = ("a".repeat(64), "B".repeat(64));
        let sums = Checksums::parse(&format!("{a}  m.gguf\n{b} *d/n.gguf\r\nno line\n12  x\n"));
        assert_eq!(sums.get("m.gguf"), Some(a.as_str()));
        assert_eq!(sums.get("d/n.gguf"), Some(b.to_lowercase().as_str()));
        assert_eq!(sums.get("x"), None);
        assert_eq!(Checksums::parse(&sums.text()), sums);
    }
}
