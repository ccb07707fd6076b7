//! Thoughts of a model before its answer: the marks that each family writes around them, how they are told apart from the
//! answer ([`ThoughtReader`]), and how they are ended when they get too long ([`Thinking`]).
//!
//! A chat template tells which marks its model writes ([`ThoughtFormat::of`]).

mod gate;
mod reader;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use crate::template::{ChatInput, ChatTemplate};
use crate::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};

pub use gate::Gate;
pub use reader::ThoughtReader;

/// Tokens at the end of a prompt among which an opening mark is looked for.
const N_TAIL: usize = 16;

/// The marks around what a family of models thinks.
#[derive(Debug, PartialEq, Eq)]
pub struct ThoughtFormat {
    /// The name used in JSON output.
    pub name: &'static str,
    /// The text in a chat template that tells the family.
    pub sign: &'static str,
    /// The mark that begins a thought.
    pub open: &'static str,
    /// The mark that ends it.
    pub close: &'static str,
    /// Marks that may stand in front of the answer and are no part of it.
    pub leads: &'static [&'static str],
    /// The mark that stands behind the answer and is no part of it.
    pub tail: &'static str,
}

const fn family(name: &'static str, open: &'static str, close: &'static str) -> ThoughtFormat {
    ThoughtFormat { name, sign: open, open, close, leads: &[], tail: "" }
}

impl ThoughtFormat {
    /// Every family. Of those that a template could be of, the first one counts.
    pub const ALL: &'static [ThoughtFormat] = &[
        // gpt-oss; what it says to nobody is in a channel of its own.
        ThoughtFormat {
            sign: "<|channel|>analysis",
            leads: &["<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"],
            ..family("harmony", "<|channel|>analysis<|message|>", "<|end|>")
        },
        // Gemma 4.
        ThoughtFormat { sign: "<|channel>thought", ..family("gemma4", "<|channel>thought", "<channel|>") },
        // Seed-OSS.
        family("seed", "<seed:think>", "</seed:think>"),
        // Magistral and later models of Mistral.
        family("mistral", "[THINK]", "[/THINK]"),
        // Command A.
        ThoughtFormat {
            leads: &["<|START_RESPONSE|>"],
            tail: "<|END_RESPONSE|>",
            ..family("command", "<|START_THINKING|>", "<|END_THINKING|>")
        },
        // Kimi.
        family("kimi", "◁think▷", "◁/think▷"),
        // Apertus.
        family("apertus", "<|inner_prefix|>", "<|inner_suffix|>"),
        // LongCat.
        family("longcat", "<longcat_think>", "</longcat_think>"),
        // EXAONE Deep.
        family("exaone", "<thought>", "</thought>"),
        // Reka Flash.
        family("reka", "<reasoning>", "</reasoning>"),
        // Granite 3.2 and 3.3.
        family("granite", "Here is my thought process:", "Here is my response:"),
        // Granite 3.3 with its later template, and Hunyuan: the answer has marks as well.
        ThoughtFormat {
            sign: "<answer>",
            leads: &["<answer>"],
            tail: "</answer>",
            ..family("answer", "<think>", "</think>")
        },
        // Qwen 3, DeepSeek R1, GLM 4.5, SmolLM3, MiniMax, Nemotron and most others.
        family("think", "<think>", "</think>"),
    ];

    /// Returns the family that a chat template shows: its model may think.
    pub fn of(template: &ChatTemplate) -> Option<&'static ThoughtFormat> {
        // An answer's marks alone are no sign of thoughts.
        let source = template.source();
        let has_mark = |format: &ThoughtFormat| source.contains(format.open) || source.contains(format.close);
        let is_shown = |format: &&ThoughtFormat| source.contains(format.sign) && has_mark(format);
        ThoughtFormat::ALL.iter().find(is_shown)
    }

    /// Returns the control tokens that are part of the text, for whoever decodes it.
    pub fn visible(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let options = EncodeOptions { add_special: false, parse_special: true };
        let marks = [self.open, self.close, self.tail].into_iter().chain(self.leads.iter().copied());
        let tokens = marks.filter_map(|mark| tokenizer.encode(mark, options).ok()).flatten();
        tokens.filter(|&id| tokenizer.is_control(id)).collect()
    }

    /// Returns what a model may think behind a prompt; `None` if the prompt ends its thoughts already. `may_begin`: it may
    /// begin to think by itself.
    pub fn behind(&'static self, tokenizer: &Tokenizer, prompt: &[u32], may_begin: bool) -> Option<Thinking> {
        let tail = &prompt[prompt.len().saturating_sub(N_TAIL)..];
        let tail = tokenizer.decode(tail, DecodeOptions { render_special: true });
        let tail = tail.trim_end();
        let is_open = tail.ends_with(self.open);
        let is_closed = tail.ends_with(self.close) || self.leads.iter().any(|lead| tail.ends_with(lead));
        (is_open || (may_begin && !is_closed)).then_some(Thinking { format: self, is_open, n_tokens_max: None })
    }
}

/// Returns a conversation whose earlier thoughts, in `reasoning_content`, have the names that a template reads as well.
pub(crate) fn named_for<'i>(template: &ChatTemplate, input: &'i ChatInput) -> Cow<'i, ChatInput> {
    if input.messages.iter().all(|message| !message["reasoning_content"].is_string()) {
        return Cow::Borrowed(input);
    }
    let source = template.source();
    let reads = |name: &&str| {
        [format!(".{name}"), format!("'{name}'"), format!("\"{name}\"")].iter().any(|word| source.contains(word))
    };
    let names: Vec<&str> = ["thinking", "reasoning", "thought"].into_iter().filter(reads).collect();
    let mut input = input.clone();
    for message in &mut input.messages {
        let thought = message["reasoning_content"].clone();
        for name in names.iter().filter(|_| thought.is_string()) {
            if message[*name].is_null() {
                message[*name] = thought.clone();
            }
        }
    }
    Cow::Owned(input)
}

/// The thought that a model may have before an answer. A grammar holds the answer, not the thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thinking {
    /// The marks around it.
    pub format: &'static ThoughtFormat,
    /// The prompt ends with the opening mark.
    pub is_open: bool,
    /// The most tokens of a thought: then it is ended, and the answer begins. `None` lets the model end it.
    pub n_tokens_max: Option<usize>,
}

impl Thinking {
    /// Returns what reads an answer.
    pub fn reader(&self) -> ThoughtReader {
        ThoughtReader::new(self.format, self.is_open)
    }
}
