//! Choosing a model by the query: the name that asks for it, the query, and a decision as JSON.

use ruvllm_learning::{Decision, ModelRouter};
use ruvllm_router::roles::Role;
use serde_json::{Value, json};

use crate::fields::ValidBody;

/// The name by which a request leaves the choice of its model to the router.
pub const AUTO: &str = "auto";

/// Returns a decision as clients and `ruvllm route` see it.
pub fn decision_json(router: &ModelRouter, decision: &Decision) -> Value {
    let Decision { model, choice, prediction, role, route } = decision;
    let expected = router.models.iter().zip(&prediction.qualities);
    let qualities: serde_json::Map<String, Value> =
        expected.map(|(model, quality)| (model.name.clone(), json!(quality))).collect();
    let role = role.as_ref().map(|verdict| {
        let ranked = verdict.ranked.iter().take(3).map(|(role, share)| json!({ "role": role.name(), "share": share }));
        json!({ "role": verdict.role.map(Role::name), "likeliest": ranked.collect::<Vec<_>>() })
    });
    let route = route.as_ref().map(|found| json!({ "name": found.name, "similarity": found.similarity }));
    json!({
        "model": model,
        "reason": choice.reason,
        "quality": choice.quality,
        "cost": choice.cost,
        "saved": choice.saved,
        "qualities": qualities,
        "confidence": prediction.confidence,
        "role": role,
        "route": route,
    })
}

/// Returns the text that a request is about: the last of the user, or the prompt.
pub fn query_of(given: &ValidBody) -> Option<String> {
    let of_content = |content: &Value| match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        }
        _ => None,
    };
    let of_messages = |messages: &Vec<Value>| {
        let mut of_user = messages.iter().rev().filter(|message| message["role"] == "user");
        of_user.find_map(|message| of_content(&message["content"]))
    };
    let listed = |name: &str| given.list(name).and_then(of_messages);
    let text = |name: &str| match given.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Array(texts) => texts.first()?.as_str().map(str::to_owned),
        _ => None,
    };
    listed("messages").or_else(|| listed("input")).or_else(|| text("input")).or_else(|| text("prompt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_is_what_the_user_said_last() {
        let query = |body: Value| query_of(&ValidBody::from(body.as_object().cloned().unwrap_or_default()));
        let user = |text: &str| json!({ "role": "user", "content": text });
        let assistant = json!({ "role": "assistant", "content": "hm" });
        assert_eq!(query(json!({ "messages": [user("a"), assistant, user("b")] })).as_deref(), Some("b"));
        let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
        assert_eq!(query(json!({ "messages": [{ "role": "user", "content": parts }] })).as_deref(), Some("a\nb"));
        assert_eq!(query(json!({ "prompt": "a" })).as_deref(), Some("a"));
        assert_eq!(query(json!({ "prompt": ["a", "b"] })).as_deref(), Some("a"));
        assert_eq!(query(json!({ "input": "a" })).as_deref(), Some("a"));
        assert_eq!(query(json!({ "input": [user("a")] })).as_deref(), Some("a"));
        assert_eq!(query(json!({ "prompt": [1, 2] })), None);
        assert_eq!(query(json!({ "messages": [assistant] })), None);
    }
}
