//! Strings of JSON: expressions for all spellings of a text, and patterns turned into such.
//!
//! A JSON parser sees characters, the grammar sees bytes in which a character may be written as an escape. An expression
//! over characters becomes one over spellings character by character, so that what it allows, and what its complement
//! allows among strings of JSON, is said of the parsed text.
//!
//! In *plain* spelling characters of ASCII that need no escape have none, `/` apart. Where texts are given (keys that are
//! listed, `const`, `pattern`) strings are plain, and names of tokens are still the only way on; free strings and the keys
//! of free objects may have any escape.

use std::fmt::Write;

use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// One character of a string, written in any way: no lone surrogates.
pub(super) const ANY: &str = concat!(
    r#"(?:[^\x22\x5c\x00-\x1f]|\\(?:[\x22\x5c\x2fbfnrt]|u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"#,
    r#"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})))"#
);
/// One character in plain spelling.
pub(super) const PLAIN: &str = concat!(
    r#"(?:[^\x22\x5c\x00-\x1f]|\\(?:[\x22\x5c\x2fbfnrt]|u(?:00[01][0-9a-fA-F]|007[fF]|00[89a-fA-F][0-9a-fA-F]"#,
    r#"|0[1-9a-fA-F][0-9a-fA-F]{2}|[1-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"#,
    r#"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})))"#
);
/// The most bytes of a pattern's expression over spellings.
const PATTERN_BYTES_MAX: usize = 256 << 10;

/// Returns a terminal's expression in Lark's syntax for a string whose inside is this.
pub(super) fn quoted(inside: &str) -> String {
    format!(r"/\x22{inside}\x22/")
}

/// Returns the expression for the plain spellings of a text.
pub(super) fn literal(text: &str) -> String {
    text.chars().map(|c| spelled(&[(c, c)])).collect()
}

/// Returns the expression for the plain spellings of what a pattern matches somewhere in, as ECMA 262 has it (`u`).
/// `None`: it has what no regular expression of ours can say (looking around, references back), or is no pattern.
pub(super) fn pattern(pattern: &str) -> Option<String> {
    let rust = jsonschema_regex::to_rust_regex(pattern).ok()?;
    let hir = regex_syntax::ParserBuilder::new().nest_limit(100).build().parse(&rust).ok()?;
    let inside = search(&hir)?;
    (inside.len() <= PATTERN_BYTES_MAX).then_some(inside)
}

/// Writes what matches somewhere: any text may stand in front and behind where no anchor forbids it.
fn search(hir: &Hir) -> Option<String> {
    let mut inside = String::new();
    search_in(hir, Anchors { at_start: false, at_end: false }, &mut inside)?;
    Some(inside)
}

/// Place of an expression in the text.
#[derive(Clone, Copy)]
struct Anchors {
    /// It begins where the text begins.
    at_start: bool,
    /// It ends where the text ends.
    at_end: bool,
}

/// Writes an expression as [`search`] does, for a place that may be anchored.
fn search_in(hir: &Hir, mut anchors: Anchors, out: &mut String) -> Option<()> {
    let pieces = match hir.kind() {
        HirKind::Alternation(branches) => {
            for (i, branch) in branches.iter().enumerate() {
                out.push_str(if i == 0 { "(?:" } else { "|" });
                search_in(branch, anchors, out)?;
            }
            out.push(')');
            return Some(());
        }
        HirKind::Capture(capture) => return search_in(&capture.sub, anchors, out),
        HirKind::Concat(pieces) => &pieces[..],
        _ => std::slice::from_ref(hir),
    };
    let is_look = |piece: &&Hir, look| *piece.kind() == HirKind::Look(look);
    let n_front = pieces.iter().take_while(|piece| is_look(piece, Look::Start)).count();
    let pieces = &pieces[n_front..];
    let n_back = pieces.iter().rev().take_while(|piece| is_look(piece, Look::End)).count();
    let mut pieces = &pieces[..pieces.len() - n_back];
    anchors.at_start |= n_front > 0;
    anchors.at_end |= n_back > 0;
    let has_looks = |piece: &Hir| !piece.properties().look_set().is_empty();
    // Anchors inside the first piece or the last: each of its ways is one of the whole.
    let (mut first, mut last) = (None, None);
    if let [piece, rest @ ..] = pieces
        && has_looks(piece)
    {
        (first, pieces) = (Some(piece), rest);
    }
    if let [rest @ .., piece] = pieces
        && has_looks(piece)
    {
        (last, pieces) = (Some(piece), rest);
    }
    match first {
        Some(piece) => {
            let is_all = pieces.is_empty() && last.is_none();
            // A look alone, or one that is repeated, leads nowhere.
            if !matches!(piece.kind(), HirKind::Alternation(_) | HirKind::Capture(_) | HirKind::Concat(_)) {
                return None;
            }
            search_in(piece, Anchors { at_end: anchors.at_end || !is_all, ..anchors }, out)?;
        }
        None if !anchors.at_start => {
            let _ = write!(out, "{PLAIN}*");
        }
        None => {}
    }
    for piece in pieces {
        write_hir(piece, out)?;
    }
    match last {
        Some(piece) => {
            if !matches!(piece.kind(), HirKind::Alternation(_) | HirKind::Capture(_) | HirKind::Concat(_)) {
                return None;
            }
            search_in(piece, Anchors { at_start: true, ..anchors }, out)?;
        }
        None if !(anchors.at_end || first.is_some() && pieces.is_empty()) => {
            let _ = write!(out, "{PLAIN}*");
        }
        None => {}
    }
    Some(())
}

