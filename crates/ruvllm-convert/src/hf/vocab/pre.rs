//! Name of the rule by which a tokenizer cuts texts into words. Files name it, and checkpoints have it as regular expressions.
//!
//! As in llama.cpp's converter, the ids of a text that all of them cut differently say which one it is: their hash stands in a table.
//! The ids are made by our own tokenizer with the rule that the expressions are known to be. Tokenizers that are not in the table
//! (a vocabulary of one's own) are named by their rule alone.

use ruvllm_gguf::Metadata;
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::pre_names::{HASHES, PROBE};
use super::tokenizer_json::TokenizerJson;
use crate::error::ConvertError;

/// Starts of the last regular expression, and the rules they are; the first that fits holds. The names are for vocabularies
/// whose whole words are looked up first, and for others.
const EXPRESSIONS: [(&str, &str, &str); 11] = [
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|", "llama-bpe", "dbrx"),
    (r"(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}|", "llama-bpe", "dbrx"),
    (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
        "llama-bpe",
        "dbrx",
    ),
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|", "qwen2", "qwen2"),
    (r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|", "qwen2", "qwen2"),
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|", "qwen35", "qwen35"),
    (r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##, "deepseek-v3", "deepseek-v3"),
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|", "gpt-2", "gpt-2"),
    (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}|", "bailingmoe", "bailingmoe"),
    (r" ?[^(\s|[.,!?…。，、।۔،])]+", "bloom", "bloom"),
    (r"\s?\p{P}+", "deepseek-coder", "deepseek-coder"),
];
/// Starts of the shape in which changes of case end words: with contractions and without.
const CASES: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+";

/// Finds the name of a tokenizer's rule.
///
/// # Errors
/// It is not known.
pub(super) fn find(json: &TokenizerJson, metadata: &mut Metadata) -> Result<String, ConvertError> {
    let cuts = cuts(json.pre_tokenizer());
    let Some(rule) = rule(&cuts, json.ignores_merges()) else {
        let line = "tokenizer.json: how it cuts texts into words is not known; name a rule with --pre, such as gpt-2 or llama-bpe";
        return Err(ConvertError::unsupported(line));
    };
    metadata.set("tokenizer.ggml.pre", rule);
    Ok(by_ids(metadata)?.unwrap_or(rule).to_owned())
}

/// Finds the name of a tokenizer by the ids that it gives.
///
/// # Errors
/// The tokenizer is damaged.
pub(super) fn by_ids(metadata: &Metadata) -> Result<Option<&'static str>, ConvertError> {
    let damaged = |error: ruvllm_text::TextError| ConvertError::invalid(format!("the tokenizer is damaged: {error}"));
    let tokenizer = Tokenizer::from_metadata(metadata).map_err(damaged)?;
    let ids = tokenizer.encode(PROBE, EncodeOptions { add_special: true, parse_special: true }).map_err(damaged)?;
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    let hash = hex::encode(Sha256::digest(format!("[{}]", ids.join(", "))));
    // Of two names for the same ids the later one is used.
    Ok(HASHES.iter().rev().find(|(_, own)| *own == hash).map(|(name, _)| *name))
}

/// A step of cutting.
#[derive(Debug, PartialEq)]
enum Cut<'a> {
    Expression(&'a str),
    Digits,
    /// GPT-2's, with its expression.
    Bytes,
    Punctuation,
}

/// Returns the steps of cutting.
fn cuts(pre_tokenizer: &Json) -> Vec<Cut<'_>> {
    match pre_tokenizer["type"].as_str() {
        Some("Sequence") => pre_tokenizer["pretokenizers"].as_array().into_iter().flatten().flat_map(cuts).collect(),
        Some("Split") => {
            let pattern = &pre_tokenizer["pattern"];
            pattern["Regex"].as_str().or_else(|| pattern["String"].as_str()).map(Cut::Expression).into_iter().collect()
        }
        Some("Digits") if pre_tokenizer["individual_digits"] == true => vec![Cut::Digits],
        Some("ByteLevel") if pre_tokenizer["use_regex"] != false => vec![Cut::Bytes],
        Some("Punctuation") => vec![Cut::Punctuation],
        _ => Vec::new(),
    }
}

/// Returns the rule that steps of cutting are.
fn rule(cuts: &[Cut<'_>], looks_up_words: bool) -> Option<&'static str> {
    use Cut::{Bytes, Digits, Expression, Punctuation};
    let last = cuts.iter().rev().find_map(|cut| if let Expression(text) = cut { Some(*text) } else { None });
    match (cuts, last) {
        ([Bytes], _) => Some("gpt-2"),
        ([Digits, Bytes], _) => Some("starcoder"),
        ([Punctuation, ..], _) => Some("falcon"),
        (_, Some(last)) if last.starts_with(CASES) => {
            let rest = &last[CASES.len()..];
            let has_contractions = rest.starts_with("(?i:") || rest.starts_with("(?:'");
            Some(if has_contractions { "gpt-4o" } else { "tekken" })
        }
        ([.., Digits, Bytes], Some(last)) if last.starts_with(r" ?[^(\s|") => Some("viking"),
        (_, Some(last)) => {
            let found = EXPRESSIONS.iter().find(|(start, ..)| last.starts_with(start));
            found.map(|(_, looks_up, plain)| if looks_up_words { *looks_up } else { *plain })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_known_by_their_expressions() {
        let check = |pre_tokenizer: Json, looks_up: bool, name: Option<&str>| {
            assert_eq!(rule(&cuts(&pre_tokenizer), looks_up), name, "{pre_tokenizer}");
        };
        let split = |regex: &str| json!({ "type": "Split", "pattern": { "Regex": regex } });
        let bytes = json!({ "type": "ByteLevel", "use_regex": false });
        let sequence = |all: &[Json]| json!({ "type": "Sequence", "pretokenizers": all });
        check(json!({ "type": "ByteLevel" }), false, Some("gpt-2"));
        let digits = json!({ "type": "Digits", "individual_digits": true });
        check(sequence(&[digits, json!({ "type": "ByteLevel", "use_regex": true })]), false, Some("starcoder"));
        let llama = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        check(sequence(&[split(llama), bytes.clone()]), true, Some("llama-bpe"));
        check(sequence(&[split(llama), bytes.clone()]), false, Some("dbrx"));
        check(sequence(&[split(&llama.replace("{1,3}", "")), bytes.clone()]), false, Some("qwen2"));
        check(sequence(&[split("x+"), bytes]), false, None);
    }

    #[test]
    fn hashes_are_hashes_of_known_rules() {
        for (name, hash) in HASHES {
            assert!(hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
        }
    }
}
