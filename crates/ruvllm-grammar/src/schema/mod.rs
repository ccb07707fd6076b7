//! JSON Schema as a grammar, keyword by keyword (docs, "Structured output", has the table).
//!
//! A place in an answer has a *set* of schemas that all hold there. A set becomes a rule: `$ref` and `allOf` add to it,
//! `anyOf` and its like are alternatives, and what remains says for each type of value what it is made of, whose own places
//! have sets again. A set that was met before is the rule that it became, so that recursion ends.
//!
//! What a grammar cannot say is left out of it and named in [`Compiled::looked_at`]: the grammar allows too much then, and
//! a validator looks at what is written ([`crate::judge`]). Nothing that is valid is ruled out by what is left out.

mod arrays;
mod conditions;
mod format;
mod keys;
mod number;
mod objects;
mod range;
mod rules;
mod scalars;
mod text;

use std::collections::{BTreeSet, HashMap, VecDeque};

use jsonschema::{Draft, Registry, Uri};
use serde_json::{Map, Value};

use crate::GrammarError;
use crate::error::refused;
use rules::{RuleId, Rules, Symbol};
pub(crate) use scalars::is_equal;

/// The most alternatives that one set of schemas may become; of more the last `anyOf` are looked at instead.
const WAYS_MAX: usize = 128;
/// The most schemas of one set.
const SET_MAX: usize = 2_048;
/// Where a schema without `$id` is.
const ROOT: &str = "json-schema:///";
static NEVER: Value = Value::Bool(false);

/// A schema as a grammar.
pub(super) struct Compiled {
    /// In Lark's syntax.
    pub(super) lark: String,
    /// The keywords that the grammar leaves out.
    pub(super) looked_at: BTreeSet<&'static str>,
}

/// Writes a schema as a grammar; `None` if it allows nothing.
///
/// # Errors
/// It is malformed, too large, refers to what is not there, or uses what cannot be kept.
pub(super) fn compile(schema: &Value) -> Result<Option<Compiled>, GrammarError> {
    if !schema.is_object() && !schema.is_boolean() {
        return Err(refused("the schema is neither an object nor a boolean"));
    }
    if schema.get("x-guidance").is_some() {
        return Err(refused("the schema uses 'x-guidance', which is not supported"));
    }
    let schema = &*without_own_keys(schema);
    let draft = crate::draft::of(schema);
    if draft == Draft::Unknown {
        return Err(refused("its '$schema' names a draft that is not known; leave it out for draft 2020-12"));
    }
    let resource = draft.create_resource_ref(schema);
    let id = resource.id();
    let base = jsonschema::uri::from_str(ROOT).and_then(|root| match id {
        Some(id) => jsonschema::uri::resolve_against(&root.borrow(), id),
        None => Ok(root),
    });
    let base = base.map_err(|error| refused(&format!("the schema's '$id': {error}")))?;
    let resource = draft.create_resource(schema.clone());
    let registry = Registry::new().draft(draft).add(base.as_str(), resource).and_then(|builder| builder.prepare());
    let registry = registry.map_err(|error| references_error(&error))?;
    // The registry's own copy: what references lead to is in it.
    let found = registry.resolver(base.clone()).lookup("#").map_err(|error| references_error(&error))?;
    let mut compiler = Compiler {
        registry: &registry,
        bases: vec![base],
        rules: Rules::default(),
        known: HashMap::new(),
        to_write: VecDeque::new(),
        looked_at: BTreeSet::new(),
        refuses_formats: false,
    };
    compiler.refuses_formats = schema.get("x-strict-formats").is_some();
    let root = Part { schema: found.contents(), base: 0, draft, is_bare: false };
    let start = compiler.rule(vec![root])?;
    while let Some((rule, set)) = compiler.to_write.pop_front() {
        compiler.write(rule, &set)?;
    }
    let Compiler { rules, looked_at, .. } = compiler;
    Ok(rules.lark(start).map(|lark| Compiled { lark, looked_at }))
}

