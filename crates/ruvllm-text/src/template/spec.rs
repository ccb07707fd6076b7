//! Python's format specifications (`>10`, `,.2f`) of one value, and the fields of `%`, which have the same parts.

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use super::compare::{Number, whole};
use super::meter;
use super::python;
use super::sequence::{invalid, type_name};

/// The widest field and the most digits.
pub(super) const COLUMNS_MAX: usize = 10_000;

/// How a value is laid out.
#[derive(Clone, Debug, Default)]
pub(super) struct Spec {
    pub(super) fill: Option<char>,
    /// `<`, `>`, `^` or `=`.
    pub(super) align: Option<char>,
    /// `+`, `-` or a space.
    pub(super) sign: Option<char>,
    pub(super) is_alternate: bool,
    /// A `0` before the width stands for the alignment.
    is_zero: bool,
    pub(super) width: usize,
    /// `,` or `_`.
    pub(super) grouping: Option<char>,
    pub(super) precision: Option<usize>,
    pub(super) kind: Option<char>,
}

impl Spec {
    /// Reads `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
    ///
    /// # Errors
    /// It is none, or asks for too much.
    pub(super) fn parse(text: &str) -> Result<Spec, Error> {
        let wrong = || invalid(format!("Invalid format specifier '{}'", super::one_line(text)));
        let mut spec = Spec::default();
        let mut chars = text.chars().peekable();
        let is_align = |c: char| "<>=^".contains(c);
        let mut first = text.chars();
        match (first.next(), first.next()) {
            (Some(fill), Some(align)) if is_align(align) => {
                (spec.fill, spec.align) = (Some(fill), Some(align));
                chars.nth(1);
            }
            (Some(align), _) if is_align(align) => {
                spec.align = Some(align);
                chars.next();
            }
            _ => {}
        }
        spec.sign = chars.next_if(|c| "+- ".contains(*c));
        spec.is_alternate = chars.next_if_eq(&'#').is_some();
        if chars.next_if_eq(&'0').is_some() {
            spec.fill = spec.fill.or(Some('0'));
            spec.is_zero = spec.align.is_none();
            spec.align = spec.align.or(Some('='));
        }
        let columns = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| {
            let mut n = None;
            while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
                chars.next();
                n = Some(n.unwrap_or(0) * 10 + digit as usize);
                if n > Some(COLUMNS_MAX) {
                    return Err(invalid(format!("format: more than {COLUMNS_MAX}")));
                }
            }
            Ok(n)
        };
        spec.width = columns(&mut chars)?.unwrap_or(0);
        spec.grouping = chars.next_if(|c| ",_".contains(*c));
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(columns(&mut chars)?.ok_or_else(wrong)?);
        }
        spec.kind = chars.next();
        if chars.next().is_some() { Err(wrong()) } else { Ok(spec) }
    }

    /// Returns `format(value, spec)`.
    ///
    /// # Errors
    /// The specification is none for this type.
    pub(super) fn format(&self, text: &str, value: &Value) -> Result<String, Error> {
        if text.is_empty() {
            return Ok(python::to_str(value)?.into_owned());
        }
        let wrong =
            |kind: char| invalid(format!("Unknown format code '{kind}' for object of type '{}'", type_name(value)));
        match (value.kind(), Number::of(value)) {
            (ValueKind::String, _) => match self.kind {
                None | Some('s') if self.is_for_texts() => {
                    let align = self.align.filter(|_| !self.is_zero);
                    Ok(Spec { align, ..self.clone() }.pad(self.cut(value.as_str().unwrap_or_default()), '<'))
                }
                Some(kind) if kind != 's' => Err(wrong(kind)),
                _ => Err(invalid("this format is for numbers, not for texts")),
            },
            (_, Some(Number::Whole(n))) => match self.kind {
                None | Some('d' | 'b' | 'o' | 'x' | 'X') if self.precision.is_some() => {
                    Err(invalid("Precision not allowed in integer format specifier"))
                }
                None | Some('d' | 'b' | 'o' | 'x' | 'X') => Ok(self.whole(n)),
                Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => Ok(self.real(n as f64)),
                Some(kind) => Err(wrong(kind)),
            },
            (_, Some(Number::Real(x))) => match self.kind {
                None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => Ok(self.real(x)),
                Some(kind) => Err(wrong(kind)),
            },
            _ => Err(invalid(format!("unsupported format string passed to {}.__format__", type_name(value)))),
        }
    }

    fn is_for_texts(&self) -> bool {
        let is_aligned = self.align != Some('=') || self.is_zero;
        self.sign.is_none() && self.grouping.is_none() && !self.is_alternate && is_aligned
    }

    /// Returns as much of a text as the precision leaves.
    pub(super) fn cut<'t>(&self, text: &'t str) -> &'t str {
        let end = self.precision.and_then(|n| text.char_indices().nth(n));
        end.map_or(text, |(at, _)| &text[..at])
    }

    /// Fills a text up to the width.
    pub(super) fn pad(&self, text: &str, default_align: char) -> String {
        let n = self.width.saturating_sub(text.chars().count());
        let fill = |n: usize| std::iter::repeat_n(self.fill.unwrap_or(' '), n);
        let left = match self.align.unwrap_or(default_align) {
            '<' => 0,
            '^' => n / 2,
            _ => n,
        };
        fill(left).chain(text.chars()).chain(fill(n - left)).collect()
    }

    /// Returns a whole number in this layout.
    pub(super) fn whole(&self, n: i128) -> String {
        let magnitude = n.unsigned_abs();
        let (prefix, digits, n_group) = match self.kind {
            Some('b') => ("0b", format!("{magnitude:b}"), 4),
            Some('o') => ("0o", format!("{magnitude:o}"), 4),
            Some('x') => ("0x", format!("{magnitude:x}"), 4),
            Some('X') => ("0X", format!("{magnitude:X}"), 4),
            _ => ("", magnitude.to_string(), 3),
        };
        // Only fields of `%` have a precision here: at least so many digits.
        let digits = format!("{:0>1$}", digits, self.precision.unwrap_or(0));
        self.signed(n < 0, if self.is_alternate { prefix } else { "" }, &digits, "", n_group)
    }

    /// Returns a float in this layout.
    pub(super) fn real(&self, x: f64) -> String {
        let magnitude = x.abs();
        let kind = self.kind.unwrap_or('r');
        let precision = self.precision.unwrap_or(6);
        let mut text = match kind {
            _ if !x.is_finite() => (if x.is_nan() { "nan" } else { "inf" }).to_owned(),
            'f' | 'F' => fixed(magnitude, precision, self.is_alternate),
            '%' => fixed(magnitude * 100.0, precision, self.is_alternate) + "%",
            'e' | 'E' => exponential(magnitude, precision),
            'g' | 'G' => general(magnitude, precision, self.is_alternate, 0),
            // As `g`, but never without a point.
            _ => match self.precision {
                Some(precision) => general(magnitude, precision, self.is_alternate, 1),
                None => python::number(&Value::from(magnitude)),
            },
        };
        if kind.is_ascii_uppercase() {
            text = text.to_uppercase();
        }
        let n_whole = text.bytes().take_while(u8::is_ascii_digit).count();
        let is_negative = x.is_sign_negative() && !x.is_nan();
        let (digits, rest) = text.split_at(n_whole);
        self.signed(is_negative, "", digits, rest, 3)
    }

    /// Puts sign, prefix, fill and groups together.
    fn signed(&self, is_negative: bool, prefix: &str, digits: &str, rest: &str, n_group: usize) -> String {
        let sign = match (is_negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            _ => "",
        };
        let head = format!("{sign}{prefix}");
        if self.align != Some('=') {
            return self.pad(&format!("{head}{}{rest}", grouped(digits, self.grouping, n_group)), '>');
        }
        let n_free = self.width.saturating_sub(head.len() + rest.len());
        let fill = self.fill.unwrap_or(' ');
        let mut digits = digits.to_owned();
        if fill == '0' {
            // Zeros are grouped as well.
            let n_columns = |n: usize| n + self.grouping.map_or(0, |_| n.saturating_sub(1) / n_group);
            let n_digits = (digits.len()..=n_free.max(digits.len())).find(|n| n_columns(*n) >= n_free);
            let n_zeros = n_digits.unwrap_or(digits.len()) - digits.len();
            digits.insert_str(0, &"0".repeat(n_zeros));
        }
        let digits = grouped(&digits, self.grouping, n_group);
        let fill: String = std::iter::repeat_n(fill, n_free.saturating_sub(digits.len())).collect();
        format!("{head}{fill}{digits}{rest}")
    }
}

