//! What hostile grammars cost: seconds to compile or refuse each, for one model.
//!
//! ```sh
//! cargo run --release -p ruvllm-engine --example grammar_costs -- model.gguf
//! ```

use std::path::Path;
use std::time::Instant;

use ruvllm_engine::{Engine, GrammarSource, LoadOptions};
use serde_json::json;

/// Returns the process's resident mebibytes, where the system tells.
fn resident_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) / 256
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("name a model file")?;
    let engine = Engine::load(Path::new(&path), &LoadOptions::default(), &mut |_| {})?;
    let compiler = engine.grammar_compiler()?;
    let list =
        |n: usize, one: &dyn Fn(usize) -> String, between: &str| (0..n).map(one).collect::<Vec<_>>().join(between);
    let mut sources = Vec::new();
    for n in [100, 250, 500, 1000, 4000] {
        let alternatives = list(n, &|i| format!("a \"{i:x}\""), " | ");
        sources.push((
            format!("left recursion {n}"),
            GrammarSource::Gbnf(format!("root ::= a\na ::= {alternatives} | \"x\"")),
        ));
        let right = list(n, &|i| format!("\"{i:x}\" a"), " | ");
        sources
            .push((format!("right recursion {n}"), GrammarSource::Gbnf(format!("root ::= a\na ::= {right} | \"x\""))));
        let ambiguous = list(n, &|i| format!("\"{i:x}\""), " | ");
        sources.push((format!("ambiguous {n}"), GrammarSource::Gbnf(format!("root ::= a\na ::= a a | {ambiguous}"))));
        let pairs = list(n, &|_| "a a".to_owned(), " | ");
        sources.push((format!("all pairs {n}"), GrammarSource::Gbnf(format!("root ::= a\na ::= {pairs} | \"x\""))));
        sources.push((format!("optional chain {n}"), GrammarSource::Gbnf(format!("root ::= {}", "\"a\"? ".repeat(n)))));
        sources.push((
            format!("optional rules {n}"),
            GrammarSource::Gbnf(format!("root ::= {}\na ::= a \"b\" | \"a\"", "a? ".repeat(n))),
        ));
        sources.push((format!("regex repeats {n}"), GrammarSource::Regex(format!("(a?){{{n}}}(b?){{{n}}}a{{{n}}}"))));
        sources.push((format!("any of any {n}"), GrammarSource::Regex(format!("(.*a){{{}}}", n / 10))));
        sources
            .push((format!("literal {n} x 16"), GrammarSource::Gbnf(format!("root ::= \"{}\"", "a".repeat(16 * n)))));
        sources.push((
            format!("choice {n}"),
            GrammarSource::Choice((0..n).map(|i| format!("choice number {i}")).collect()),
        ));
        let any_of: Vec<_> = (0..n).map(|i| json!({"type": "object", "properties": {"k": {"const": i}}})).collect();
        sources.push((format!("any of {n}"), GrammarSource::JsonSchema(json!({"anyOf": any_of}))));
        sources.push((
            format!("any of twice {n}"),
            GrammarSource::JsonSchema(json!({"allOf": [{"anyOf": any_of}, {"anyOf": any_of}]})),
        ));
        sources.push((
            format!("long strings {n}"),
            GrammarSource::JsonSchema(json!({"type": "string", "minLength": n, "maxLength": 50 * n})),
        ));
        sources.push((
            format!("long lists {n}"),
            GrammarSource::JsonSchema(json!({"type": "array", "minItems": n, "maxItems": 10 * n})),
        ));
        let properties: serde_json::Map<String, serde_json::Value> =
            (0..n).map(|i| (format!("k{i}"), json!({"type": "string"}))).collect();
        sources.push((
            format!("optional properties {n}"),
            GrammarSource::JsonSchema(json!({"type": "object", "properties": properties})),
        ));
    }
    for (name, source) in sources {
        let (start, before) = (Instant::now(), resident_mib());
        let result = compiler.compile(&source);
        let (seconds, grown) = (start.elapsed().as_secs_f64(), resident_mib().saturating_sub(before));
        let what = result.map_or_else(|error| error.to_string().chars().take(70).collect(), |_| "compiled".to_owned());
        println!("{name:<26} {seconds:>7.2} s {grown:>5} MiB  {what}");
    }
    Ok(())
}
