//! `cargo xtask soak --hostile`: one tenant attacks, another one is served.
//!
//! The server has 64 descriptors and 4 GB of addresses. Sixteen clients of one key send what is dearest to answer, kind by
//! kind: grammars, schemas, expressions, bodies, floods, answers that nobody reads, broken connections. A client of another
//! key asks for four tokens all the while. It fails if the server ends, takes more than 2 GB, keeps the other client waiting
//! for more than five times as long as alone, or holds memory, threads or descriptors when the attack is over; or if the
//! witness log has fewer answers than were given, or is not sound.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::Tally;
use super::client::{Manner, Sent, ask, send};
use super::server::{KEY, Limits, OTHER_KEY, Server};

/// Clients that attack.
const N_ATTACKERS: usize = 16;
/// What the process may hold.
const RESIDENT_BYTES_MAX: u64 = 2_000_000_000;
/// The server's limits: descriptors, and kibibytes of addresses.
const LIMITS: Limits = Limits { n_files: 64, n_kib: 3_906_250 };
/// How many times as long as alone the other client may wait, and the wait that is always fine.
const SLOWER_MAX: u32 = 5;
const WAIT_MIN: Duration = Duration::from_millis(500);
/// Requests of the other client before the attack, and after it.
const N_ALONE: usize = 60;
/// How much more memory than before may be held after, in hundredths.
const MORE_PERCENT_MAX: u64 = 10;
/// How long what was begun may take to end when the attackers have gone.
const SETTLE: Duration = Duration::from_secs(30);
/// Bytes of a body, at most.
const BODY_BYTES_MAX: usize = 8 << 20;

/// A way to attack.
struct Form {
    path: &'static str,
    body: String,
    manner: Manner,
}

/// Attacks of one kind.
struct Kind {
    name: &'static str,
    forms: Vec<Form>,
}

/// Runs it.
///
/// # Errors
/// What was found.
pub(super) fn run(ruvllm: &std::path::Path, model: &str, time: Duration, only: Option<&str>) -> Result<()> {
    let mut kinds = kinds();
    if let Some(only) = only {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
        let line = format!("no attack is called '{only}'; they are {}", names.join(", "));
        kinds.retain(|kind| kind.name == only);
        ensure!(!kinds.is_empty(), line);
    }
    let server = Server::start_limited(ruvllm, model, &LIMITS, BODY_BYTES_MAX)?;
    let mut n_answers = N_ALONE;
    // A first round fills what is kept on purpose, within its bounds: compiled grammars, prefixes, pages of the model.
    for kind in &kinds {
        n_answers += attack(&server, kind, time / (2 * kinds.len() as u32), &Tally::default())?.waits.len();
    }
    settle(&server, &server.held()?, SETTLE)?;
    let alone = percentile(quiet(&server)?, 99);
    let before = server.held()?;
    let wait_max = (SLOWER_MAX * alone).max(WAIT_MIN);
    println!("alone: p99 {alone:.1?}; at most {wait_max:.1?}; before: {before}");
    let mut faults = Vec::new();
    for kind in &kinds {
        let tally = Tally::default();
        let found = attack(&server, kind, time / kinds.len() as u32, &tally)?;
        n_answers += found.waits.len();
        let (n, middle, slowest) =
            (found.waits.len(), percentile(found.waits.clone(), 50), percentile(found.waits, 99));
        let (counts, _) = tally.read();
        let told: Vec<String> = counts.iter().map(|(what, n)| format!("{n} x {what}")).collect();
        println!(
            "{:<12} {n:>4} answers, p50 {middle:>8.1?}, p99 {slowest:>8.1?}, at most {:>5} MB; attackers: {}",
            kind.name,
            found.resident_bytes_max / 1_000_000,
            told.join(", ")
        );
        if slowest > wait_max {
            faults.push(format!("{}: the other client waits {slowest:.1?}", kind.name));
        }
        if found.resident_bytes_max > RESIDENT_BYTES_MAX {
            faults.push(format!("{}: {} bytes resident", kind.name, found.resident_bytes_max));
        }
        faults.extend(found.faults);
    }
    settle(&server, &before, SETTLE)?;
    n_answers += quiet(&server)?.len();
    let after = server.held()?;
    println!("after: {after}");
    if after.resident_bytes > before.resident_bytes + before.resident_bytes * MORE_PERCENT_MAX / 100 {
        faults.push(format!("{} MB are held after it", after.resident_bytes / 1_000_000));
    }
    if after.n_threads > before.n_threads || after.n_files > before.n_files {
        faults.push(format!("threads or descriptors are left: {before} before, {after} after"));
    }
    let record = server.stop_and_verify(ruvllm)?;
    println!("witness: {record}");
    if record["sound"] != true || record["lost"] != 0 || record["records"].as_u64() < Some(n_answers as u64) {
        faults.push(format!("{n_answers} answers were given, on record: {record}"));
    }
    faults.iter().take(20).for_each(|fault| println!("FAULT: {fault}"));
    match faults.len() {
        0 => Ok(()),
        n => bail!("{n} faults"),
    }
}

