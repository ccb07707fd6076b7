//! Counts what becomes of JSON schemas: compiled or refused, which of their instances are allowed, what a mask costs; and
//! writes answers by them, for a validator to look at.
//!
//! ```text
//! cargo run --release -p ruvllm-engine --example structured -- model.gguf schemas.json… [--tokens N] > answers.jsonl
//! ```
//! Each valid instance is tried in three spellings (compact, indented, with escapes), and each drawn answer is looked at by
//! `jsonschema`, which has no part in what a grammar alone keeps.
//!
//! A file is a JSON array or JSON lines of `{"schema": …, "tests": [{"data": …, "valid": …}]}`, as the
//! JSON-Schema-Test-Suite and MaskBench have them. For each schema six answers are drawn among the allowed
//! tokens; with `--tokens N` the model writes one of up to N tokens instead. A line of output is `{"schema": …, "text": …}`.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};

use ruvllm_engine::tokenizer::Tokenizer;
use ruvllm_engine::{
    Constraint, Engine, FinishReason, GenerateRequest, Grammar, GrammarSource, LoadOptions, SamplingParams,
};
use ruvllm_testkit::{escaped_json, schema_validator};
use serde_json::{Value, json};

/// Draws for each schema where the model writes nothing, and tokens of each.
const DRAWS: u64 = 6;
const DRAWN_TOKENS: usize = 400;

/// Schemas that take longer are named.
const SLOW: Duration = Duration::from_secs(3);

#[derive(Default)]
struct Counts {
    n_schemas: usize,
    refused: BTreeMap<String, usize>,
    /// Instances of compiled schemas: valid and allowed, valid and not, invalid and not, invalid but allowed.
    instances: [usize; 4],
    /// Valid ones that are allowed with their keys in the schema's order.
    n_reordered: usize,
    /// Valid instances in other spellings: allowed, and not.
    spellings: [usize; 2],
    n_whole: usize,
    n_unfinished: usize,
    /// Walks and answers that were given up: nothing was found that fits.
    n_given_up: usize,
    /// Walks that ended with an error: a mask cost more than it may.
    n_too_costly: usize,
    /// Whole ones that the validator finds invalid, or cannot read.
    n_invalid: usize,
    n_bytes: usize,
    compile_ms: Vec<f64>,
    mask_us: Vec<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let n_tokens = match args.iter().position(|arg| arg == "--tokens") {
        Some(at) => args.drain(at..).nth(1).ok_or("--tokens needs a number")?.parse()?,
        None => 0,
    };
    let (model, files) = args.split_first().ok_or("usage: structured model.gguf schemas.json… [--tokens N]")?;
    let options = LoadOptions { n_ctx: Some(2048), ..LoadOptions::default() };
    let mut engine = Engine::load(model.as_ref(), &options, &mut |_| {})?;
    let mut counts = Counts::default();
    for file in files {
        let text = std::fs::read_to_string(file)?;
        let groups: Vec<Value> = match serde_json::from_str(&text) {
            Ok(groups) => groups,
            Err(_) => text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?,
        };
        for group in &groups {
            let start = Instant::now();
            look_at(&mut engine, group, n_tokens, &mut counts)?;
            if start.elapsed() > SLOW {
                eprintln!("slow: {:.1} s: {}", start.elapsed().as_secs_f64(), group["schema"]);
            }
        }
    }
    counts.print();
    Ok(())
}

