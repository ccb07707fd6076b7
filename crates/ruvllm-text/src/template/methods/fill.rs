//! Characters at the ends of texts: stripped, filled up, tabs expanded.

use minijinja::Error;
use minijinja::value::Value;

use crate::template::arguments::{bind, needed, number, text};
use crate::template::compare::whole;
use crate::template::filters::{COUNT_MAX, like};
use crate::template::sequence::invalid;
use crate::template::{meter, python};

pub(super) fn strip(method: &str, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
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

pub(super) fn padded(method: &str, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
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

pub(super) fn expanded(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
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
