//! Nesting depth of a template's expressions, counted before it is compiled: the compiler descends into operators on its own
//! stack, and a template of a stranger could make it descend for ever.

use regex::Regex;

/// The most operators, calls, subscripts and filters between two delimiters: each may be one level.
const OPERATORS_MAX: usize = 2_048;
/// The most `elif` of a template: each is within the one before.
const ELIFS_MAX: usize = 512;
/// The longest template.
const SOURCE_BYTES_MAX: usize = 1 << 20;

/// Words that are operators.
const WORDS: [&str; 7] = ["not", "and", "or", "if", "else", "in", "is"];

/// Checks the source of a template.
///
/// # Errors
/// A line that says what is too much.
pub(super) fn check(source: &str) -> Result<(), String> {
    let mut n_elifs = 0;
    for piece in pieces(source) {
        let Piece::Tag { inside, .. } = piece else { continue };
        let n = operators(inside);
        if n > OPERATORS_MAX {
            return Err(format!("an expression of {n} operators is nested too deeply, {OPERATORS_MAX} are the most"));
        }
        n_elifs += usize::from(inside.trim_start_matches(['-', '+']).trim_start().starts_with("elif"));
    }
    if n_elifs > ELIFS_MAX {
        return Err(format!("{n_elifs} times 'elif' are nested too deeply, {ELIFS_MAX} are the most"));
    }
    match source.len() > SOURCE_BYTES_MAX {
        true => Err(format!("it has {} bytes, and {SOURCE_BYTES_MAX} are the most", source.len())),
        false => Ok(()),
    }
}

/// A part of a template's source.
pub(super) enum Piece<'s> {
    /// Text, a comment or a raw block.
    Plain(&'s str),
    /// `{% … %}` or `{{ … }}`.
    Tag { open: &'s str, inside: &'s str, close: &'s str },
}

/// Divides a source into its parts, in order.
pub(super) fn pieces(source: &str) -> Vec<Piece<'_>> {
    let pattern = |pattern: &str| Regex::new(pattern).expect("the pattern is a constant that a test compiles");
    let raw = pattern(r"^\{%[-+]?\s*raw\s*[-+]?%\}");
    let raw_end = pattern(r"\{%[-+]?\s*endraw\s*[-+]?%\}");
    let (mut pieces, mut rest) = (Vec::new(), source);
    while let Some(at) = opening(rest) {
        pieces.push(Piece::Plain(&rest[..at]));
        rest = &rest[at..];
        let n_plain = match (rest.starts_with("{#"), raw.find(rest)) {
            (true, _) => Some(rest[2..].find("#}").map_or(rest.len(), |end| end + 4)),
            (false, Some(_)) => Some(raw_end.find(rest).map_or(rest.len(), |end| end.end())),
            (false, None) => None,
        };
        if let Some(n) = n_plain {
            pieces.push(Piece::Plain(&rest[..n]));
            rest = &rest[n..];
            continue;
        }
        let close = if rest.starts_with("{%") { "%}" } else { "}}" };
        let (inside, behind) = tag(&rest[2..], close);
        let close = &rest[2 + inside.len()..rest.len() - behind.len()];
        pieces.push(Piece::Tag { open: &rest[..2], inside, close });
        rest = behind;
    }
    pieces.push(Piece::Plain(rest));
    pieces
}

/// Returns where the next tag or comment begins.
fn opening(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| matches!(pair, b"{%" | b"{{" | b"{#"))
}

/// Divides what stands behind the opening of a tag at its end; an end within a text is none.
fn tag<'s>(text: &'s str, close: &str) -> (&'s str, &'s str) {
    let bytes = text.as_bytes();
    let (mut quote, mut at) = (None, 0);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, _) if bytes[at..].starts_with(close.as_bytes()) => return (&text[..at], &text[at + close.len()..]),
            _ => {}
        }
        at += 1;
    }
    (text, "")
}

/// Counts what may be a level of an expression; what stands in texts counts too, so that none is missed.
fn operators(inside: &str) -> usize {
    let is_sign = |c: char| "+-*/%~|.[(<>=!".contains(c);
    let words = inside.split(|c: char| !c.is_alphanumeric() && c != '_');
    inside.matches(is_sign).count() + words.filter(|word| WORDS.contains(word)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_counted_per_tag_and_ends_in_texts_are_none() {
        assert_eq!(operators("a + b|f(x)[1].c is not d"), 7);
        assert_eq!(tag(r#" "a\"}}" }} b"#, "}}"), (r#" "a\"}}" "#, " b"));
        assert_eq!(tag("a", "}}"), ("a", ""));
        let tags = "{{ a.b }}".repeat(2 * OPERATORS_MAX);
        assert_eq!(check(&tags), Ok(()));
        // A quote in a comment or a raw block opens no text.
        for hidden in ["{# {{ \" #}", "{% raw %}{{ \"{% endraw %}"] {
            let deep = format!("{hidden}{{{{ '\" }}}} ' {} }}}}", "+1".repeat(OPERATORS_MAX + 1));
            assert!(check(&deep).is_err(), "{hidden}");
        }
        assert!(check(&format!("{tags}{{{{ x{} }}}}", "+1".repeat(OPERATORS_MAX + 1))).is_err());
    }
}