fn look_at(engine: &mut Engine, group: &Value, n_tokens: usize, counts: &mut Counts) -> Result<(), Box<dyn Error>> {
    counts.n_schemas += 1;
    let start = Instant::now();
    let grammar = match engine.grammar_compiler()?.compile(&GrammarSource::JsonSchema(group["schema"].clone())) {
        Ok(grammar) => grammar,
        Err(error) => {
            *counts.refused.entry(error.to_string()).or_default() += 1;
            return Ok(());
        }
    };
    counts.compile_ms.push(start.elapsed().as_secs_f64() * 1e3);
    for test in group["tests"].as_array().into_iter().flatten() {
        let is_allowed = allows(&grammar, engine.tokenizer()?, &test["data"].to_string())?;
        let place = match (test["valid"] == true, is_allowed) {
            (true, true) => 0,
            (true, false) => 1,
            (false, false) => 2,
            (false, true) => {
                println!("{}", json!({ "schema": group["schema"], "text": test["data"].to_string() }));
                3
            }
        };
        counts.instances[place] += 1;
        if test["valid"] == true {
            let mut data = test["data"].clone();
            if !is_allowed {
                data = in_order(&group["schema"], &[&group["schema"]], data);
                let is_allowed = allows(&grammar, engine.tokenizer()?, &data.to_string())?;
                counts.n_reordered += usize::from(is_allowed);
                if !is_allowed {
                    eprintln!("not allowed: {data} of {}", group["schema"]);
                }
            }
            for text in [serde_json::to_string_pretty(&data)?, escaped_json(&data)] {
                counts.spellings[usize::from(!allows(&grammar, engine.tokenizer()?, &text)?)] += 1;
            }
        }
    }
    let mut answers: Vec<Option<String>> = Vec::new();
    for seed in 0..if n_tokens > 0 { 0 } else { DRAWS } {
        match draw(grammar.start(), engine.tokenizer()?, seed, counts) {
            Ok(answer) => answers.push(answer),
            Err(error) => {
                eprintln!("too costly: {error}: {}", group["schema"]);
                counts.n_too_costly += 1;
            }
        }
    }
    if n_tokens > 0 {
        let prompt = engine.encode_prompt("Write a JSON document.", false)?;
        let sampling = SamplingParams { seed: Some(1), ..SamplingParams::default() };
        let grammar = Some(grammar);
        let request = GenerateRequest { prompt, max_tokens: Some(n_tokens), sampling, grammar, ..Default::default() };
        match engine.generate(&request)?.for_each_token(|_| {}) {
            Ok(summary) => answers.push((summary.finish_reason == FinishReason::Stop).then_some(summary.text)),
            Err(error) => {
                eprintln!("given up: {error}");
                counts.n_given_up += 1;
            }
        }
    }
    let is_valid = schema_validator(&group["schema"]);
    for answer in answers {
        match answer {
            Some(text) => {
                counts.n_whole += 1;
                counts.n_bytes += text.len();
                let value = serde_json::from_str::<Value>(&text);
                if !value.is_ok_and(|value| is_valid.as_ref().is_none_or(|is_valid| is_valid(&value))) {
                    eprintln!("invalid: {} let {text} through", group["schema"]);
                    counts.n_invalid += 1;
                }
                println!("{}", json!({ "schema": group["schema"], "text": text }));
            }
            None => counts.n_unfinished += 1,
        }
    }
    Ok(())
}

/// Returns a value whose objects have their keys in the order in which `schemas` (parts of `root`) name them.
fn in_order(root: &Value, schemas: &[&Value], value: Value) -> Value {
    let parts = parts(root, schemas);
    let of = |word: &str, key: &str| parts.iter().filter_map(|part| part.get(word)?.get(key)).collect::<Vec<_>>();
    match value {
        Value::Object(mut map) => {
            let names = parts.iter().filter_map(|part| part.get("properties")?.as_object()).flat_map(|map| map.keys());
            let mut sorted: serde_json::Map<String, Value> =
                names.filter_map(|name| map.shift_remove_entry(name)).collect();
            sorted.append(&mut map);
            let more: Vec<&Value> = parts.iter().filter_map(|part| part.get("additionalProperties")).collect();
            let of_key =
                |key: &str| if of("properties", key).is_empty() { more.clone() } else { of("properties", key) };
            let one = |(key, value): (String, Value)| (key.clone(), in_order(root, &of_key(&key), value));
            Value::Object(sorted.into_iter().map(one).collect())
        }
        Value::Array(items) => {
            let of_items: Vec<&Value> = parts.iter().filter_map(|part| part.get("items")).collect();
            Value::Array(items.into_iter().map(|item| in_order(root, &of_items, item)).collect())
        }
        other => other,
    }
}

