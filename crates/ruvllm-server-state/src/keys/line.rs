//! A line of a key file, read and written: `name key [options]`.

use std::fmt;

use sha2::{Digest, Sha256};

/// Form of a line, as errors tell it.
const FORM: &str = "name key [concurrent=N] [priority=P] [kv_mib=N] [adapter_mib=N] [salt=WORD] [admin]";

/// Mark of a key that is given as its SHA-256.
const HASHED: &str = "sha256:";

/// Fewest characters of a key.
const KEY_CHARS_MIN: usize = 8;

/// Most MiB that a line may allow.
pub const MIB_MAX: usize = 1 << 24;

/// Line of a key, which is here as its SHA-256 alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyLine {
    pub name: String,
    pub digest: [u8; 32],
    pub salt: String,
    pub limits: KeyLimits,
    pub is_admin: bool,
}

/// Limits of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Most requests at once.
    pub concurrent_max: Option<usize>,
    /// Priority of its requests, from -10 to 10.
    pub priority: i8,
    /// Most MiB of KV cache that its requests hold together, in each model.
    pub kv_mib: Option<usize>,
    /// Most MiB that its loaded adapters take together, in each model.
    pub adapter_mib: Option<usize>,
}

impl KeyLine {
    /// Reads a line; `None` where it is empty or a comment.
    ///
    /// # Errors
    /// One line, which never holds the key.
    pub(super) fn read(line: &str) -> Result<Option<KeyLine>, String> {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { return Ok(None) };
        let key = words.next().ok_or_else(|| format!("a line is '{FORM}'"))?;
        let mut read = KeyLine { name: name.to_owned(), digest: digest_of(name, key)?, ..KeyLine::default() };
        for word in words {
            read.option(word)?;
        }
        Ok(Some(read))
    }

    /// Reads an option.
    fn option(&mut self, word: &str) -> Result<(), String> {
        let (name, limits) = (&self.name, &mut self.limits);
        let number = |range: &str| format!("'{word}' of '{name}' is no {range}");
        match word.split_once('=') {
            Some(("concurrent", n)) => {
                let n = n.parse().ok().filter(|n| *n > 0);
                limits.concurrent_max = Some(n.ok_or_else(|| number("number from 1 up"))?);
            }
            Some(("priority", n)) => {
                let n = n.parse().ok().filter(|n| (-10..=10).contains(n));
                limits.priority = n.ok_or_else(|| number("number from -10 to 10"))?;
            }
            Some((kind @ ("kv_mib" | "adapter_mib"), n)) => {
                let n = n.parse().ok().filter(|n| (1..=MIB_MAX).contains(n));
                let mib = Some(n.ok_or_else(|| number("number from 1 up"))?);
                *(if kind == "kv_mib" { &mut limits.kv_mib } else { &mut limits.adapter_mib }) = mib;
            }
            Some(("salt", word)) => self.salt = word.to_owned(),
            None if word == "admin" => self.is_admin = true,
            _ => {
                return Err(format!(
                    "'{name}' has an option that is none of concurrent=N, priority=P, kv_mib=N, adapter_mib=N, \
                     salt=WORD and admin"
                ));
            }
        }
        Ok(())
    }
}

/// Writes the line as a file has it, with the SHA-256 in the place of the key.
impl fmt::Display for KeyLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeyLimits { concurrent_max, priority, kv_mib, adapter_mib } = self.limits;
        write!(f, "{} {HASHED}{}", self.name, hex::encode(self.digest))?;
        for (option, n) in [("concurrent", concurrent_max), ("kv_mib", kv_mib), ("adapter_mib", adapter_mib)] {
            if let Some(n) = n {
                write!(f, " {option}={n}")?;
            }
        }
        if priority != 0 {
            write!(f, " priority={priority}")?;
        }
        if !self.salt.is_empty() {
            write!(f, " salt={}", self.salt)?;
        }
        if self.is_admin {
            f.write_str(" admin")?;
        }
        Ok(())
    }
}

/// Reads all lines of a text; `place` says where the line of a number stands.
///
/// # Errors
/// As [`KeyLine::read`], with the place.
pub(super) fn read_lines(text: &str, place: impl Fn(usize) -> String) -> Result<Vec<KeyLine>, String> {
    let read = |(i, line)| KeyLine::read(line).map_err(|reason| format!("{}: {reason}", place(i + 1))).transpose();
    text.lines().enumerate().filter_map(read).collect()
}

/// Returns the SHA-256 of a key, which a line may give in its place.
fn digest_of(name: &str, key: &str) -> Result<[u8; 32], String> {
    if let Some(digits) = key.strip_prefix(HASHED) {
        let mut digest = [0; 32];
        return match hex::decode_to_slice(digits, &mut digest) {
            Ok(()) => Ok(digest),
            Err(_) => {
                Err(format!("'{name}' has no 64 hexadecimal digits behind {HASHED}; write the key's SHA-256 there"))
            }
        };
    }
    match key.len() {
        n if n < KEY_CHARS_MIN => Err(format!("the key of '{name}' has {n} characters; use at least {KEY_CHARS_MIN}")),
        _ => Ok(Sha256::digest(key.as_bytes()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY_SHA: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn lines_are_read_and_written() {
        let check = |line: &str, written: &str| {
            let read = KeyLine::read(line).expect("a line").expect("a key");
            assert_eq!(read.to_string(), written);
            assert_eq!(KeyLine::read(written), Ok(Some(read)));
        };
        let hashed = format!("ann sha256:{EMPTY_SHA}");
        check(&hashed, &hashed);
        check(&format!("ann sha256:{} admin # who may", EMPTY_SHA.to_uppercase()), &format!("{hashed} admin"));
        check(
            &format!("{hashed} admin salt=x priority=-5 adapter_mib=3 kv_mib=2 concurrent=1"),
            &format!("{hashed} concurrent=1 kv_mib=2 adapter_mib=3 priority=-5 salt=x admin"),
        );
        let digest = hex::encode(Sha256::digest("key-of-bob"));
        check(" bob\tkey-of-bob ", &format!("bob sha256:{digest}"));
        assert_eq!((KeyLine::read(" # no key"), KeyLine::read("")), (Ok(None), Ok(None)));
    }

    #[test]
    fn wrong_lines_never_show_a_key() {
        let check = |line: &str, error: &str| assert_eq!(KeyLine::read(line), Err(error.to_owned()));
        check("secret-key", &format!("a line is '{FORM}'"));
        check("ann short", "the key of 'ann' has 5 characters; use at least 8");
        let wrong = "'ann' has no 64 hexadecimal digits behind sha256:; write the key's SHA-256 there";
        check("ann sha256:secret-key", wrong);
        check(&format!("ann sha256:{EMPTY_SHA}00"), wrong);
        check("ann long-enough concurrent=0", "'concurrent=0' of 'ann' is no number from 1 up");
        check("ann long-enough kv_mib=16777217", "'kv_mib=16777217' of 'ann' is no number from 1 up");
        for word in ["x", "administrator", "admin=1", "other-secret"] {
            check(
                &format!("ann long-enough {word}"),
                "'ann' has an option that is none of concurrent=N, priority=P, kv_mib=N, adapter_mib=N, salt=WORD and admin",
            );
        }
    }
}
