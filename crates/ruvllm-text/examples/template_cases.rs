//! Compares templates with what Jinja2 makes of them: reads lines of `testdata/templates/generate.py` from standard input,
//! prints those that differ and how many are equal, refused, or different.

use std::io::BufRead;
use std::time::{Duration, UNIX_EPOCH};

use ruvllm_text::template::{ChatInput, ChatTemplate};
use serde_json::{Map, Value};

const CONTEXT: &str = include_str!("../testdata/templates/context.json");
/// 2025-01-15T12:34:56, the time of the renderings.
const NOW_S: u64 = 1_736_944_496;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut extra: Map<String, Value> = serde_json::from_str(CONTEXT)?;
    let messages = extra.remove("messages").and_then(|messages| messages.as_array().cloned()).unwrap_or_default();
    let now = Some(UNIX_EPOCH + Duration::from_secs(NOW_S));
    let input = ChatInput { messages, extra, now, ..ChatInput::default() };
    let [mut n_equal, mut n_refused, mut n_both_refuse, mut n_different] = [0; 4];
    for line in std::io::stdin().lock().lines() {
        let case: Value = serde_json::from_str(&line?)?;
        let source = case["template"].as_str().unwrap_or_default();
        let got = ChatTemplate::new(source, "<s>", "</s>").and_then(|template| template.render(&input));
        match (&got, case["expected"].as_str()) {
            (Ok(text), Some(expected)) if text == expected => n_equal += 1,
            (Err(_), None) => n_both_refuse += 1,
            (Err(error), Some(_)) => {
                n_refused += 1;
                println!("refused: {source}\n  {error}");
            }
            (Ok(text), expected) => {
                n_different += 1;
                println!("different: {source}\n  {text:?}\n  {expected:?}");
            }
        }
    }
    println!("{n_equal} equal, {n_refused} refused here alone, {n_both_refuse} by both, {n_different} different");
    Ok(())
}
