//! A validator that looks at what a grammar cannot say: at whole answers, and at values inside as soon as they close.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use jsonschema::{Draft, PatternOptions, Registry, ValidationOptions, Validator};
use serde_json::Value;

use crate::GrammarError;
use crate::error::refused;

/// Steps that a pattern with references back or lookaround may take for one text.
const BACKTRACKS_MAX: usize = 100_000;
/// The most schemas that are looked at for one value inside an answer; the whole answer is always looked at.
const POINTERS_MAX: usize = 64;
/// Formats that are annotations here, though the validator knows them.
const ANNOTATIONS: [&str; 9] = [
    "uri-reference",
    "iri",
    "iri-reference",
    "uri-template",
    "regex",
    "json-pointer",
    "relative-json-pointer",
    "idn-email",
    "idn-hostname",
];
/// Keywords that a grammar keeps only in part.
const KEYWORDS: [&str; 20] = [
    "oneOf",
    "anyOf",
    "not",
    "if",
    "contains",
    "uniqueItems",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "patternProperties",
    "multipleOf",
    "pattern",
    "enum",
    "$dynamicRef",
    "$recursiveRef",
];
const ROOT: &str = "json-schema:///answer";

/// Returns how schemas of a draft are read: formats as the grammar has them, nothing from elsewhere.
pub(crate) fn options<'i>(draft: Draft) -> ValidationOptions<'i> {
    let options = jsonschema::options().with_draft(draft).offline().should_validate_formats(true);
    let options = options.with_pattern_options(PatternOptions::fancy_regex().backtrack_limit(BACKTRACKS_MAX));
    ANNOTATIONS.into_iter().fold(options, |options, name| options.with_format(name, |_: &str| true))
}

/// Looks at answers by one schema.
pub(crate) struct Judge {
    schema: Value,
    /// Those that it is for.
    keywords: String,
    draft: Draft,
    registry: Registry<'static>,
    whole: Validator,
    /// Whether values inside can be told of by where their schemas are.
    sees_inside: bool,
    inside: Mutex<HashMap<Arc<str>, Option<Arc<Validator>>>>,
}

/// One step into a value.
pub(crate) enum Step<'k> {
    Key(&'k str),
    Item(usize),
}

impl Judge {
    /// Makes what looks at these keywords of a schema; `None` if there are none.
    ///
    /// # Errors
    /// It is no valid schema.
    pub(crate) fn new(schema: &Value, keywords: &BTreeSet<&'static str>) -> Result<Option<Judge>, GrammarError> {
        let draft = crate::draft::of(schema);
        let whole = options(draft).build(schema).map_err(|error| {
            let place = error.instance_path().as_str().to_owned();
            let place = if place.is_empty() { String::new() } else { format!(" at {place}") };
            refused(&format!("the schema is not valid{place}: {error}"))
        })?;
        if keywords.is_empty() {
            return Ok(None);
        }
        let resource = draft.create_resource(schema.clone());
        let registry = Registry::new().draft(draft).add(ROOT, resource).and_then(|builder| builder.prepare());
        let registry = registry.map_err(|error| refused(&format!("the schema's references: {error}")))?;
        let sees_inside = !has_inner_id(schema, true);
        let schema = schema.clone();
        let keywords = keywords.iter().map(|keyword| format!("'{keyword}'")).collect::<Vec<_>>().join(", ");
        Ok(Some(Judge { schema, keywords, draft, registry, whole, sees_inside, inside: Mutex::default() }))
    }

    /// Returns the names of the keywords that it is for.
    pub(crate) fn keywords(&self) -> &str {
        &self.keywords
    }

    /// Returns whether a whole answer is right.
    pub(crate) fn is_right(&self, text: &[u8]) -> bool {
        serde_json::from_slice(text).is_ok_and(|value: Value| self.whole.is_valid(&value))
    }

    /// Returns the schemas that hold for an answer, by where they are.
    pub(crate) fn root(&self) -> Vec<Arc<str>> {
        let mut pointers = Vec::new();
        if self.sees_inside {
            self.add("".into(), &mut pointers);
        }
        pointers
    }

