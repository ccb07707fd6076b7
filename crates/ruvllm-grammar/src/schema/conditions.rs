//! Schemas for the same place under a condition, and whether two schemas exclude each other.

use std::collections::VecDeque;

use jsonschema::Draft;
use serde_json::Value;

use super::{Compiler, Expanded, NEVER, Part, scalars};
use crate::GrammarError;

/// How deep it is looked into schemas to find out that they exclude each other.
const DEPTH_MAX: usize = 4;
/// The most pairs of branches of a `oneOf` that are compared.
const PAIRS_MAX: usize = 2_000;

impl<'s> Compiler<'s> {
    /// Adds `if`, `not`, `dependent…`.
    pub(super) fn expand_conditions(
        &mut self,
        part: Part<'s>,
        found: &mut Vec<Part<'s>>,
        expanded: &mut Expanded<'s>,
    ) -> Result<(), GrammarError> {
        if let (Some(condition), true) = (part.get("if"), part.draft >= Draft::Draft7) {
            let (then, otherwise) = (part.get("then"), part.get("else"));
            if then.is_some() || otherwise.is_some() {
                self.look_at("if");
                let condition = self.part(part, condition)?;
                let mut holds = vec![condition];
                if let Some(then) = then {
                    holds.push(self.part(part, then)?);
                }
                let fails = match otherwise {
                    Some(otherwise) => vec![self.part(part, otherwise)?],
                    None => Vec::new(),
                };
                expanded.choices.push(vec![holds, fails]);
            }
        }
        match part.get("not") {
            Some(Value::Bool(true)) => expanded.is_never = true,
            Some(Value::Object(keywords)) if keywords.is_empty() => expanded.is_never = true,
            Some(Value::Bool(false)) | None => {}
            Some(_) => self.look_at("not"),
        }
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef"] {
            let is_known = match keyword {
                // Kept for older schemas, whatever they say of their draft.
                "dependencies" => true,
                "$recursiveRef" => part.draft == Draft::Draft201909,
                "$dynamicRef" => part.draft == Draft::Draft202012,
                _ => part.draft >= Draft::Draft201909,
            };
            if part.get(keyword).is_some() && is_known {
                self.look_at(keyword);
            }
        }
        if self.requires_what_it_forbids(part) {
            found.push(Part { schema: &NEVER, is_bare: false, ..part });
        }
        Ok(())
    }

    /// Returns whether no object is right: a property is required that may not be there.
    fn requires_what_it_forbids(&self, part: Part<'s>) -> bool {
        let is_object = part.get("type").and_then(Value::as_str) == Some("object");
        let required = part.get("required").and_then(Value::as_array);
        let properties = part.get("properties").and_then(Value::as_object);
        is_object
            && required
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .any(|name| properties.and_then(|properties| properties.get(name)) == Some(&NEVER))
    }

    /// Returns whether at most one of these holds for any value.
    pub(super) fn exclude_each_other(&mut self, beside: Part<'s>, branches: &[Part<'s>]) -> Result<bool, GrammarError> {
        if branches.len() * branches.len() > 2 * PAIRS_MAX {
            return Ok(false);
        }
        let beside = Part { is_bare: true, ..beside };
        for (i, &a) in branches.iter().enumerate() {
            for &b in &branches[i + 1..] {
                if !self.exclude(&[beside, a], &[beside, b], 0)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Returns whether it is certain that no value fits both sets.
    fn exclude(&mut self, a: &[Part<'s>], b: &[Part<'s>], depth: usize) -> Result<bool, GrammarError> {
        if depth > DEPTH_MAX {
            return Ok(false);
        }
        let (looked_at, a, b) = (self.looked_at.clone(), self.expand_for_types(a)?, self.expand_for_types(b)?);
        self.looked_at = looked_at;
        if a.is_never || b.is_never {
            return Ok(true);
        }
        let types = scalars::types_of(&a.bare)? & scalars::types_of(&b.bare)?;
        let values = (scalars::listed_values(&a.bare)?, scalars::listed_values(&b.bare)?);
        let of_types = |values: Option<Vec<&'s Value>>, types: u8| -> Option<Vec<&'s Value>> {
            values.map(|values| values.into_iter().filter(|value| scalars::type_of(value) & types != 0).collect())
        };
        let values = (of_types(values.0, scalars::types_of(&a.bare)?), of_types(values.1, scalars::types_of(&b.bare)?));
        let excludes = match &values {
            (Some(a), Some(b)) => !a.iter().any(|value| b.iter().any(|other| scalars::is_equal(value, other))),
            (Some(values), None) | (None, Some(values)) => {
                values.iter().all(|value| scalars::type_of(value) & types == 0)
            }
            (None, None) => types == 0,
        };
        if excludes {
            return Ok(true);
        }
        // An `anyOf` in one of them: each way has to be excluded.
        for (one, other) in [(&a, &b), (&b, &a)] {
            for choice in &one.choices {
                let mut all = true;
                for branch in choice {
                    all = all && self.exclude(&[&one.bare[..], branch].concat(), &other.bare, depth + 1)?;
                }
                if all {
                    return Ok(true);
                }
            }
        }
        if types != scalars::OBJECT {
            return Ok(false);
        }
        let required: Vec<&str> = a.bare.iter().chain(&b.bare).flat_map(scalars::required).collect();
        for name in required.into_iter().take(64) {
            let (a, b) = (self.property(&a.bare, name)?, self.property(&b.bare, name)?);
            if self.exclude(&a, &b, depth + 1)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Expands a set without what would look into `oneOf` again.
    fn expand_for_types(&mut self, set: &[Part<'s>]) -> Result<Expanded<'s>, GrammarError> {
        let mut expanded = Expanded::default();
        let mut queue: VecDeque<Part<'s>> = set.iter().copied().collect();
        let mut seen = std::collections::BTreeSet::new();
        while let Some(part) = queue.pop_front() {
            if !seen.insert(part.key()) || seen.len() > 256 {
                continue;
            }
            let Some(keywords) = part.keywords() else {
                expanded.is_never |= *part.schema == NEVER;
                continue;
            };
            if !part.is_bare {
                if let Some(reference) = part.get("$ref") {
                    queue.push_back(self.target(part, reference)?);
                    if part.draft <= Draft::Draft7 {
                        continue;
                    }
                }
                queue.extend(self.schemas(part, "allOf")?);
                for keyword in ["anyOf", "oneOf"] {
                    if keywords.contains_key(keyword) {
                        let branches = self.schemas(part, keyword)?;
                        expanded.choices.push(branches.into_iter().map(|branch| vec![branch]).collect());
                    }
                }
            }
            expanded.bare.push(Part { is_bare: true, ..part });
        }
        Ok(expanded)
    }

    /// Returns the types that values of a set may have: those that no schema rules out at first sight.
    pub(super) fn types(&mut self, set: &[Part<'s>], depth: usize) -> Result<u8, GrammarError> {
        let expanded = self.expand_for_types(set)?;
        if expanded.is_never || depth > DEPTH_MAX {
            return Ok(if expanded.is_never { 0 } else { scalars::types_of(&expanded.bare)? });
        }
        let types = scalars::types_of(&expanded.bare)?;
        Ok(match scalars::listed_values(&expanded.bare)? {
            Some(values) => values.iter().fold(0, |all, value| all | scalars::type_of(value)) & types,
            None => types,
        })
    }
}
