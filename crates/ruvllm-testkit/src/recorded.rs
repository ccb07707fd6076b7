//! Recorded bits: lines of a file that say what some code computed, so that a change of numbers is noticed.
//!
//! ```text
//! version 1                   the version of the numbers
//! unrecorded amx neon         names whose lines no machine of ours can make
//! avx2 Q4_K 0123456789abcdef  a line of bits, as a test prints it
//! ```

/// Recorded bits of a version, and the lines that a test misses there.
#[derive(Debug)]
pub struct RecordedBits<'a> {
    text: &'a str,
    version: u32,
    missing: Vec<String>,
}

impl<'a> RecordedBits<'a> {
    /// Takes the text of a file of recorded bits.
    ///
    /// # Panics
    /// If it is of another version.
    pub fn of_version(text: &'a str, version: u32) -> RecordedBits<'a> {
        let first = text.lines().next();
        assert_eq!(first, Some(&*format!("version {version}")), "the recorded bits are of another version");
        RecordedBits { text, version, missing: Vec::new() }
    }

    /// Returns whether the file should have lines of an instruction set, or of a row of a table, by its name.
    pub fn covers(&self, name: &str) -> bool {
        let unrecorded = self.text.lines().find_map(|line| line.strip_prefix("unrecorded ")).unwrap_or_default();
        unrecorded.split(' ').all(|other| other != name)
    }

    /// Looks a line up.
    pub fn check(&mut self, line: String) {
        if self.text.lines().all(|known| known != line) {
            self.missing.push(line);
        }
    }

    /// Ends the test.
    ///
    /// # Panics
    /// If lines were missing, with all of them.
    pub fn finish(self) {
        let RecordedBits { version, missing, .. } = self;
        assert!(missing.is_empty(), "these bits are not recorded for version {version}:\n{}", missing.join("\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "version 3\nunrecorded amx neon\navx2 Q8_0 01ab\n";

    #[test]
    fn recorded_lines_pass() {
        let mut recorded = RecordedBits::of_version(TEXT, 3);
        assert_eq!(["amx", "neon", "avx2"].map(|name| recorded.covers(name)), [false, false, true]);
        recorded.check("avx2 Q8_0 01ab".to_owned());
        recorded.finish();
    }

    #[test]
    #[should_panic(expected = "these bits are not recorded for version 3:\navx2 Q8_0 01ac\nscalar Q8_0 01ab")]
    fn other_lines_fail_together() {
        let mut recorded = RecordedBits::of_version(TEXT, 3);
        for line in ["avx2 Q8_0 01ac", "avx2 Q8_0 01ab", "scalar Q8_0 01ab"] {
            recorded.check(line.to_owned());
        }
        recorded.finish();
    }

    #[test]
    #[should_panic(expected = "the recorded bits are of another version")]
    fn another_version_fails() {
        RecordedBits::of_version(TEXT, 4);
    }
}
