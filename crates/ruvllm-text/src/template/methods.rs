//! Methods as Python's texts, lists, tuples and dicts have them.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, State};

use super::arguments::{bind, needed, number, text};
use super::compare::{equal, lookup, whole};
use super::filters::{self, COUNT_MAX, like, unknown};
use super::meter::{self, ITEM_BYTES, STEP};
use super::sequence::{Kind, Sequence, invalid, is_list, type_name, walk};
use super::{checks_of_texts, format, python};

const TEXT: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
/// Methods that change their list or dict are none: templates may not.
const LIST: [&str; 3] = ["copy", "count", "index"];
const TUPLE: [&str; 2] = ["count", "index"];
const DICT: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const INT: [&str; 9] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "denominator",
    "imag",
    "numerator",
    "real",
    "to_bytes",
];
const FLOAT: [&str; 6] = ["as_integer_ratio", "conjugate", "hex", "imag", "is_integer", "real"];

/// Returns the methods that a value has.
pub(super) fn names(value: &Value) -> &'static [&'static str] {
    match type_name(value) {
        "str" => &TEXT,
        "list" => &LIST,
        "tuple" | "range" => &TUPLE,
        "dict" if value.as_object().is_some_and(|object| object.type_name().ends_with("Namespace")) => &[],
        "dict" => &DICT,
        "int" | "bool" => &INT,
        "float" => &FLOAT,
        _ => &[],
    }
}

/// Returns whether any type has a method of this name.
pub(super) fn is_known(name: &str) -> bool {
    let all: [&[&str]; 6] = [&TEXT, &LIST, &TUPLE, &DICT, &INT, &FLOAT];
    all.iter().any(|names| names.contains(&name))
}

/// Calls a method.
///
/// # Errors
/// The value has none of this name, or the arguments are wrong.
pub(super) fn call(_: &State, value: &Value, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    meter::work(STEP)?;
    if !names(value).contains(&method) {
        return Err(unknown(&format!("the method '{}' of {}", super::one_line(method), type_name(value))));
    }
    match value.kind() {
        ValueKind::String => of_text(method, value, arguments),
        ValueKind::Map => of_dict(method, value, arguments),
        ValueKind::Seq | ValueKind::Iterable => of_list(method, value, arguments),
        _ if method == "is_integer" && arguments.is_empty() => {
            Ok(Value::from(f64::try_from(value.clone()).is_ok_and(|x| x.is_finite() && x.fract() == 0.0)))
        }
        _ => Err(unknown(&format!("the method '{method}' of numbers"))),
    }
}

fn of_dict(method: &str, dict: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let keys = || meter::items(dict);
    match method {
        "get" => {
            let [key, default] = bind("get", ["key", "default"], arguments)?;
            let key = needed("get", key)?;
            meter::work(meter::unfolded(&key)?)?;
            Ok(lookup(dict, &key)?.unwrap_or_else(|| default.unwrap_or_else(|| Value::from(()))))
        }
        "fromkeys" => Err(unknown("the method 'fromkeys'")),
        _ if !arguments.is_empty() => Err(invalid(format!("{method} takes no arguments"))),
        "copy" => meter::dict(
            keys()?.into_iter().map(|key| Ok((key.clone(), dict.get_item(&key)?))).collect::<Result<_, Error>>()?,
        ),
        "keys" => Sequence::value(Kind::Keys, keys()?, 0),
        "values" => {
            let values = keys()?.iter().map(|key| dict.get_item(key)).collect::<Result<_, _>>()?;
            Sequence::value(Kind::Values, values, 0)
        }
        _ => Sequence::value(Kind::Items, filters::pairs(dict)?, 0),
    }
}

fn of_list(method: &str, list: &Value, arguments: &[Value]) -> Result<Value, Error> {
    if method == "copy" && is_list(list) {
        let [] = bind("copy", [], arguments)?;
        return meter::list(meter::items(list)?, 0);
    }
    let [value, start, stop] = bind(method, ["value", "start", "stop"], arguments)?;
    let value = needed(method, value)?;
    meter::unfolded(list)?;
    let items = meter::items(list)?;
    if method == "count" {
        meter::work(items.len() * meter::unfolded(&value)?)?;
        return Ok(Value::from(items.iter().filter(|item| equal(item, &value)).count()));
    }
    let (start, end) = between(items.len(), number(method, start.as_ref())?, number(method, stop.as_ref())?);
    let found = items.get(start..end).unwrap_or_default().iter().position(|item| equal(item, &value));
    found.map(|at| Value::from(start + at)).ok_or_else(|| invalid("the value is not in list"))
}

