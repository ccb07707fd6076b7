//! The grammar while it is written: rules of symbols, pruned of what has no end, then text in Lark's syntax.

use std::collections::HashMap;
use std::fmt::Write;

use crate::GrammarError;
use crate::error::refused;

/// The most rules: each is a step down for the compiler, which takes some KB of its stack.
const RULES_MAX: usize = 20_000;
/// The most symbols of all rules together.
const SYMBOLS_MAX: usize = 400_000;
/// The most bytes of terminals.
const TERMINAL_BYTES_MAX: usize = 4 << 20;

/// A rule's number.
pub(super) type RuleId = usize;

/// One symbol of an alternative.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Symbol {
    Rule(RuleId),
    Terminal(usize),
    /// A rule, so many times one after the other.
    Repeat {
        rule: RuleId,
        min: usize,
        max: Option<usize>,
    },
}

/// The rules so far.
#[derive(Default)]
pub(super) struct Rules {
    alternatives: Vec<Vec<Vec<Symbol>>>,
    terminals: Vec<String>,
    known: HashMap<String, usize>,
    n_symbols: usize,
    n_terminal_bytes: usize,
}

impl Rules {
    /// Makes a rule without alternatives: it allows nothing until it has some.
    ///
    /// # Errors
    /// They are too many.
    pub(super) fn rule(&mut self) -> Result<RuleId, GrammarError> {
        if self.alternatives.len() >= RULES_MAX {
            return Err(refused(&format!("the schema needs more than {RULES_MAX} rules; make it smaller")));
        }
        self.alternatives.push(Vec::new());
        Ok(self.alternatives.len() - 1)
    }

    /// Adds an alternative.
    ///
    /// # Errors
    /// They are too many.
    pub(super) fn add(&mut self, rule: RuleId, symbols: Vec<Symbol>) -> Result<(), GrammarError> {
        self.n_symbols += 1 + symbols.len();
        if self.n_symbols > SYMBOLS_MAX {
            return Err(refused(&format!("the schema needs more than {SYMBOLS_MAX} symbols; make it smaller")));
        }
        if !self.alternatives[rule].contains(&symbols) {
            self.alternatives[rule].push(symbols);
        }
        Ok(())
    }

    /// Returns the terminal of this expression in Lark's syntax.
    ///
    /// # Errors
    /// They are too long.
    pub(super) fn terminal(&mut self, text: String) -> Result<Symbol, GrammarError> {
        if let Some(&known) = self.known.get(&text) {
            return Ok(Symbol::Terminal(known));
        }
        self.n_terminal_bytes += text.len();
        if self.n_terminal_bytes > TERMINAL_BYTES_MAX {
            let line =
                format!("the schema's texts and patterns need more than {TERMINAL_BYTES_MAX} bytes; make them shorter");
            return Err(refused(&line));
        }
        self.known.insert(text.clone(), self.terminals.len());
        self.terminals.push(text);
        Ok(Symbol::Terminal(self.terminals.len() - 1))
    }

    /// Returns how another terminal's expression names this one.
    pub(super) fn name(symbol: &Symbol) -> String {
        match symbol {
            Symbol::Terminal(id) => format!("T{id}"),
            Symbol::Rule(rule) | Symbol::Repeat { rule, .. } => format!("r{rule}"),
        }
    }

    /// Finds the rules that some text has, by what they are made of.
    fn with_end(&self) -> Vec<bool> {
        let mut users: Vec<Vec<RuleId>> = vec![Vec::new(); self.alternatives.len()];
        for (rule, alternatives) in self.alternatives.iter().enumerate() {
            for symbol in alternatives.iter().flatten() {
                if let Symbol::Rule(used) | Symbol::Repeat { rule: used, .. } = symbol {
                    users[*used].push(rule);
                }
            }
        }
        let mut has_end = vec![false; self.alternatives.len()];
        let mut to_look: Vec<RuleId> = (0..self.alternatives.len()).collect();
        while let Some(rule) = to_look.pop() {
            if !has_end[rule] && self.alternatives[rule].iter().any(|symbols| ends(symbols, &has_end)) {
                has_end[rule] = true;
                to_look.extend(&users[rule]);
            }
        }
        has_end
    }

    /// Writes the grammar whose texts are those of `start`, without what no text has; `None` if that is all.
    pub(super) fn lark(&self, start: RuleId) -> Option<String> {
        let has_end = self.with_end();
        if !has_end[start] {
            return None;
        }
        let mut lark = String::from("%llguidance {\"ignore_once\": true}\n%ignore /[ \\t\\n\\r]{1,64}/\n");
        let _ = writeln!(lark, "start: r{start}");
        let mut is_written = vec![false; self.alternatives.len()];
        let mut to_write = vec![start];
        is_written[start] = true;
        while let Some(rule) = to_write.pop() {
            let _ = write!(lark, "r{rule}: ");
            let alternatives = self.alternatives[rule].iter().filter(|symbols| ends(symbols, &has_end));
            for (i, symbols) in alternatives.enumerate() {
                lark.push_str(if i == 0 { "" } else { " | " });
                self.write_symbols(symbols, &has_end, &mut lark);
                for symbol in symbols {
                    if let Symbol::Rule(used) | Symbol::Repeat { rule: used, .. } = *symbol
                        && has_end[used]
                        && !std::mem::replace(&mut is_written[used], true)
                    {
                        to_write.push(used);
                    }
                }
            }
            lark.push('\n');
        }
        for (id, text) in self.terminals.iter().enumerate() {
            let _ = writeln!(lark, "T{id}: {text}");
        }
        Some(lark)
    }

    fn write_symbols(&self, symbols: &[Symbol], has_end: &[bool], lark: &mut String) {
        let n_before = lark.len();
        for symbol in symbols {
            let space = if lark.len() > n_before { " " } else { "" };
            let _ = match symbol {
                Symbol::Terminal(id) => write!(lark, "{space}T{id}"),
                Symbol::Rule(rule) => write!(lark, "{space}r{rule}"),
                Symbol::Repeat { max: Some(0), .. } => Ok(()),
                Symbol::Repeat { rule, .. } if !has_end[*rule] => Ok(()),
                Symbol::Repeat { rule, min: 0, max: None } => write!(lark, "{space}r{rule}*"),
                Symbol::Repeat { rule, min, max: None } => write!(lark, "{space}r{rule}{{{min},}}"),
                Symbol::Repeat { rule, min, max: Some(max) } => write!(lark, "{space}r{rule}{{{min},{max}}}"),
            };
        }
        if lark.len() == n_before {
            lark.push_str("\"\"");
        }
    }
}

/// Returns whether some text is made of these, by what is known of rules so far.
fn ends(symbols: &[Symbol], has_end: &[bool]) -> bool {
    symbols.iter().all(|symbol| match symbol {
        Symbol::Terminal(_) | Symbol::Repeat { min: 0, .. } => true,
        Symbol::Rule(rule) => has_end[*rule],
        Symbol::Repeat { rule, min, max } => has_end[*rule] && max.is_none_or(|max| *min <= max),
    })
}
