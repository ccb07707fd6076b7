//! Options of loading as data.

use pyo3::prelude::*;

/// An option: its name without dashes, the name of its value (none for a flag), values that it may have, whether it may be given
/// several times, and an explanation.
type OptionInfo = (String, Option<String>, Vec<String>, bool, String);

/// Returns the options of [`load()`](crate::load()), as the command line has them.
#[pyfunction]
pub fn options() -> Vec<OptionInfo> {
    let info =
        |option: ruvllm_cli::EmbeddedOption| (option.name, option.value, option.values, option.is_list, option.help);
    ruvllm_cli::embedded_options().into_iter().map(info).collect()
}

/// Returns the version of the module.
#[pyfunction]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