/// Returns a part's bounds as slices have them.
fn between(n: usize, start: Option<i64>, end: Option<i64>) -> (usize, usize) {
    let place = |at: i64| if at < 0 { (at.saturating_add(n as i64)).max(0) as usize } else { (at as usize).min(n) };
    (start.map_or(0, |at| if at > n as i64 { n + 1 } else { place(at) }), end.map_or(n, place))
}

/// Calls a method of a text.
///
/// # Errors
/// The arguments are wrong, or the method is not supported.
pub(super) fn of_text(method: &str, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let source = value.as_str().unwrap_or_default();
    let mut n_bytes = source.len();
    for argument in arguments {
        n_bytes += meter::unfolded(argument)?;
    }
    let factor =
        if ["title", "capitalize", "upper", "lower", "swapcase", "casefold"].contains(&method) { 48 } else { 16 };
    meter::work(STEP + factor * n_bytes)?;
    meter::room(4 * n_bytes)?;
    if ["replace", "join", "format", "center", "ljust", "rjust"].contains(&method) {
        filters::unescaped(method, value, arguments)?;
    }
    if let Some(check) = checks_of_texts::of(method) {
        let [] = bind(method, [], arguments)?;
        return check(source).map(Value::from);
    }
    match method {
        "upper" | "lower" | "capitalize" | "title" | "swapcase" | "casefold" => {
            let [] = bind(method, [], arguments)?;
            like(value, recased(method, source)?)
        }
        "strip" | "lstrip" | "rstrip" => strip(method, value, arguments),
        "removeprefix" | "removesuffix" => {
            let [part] = bind(method, ["part"], arguments)?;
            let part = needed(method, part)?;
            let part = text(method, Some(&part))?.unwrap_or_default();
            let rest = if method == "removeprefix" { source.strip_prefix(part) } else { source.strip_suffix(part) };
            like(value, rest.unwrap_or(source).to_owned())
        }
        "center" | "ljust" | "rjust" | "zfill" => padded(method, value, arguments),
        "expandtabs" => expanded(value, arguments),
        "replace" => {
            let [old, new, n] = bind("replace", ["old", "new", "count"], arguments)?;
            let (old, new) = (needed(method, old)?, needed(method, new)?);
            let (old, new) = (text(method, Some(&old))?, text(method, Some(&new))?);
            let n = number(method, n.as_ref())?.unwrap_or(-1);
            like(value, replaced(source, old.unwrap_or_default(), new.unwrap_or_default(), n)?)
        }
        "split" | "rsplit" => split(method, value, arguments),
        "splitlines" => {
            let [keeps] = bind(method, ["keepends"], arguments)?;
            list_like(value, lines(source, keeps.is_some_and(|keeps| keeps.is_true()))?.into_iter())
        }
        "partition" | "rpartition" => partition(method, value, arguments),
        "find" | "rfind" | "index" | "rindex" | "count" => found(method, source, arguments),
        "startswith" | "endswith" => affixed(method, source, arguments),
        "join" => {
            let [items] = bind("join", ["iterable"], arguments)?;
            like(value, joined(&needed("join", items)?, source)?)
        }
        "format" => like(value, format::format(source, arguments)?),
        _ => Err(unknown(&format!("the method '{}' of texts", super::one_line(method)))),
    }
}

/// Returns a list of parts of a text.
fn list_like<'t>(original: &Value, parts: impl Iterator<Item = &'t str>) -> Result<Value, Error> {
    match original.is_safe() {
        true => meter::list(parts.map(|part| filters::safe_text(part.to_owned())).collect::<Result<_, _>>()?, 0),
        false => meter::texts(parts),
    }
}