/// Asks while nobody attacks, and returns how long each answer took. Threads give memory back when they work again: it is
/// compared after as many quiet requests, before and after.
fn quiet(server: &Server) -> Result<Vec<Duration>> {
    (0..N_ALONE).map(|_| four_tokens(server)).collect()
}

/// What came of an attack.
#[derive(Default)]
struct Found {
    /// How long the other client waited, each time.
    waits: Vec<Duration>,
    resident_bytes_max: u64,
    faults: Vec<String>,
}

/// Attacks for a time, each form in turn, while the other client asks.
fn attack(server: &Server, kind: &Kind, time: Duration, tally: &Tally) -> Result<Found> {
    let (is_over, faults) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let mut found = Found::default();
    let result = std::thread::scope(|scope| -> Result<()> {
        for i in 0..N_ATTACKERS {
            let (is_over, faults) = (&is_over, &faults);
            scope.spawn(move || {
                for form in kind.forms.iter().cycle().skip(i) {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let sent = send(&server.address, KEY, form.path, &form.body, form.manner);
                    if let Some(fault) = note(kind, form, sent, tally) {
                        faults.lock().unwrap_or_else(PoisonError::into_inner).push(fault);
                    }
                }
            });
        }
        let mut watch = || -> Result<()> {
            let start = Instant::now();
            while start.elapsed() < time {
                found.waits.push(four_tokens(server)?);
                found.resident_bytes_max = found.resident_bytes_max.max(server.held()?.resident_bytes);
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        };
        let result = watch();
        is_over.store(true, Ordering::Relaxed);
        result
    });
    result?;
    found.faults = faults.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(found)
}

/// Counts what came of an attacker's request, and returns what must not be.
fn note(kind: &Kind, form: &Form, sent: Sent, tally: &Tally) -> Option<String> {
    let Sent::Answer(status, body) = sent else {
        // A connection may be refused, or closed: there are few places, and some attacks are no requests.
        tally.add("no answer".to_owned());
        return None;
    };
    tally.add(status.to_string());
    let is_fault = status >= 500 && !matches!(status, 503 | 504);
    is_fault.then(|| format!("{}: {status} on {}: {:.200}", kind.name, form.path, body))
}

/// Asks for four tokens by the other key, and returns how long it took. A connection that found no place is tried again: that
/// is part of the wait.
fn four_tokens(server: &Server) -> Result<Duration> {
    let start = Instant::now();
    let body = json!({ "prompt": "Three rivers:", "max_tokens": 4, "ignore_eos": true }).to_string();
    let mut last = String::new();
    while start.elapsed() < Duration::from_secs(60) {
        match ask(&server.address, OTHER_KEY, "/v1/completions", &body) {
            Ok((200, _)) => return Ok(start.elapsed()),
            Ok((status, body)) => last = format!("{status}: {body}"),
            Err(error) => last = format!("{error:#}"),
        }
        server.held()?;
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("the other client gets no answer: {last}")
}

/// Waits until no more is held than before, or the time is over.
fn settle(server: &Server, before: &super::server::Held, time: Duration) -> Result<()> {
    let start = Instant::now();
    loop {
        let held = server.held()?;
        let is_more = held.n_threads > before.n_threads || held.n_files > before.n_files;
        if start.elapsed() > time || (!is_more && start.elapsed() > time / 3) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Returns what so many of a hundred do not exceed.
fn percentile(mut waits: Vec<Duration>, percent: usize) -> Duration {
    waits.sort_unstable();
    waits.get((waits.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}

/// Returns every kind of attack, in at least ten forms.
fn kinds() -> Vec<Kind> {
    let of =
        |name, bodies: Vec<Value>, manner| Kind { name, forms: bodies.into_iter().map(|b| form(b, manner)).collect() };
    let (answer, unread) = (Manner::Whole, Manner::Nothing(3000));
    let mut leaving = of("leaving", grammars(), Manner::Nothing(30));
    leaving.forms.extend(schemas().into_iter().map(|body| form(body, Manner::Nothing(100))));
    vec![
        of("grammars", grammars(), answer),
        of("schemas", schemas(), answer),
        of("expressions", expressions(), answer),
        leaving,
        Kind { name: "bodies", forms: bodies() },
        Kind { name: "floods", forms: floods() },
        of("unread", unread_answers(), unread),
        Kind { name: "connections", forms: connections() },
    ]
}

fn form(body: Value, manner: Manner) -> Form {
    Form { path: "/v1/completions", body: body.to_string(), manner }
}

fn structured(what: &str, value: Value) -> Value {
    json!({ "prompt": "a", "max_tokens": 4, "structured_outputs": { what: value } })
}

fn list(n: usize, one: impl Fn(usize) -> String, between: &str) -> String {
    (0..n).map(one).collect::<Vec<_>>().join(between)
}

fn grammars() -> Vec<Value> {
    let rules = [
        format!("root ::= \"{}\"", "x".repeat(500_000)),
        format!("root ::= {}", list(20, |i| format!("\"{}{i}\"", "y".repeat(3000)), " | ")),
        format!("root ::= a\na ::= {} | \"x\"", list(4000, |i| format!("a \"{i:x}\""), " | ")),
        format!("root ::= a\na ::= {} | \"x\"", list(400, |i| format!("a \"{i:x}\""), " | ")),
        format!("root ::= a\na ::= a a | {}", list(500, |i| format!("\"{i:x}\""), " | ")),
        format!("root ::= a\na ::= {} | \"x\"", list(400, |_| "a a".to_owned(), " | ")),
        format!("root ::= {}", "\"a\"? ".repeat(20_000)),
        format!("root ::= {}", "\"a\"? ".repeat(400)),
        format!("root ::= {}\"a\"{}", "(".repeat(100), "){1,9}".repeat(100)),
        format!("root ::= {}\"a\"{}", "(".repeat(5000), ")*".repeat(5000)),
        "root ::= [^\\x00]{1,1000000}".to_owned(),
        "root ::= root root root | \"\"".to_owned(),
        format!(
            "root ::= r0\n{}",
            list(500, |i| format!("r{i} ::= r{} r{} | \"a\"", (i + 1) % 500, (i + 7) % 500), "\n")
        ),
    ];
    rules.into_iter().map(|text| structured("grammar", json!(text))).collect()
}

fn schemas() -> Vec<Value> {
    let mut deep = json!({ "type": "string" });
    for _ in 0..2000 {
        deep = json!({ "type": "array", "items": deep });
    }
    let mut doubled = json!({ "type": "string" });
    for i in 0..14 {
        doubled = json!({ "anyOf": [doubled, { "type": "object", "properties": { format!("k{i}"): doubled } }] });
    }
    let wide: serde_json::Map<String, Value> =
        (0..3000).map(|i| (format!("key{i}"), json!({ "type": "string" }))).collect();
    let all = |schemas: Value| json!({ "allOf": schemas });
    let schemas = [
        deep,
        doubled,
        json!({ "type": "object", "properties": wide, "additionalProperties": false }),
        json!({ "type": "string", "maxLength": 1_000_000_000 }),
        json!({ "type": "string", "pattern": "^(a{1,900}){1,900}$" }),
        json!({ "type": "array", "items": {}, "minItems": 100_000, "maxItems": 1_000_000 }),
        json!({ "enum": (0..20_000).map(|i| format!("value-{i}-{}", "z".repeat(20))).collect::<Vec<_>>() }),
        json!({ "const": "c".repeat(1_000_000) }),
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "anyOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }] }, "b": { "$ref": "#/$defs/a" } } }),
        all((0..200)
            .map(|i| json!({ "properties": { format!("p{i}"): { "type": "integer", "minimum": i } } }))
            .collect()),
        all((0..12)
            .map(|i| json!({ "anyOf": [{ "required": [format!("a{i}")] }, { "required": [format!("b{i}")] }] }))
            .collect()),
        json!({ "type": "integer", "minimum": -1e300, "maximum": 1e300, "multipleOf": 7 }),
        json!({ "type": "object", "patternProperties": { "^(x+x+)+y$": { "type": "string" }, "^.{0,500}a.{0,500}$": {} } }),
    ];
    schemas.into_iter().map(|schema| structured("json", schema)).collect()
}

fn expressions() -> Vec<Value> {
    let texts = [
        "(a*)*b".to_owned(),
        "(x+x+)+y".to_owned(),
        "[a-z]{1,1000}".to_owned(),
        "(.{0,255}){0,255}".to_owned(),
        "(?i)(straße|groß){1,500}".to_owned(),
        "\\p{L}{1,1000}\\p{N}{1,1000}".to_owned(),
        list(5000, |i| format!("w{i}"), "|"),
        format!("{}a{}", "(".repeat(3000), ")".repeat(3000)),
        ".*a.{1,20}b.{1,20}c".to_owned(),
        format!("({})*", list(200, |i| format!(".{{{i}}}x"), "|")),
        "(.*)*(.*)*(.*)*x".to_owned(),
        "a".repeat(1_000_000),
    ];
    texts.into_iter().map(|text| structured("regex", json!(text))).collect()
}

fn bodies() -> Vec<Form> {
    let to = |path, body: String| Form { path, body, manner: Manner::Whole };
    let message = |content: Value| json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 4 });
    let text = "word ".repeat(1_200_000);
    vec![
        to("/v1/completions", "[".repeat(4_000_000)),
        to("/v1/completions", format!("{{\"prompt\":[{}1]}}", "1,".repeat(3_000_000))),
        to("/v1/completions", json!({ "prompt": text, "max_tokens": 4 }).to_string()),
        to("/v1/chat/completions", message(json!(text)).to_string()),
        to("/v1/chat/completions", message(json!(vec![json!({ "type": "text", "text": "a" }); 10_000])).to_string()),
        to("/v1/chat/completions", format!("{{{}\"a\":1}}", "\"a\":1,".repeat(500_000))),
        to(
            "/v1/chat/completions",
            json!({ "messages": (0..50_000).map(|_| json!({ "role": "user", "content": "a" })).collect::<Vec<_>>() })
                .to_string(),
        ),
        to("/tokenize", json!({ "text": text }).to_string()),
        to("/detokenize", format!("{{\"tokens\":[{}1]}}", "1,".repeat(1_000_000))),
        to("/v1/embeddings", json!({ "input": vec!["river stone"; 50_000] }).to_string()),
        to("/v1/completions", json!({ "prompt": "a", "stop": vec!["s".repeat(1000); 5000] }).to_string()),
        to("/v1/completions", "x".repeat(BODY_BYTES_MAX + 1)),
    ]
}

fn floods() -> Vec<Form> {
    let prompt = |i: usize, n: usize| format!("{i} {}", "river stone ".repeat(n));
    let mut forms: Vec<Form> = (0..8)
        .map(|i| json!({ "prompt": prompt(i % 2, 700 - 20 * i), "max_tokens": 64, "ignore_eos": true }))
        .map(|body| form(body, Manner::Whole))
        .collect();
    forms.push(form(json!({ "prompt": prompt(9, 20), "max_tokens": 400, "ignore_eos": true, "n": 4 }), Manner::Whole));
    forms.push(form(json!({ "prompt": prompt(10, 300), "max_tokens": 1, "logprobs": 5, "seed": 1 }), Manner::Whole));
    forms.push(form(json!({ "prompt": ["a", "b", "c", "d"], "max_tokens": 100, "ignore_eos": true }), Manner::Whole));
    forms
}

fn unread_answers() -> Vec<Value> {
    let stream = |i: usize| json!({ "prompt": format!("Tale {i}"), "max_tokens": 150 * (i + 1), "ignore_eos": true, "stream": i % 4 != 3, "n": 1 + i % 3 });
    (0..12).map(stream).collect()
}

fn connections() -> Vec<Form> {
    let body = json!({ "prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": true }).to_string();
    let to = |manner| Form { path: "/v1/completions", body: body.clone(), manner };
    [
        Manner::Nothing(0),
        Manner::Nothing(5),
        Manner::Bytes(100),
        Manner::Bytes(5000),
        Manner::Slow(2000),
        Manner::Silent(1500),
        Manner::HalfHead(1500),
        Manner::HalfBody(1500),
        Manner::Garbage(65_536),
        Manner::Garbage(100),
        Manner::Smuggled,
        Manner::LongHead(200_000),
    ]
    .into_iter()
    .map(to)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_ten_forms() {
        for kind in kinds() {
            assert!(kind.forms.len() >= 10, "{} has {}", kind.name, kind.forms.len());
        }
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        assert_eq!(percentile((1..=100).rev().map(Duration::from_millis).collect(), 99), Duration::from_millis(99));
        assert_eq!(percentile(vec![Duration::from_millis(3)], 50), Duration::from_millis(3));
        assert_eq!(percentile(Vec::new(), 99), Duration::ZERO);
    }
}
