//! Keys of properties: what is said of one by its name, and which keys the properties have that nothing lists.

use std::collections::BTreeMap;

use jsonschema::Draft;
use serde_json::Value;

use super::rules::{RuleId, Symbol};
use super::{Compiler, NEVER, Part, scalars, text};
use crate::GrammarError;
use crate::error::refused;

/// The most patterns of keys whose overlaps are told apart; of more, no key may match two.
const OVERLAPS_MAX: usize = 4;

impl<'s> Compiler<'s> {
    /// Returns what is said of the property of a name.
    pub(super) fn property(&mut self, bare: &[Part<'s>], name: &str) -> Result<Vec<Part<'s>>, GrammarError> {
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
    fn fits_names(&mut self, part: Part<'s>, name: &str) -> Result<bool, GrammarError> {
        let Some(schema) = part.get("propertyNames").filter(|_| part.draft >= Draft::Draft6) else { return Ok(true) };
        let schema = self.part(part, schema)?;
        let options = crate::judge::options(schema.draft);
        let options = options.with_registry(self.registry).with_base_uri(self.bases[schema.base].as_str());
        match options.build(schema.schema) {
            Ok(validator) => Ok(validator.is_valid(&Value::from(name))),
            Err(_) => {
                self.look_at("propertyNames");
                Ok(true)
            }
        }
    }

    /// Returns the rule of a property that is none of the listed, if there may be some.
    pub(super) fn free(
        &mut self,
        bare: &[Part<'s>],
        keys: &[(&'s str, String)],
    ) -> Result<Option<RuleId>, GrammarError> {
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

    /// Returns the expression for keys that match the patterns of `kind` and no others, and are not listed; `None` if there
    /// are none.
    fn free_key(
        &mut self,
        bare: &[Part<'s>],
        keys: &[(&'s str, String)],
        insides: &[String],
        kind: u32,
    ) -> Result<Option<String>, GrammarError> {
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
    fn names(&mut self, bare: &[Part<'s>]) -> Result<Option<Vec<Part<'s>>>, GrammarError> {
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
fn patterns<'s>(part: Part<'s>) -> Result<Vec<(&'s str, &'s Value)>, GrammarError> {
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