fn write_hir(hir: &Hir, out: &mut String) -> Option<()> {
    if out.len() > PATTERN_BYTES_MAX {
        return None;
    }
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Literal(text) => out.push_str(&literal(std::str::from_utf8(&text.0).ok()?)),
        HirKind::Class(Class::Unicode(class)) => {
            let ranges: Vec<(char, char)> = class.iter().map(|range| (range.start(), range.end())).collect();
            out.push_str(&spelled(&ranges));
        }
        HirKind::Class(Class::Bytes(_)) | HirKind::Look(_) => return None,
        HirKind::Repetition(repetition) => {
            out.push_str("(?:");
            write_hir(&repetition.sub, out)?;
            let _ = match (repetition.min, repetition.max) {
                (0, None) => write!(out, ")*"),
                (min, None) => write!(out, "){{{min},}}"),
                (min, Some(max)) => write!(out, "){{{min},{max}}}"),
            };
        }
        HirKind::Capture(capture) => write_hir(&capture.sub, out)?,
        HirKind::Concat(pieces) => {
            for piece in pieces {
                write_hir(piece, out)?;
            }
        }
        HirKind::Alternation(branches) => {
            for (i, branch) in branches.iter().enumerate() {
                out.push_str(if i == 0 { "(?:" } else { "|" });
                write_hir(branch, out)?;
            }
            out.push(')');
        }
    }
    Some(())
}

/// Returns the expression for one character of these, in plain spelling.
fn spelled(ranges: &[(char, char)]) -> String {
    let all: Vec<(u32, u32)> = ranges.iter().map(|&(low, high)| (low as u32, high as u32)).collect();
    let raw = cut(&all, &[(0x20, 0x21), (0x23, 0x5b), (0x5d, 0x10_ffff)]);
    let coded = cut(&all, &[(0, 0x1f), (0x7f, 0xd7ff), (0xe000, 0xffff)]);
    let paired = cut(&all, &[(0x1_0000, 0x10_ffff)]);
    let has = |c: u32| all.iter().any(|&(low, high)| low <= c && c <= high);
    let short: String = [('"', "\\x22"), ('\\', "\\x5c"), ('/', "\\x2f")]
        .into_iter()
        .chain([('\u{8}', "b"), ('\u{c}', "f"), ('\n', "n"), ('\r', "r"), ('\t', "t")])
        .filter(|&(c, _)| has(c as u32))
        .map(|(_, letter)| letter)
        .collect();
    let mut ways = Vec::new();
    if !raw.is_empty() {
        let mut class = String::from("[");
        for (low, high) in raw {
            // The gap of the surrogates is no character.
            let low = if (0xd800..0xe000).contains(&low) { 0xe000 } else { low };
            let _ = match low == high {
                true => write!(class, "\\x{{{low:x}}}"),
                false => write!(class, "\\x{{{low:x}}}-\\x{{{high:x}}}"),
            };
        }
        ways.push(class + "]");
    }
    if !short.is_empty() {
        ways.push(format!("\\\\[{short}]"));
    }
    let mut codes: Vec<String> = coded.into_iter().flat_map(|(low, high)| hex(low, high, 4)).collect();
    for (low, high) in paired {
        surrogates(low - 0x1_0000, high - 0x1_0000, &mut codes);
    }
    if !codes.is_empty() {
        ways.push(format!("\\\\u(?:{})", codes.join("|")));
    }
    match &ways[..] {
        // A class without characters matches nothing.
        [] => r"[^\x00-\x{10ffff}]".to_owned(),
        [way] if way.starts_with('[') => way.clone(),
        _ => format!("(?:{})", ways.join("|")),
    }
}

/// Returns the parts of `ranges` inside `inside`.
fn cut(ranges: &[(u32, u32)], inside: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let both = |&(low, high): &(u32, u32)| inside.iter().map(move |&(first, last)| (low.max(first), high.min(last)));
    ranges.iter().flat_map(both).filter(|(low, high)| low <= high).collect()
}

/// Writes pairs of surrogates for these code points, counted from U+10000; behind `\u`.
fn surrogates(low: u32, high: u32, codes: &mut Vec<String>) {
    let mut pair = |first: (u32, u32), second: (u32, u32)| {
        let firsts = hex(0xd800 + first.0, 0xd800 + first.1, 4).join("|");
        let seconds = hex(0xdc00 + second.0, 0xdc00 + second.1, 4).join("|");
        codes.push(format!("(?:{firsts})\\\\u(?:{seconds})"));
    };
    let (mut first, mut last) = (low >> 10, high >> 10);
    if first == last {
        return pair((first, last), (low & 0x3ff, high & 0x3ff));
    }
    if low & 0x3ff != 0 {
        pair((first, first), (low & 0x3ff, 0x3ff));
        first += 1;
    }
    if high & 0x3ff != 0x3ff {
        pair((last, last), (0, high & 0x3ff));
        last -= 1;
    }
    if first <= last {
        pair((first, last), (0, 0x3ff));
    }
}

