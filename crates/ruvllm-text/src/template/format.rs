//! `str.format`: fields that name, look into and lay out values.

use minijinja::Error;
use minijinja::value::Value;

use super::arguments::divide;
use super::meter;
use super::operators::{attribute, item};
use super::python;
use super::sequence::invalid;
use super::spec::Spec;

/// Fields within the specification of a field.
const DEPTH_MAX: usize = 2;

/// The values of a format.
struct Fields<'v> {
    places: &'v [Value],
    named: Option<&'v Value>,
    /// The next field without a number; `None` once one has a number.
    next: Option<usize>,
    is_numbered: bool,
}

/// Returns `format.format(*arguments)`.
///
/// # Errors
/// The format is none, or a value is missing.
pub(super) fn format(format: &str, arguments: &[Value]) -> Result<String, Error> {
    let (places, named) = divide(arguments);
    Fields { places, named, next: Some(0), is_numbered: false }.fill(format, DEPTH_MAX)
}

impl Fields<'_> {
    fn fill(&mut self, format: &str, depth: usize) -> Result<String, Error> {
        if depth == 0 {
            return Err(invalid("Max string recursion exceeded"));
        }
        let mut out = String::new();
        let mut rest = format;
        while let Some(at) = rest.find(['{', '}']) {
            python::grow(&out, at)?;
            out.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(behind) = rest.strip_prefix(brace) {
                out.push_str(brace);
                rest = behind;
                continue;
            }
            if brace == "}" {
                return Err(invalid("Single '}' encountered in format string"));
            }
            let end = closing(rest).ok_or_else(|| invalid("expected '}' before end of string"))?;
            let text = self.field(&rest[..end], depth)?;
            python::grow(&out, text.len())?;
            meter::room(2 * text.len())?;
            out.push_str(&text);
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(&mut self, field: &str, depth: usize) -> Result<String, Error> {
        // An index may hold anything but its bracket.
        let mut in_index = false;
        let end = field.find(|c: char| {
            in_index = (in_index || c == '[') && c != ']';
            !in_index && (c == '!' || c == ':')
        });
        let (name, tail) = field.split_at(end.unwrap_or(field.len()));
        let (conversion, spec) = match tail.strip_prefix('!') {
            Some(tail) => match tail.split_once(':') {
                Some((conversion, spec)) => (Some(conversion), spec),
                None => (Some(tail), ""),
            },
            None => (None, tail.strip_prefix(':').unwrap_or_default()),
        };
        let mut value = self.value(name)?;
        match conversion {
            None => {}
            Some("s") => value = Value::from(python::to_str(&value)?.into_owned()),
            Some("r") => value = Value::from(python::to_repr(&value)?),
            Some(_) => return Err(invalid("this conversion of a format is not supported")),
        }
        let spec = if spec.contains(['{', '}']) { self.fill(spec, depth - 1)? } else { spec.to_owned() };
        Spec::parse(&spec)?.format(&spec, &value)
    }

    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let place = match first.parse::<usize>() {
            Ok(place) => {
                if self.next.is_some_and(|next| next > 0) {
                    return Err(invalid("cannot switch from automatic field numbering to manual field specification"));
                }
                self.is_numbered = true;
                Some(place)
            }
            Err(_) if first.is_empty() => {
                if self.is_numbered {
                    return Err(invalid("cannot switch from manual field specification to automatic field numbering"));
                }
                let place = self.next.unwrap_or(0);
                self.next = Some(place + 1);
                Some(place)
            }
            Err(_) => None,
        };
        let missing = || invalid(format!("a format has no value '{}'", super::one_line(first)));
        let mut value = match place {
            Some(place) => self.places.get(place).cloned(),
            None => self.named.and_then(|named| named.get_item(&Value::from(first)).ok()),
        }
        .filter(|value| place.is_some() || !value.is_undefined())
        .ok_or_else(missing)?;
        while !rest.is_empty() {
            if let Some(behind) = rest.strip_prefix('.') {
                let end = behind.find(['.', '[']).unwrap_or(behind.len());
                value = attribute(&value, &behind[..end])?;
                rest = &behind[end..];
            } else {
                let (key, behind) = rest[1..].split_once(']').ok_or_else(|| invalid("Missing ']' in format string"))?;
                let key = key.parse::<i64>().ok().filter(|n| *n >= 0).map_or_else(|| Value::from(key), Value::from);
                value = item(&value, &key)?;
                rest = behind;
            }
        }
        Ok(value)
    }
}

/// Returns where the brace closes that is open.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}