fn recased(method: &str, source: &str) -> Result<String, Error> {
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

fn strip(method: &str, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let [chars] = bind(method, ["chars"], arguments)?;
    let chars = chars.filter(|chars| !chars.is_none());
    let chars = text(method, chars.as_ref())?;
    let source = value.as_str().unwrap_or_default();
    meter::work(source.len().saturating_mul(chars.map_or(1, str::len).min(256)))?;
    let goes = |c: char| chars.map_or_else(|| python::is_space(c), |chars| chars.contains(c));
    let kept = match method {
        "strip" => source.trim_matches(goes),
        "lstrip" => source.trim_start_matches(goes),
        _ => source.trim_end_matches(goes),
    };
    if kept.len() == source.len() { Ok(value.clone()) } else { like(value, kept.to_owned()) }
}

fn padded(method: &str, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let [width, fill] = bind(method, ["width", "fillchar"], arguments)?;
    let width = whole(&needed(method, width)?).ok_or_else(|| invalid(format!("{method} takes a whole number")))?;
    if width > COUNT_MAX as i128 {
        return Err(invalid(format!("{method}: more than {COUNT_MAX}")));
    }
    let fill = text(method, fill.as_ref().filter(|_| method != "zfill"))?;
    let mut fill_chars = fill.unwrap_or(if method == "zfill" { "0" } else { " " }).chars();
    let (Some(fill), None) = (fill_chars.next(), fill_chars.next()) else {
        return Err(invalid("The fill character must be exactly one character long"));
    };
    let source = value.as_str().unwrap_or_default();
    let width = usize::try_from(width).unwrap_or(0);
    let n = width.saturating_sub(source.chars().count());
    let pad = |n: usize| std::iter::repeat_n(fill, n);
    let left = match method {
        "ljust" => 0,
        // As CPython divides what is odd.
        "center" => n / 2 + (n & width & 1),
        _ => n,
    };
    let n_sign = usize::from(method == "zfill" && source.starts_with(['+', '-']));
    let (sign, rest) = source.split_at(n_sign);
    like(value, sign.chars().chain(pad(left)).chain(rest.chars()).chain(pad(n - left)).collect())
}

fn expanded(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let [size] = bind("expandtabs", ["tabsize"], arguments)?;
    let size = usize::try_from(number("expandtabs", size.as_ref())?.unwrap_or(8)).unwrap_or(0);
    if size > COUNT_MAX {
        return Err(invalid(format!("expandtabs: more than {COUNT_MAX}")));
    }
    let source = value.as_str().unwrap_or_default();
    meter::room(source.matches('\t').count().saturating_mul(2 * size))?;
    let (mut out, mut column) = (String::new(), 0);
    for c in source.chars() {
        match c {
            '\t' => {
                let n = if size > 0 { size - column % size } else { 0 };
                out.extend(std::iter::repeat_n(' ', n));
                column += n;
            }
            c => {
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
                out.push(c);
            }
        }
    }
    like(value, out)
}

/// Returns a text with at most `n` of its parts replaced; a negative `n` is no limit.
///
/// # Errors
/// It takes too much memory.
pub(super) fn replaced(source: &str, old: &str, new: &str, n: i64) -> Result<String, Error> {
    let n_found = if old.is_empty() { source.chars().count() + 1 } else { source.matches(old).count() };
    let n = usize::try_from(n).unwrap_or(usize::MAX).min(n_found);
    meter::room(n.saturating_mul(new.len()).saturating_add(source.len()).saturating_mul(3))?;
    Ok(source.replacen(old, new, n))
}

fn split(method: &str, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let [separator, n] = bind(method, ["sep", "maxsplit"], arguments)?;
    let separator = separator.filter(|separator| !separator.is_none());
    let n = usize::try_from(number(method, n.as_ref())?.unwrap_or(-1)).unwrap_or(usize::MAX);
    let (source, is_right) = (value.as_str().unwrap_or_default(), method == "rsplit");
    let mut parts: Vec<&str> = match text(method, separator.as_ref())? {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) => {
            meter::room((source.matches(separator).count() + 1) * 2 * ITEM_BYTES)?;
            let n = n.saturating_add(1);
            if is_right { source.rsplitn(n, separator).collect() } else { source.splitn(n, separator).collect() }
        }
        None => {
            let n_words = source.split(python::is_space).filter(|word| !word.is_empty()).count();
            meter::room((n_words + 1) * 2 * ITEM_BYTES)?;
            words(source, n, is_right)
        }
    };
    if is_right {
        parts.reverse();
    }
    list_like(value, parts.into_iter())
}

/// Splits at white space, at most `n` times, from the left or the right.
fn words(source: &str, n: usize, is_right: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let trimmed = |text: &str| {
        let kept =
            if is_right { text.trim_end_matches(python::is_space) } else { text.trim_start_matches(python::is_space) };
        kept.len()
    };
    let mut rest = source;
    loop {
        let n_kept = trimmed(rest);
        rest = if is_right { &rest[..n_kept] } else { &rest[rest.len() - n_kept..] };
        if rest.is_empty() {
            return words;
        }
        let at = if is_right { rest.rfind(python::is_space) } else { rest.find(python::is_space) };
        // What is left over keeps its white space at the far end.
        let Some(at) = at.filter(|_| words.len() < n) else {
            words.push(rest);
            return words;
        };
        if is_right {
            let n_space = rest[at..].chars().next().map_or(1, char::len_utf8);
            words.push(&rest[at + n_space..]);
            rest = &rest[..at];
        } else {
            words.push(&rest[..at]);
            rest = &rest[at..];
        }
    }
}