/// Returns a schema with what is said to us, not in the schema's own words, in one key.
fn without_own_keys(schema: &Value) -> std::borrow::Cow<'_, Value> {
    let mut schema = std::borrow::Cow::Borrowed(schema);
    if let Some(strict) = schema.get("strict_formats").cloned()
        && let Value::Object(keys) = schema.to_mut()
    {
        keys.remove("strict_formats");
        if strict == Value::Bool(true) {
            keys.insert("x-strict-formats".to_owned(), strict);
        }
    }
    schema
}

fn references_error(error: &jsonschema::ReferencingError) -> GrammarError {
    refused(&format!("the schema's '$ref' or '$id': {error}; only what is in the schema itself can be referred to"))
}

/// A schema that holds at a place.
#[derive(Clone, Copy)]
struct Part<'s> {
    schema: &'s Value,
    /// The number of the address that its references start from.
    base: usize,
    draft: Draft,
    /// Whether what it says by `$ref`, `allOf` and other schemas for the same place is in the set already.
    is_bare: bool,
}

impl<'s> Part<'s> {
    fn key(&self) -> (usize, usize, bool) {
        (std::ptr::from_ref(self.schema) as usize, self.base, self.is_bare)
    }

    fn keywords(&self) -> Option<&'s Map<String, Value>> {
        self.schema.as_object()
    }

    /// Returns what a keyword says.
    fn get(&self, keyword: &str) -> Option<&'s Value> {
        self.schema.get(keyword)
    }
}

/// A set of schemas, without those that refer to others for the same place.
#[derive(Default)]
struct Expanded<'s> {
    bare: Vec<Part<'s>>,
    /// Of each of these, one of its sets holds as well.
    choices: Vec<Vec<Vec<Part<'s>>>>,
    is_never: bool,
}

struct Compiler<'s> {
    registry: &'s Registry<'s>,
    bases: Vec<Uri<String>>,
    rules: Rules,
    known: HashMap<Vec<(usize, usize, bool)>, RuleId>,
    to_write: VecDeque<(RuleId, Vec<Part<'s>>)>,
    looked_at: BTreeSet<&'static str>,
    /// Whether a format that is only an annotation is refused.
    refuses_formats: bool,
}

impl<'s> Compiler<'s> {
    /// Returns the rule for a set; it is written later.
    fn rule(&mut self, mut set: Vec<Part<'s>>) -> Result<RuleId, GrammarError> {
        let mut seen = BTreeSet::new();
        set.retain(|part| *part.schema != Value::Bool(true) && seen.insert(part.key()));
        let key: Vec<_> = set.iter().map(Part::key).collect();
        if let Some(&known) = self.known.get(&key) {
            return Ok(known);
        }
        let rule = self.rules.rule()?;
        self.known.insert(key, rule);
        self.to_write.push_back((rule, set));
        Ok(rule)
    }

    /// Notes that a keyword is not kept by the grammar.
    fn look_at(&mut self, keyword: &'static str) {
        self.looked_at.insert(keyword);
    }

