//! Grammars in llama.cpp's syntax (GBNF), written anew in Lark's.
//!
//! ```text
//! root   ::= "[" item ("," item)* "]"          # rules; `root` is the first
//! item   ::= [0-9]{1,3} | root                 # literals, classes, `.`, groups, * + ? {m,n}
//! ```
//! A rule that does not lead back to itself becomes a terminal, that is, part of one regular expression; the others stay
//! rules, whose literals and classes are terminals. References to tokens (`<[1000]>`) are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::GrammarError;
use crate::error::refused;

/// The deepest nesting of groups.
const DEPTH_MAX: usize = 64;
/// The most repetitions that can be asked for.
const REPEAT_MAX: u32 = 10_000;

/// What a rule may be made of.
enum Node {
    Literal(String),
    /// The inside of a class, as regular expressions have it.
    Class(String),
    Rule(String),
    Sequence(Vec<Node>),
    Either(Vec<Node>),
    /// At least, at most.
    Repeat(Box<Node>, u32, Option<u32>),
}

impl Node {
    fn each_rule<'n>(&'n self, each: &mut impl FnMut(&'n str)) {
        match self {
            Node::Literal(_) | Node::Class(_) => {}
            Node::Rule(name) => each(name),
            Node::Sequence(nodes) | Node::Either(nodes) => nodes.iter().for_each(|node| node.each_rule(each)),
            Node::Repeat(node, ..) => node.each_rule(each),
        }
    }
}

/// Writes a grammar as Lark has it, with `start` for `root`.
///
/// # Errors
/// It is malformed (the line is told), names a rule that is not there, or refers to tokens.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = parse(text)?;
    if !rules.contains_key("root") {
        return Err(refused("it has no rule 'root'"));
    }
    let mut missing = None;
    for node in rules.values() {
        node.each_rule(&mut |name| {
            if !rules.contains_key(name) {
                missing.get_or_insert(name);
            }
        });
    }
    if let Some(name) = missing {
        return Err(refused(&format!("it has no rule '{name}', which another one uses")));
    }
    let names = names(&rules);
    let mut lark = format!("start: {}\n", names["root"]);
    for (name, node) in &rules {
        let _ = write!(lark, "{}: ", names[name.as_str()]);
        write_node(&mut lark, node, &names);
        lark.push('\n');
    }
    Ok(lark)
}

/// Returns the names in Lark: upper case for terminals. Beginning with those that use no rule, a rule is a terminal once all
/// that it uses are; what leads back to itself, or to such a rule, is never reached.
fn names(rules: &BTreeMap<String, Node>) -> BTreeMap<&str, String> {
    let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut n_open: BTreeMap<&str, usize> = rules.keys().map(|name| (name.as_str(), 0)).collect();
    for (name, node) in rules {
        node.each_rule(&mut |used| {
            users.entry(used).or_default().push(name);
            *n_open.entry(name).or_default() += 1;
        });
    }
    let mut ready: Vec<&str> = n_open.iter().filter(|(_, n)| **n == 0).map(|(name, _)| *name).collect();
    let mut terminals = BTreeSet::new();
    while let Some(name) = ready.pop() {
        terminals.insert(name);
        for user in users.remove(name).unwrap_or_default() {
            let n = n_open.entry(user).or_default();
            *n -= 1;
            if *n == 0 {
                ready.push(user);
            }
        }
    }
    let named = rules.keys().enumerate().map(|(i, name)| {
        let kind = if terminals.contains(name.as_str()) { "TERM" } else { "rule" };
        (name.as_str(), format!("{kind}_{i}"))
    });
    named.collect()
}

