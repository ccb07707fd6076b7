//! Texts from outside as a person can read them.

/// Returns the first `n_chars` characters of a text on one line. Control characters, and those that hide or turn text
/// around, are written as escapes, so that what is shown is what is there.
pub fn visible(text: &str, n_chars: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(n_chars.saturating_mul(4)));
    for (i, c) in text.chars().enumerate() {
        if i == n_chars {
            let n_more = text.chars().count() - n_chars;
            shown.push_str(&format!("… ({n_more} more characters)"));
            break;
        }
        match is_hidden(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Returns whether a character is not seen, or changes how others are seen.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_hidden() {
        assert_eq!(visible("plain, é 漢", 40), "plain, é 漢");
        assert_eq!(
            visible("a\u{1b}[2Jb\r\nc\u{202e}d\u{200b}\u{e0041}", 40),
            "a\\u{1b}[2Jb\\r\\nc\\u{202e}d\\u{200b}\\u{e0041}"
        );
        assert_eq!(visible("abcdef", 4), "abcd… (2 more characters)");
        assert_eq!((visible("abcd", 4), visible("abcd", usize::MAX)), ("abcd".to_owned(), "abcd".to_owned()));
    }
}
