//! Options of loading as data, from which `js/options.d.ts` is generated.

use napi_derive::napi;

/// An option of [`load()`](crate::load()), as the command line has it.
#[napi(object)]
pub struct OptionInfo {
    /// Name without its dashes.
    pub name: String,
    /// Name of the value; none for a flag.
    pub value: Option<String>,
    /// Values that it may have, where there are few.
    pub values: Vec<String>,
    /// Whether it may be given several times.
    pub is_list: bool,
    /// Explanation in a line.
    pub help: String,
}

/// Returns the options of [`load()`](crate::load()).
#[napi]
pub fn options() -> Vec<OptionInfo> {
    let info = |option: ruvllm_cli::EmbeddedOption| OptionInfo {
        name: option.name,
        value: option.value,
        values: option.values,
        is_list: option.is_list,
        help: option.help,
    };
    ruvllm_cli::embedded_options().into_iter().map(info).collect()
}

/// Returns the version of the addon.
#[napi]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
