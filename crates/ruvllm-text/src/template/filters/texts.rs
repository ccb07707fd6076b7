//! Filters of texts.

use minijinja::value::Value;
use minijinja::{Error, State};

use super::super::arguments::{bind, needed, number, text};
use super::super::{marks, meter, methods, python, spec};
use super::{Filter, escape, escaped, invalid, like, safe_text, soft_str};

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("safe", |_, arguments| match arguments[0].is_safe() {
        true => Ok(arguments[0].clone()),
        false => safe_text(python::to_str(&arguments[0])?.into_owned()),
    }),
    ("escape", escape_filter),
    ("e", escape_filter),
    ("forceescape", |_, arguments| safe_text(escape(&python::to_str(&arguments[0])?))),
    ("string", |_, arguments| soft_str(&arguments[0])),
    ("pprint", |_, arguments| {
        let text = python::to_repr(&arguments[0])?;
        match text.len() < 80 && !text.contains('{') {
            true => meter::text(text),
            false => Err(invalid("pprint of dicts and of what is long is not supported")),
        }
    }),
    ("upper", |_, arguments| method("upper", arguments)),
    ("lower", |_, arguments| method("lower", arguments)),
    ("capitalize", |_, arguments| method("capitalize", arguments)),
    ("title", title),
    ("trim", |_, arguments| {
        let [chars] = bind("trim", ["chars"], &arguments[1..])?;
        methods::of_text("strip", &soft_str(&arguments[0])?, chars.as_slice())
    }),
    ("center", |_, arguments| {
        let [width] = bind("center", ["width"], &arguments[1..])?;
        let width = width.unwrap_or_else(|| Value::from(80));
        methods::of_text("center", &soft_str(&arguments[0])?, &[width])
    }),
    ("replace", replace),
    ("truncate", truncate),
    ("wordcount", |_, arguments| {
        let text = soft_str(&arguments[0])?;
        let is_word = |c: char| c == '_' || python::is_alphanumeric(c);
        let words = text.as_str().unwrap_or_default().split(|c| !is_word(c)).filter(|word| !word.is_empty());
        Ok(Value::from(words.count()))
    }),
    ("striptags", striptags),
    ("indent", indent),
    ("urlencode", urlencode),
    ("format", format),
    // Not Jinja's, but known to templates of other engines.
    ("split", |_, arguments| methods::of_text("split", &soft_str(&arguments[0])?, &arguments[1..])),
    ("lines", |_, arguments| methods::of_text("splitlines", &soft_str(&arguments[0])?, &arguments[1..])),
];

fn method(name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [] = bind(name, [], &arguments[1..])?;
    methods::of_text(name, &soft_str(&arguments[0])?, &[])
}

fn escape_filter(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    safe_text(escaped(&soft_str(&arguments[0])?))
}

/// Words begin behind white space, `-` and opening brackets.
fn title(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let value = soft_str(&arguments[0])?;
    let mut out = String::new();
    let mut is_first = true;
    for c in value.as_str().unwrap_or_default().chars() {
        let is_between = python::is_space(c) || "-({[<".contains(c);
        match is_first && !is_between {
            true => out.extend(c.to_uppercase()),
            false => out.extend(c.to_lowercase()),
        }
        is_first = is_between;
    }
    meter::text(out)
}

fn replace(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [old, new, n] = bind("replace", ["old", "new", "count"], &arguments[1..])?;
    let (old, new) = (needed("replace", old)?, needed("replace", new)?);
    let n = number("replace", n.filter(|n| !n.is_none()).as_ref())?.unwrap_or(-1);
    let text = python::to_str(&arguments[0])?;
    meter::text(methods::replaced(&text, &python::to_str(&old)?, &python::to_str(&new)?, n)?)
}

