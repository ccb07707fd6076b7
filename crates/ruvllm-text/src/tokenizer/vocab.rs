//! The vocabulary of a file: texts, kinds, scores, and the ids that mean something.

use std::collections::BTreeSet;

use ruvllm_gguf::{GgufError, Metadata};

use super::text_index::TextIndex;
use crate::error::{TextError, TextErrorKind};

/// What a token is, as a set of flags (`tokenizer.ggml.token_type` gives one of the first six).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Attr(u8);

impl Attr {
    pub(super) const NONE: Attr = Attr(0);
    pub(super) const UNKNOWN: Attr = Attr(1);
    pub(super) const UNUSED: Attr = Attr(2);
    pub(super) const NORMAL: Attr = Attr(4);
    pub(super) const CONTROL: Attr = Attr(8);
    pub(super) const USER_DEFINED: Attr = Attr(16);
    pub(super) const BYTE: Attr = Attr(32);
    /// Takes the white space before it along.
    pub(super) const LSTRIP: Attr = Attr(64);
    /// Takes the white space after it along.
    pub(super) const RSTRIP: Attr = Attr(128);

    /// Returns both sets together.
    pub(super) const fn with(self, other: Attr) -> Attr {
        Attr(self.0 | other.0)
    }

    /// Returns this set without the other.
    pub(super) const fn without(self, other: Attr) -> Attr {
        Attr(self.0 & !other.0)
    }

    /// Returns whether the sets share a flag.
    pub(super) const fn any(self, other: Attr) -> bool {
        self.0 & other.0 != 0
    }

    /// Reads a GGUF token type; an unknown number is a token of no kind, as in llama.cpp.
    fn from_token_type(ty: i32) -> Attr {
        match ty {
            1 => Attr::NORMAL,
            2 => Attr::UNKNOWN,
            3 => Attr::CONTROL,
            4 => Attr::USER_DEFINED,
            5 => Attr::UNUSED,
            6 => Attr::BYTE,
            _ => Attr::NONE,
        }
    }
}

/// Ids with a meaning. `None`: the vocabulary has none.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct SpecialIds {
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) eot: Option<u32>,
    pub(super) eom: Option<u32>,
    pub(super) unk: Option<u32>,
    pub(super) sep: Option<u32>,
    pub(super) fim_pad: Option<u32>,
    pub(super) fim_rep: Option<u32>,
    pub(super) fim_sep: Option<u32>,
}

/// The tokens of a file.
pub(super) struct Vocab {
    /// Number = id for the first `n_tokens`; merges may add texts that are no tokens.
    pub(super) texts: TextIndex,
    pub(super) n_tokens: u32,
    pub(super) attrs: Vec<Attr>,
    /// Empty where the file has none.
    pub(super) scores: Vec<f32>,
    pub(super) special: SpecialIds,
    pub(super) end_of_generation: BTreeSet<u32>,
    pub(super) max_token_bytes: usize,
}

pub(super) fn model_error(line: impl Into<String>) -> TextError {
    TextError::new(TextErrorKind::Model, line)
}

pub(super) fn gguf_error(error: GgufError) -> TextError {
    model_error(error.to_string()).with_source(error)
}

