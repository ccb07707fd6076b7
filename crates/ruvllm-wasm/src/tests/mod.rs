//! Tests of the engine of a page, run natively; `cargo xtask web --test` has those of the package, in Node and in Chromium.

mod goldens;
mod learning;
mod requests;

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use ruvllm_api::error::ApiError;
use ruvllm_testkit::Golden;
use serde_json::{Value, json};

use crate::WebEngine;

/// A chat template, which the golden models have none of.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";

/// Returns options of a small context.
fn options(learn: bool) -> String {
    json!({ "name": "tiny", "ctx": 256, "chatTemplate": TEMPLATE, "learn": learn }).to_string()
}

/// Loads a golden model by options.
fn load(name: &str, options: &str) -> WebEngine {
    let bytes = fs::read(Golden::load(name).model("f32")).expect("a golden file can be read");
    WebEngine::load(source(bytes), options, None, &mut |_| {}).expect("it loads")
}

fn source(bytes: Vec<u8>) -> Arc<Bytes> {
    Arc::new(bytes.into())
}

/// Steps until a call is over, and returns its chunks and its end.
fn finish(engine: &mut WebEngine, id: u32) -> (Vec<Value>, Value) {
    let mut chunks = Vec::new();
    loop {
        let is_busy = engine.step();
        let mut taken = engine.take(id).expect("it is not over");
        chunks.extend(taken["chunks"].as_array().cloned().unwrap_or_default());
        if taken.get("result").is_some() || taken.get("error").is_some() {
            taken.as_object_mut().into_iter().for_each(|taken| drop(taken.remove("chunks")));
            assert!(engine.take(id).is_none(), "a call that is over is forgotten");
            return (chunks, taken);
        }
        assert!(is_busy, "the engine has nothing to do and call {id} is not over");
    }
}

/// Returns the line of an error.
fn line<T: std::fmt::Debug>(result: Result<T, ApiError>) -> String {
    result.expect_err("it is refused").message
}