fn truncate(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [length, killwords, end, leeway] = bind("truncate", ["length", "killwords", "end", "leeway"], &arguments[1..])?;
    let length = number("truncate", length.as_ref())?.unwrap_or(255);
    let leeway = number("truncate", leeway.filter(|leeway| !leeway.is_none()).as_ref())?.unwrap_or(5);
    let end = text("truncate", end.as_ref())?.unwrap_or("...");
    let n_end = end.chars().count() as i64;
    let source = text("truncate", Some(&arguments[0]))?.unwrap_or_default();
    if length < n_end || leeway < 0 {
        return Err(invalid(format!("truncate: expected length >= {n_end} and leeway >= 0")));
    }
    if source.chars().count() as i64 <= length.saturating_add(leeway) {
        return Ok(arguments[0].clone());
    }
    let cut = source.char_indices().nth((length - n_end) as usize).map_or(source, |(at, _)| &source[..at]);
    let kept = match killwords.is_some_and(|kill| kill.is_true()) {
        true => cut,
        false => cut.rsplit_once(' ').map_or(cut, |(words, _)| words),
    };
    like(&arguments[0], format!("{kept}{end}"))
}

fn striptags(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let source = python::to_str(&arguments[0])?;
    let without = |text: &str, open: &str, close: &str| {
        let (mut out, mut rest) = (String::new(), text);
        while let Some(start) = rest.find(open) {
            let Some(end) = rest[start..].find(close) else { break };
            out.push_str(&rest[..start]);
            rest = &rest[start + end + close.len()..];
        }
        out + rest
    };
    let text = without(&without(&source, "<!--", "-->"), "<", ">");
    let mut words = String::with_capacity(text.len());
    for word in text.split(python::is_space).filter(|word| !word.is_empty()) {
        words.push_str(if words.is_empty() { "" } else { " " });
        words.push_str(word);
    }
    let mut out = String::new();
    let mut rest = &words[..];
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let known = [("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&#34;", "\"")];
        match known.iter().find(|(name, _)| rest.starts_with(name)) {
            Some((name, c)) => {
                out.push_str(c);
                rest = &rest[name.len()..];
            }
            None if rest[1..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '#') => {
                return Err(invalid("striptags: this entity of HTML is not supported"));
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    meter::text(out + rest)
}

fn indent(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let [width, first, blank] = bind("indent", ["width", "first", "blank"], &arguments[1..])?;
    let is_on = |option: Option<Value>| option.is_some_and(|on| on.is_true());
    let source = text("indent", Some(&arguments[0]))?.unwrap_or_default();
    super::unescaped("indent", &arguments[0], width.as_slice())?;
    let indention = match width.as_ref().and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => {
            let width = number("indent", width.as_ref())?.unwrap_or(4);
            meter::room(usize::try_from(width).unwrap_or(0))?;
            " ".repeat(usize::try_from(width).unwrap_or(0))
        }
    };
    let source = format!("{source}\n");
    let lines = methods::lines(&source, false)?;
    meter::room(lines.len().saturating_mul(indention.len()).saturating_add(source.len()).saturating_mul(3))?;
    let mut out = if is_on(first) { indention.clone() } else { String::new() };
    let is_blank = is_on(blank);
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push('\n');
            out.push_str(if is_blank || !line.is_empty() { &indention } else { "" });
        }
        out.push_str(line);
    }
    like(&arguments[0], out)
}

fn urlencode(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let source = text("urlencode", Some(&arguments[0]))?.unwrap_or_default();
    let mut out = String::new();
    for byte in source.chars().map(marks::original).collect::<String>().bytes() {
        match byte.is_ascii_alphanumeric() || b"_.-~/".contains(&byte) {
            true => out.push(byte.into()),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    meter::text(out)
}

fn format(_: &State, arguments: &[Value]) -> Result<Value, Error> {
    let format = soft_str(&arguments[0])?;
    let (places, named) = super::divide(&arguments[1..]);
    super::unescaped("format", &format, places)?;
    let source = format.as_str().unwrap_or_default();
    let text = match named {
        Some(_) if !places.is_empty() => {
            return Err(invalid("can't handle positional and keyword arguments at the same time"));
        }
        Some(named) => spec::percent(source, named)?,
        None => spec::percent(source, &super::Sequence::value(super::Kind::Tuple, places.to_vec(), 0)?)?,
    };
    like(&format, text)
}