fn write_node(out: &mut String, node: &Node, names: &BTreeMap<&str, String>) {
    let list = |out: &mut String, nodes: &[Node], between: &str| {
        out.push('(');
        for (i, node) in nodes.iter().enumerate() {
            out.push_str(if i > 0 { between } else { "" });
            write_node(out, node, names);
        }
        out.push(')');
    };
    match node {
        Node::Literal(text) => out.push_str(&serde_json::Value::from(text.as_str()).to_string()),
        Node::Class(inside) => {
            let _ = write!(out, "/[{inside}]/");
        }
        Node::Rule(name) => out.push_str(&names[name.as_str()]),
        Node::Sequence(nodes) if nodes.is_empty() => out.push_str("\"\""),
        Node::Sequence(nodes) => list(out, nodes, " "),
        Node::Either(nodes) => list(out, nodes, " | "),
        Node::Repeat(node, least, most) => {
            out.push('(');
            write_node(out, node, names);
            let _ = match (least, most) {
                (0, None) => write!(out, ")*"),
                (1, None) => write!(out, ")+"),
                (0, Some(1)) => write!(out, ")?"),
                (least, None) => write!(out, "){{{least},}}"),
                (least, Some(most)) => write!(out, "){{{least},{most}}}"),
            };
        }
    }
}

