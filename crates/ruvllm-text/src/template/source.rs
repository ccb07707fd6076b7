//! The source of a template as Jinja2's lexer reads it, for a lexer that reads some of it otherwise.

use std::borrow::Cow;
use std::fmt::Write;

use regex::Regex;

use super::nesting::{Piece, pieces};

/// Returns the source for the template engine. Lines stay lines, so that errors name them rightly:
/// - an end of a line is `\n`, however the file writes it;
/// - `x.1.0` is two subscripts, not one with a fraction: a space goes between them;
/// - escapes in texts are Python's;
/// - `{% generation %}` … `{% endgeneration %}`, which mark the assistant's words for training, are a block without effect.
pub(super) fn prepared(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = without_generation_tags(&source);
    let mut out = String::with_capacity(source.len());
    for piece in pieces(&source) {
        match piece {
            Piece::Plain(text) => out.push_str(text),
            Piece::Tag { open, inside, close } => {
                out.push_str(open);
                expression(inside, &mut out);
                out.push_str(close);
            }
        }
    }
    out
}

fn without_generation_tags(source: &str) -> String {
    let tag = |name: &str| {
        Regex::new(&format!(r"\{{%([-+]?)\s*{name}\s*([-+]?)%\}}"))
            .expect("the pattern is a constant that a test compiles")
    };
    let opened = tag("generation").replace_all(source, "{%${1} if true ${2}%}");
    tag("endgeneration").replace_all(&opened, "{%${1} endif ${2}%}").into_owned()
}

/// Copies what stands in a tag.
fn expression(inside: &str, out: &mut String) {
    let bytes = inside.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                let n = text_len(&inside[at + 1..], quote);
                let text = &inside[at + 1..at + 1 + n];
                out.push(quote.into());
                out.push_str(&escapes(text));
                at += 1 + n;
                if at < bytes.len() {
                    out.push(quote.into());
                    at += 1;
                }
            }
            b'.' if at > 0 => {
                let is_subscript = bytes[at - 1].is_ascii_alphanumeric() || b"_)]".contains(&bytes[at - 1]);
                let n = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                out.push('.');
                at += 1;
                let is_number = out[..out.len() - 1].ends_with(|c: char| c.is_ascii_digit()) && ends_in_number(out);
                if is_subscript && n > 0 && !is_number {
                    out.push_str(&inside[at..at + n]);
                    at += n;
                    if bytes.get(at) == Some(&b'.') {
                        out.push(' ');
                    }
                }
            }
            _ => {
                let n = inside[at..].chars().next().map_or(1, char::len_utf8);
                out.push_str(&inside[at..at + n]);
                at += n;
            }
        }
    }
}

/// Returns whether the digits before a point at the end are a number, not the end of a name or a subscript.
fn ends_in_number(out: &str) -> bool {
    let head = out.trim_end_matches('.').trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
    // A subscript behind a point was followed by a space.
    !head.ends_with(|c: char| c.is_alphanumeric() || c == '.')
}

/// Returns how long a text is up to its closing quote.
fn text_len(text: &str, quote: u8) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at.min(bytes.len())
}

/// Writes the escapes of a text so that the template engine understands them as Python does; what Python does not
/// understand stays as it is written.
fn escapes(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let Some(next) = rest.chars().next() else {
            // The text is never closed; the template engine refuses it.
            out.push('\\');
            break;
        };
        let digits = |radix: u32, n: usize| {
            rest.chars().skip(usize::from(radix == 16)).take(n).take_while(|c| c.is_digit(radix)).count()
        };
        let code = |from: usize, n: usize, radix: u32| u32::from_str_radix(&rest[from..from + n], radix).unwrap_or(0);
        let (n, c) = match next {
            '\n' => (1, None),
            '\\' | '\'' | '"' => (1, Some(next)),
            'a' => (1, Some('\u{7}')),
            'b' => (1, Some('\u{8}')),
            'f' => (1, Some('\u{c}')),
            'n' => (1, Some('\n')),
            'r' => (1, Some('\r')),
            't' => (1, Some('\t')),
            'v' => (1, Some('\u{b}')),
            '0'..='7' => {
                let n = digits(8, 3);
                (n, char::from_u32(code(0, n, 8)))
            }
            'x' if digits(16, 2) == 2 => (3, char::from_u32(code(1, 2, 16))),
            // Halves of pairs are left to the template engine.
            'u' if digits(16, 4) == 4 && char::from_u32(code(1, 4, 16)).is_some() => {
                (5, char::from_u32(code(1, 4, 16)))
            }
            'U' if digits(16, 8) == 8 && char::from_u32(code(1, 8, 16)).is_some() => {
                (9, char::from_u32(code(1, 8, 16)))
            }
            'u' | 'U' | 'x' | 'N' => {
                // No text of Python's: the template engine refuses it, or reads a pair.
                out.push('\\');
                continue;
            }
            other => {
                out.push_str("\\\\");
                (0, Some(other).filter(|_| false))
            }
        };
        rest = &rest[n..];
        match c {
            Some(c) if c == '\\' || c == '\'' || c == '"' => out.extend(['\\', c]),
            Some(c) if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            Some(c) => out.push(c),
            None => {}
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read_as_jinjas() {
        for (source, expected) in [
            ("{{ x.1.0 }} 1.0.1", "{{ x.1 .0 }} 1.0.1"),
            ("{{ x1.2.3.4 ~ 1.5 ~ a[0].1.2 }}", "{{ x1.2 .3 .4 ~ 1.5 ~ a[0].1 .2 }}"),
            ("{{ '.1.0' }}\r\na\rb", "{{ '.1.0' }}\na\nb"),
            (r"{{ '\d\x41\101\'\n' }}\d", r"{{ '\\dAA\'\u000a' }}\d"),
            (r"{{ '\", r"{{ '\"),
            (r"{{ m | f('a\\{% b \c\\\", r"{{ m | f('a\\{% b \\c\\\"),
            ("{%- generation %}x{% endgeneration -%}", "{%- if true %}x{% endif -%}"),
            (
                "{% raw %}{{ x.1.0 }}{% endraw %}{# x.1.0 ' #}{{ x.1.0 }}",
                "{% raw %}{{ x.1.0 }}{% endraw %}{# x.1.0 ' #}{{ x.1 .0 }}",
            ),
        ] {
            assert_eq!(prepared(source), expected, "{source}");
        }
    }
}
