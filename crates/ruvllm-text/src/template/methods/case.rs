//! Texts in other cases.

use minijinja::Error;

use crate::template::filters::unknown;

pub(super) fn recased(method: &str, source: &str) -> Result<String, Error> {
    Ok(match method {
        "upper" => source.to_uppercase(),
        "lower" => source.to_lowercase(),
        "casefold" if !source.is_ascii() => return Err(unknown("casefold of a text that is not ASCII")),
        "casefold" => source.to_lowercase(),
        "swapcase" => {
            let mut out = String::with_capacity(source.len());
            for c in source.chars() {
                if c.is_uppercase() { out.extend(c.to_lowercase()) } else { out.extend(c.to_uppercase()) }
            }
            out
        }
        "capitalize" => {
            let Some(first) = source.chars().next() else { return Ok(String::new()) };
            // The rest as it is in the whole text: a sigma at the end knows what is before it.
            let lower = source.to_lowercase();
            let n_first: usize = first.to_lowercase().map(char::len_utf8).sum();
            titled(first) + lower.get(n_first..).unwrap_or_default()
        }
        _ => {
            let mut out = String::with_capacity(source.len());
            let mut is_within = false;
            for c in source.chars() {
                match (is_within, c.is_ascii()) {
                    (true, _) => out.extend(c.to_lowercase()),
                    (false, true) => out.push(c.to_ascii_uppercase()),
                    (false, false) => out.push_str(&titled(c)),
                }
                is_within = c.is_lowercase() || c.is_uppercase();
            }
            out
        }
    })
}

/// Returns a character as it begins a word: of several capitals, only the first stays one.
fn titled(c: char) -> String {
    // Two letters in one character have a form of their own.
    let own = match c {
        'Ǆ' | 'ǅ' | 'ǆ' => Some('ǅ'),
        'Ǉ' | 'ǈ' | 'ǉ' => Some('ǈ'),
        'Ǌ' | 'ǋ' | 'ǌ' => Some('ǋ'),
        'Ǳ' | 'ǲ' | 'ǳ' => Some('ǲ'),
        _ => None,
    };
    if let Some(own) = own {
        return own.into();
    }
    let mut upper = c.to_uppercase();
    let first: String = upper.next().into_iter().collect();
    first + &upper.collect::<String>().to_lowercase()
}