fn parse(text: &str) -> Result<BTreeMap<String, Node>, GrammarError> {
    let mut parser = Parser { chars: text.chars().collect(), at: 0, depth: 0 };
    let mut rules = BTreeMap::new();
    parser.skip(true);
    while parser.peek().is_some() {
        let name = parser.name()?;
        parser.skip(true);
        "::=".chars().try_for_each(|c| parser.expect(c))?;
        parser.skip(true);
        let node = parser.either(false)?;
        if rules.insert(name.clone(), node).is_some() {
            return Err(parser.error(&format!("the rule '{name}' stands twice")));
        }
        parser.skip(true);
    }
    Ok(rules)
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn error(&self, what: &str) -> GrammarError {
        let line = 1 + self.chars[..self.at].iter().filter(|&&c| c == '\n').count();
        refused(&format!("line {line}: {what}"))
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Result<char, GrammarError> {
        let c = self.peek().ok_or_else(|| self.error("it ends in the middle of a rule"))?;
        self.at += 1;
        Ok(c)
    }

    fn take(&mut self, c: char) -> bool {
        let is_there = self.peek() == Some(c);
        self.at += usize::from(is_there);
        is_there
    }

    fn expect(&mut self, c: char) -> Result<(), GrammarError> {
        match self.peek() {
            Some(found) if found != c => Err(self.error(&format!("'{found}' stands where '{c}' is due"))),
            _ => self.next().map(drop),
        }
    }

    /// Skips spaces and comments, and line ends if they mean nothing here.
    fn skip(&mut self, line_ends: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => {
                    let rest = self.chars[self.at..].iter().position(|&c| c == '\n');
                    self.at = rest.map_or(self.chars.len(), |n| self.at + n);
                }
                '\n' | '\r' if !line_ends => return,
                c if c.is_whitespace() => self.at += 1,
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, GrammarError> {
        let is_part = |c: &char| c.is_ascii_alphanumeric() || *c == '-' || *c == '_';
        let name: String = self.chars[self.at..].iter().copied().take_while(is_part).collect();
        if name.is_empty() {
            let found = self.next()?;
            return Err(self.error(&format!("'{found}' stands where the name of a rule is due")));
        }
        self.at += name.len();
        Ok(name)
    }

    /// Reads alternatives up to the end of the line, or of the group.
    fn either(&mut self, in_group: bool) -> Result<Node, GrammarError> {
        let mut nodes = vec![self.sequence(in_group)?];
        while self.take('|') {
            self.skip(true);
            nodes.push(self.sequence(in_group)?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Either(nodes) })
    }

    fn sequence(&mut self, in_group: bool) -> Result<Node, GrammarError> {
        let mut nodes = Vec::new();
        loop {
            self.skip(in_group);
            match self.peek() {
                None | Some('|' | ')' | '\n' | '\r') => return Ok(Node::Sequence(nodes)),
                Some(_) => {
                    let item = self.item()?;
                    nodes.push(self.repeated(item)?);
                }
            }
        }
    }

    fn item(&mut self) -> Result<Node, GrammarError> {
        match self.peek() {
            Some('"') => self.literal(),
            Some('[') => self.class(),
            Some('.') => {
                self.at += 1;
                Ok(Node::Class(r"\x{0}-\x{10FFFF}".to_owned()))
            }
            Some('(') => {
                self.at += 1;
                self.depth += 1;
                if self.depth > DEPTH_MAX {
                    return Err(self.error(&format!("groups nest deeper than {DEPTH_MAX}")));
                }
                self.skip(true);
                let node = self.either(true)?;
                self.depth -= 1;
                self.expect(')')?;
                Ok(node)
            }
            Some('<' | '!') => Err(self.error("references to tokens are not supported; write their text")),
            _ => self.name().map(Node::Rule),
        }
    }

    fn repeated(&mut self, mut node: Node) -> Result<Node, GrammarError> {
        for _ in 0..=DEPTH_MAX {
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(node),
            };
            self.at += 1;
            node = Node::Repeat(Box::new(node), least, most);
        }
        Err(self.error(&format!("more than {DEPTH_MAX} repetitions stand behind one another")))
    }

    /// Reads `{m}`, `{m,}`, `{,n}` or `{m,n}` up to the closing bracket.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        let inside = self.chars[self.at + 1..].iter().take_while(|&&c| c != '}');
        let inside: String = inside.collect();
        self.at += 1 + inside.chars().count();
        let number = |text: &str| text.trim().parse::<u32>().ok().filter(|&n| n <= REPEAT_MAX);
        let bounds = match inside.split_once(',') {
            None => number(&inside).map(|n| (n, Some(n))),
            Some((least, "")) => number(least).map(|n| (n, None)),
            Some(("", most)) => number(most).map(|n| (0, Some(n))),
            Some((least, most)) => number(least).zip(number(most)).map(|(least, most)| (least, Some(most))),
        };
        let fits = bounds.filter(|(least, most)| most.is_none_or(|most| *least <= most));
        fits.filter(|_| self.peek() == Some('}'))
            .ok_or_else(|| self.error(&format!("'{{{inside}}}' is no number of repetitions up to {REPEAT_MAX}")))
    }

    fn literal(&mut self) -> Result<Node, GrammarError> {
        self.expect('"')?;
        let mut text = String::new();
        loop {
            match self.next()? {
                '"' => return Ok(Node::Literal(text)),
                '\\' => text.push(self.escaped()?),
                c => text.push(c),
            }
        }
    }

    /// Reads a class; its characters are written as numbers, so that none of them means anything else.
    fn class(&mut self) -> Result<Node, GrammarError> {
        self.expect('[')?;
        let mut inside = String::from(if self.take('^') { "^" } else { "" });
        loop {
            match self.next()? {
                ']' if inside.trim_start_matches('^').is_empty() => return Err(self.error("a class is empty")),
                ']' => return Ok(Node::Class(inside)),
                '-' if inside.ends_with('}') && self.peek() != Some(']') => inside.push('-'),
                c => {
                    let c = if c == '\\' { self.escaped()? } else { c };
                    let _ = write!(inside, "\\x{{{:X}}}", u32::from(c));
                }
            }
        }
    }

    fn escaped(&mut self) -> Result<char, GrammarError> {
        let n_digits = match self.next()? {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c @ ('"' | '\\' | '[' | ']' | '-' | '^' | '/') => return Ok(c),
            c => return Err(self.error(&format!("'\\{c}' is no escape"))),
        };
        let mut value = 0u32;
        for _ in 0..n_digits {
            let digit = self.next()?.to_digit(16).ok_or_else(|| self.error("an escape needs hexadecimal digits"))?;
            value = value.wrapping_mul(16).wrapping_add(digit);
        }
        char::from_u32(value).ok_or_else(|| self.error(&format!("{value:X} is no character")))
    }
}