/// Splits a text at the ends of its lines, as Python does.
///
/// # Errors
/// They take too much memory.
pub(super) fn lines(source: &str, keeps_ends: bool) -> Result<Vec<&str>, Error> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}' | '\u{1d}' | '\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    meter::room((source.matches(is_end).count() + 1) * 2 * ITEM_BYTES)?;
    let (mut lines, mut rest) = (Vec::new(), source);
    while let Some(at) = rest.find(is_end) {
        let end = match rest[at..].starts_with("\r\n") {
            true => at + 2,
            false => at + rest[at..].chars().next().map_or(1, char::len_utf8),
        };
        lines.push(&rest[..if keeps_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    Ok(lines)
}

fn partition(method: &str, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let [separator] = bind(method, ["sep"], arguments)?;
    let separator = needed(method, separator)?;
    let separator =
        text(method, Some(&separator))?.filter(|text| !text.is_empty()).ok_or_else(|| invalid("empty separator"))?;
    let source = value.as_str().unwrap_or_default();
    let is_right = method == "rpartition";
    let found = if is_right { source.rsplit_once(separator) } else { source.split_once(separator) };
    let parts = match found {
        Some((before, behind)) => [before, separator, behind],
        None if is_right => ["", "", source],
        None => [source, "", ""],
    };
    match value.is_safe() {
        true => {
            let parts = parts.map(|part| filters::safe_text(part.to_owned()));
            Sequence::value(Kind::Tuple, parts.into_iter().collect::<Result<_, _>>()?, 0)
        }
        false => {
            let (parts, own_bytes) = meter::parts(parts.into_iter())?;
            Sequence::value(Kind::Tuple, parts, own_bytes)
        }
    }
}

/// Returns a part of a text by its characters, and how many are before it.
fn part<'t>(method: &str, source: &'t str, bounds: &[Option<Value>]) -> Result<(Option<&'t str>, usize), Error> {
    let given = |i: usize| bounds.get(i).and_then(Option::as_ref).filter(|bound| !bound.is_none());
    let (start, end) = (number(method, given(0))?, number(method, given(1))?);
    if start.is_none() && end.is_none() {
        return Ok((Some(source), 0));
    }
    let (start, end) = between(source.chars().count(), start, end);
    if start > end {
        return Ok((None, start));
    }
    let at = |n: usize| source.char_indices().nth(n).map_or(source.len(), |(at, _)| at);
    Ok((Some(&source[at(start)..at(end)]), start))
}

fn found(method: &str, source: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [wanted, start, end] = bind(method, ["sub", "start", "end"], arguments)?;
    let wanted = needed(method, wanted)?;
    let wanted = text(method, Some(&wanted))?.unwrap_or_default();
    let (part, n_before) = part(method, source, &[start, end])?;
    if method == "count" {
        let n = part
            .map_or(0, |part| if wanted.is_empty() { part.chars().count() + 1 } else { part.matches(wanted).count() });
        return Ok(Value::from(n));
    }
    let at = part.and_then(|part| {
        let at = if method.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) }?;
        Some(n_before + part[..at].chars().count())
    });
    match at {
        Some(at) => Ok(Value::from(at)),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(invalid("substring not found")),
    }
}

fn affixed(method: &str, source: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [wanted, start, end] = bind(method, ["affix", "start", "end"], arguments)?;
    let wanted = needed(method, wanted)?;
    let (part, _) = part(method, source, &[start, end])?;
    let one = |wanted: &str| {
        part.is_some_and(|part| if method == "startswith" { part.starts_with(wanted) } else { part.ends_with(wanted) })
    };
    let holds = match (wanted.as_str(), super::sequence::tuple_items(&wanted)) {
        (Some(wanted), _) => one(wanted),
        (None, Some(all)) => {
            let mut holds = false;
            for wanted in all {
                holds |= one(text(method, Some(wanted))?.unwrap_or_default());
            }
            holds
        }
        _ => return Err(invalid(format!("{method} takes a text or a tuple of texts, not {}", type_name(&wanted)))),
    };
    Ok(Value::from(holds))
}

fn joined(items: &Value, separator: &str) -> Result<String, Error> {
    let mut out = String::new();
    for (i, item) in walk(items)?.iter().enumerate() {
        let item = item
            .as_str()
            .ok_or_else(|| invalid(format!("sequence item {i}: expected str instance, {} found", type_name(item))))?;
        push_joined(&mut out, if i > 0 { separator } else { "" }, item)?;
    }
    Ok(out)
}

/// Adds a separator and an item to a text that grows.
pub(super) fn push_joined(out: &mut String, separator: &str, item: &str) -> Result<(), Error> {
    let n_bytes = separator.len() + item.len();
    meter::work(ITEM_BYTES + n_bytes)?;
    if out.len() + n_bytes > out.capacity() {
        meter::room(3 * (out.len() + n_bytes))?;
    }
    out.push_str(separator);
    out.push_str(item);
    Ok(())
}
