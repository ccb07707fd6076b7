//! Tools of MCP servers that the server runs: what the operator and the client allow, bounds, and servers that fail. The small
//! model is held to a call by a grammar; calls of other tools are those that a request approves.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use ruvllm_engine::LoadOptions;
use ruvllm_mcp::{McpConfig, McpPatterns};
use ruvllm_server::{KeyOptions, McpOptions, ServerOptions};
use ruvllm_testkit::real_model;
use serde_json::{Value, json};

use crate::client::{Bench, Reply, load_options, options, tiny_chat, with};

const RESPONSES: &str = "/v1/responses";

/// Returns options of one server, `t`, that behaves in a way, and whose tools of some names may run.
fn mcp(mode: &str, allowed: &[&str]) -> McpOptions {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ruvllm-mcp/tests/server.py");
    let file = json!({ "mcpServers": { "t": { "command": "python3", "args": [script, mode] } } });
    let allowed: Vec<String> = allowed.iter().map(|&name| name.to_owned()).collect();
    McpOptions {
        environment: vec![("PATH".to_owned(), std::env::var("PATH").expect("a search path"))],
        allowed: McpPatterns::new(&allowed).expect("sound patterns"),
        ..McpOptions::new(McpConfig::parse(&file.to_string(), "mcp.json").expect("a sound file"))
    }
}

/// Serves the small model with a context that holds the tools.
fn bench(options: ServerOptions) -> Bench {
    let (folder, path) = tiny_chat();
    let bench = Bench::new(&path, &LoadOptions { n_ctx: Some(8192), ..load_options() }, options);
    drop(folder);
    bench
}

fn with_mcp(mode: &str, allowed: &[&str]) -> Bench {
    bench(ServerOptions { mcp: Some(mcp(mode, allowed)), ..options() })
}

/// A request in which the model calls the tool `fixed`, with a word about approval.
fn fixed(approval: &str) -> Value {
    json!({
        "input": "Which word?",
        "tools": [{ "type": "mcp", "server_label": "t", "require_approval": approval }],
        "tool_choice": { "type": "mcp", "server_label": "t", "name": "fixed" },
        // A model of random weights writes all the white space that it may.
        "max_output_tokens": 500,
    })
}

/// A request that approves a call.
fn approving(tool: &str, arguments: &Value) -> Value {
    json!({
        "input": [
            { "role": "user", "content": "Go." },
            {
                "type": "mcp_approval_request", "id": "mcpr_1", "server_label": "t", "name": tool,
                "arguments": arguments.to_string(),
            },
            { "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": true },
        ],
        "tools": [{ "type": "mcp", "server_label": "t", "allowed_tools": [tool] }],
        "max_output_tokens": 2,
    })
}

/// Returns the types of a response's items.
fn types(response: &Value) -> Vec<&str> {
    let items = response["output"].as_array().expect("items").iter();
    items.map(|item| item["type"].as_str().expect("a type")).collect()
}

/// Returns the item of a type, which is there once.
#[track_caller]
fn item<'r>(response: &'r Value, kind: &str) -> &'r Value {
    let mut found = response["output"].as_array().expect("items").iter().filter(|item| item["type"] == kind);
    let (first, second) = (found.next(), found.next());
    first.filter(|_| second.is_none()).unwrap_or_else(|| panic!("one {kind}: {response}"))
}

/// Returns the result of a call that a request approves.
fn result(bench: &Bench, tool: &str, arguments: &Value) -> Value {
    item(&bench.post(RESPONSES, &approving(tool, arguments)).ok(), "mcp_call").clone()
}

#[test]
fn tools_are_listed_with_what_the_operator_allows() {
    let bench = with_mcp("good", &["t__echo", "t__p*"]);
    let list = bench.get("/v1/mcp/tools").ok();
    let tools = list["data"].as_array().expect("a list");
    assert_eq!(
        (&tools[0]["id"], &tools[0]["server"], &tools[0]["name"]),
        (&json!("t__echo"), &json!("t"), &json!("echo"))
    );
    assert_eq!(tools[0]["description"], "Returns the text");
    assert_eq!(tools[0]["schema"]["required"], json!(["text"]));
    let allowed = tools.iter().filter(|tool| tool["is_allowed"] == true).map(|tool| &tool["name"]);
    assert_eq!(allowed.collect::<Vec<_>>(), ["echo", "place", "picture"]);
    // A list that changes is asked for again.
    assert_eq!(result(&bench, "grow", &json!({}))["error"], "the operator of this server does not allow this tool");
}

