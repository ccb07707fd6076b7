//! Fill in the middle: a prompt of what stands before a gap and what stands behind it, for models that were trained so.

use ruvllm_gguf::Metadata;

use super::vocab::gguf_error;
use super::{EncodeOptions, Tokenizer};
use crate::error::{TextError, TextErrorKind};

/// The tokens that mark the parts of such a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfillTokens {
    /// In front of what stands before the gap.
    pub prefix: u32,
    /// In front of what stands behind it.
    pub suffix: u32,
    /// In front of the answer, which fills it.
    pub middle: u32,
    /// In front of the name of a repository, whose files come before the one with the gap.
    pub repo: Option<u32>,
    /// In front of the name of each file.
    pub file: Option<u32>,
}

/// A file beside the one with the gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfillFile {
    /// Its path, as the model is to see it.
    pub name: String,
    /// The text of the file.
    pub text: String,
}

/// Names of the repository and of the file with the gap, as llama.cpp has them (`format_prompt_infill`).
const REPO_NAME: &str = "myproject\n";
const OWN_NAME: &str = "filename\n";
/// Text in front of a file where a model has no token for that, as in llama.cpp.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// Keys of a file's metadata, newer and older ones.
const KEYS: [[&str; 2]; 3] = [
    ["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"],
    ["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"],
    ["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"],
];

/// How models spell them: Qwen Coder and CodeGemma, StarCoder and Granite, DeepSeek Coder, Code Llama.
const SPELLINGS: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];

/// The key and the spellings of the tokens in front of a repository's name, and of a file's: Qwen Coder, StarCoder 2, Granite.
const REPO: (&str, [&str; 3]) = ("tokenizer.ggml.fim_rep_token_id", ["<|repo_name|>", "<repo_name>", "<reponame>"]);
const FILE: (&str, [&str; 3]) =
    ("tokenizer.ggml.fim_sep_token_id", ["<|file_sep|>", "<file_sep>", "<|file_separator|>"]);

impl InfillTokens {
    /// Returns all of them.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> + use<> {
        [self.prefix, self.suffix, self.middle].into_iter().chain(self.repo).chain(self.file)
    }

    /// Reads those of a file: the ids that it names, or else the tokens that are spelled so.
    ///
    /// # Errors
    /// A value that is no id.
    pub(super) fn read(
        metadata: &Metadata,
        id: &dyn Fn(&str) -> Option<u32>,
    ) -> Result<Option<InfillTokens>, TextError> {
        let mut named = [None; 3];
        for (named, keys) in named.iter_mut().zip(KEYS) {
            for key in keys {
                *named = named.or(metadata.u32(key).map_err(gguf_error)?);
            }
        }
        let other = |(key, texts): (&str, [&str; 3])| -> Result<Option<u32>, TextError> {
            let named = metadata.u32(key).map_err(gguf_error)?;
            Ok(named.or_else(|| texts.iter().find_map(|text| id(text))))
        };
        let (repo, file) = (other(REPO)?, other(FILE)?);
        let spelled = SPELLINGS.iter().map(|texts| texts.map(id));
        Ok([named].into_iter().chain(spelled).find_map(|ids| match ids {
            [Some(prefix), Some(suffix), Some(middle)] => Some(InfillTokens { prefix, suffix, middle, repo, file }),
            _ => None,
        }))
    }
}

impl Tokenizer {
    /// Returns the tokens that mark the parts of a prompt with a gap, if the model has them.
    pub fn infill_tokens(&self) -> Option<InfillTokens> {
        self.infill
    }

    /// Returns a prompt whose answer stands between two texts, in the order prefix, suffix, middle. What looks like a control
    /// token in the texts is text.
    ///
    /// # Errors
    /// [`TextErrorKind::Unsupported`] for a model without such tokens; as [`Tokenizer::encode`].
    pub fn encode_infill(&self, prefix: &str, suffix: &str) -> Result<Vec<u32>, TextError> {
        self.encode_infill_among(&[], prefix, suffix)
    }

    /// Returns such a prompt behind other files of the same repository, the order and the names as llama.cpp has them.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_infill`].
    pub fn encode_infill_among(&self, files: &[InfillFile], prefix: &str, suffix: &str) -> Result<Vec<u32>, TextError> {
        let Some(marks) = self.infill else {
            let line = "the model has no tokens for a gap in a text, it writes forwards only; leave out the suffix";
            return Err(TextError::new(TextErrorKind::Unsupported, line));
        };
        let plain = EncodeOptions { add_special: false, parse_special: false };
        let mut ids: Vec<u32> = self.bos_to_add().into_iter().collect();
        if let Some(repo) = marks.repo.filter(|_| !files.is_empty()) {
            ids.push(repo);
            ids.extend(self.encode(REPO_NAME, plain)?);
        }
        for file in files {
            let head = if marks.file.is_some() { &format!("{}\n", file.name) } else { SNIPPET };
            ids.extend(marks.file);
            ids.extend(self.encode(head, plain)?);
            ids.extend(self.encode(&file.text, plain)?);
        }
        if let Some(file) = marks.file.filter(|_| !files.is_empty()) {
            ids.push(file);
            ids.extend(self.encode(OWN_NAME, plain)?);
        }
        ids.push(marks.prefix);
        ids.extend(self.encode(prefix, plain)?);
        ids.push(marks.suffix);
        ids.extend(self.encode(suffix, plain)?);
        ids.push(marks.middle);
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_the_file_go_before_spellings() {
        let texts = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
        let id = |text: &str| texts.iter().position(|known| *known == text).map(|i| i as u32);
        let mut metadata = Metadata::new();
        let spelled = InfillTokens { prefix: 0, suffix: 1, middle: 2, repo: None, file: None };
        assert_eq!(InfillTokens::read(&metadata, &id).expect("ids"), Some(spelled));
        assert_eq!(InfillTokens::read(&metadata, &|_| None).expect("ids"), None);
        metadata.set("tokenizer.ggml.fim_pre_token_id", 7u32);
        metadata.set("tokenizer.ggml.suffix_token_id", 8u32);
        assert_eq!(InfillTokens::read(&metadata, &id).expect("ids"), Some(spelled), "two of three are none");
        metadata.set("tokenizer.ggml.fim_mid_token_id", 9u32);
        metadata.set("tokenizer.ggml.fim_sep_token_id", 5u32);
        let named = InfillTokens { prefix: 7, suffix: 8, middle: 9, repo: None, file: Some(5) };
        assert_eq!(InfillTokens::read(&metadata, &id).expect("ids"), Some(named));
    }
}
