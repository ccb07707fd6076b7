//! Names of models as Ollama has them: with a tag, whatever their case, and perhaps with the registry in front.

use std::sync::Arc;

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::ValidBody;
use ruvllm_server_state::keys::Tenant;
use ruvllm_server_state::server::Server;

use crate::call::Call;
use crate::call::routing::is_routed;

/// The tag of a name without one.
const LATEST: &str = "latest";
/// What may stand in front of a name and says nothing.
const PREFIXES: [&str; 2] = ["registry.ollama.ai/", "library/"];

/// Returns a name with its tag.
pub(super) fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') { name.to_owned() } else { format!("{name}:{LATEST}") }
}

/// Returns whether two names mean the same model.
fn are_same(a: &str, b: &str) -> bool {
    let whole =
        |name: &str| tagged(PREFIXES.iter().fold(name, |name, prefix| name.strip_prefix(prefix).unwrap_or(name)));
    whole(a).eq_ignore_ascii_case(&whole(b))
}

/// Returns the served model, perhaps with an adapter, that a request means.
pub(super) fn find(server: &Server, tenant: &Tenant, asked: &str) -> Option<String> {
    let all = server.models.adapters();
    if server.models.is_served(asked) {
        return Some(asked.to_owned());
    }
    if let Some((name, _)) = all.iter().find(|(name, _)| are_same(name, asked)) {
        return Some(name.to_string());
    }
    let with_adapter = || {
        let (model, adapter) = asked.rsplit_once(':')?;
        let (name, adapters) = all.iter().find(|(name, _)| **name == *model)?;
        adapters.visible(tenant).iter().any(|info| info.name == adapter).then(|| format!("{name}:{adapter}"))
    };
    let any = || server.models.is_any_name().then(|| all[0].0.to_string());
    with_adapter().or_else(any)
}

/// Returns what an answer calls the model: what its request did.
pub(super) fn of_answer(call: &Call) -> &str {
    call.asked_name.as_deref().unwrap_or(&call.model_name)
}

/// Returns the error of a model that is not served.
pub(super) fn unknown(asked: &str) -> ApiError {
    let error = ApiError::new(StatusCode::NOT_FOUND, format!("model '{asked}' not found")).code("model_not_found");
    ApiError { param: Some("model".to_owned()), ..error }
}

/// Puts the name of the model in a request that the request means, and returns what it calls it.
///
/// # Errors
/// 404: it is not served.
pub(crate) fn resolve(server: &Server, tenant: &Tenant, given: &mut ValidBody) -> Result<Option<Arc<str>>, ApiError> {
    let Some(asked) = given.text("model").map(str::to_owned) else { return Ok(None) };
    if is_routed(server, Some(&asked)) {
        return Ok(None);
    }
    let found = find(server, tenant, &asked).ok_or_else(|| unknown(&asked))?;
    given.set("model", found.into());
    Ok(Some(asked.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_is_meant_where_there_is_no_tag() {
        assert_eq!(["a", "a:b", "x/a", "host:80/a"].map(tagged), ["a:latest", "a:b", "x/a:latest", "host:80/a:latest"]);
        for (a, b, expected) in [
            ("tiny", "tiny:latest", true),
            ("Tiny", "tiny", true),
            ("library/tiny:1b", "tiny:1b", true),
            ("registry.ollama.ai/library/tiny", "tiny", true),
            ("tiny:1b", "tiny", false),
            ("tiny", "tinier", false),
        ] {
            assert_eq!(are_same(a, b), expected, "{a} {b}");
        }
    }
}
