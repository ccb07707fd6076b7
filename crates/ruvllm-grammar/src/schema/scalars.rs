//! Types, values that are listed, numbers and strings.

use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use serde_json::{Value, json};

use super::number::{self, Bound};
use super::rules::{RuleId, Symbol};
use super::{Compiler, Part, format, text};
use crate::GrammarError;
use crate::error::refused;

pub(super) const NULL: u8 = 1;
pub(super) const BOOLEAN: u8 = 2;
const INTEGER: u8 = 4;
const FRACTION: u8 = 8;
pub(super) const NUMBER: u8 = INTEGER | FRACTION;
pub(super) const STRING: u8 = 16;
pub(super) const ARRAY: u8 = 32;
pub(super) const OBJECT: u8 = 64;
const ALL: u8 = 127;
/// The work that finding out whether patterns have a text in common may take.
const COMMON_TEXT_WORK: u64 = 20_000;
/// Lengths beyond it are looked at.
const LENGTH_MAX: u64 = 1 << 20;

/// Returns the types that all of these allow.
pub(super) fn types_of(bare: &[Part<'_>]) -> Result<u8, GrammarError> {
    let mut types = ALL;
    for part in bare {
        types &= match part.get("type") {
            None => ALL,
            Some(Value::String(name)) => named_type(name)?,
            Some(Value::Array(names)) => {
                let mut all = 0;
                for name in names {
                    all |= named_type(name.as_str().unwrap_or_default())?;
                }
                all
            }
            Some(_) => return Err(refused("the schema's 'type' is neither a text nor a list")),
        };
    }
    Ok(types)
}

fn named_type(name: &str) -> Result<u8, GrammarError> {
    Ok(match name {
        "null" => NULL,
        "boolean" => BOOLEAN,
        "integer" => INTEGER,
        "number" => NUMBER,
        "string" => STRING,
        "array" => ARRAY,
        "object" => OBJECT,
        // Of draft 3.
        "any" => ALL,
        _ => return Err(refused(&format!("the schema has a type '{name}', which JSON has not"))),
    })
}

/// Returns a value's type.
pub(super) fn type_of(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(number) => {
            let is_whole = number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|n| n.fract() == 0.0);
            if is_whole { INTEGER } else { FRACTION }
        }
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

/// Returns whether two values are the same to JSON Schema: 1 is 1.0.
pub(crate) fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || (a.is_f64() || b.is_f64()) && a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| is_equal(a, b)))
        }
        _ => a == b,
    }
}

/// Returns the properties that a schema requires.
pub(super) fn required<'s>(part: &Part<'s>) -> impl Iterator<Item = &'s str> + use<'s> {
    part.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Returns the values that `enum` and `const` of all of these allow, if one of them has such.
pub(super) fn listed_values<'s>(bare: &[Part<'s>]) -> Result<Option<Vec<&'s Value>>, GrammarError> {
    let mut listed: Option<Vec<&'s Value>> = None;
    for part in bare {
        let all = match part.get("enum") {
            Some(Value::Array(values)) => Some(values.iter().collect::<Vec<_>>()),
            Some(_) => return Err(refused("the schema's 'enum' is not a list")),
            None => None,
        };
        let one = part.get("const").filter(|_| part.draft >= jsonschema::Draft::Draft6).map(|value| vec![value]);
        for values in [all, one].into_iter().flatten() {
            listed = Some(match listed {
                Some(listed) => {
                    listed.into_iter().filter(|value| values.iter().any(|other| is_equal(value, other))).collect()
                }
                None => values,
            });
        }
    }
    Ok(listed)
}

/// Returns a number that a keyword says, if it says one.
pub(super) fn count(part: &Part<'_>, keyword: &str) -> Result<Option<u64>, GrammarError> {
    let Some(value) = part.get(keyword) else { return Ok(None) };
    let float = value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0);
    match value.as_u64().or(float.map(|n| n as u64)) {
        Some(n) => Ok(Some(n)),
        None => Err(refused(&format!("the schema's '{keyword}' is no whole number from 0 on"))),
    }
}

/// Keywords that say nothing of a value beside `type`, `enum` and `const`.
const SAY_NOTHING: [&str; 17] = [
    "type",
    "enum",
    "const",
    "title",
    "description",
    "default",
    "examples",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$id",
    "$schema",
    "$anchor",
    "$defs",
    "definitions",
    "example",
];

