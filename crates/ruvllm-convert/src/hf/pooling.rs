//! Pooling of token vectors, as the modules of sentence-transformers say it.

use serde_json::Value as Json;

use super::folder::Folder;
use crate::error::ConvertError;

/// Modes of pooling, their flags and their numbers in files.
const MODES: [(&str, &str, u32); 3] = [
    ("mean", "pooling_mode_mean_tokens", 1),
    ("cls", "pooling_mode_cls_token", 2),
    ("lasttoken", "pooling_mode_lasttoken", 3),
];

/// Returns how the vectors of tokens become one, if the folder says so.
///
/// # Errors
/// It says it in a way that is not converted, or leaves the folder.
pub(super) fn find(folder: &Folder) -> Result<Option<u32>, ConvertError> {
    let modules = folder.json("modules.json")?;
    let is_pooling = |module: &&Json| module["type"].as_str().is_some_and(|kind| kind.ends_with("Pooling"));
    let module = modules.as_ref().and_then(Json::as_array).and_then(|all| all.iter().find(is_pooling));
    let place = match module {
        Some(module) => module["path"].as_str().unwrap_or_default(),
        None => "1_Pooling",
    };
    let name = format!("{place}/config.json");
    let path = folder.place(&name).map_err(|error| error.at(&folder.path().join("modules.json")))?;
    let Some(config) = folder.json(&name)? else { return Ok(None) };
    let flag = |(_, flag, _): &&(&str, &str, u32)| config[*flag] == true;
    let mode = |(mode, _, _): &&(&str, &str, u32)| config["pooling_mode"].as_str() == Some(mode);
    let found = MODES.iter().find(flag).or_else(|| MODES.iter().find(mode));
    found.map(|(_, _, number)| Some(*number)).ok_or_else(|| {
        ConvertError::unsupported("pooling by other than the mean, the first or the last token is not converted")
            .at(&path)
    })
}
