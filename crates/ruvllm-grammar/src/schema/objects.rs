//! Objects.
//!
//! Properties that a schema lists, or requires, come in its order. Behind them come others, in any order, whose keys are
//! none of those, in any spelling: each kind of key (by the patterns that it matches) is a terminal of its own, and what
//! stands behind it fits all that is said of such keys.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::range::Range;
use super::rules::{RuleId, Rules, Symbol};
use super::{Compiler, NEVER, Part, scalars};
use crate::GrammarError;
use crate::error::refused;

/// The most rules that count the properties of one object.
const COUNTED_MAX: u64 = 4_000;
/// The most properties of one object: its rules lead from one to the next.
const LISTED_MAX: usize = 2_048;

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
    /// Adds objects to a rule.
    pub(super) fn object(&mut self, rule: RuleId, bare: &[Part<'s>]) -> Result<(), GrammarError> {
        let mut names: Vec<&'s str> = Vec::new();
        let mut seen = BTreeSet::new();
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
        let required: BTreeSet<&str> = required.into_iter().collect();
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
    fn properties(&mut self, object: &mut Object) -> Result<RuleId, GrammarError> {
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
            let mut next = |this: &mut Self, state: (usize, bool, u64)| -> Result<Symbol, GrammarError> {
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
    fn free_properties(&mut self, rule: RuleId, object: &Object, is_behind: bool, n: u64) -> Result<(), GrammarError> {
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
}