    /// Returns a schema that is part of another.
    fn part(&mut self, of: Part<'s>, schema: &'s Value) -> Result<Part<'s>, GrammarError> {
        if !schema.is_object() && !schema.is_boolean() {
            return Err(refused("a part of the schema is neither an object nor a boolean"));
        }
        let draft = if schema.get("$schema").is_some() { of.draft.detect(schema) } else { of.draft };
        let draft = if draft == Draft::Unknown { of.draft } else { draft };
        let base = match draft.create_resource_ref(schema).id() {
            Some(id) if !id.starts_with('#') => {
                let base = jsonschema::uri::resolve_against(&self.bases[of.base].borrow(), id);
                let base = base.map_err(|error| refused(&format!("the schema's '$id': {error}")))?;
                self.base(base)
            }
            _ => of.base,
        };
        Ok(Part { schema, base, draft, is_bare: false })
    }

    fn base(&mut self, base: Uri<String>) -> usize {
        let known = self.bases.iter().position(|known| *known == base);
        known.unwrap_or_else(|| {
            self.bases.push(base);
            self.bases.len() - 1
        })
    }

    /// Returns what a reference leads to.
    fn target(&mut self, part: Part<'s>, reference: &Value) -> Result<Part<'s>, GrammarError> {
        let Some(reference) = reference.as_str() else {
            return Err(refused("the schema has a '$ref' that is not a text"));
        };
        let resolver = self.registry.resolver(self.bases[part.base].clone());
        let found = resolver.lookup(reference).map_err(|error| references_error(&error))?;
        let base = (*found.resolver().base_uri()).clone();
        let base = self.base(base);
        let (schema, draft) = (found.contents(), found.into_inner().2);
        let draft = if draft == Draft::Unknown { part.draft } else { draft };
        if !schema.is_object() && !schema.is_boolean() {
            return Err(refused(&format!("the schema's '$ref' to {reference} leads to what is no schema")));
        }
        Ok(Part { schema, base, draft, is_bare: false })
    }

    /// Adds to a set what its schemas say of the same place.
    fn expand(&mut self, set: &[Part<'s>]) -> Result<Expanded<'s>, GrammarError> {
        let mut expanded = Expanded::default();
        // Each with the place of the one that led to it.
        let mut all: Vec<(Part<'s>, usize)> = set.iter().map(|part| (*part, usize::MAX)).collect();
        let (mut seen, mut at) = (BTreeSet::new(), 0);
        while let Some(&(part, from)) = all.get(at) {
            at += 1;
            // What leads back to itself is never fulfilled.
            let mut before = from;
            while let Some(&(other, its_from)) = all.get(before) {
                expanded.is_never |= other.key() == part.key();
                before = its_from;
            }
            if !seen.insert(part.key()) {
                continue;
            }
            if seen.len() > SET_MAX {
                return Err(refused(&format!("more than {SET_MAX} schemas hold at one place; make them fewer")));
            }
            match part.schema {
                Value::Bool(true) => continue,
                Value::Object(keywords) if !part.is_bare => {
                    let mut found = Vec::new();
                    if let Some(reference) = part.get("$ref") {
                        found.push(self.target(part, reference)?);
                    }
                    if part.draft > Draft::Draft7 || !keywords.contains_key("$ref") {
                        self.expand_one(part, &mut found, &mut expanded)?;
                        expanded.bare.push(Part { is_bare: true, ..part });
                    }
                    all.extend(found.into_iter().map(|found| (found, at - 1)));
                }
                Value::Object(_) => expanded.bare.push(part),
                _ => expanded.is_never = true,
            }
        }
        Ok(expanded)
    }

    fn expand_one(
        &mut self,
        part: Part<'s>,
        found: &mut Vec<Part<'s>>,
        expanded: &mut Expanded<'s>,
    ) -> Result<(), GrammarError> {
        found.extend(self.schemas(part, "allOf")?);
        if part.get("anyOf").is_some() {
            let branches = self.schemas(part, "anyOf")?;
            expanded.choices.push(branches.into_iter().map(|branch| vec![branch]).collect());
        }
        if part.get("oneOf").is_some() {
            let branches = self.schemas(part, "oneOf")?;
            if !self.exclude_each_other(part, &branches)? {
                self.look_at("oneOf");
            }
            expanded.choices.push(branches.into_iter().map(|branch| vec![branch]).collect());
        }
        self.expand_conditions(part, found, expanded)
    }

    /// Returns the schemas that are listed under a keyword.
    fn schemas(&mut self, part: Part<'s>, keyword: &str) -> Result<Vec<Part<'s>>, GrammarError> {
        match part.get(keyword) {
            None => Ok(Vec::new()),
            Some(Value::Array(schemas)) => schemas.iter().map(|schema| self.part(part, schema)).collect(),
            Some(_) => Err(refused(&format!("the schema's '{keyword}' is not a list"))),
        }
    }

    /// Returns a mark of JSON.
    fn mark(&mut self, mark: &str) -> Result<Symbol, GrammarError> {
        self.rules.terminal(Value::from(mark).to_string())
    }

    /// Returns the mark between items.
    fn comma(&mut self) -> Result<Symbol, GrammarError> {
        self.mark(",")
    }

    /// Returns what is said of what no schema of the place tells of, where it is certain that none of `others` does.
    fn unevaluated(
        &mut self,
        bare: &[Part<'s>],
        keyword: &str,
        others: &[&str],
    ) -> Result<Vec<Part<'s>>, GrammarError> {
        let has = |part: &Part<'s>, keyword: &str| part.get(keyword).is_some();
        let is_told =
            |part: &Part<'s>| others.iter().chain(&["$dynamicRef", "$recursiveRef"]).any(|other| has(part, other));
        if bare.iter().any(is_told) {
            return Ok(Vec::new());
        }
        let said = bare.iter().filter(|part| part.draft >= Draft::Draft201909);
        said.filter_map(|part| part.get(keyword).map(|schema| self.part(*part, schema))).collect()
    }

    /// Writes the rule of a set.
    fn write(&mut self, rule: RuleId, set: &[Part<'s>]) -> Result<(), GrammarError> {
        let Expanded { bare, mut choices, is_never } = self.expand(set)?;
        if is_never || choices.iter().any(Vec::is_empty) {
            return Ok(());
        }
        // What may be taken of each choice is what can go with the rest, by its type.
        for choice in &mut choices {
            let mut kept = Vec::new();
            for branch in std::mem::take(choice) {
                let types = self.types(&[&bare[..], &branch[..]].concat(), 0)?;
                if types != 0 {
                    kept.push(branch);
                }
            }
            *choice = kept;
        }
        let n_ways =
            |choices: &[Vec<Vec<Part<'s>>>]| choices.iter().fold(1usize, |n, choice| n.saturating_mul(choice.len()));
        // One `anyOf` alone may have any number.
        while choices.len() > 1 && n_ways(&choices) > WAYS_MAX {
            choices.pop();
            self.look_at("anyOf");
        }
        if choices.is_empty() {
            return self.write_bare(rule, &bare);
        }
        let mut ways: Vec<Vec<Part<'s>>> = vec![bare];
        for choice in &choices {
            let with = |way: &Vec<Part<'s>>, branch: &Vec<Part<'s>>| [&way[..], &branch[..]].concat();
            ways = ways.iter().flat_map(|way| choice.iter().map(move |branch| with(way, branch))).collect();
        }
        for way in ways {
            let way = self.rule(way)?;
            self.rules.add(rule, vec![Symbol::Rule(way)])?;
        }
        Ok(())
    }

    /// Writes the rule of a set whose schemas say all there is to say.
    fn write_bare(&mut self, rule: RuleId, bare: &[Part<'s>]) -> Result<(), GrammarError> {
        let types = scalars::types_of(bare)?;
        if let Some(values) = scalars::listed_values(bare)? {
            return self.write_values(rule, bare, types, &values);
        }
        if types & scalars::NULL != 0 {
            let null = self.rules.terminal("\"null\"".to_owned())?;
            self.rules.add(rule, vec![null])?;
        }
        if types & scalars::BOOLEAN != 0 {
            let boolean = self.rules.terminal("\"true\" | \"false\"".to_owned())?;
            self.rules.add(rule, vec![boolean])?;
        }
        if types & scalars::NUMBER != 0
            && let Some(number) = self.number(bare, types)?
        {
            self.rules.add(rule, vec![number])?;
        }
        if types & scalars::STRING != 0
            && let Some(string) = self.string(bare, false)?
        {
            let string = self.rules.terminal(string)?;
            self.rules.add(rule, vec![string])?;
        }
        if types & scalars::ARRAY != 0 {
            self.array(rule, bare)?;
        }
        if types & scalars::OBJECT != 0 {
            self.object(rule, bare)?;
        }
        Ok(())
    }
}
