//! Log-probabilities, as OpenAI writes them.

use ruvllm_engine::tokenizer::Tokenizer;
use ruvllm_engine::{GenerationSummary, TokenLogprobs};
use serde_json::{Map, Value, json};

/// The tokens of an answer, for their log-probabilities.
#[derive(Clone, Copy, Debug)]
pub struct AnswerTokens<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Whether the answer goes on where the model would end it.
    pub ignores_eos: bool,
}

/// Returns the log-probabilities of a chat's tokens; null if there are none. The token that ends an answer is no part of
/// it.
pub fn of_chat<'t>(of: AnswerTokens<'_>, tokens: impl Iterator<Item = (u32, &'t TokenLogprobs)>) -> Value {
    let content: Vec<Value> = written(of, tokens)
        .map(|(id, logprobs)| {
            let mut token = of_token(of, id, logprobs.logprob);
            token["top_logprobs"] = logprobs.top.iter().map(|&(id, logprob)| of_token(of, id, logprob)).collect();
            token
        })
        .collect();
    if content.is_empty() { Value::Null } else { json!({ "content": content, "refusal": null }) }
}

fn of_token(of: AnswerTokens<'_>, id: u32, logprob: f32) -> Value {
    let bytes = bytes(of, id);
    json!({ "id": id, "token": named(&bytes), "logprob": finite(logprob), "bytes": bytes })
}

/// Returns the log-probabilities of a chat's tokens that another server told; null if there are none.
pub fn of_chat_elsewhere(content: &[Value]) -> Value {
    if content.is_empty() { Value::Null } else { json!({ "content": content, "refusal": null }) }
}

/// Returns those of a completion's tokens that another server told, in a chat's form. `offset` is as in [`of_completion`].
pub fn of_completion_elsewhere(content: &[Value], offset: &mut usize) -> Value {
    let mut lists = Lists::default();
    let text = |token: &Value| token["token"].as_str().unwrap_or_default().to_owned();
    let logprob = |token: &Value| token["logprob"].as_f64().map(|logprob| logprob as f32);
    for token in content {
        let n_chars = n_chars_of(&text(token));
        let top = token["top_logprobs"].as_array().into_iter().flatten();
        lists.tokens.push(text(token));
        lists.token_logprobs.push(logprob(token));
        lists.top_logprobs.push(Some(top.map(|token| (text(token), token["logprob"].clone())).collect()));
        lists.text_offset.push(*offset);
        *offset += n_chars;
    }
    lists.json()
}

/// Returns how many characters of text a token is that is called so: one that is no text is called by its bytes.
fn n_chars_of(name: &str) -> usize {
    let Some(escaped) = name.strip_prefix("bytes:") else { return name.chars().count() };
    let (mut bytes, mut rest) = (Vec::new(), escaped);
    while let Some(first) = rest.chars().next() {
        let hex = rest.strip_prefix("\\x").and_then(|hex| hex.get(..2));
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        let n_taken = if byte.is_some() { 4 } else { first.len_utf8() };
        match byte {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(&rest.as_bytes()[..n_taken]),
        }
        rest = &rest[n_taken..];
    }
    String::from_utf8_lossy(&bytes).chars().count()
}

/// The log-probabilities of a completion's tokens, as lists beside each other.
#[derive(Default)]
struct Lists {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

impl Lists {
    /// Adds a token whose text begins at `offset`; of the first of all the model thinks nothing.
    fn push(&mut self, of: AnswerTokens<'_>, id: u32, offset: usize, of_token: Option<&TokenLogprobs>) {
        let text = |id: u32| named(&bytes(of, id));
        let top = |logprobs: &TokenLogprobs| {
            logprobs.top.iter().map(|&(id, logprob)| (text(id), json!(finite(logprob)))).collect()
        };
        self.tokens.push(text(id));
        self.token_logprobs.push(of_token.map(|of_token| finite(of_token.logprob)));
        self.top_logprobs.push(of_token.map(top));
        self.text_offset.push(offset);
    }

