//! Arrays and objects.
//!
//! Properties that a schema lists, or requires, come in its order. Behind them come others, in any order, whose keys are
//! none of those, in any spelling: each kind of key (by the patterns that it matches) is a terminal of its own, and what
//! stands behind it fits all that is said of such keys.

use std::collections::{BTreeMap, HashMap};

use jsonschema::Draft;
use serde_json::Value;

use super::super::refused;
use super::rules::{RuleId, Rules, Symbol};
use super::{Compiler, NEVER, Part, scalars, text};
use crate::TextError;

/// The most patterns of keys whose overlaps are told apart; of more, no key may match two.
const OVERLAPS_MAX: usize = 4;
/// The most rules that count the properties of one object.
const COUNTED_MAX: u64 = 4_000;
/// The most properties of one object: its rules lead from one to the next.
const LISTED_MAX: usize = 2_048;
/// The most items that are told apart by their place.
const PREFIX_MAX: usize = 1_000;

/// What is said of the number of something.
#[derive(Clone, Copy)]
struct Range {
    min: u64,
    max: Option<u64>,
}

impl Range {
    fn of(bare: &[Part<'_>], least: &str, most: &str) -> Result<Range, TextError> {
        let mut range = Range { min: 0, max: None };
        for part in bare {
            range.min = range.min.max(scalars::count(part, least)?.unwrap_or(0));
            if let Some(most) = scalars::count(part, most)? {
                range.max = Some(range.max.map_or(most, |max| max.min(most)));
            }
        }
        // Nobody counts further, and the compiler counts in 31 bits.
        range.max = range.max.filter(|&max| max < 1 << 30);
        range.min = range.min.min(1 << 30);
        Ok(range)
    }

    fn is_empty(self) -> bool {
        self.max.is_some_and(|max| max < self.min)
    }

    /// Returns the range of what is to come when there are `n`.
    fn after(self, n: u64) -> Range {
        Range { min: self.min.saturating_sub(n), max: self.max.map(|max| max.saturating_sub(n)) }
    }

    fn repeat(self, rule: RuleId) -> Symbol {
        Symbol::Repeat { rule, min: self.min as usize, max: self.max.map(|max| max as usize) }
    }
}

/// An object while its rules are written.
struct Object {
    /// The item of each listed property, and whether it is required.
    listed: Vec<(RuleId, bool)>,
    /// One of the other properties.
    free: Option<RuleId>,
    range: Range,
    is_counted: bool,
    /// By the number of the next listed property, whether one came already, and how many.
    known: HashMap<(usize, bool, u64), RuleId>,
}

impl<'s> Compiler<'s> {
    /// Returns a mark of JSON.
    pub(super) fn mark(&mut self, mark: &str) -> Result<Symbol, TextError> {
        self.rules.terminal(Value::from(mark).to_string())
    }

    /// Returns the mark between items.
    pub(super) fn comma(&mut self) -> Result<Symbol, TextError> {
        self.mark(",")
    }

