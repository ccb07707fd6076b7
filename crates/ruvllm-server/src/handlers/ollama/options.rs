//! `options`: how tokens are chosen, how many are written, and how Ollama would run the model.

use ruvllm_api::fields::{Field, Kind, ValidBody, joined, optional, unheeded};
use ruvllm_api::generation::STOP;
use ruvllm_api::sampling::SAMPLING;
use serde_json::{Value, json};

const AS_SERVED: &str = "the model runs as the server's options say";
const COUNT: Kind = Kind::Int(-(1 << 32), 1 << 32);

/// Beside the samplers of the other APIs.
const RUNNER: &[Field] = &[
    optional(
        "num_predict",
        Kind::Int(-2, 1 << 24),
        "the most tokens to write; 0, -1 and -2 are as many as there is room for",
    ),
    optional("stop", STOP, "texts that end the answer and are no part of it; up to 16"),
    unheeded("num_ctx", COUNT, "the context is that of the served model"),
    unheeded("num_keep", COUNT, "an answer ends where the context does"),
    unheeded("num_batch", COUNT, AS_SERVED),
    unheeded("num_gpu", COUNT, AS_SERVED),
    unheeded("main_gpu", COUNT, AS_SERVED),
    unheeded("num_thread", COUNT, AS_SERVED),
    unheeded("numa", Kind::Bool, AS_SERVED),
    unheeded("low_vram", Kind::Bool, AS_SERVED),
    unheeded("f16_kv", Kind::Bool, AS_SERVED),
    unheeded("use_mmap", Kind::Bool, AS_SERVED),
    unheeded("use_mlock", Kind::Bool, AS_SERVED),
    unheeded("vocab_only", Kind::Only("false", "there would be no answer"), AS_SERVED),
    unheeded("logits_all", Kind::Bool, "logprobs asks for what they are for"),
    unheeded("embedding_only", Kind::Bool, "every model embeds"),
    unheeded("penalize_newline", Kind::Only("true", "line feeds are penalised as others are"), "as others are"),
    unheeded("tfs_z", Kind::Only("1", "there is no such sampler; use min_p or typical_p"), "1 keeps all"),
];

const ALL: [Field; SAMPLING.len() + RUNNER.len()] = joined(SAMPLING, RUNNER);

/// The field.
pub(super) const FIELD: Field =
    optional("options", Kind::Object(&ALL), "how tokens are chosen and how many are written");

/// Puts the options where the fields of the other APIs are, in their words.
pub(super) fn lift(given: &mut ValidBody) {
    let Some(Value::Object(options)) = given.take(FIELD.name) else { return };
    for (name, value) in options.into_iter().filter(|(_, value)| !value.is_null()) {
        let number = value.as_f64();
        match name.as_str() {
            "num_predict" => given.set("max_tokens", if number > Some(0.0) { value } else { json!(-1) }),
            // No seed at all.
            "seed" if number == Some(-1.0) => {}
            _ => given.set(&name, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_fields() {
        let lifted = |options: Value| {
            let mut given = ValidBody::check(json!({ "options": options }), &[FIELD], &[]).expect("options");
            lift(&mut given);
            (given.int("max_tokens"), given.int("seed"), given.number("top_p"), given.unheeded)
        };
        assert_eq!(lifted(json!(null)), (None, None, None, vec![]));
        let given = json!({ "num_predict": 7, "seed": 3, "top_p": 0.5, "stop": null, "num_ctx": 99 });
        assert_eq!(lifted(given), (Some(7), Some(3), Some(0.5), vec!["options.num_ctx".to_owned()]));
        assert_eq!(lifted(json!({ "num_predict": 0, "seed": -1 })), (Some(-1), None, None, vec![]));
        assert_eq!(lifted(json!({ "num_predict": -2, "seed": -5 })), (Some(-1), Some(-5), None, vec![]));
    }
}