    fn json(self) -> Value {
        let Lists { tokens, token_logprobs, top_logprobs, text_offset } = self;
        json!({
            "tokens": tokens,
            "token_logprobs": token_logprobs,
            "top_logprobs": top_logprobs,
            "text_offset": text_offset,
        })
    }
}

/// Returns how many characters of text a token is.
fn n_chars(of: AnswerTokens<'_>, id: u32) -> usize {
    String::from_utf8_lossy(&bytes(of, id)).chars().count()
}

/// Returns the log-probabilities of a completion's tokens. `offset` is where the text of the first one begins, and
/// becomes where that of the last one ends.
pub fn of_completion<'t>(
    of: AnswerTokens<'_>,
    tokens: impl Iterator<Item = (u32, &'t TokenLogprobs)>,
    offset: &mut usize,
) -> Value {
    let mut lists = Lists::default();
    for (id, logprobs) in written(of, tokens) {
        lists.push(of, id, *offset, Some(logprobs));
        *offset += n_chars(of, id);
    }
    lists.json()
}

/// Returns those of a prompt and of the answer behind it. Of its first token the model thinks nothing; what control tokens are
/// called is no part of the text.
pub fn of_echo<'t>(
    of: AnswerTokens<'_>,
    first: Option<u32>,
    of_prompt: &[(u32, TokenLogprobs)],
    answer: impl Iterator<Item = (u32, &'t TokenLogprobs)>,
) -> Value {
    let tokenizer = of.tokenizer;
    let (mut lists, mut offset) = (Lists::default(), 0);
    let prompt = of_prompt.iter().map(|(id, of_token)| (*id, Some(of_token)));
    let answer = written(of, answer).map(|(id, of_token)| (id, Some(of_token)));
    for (id, of_token) in first.map(|id| (id, None)).into_iter().chain(prompt).chain(answer) {
        lists.push(of, id, offset, of_token);
        offset += if tokenizer.is_control(id) { 0 } else { n_chars(of, id) };
    }
    lists.json()
}

/// Returns the mean log-probability of an answer's tokens.
pub fn mean(summary: &GenerationSummary) -> f64 {
    let sum: f64 = summary.logprobs.iter().map(|logprobs| f64::from(logprobs.logprob)).sum();
    sum / summary.logprobs.len().max(1) as f64
}

/// Leaves out the token that ends an answer.
fn written<'t>(
    of: AnswerTokens<'_>,
    tokens: impl Iterator<Item = (u32, &'t TokenLogprobs)>,
) -> impl Iterator<Item = (u32, &'t TokenLogprobs)> {
    let tokenizer = of.tokenizer;
    let ends = !of.ignores_eos;
    tokens.filter(move |(id, _)| !(ends && tokenizer.is_end_of_generation(*id)))
}

fn bytes(of: AnswerTokens<'_>, id: u32) -> Vec<u8> {
    of.tokenizer.token_bytes(id).map_or_else(Vec::new, |bytes| bytes.into_owned())
}

/// Returns a token's text; of one that is part of a character its bytes, so that such tokens are told apart.
fn named(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("bytes:{}", bytes.escape_ascii()),
    }
}

/// JSON has no infinity: what cannot be is as unlikely as OpenAI says it.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_characters_are_told_apart() {
        assert_eq!(named("é".as_bytes()), "é");
        for (name, n) in [("é", 1), ("bytes:\\xe6", 1), ("bytes:\\x9ca", 2), ("bytes:\\xé", 3), ("bytes:", 0)] {
            assert_eq!(n_chars_of(name), n, "{name}");
        }
        assert_eq!((named(&[0xe6]), named(&[0x9c, b'a'])), ("bytes:\\xe6".to_owned(), "bytes:\\x9ca".to_owned()));
    }
}