impl<'s> Compiler<'s> {
    /// Writes the rule of values that are listed.
    pub(super) fn write_values(
        &mut self,
        rule: RuleId,
        bare: &[Part<'s>],
        types: u8,
        values: &[&'s Value],
    ) -> Result<(), GrammarError> {
        let mut validators = Vec::new();
        for part in bare {
            let keywords = part.keywords().into_iter().flat_map(|keywords| keywords.keys());
            if keywords.into_iter().any(|keyword| !SAY_NOTHING.contains(&keyword.as_str())) {
                let mut options = crate::judge::options(part.draft);
                options = options.with_registry(self.registry).with_base_uri(self.bases[part.base].as_str());
                match options.build(part.schema) {
                    Ok(validator) => validators.push(validator),
                    Err(_) => self.look_at("enum"),
                }
            }
        }
        let fits = |value: &&&Value| {
            type_of(value) & types != 0 && validators.iter().all(|validator| validator.is_valid(value))
        };
        let values: Vec<&Value> = values.iter().filter(fits).copied().collect();
        // Texts are one terminal: there may be many.
        let texts: Vec<String> = values.iter().filter_map(|value| value.as_str()).map(literal).collect();
        if !texts.is_empty() {
            let texts = self.rules.terminal(texts.join(" | "))?;
            self.rules.add(rule, vec![texts])?;
        }
        for value in values.iter().filter(|value| !value.is_string()) {
            let mut symbols = Vec::new();
            self.value(value, &mut symbols)?;
            self.rules.add(rule, symbols)?;
        }
        Ok(())
    }

    /// Writes a value that is given.
    fn value(&mut self, value: &Value, symbols: &mut Vec<Symbol>) -> Result<(), GrammarError> {
        let mut mark =
            |this: &mut Self, mark: &str| this.rules.terminal(json!(mark).to_string()).map(|mark| symbols.push(mark));
        match value {
            Value::Array(items) => {
                mark(self, "[")?;
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        symbols.push(self.comma()?);
                    }
                    self.value(item, symbols)?;
                }
                symbols.push(self.mark("]")?);
            }
            Value::Object(entries) => {
                mark(self, "{")?;
                for (i, (name, value)) in entries.iter().enumerate() {
                    if i > 0 {
                        symbols.push(self.comma()?);
                    }
                    symbols.push(self.rules.terminal(literal(name))?);
                    symbols.push(self.mark(":")?);
                    self.value(value, symbols)?;
                }
                symbols.push(self.mark("}")?);
            }
            Value::String(text) => symbols.push(self.rules.terminal(literal(text))?),
            value => mark(self, &value.to_string())?,
        }
        Ok(())
    }

    /// Returns the symbol of numbers; `None` if there are none.
    pub(super) fn number(&mut self, bare: &[Part<'s>], types: u8) -> Result<Option<Symbol>, GrammarError> {
        let is_whole = types & FRACTION == 0;
        let mut bounds = Vec::new();
        for part in bare {
            self.bounds(part, &mut bounds)?;
        }
        let mut multiples: Vec<&Value> = bare.iter().filter_map(|part| part.get("multipleOf")).collect();
        multiples.dedup();
        if let Some(wrong) = multiples.iter().find(|value| !value.as_f64().is_some_and(|n| n > 0.0)) {
            return Err(refused(&format!("the schema's 'multipleOf' is {wrong}, and only what is above 0 can be")));
        }
        if multiples.len() > 1 || bare.iter().any(|part| part.get("divisibleBy").is_some()) {
            self.look_at("multipleOf");
        }
        let one_by_one = |digits: &str| {
            let expressions = bounds.iter().map(number::Limit::expression);
            std::iter::once(digits.to_owned()).chain(expressions).collect()
        };
        let mut all: Vec<String> = match (is_whole, bounds.is_empty()) {
            (true, _) => number::whole(&bounds).map_or_else(|| one_by_one(number::INTEGER), |whole| vec![whole]),
            (false, true) => vec![number::NUMBER.to_owned()],
            (false, false) => one_by_one(number::DECIMAL),
        };
        match multiples.first().map(|multiple| number::multiples(&multiple.to_string())) {
            Some(Some(expression)) => all.push(expression),
            Some(None) => self.look_at("multipleOf"),
            None => {}
        }
        if !has_common_text(&all, None) {
            return Ok(None);
        }
        let all: Vec<String> = all.iter().map(|expression| format!("/{expression}/")).collect();
        self.rules.terminal(all.join(" & ")).map(Some)
    }

    /// Adds what a schema says of the least and the largest number.
    fn bounds(&mut self, part: &Part<'s>, bounds: &mut Vec<number::Limit>) -> Result<(), GrammarError> {
        for (keyword, open_keyword) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
            let is_open = part.get(open_keyword).and_then(Value::as_bool);
            let closed = part.get(keyword).map(|value| (keyword, value, is_open == Some(true)));
            let open = part.get(open_keyword).filter(|value| !value.is_boolean());
            for (name, value, is_open) in [closed, open.map(|value| (open_keyword, value, true))].into_iter().flatten()
            {
                if !value.is_number() {
                    return Err(refused(&format!("the schema's '{name}' is no number")));
                }
                match Bound::read(&value.to_string()) {
                    Some(bound) => bounds.push(number::Limit { bound, is_least: keyword == "minimum", is_open }),
                    None => self.look_at(if keyword == "minimum" { "minimum" } else { "maximum" }),
                }
            }
        }
        Ok(())
    }

