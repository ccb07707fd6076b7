//! `/tokenize` and `/detokenize`.

use ruvllm_engine::ModelText;
use ruvllm_engine::tokenizer::{DecodeOptions, EncodeOptions};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody, optional, required};
use crate::generation::MODEL;

/// Fields of a request for the tokens of a text.
pub const TOKENIZE: &[Field] = &[
    required("text", Kind::Text, "the text").also(&["content", "prompt"]),
    optional("add_special", Kind::Bool, "add the tokens that the model wants at the beginning and the end")
        .also(&["add_special_tokens"]),
    optional("parse_special", Kind::Bool, "read <|im_start|> and its like as one token"),
    optional(
        "with_pieces",
        Kind::Bool,
        "return each token as an object of its id and its piece: its text, or its bytes where they are no text",
    ),
    MODEL,
];

/// Fields of a request for the text of tokens.
pub const DETOKENIZE: &[Field] = &[
    required("tokens", Kind::List(&Kind::Int(0, u32::MAX as i64), 0, 1 << 24), "the tokens"),
    optional("render_special", Kind::Bool, "write control tokens as their text"),
    MODEL,
];

/// Returns the tokens of a text, for a model of this context.
///
/// # Errors
/// The tokenizer cannot read it.
pub fn tokenize(given: &ValidBody, text: &ModelText, n_ctx: usize) -> Result<Value, ApiError> {
    let (add_special, parse_special) = (given.is_set("add_special"), given.is_set("parse_special"));
    let tokenizer = text.tokenizer();
    let tokens =
        tokenizer.encode(given.text("text").unwrap_or_default(), EncodeOptions { add_special, parse_special })?;
    let piece = |id: &u32| {
        let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
        let piece = std::str::from_utf8(&bytes).map_or_else(|_| json!(bytes), |text| json!(text));
        json!({ "id": id, "piece": piece })
    };
    let mut answer = json!({ "tokens": tokens, "count": tokens.len(), "max_model_len": n_ctx });
    if given.is_set("with_pieces") {
        let lossy = |id: &u32| String::from_utf8_lossy(&tokenizer.token_bytes(*id).unwrap_or_default()).into_owned();
        // The name that pieces had before, for one release.
        answer["pieces"] = tokens.iter().map(lossy).collect();
        answer["tokens"] = tokens.iter().map(piece).collect();
    }
    Ok(answer)
}

/// Returns the text of tokens.
///
/// # Errors
/// 400: one is outside the vocabulary.
pub fn detokenize(given: &ValidBody, text: &ModelText) -> Result<Value, ApiError> {
    let tokenizer = text.tokenizer();
    let ids = given.list("tokens").into_iter().flatten();
    let ids: Vec<u32> = ids.filter_map(|id| Some(id.as_f64()? as u32)).collect();
    let n_vocab = tokenizer.vocab_len();
    if let Some(id) = ids.iter().find(|&&id| id as usize >= n_vocab) {
        return Err(ApiError::bad("tokens", format!("token {id} is outside the vocabulary of {n_vocab}")));
    }
    let options = DecodeOptions { render_special: given.is_set("render_special") };
    let text = tokenizer.decode(&ids, options);
    Ok(json!({ "text": text, "content": text, "prompt": text }))
}
