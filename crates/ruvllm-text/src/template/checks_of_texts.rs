//! `str.isalpha` and its like.

use minijinja::Error;

use super::filters::unknown;
use super::python;

/// A check of a text.
pub(super) type Check = fn(&str) -> Result<bool, Error>;

/// Returns the check that a method is.
pub(super) fn of(method: &str) -> Option<Check> {
    Some(match method {
        "isascii" => |text| Ok(text.is_ascii()),
        "isalnum" => |text| all(text, python::is_alphanumeric),
        "isalpha" => |text| all(text, python::is_alphabetic),
        "isdecimal" => |text| all(text, python::is_decimal),
        "isdigit" => |text| all(text, |c| python::is_decimal(c) || is_raised(c)),
        "isnumeric" => |text| all(text, python::is_numeric),
        "isspace" => |text| all(text, python::is_space),
        "isprintable" => |text| Ok(text.chars().all(python::is_printable)),
        "islower" => |text| Ok(python::is_cased(text, false)),
        "isupper" => |text| Ok(python::is_cased(text, true)),
        "istitle" => |text| Ok(is_title(text)),
        "isidentifier" => |text| match text.is_ascii() {
            true => Ok(!text.starts_with(|c: char| c.is_ascii_digit())
                && !text.is_empty()
                && text.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())),
            false => Err(unknown("isidentifier of a text that is not ASCII")),
        },
        _ => return None,
    })
}

fn all(text: &str, holds: impl Fn(char) -> bool) -> Result<bool, Error> {
    Ok(!text.is_empty() && text.chars().all(holds))
}

/// Superscript and subscript digits.
fn is_raised(c: char) -> bool {
    matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉')
}

/// Words begin with a capital and go on in small letters.
fn is_title(text: &str) -> bool {
    let (mut is_within, mut has_any) = (false, false);
    for c in text.chars() {
        if c.is_uppercase() && is_within || c.is_lowercase() && !is_within {
            return false;
        }
        is_within = c.is_uppercase() || c.is_lowercase();
        has_any |= is_within;
    }
    has_any
}