    /// Returns the terminal's expression for strings; `None` if there are none. Plain ones, if others are told from them.
    pub(super) fn string(&mut self, bare: &[Part<'s>], is_plain: bool) -> Result<Option<String>, GrammarError> {
        let (mut least, mut most) = (0, u64::MAX);
        let (mut all, mut not) = (Vec::new(), None);
        let mut formats = std::collections::BTreeSet::new();
        for part in bare {
            least = least.max(count(part, "minLength")?.unwrap_or(0));
            most = most.min(count(part, "maxLength")?.unwrap_or(u64::MAX));
            match part.get("pattern") {
                Some(Value::String(pattern)) => match text::pattern(pattern) {
                    Some(inside) => all.push(inside),
                    None => self.look_at("pattern"),
                },
                Some(_) => return Err(refused("the schema's 'pattern' is not a text")),
                None => {}
            }
            if let Some(name) = part.get("format").and_then(Value::as_str).filter(|name| formats.insert(*name)) {
                self.format(name, &mut all, &mut not)?;
            }
        }
        if least > most {
            return Ok(None);
        }
        let is_far = |n: u64| n != u64::MAX && n > LENGTH_MAX;
        if is_far(most) || is_far(least) {
            self.look_at("maxLength");
            (least, most) = (least.min(LENGTH_MAX), if is_far(most) { u64::MAX } else { most });
        }
        let any = if is_plain || !all.is_empty() { text::PLAIN } else { text::ANY };
        let length = match most {
            u64::MAX if least == 0 => format!("{any}*"),
            u64::MAX => format!("{any}{{{least},}}"),
            most => format!("{any}{{{least},{most}}}"),
        };
        if all.is_empty() {
            return Ok(Some(text::quoted(&length)));
        }
        if least > 0 || most != u64::MAX {
            all.push(length);
        }
        if all.len() > 1 && !has_common_text(&all, not.as_deref()) {
            return Ok(None);
        }
        let mut all: Vec<String> = all.iter().map(|inside| text::quoted(inside)).collect();
        all.extend(not.map(|inside| format!("~{}", text::quoted(&inside))));
        Ok(Some(all.join(" & ")))
    }

    fn format(&mut self, name: &str, all: &mut Vec<String>, not: &mut Option<String>) -> Result<(), GrammarError> {
        let Some(format) = format::find(name) else {
            let is_of_numbers = ["int32", "int64", "float", "double"].contains(&name);
            return match self.refuses_formats && !is_of_numbers {
                true => Err(refused(&format!("the schema uses the format '{name}', which is only an annotation here"))),
                false => Ok(()),
            };
        };
        all.extend(format.patterns.iter().filter_map(|pattern| text::pattern(pattern)));
        if let Some(pattern) = format.not.as_deref().and_then(text::pattern) {
            *not = Some(match not.take() {
                Some(other) => format!("(?:{other}|{pattern})"),
                None => pattern,
            });
        }
        Ok(())
    }
}

/// Returns a terminal's expression for a text that is given.
pub(super) fn literal(text: &str) -> String {
    match text.bytes().all(|byte| (b' '..0x7f).contains(&byte) && !b"\"\\/".contains(&byte)) {
        true => json!(format!("\"{text}\"")).to_string(),
        false => text::quoted(&text::literal(text)),
    }
}

/// Returns whether some text fits all of these expressions and not the other; if that is not found out, yes.
pub(super) fn has_common_text(all: &[String], not: Option<&str>) -> bool {
    let mut builder = RegexBuilder::new();
    let mut parts: Vec<RegexAst> = Vec::new();
    for expression in all {
        let Ok(part) = builder.mk_regex(expression) else { return true };
        parts.push(RegexAst::ExprRef(part));
    }
    if let Some(not) = not {
        let Ok(part) = builder.mk_regex(not) else { return true };
        parts.push(RegexAst::Not(Box::new(RegexAst::ExprRef(part))));
    }
    let common: Result<ExprRef, _> = builder.mk(&RegexAst::And(parts));
    match common.and_then(|common| builder.to_regex_limited(common, COMMON_TEXT_WORK)) {
        Ok(mut regex) => !regex.always_empty(),
        Err(_) => true,
    }
}