impl Vocab {
    /// Reads the vocabulary. `defaults` are the ids a file of this tokenizer kind has unless it says otherwise.
    ///
    /// # Errors
    /// No tokens, or types or scores of another number than the tokens.
    pub(super) fn read(metadata: &Metadata, defaults: SpecialIds) -> Result<Vocab, TextError> {
        let missing = || model_error("the file has no vocabulary: 'tokenizer.ggml.tokens' is missing or empty");
        let tokens = metadata.strings("tokenizer.ggml.tokens").map_err(gguf_error)?.ok_or_else(missing)?;
        if tokens.is_empty() {
            return Err(missing());
        }
        let mut texts = TextIndex::with_capacity(tokens.len());
        let mut max_token_bytes = 0;
        for (i, text) in tokens.iter().enumerate() {
            let name_of_empty;
            let text = match text {
                "" => {
                    name_of_empty = format!("[EMPTY_{i}]");
                    &name_of_empty
                }
                text => text,
            };
            max_token_bytes = max_token_bytes.max(text.len());
            texts.push(text.as_bytes()).ok_or_else(|| model_error("the vocabulary is larger than 4 GiB"))?;
        }
        let n_tokens = texts.len() as u32;
        let checked = |key: &str, len: usize| match len >= tokens.len() {
            true => Ok(()),
            false => Err(model_error(format!("'{key}' has {len} items for {n_tokens} tokens"))),
        };
        let mut attrs = vec![Attr::NORMAL; tokens.len()];
        if let Some(types) = metadata.i32s("tokenizer.ggml.token_type").map_err(gguf_error)? {
            checked("tokenizer.ggml.token_type", types.len())?;
            attrs = types[..tokens.len()].iter().map(|&ty| Attr::from_token_type(ty)).collect();
        }
        let scores = read_scores(metadata)?;
        if !scores.is_empty() {
            checked("tokenizer.ggml.scores", scores.len())?;
        }
        let end_of_generation = BTreeSet::new();
        let mut vocab = Vocab { texts, n_tokens, attrs, scores, special: defaults, end_of_generation, max_token_bytes };
        vocab.read_special_ids(metadata)?;
        vocab.find_special_texts();
        vocab.strip_rules(metadata)?;
        Ok(vocab)
    }

    /// Returns the id of a token.
    pub(super) fn id(&self, text: &[u8]) -> Option<u32> {
        self.texts.find(text).filter(|&id| id < self.n_tokens)
    }

    /// Returns the token's text as the file has it.
    pub(super) fn text(&self, id: u32) -> &str {
        std::str::from_utf8(self.texts.text(id)).unwrap_or_default()
    }

    /// Takes the ids the file gives; one outside the vocabulary is ignored, as in llama.cpp.
    fn read_special_ids(&mut self, metadata: &Metadata) -> Result<(), TextError> {
        let n_tokens = self.n_tokens;
        let s = &mut self.special;
        let fields: [(&str, &mut Option<u32>); 9] = [
            ("bos", &mut s.bos),
            ("eos", &mut s.eos),
            ("eot", &mut s.eot),
            ("eom", &mut s.eom),
            ("unknown", &mut s.unk),
            ("seperator", &mut s.sep),
            ("fim_pad", &mut s.fim_pad),
            ("fim_rep", &mut s.fim_rep),
            ("fim_sep", &mut s.fim_sep),
        ];
        for (name, id) in fields {
            *id = id.filter(|&id| id < n_tokens);
            let given = metadata.get(&format!("tokenizer.ggml.{name}_token_id")).is_some();
            if given {
                let key = format!("tokenizer.ggml.{name}_token_id");
                // -1 and its like say "none" in some files: no `u32`, so no id, and the default stands.
                let new = metadata.u32(&key).ok().flatten().filter(|&id| id < n_tokens);
                *id = new.or(*id);
            }
        }
        Ok(())
    }

    /// Finds tokens by their well-known texts: files often name only one of the tokens that end an answer.
    /// The lists and their quirks are llama.cpp's.
    fn find_special_texts(&mut self) {
        self.special.eot = self.special.eot.or_else(|| self.control_token(EOT_TEXTS));
        self.special.eom = self.special.eom.or_else(|| self.control_token(&["<|eom_id|>"]));
        for texts in [FIM_PRE_TEXTS, FIM_SUF_TEXTS, FIM_MID_TEXTS] {
            self.control_token(texts);
        }
        self.special.fim_pad = self.special.fim_pad.or_else(|| self.control_token(FIM_PAD_TEXTS));
        self.special.fim_rep = self.special.fim_rep.or_else(|| self.control_token(FIM_REP_TEXTS));
        self.special.fim_sep = self.special.fim_sep.or_else(|| self.control_token(&["<|file_sep|>"]));

        let s = self.special;
        self.end_of_generation.extend([s.fim_pad, s.fim_rep, s.fim_sep].into_iter().flatten());
        for text in END_OF_GENERATION_TEXTS {
            let id = self.control_token(&[text]);
            self.end_of_generation.extend(id);
        }
        for text in ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"] {
            if let Some(id) = self.id(text.as_bytes()) {
                self.attrs[id as usize] = Attr::USER_DEFINED;
            }
        }
        self.end_of_generation.extend([s.eos, s.eot, s.eom].into_iter().flatten());

