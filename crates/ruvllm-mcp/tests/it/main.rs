//! Servers written in Python: good, slow, dying and hostile ones.

use std::path::Path;
use std::time::{Duration, Instant};

use ruvllm_mcp::{McpCancel, McpConfig, McpError, McpErrorKind, McpLimits, McpOutput, McpServers};
use serde_json::{Map, Value, json};

/// Returns the configuration of servers, each a name and how it behaves.
fn config(servers: &[(&str, &str)]) -> McpConfig {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server.py");
    let entry =
        |&(name, mode): &(&str, &str)| (name.to_owned(), json!({ "command": "python3", "args": [script, mode] }));
    let servers: Map<String, Value> = servers.iter().map(entry).collect();
    McpConfig::parse(&json!({ "mcpServers": servers }).to_string(), "mcp.json").expect("a sound file")
}

/// Returns the variables that a server needs.
fn environment() -> Vec<(String, String)> {
    vec![("PATH".to_owned(), std::env::var("PATH").expect("a search path"))]
}

fn limits() -> McpLimits {
    McpLimits { start: Duration::from_secs(20), call: Duration::from_secs(20), ..McpLimits::default() }
}

fn start(mode: &str, limits: McpLimits) -> Result<McpServers, McpError> {
    McpServers::start(config(&[("t", mode)]), environment(), limits)
}

fn good() -> McpServers {
    start("good", limits()).expect("a good server starts")
}

fn call(servers: &McpServers, tool: &str, arguments: Value) -> Result<McpOutput, McpError> {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    servers.call(&format!("t__{tool}"), arguments, &McpCancel::default())
}

fn said(servers: &McpServers, tool: &str, arguments: Value) -> String {
    call(servers, tool, arguments).expect("a result").text
}

/// Waits until a server was told that one call was given up: messages may overtake each other.
fn hears_of_one_end(servers: &McpServers) {
    let start = Instant::now();
    while said(servers, "cancelled", json!({})) == "[]" {
        assert!(start.elapsed() < Duration::from_secs(10), "nobody told the server");
        std::thread::sleep(Duration::from_millis(20));
    }
    let told: Vec<u64> = serde_json::from_str(&said(servers, "cancelled", json!({}))).expect("a list");
    assert_eq!(told.len(), 1);
}

/// Asserts that an error is of a kind, and that its one line has a piece.
#[track_caller]
fn check(error: &McpError, kind: McpErrorKind, piece: &str) {
    let line = error.to_string();
    assert!(error.kind() == kind && line.contains(piece) && !line.contains('\n'), "{:?}: {line}", error.kind());
}

#[test]
fn tools_are_listed_and_called() {
    let servers =
        McpServers::start(config(&[("My files", "good"), ("t", "good")]), environment(), limits()).expect("both start");
    let tools = servers.tools();
    assert_eq!((&*tools[0].name, &*tools[0].server, &*tools[0].tool), ("My_files__echo", "My files", "echo"));
    assert_eq!(tools[0].description.as_deref(), Some("Returns the text"));
    assert_eq!(tools[0].parameters["required"], json!(["text"]));
    assert!(tools.iter().any(|tool| tool.name == "t__echo"));
    assert_eq!(said(&servers, "echo", json!({ "text": "a\nb é" })), "a\nb é");
    assert!(!servers.refresh().expect("nothing changed"));
    check(&call(&servers, "sing", json!({})).expect_err("no such tool"), McpErrorKind::Missing, "t__sing");
}

#[test]
fn servers_get_the_variables_they_are_given_and_no_others() {
    // Cargo sets it for tests, so it is there and must not be passed on.
    assert!(std::env::var("CARGO_MANIFEST_DIR").is_ok());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut config = config(&[("t", "good")]);
    config.servers[0].env.push(("TOKEN".to_owned(), "of the file".to_owned()));
    config.servers[0].cwd = Some(folder.path().to_path_buf());
    let servers = McpServers::start(config, environment(), limits()).expect("it starts");
    let place: Value = serde_json::from_str(&said(&servers, "place", json!({}))).expect("JSON");
    assert_eq!(place["env"]["TOKEN"], "of the file");
    assert!(place["env"]["PATH"].is_string() && place["env"]["CARGO_MANIFEST_DIR"].is_null(), "{place}");
    let there = Path::new(place["cwd"].as_str().expect("a text")).canonicalize().expect("a folder");
    assert_eq!(there, folder.path().canonicalize().expect("a folder"));
}

#[test]
fn results_are_text_within_bounds() {
    let servers = good();
    let output = call(&servers, "big", json!({ "n": 10 << 20 })).expect("a result");
    assert_eq!(output.n_bytes, 10 << 20);
    let (text, line) = output.text.rsplit_once('\n').expect("a line");
    assert_eq!(text.len(), limits().result_bytes_max);
    assert_eq!(line, "[the result has 10485760 bytes; these are the first 32768]");
    assert!(said(&servers, "picture", json!({})).starts_with("[image image/png, 3 bytes"));
    let failed = call(&servers, "fail", json!({})).expect("a result");
    assert!(failed.is_error && failed.text.starts_with("no such file"));
    let refused = call(&servers, "refuse", json!({})).expect("a result");
    assert!(refused.is_error && refused.text == "unknown tool: refuse", "{refused:?}");
}

#[test]
fn slow_calls_are_given_up_in_time() {
    let servers = start("good", McpLimits { call: Duration::from_millis(300), ..limits() }).expect("it starts");
    let start = Instant::now();
    let error = call(&servers, "wait", json!({ "seconds": 30 })).expect_err("too slow");
    check(&error, McpErrorKind::Timeout, "the MCP server 't' gave no result of 'wait' within 0.3 s");
    assert!(start.elapsed() < Duration::from_secs(20));
    // The server runs on, and was told.
    hears_of_one_end(&servers);
}

