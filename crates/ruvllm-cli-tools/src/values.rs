//! Values of options: numbers within a range, and values that have a spelling of their own.

use std::str::FromStr;
use std::time::Duration;

/// The value of `--seed`: a number, or -1 for another one every time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub Option<u64>);

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Seed, String> {
        let line = |_| format!("use a number from 0 to {}, or -1 for another seed every time", u64::MAX);
        unless_minus_one(text).map(Seed).map_err(line)
    }
}

/// The value of `--max-tokens`: a number, or -1 for as many as the context holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxTokens(pub Option<usize>);

impl FromStr for MaxTokens {
    type Err = String;

    fn from_str(text: &str) -> Result<MaxTokens, String> {
        let line = |_| "use a number of tokens, or -1 to answer until the context is full".to_owned();
        unless_minus_one(text).map(MaxTokens).map_err(line)
    }
}

/// Reads a number; -1 is none.
fn unless_minus_one<T: FromStr>(text: &str) -> Result<Option<T>, T::Err> {
    if text == "-1" { Ok(None) } else { text.parse().map(Some) }
}

/// Reads a text that may not be empty.
pub fn some_text(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err("it is empty; give a text, or leave the option out".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// Returns the texts that `--choice` lists: each flag is one where there are several, a single one is cut at its commas, and
/// a JSON array of texts stands for its texts anywhere.
///
/// # Errors
/// A text is empty.
pub fn choices(flags: &[String]) -> Result<Vec<String>, String> {
    let array = |flag: &str| serde_json::from_str::<Vec<String>>(flag).ok();
    let texts: Vec<String> = match flags {
        [one] => array(one).unwrap_or_else(|| one.split(',').map(str::to_owned).collect()),
        many => many.iter().flat_map(|flag| array(flag).unwrap_or_else(|| vec![flag.clone()])).collect(),
    };
    match texts.iter().any(String::is_empty) {
        true => Err("--choice has an empty text among its choices; leave it out".to_owned()),
        false => Ok(texts),
    }
}

/// Reads the escapes of a text as llama.cpp does: `\n`, `\r`, `\t`, `\'`, `\"`, `\\` and `\x` with two hexadecimal digits; any
/// other backslash stays.
pub fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let (read, n) = match (byte, after) {
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [quoted @ (b'\'' | b'"' | b'\\'), ..]) => (*quoted, 2),
            (b'\\', [b'x', high, low, ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (16 * high + low, 4),
                _ => (byte, 1),
            },
            _ => (byte, 1),
        };
        bytes.push(read);
        rest = &rest[n..];
    }
    // What `\x` makes may be no character.
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// Reads an age: a number and s, m, h, d or w.
pub fn age(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400), ("w", 604_800)];
    let read = |(unit, seconds): (&str, u64)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(seconds);
    let seconds = units.into_iter().find_map(read);
    seconds.map(Duration::from_secs).ok_or_else(|| "use a number with s, m, h, d or w, e.g. 7d".to_owned())
}

/// Reads a number from `MIN` to `MAX`.
pub fn count<const MIN: usize, const MAX: usize>(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (MIN..=MAX).contains(n)).ok_or_else(|| format!("use a number from {MIN} to {MAX}"))
}

fn float(text: &str, fits: impl Fn(f32) -> bool, range: &str) -> Result<f32, String> {
    text.parse().ok().filter(|value| fits(*value)).ok_or_else(|| format!("use {range}"))
}

/// Reads a number from 0 up.
pub(crate) fn non_negative(text: &str) -> Result<f32, String> {
    float(text, |value| value >= 0.0 && value.is_finite(), "a number from 0 up")
}

/// Reads a number above 0.
pub fn positive(text: &str) -> Result<f32, String> {
    float(text, |value| value > 0.0 && value.is_finite(), "a number above 0")
}

/// Reads a share.
pub fn fraction(text: &str) -> Result<f32, String> {
    probability(text)
}

/// Reads a number from 0 to 1.
pub fn probability(text: &str) -> Result<f32, String> {
    float(text, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minus_one_is_no_limit() {
        assert_eq!("-1".parse(), Ok(Seed(None)));
        assert_eq!("18446744073709551615".parse(), Ok(Seed(Some(u64::MAX))));
        assert_eq!("-1".parse(), Ok(MaxTokens(None)));
        assert_eq!("0".parse(), Ok(MaxTokens(Some(0))));
        for wrong in ["-2", "", "x", "1.5", "18446744073709551616"] {
            assert!(wrong.parse::<Seed>().is_err_and(|line| line.contains("-1")), "{wrong}");
        }
        assert!("-2".parse::<MaxTokens>().is_err_and(|line| line.contains("-1")));
    }

    #[test]
    fn choices_may_hold_commas() {
        let of = |flags: &[&str]| choices(&flags.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>());
        let texts = |texts: &[&str]| Ok(texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&[]), texts(&[]));
        assert_eq!(of(&["yes,no"]), texts(&["yes", "no"]));
        assert_eq!(of(&["yes, a lot", "no, not at all"]), texts(&["yes, a lot", "no, not at all"]));
        assert_eq!(of(&[r#"["no, not at all", "yes"]"#]), texts(&["no, not at all", "yes"]));
        assert_eq!(of(&[r#"["a,b"]"#, "c,d"]), texts(&["a,b", "c,d"]));
        // What is no array of texts is a text with brackets.
        assert_eq!(of(&["[1],[2]"]), texts(&["[1]", "[2]"]));
        assert!(of(&["a,"]).is_err() && of(&["a", ""]).is_err() && of(&[r#"[""]"#]).is_err());
    }

    #[test]
    fn escapes_are_those_of_llama_cpp() {
        for (text, read) in [
            (r"a\nb\tc\rd", "a\nb\tc\rd"),
            (r#"\\n \' \""#, "\\n ' \""),
            (r"\x41\xc3\xa9", "Aé"),
            (r"\q \x4 \xzz \", r"\q \x4 \xzz \"),
            (r"é\n", "é\n"),
        ] {
            assert_eq!(unescaped(text), read, "{text}");
        }
        assert_eq!(unescaped(r"\xff"), "\u{fffd}");
    }

    #[test]
    fn ages_have_units() {
        assert_eq!(age("7d"), Ok(Duration::from_secs(604_800)));
        assert_eq!(age("90s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "7", "d", "-1d", "1.5h", "7 d", "99999999999999999999w", "9999999999999999w"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_have_ranges() {
        assert_eq!(count::<1, 8>("8"), Ok(8));
        for wrong in ["0", "9", "-1", "x", ""] {
            assert!(count::<1, 8>(wrong).is_err_and(|e| e.contains("from 1 to 8")), "{wrong}");
        }
        assert_eq!(non_negative("0"), Ok(0.0));
        for wrong in ["-0.1", "nan", "inf", "x"] {
            assert!(non_negative(wrong).is_err(), "{wrong}");
        }
        assert!(probability("1.01").is_err() && probability("1").is_ok() && positive("0").is_err());
    }
}
