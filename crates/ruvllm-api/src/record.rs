//! Records of the witness log and policies as JSON.

use ruvllm_sona::policy::Policy;
use ruvllm_sona::quality::Scores;
use ruvllm_sona::witness::{Content, Event, Recorded};
use serde_json::{Value, json};

fn content_json(content: &Content) -> Value {
    json!({ "digest": hex::encode(content.digest), "n_tokens": content.n_tokens, "tokens": content.tokens })
}

/// Returns the scores that are known, by name.
fn scores_json(scores: &Scores) -> Value {
    let known = scores.named().into_iter().filter_map(|(name, score)| Some((name.to_owned(), json!(score?))));
    Value::Object(known.collect())
}

/// Returns a record as clients and `ruvllm witness` see it.
pub fn record_json(recorded: &Recorded) -> Value {
    let Recorded { seq, unix_ms, event, quality } = recorded;
    let mut value = json!({ "seq": seq, "unix_ms": unix_ms });
    let rest = match event {
        Event::Served(served) => json!({
            "kind": "served",
            "request": format!("{:016x}", served.request),
            "model": hex::encode(served.model),
            "generation": served.adapter_generation,
            "template": hex::encode(served.template),
            "settings": serde_json::from_str(&served.settings).unwrap_or(Value::Null),
            "seed": served.seed.to_string(),
            "prompt": content_json(&served.prompt),
            "completion": content_json(&served.completion),
            "finish": served.finish,
            "cached_tokens": served.n_cached_tokens,
            "disk_tokens": served.n_disk_tokens,
            "routing": served.routing,
            "policy": served.policy,
            "queue_us": served.latency.queue_us,
            "prefill_us": served.latency.prefill_us,
            "decode_us": served.latency.decode_us,
            "quality": quality,
            "scores": scores_json(&served.scores),
            "error": served.error,
        }),
        Event::Feedback { request, quality } => {
            json!({ "kind": "feedback", "request": format!("{request:016x}"), "quality": quality })
        }
        Event::Learning { what } => json!({ "kind": "learning", "what": what }),
        Event::Pack { what } => json!({ "kind": "pack", "what": what }),
        Event::Lost { n } => json!({ "kind": "lost", "n": n }),
        Event::Erased { seqs } => json!({ "kind": "erased", "seqs": seqs }),
    };
    if let (Some(object), Value::Object(rest)) = (value.as_object_mut(), rest) {
        object.extend(rest);
    }
    value
}

/// Returns a policy as clients and `ruvllm policy` see it.
pub fn policy_json(policy: &Policy) -> Value {
    json!({
        "version": policy.version,
        "kind": policy.kind.as_str(),
        "context": policy.context,
        "tenant": policy.tenant,
        "value": policy.value,
        "source": policy.source.as_str(),
        "confidence": policy.confidence,
        "reason": policy.reason,
        "created_ms": policy.created_ms,
        "expires_ms": policy.expires_ms,
    })
}
