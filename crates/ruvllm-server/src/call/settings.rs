//! How an answer was asked for, in llama.cpp's names; and answers of which a request wants a part.

use ruvllm_engine::{Mirostat, SamplerKind, SamplingParams};
use ruvllm_witness::decimal;
use serde_json::{Map, Value, json};

use crate::call::generate::ParsedRequest;

/// Returns how tokens are chosen.
pub(crate) fn of_sampling(sampling: &SamplingParams) -> Value {
    let bias = |&(token, bias): &(u32, f32)| json!({ "token": token, "bias": decimal(bias) });
    json!({
        "seed": sampling.seed,
        "temperature": decimal(sampling.temperature),
        "dynatemp_range": decimal(sampling.dynatemp_range),
        "dynatemp_exponent": decimal(sampling.dynatemp_exponent),
        "top_k": sampling.top_k,
        "top_p": decimal(sampling.top_p),
        "min_p": decimal(sampling.min_p),
        "typical_p": decimal(sampling.typical_p),
        "top_n_sigma": decimal(sampling.top_n_sigma),
        "xtc_probability": decimal(sampling.xtc_probability),
        "xtc_threshold": decimal(sampling.xtc_threshold),
        "repeat_penalty": decimal(sampling.repeat_penalty),
        "repeat_last_n": sampling.repeat_last_n,
        "presence_penalty": decimal(sampling.presence_penalty),
        "frequency_penalty": decimal(sampling.frequency_penalty),
        "dry_multiplier": decimal(sampling.dry_multiplier),
        "dry_base": decimal(sampling.dry_base),
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": sampling.dry_penalty_last_n,
        "dry_sequence_breakers": sampling.dry_sequence_breakers,
        "mirostat": match sampling.mirostat {
            Mirostat::Off => 0,
            Mirostat::V1 => 1,
            Mirostat::V2 => 2,
        },
        "mirostat_tau": decimal(sampling.mirostat_tau),
        "mirostat_eta": decimal(sampling.mirostat_eta),
        "logit_bias": sampling.logit_bias.iter().map(bias).collect::<Vec<_>>(),
        "samplers": sampling.order.iter().map(|kind| SamplerKind::as_str(*kind)).collect::<Vec<_>>(),
    })
}

/// Returns how an answer was asked for.
pub(crate) fn of_request(asked: &ParsedRequest) -> Value {
    let request = &asked.request;
    let n_max = request.max_tokens.map_or(-1, |n| n as i64);
    let mut settings = of_sampling(&request.sampling);
    let own = json!({
        "n_predict": n_max,
        "max_tokens": n_max,
        "stop": request.stop,
        "ignore_eos": request.ignore_eos,
        "stream": asked.is_stream,
        "n_probs": request.logprobs.unwrap_or(0),
    });
    settings.as_object_mut().into_iter().for_each(|all| all.extend(own.as_object().cloned().unwrap_or_default()));
    settings
}

/// Returns the fields of an answer that a request names, `a/b` for one within another; all where it names none.
pub(crate) fn chosen(answer: Value, paths: &[String]) -> Value {
    if paths.is_empty() {
        return answer;
    }
    let found = |path: &String| Some((path.clone(), answer.pointer(&format!("/{path}"))?.clone()));
    Value::Object(paths.iter().filter_map(found).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_fields_that_are_named() {
        let answer = json!({ "a": 1, "b": { "c": 2, "d": [3] } });
        let of =
            |paths: &[&str]| chosen(answer.clone(), &paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&[]), answer);
        assert_eq!(of(&["b/c", "a", "x", "b/x"]), json!({ "b/c": 2, "a": 1 }));
    }
}
