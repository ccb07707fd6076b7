//! Names of a request's span by OpenTelemetry's semantic conventions for generative AI.

/// Value of `gen_ai.provider.name`.
#[cfg(feature = "otlp")]
pub const PROVIDER: &str = "ruvllm";

/// Attribute names of a span's fields. Fields that the conventions have no name for are under `ruvllm.`.
const ATTRIBUTES: [(&str, &str); 10] = [
    ("id", "gen_ai.response.id"),
    ("path", "http.route"),
    ("model", "gen_ai.request.model"),
    ("prompt_tokens", "gen_ai.usage.input_tokens"),
    ("answer_tokens", "gen_ai.usage.output_tokens"),
    ("finish", "gen_ai.response.finish_reasons"),
    ("tenant", "ruvllm.tenant"),
    ("cached_tokens", "ruvllm.cached_tokens"),
    ("queue_ms", "ruvllm.queue_ms"),
    ("ttft_ms", "ruvllm.ttft_ms"),
];

/// Paths of the operations that the conventions name.
const OPERATIONS: [(&str, &[&str]); 3] = [
    ("chat", &["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"]),
    ("text_completion", &["/v1/completions", "/api/generate", "/completion", "/infill"]),
    ("embeddings", &["/v1/embeddings", "/api/embed", "/api/embeddings", "/embedding"]),
];

/// Returns the attribute name of a field; `None` for one that is no field of a request.
pub fn attribute(field: &str) -> Option<&'static str> {
    ATTRIBUTES.iter().find(|(own, _)| *own == field).map(|(_, name)| *name)
}

/// Returns the operation of an endpoint, if the conventions have one for it.
pub fn operation(path: &str) -> Option<&'static str> {
    OPERATIONS.iter().find(|(_, paths)| paths.contains(&path)).map(|(name, _)| *name)
}

/// Returns the name of a span.
pub fn span_name(path: &str, model: Option<&str>) -> String {
    match (operation(path), model) {
        (Some(operation), Some(model)) => format!("{operation} {model}"),
        (Some(operation), None) => operation.to_owned(),
        (None, _) => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_the_names_of_the_conventions() {
        assert_eq!(span_name("/v1/chat/completions", Some("tiny")), "chat tiny");
        assert_eq!(span_name("/v1/embeddings", None), "embeddings");
        assert_eq!(span_name("/v1/models", Some("tiny")), "/v1/models");
        assert_eq!(attribute("prompt_tokens"), Some("gen_ai.usage.input_tokens"));
        assert_eq!(attribute("thread.id"), None);
        assert!(
            ATTRIBUTES
                .iter()
                .all(|(_, name)| ["gen_ai.", "ruvllm.", "http."].iter().any(|space| name.starts_with(space)))
        );
    }
}