fn grouped(digits: &str, separator: Option<char>, n_group: usize) -> String {
    let Some(separator) = separator else { return digits.to_owned() };
    let mut out = String::with_capacity(2 * digits.len());
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(n_group) {
            out.push(separator);
        }
        out.push(digit);
    }
    out
}

fn fixed(x: f64, precision: usize, keeps_point: bool) -> String {
    format!("{x:.precision$}{}", if keeps_point && precision == 0 { "." } else { "" })
}

fn exponential(x: f64, precision: usize) -> String {
    let text = format!("{x:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// C's `%g`; `n_after_point` digits stay behind the point in any case.
fn general(x: f64, precision: usize, is_alternate: bool, n_after_point: usize) -> String {
    let precision = precision.max(1);
    let scientific = exponential(x, precision - 1);
    let exponent: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let is_fixed = exponent >= -4 && exponent < precision as i32 - n_after_point as i32;
    let text = match is_fixed {
        true => format!("{x:.*}", (precision as i32 - 1 - exponent).max(0) as usize),
        false => scientific,
    };
    if is_alternate {
        return text;
    }
    let (digits, tail) = text.split_once('e').map_or((&text[..], None), |(digits, tail)| (digits, Some(tail)));
    let mut digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    if n_after_point > 0 && tail.is_none() && !digits.contains('.') {
        digits += ".0";
    }
    tail.map_or(digits.clone(), |tail| format!("{digits}e{tail}"))
}

/// Takes the digits at the beginning of a text as a number of columns.
fn digits(rest: &mut &str) -> Result<usize, Error> {
    let n = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, behind) = rest.split_at(n);
    *rest = behind;
    columns(if number.is_empty() { 0 } else { number.parse().unwrap_or(i128::MAX) })
}

fn columns(n: i128) -> Result<usize, Error> {
    match usize::try_from(n) {
        Ok(n) if n <= COLUMNS_MAX => Ok(n),
        _ => Err(invalid(format!("format: more than {COLUMNS_MAX}"))),
    }
}

fn too_few() -> Error {
    invalid("not enough arguments for format string")
}

impl Spec {
    /// Reads flags, width and precision of a `%` field; `*` takes them from the values. Returns whether it is aligned to the left.
    fn read_field(&mut self, rest: &mut &str, left: &mut Vec<Value>) -> Result<bool, Error> {
        let mut is_left = false;
        loop {
            match rest.as_bytes().first() {
                Some(b'-') => is_left = true,
                Some(b'+') => self.sign = Some('+'),
                Some(b' ') => self.sign = self.sign.or(Some(' ')),
                Some(b'#') => self.is_alternate = true,
                Some(b'0') => self.fill = Some('0'),
                _ => break,
            }
            *rest = &rest[1..];
        }
        let mut star = || whole(&left.pop().ok_or_else(too_few)?).ok_or_else(|| invalid("* wants int"));
        if let Some(behind) = rest.strip_prefix('*') {
            *rest = behind;
            let n = star()?;
            is_left |= n < 0;
            self.width = columns(n.checked_abs().unwrap_or(i128::MAX))?;
        } else {
            self.width = digits(rest)?;
        }
        if let Some(behind) = rest.strip_prefix('.') {
            *rest = behind;
            self.precision = Some(match rest.strip_prefix('*') {
                Some(behind) => {
                    *rest = behind;
                    columns(star()?.max(0))?
                }
                None => digits(rest)?,
            });
        }
        Ok(is_left)
    }
}

/// Returns `format % values` of texts.
///
/// # Errors
/// Fields and values do not fit each other.
pub(super) fn percent(format: &str, values: &Value) -> Result<String, Error> {
    let tuple = super::sequence::tuple_items(values);
    let mut left: Vec<Value> =
        tuple.map_or_else(|| vec![values.clone()], |items| items.iter().rev().cloned().collect());
    let named = (values.kind() == ValueKind::Map).then_some(values);
    let is_mapping = named.is_some() || (tuple.is_none() && values.as_object().is_some());
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        python::grow(&out, at)?;
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut spec = Spec::default();
        let mut value = None;
        if let Some(behind) = rest.strip_prefix('(') {
            let (name, behind) = behind.split_once(')').ok_or_else(|| invalid("incomplete format key"))?;
            let named = named.ok_or_else(|| invalid("format requires a mapping"))?;
            let found = super::compare::lookup(named, &Value::from(name))?;
            value = Some(found.ok_or_else(|| invalid(format!("no value '{}' for a format", super::one_line(name))))?);
            rest = behind;
        }
        let is_left = spec.read_field(&mut rest, &mut left)?;
        rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
        let conversion = rest.chars().next().ok_or_else(|| invalid("incomplete format"))?;
        rest = &rest[conversion.len_utf8()..];
        if conversion == '%' {
            out.push('%');
            continue;
        }
        let value = match value {
            Some(value) => value,
            None => left.pop().ok_or_else(too_few)?,
        };
        if is_left {
            (spec.fill, spec.align) = (None, Some('<'));
        } else if spec.fill.is_some() {
            spec.align = Some('=');
        }
        let text = converted(&mut spec, conversion, &value)?;
        python::grow(&out, text.len())?;
        meter::room(2 * text.len())?;
        out.push_str(&text);
    }
    out.push_str(rest);
    match left.is_empty() || is_mapping {
        true => Ok(out),
        false => Err(invalid("not all arguments converted during string formatting")),
    }
}

