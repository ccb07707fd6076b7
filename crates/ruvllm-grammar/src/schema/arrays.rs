//! Arrays: items by their place, and the others.

use jsonschema::Draft;
use serde_json::Value;

use super::range::Range;
use super::rules::{RuleId, Symbol};
use super::{Compiler, Part, scalars};
use crate::GrammarError;
use crate::error::refused;

/// The most items that are told apart by their place.
const PREFIX_MAX: usize = 1_000;

/// Items of one schema.
struct Items<'s> {
    /// By place.
    prefix: Vec<Part<'s>>,
    /// All others; `None` if nothing is said of them.
    rest: Option<Part<'s>>,
}

impl<'s> Compiler<'s> {
    /// Adds arrays to a rule.
    pub(super) fn array(&mut self, rule: RuleId, bare: &[Part<'s>]) -> Result<(), GrammarError> {
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
        let (mut items, mut rests) = (Vec::new(), Vec::new());
        for &part in bare {
            let of_part = self.items(part)?;
            rests.extend(of_part.rest);
            items.push(of_part);
        }
        rests.extend(self.unevaluated(bare, "unevaluatedItems", &["items", "additionalItems", "contains"])?);
        let n_prefix = items.iter().map(|items| items.prefix.len()).max().unwrap_or(0);
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
            for Items { prefix, rest } in &items {
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
    fn items(&mut self, part: Part<'s>) -> Result<Items<'s>, GrammarError> {
        let is_new = part.draft >= Draft::Draft202012;
        let (prefix, rest) = match part.get("items") {
            Some(Value::Array(_)) => (self.schemas(part, "items")?, part.get("additionalItems")),
            items if is_new => (self.schemas(part, "prefixItems")?, items),
            items => (Vec::new(), items),
        };
        let rest = rest.map(|rest| self.part(part, rest)).transpose()?;
        Ok(Items { prefix, rest })
    }
}
