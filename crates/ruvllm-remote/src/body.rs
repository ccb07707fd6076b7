//! The body of a request for an answer.

use ruvllm_backend::CompletionRequest;
use serde_json::{Map, Value, json};

/// Returns the body: what the request leaves open is left out, and its extra fields come last.
pub(crate) fn of(request: &CompletionRequest, model: &str) -> Value {
    let CompletionRequest { messages, max_tokens, temperature, top_p, seed, stop, .. } = request;
    let CompletionRequest { tools, tool_choice, response_format, top_logprobs, extra, .. } = request;
    let mut body = Map::new();
    let mut put = |name: &str, value: Option<Value>| drop(value.map(|value| body.insert(name.to_owned(), value)));
    put("model", Some(json!(model)));
    match &request.prompt {
        Some(prompt) => put("prompt", Some(json!(prompt))),
        None => put("messages", Some(json!(messages))),
    }
    put("stream", Some(json!(true)));
    put("stream_options", Some(json!({ "include_usage": true })));
    put("max_tokens", max_tokens.map(|n| json!(n)));
    put("temperature", temperature.map(|x| json!(x)));
    put("top_p", top_p.map(|x| json!(x)));
    put("seed", seed.map(|seed| json!(seed)));
    put("stop", (!stop.is_empty()).then(|| json!(stop)));
    put("tools", (!tools.is_empty()).then(|| json!(tools)));
    put("tool_choice", tool_choice.clone());
    put("response_format", response_format.clone());
    match request.prompt {
        Some(_) => put("logprobs", top_logprobs.map(|n| json!(n))),
        None => {
            put("logprobs", top_logprobs.map(|_| json!(true)));
            put("top_logprobs", top_logprobs.map(|n| json!(n)));
        }
    }
    extra.iter().for_each(|(name, value)| put(name, Some(value.clone())));
    Value::Object(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_open_is_left_out() {
        let request =
            CompletionRequest { messages: vec![json!({ "role": "user", "content": "a" })], ..Default::default() };
        let expected = json!({
            "model": "m", "messages": [{ "role": "user", "content": "a" }], "stream": true,
            "stream_options": { "include_usage": true },
        });
        assert_eq!(of(&request, "m"), expected);
        let extra = json!({ "top_k": 5, "seed": 9 }).as_object().cloned().expect("an object");
        let request = CompletionRequest { seed: Some(3), top_logprobs: Some(2), extra, ..request };
        let body = of(&request, "m");
        assert_eq!((&body["seed"], &body["top_k"]), (&json!(9), &json!(5)), "what is said last counts");
        assert_eq!((&body["logprobs"], &body["top_logprobs"]), (&json!(true), &json!(2)));
        let body = of(&CompletionRequest { prompt: Some("a".to_owned()), ..request }, "m");
        assert_eq!((&body["prompt"], &body["logprobs"]), (&json!("a"), &json!(2)));
        assert!(body.get("messages").is_none() && body.get("top_logprobs").is_none());
    }
}
