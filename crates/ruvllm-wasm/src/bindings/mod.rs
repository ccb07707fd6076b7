//! What JavaScript calls. Bodies and answers are texts of JSON; an error is thrown as one, for the classes in `js/`.

#![expect(unreachable_pub, reason = "JavaScript is their outside")]

#[cfg(feature = "engine")]
mod engine;
mod intelligence;

use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn log_error(line: &str);
}

/// Has the console say why the module breaks, if it does: the host itself says only that it did.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|info| log_error(&info.to_string())));
}

/// Returns the version of the module.
#[wasm_bindgen]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Computes for engines, as a worker of the host's over the same memory. It never returns.
#[cfg(target_feature = "atomics")]
#[wasm_bindgen]
pub fn work() {
    ruvllm_cpu::host::work();
}

/// Returns how many threads an engine can have.
#[cfg(feature = "engine")]
#[wasm_bindgen(js_name = threadsMax)]
pub fn threads_max() -> usize {
    crate::threads_max()
}
