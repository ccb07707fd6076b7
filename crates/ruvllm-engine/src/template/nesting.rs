//! How deep the expressions of a template nest, counted before it is compiled: the compiler descends into operators on its own
//! stack, and a template of a stranger could make it descend for ever.

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
    let (mut rest, mut n_elifs) = (source, 0);
    while let Some(at) = opening(rest) {
        let close = if rest[at..].starts_with("{%") { "%}" } else { "}}" };
        let (inside, behind) = tag(&rest[at + 2..], close);
        let n = operators(inside);
        if n > OPERATORS_MAX {
            return Err(format!("an expression of {n} operators is nested too deeply, {OPERATORS_MAX} are the most"));
        }
        n_elifs += usize::from(inside.trim_start_matches(['-', '+']).trim_start().starts_with("elif"));
        rest = behind;
    }
    if n_elifs > ELIFS_MAX {
        return Err(format!("{n_elifs} times 'elif' are nested too deeply, {ELIFS_MAX} are the most"));
    }
    match source.len() > SOURCE_BYTES_MAX {
        true => Err(format!("it has {} bytes, and {SOURCE_BYTES_MAX} are the most", source.len())),
        false => Ok(()),
    }
}

/// Returns where the next tag begins.
fn opening(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| pair == b"{%" || pair == b"{{")
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
        assert!(check(&format!("{tags}{{{{ x{} }}}}", "+1".repeat(OPERATORS_MAX + 1))).is_err());
    }
}
