//! What a request says to have adapters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use ruvllm_api::adapters::{ADAPTER, ADAPTERS, LORA, Strength};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::Field;
use ruvllm_api::remote::missing;
use ruvllm_engine::{AdapterSet, BoundAdapter};
use ruvllm_lora::{LoraError, LoraErrorKind};
use ruvllm_server_state::gate::offload;
use serde_json::Value;

use crate::call::Call;

/// How long a request waits for room beside adapters that others use.
const ROOM_WAIT: Duration = Duration::from_secs(30);
/// How often it looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Returns the adapters that a request names, ready for use: it waits until they are loaded, and for room.
///
/// # Errors
/// 400 for more than one way of naming them, 404 for a name that is not known; they cannot be used; 503 if those that
/// others use left no room; 504 if the request's time was over.
pub(crate) async fn of_request(call: &Call) -> Result<AdapterSet, ApiError> {
    let members = members(call)?;
    if members.is_empty() {
        return Ok(AdapterSet::default());
    }
    if call.model.remote().is_some() {
        return Err(missing(&call.model.name, "adapters"));
    }
    let manager = call.model.adapters.manager()?;
    let (tenant, give_up) = (call.tenant.id, Instant::now() + ROOM_WAIT);
    loop {
        let (manager, wanted) = (Arc::clone(&manager), members.clone());
        // None are held while others are waited for.
        let get = move || {
            let all = wanted.iter().map(|one| Ok((manager.get(&one.name, tenant)?, one.scale)));
            Ok(all.collect::<Result<Vec<(Arc<BoundAdapter>, f32)>, LoraError>>())
        };
        let error = match within(call.deadline, offload(get)).await?? {
            Ok(all) => return AdapterSet::new(all).map_err(|error| call.model.adapters.refused(&error, "adapters")),
            Err(error) => error,
        };
        if error.kind() != LoraErrorKind::Budget || Instant::now() >= give_up {
            return Err(failed(call, &members, &error));
        }
        within(call.deadline, tokio::time::sleep(LOOK_INTERVAL)).await?;
    }
}

/// Waits no longer than a request's time.
async fn within<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Result<T, ApiError> {
    let Some(deadline) = deadline else { return Ok(future.await) };
    tokio::time::timeout_at(deadline.into(), future).await.map_err(|_| {
        let line = "the request's time was over before its adapters were loaded; allow more of it";
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, line).code("timeout")
    })
}

/// Reads the adapters that a request names, or those that its tenant has set for requests that name none.
fn members(call: &Call) -> Result<Vec<Strength>, ApiError> {
    let given = &call.body;
    let of_model = call.model_name.strip_prefix(&*call.model.name).and_then(|rest| rest.strip_prefix(':'));
    let has = |field: &Field| given.get(field.name).is_some();
    let is_numbered = given.list(LORA.name).is_some_and(|all| !all.is_empty());
    let ways = [of_model.is_some(), has(&ADAPTER), has(&ADAPTERS), is_numbered];
    if ways.iter().filter(|is_used| **is_used).count() > 1 {
        let line = "adapters are named by 'model', 'adapter', 'adapters' and 'lora'; use one of them";
        return Err(ApiError::bad(ADAPTERS.name, line));
    }
    if let Some(name) = of_model.or_else(|| given.text(ADAPTER.name)) {
        return Ok(vec![Strength { name: name.to_owned(), scale: 1.0 }]);
    }
    if has(&ADAPTERS) {
        let member = |member: &Value| Strength::of(member["name"].as_str().unwrap_or_default(), member);
        return Ok(given.list(ADAPTERS.name).into_iter().flatten().map(member).collect());
    }
    match has(&LORA) {
        true => numbered(call),
        false => Ok(call.model.adapters.defaults(&call.tenant)),
    }
}

/// Reads the adapters that a request names by their ids.
///
/// # Errors
/// 404: there is no such id.
pub(crate) fn numbered(call: &Call) -> Result<Vec<Strength>, ApiError> {
    let known = call.model.adapters.visible(&call.tenant);
    let named = |member: &Value| {
        let id = member["id"].as_f64().map_or(usize::MAX, |id| id as usize);
        let info = known.get(id).ok_or_else(|| {
            let line = format!("there is no adapter {id}; /lora-adapters lists the {} that there are", known.len());
            let error = ApiError::new(StatusCode::NOT_FOUND, line).code("adapter_not_found");
            ApiError { param: Some(LORA.name.to_owned()), ..error }
        })?;
        Ok(Strength::of(&info.name, member))
    };
    call.body.list(LORA.name).into_iter().flatten().map(named).collect()
}

/// Says why an adapter cannot be used.
fn failed(call: &Call, members: &[Strength], error: &LoraError) -> ApiError {
    let adapters = &call.model.adapters;
    match error.kind() {
        LoraErrorKind::Name => {
            let known = |name: &str| adapters.check(name, &call.tenant).err();
            let missing = members.iter().find_map(|member| known(&member.name));
            missing.unwrap_or_else(|| adapters.refused(error, ADAPTER.name))
        }
        LoraErrorKind::Budget => adapters.refused(error, ADAPTER.name),
        // What was made known without being read turns out to be damaged, or to be for another model.
        _ => {
            let error = adapters.refused(error, ADAPTER.name);
            ApiError { status: StatusCode::INTERNAL_SERVER_ERROR, ..error.code("adapter_unusable") }
        }
    }
}