/// Returns schemas and those that hold at the same place.
fn parts<'a>(root: &'a Value, schemas: &[&'a Value]) -> Vec<&'a Value> {
    let (mut found, mut next): (Vec<&Value>, Vec<&Value>) = (Vec::new(), schemas.to_vec());
    while let Some(schema) = next.pop() {
        if found.iter().any(|known| std::ptr::eq(*known, schema)) {
            continue;
        }
        found.push(schema);
        next.extend(schema["$ref"].as_str().and_then(|to| root.pointer(to.strip_prefix('#')?)));
        next.extend(["allOf", "anyOf", "oneOf"].iter().filter_map(|word| schema[*word].as_array()).flatten().rev());
        next.extend(["if", "then", "else"].iter().filter_map(|word| schema.get(*word)));
    }
    found
}

fn allows(grammar: &Grammar, tokenizer: &Tokenizer, text: &str) -> Result<bool, Box<dyn Error>> {
    let ids = tokenizer.encode(text, Default::default())?;
    Ok(grammar.check(&ids) == (ids.len(), true))
}

/// Draws an answer among the allowed tokens, with a liking for those that close something; `None` if it has no end.
fn draw(
    mut constraint: Constraint,
    tokenizer: &Tokenizer,
    seed: u64,
    counts: &mut Counts,
) -> Result<Option<String>, Box<dyn Error>> {
    let (mut state, mut ids) = (seed * 2 + 1, Vec::new());
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let closing = |id: &usize| tokenizer.token_bytes(*id as u32).is_some_and(|b| b.iter().all(|b| b"\"}]".contains(b)));
    let mut logits = vec![0.0; tokenizer.vocab_len()];
    for _ in 0..2 * DRAWN_TOKENS {
        if ids.len() >= DRAWN_TOKENS || constraint.is_complete() {
            break;
        }
        let id = match constraint.forced() {
            Some(id) => id,
            None => {
                logits.fill(0.0);
                let start = Instant::now();
                constraint.compute_mask()?;
                let n_back = match constraint.rewind() {
                    Ok(n_back) => n_back,
                    Err(_) => {
                        counts.n_given_up += 1;
                        return Ok(None);
                    }
                };
                if n_back > 0 {
                    ids.truncate(ids.len() - n_back);
                    continue;
                }
                constraint.apply_mask(&mut logits);
                counts.mask_us.push(start.elapsed().as_secs_f64() * 1e6);
                let allowed: Vec<usize> = (0..logits.len()).filter(|&id| logits[id] == 0.0).collect();
                let liked: Vec<usize> = allowed.iter().copied().filter(closing).collect();
                let among = if !liked.is_empty() && below(4) == 0 { &liked } else { &allowed };
                match allowed.iter().find(|&&id| tokenizer.is_end_of_generation(id as u32)) {
                    Some(&end) if below(2) == 0 => end as u32,
                    _ => among[below(among.len())] as u32,
                }
            }
        };
        if constraint.try_accept(id)? {
            ids.push(id);
        }
    }
    Ok(constraint.is_complete().then(|| tokenizer.decode(&ids, Default::default())))
}

impl Counts {
    fn print(&mut self) {
        let n_refused: usize = self.refused.values().sum();
        eprintln!("{} schemas: {} compiled, {n_refused} refused", self.n_schemas, self.n_schemas - n_refused);
        let mut reasons: Vec<_> = self.refused.iter().collect();
        reasons.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        reasons.iter().take(25).for_each(|(reason, n)| eprintln!("  {n:4} {reason}"));
        let [allowed, missed, ruled_out, wrong] = self.instances;
        eprintln!(
            "instances: {allowed} valid and allowed, {missed} valid and not; {ruled_out} invalid and not, {wrong} invalid but allowed"
        );
        eprintln!("of those valid and not: {} are allowed with their keys in the schema's order", self.n_reordered);
        eprintln!("valid ones in other spellings: {} allowed, {} not", self.spellings[0], self.spellings[1]);
        eprintln!(
            "answers: {} whole ({} bytes), {} of them invalid; {} without an end, {} given up, {} too costly",
            self.n_whole, self.n_bytes, self.n_invalid, self.n_unfinished, self.n_given_up, self.n_too_costly
        );
        for (what, values) in [("compile ms", &mut self.compile_ms), ("mask us", &mut self.mask_us)] {
            values.sort_by(f64::total_cmp);
            let at = |share: f64| values.get(((values.len() as f64 - 1.0) * share) as usize).copied().unwrap_or(0.0);
            let [p50, p90, p99, most] = [0.5, 0.9, 0.99, 1.0].map(at);
            eprintln!("{what}: median {p50:.1}, p90 {p90:.1}, p99 {p99:.1}, most {most:.1} of {}", values.len());
        }
    }
}