/// Returns expressions for the numbers from `low` to `high` in `n` hexadecimal digits.
fn hex(low: u32, high: u32, n: u32) -> Vec<String> {
    if n == 0 {
        return vec![String::new()];
    }
    let unit = 16u32.pow(n - 1);
    let (mut first, mut last) = (low / unit, high / unit);
    let behind = |digit: u32, rest: Vec<String>| rest.into_iter().map(move |rest| digits(digit, digit) + &rest);
    if first == last {
        return behind(first, hex(low % unit, high % unit, n - 1)).collect();
    }
    let mut all = Vec::new();
    if !low.is_multiple_of(unit) {
        all.extend(behind(first, hex(low % unit, unit - 1, n - 1)));
        first += 1;
    }
    if high % unit != unit - 1 {
        all.extend(behind(last, hex(0, high % unit, n - 1)));
        last -= 1;
    }
    if first <= last {
        let rest = if n == 1 { String::new() } else { format!("[0-9a-fA-F]{{{}}}", n - 1) };
        all.push(digits(first, last) + &rest);
    }
    all
}

/// Returns the class of hexadecimal digits, in both cases.
fn digits(low: u32, high: u32) -> String {
    let mut class = String::from("[");
    for digit in low..=high {
        if let Some(c) = char::from_digit(digit, 16) {
            class.push(c);
            if c.is_ascii_alphabetic() {
                class.push(c.to_ascii_uppercase());
            }
        }
    }
    class + "]"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(expression: &str, text: &str) -> bool {
        regex::Regex::new(&format!("^(?:{expression})$")).expect("an expression").is_match(text)
    }

    #[test]
    fn every_character_has_its_spellings_and_no_others() {
        for c in ['a', '"', '\\', '/', '\n', '\u{1}', '\u{7f}', 'é', '日', '\u{d7ff}', '\u{e000}', '\u{ffff}', '😀']
        {
            let expression = literal(&c.to_string());
            for other in ['a', '"', '\\', '/', '\n', '\u{1}', '\u{7f}', 'é', 'è', '日', '😀', '😁', '\u{10ffff}']
            {
                let mut units = [0; 2];
                let codes: String =
                    other.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04X}")).collect();
                let json = serde_json::to_string(&other.to_string()).expect("a string");
                let short = &json[1..json.len() - 1];
                let is_plain = (' '..'\u{7f}').contains(&other);
                assert_eq!(matches(&expression, short), c == other, "{c:?} {short}");
                assert_eq!(matches(&expression, &codes), c == other && !is_plain, "{c:?} {codes}");
                assert!(matches(ANY, &codes), "{codes}");
                assert_eq!(matches(PLAIN, &codes), !is_plain, "{codes}");
                assert!(matches(PLAIN, short) && matches(ANY, short));
            }
        }
        for wrong in ["\\ud800", "\\ud800x", "\\udc00", "\\udc00\\ud800", "\\u12", "\\x", "\"", "\n", "\\ud800\\u0041"]
        {
            assert!(!matches(ANY, wrong) && !matches(PLAIN, wrong), "{wrong}");
        }
    }

    #[test]
    fn a_pattern_is_about_the_parsed_text() {
        let cases: [(&str, &[&str], &[&str]); 9] = [
            ("^é+$", &["é", "\\u00e9é", "\\u00E9"], &["", "e", "\\u00e8"]),
            ("a", &["a", "xax", "\\na"], &["", "b", "\\\\"]),
            ("^[^/]*$", &["", "ab", "😀", "\\ud83d\\ude00"], &["/", "\\/", "a\\/"]),
            ("^\\d{2}$|^x", &["12", "xyz"], &["1", "yx", "１２"]),
            ("\\\\", &["\\\\", "a\\\\b"], &["a", "\\n"]),
            ("^(a|b$)", &["a", "ab", "b"], &["ba", "c"]),
            ("(^a|b)c$", &["ac", "bc", "xbc"], &["xac", "bcx"]),
            ("^x(a|b$)", &["xa", "xac", "xb"], &["xbc", "a"]),
            ("^[\\u{1F600}-\\u{1F64F}]$", &["😀", "\\uD83D\\uDE4f"], &["a", "\\uD83D\\uDE50"]),
        ];
        for (text, right, wrong) in cases {
            let Some(expression) = pattern(text) else {
                assert!(right.is_empty(), "{text}");
                continue;
            };
            right.iter().for_each(|right| assert!(matches(&expression, right), "{text} {right} {expression}"));
            wrong.iter().for_each(|wrong| assert!(!matches(&expression, wrong), "{text} {wrong}"));
        }
        for text in ["(?=a)", "(a)\\1", "[", "\\bword"] {
            assert_eq!(pattern(text), None, "{text}");
        }
    }
}