#[test]
fn a_server_without_them_says_so() {
    let bench = Bench::tiny(options());
    let line = "this server has no MCP servers; start it with --mcp CONFIG";
    assert_eq!(bench.get("/v1/mcp/tools").refusal(), format!("404 {line}"));
    assert_eq!(bench.post(RESPONSES, &fixed("never")).refusal(), format!("400 {line}"));
    // Chats have functions only; other tools are left out.
    let body =
        json!({ "messages": [{ "role": "user", "content": "x" }], "tools": [{ "type": "mcp" }], "max_tokens": 1 });
    bench.post("/v1/chat/completions", &body).ok();
}

#[test]
fn an_allowed_tool_runs_and_the_model_goes_on() {
    let bench = with_mcp("fixed", &["t__f*"]);
    let response = bench.post(RESPONSES, &fixed("never")).ok();
    assert_eq!(types(&response), ["mcp_list_tools", "mcp_call", "message"], "{response}");
    let listed = &response["output"][0];
    assert_eq!((&listed["server_label"], &listed["tools"][0]["name"]), (&json!("t"), &json!("fixed")));
    assert_eq!(listed["tools"][0]["input_schema"]["required"], json!(["word"]));
    let call = item(&response, "mcp_call");
    assert_eq!((&call["server_label"], &call["name"]), (&json!("t"), &json!("fixed")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("JSON");
    assert_eq!(arguments, json!({ "word": "harbour" }));
    assert_eq!((&call["output"], &call["error"]), (&json!("the word is harbour"), &Value::Null));
    assert_eq!((&call["status"], &call["approval_request_id"]), (&json!("completed"), &Value::Null));
    // The response repeats what was asked, not what became of it.
    let asked = fixed("never");
    assert_eq!((&response["tools"], &response["tool_choice"]), (&asked["tools"], &asked["tool_choice"]));
    assert_eq!(bench.metric("ruvllm_mcp_calls_total"), 1.0);
    assert!(bench.get("/metrics").body.contains(r#"ruvllm_mcp_calls_total{server="t",outcome="ran"} 1"#));
    // Two answers were written, within one bound.
    assert!(
        response["usage"]["output_tokens"].as_u64().is_some_and(|n| (10..=500).contains(&n)),
        "{}",
        response["usage"]
    );
    let n_first = bench.post("/v1/responses/input_tokens", &asked_tokens(&asked)).ok()["input_tokens"].clone();
    assert!(response["usage"]["input_tokens"].as_u64() > n_first.as_u64().map(|n| 2 * n), "{}", response["usage"]);

    // What follows has the call before it, and the list is there already.
    let more = json!({ "previous_response_id": response["id"], "input": "And now?", "tools": asked["tools"], "max_output_tokens": 4 });
    let next = bench.post(RESPONSES, &more).ok();
    assert_eq!(types(&next), ["message"]);
    assert_eq!(bench.metric("ruvllm_mcp_calls_total"), 1.0);
    // The items can be sent back.
    let mut input = vec![json!({ "role": "user", "content": "Which word?" })];
    input.extend(response["output"].as_array().expect("items").iter().cloned());
    input.push(json!({ "role": "user", "content": "And now?" }));
    let sent = json!({ "input": input, "tools": asked["tools"], "max_output_tokens": 4 });
    let again = bench.post(RESPONSES, &sent).ok();
    assert_eq!((types(&again), &again["usage"]["input_tokens"]), (vec!["message"], &next["usage"]["input_tokens"]));
    assert_eq!(again["output"][0]["content"], next["output"][0]["content"]);
}

/// Returns what of a request counts its tokens.
fn asked_tokens(asked: &Value) -> Value {
    json!({ "input": asked["input"], "tools": asked["tools"], "tool_choice": asked["tool_choice"] })
}

#[test]
fn events_tell_the_same_as_the_whole() {
    let bench = with_mcp("fixed", &["*"]);
    let whole = bench.post(RESPONSES, &fixed("never")).ok();
    let events = bench.post(RESPONSES, &with(fixed("never"), json!({ "stream": true }))).data();
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i, "{event}");
    }
    let mut types: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    types.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.output_item.done",
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ];
    // The last round may be cut.
    let last = types.pop().expect("an end");
    assert!(["response.completed", "response.incomplete"].contains(&last), "{last}");
    assert_eq!(types, expected);
    let of = |name: &str| events.iter().filter(|event| event["type"] == name).collect::<Vec<_>>();
    let response = &of(last)[0]["response"];
    let done: Vec<&Value> = of("response.output_item.done").iter().map(|event| &event["item"]).collect();
    for (i, (added, done)) in of("response.output_item.added").iter().zip(&done).enumerate() {
        assert_eq!((&added["output_index"], &added["item"]["id"]), (&json!(i), &done["id"]));
        assert_eq!(response["output"][i], **done);
        // Ids name the response, of which each is another one.
        let (mut own, mut other) = ((*done).clone(), whole["output"][i].clone());
        (own["id"], other["id"]) = (Value::Null, Value::Null);
        assert_eq!(own, other);
    }
    assert_eq!(of("response.mcp_call.completed")[0]["item_id"], response["output"][1]["id"]);
    assert_eq!(of("response.mcp_call_arguments.done")[0]["arguments"], response["output"][1]["arguments"]);
    assert_eq!(response["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
}

#[test]
fn the_client_is_asked_and_says_yes_or_no() {
    let bench = with_mcp("fixed", &["t__fixed"]);
    let asked = bench.post(RESPONSES, &fixed("always")).ok();
    assert_eq!(types(&asked), ["mcp_list_tools", "mcp_approval_request"], "{asked}");
    assert_eq!(asked["status"], "completed");
    let request = item(&asked, "mcp_approval_request");
    assert_eq!((&request["server_label"], &request["name"]), (&json!("t"), &json!("fixed")));
    assert_eq!(bench.metric("ruvllm_mcp_calls_total"), 0.0);
    let answer = |more: Value| {
        let response = with(json!({ "type": "mcp_approval_response", "approval_request_id": request["id"] }), more);
        json!({
            "previous_response_id": asked["id"],
            "input": [response],
            "tools": fixed("always")["tools"],
            "max_output_tokens": 4,
        })
    };
    let approved = bench.post(RESPONSES, &answer(json!({ "approve": true }))).ok();
    assert_eq!(types(&approved), ["mcp_call", "message"]);
    let call = item(&approved, "mcp_call");
    assert_eq!((&call["output"], &call["approval_request_id"]), (&json!("the word is harbour"), &request["id"]));
    assert_eq!(bench.metric("ruvllm_mcp_calls_total"), 1.0);
    // It ran once, whatever follows, and in pieces too.
    let more = json!({ "previous_response_id": approved["id"], "input": "And?", "tools": fixed("always")["tools"], "max_output_tokens": 2 });
    assert_eq!(types(&bench.post(RESPONSES, &more).ok()), ["message"]);
    assert_eq!(bench.metric("ruvllm_mcp_calls_total"), 1.0);
    let events = bench.post(RESPONSES, &with(answer(json!({ "approve": true })), json!({ "stream": true }))).data();
    let names: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(
        names[..4],
        ["response.created", "response.in_progress", "response.output_item.added", "response.mcp_call.in_progress"]
    );
    assert_eq!(bench.metric("ruvllm_mcp_calls_total"), 2.0);

    let denied = answer(json!({ "approve": false, "reason": "not today" }));
    let n_denied = bench.post(RESPONSES, &denied).ok();
    assert_eq!(types(&n_denied), ["message"]);
    assert_eq!(bench.metric("ruvllm_mcp_calls_total"), 2.0);
    // The model reads that: its prompt is longer by the call and the reason.
    let n = |body: &Value| bench.post(RESPONSES, body).ok()["usage"]["input_tokens"].as_u64().expect("a count");
    let silent = json!({ "previous_response_id": asked["id"], "input": "And?", "tools": fixed("always")["tools"], "max_output_tokens": 2 });
    let longer =
        answer(json!({ "approve": false, "reason": "not today, and not tomorrow, and not the day after that" }));
    assert!(n(&longer) > n(&denied) && n(&denied) > n(&silent));
}

#[test]
fn approval_may_be_told_tool_by_tool() {
    let bench = with_mcp("fixed", &["*"]);
    let ask = |approval: Value| {
        let tools = json!([{ "type": "mcp", "server_label": "t", "require_approval": approval }]);
        bench.post(RESPONSES, &with(fixed("never"), json!({ "tools": tools }))).ok()
    };
    assert!(types(&ask(json!({ "never": { "tool_names": ["fixed"] } }))).contains(&"mcp_call"));
    for approval in [
        json!({ "never": { "tool_names": ["echo"] } }),
        json!({ "always": { "tool_names": ["fixed"] }, "never": { "tool_names": ["fixed"] } }),
        Value::Null,
    ] {
        assert!(types(&ask(approval)).contains(&"mcp_approval_request"));
    }
}

#[test]
fn what_the_operator_does_not_allow_never_runs() {
    for allowed in [&[][..], &["t__echo"]] {
        let bench = with_mcp("fixed", allowed);
        for response in [
            bench.post(RESPONSES, &fixed("never")).ok(),
            bench.post(RESPONSES, &fixed("always")).ok(),
            bench.post(RESPONSES, &approving("fixed", &json!({ "word": "harbour" }))).ok(),
        ] {
            let call = item(&response, "mcp_call");
            assert_eq!(call["error"], "the operator of this server does not allow this tool", "{call}");
            assert_eq!((&call["output"], &call["status"]), (&Value::Null, &json!("failed")));
        }
        assert!(bench.get("/metrics").body.contains(r#"ruvllm_mcp_calls_total{server="t",outcome="denied"} 3"#));
    }
}

#[test]
fn a_tool_or_a_server_that_fails_is_a_result() {
    let bench = with_mcp("good", &["*"]);
    let error = |tool: &str| result(&bench, tool, &json!({}))["error"].as_str().unwrap_or_default().to_owned();
    assert!(error("die").contains("ended (exit status: 7): the disk is full; it is started again"), "{}", error("die"));
    assert!(error("fail").starts_with("no such file"));
    assert_eq!(error("refuse"), "unknown tool: refuse");
    assert_eq!(result(&bench, "echo", &json!({ "text": "again" }))["output"], "again");
    // Arguments that are none, and a tool that is not offered.
    let mut body = approving("echo", &json!("text"));
    let response = bench.post(RESPONSES, &body).ok();
    assert_eq!(item(&response, "mcp_call")["error"], "the arguments are no JSON object");
    body["tools"][0]["allowed_tools"] = json!(["fixed"]);
    let response = bench.post(RESPONSES, &body).ok();
    assert_eq!(item(&response, "mcp_call")["error"], "there is no tool 'echo'");
}

#[test]
fn a_long_result_is_cut_by_the_context() {
    let bench = with_mcp("good", &["*"]);
    let call = result(&bench, "big", &json!({ "n": 10 << 20 }));
    let (text, line) = call["output"].as_str().and_then(|text| text.rsplit_once('\n')).expect("a line");
    assert_eq!((text.len(), line), (4096, "[the result has 10485760 bytes; these are the first 4096]"));
}

#[test]
fn rounds_have_an_end() {
    let mcp = McpOptions { n_rounds: 2, ..mcp("fixed", &["*"]) };
    let load = LoadOptions { n_ctx: Some(2048), ..load_options() };
    let options = ServerOptions { mcp: Some(mcp), ..options() };
    let bench = Bench::named("qwen2.5-coder:0.5b", &real_model("qwen2.5-coder:0.5b"), &load, options);
    // The mark of a call is the likeliest token, so the model calls for as long as it may.
    let mark = bench.post("/tokenize", &json!({ "text": "<tool_call>", "parse_special": true })).ok();
    let bias = json!({ mark["tokens"][0].to_string(): 100 });
    let more =
        json!({ "tool_choice": "auto", "logit_bias": bias, "parallel_tool_calls": false, "max_output_tokens": 120 });
    let response = bench.post(RESPONSES, &with(fixed("never"), more)).ok();
    assert_eq!(types(&response)[..3], ["mcp_list_tools", "mcp_call", "mcp_call"], "{response}");
    assert_eq!(types(&response).iter().filter(|kind| **kind == "mcp_call").count(), 2);
    assert_eq!(bench.metric("ruvllm_mcp_calls_total"), 2.0);
}

#[test]
fn what_cannot_be_is_refused() {
    let bench = with_mcp("fixed", &["*"]);
    let refused = |tool: Value, more: Value| {
        let tools = json!([with(json!({ "type": "mcp" }), tool)]);
        bench.post(RESPONSES, &with(with(fixed("never"), json!({ "tools": tools })), more)).refusal()
    };
    let elsewhere = "MCP servers are those that this server was started with; name one by server_label";
    for (tool, more, expected) in [
        (
            json!({ "server_label": "x" }),
            json!({}),
            "400 'tools[0].server_label' names no MCP server of this server; there is t",
        ),
        (json!({}), json!({}), "400 'tools[0].server_label' is missing"),
        (
            json!({ "server_label": "t", "server_url": "http://127.0.0.1/mcp" }),
            json!({}),
            &*format!("400 'tools[0].server_url' is \"http://127.0.0.1/mcp\"; only null is supported: {elsewhere}"),
        ),
        (
            json!({ "server_label": "t", "allowed_tools": ["sing"] }),
            json!({}),
            "400 'tools[0].allowed_tools' names the tool 'sing', which the MCP server 't' does not have",
        ),
        (
            json!({ "server_label": "t", "require_approval": "sometimes" }),
            json!({}),
            "400 'tools[0].require_approval' is",
        ),
        (
            json!({ "server_label": "t" }),
            json!({ "tool_choice": { "type": "mcp", "server_label": "t", "name": "sing" } }),
            "400 'tool_choice' names \"sing\" of the MCP server \"t\", which 'tools' does not offer",
        ),
        (
            json!({ "server_label": "t" }),
            json!({ "input": [{ "type": "mcp_approval_response", "approval_request_id": "mcpr_9", "approve": true }] }),
            "400 'approval_request_id' is \"mcpr_9\", and the conversation has no such request",
        ),
    ] {
        let line = refused(tool, more);
        assert!(line.starts_with(expected), "{line}");
    }
    let twice = fixed("never")["tools"][0].clone();
    let line = bench.post(RESPONSES, &with(fixed("never"), json!({ "tools": [twice, twice] }))).refusal();
    assert_eq!(line, "400 'tools[1].server_label' is 't' a second time; name each once");
    let unoffered = with(approving("fixed", &json!({ "word": "harbour" })), json!({ "tools": [] }));
    let line = bench.post(RESPONSES, &unoffered).refusal();
    assert!(line.starts_with("400 a call of the MCP server \"t\" is approved, which 'tools' does not offer"), "{line}");
    assert_eq!(bench.metric("ruvllm_mcp_calls_total"), 0.0);
}

#[test]
fn a_tenant_has_its_share_of_calls() {
    let lines = vec!["ann key-of-ann".to_owned(), "bob key-of-bob".to_owned()];
    let mcp = McpOptions { n_calls_max: 2, n_tenant_calls_max: 1, ..mcp("good", &["*"]) };
    let keys = KeyOptions { file: None, lines };
    let bench = bench(ServerOptions { mcp: Some(mcp), keys, ..options() });
    let wait = |key: &str| {
        let body = approving("wait", &json!({ "seconds": 1.5 })).to_string();
        let bearer = format!("Bearer {key}");
        let response = bench.send(RESPONSES, body, &[("authorization", &bearer)]).ok();
        assert_eq!(item(&response, "mcp_call")["output"], "waited");
        Instant::now()
    };
    std::thread::scope(|scope| {
        let ann = [0, 1].map(|_| scope.spawn(|| wait("key-of-ann")));
        // Both of hers are there, and one of them waits.
        std::thread::sleep(Duration::from_millis(300));
        let bob = scope.spawn(|| wait("key-of-bob"));
        let mut ann = ann.map(|thread| thread.join().expect("an answer"));
        ann.sort();
        let bob = bob.join().expect("an answer");
        assert!(ann[1] - ann[0] > Duration::from_millis(1200), "one after the other");
        assert!(bob < ann[1], "others do not wait for them");
    });
}

#[test]
fn a_client_that_goes_gives_the_call_up() {
    let bench = with_mcp("good", &["*"]);
    let folder = tempfile::tempdir().expect("a folder");
    for is_stream in [false, true] {
        let n_before = bench.metric("ruvllm_mcp_calls_total");
        let begun = folder.path().join(is_stream.to_string());
        let call = approving("wait", &json!({ "seconds": 60, "begun": begun }));
        let mut stream = bench.open(RESPONSES, &with(call, json!({ "stream": is_stream })));
        if is_stream {
            drop(stream.read(&mut [0; 100]));
        }
        wait_until("the call runs", || begun.exists());
        drop(stream);
        wait_until("the call is given up", || bench.metric("ruvllm_mcp_calls_total") != n_before);
    }
    assert!(bench.get("/metrics").body.contains(r#"outcome="cancelled"} 2"#));
}

/// Waits until something is so, for less than the time of a call.
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_request_has_an_end_while_a_tool_runs() {
    let bench = with_mcp("good", &["*"]);
    let start = Instant::now();
    let body = with(approving("wait", &json!({ "seconds": 60 })), json!({ "timeout_ms": 700 }));
    let reply: Reply = bench.post(RESPONSES, &body);
    assert_eq!(reply.refusal(), "504 the request's time was over while a tool ran; allow more of it");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_server_that_does_not_start_ends_the_start() {
    let (_folder, path) = tiny_chat();
    let engine = ruvllm_engine::Engine::load(&path, &load_options(), &mut |_| {}).expect("it loads");
    let models = vec![ruvllm_server::ModelSource::loaded("tiny", engine)];
    let options = ServerOptions { mcp: Some(mcp("broken", &["*"])), ..options() };
    let error = ruvllm_server::Server::start(models, options).expect_err("it ends at once").to_string();
    assert_eq!(error, "the MCP server 't' did not start: cannot open the database | no such file: /nowhere");
}
