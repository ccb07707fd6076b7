//! Bodies of requests: parsed and checked as the server does.

use http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Unsupported, ValidBody};
use ruvllm_api::strict_json::Strict;

/// The longest body.
const BODY_BYTES_MAX: usize = 32 << 20;

/// Fields that the server takes, and for which there is nothing here.
pub(crate) const NOT_HERE: &Unsupported = &[
    ("adapter", "a page's engine has no adapters"),
    ("adapters", "a page's engine has no adapters"),
    ("lora", "a page's engine has no adapters"),
    ("session", "a page's engine keeps no sessions; send the whole conversation"),
    ("pattern", "a page's engine has no bank of patterns"),
    ("patterns", "a page's engine has no bank of patterns"),
];

/// Reads a body and checks it against its tables.
///
/// # Errors
/// 400: no JSON, a field that the tables do not have, or one for which there is nothing here; 404: another model is asked for.
pub(crate) fn read(
    text: &str,
    tables: &[&[Field]],
    unsupported: &Unsupported,
    model: &str,
) -> Result<ValidBody, ApiError> {
    if text.len() > BODY_BYTES_MAX {
        let line = format!("the body is larger than {BODY_BYTES_MAX} bytes; send less");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, line));
    }
    let Strict(value) = serde_json::from_str(text).map_err(|error| {
        ApiError::new(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}")).code("invalid_json")
    })?;
    let fields: Vec<Field> = tables.concat();
    let unsupported: Vec<(&str, &str)> = [unsupported, NOT_HERE].concat();
    let given = ValidBody::check(value, &fields, &unsupported)?;
    match given.text("model").filter(|&name| name != model) {
        Some(name) => {
            let line = format!("the model '{name}' is not loaded here; '{model}' is");
            let error = ApiError::new(StatusCode::NOT_FOUND, line).code("model_not_found");
            Err(ApiError { param: Some("model".to_owned()), ..error })
        }
        None => Ok(given),
    }
}