fn converted(spec: &mut Spec, conversion: char, value: &Value) -> Result<String, Error> {
    let number = || {
        Number::of(value).ok_or_else(|| {
            invalid(format!("%{conversion} format: a real number is required, not {}", type_name(value)))
        })
    };
    match conversion {
        's' | 'r' | 'a' | 'c' => {
            let text = match conversion {
                's' => python::to_str(value)?.into_owned(),
                'c' => match (whole(value), value.as_str().map(|text| (text, text.chars().count()))) {
                    (_, Some((text, 1))) => text.to_owned(),
                    (Some(n), _) => u32::try_from(n)
                        .ok()
                        .and_then(char::from_u32)
                        .ok_or_else(|| invalid("%c arg not in range(0x110000)"))?
                        .to_string(),
                    _ => return Err(invalid("%c requires an int or a unicode character")),
                },
                _ => python::to_repr(value)?,
            };
            if conversion == 'a' && !text.is_ascii() {
                return Err(invalid("%a of a text that is not ASCII is not supported"));
            }
            spec.fill = None;
            spec.align = spec.align.filter(|align| *align == '<');
            Ok(spec.pad(spec.cut(&text), '>'))
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            spec.kind = Some(if matches!(conversion, 'i' | 'u') { 'd' } else { conversion });
            match number()? {
                Number::Whole(n) => Ok(spec.whole(n)),
                Number::Real(x) if spec.kind == Some('d') && x.abs() < 1e38 => Ok(spec.whole(x as i128)),
                Number::Real(_) => Err(invalid(format!("%{conversion} format: an integer is required, not float"))),
            }
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            spec.kind = Some(conversion);
            Ok(spec.real(number()?.real()))
        }
        _ => Err(invalid(format!("unsupported format character '{conversion}'"))),
    }
}
