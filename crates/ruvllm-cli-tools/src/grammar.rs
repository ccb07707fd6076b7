//! Whether a grammar is sound, asked before there is a model.

use std::sync::Arc;

use ruvllm_engine::tokenizer::Tokenizer;
use ruvllm_engine::{GrammarCompiler, GrammarSource};
use ruvllm_gguf::Metadata;

use crate::error::Result;

/// Checks a grammar by compiling it for a vocabulary of single bytes: what is wrong with it is wrong for each model.
///
/// # Errors
/// It is malformed, too large, uses what is not supported, or allows nothing.
pub(crate) fn check(source: &GrammarSource) -> Result<()> {
    let tokens: Vec<String> = (0..=255).map(|byte| letter(byte).to_string()).chain(["<end>".to_owned()]).collect();
    let (n_vocab, end) = (tokens.len(), tokens.len() - 1);
    let types: Vec<i32> = (0..n_vocab).map(|id| if id == end { CONTROL } else { NORMAL }).collect();
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", "gpt-2");
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.token_type", types);
    metadata.set("tokenizer.ggml.merges", Vec::<String>::new());
    metadata.set("tokenizer.ggml.eos_token_id", end as u32);
    let tokenizer = Arc::new(Tokenizer::from_metadata(&metadata)?);
    GrammarCompiler::new(&tokenizer, n_vocab)?.compile(source)?;
    Ok(())
}

/// Types of tokens in GGUF files.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Returns the letter that stands for a byte in vocabularies of GPT-2's kind: itself where it is printable, else one from 256 on.
fn letter(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match is_printable(byte) {
        true => char::from(byte),
        false => {
            let n_before = (0..byte).filter(|&before| !is_printable(before)).count() as u32;
            char::from_u32(256 + n_before).expect("far below the surrogates")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sound_grammars_are_told_from_others() {
        for sound in [
            GrammarSource::JsonObject,
            GrammarSource::JsonSchema(json!({ "type": "array", "items": { "type": "integer" } })),
            GrammarSource::Regex("[a-z]+é?".to_owned()),
            GrammarSource::Choice(vec!["no, not at all".to_owned(), "ja".to_owned()]),
            GrammarSource::Gbnf("root ::= \"a\" | \"b\"".to_owned()),
        ] {
            assert!(check(&sound).is_ok(), "{sound:?}");
        }
        for wrong in [
            GrammarSource::JsonSchema(json!({ "type": "nonsense" })),
            GrammarSource::Regex("(".to_owned()),
            GrammarSource::Choice(vec![String::new()]),
            GrammarSource::Gbnf("root ::= other".to_owned()),
        ] {
            let error = check(&wrong).expect_err("it is wrong");
            assert!(error.line().is_some_and(|line| !line.is_empty()), "{wrong:?}");
        }
    }
}