    /// Returns the schemas that certainly hold for a value inside one for which `pointers` do.
    pub(crate) fn step(&self, pointers: &[Arc<str>], step: &Step<'_>) -> Vec<Arc<str>> {
        let mut found = Vec::new();
        for pointer in pointers {
            let Some(schema) = self.schema.pointer(pointer) else { continue };
            let has = |path: &str| schema.pointer(path).is_some_and(Value::is_object);
            let path = match step {
                Step::Key(key) => {
                    let named = format!("/properties/{}", key.replace('~', "~0").replace('/', "~1"));
                    let is_other = schema.pointer(&named).is_none() && schema.get("patternProperties").is_none();
                    if is_other { "/additionalProperties".to_owned() } else { named }
                }
                Step::Item(i) => {
                    let list = if schema.get("items").is_some_and(Value::is_array) { "items" } else { "prefixItems" };
                    let placed = format!("/{list}/{i}");
                    match (schema.pointer(&placed), list) {
                        (Some(_), _) => placed,
                        (None, "items") => "/additionalItems".to_owned(),
                        (None, _) => "/items".to_owned(),
                    }
                }
            };
            if has(&path) {
                self.add(format!("{pointer}{path}").into(), &mut found);
            }
        }
        found
    }

    /// Adds a schema, with those that it says hold as well.
    fn add(&self, pointer: Arc<str>, found: &mut Vec<Arc<str>>) {
        if found.len() >= POINTERS_MAX || found.contains(&pointer) {
            return;
        }
        let Some(Value::Object(keywords)) = self.schema.pointer(&pointer) else { return };
        let reference = keywords.get("$ref").and_then(Value::as_str);
        if reference.is_none() || self.draft > Draft::Draft7 {
            found.push(Arc::clone(&pointer));
            for i in 0..keywords.get("allOf").and_then(Value::as_array).map_or(0, Vec::len) {
                self.add(format!("{pointer}/allOf/{i}").into(), found);
            }
        }
        let target = reference.and_then(|reference| reference.strip_prefix('#'));
        if let Some(target) =
            target.filter(|target| (target.is_empty() || target.starts_with('/')) && !target.contains('%'))
        {
            self.add(target.into(), found);
        }
    }

    /// Returns whether each item of an array has to be another.
    pub(crate) fn is_unique(&self, pointers: &[Arc<str>]) -> bool {
        let says = |pointer: &Arc<str>| self.schema.pointer(pointer).and_then(|schema| schema.get("uniqueItems"));
        pointers.iter().any(|pointer| says(pointer) == Some(&Value::Bool(true)))
    }

    /// Returns whether a value is right by the schemas for it that a grammar may not have kept.
    pub(crate) fn allows(&self, pointers: &[Arc<str>], text: &[u8]) -> bool {
        let is_kept_in_part = |pointer: &&Arc<str>| {
            let keywords = self.schema.pointer(pointer).and_then(Value::as_object);
            keywords.is_some_and(|keywords| KEYWORDS.iter().any(|keyword| keywords.contains_key(*keyword)))
        };
        let mut value = None;
        for pointer in pointers.iter().filter(is_kept_in_part) {
            let Some(validator) = self.validator(pointer) else { continue };
            let parsed: &Option<Value> = value.get_or_insert_with(|| serde_json::from_slice(text).ok());
            if !parsed.as_ref().is_some_and(|value| validator.is_valid(value)) {
                return false;
            }
        }
        true
    }

    fn validator(&self, pointer: &Arc<str>) -> Option<Arc<Validator>> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            // As a reference has it: what is no plain letter is a percent escape.
            let fragment: String = pointer.bytes().fold(String::new(), |fragment, byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'~' | b'-' | b'_' | b'$' => {
                    fragment + &char::from(byte).to_string()
                }
                byte => format!("{fragment}%{byte:02X}"),
            });
            let schema = serde_json::json!({ "$ref": format!("{ROOT}#{fragment}") });
            options(self.draft).with_registry(&self.registry).build(&schema).ok().map(Arc::new)
        };
        inside.entry(Arc::clone(pointer)).or_insert_with(make).clone()
    }
}

/// Returns whether a part of a schema has an address of its own.
fn has_inner_id(schema: &Value, is_root: bool) -> bool {
    match schema {
        Value::Object(keywords) => {
            let has_id = ["$id", "id"].iter().any(|keyword| keywords.get(*keyword).is_some_and(Value::is_string));
            (has_id && !is_root) || keywords.values().any(|value| has_inner_id(value, false))
        }
        Value::Array(values) => values.iter().any(|value| has_inner_id(value, false)),
        _ => false,
    }
}
