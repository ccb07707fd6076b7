//! Control tokens that stand in messages: they are text, whoever wrote them, and open or end no turn.
//!
//! What a chat template writes is read with control tokens, what it takes from a conversation is not. To know one from the other,
//! the conversation is rendered with marks ([`Marks`]): each character of it that could begin a control token is replaced by
//! one of a private-use plane, and after the text is cut at control tokens the marks become the characters again. So however
//! a template cuts texts and puts them together, no control token begins in one of them.
//!
//! Some templates look for such characters (`'</think>' in content`) and would render something else. Then only the spellings of
//! control tokens are marked, and the beginnings and ends of them at the ends of a text; that rendering is taken if it has the
//! control tokens of the one with all marks, else the one with all marks.

use serde_json::{Map, Value};

use crate::error::{TextError, TextErrorKind};
use crate::template::{ChatInput, Marks};
use crate::tokenizer::Tokenizer;

/// Characters that are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// All that could begin a control token.
    All,
    /// Those of spellings, and of parts of them where a text begins or ends.
    Spellings,
}

/// Marks for one conversation.
pub(crate) struct Guard<'t> {
    tokenizer: &'t Tokenizer,
    pub(crate) marks: Marks,
}

impl<'t> Guard<'t> {
    /// Returns what guards a conversation, and what the assistant has begun to answer; `None` if nothing in it could be read as
    /// a control token.
    ///
    /// # Errors
    /// Its texts use all characters that could be marks.
    pub(crate) fn of(tokenizer: &'t Tokenizer, input: &ChatInput, begun: &str) -> Result<Option<Guard<'t>>, TextError> {
        let mut texts = vec![begun];
        input.messages.iter().chain(&input.tools).for_each(|value| collect(value, &mut texts));
        for (_, value) in input.extra.iter().filter(|(name, _)| !is_token(name)) {
            collect(value, &mut texts);
        }
        let control = tokenizer.control();
        if !texts.iter().any(|text| text.contains(control.firsts()) || text.contains(control.lasts())) {
            return Ok(None);
        }
        let marks = Marks::beside(&texts).ok_or_else(|| {
            let line =
                "the messages use characters of both private-use planes (U+F0000, U+100000); leave some of them out";
            TextError::new(TextErrorKind::Prompt, line)
        })?;
        Ok(Some(Guard { tokenizer, marks }))
    }

    /// Returns a conversation with marks.
    pub(crate) fn marked(&self, input: &ChatInput, style: Style) -> ChatInput {
        let value = |value: &Value| {
            // A tag that ends the thinking of an earlier answer is the template's to find.
            let is_answer = style == Style::Spellings && value["role"] == "assistant";
            self.value(value, style, is_answer)
        };
        let extra = input
            .extra
            .iter()
            .map(|(name, given)| (name.clone(), if is_token(name) { given.clone() } else { value(given) }));
        ChatInput {
            messages: input.messages.iter().map(value).collect(),
            tools: input.tools.as_ref().map(value),
            extra: extra.collect(),
            ..input.clone()
        }
    }

    fn value(&self, value: &Value, style: Style, is_answer: bool) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text, style, is_answer)),
            Value::Array(items) => items.iter().map(|item| self.value(item, style, is_answer)).collect(),
            Value::Object(entries) => {
                let entry = |(key, value): (&String, &Value)| {
                    (self.text(key, style, is_answer), self.value(value, style, is_answer))
                };
                Value::Object(entries.iter().map(entry).collect::<Map<_, _>>())
            }
            other => other.clone(),
        }
    }

    /// Returns a text with marks.
    pub(crate) fn text(&self, text: &str, style: Style, is_answer: bool) -> String {
        let control = self.tokenizer.control();
        let mut places: Vec<usize> = match style {
            Style::All => text.match_indices(control.firsts()).map(|(at, _)| at).collect(),
            Style::Spellings => {
                let found = control.find(text).into_iter();
                found.filter(|found| !(is_answer && is_thinking(found.text))).map(|found| found.at).collect()
            }
        };
        places.extend(self.boundaries(text));
        places.sort_unstable();
        places.dedup();
        let mut out = String::with_capacity(text.len() + 3 * places.len());
        let mut n_done = 0;
        for at in places {
            let Some(c) = text[at..].chars().next() else { continue };
            out.push_str(&text[n_done..at]);
            out.push(self.marks.mark(c).unwrap_or(c));
            n_done = at + c.len_utf8();
        }
        out.push_str(&text[n_done..]);
        out
    }

    /// Returns the places of characters to mark where a text ends with the beginning of a control token, or begins with its end.
    fn boundaries(&self, text: &str) -> Vec<usize> {
        let control = self.tokenizer.control();
        let (ended, begun) = (text.trim_end(), text.trim_start());
        let mut places = Vec::new();
        let near_end = ended.len().saturating_sub(control.max_bytes());
        let mut starts = ended.rmatch_indices(control.firsts()).map(|(at, _)| at).take_while(|at| *at >= near_end);
        if starts.any(|at| control.has_beginning(&ended[at..])) {
            places.extend(ended.char_indices().next_back().map(|(at, _)| at));
        }
        let ends = begun.match_indices(control.lasts()).map(|(at, last)| at + last.len());
        let mut ends = ends.take_while(|end| *end <= control.max_bytes());
        if ends.any(|end| control.has_end(&begun[..end])) {
            places.push(text.len() - begun.len());
        }
        places
    }
}

/// Returns whether a variable is the text of a token: what a template writes, not what it is given.
fn is_token(name: &str) -> bool {
    name.ends_with("_token")
}

/// Returns whether a control token is a tag around thinking; it opens no turn.
pub(crate) fn is_thinking(spelling: &str) -> bool {
    spelling.to_ascii_lowercase().contains("think")
}

fn collect<'v>(value: &'v Value, texts: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        Value::Object(entries) => {
            for (key, value) in entries {
                texts.push(key);
                collect(value, texts);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