    /// Adds arrays to a rule.
    pub(super) fn array(&mut self, rule: RuleId, bare: &[Part<'s>]) -> Result<(), TextError> {
        let mut range = Range::of(bare, "minItems", "maxItems")?;
        for part in bare {
            if part.get("uniqueItems") == Some(&Value::Bool(true)) && range.max.is_none_or(|max| max > 1) {
                self.look_at("uniqueItems");
            }
            if part.get("contains").is_some() && part.draft >= Draft::Draft6 {
                self.look_at("contains");
                let is_new = part.draft >= Draft::Draft201909;
                let least = scalars::count(part, "minContains")?.filter(|_| is_new).unwrap_or(1);
                range.min = range.min.max(least);
            }
            if part.get("unevaluatedItems").is_some() && part.draft >= Draft::Draft201909 {
                self.look_at("unevaluatedItems");
            }
        }
        if range.is_empty() {
            return Ok(());
        }
        let (mut prefixes, mut rests) = (Vec::new(), Vec::new());
        for &part in bare {
            let (prefix, rest) = self.items(part)?;
            prefixes.push(prefix);
            rests.extend(rest);
        }
        rests.extend(self.unevaluated(bare, "unevaluatedItems", &["items", "additionalItems", "contains"])?);
        let n_prefix = prefixes.iter().map(|(prefix, _)| prefix.len()).max().unwrap_or(0);
        if n_prefix > PREFIX_MAX {
            return Err(refused(&format!(
                "an array of the schema has {n_prefix} items by place, and {PREFIX_MAX} are the most"
            )));
        }
        let n_prefix = range.max.map_or(n_prefix, |max| n_prefix.min(max as usize));
        let rest = self.rule(rests)?;
        let (comma, open, close) = (self.comma()?, self.mark("[")?, self.mark("]")?);
        // From the last item to the first: what may follow.
        let following = self.rules.rule()?;
        self.rules.add(following, vec![comma.clone(), Symbol::Rule(rest)])?;
        let mut behind = self.rules.rule()?;
        let left = range.after(n_prefix as u64);
        match n_prefix {
            0 => {
                if left.min == 0 {
                    self.rules.add(behind, Vec::new())?;
                }
                if left.max != Some(0) {
                    self.rules.add(behind, vec![Symbol::Rule(rest), left.after(1).repeat(following)])?;
                }
            }
            _ => self.rules.add(behind, vec![left.repeat(following)])?,
        }
        for i in (0..n_prefix).rev() {
            let mut set = Vec::new();
            for (prefix, rest) in &prefixes {
                set.extend(prefix.get(i).copied().or(*rest));
            }
            let item = self.rule(set)?;
            let from_here = self.rules.rule()?;
            if i as u64 >= range.min {
                self.rules.add(from_here, Vec::new())?;
            }
            let mut symbols = if i > 0 { vec![comma.clone()] } else { Vec::new() };
            symbols.extend([Symbol::Rule(item), Symbol::Rule(behind)]);
            self.rules.add(from_here, symbols)?;
            behind = from_here;
        }
        self.rules.add(rule, vec![open, Symbol::Rule(behind), close])
    }

    /// Returns a schema's items by place, and what the others are; each kind of draft writes them in its way.
    #[expect(clippy::type_complexity, reason = "a list, and what is behind it")]
    fn items(&mut self, part: Part<'s>) -> Result<((Vec<Part<'s>>, Option<Part<'s>>), Option<Part<'s>>), TextError> {
        let is_new = part.draft >= Draft::Draft202012;
        let (prefix, rest) = match part.get("items") {
            Some(Value::Array(_)) => (self.schemas(part, "items")?, part.get("additionalItems")),
            items if is_new => (self.schemas(part, "prefixItems")?, items),
            items => (Vec::new(), items),
        };
        let rest = rest.map(|rest| self.part(part, rest)).transpose()?;
        Ok(((prefix, rest), rest))
    }

    /// Returns what is said of the property of a name.
    pub(super) fn property(&mut self, bare: &[Part<'s>], name: &str) -> Result<Vec<Part<'s>>, TextError> {
        let mut set = Vec::new();
        for &part in bare {
            let mut is_told = false;
            if let Some(schema) = part.get("properties").and_then(|properties| properties.get(name)) {
                set.push(self.part(part, schema)?);
                is_told = true;
            }
            for (pattern, schema) in patterns(part)? {
                match key_matches(pattern, name) {
                    Some(true) => {
                        set.push(self.part(part, schema)?);
                        is_told = true;
                    }
                    Some(false) => {}
                    // It may be told of by it; then nothing is said by the others.
                    None => is_told = true,
                }
            }
            if let (false, Some(schema)) = (is_told, part.get("additionalProperties")) {
                set.push(self.part(part, schema)?);
            }
            if !self.fits_names(part, name)? {
                set.push(Part { schema: &NEVER, is_bare: false, ..part });
            }
        }
        Ok(set)
    }

    /// Returns whether a name fits what a schema says of names.
    fn fits_names(&mut self, part: Part<'s>, name: &str) -> Result<bool, TextError> {
        let Some(schema) = part.get("propertyNames").filter(|_| part.draft >= Draft::Draft6) else { return Ok(true) };
        let schema = self.part(part, schema)?;
        let options = super::super::judge::options(schema.draft);
        let options = options.with_registry(self.registry).with_base_uri(self.bases[schema.base].as_str());
        match options.build(schema.schema) {
            Ok(validator) => Ok(validator.is_valid(&Value::from(name))),
            Err(_) => {
                self.look_at("propertyNames");
                Ok(true)
            }
        }
    }

    /// Adds objects to a rule.
    pub(super) fn object(&mut self, rule: RuleId, bare: &[Part<'s>]) -> Result<(), TextError> {
        let mut names: Vec<&'s str> = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for part in bare {
            let properties = match part.get("properties") {
                Some(Value::Object(properties)) => Some(properties),
                Some(_) => return Err(refused("the schema's 'properties' is not an object")),
                None => None,
            };
            let listed = properties.into_iter().flat_map(|properties| properties.keys()).map(String::as_str);
            names.extend(listed.filter(|name| seen.insert(*name)));
        }
        let required: Vec<&str> = bare.iter().flat_map(scalars::required).collect();
        names.extend(required.iter().copied().filter(|name| seen.insert(*name)));
        if names.len() > LISTED_MAX {
            return Err(refused(&format!(
                "an object of the schema has {} properties, and {LISTED_MAX} are the most",
                names.len()
            )));
        }
        let required: std::collections::BTreeSet<&str> = required.into_iter().collect();
        let colon = self.mark(":")?;
        let (mut listed, mut keys) = (Vec::new(), Vec::new());
        for name in names {
            let set = self.property(bare, name)?;
            let is_required = required.contains(name);
            let key = self.rules.terminal(scalars::literal(name))?;
            keys.push((name, Rules::name(&key)));
            // What may not be there has no item, but its name is taken.
            if is_required || !set.iter().any(|part| *part.schema == NEVER) {
                let (item, value) = (self.rules.rule()?, self.rule(set)?);
                self.rules.add(item, vec![key, colon.clone(), Symbol::Rule(value)])?;
                listed.push((item, is_required));
            }
        }
        let free = self.free(bare, &keys)?;
        let range = Range::of(bare, "minProperties", "maxProperties")?;
        let n_required = listed.iter().filter(|(_, is_required)| *is_required).count() as u64;
        let n_listed = listed.len() as u64;
        let mut object = Object {
            is_counted: range.min > n_required || range.max.is_some_and(|max| free.is_some() || max < n_listed),
            listed,
            free,
            range,
            known: HashMap::new(),
        };
        let counted_to = range.min.max(range.max.unwrap_or(0)).min(n_listed) + 1;
        if object.is_counted && (n_listed + 1) * counted_to > COUNTED_MAX {
            self.look_at("minProperties");
            (object.is_counted, object.range) = (false, Range { min: 0, max: None });
        }
        // Two of the same name would be counted twice.
        if object.is_counted && object.free.is_some() && range.min > n_required {
            self.look_at("minProperties");
        }
        let (open, close) = (self.mark("{")?, self.mark("}")?);
        let inside = self.properties(&mut object)?;
        self.rules.add(rule, vec![open, Symbol::Rule(inside), close])
    }

    /// Writes the listed properties and those behind them; returns the rule that begins with the first.
    fn properties(&mut self, object: &mut Object) -> Result<RuleId, TextError> {
        let comma = self.comma()?;
        let first = self.rules.rule()?;
        object.known.insert((0, false, 0), first);
        let mut to_write = vec![(0, false, 0)];
        while let Some((i, is_behind, n)) = to_write.pop() {
            let rule = object.known[&(i, is_behind, n)];
            let Some(&(item, is_required)) = object.listed.get(i) else {
                self.free_properties(rule, object, is_behind, n)?;
                continue;
            };
            let range = if object.is_counted { object.range } else { Range { min: 0, max: None } };
            let mut next = |this: &mut Self, state: (usize, bool, u64)| -> Result<Symbol, TextError> {
                if let Some(&known) = object.known.get(&state) {
                    return Ok(Symbol::Rule(known));
                }
                let rule = this.rules.rule()?;
                object.known.insert(state, rule);
                to_write.push(state);
                Ok(Symbol::Rule(rule))
            };
            if range.max.is_none_or(|max| n < max) {
                // Further than to the larger bound nothing depends on the number.
                let counted = match (object.is_counted, range.max) {
                    (false, _) => 0,
                    (true, Some(_)) => n + 1,
                    (true, None) => (n + 1).min(range.min),
                };
                let mut symbols = if is_behind { vec![comma.clone()] } else { Vec::new() };
                symbols.push(Symbol::Rule(item));
                symbols.push(next(self, (i + 1, true, counted))?);
                self.rules.add(rule, symbols)?;
            }
            if !is_required {
                let skipped = next(self, (i + 1, is_behind, n))?;
                self.rules.add(rule, vec![skipped])?;
            }
        }
        Ok(first)
    }

    /// Writes what may stand behind the listed properties, of which there are `n`.
    fn free_properties(&mut self, rule: RuleId, object: &Object, is_behind: bool, n: u64) -> Result<(), TextError> {
        let range = if object.is_counted { object.range.after(n) } else { Range { min: 0, max: None } };
        let Some(free) = object.free.filter(|_| range.max != Some(0)) else {
            if range.min == 0 {
                self.rules.add(rule, Vec::new())?;
            }
            return Ok(());
        };
        let (comma, following) = (self.comma()?, self.rules.rule()?);
        self.rules.add(following, vec![comma, Symbol::Rule(free)])?;
        if is_behind {
            return self.rules.add(rule, vec![range.repeat(following)]);
        }
        if range.min == 0 {
            self.rules.add(rule, Vec::new())?;
        }
        self.rules.add(rule, vec![Symbol::Rule(free), range.after(1).repeat(following)])
    }

    /// Returns the rule of a property that is none of the listed, if there may be some.
    fn free(&mut self, bare: &[Part<'s>], keys: &[(&'s str, String)]) -> Result<Option<RuleId>, TextError> {
        // Each pattern once, with what it says of which schema.
        let mut all: BTreeMap<&'s str, Vec<usize>> = BTreeMap::new();
        let mut is_unkept = vec![false; bare.len()];
        for (i, &part) in bare.iter().enumerate() {
            for (pattern, _) in patterns(part)? {
                match text::pattern(pattern) {
                    Some(_) => all.entry(pattern).or_default().push(i),
                    None => {
                        self.look_at("patternProperties");
                        is_unkept[i] = true;
                    }
                }
            }
        }
        let all: Vec<&str> = all.into_keys().collect();
        let insides: Vec<String> = all.iter().filter_map(|pattern| text::pattern(pattern)).collect();
        let kinds: Vec<u32> = match all.len() {
            n if n <= OVERLAPS_MAX => (0..1u32 << n).collect(),
            n if n > 31 => {
                return Err(refused(&format!("an object of the schema has {n} patterns of keys, and 31 are the most")));
            }
            n => std::iter::once(0).chain((0..n).map(|i| 1 << i)).collect(),
        };
        let free = self.rules.rule()?;
        let colon = self.mark(":")?;
        let mut n_kinds = 0;
        for kind in kinds {
            let matched =
                |pattern: &str| all.iter().position(|known| *known == pattern).is_some_and(|i| kind >> i & 1 == 1);
            let mut set = Vec::new();
            for (i, &part) in bare.iter().enumerate() {
                let mut is_told = is_unkept[i];
                for (pattern, schema) in patterns(part)? {
                    if matched(pattern) {
                        set.push(self.part(part, schema)?);
                        is_told = true;
                    }
                }
                if let (false, Some(schema)) = (is_told, part.get("additionalProperties")) {
                    set.push(self.part(part, schema)?);
                }
            }
            if kind == 0 {
                set.extend(self.unevaluated(
                    bare,
                    "unevaluatedProperties",
                    &["additionalProperties", "dependentSchemas"],
                )?);
            }
            if set.iter().any(|part| *part.schema == NEVER) {
                continue;
            }
            let Some(key) = self.free_key(bare, keys, &insides, kind)? else { continue };
            let value = self.rule(set)?;
            let key = self.rules.terminal(key)?;
            self.rules.add(free, vec![key, colon.clone(), Symbol::Rule(value)])?;
            n_kinds += 1;
        }
        if bare.iter().any(|part| part.get("unevaluatedProperties").is_some() && part.draft >= Draft::Draft201909) {
            self.look_at("unevaluatedProperties");
        }
        Ok((n_kinds > 0).then_some(free))
    }

    /// Returns what is said of what no schema of the place tells of, where it is certain that none of `others` does.
    fn unevaluated(&mut self, bare: &[Part<'s>], keyword: &str, others: &[&str]) -> Result<Vec<Part<'s>>, TextError> {
        let has = |part: &Part<'s>, keyword: &str| part.get(keyword).is_some();
        let is_told =
            |part: &Part<'s>| others.iter().chain(&["$dynamicRef", "$recursiveRef"]).any(|other| has(part, other));
        if bare.iter().any(is_told) {
            return Ok(Vec::new());
        }
        let said = bare.iter().filter(|part| part.draft >= Draft::Draft201909);
        said.filter_map(|part| part.get(keyword).map(|schema| self.part(*part, schema))).collect()
    }

    /// Returns the expression for keys that match the patterns of `kind` and no others, and are not listed; `None` if there
    /// are none.
    fn free_key(
        &mut self,
        bare: &[Part<'s>],
        keys: &[(&'s str, String)],
        insides: &[String],
        kind: u32,
    ) -> Result<Option<String>, TextError> {
        let names = self.names(bare)?;
        let is_free = keys.is_empty() && insides.is_empty();
        let (mut all, mut terms) = (Vec::new(), Vec::new());
        let (with, without): (Vec<_>, Vec<_>) = insides.iter().enumerate().partition(|(i, _)| kind >> i & 1 == 1);
        for (_, inside) in with {
            all.push(inside.clone());
            terms.push(text::quoted(inside));
        }
        let Some(names) = names else { return Ok(None) };
        if !names.is_empty() {
            let Some(expression) = self.string(&names, !is_free)? else { return Ok(None) };
            terms.push(expression);
            if let Some(values) = scalars::listed_values(&names)? {
                let values: Vec<String> =
                    values.iter().filter_map(|value| value.as_str()).map(scalars::literal).collect();
                if values.is_empty() {
                    return Ok(None);
                }
                terms.push(format!("({})", values.join(" | ")));
            }
        }
        if terms.is_empty() {
            terms.push(text::quoted(&format!("{}*", if is_free { text::ANY } else { text::PLAIN })));
        }
        let excluded: Vec<String> = without.into_iter().map(|(_, inside)| inside.clone()).collect();
        if !all.is_empty() && all.len() + excluded.len() > 1 {
            let excluded = (!excluded.is_empty()).then(|| format!("(?:{})", excluded.join("|")));
            if !scalars::has_common_text(&all, excluded.as_deref()) {
                return Ok(None);
            }
        }
        // A listed key that this kind does not have need not be ruled out.
        let taken = keys.iter().map(|(_, key)| key.clone());
        let not: Vec<String> = excluded.iter().map(|inside| text::quoted(inside)).chain(taken).collect();
        if !not.is_empty() {
            terms.push(format!("~({})", not.join(" | ")));
        }
        Ok(Some(terms.join(" & ")))
    }

    /// Returns what is said of names of properties, as far as a grammar can; `None` if none fits.
    fn names(&mut self, bare: &[Part<'s>]) -> Result<Option<Vec<Part<'s>>>, TextError> {
        let mut set = Vec::new();
        for &part in bare {
            if let Some(schema) = part.get("propertyNames").filter(|_| part.draft >= Draft::Draft6) {
                set.push(self.part(part, schema)?);
            }
        }
        if set.is_empty() {
            return Ok(Some(set));
        }
        let expanded = self.expand(&set)?;
        if expanded.is_never || scalars::types_of(&expanded.bare)? & scalars::STRING == 0 {
            return Ok(None);
        }
        if !expanded.choices.is_empty() {
            self.look_at("propertyNames");
        }
        Ok(Some(expanded.bare))
    }
}

/// Returns the patterns of keys of a schema, and what is said of such properties.
fn patterns<'s>(part: Part<'s>) -> Result<Vec<(&'s str, &'s Value)>, TextError> {
    match part.get("patternProperties") {
        None => Ok(Vec::new()),
        Some(Value::Object(patterns)) => {
            Ok(patterns.iter().map(|(pattern, schema)| (pattern.as_str(), schema)).collect())
        }
        Some(_) => Err(refused("the schema's 'patternProperties' is not an object")),
    }
}

/// Returns whether a pattern matches somewhere in a name; `None` if that is not known.
fn key_matches(pattern: &str, name: &str) -> Option<bool> {
    // As the grammar has it, so that both agree.
    text::pattern(pattern)?;
    let rust = jsonschema_regex::to_rust_regex(pattern).ok()?;
    regex::Regex::new(&rust).ok().map(|regex| regex.is_match(name))
}