#[test]
fn calls_are_cancelled_from_another_thread() {
    let (servers, cancel) = (good(), McpCancel::default());
    let folder = tempfile::tempdir().expect("a folder");
    let begun = folder.path().join("begun");
    let start = Instant::now();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !begun.exists() && start.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(10));
            }
            cancel.cancel();
        });
        let arguments = Map::from_iter([("seconds".to_owned(), json!(30)), ("begun".to_owned(), json!(begun))]);
        servers.call("t__wait", arguments, &cancel).expect_err("it was given up")
    });
    check(&error, McpErrorKind::Cancelled, "t__wait");
    assert!(cancel.is_cancelled() && start.elapsed() < Duration::from_secs(20));
    hears_of_one_end(&servers);
}

#[test]
fn a_server_that_dies_is_started_again_a_few_times() {
    let servers = good();
    let dies = || call(&servers, "die", json!({})).expect_err("it ends");
    check(&dies(), McpErrorKind::Server, "ended (exit status: 7): the disk is full; it is started again");
    assert_eq!(said(&servers, "echo", json!({ "text": "again" })), "again");
    // A result sets the count back.
    for _ in 0..3 {
        check(&dies(), McpErrorKind::Server, "exit status: 7");
    }
    check(
        &dies(),
        McpErrorKind::Server,
        "ended 3 times and is not started again; the last time it ended (exit status: 7)",
    );
    // Its list may be another one now.
    let servers = good();
    check(&call(&servers, "die", json!({})).expect_err("it ends"), McpErrorKind::Server, "the disk is full");
    assert_eq!(said(&servers, "echo", json!({ "text": "again" })), "again");
    assert!(!servers.refresh().expect("it lists the same"));
}

#[test]
fn servers_that_do_not_start_are_told_by_one_line() {
    let error = start("broken", limits()).expect_err("it ends at once");
    check(
        &error,
        McpErrorKind::Start,
        "the MCP server 't' did not start: cannot open the database | no such file: /nowhere",
    );
    let error = start("silent", McpLimits { start: Duration::from_millis(500), ..limits() }).expect_err("it is silent");
    check(&error, McpErrorKind::Timeout, "did not answer within 0.5 s");
    let mut config = config(&[("t", "good")]);
    config.servers[0].command = "no-such-program-here".to_owned();
    let error = McpServers::start(config, environment(), limits()).expect_err("no such program");
    check(&error, McpErrorKind::Start, "there is no program 'no-such-program-here' in PATH");
}

#[test]
fn lists_without_an_end_are_refused() {
    let few = || McpLimits { n_pages_max: 10, ..limits() };
    for (mode, limits, piece) in [
        ("many", limits(), "lists more than 128 tools"),
        ("endless", McpLimits { n_pages_max: 1000, ..limits() }, "lists more than 128 tools"),
        ("endless", few(), "in more than 10 pages"),
        ("pages_without_tools", few(), "in more than 10 pages"),
    ] {
        check(&start(mode, limits).expect_err(mode), McpErrorKind::Server, piece);
    }
}

#[test]
fn odd_tools_are_named_or_left_out() {
    let servers = start("odd", limits()).expect("it starts");
    let tools = servers.tools();
    let names: Vec<_> = tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, ["t__wordy", "t__a_b", "t__a_b_2", "t__bare"]);
    assert_eq!(tools[0].description.as_ref().map(|text| text.chars().count()), Some(4096));
    let notes = servers.take_notes();
    assert!(notes.len() == 2 && notes[0].contains("'wide'") && notes[0].contains("32768 are allowed"), "{notes:?}");
    assert!(servers.take_notes().is_empty());
}

#[test]
fn lines_that_are_no_messages_are_skipped() {
    let servers = start("garbage", limits()).expect("it starts all the same");
    assert_eq!(said(&servers, "echo", json!({ "text": "a" })), "a");
}

#[test]
fn a_message_without_an_end_ends_the_server() {
    let servers = start("good", McpLimits { message_bytes_max: 1 << 20, ..limits() }).expect("it starts");
    let error = call(&servers, "flood", json!({})).expect_err("it sends too much");
    check(&error, McpErrorKind::Server, "sent a message of more than 1 MiB and was ended");
    assert_eq!(said(&servers, "echo", json!({ "text": "again" })), "again");
}

#[test]
fn lists_that_change_are_asked_for_again() {
    let servers = good();
    let n_tools = servers.tools().len();
    assert_eq!(said(&servers, "grow", json!({})), "grown");
    let start = Instant::now();
    while !servers.refresh().expect("it lists them") {
        assert!(start.elapsed() < Duration::from_secs(10), "the change was not heard");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(servers.tools().len(), n_tools + 1);
    assert!(servers.tools().iter().any(|tool| tool.name == "t__grown_0"));
}

#[test]
#[cfg(unix)]
fn nothing_is_left_of_a_server() {
    let runs = |pid: &str| {
        // A process that ended and was not waited for has a state of its own.
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
    };
    let servers = start("stubborn", limits()).expect("it starts");
    let child = said(&servers, "child", json!({}));
    assert!(runs(&child));
    drop(servers);
    let start = Instant::now();
    while runs(&child) {
        assert!(start.elapsed() < Duration::from_secs(20), "process {child} runs on");
        std::thread::sleep(Duration::from_millis(50));
    }
}