        let ends =
            |vocab: &Vocab, text: &str| vocab.id(text.as_bytes()).filter(|id| vocab.end_of_generation.contains(id));
        let call = ends(self, "<|call|>").or(ends(self, "<|calls|>"));
        let mark = ends(self, "<|return|>").or(ends(self, "<|flush|>"));
        if let (Some(_), Some(_), Some(end)) = (call, mark, ends(self, "<|end|>")) {
            // In the harmony format `<|end|>` closes a message, not the answer.
            self.end_of_generation.remove(&end);
            self.attrs[end as usize] = Attr::USER_DEFINED;
        }
        if let (Some(_), Some(id)) = (ends(self, "<|tool_response>"), ends(self, "</s>")) {
            // In gemma 4 `</s>` is an HTML tag.
            self.end_of_generation.remove(&id);
            self.attrs[id as usize] = Attr::NORMAL;
        }
    }

    /// Returns the first of the texts that is a token, and makes it a control token.
    fn control_token(&mut self, texts: &[&str]) -> Option<u32> {
        let id = texts.iter().find_map(|text| self.id(text.as_bytes()))?;
        let attr = &mut self.attrs[id as usize];
        *attr = attr.with(Attr::CONTROL);
        Some(id)
    }

    /// Which special tokens swallow white space is not in the file; llama.cpp knows it by model name, and so it is here.
    fn strip_rules(&mut self, metadata: &Metadata) -> Result<(), TextError> {
        let text = |key| metadata.str(key).map_err(gguf_error).map(|text| text.unwrap_or_default());
        let name = text("general.name")?.to_ascii_lowercase();
        let (pre, arch) = (text("tokenizer.ggml.pre")?, text("general.architecture")?);
        let lstrip = |vocab: &mut Vocab, text: &str| {
            if let Some(id) = vocab.id(text.as_bytes()) {
                vocab.attrs[id as usize] = vocab.attrs[id as usize].with(Attr::LSTRIP);
            }
        };
        if ["jina-v2-de", "jina-v2-es", "jina-v2-code"].iter().any(|jina| pre.contains(jina))
            || ["nomic-bert-moe", "jina-bert-v3"].iter().any(|bert| arch.contains(bert))
        {
            lstrip(self, "<mask>");
        } else if name.contains("phi-3") || name.contains("phi3") {
            for attr in self.attrs.iter_mut().filter(|attr| attr.any(SPECIAL)) {
                *attr = attr.with(Attr::RSTRIP);
            }
            for (text, rstrip) in [("</s>", true), ("<unk>", false), ("<s>", false), ("<|endoftext|>", false)] {
                if let Some(id) = self.id(text.as_bytes()) {
                    let attr = &mut self.attrs[id as usize];
                    *attr = if rstrip { attr.with(Attr::RSTRIP) } else { attr.without(Attr::RSTRIP) };
                }
            }
        } else if name.contains("modern-bert") {
            lstrip(self, "[MASK]");
        }
        Ok(())
    }
}

/// Tokens that are cut out of the text before anything else looks at it.
pub(super) const SPECIAL: Attr = Attr::CONTROL.with(Attr::USER_DEFINED).with(Attr::UNKNOWN);

/// Reads the scores, floats or integers; empty where there are none.
fn read_scores(metadata: &Metadata) -> Result<Vec<f32>, TextError> {
    let key = "tokenizer.ggml.scores";
    if metadata.get(key).is_none() {
        return Ok(Vec::new());
    }
    match metadata.f32s(key) {
        Ok(scores) => Ok(scores.unwrap_or_default()),
        Err(error) => match metadata.i32s(key) {
            Ok(scores) => Ok(scores.unwrap_or_default().into_iter().map(|score| score as f32).collect()),
            Err(_) => Err(gguf_error(error)),
        },
    }
}

const EOT_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const FIM_PRE_TEXTS: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUF_TEXTS: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MID_TEXTS: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD_TEXTS: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REP_TEXTS: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const END_OF_GENERATION_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
