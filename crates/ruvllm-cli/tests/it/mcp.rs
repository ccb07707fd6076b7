//! `chat --mcp`: tools of a server written in Python, called by a small model that a grammar holds to it.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

use crate::common::{Bench, error_line, text, tiny, tiny_with, told};
use crate::serve::Server;

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

/// Writes a configuration with one server that behaves in a way.
fn config(bench: &Bench, mode: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ruvllm-mcp/tests/server.py");
    let server = json!({ "command": "python3", "args": [script, mode] });
    bench.file("mcp.json", json!({ "mcpServers": { "t": server } }).to_string())
}

/// Writes the small model with a chat template.
fn model(bench: &Bench) -> PathBuf {
    let path = bench.path("chat.gguf");
    tiny_with(&path, |metadata| {
        metadata.set("tokenizer.chat_template", TEMPLATE);
        // The prompt that describes tools is longer than its context was.
        metadata.set("llama.context_length", 4096_u32);
    });
    path
}

/// Talks to the small model, which calls a tool first.
fn chat(bench: &Bench, mode: &str, more: &[&str], lines: &str) -> Output {
    let (model, config) = (model(bench), config(bench, mode));
    let mut command = bench.ruvllm();
    command
        .args(["chat", "--temp", "0", "--max-tokens", "100", "--model"])
        .arg(model)
        .arg("--mcp")
        .arg(config)
        .args(more);
    command.write_stdin(lines).output().expect("the command starts")
}

/// Returns the objects on standard output of a command that succeeded.
fn objects(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn an_allowed_tool_runs_and_the_model_goes_on() {
    let bench = Bench::new();
    let more = ["--json", "--mcp-choice", "t__fixed", "--mcp-allow", "t__f*"];
    let saved = bench.path("talk.json");
    let output = chat(&bench, "fixed", &more, &format!("Which word?\n/save {}\n/tools\n", saved.display()));
    let objects = objects(&output);
    assert_eq!(told(&output.stderr), "");
    let (answer, call) = (&objects[0], &objects[0]["calls"][0]);
    assert_eq!((&call["server"], &call["tool"], &call["outcome"]), (&json!("t"), &json!("fixed"), &json!("ran")));
    assert_eq!(call["arguments"], json!({ "word": "harbour" }));
    assert_eq!(call["result"], "the word is harbour");
    assert!(answer["text"].is_string() && answer["tokens"].is_array(), "{answer}");
    assert!(objects[1]["note"].as_str().is_some_and(|note| note.starts_with("t__fixed  allowed  Returns the word")));
    let saved: Value = serde_json::from_slice(&std::fs::read(saved).expect("a file")).expect("JSON");
    let roles: Vec<_> = saved["messages"].as_array().expect("messages").iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
}

#[test]
fn without_a_terminal_nothing_runs_that_was_not_allowed() {
    let bench = Bench::new();
    let output = chat(&bench, "fixed", &["--json", "--mcp-choice", "t__fixed"], "Which word?\n");
    let call = objects(&output)[0]["calls"][0].clone();
    assert_eq!((&call["outcome"], &call["name"]), (&json!("denied"), &json!("t__fixed")));
    assert_eq!(call["result"], "error: this call is not allowed, and nobody can be asked");
    let line = "warning: t__fixed was not run: nobody can be asked; --mcp-allow t__fixed allows it\n";
    assert_eq!(told(&output.stderr), line);
}

#[test]
fn faults_of_servers_are_results() {
    let bench = Bench::new();
    for (mode, outcome, piece) in [
        ("die", "failed", "ended (exit status: 7): the disk is full"),
        ("fail", "failed", "error: no such file"),
        ("refuse", "failed", "unknown tool: refuse"),
        ("huge", "ran", "[the result has 10000000 bytes; these are the first "),
    ] {
        let choice = format!("t__{mode}");
        let output = chat(&bench, mode, &["--json", "--mcp-choice", &choice, "--mcp-allow", "*"], "Go.\n");
        let call = objects(&output)[0]["calls"][0].clone();
        let result = call["result"].as_str().expect("a text");
        assert!(call["outcome"] == outcome && result.contains(piece) && result.len() < 70_000, "{mode}: {call:.400}");
    }
}

#[test]
fn what_cannot_be_is_told_before_servers_start() {
    let bench = Bench::new();
    // The program of the server is not there, so whoever starts it says so.
    let none = bench.file("none.json", r#"{"mcpServers": {"t": {"command": "no-such-program-here"}}}"#);
    let chat = |more: &[&str], model: &Path, file: &Path| {
        let (model, file) = (model.to_string_lossy(), file.to_string_lossy());
        let args = [&["chat", "--model", &model, "--mcp", &file], more].concat();
        bench.run(args)
    };
    let line = error_line(&chat(&[], &tiny(), &none), 1);
    assert!(line.contains("no chat template, so it cannot be told of tools"), "{line}");
    let line = error_line(&chat(&[], &model(&bench), &none), 1);
    assert!(line.contains("the MCP server 't' cannot be started") && line.contains("in PATH"), "{line}");
    let url = bench.file("url.json", r#"{"mcpServers": {"t": {"url": "http://127.0.0.1/mcp"}}}"#);
    let line = error_line(&chat(&[], Path::new("/nowhere.gguf"), &url), 2);
    assert!(line.contains("mcpServers.t.url is not supported") && line.contains("mcp-remote"), "{line}");
    let line = error_line(&chat(&["--mcp-choice", "t__sing"], &model(&bench), &config(&bench, "good")), 2);
    assert!(line.contains("--mcp-choice t__sing: there is no such tool; auto, required, t__echo"), "{line}");
    let line = error_line(&chat(&[], &model(&bench), &config(&bench, "broken")), 1);
    assert!(line.contains("did not start: cannot open the database"), "{line}");
    let line = error_line(&bench.run(["chat", "--mcp-allow", "*"]), 2);
    assert!(line.contains("--mcp"), "{line}");
}

#[test]
fn another_server_is_offered_the_tools() {
    let bench = Bench::new();
    let model = model(&bench);
    let server = Server::start_as(&bench, &["--model", &model.to_string_lossy(), "--temp", "0"]);
    let url = format!("http://{}/v1", server.address());
    let mut command = bench.ruvllm();
    command.args(["chat", "--backend", "remote", "--url", &url, "--temp", "0", "--max-tokens", "100", "--json"]);
    command.arg("--mcp").arg(config(&bench, "fixed")).args(["--mcp-choice", "t__fixed", "--mcp-allow", "*"]);
    let output = command.write_stdin("Which word?\n").output().expect("the command starts");
    let answer = objects(&output)[0].clone();
    assert_eq!(answer["calls"][0]["result"], "the word is harbour", "{answer}");
    assert!(answer["usage"]["prompt_tokens"].as_u64().is_some_and(|n| n > 0), "{answer}");
}

#[test]
fn a_server_runs_tools_for_its_clients() {
    let bench = Bench::new();
    let (model, file) = (model(&bench), config(&bench, "fixed"));
    let (model, file) = (model.to_string_lossy(), file.to_string_lossy());
    let options = ["--model", &*model, "--temp", "0", "--mcp", &*file];
    let server = Server::start_as(&bench, &[&options[..], &["--mcp-allow", "t__f*"]].concat());
    let list = server.ask("GET /v1/mcp/tools", &Value::Null);
    assert!(list.contains(r#""id":"t__fixed""#) && list.contains(r#""is_allowed":true"#), "{list}");
    let body = json!({
        "input": "Which word?",
        "tools": [{ "type": "mcp", "server_label": "t", "require_approval": "never" }],
        "tool_choice": { "type": "mcp", "server_label": "t", "name": "fixed" },
        "max_output_tokens": 100,
    });
    let answer = server.ask("POST /v1/responses", &body);
    assert!(answer.contains(r#""output":"the word is harbour""#), "{answer}");
    server.end("-TERM");
    let server = Server::start_as(&bench, &options);
    let answer = server.ask("POST /v1/responses", &body);
    assert!(answer.contains("the operator of this server does not allow this tool"), "{answer}");
    let log = server.end("-TERM");
    assert!(log.contains("no tool of the MCP servers may run: --mcp-allow says which may"), "{log}");

    let serve = |more: &[&str]| bench.run([&["serve", "--port", "0", "--model", &*model], more].concat());
    let line = error_line(&serve(&["--mcp", "/nowhere/mcp.json"]), 2);
    assert!(line.contains("cannot read /nowhere/mcp.json"), "{line}");
    let line = error_line(&serve(&["--mcp", &file, "--mcp-allow", ""]), 2);
    assert!(line.contains("--mcp-allow needs the name of a tool"), "{line}");
    let broken = config(&bench, "broken");
    let line = error_line(&serve(&["--mcp", &broken.to_string_lossy(), "--log-level", "off"]), 1);
    assert!(line.contains("the MCP server 't' did not start: cannot open the database"), "{line}");
}

/// Types lines at a terminal as soon as something is shown there, and prints what was shown.
const TERMINAL: &str = r#"
import os, pty, select, sys, time
lines = [line.split("=>") for line in sys.argv[1].split("|")]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
shown, start = b"", time.monotonic()
at = 0
while time.monotonic() - start < 120:
    if not select.select([terminal], [], [], 1)[0]:
        continue
    try:
        chunk = os.read(terminal, 4096)
    except OSError:
        break
    if not chunk:
        break
    shown += chunk
    while lines and lines[0][0].encode() in shown[at:]:
        at = len(shown)
        os.write(terminal, lines.pop(0)[1].encode().decode("unicode_escape").encode())
else:
    os.kill(pid, 9)
os.write(1, shown)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

#[test]
#[cfg(unix)]
fn a_person_is_asked_at_a_terminal() {
    let bench = Bench::new();
    let script = bench.file("terminal.py", TERMINAL);
    let ruvllm = bench.ruvllm();
    let typed = |lines: &str, mode: &str| {
        let mut command = std::process::Command::new("python3");
        command.arg(&script).arg(lines).arg(ruvllm.get_program());
        command.args(["chat", "--temp", "0", "--max-tokens", "100", "--mcp-choice", "t__fixed", "--model"]);
        command.arg(model(&bench)).arg("--mcp").arg(config(&bench, mode));
        ruvllm.get_envs().for_each(|(name, value)| {
            command.env(name, value.unwrap_or_default());
        });
        let output = command.env("TERM", "xterm").output().expect("python3 starts");
        let shown = text(&output.stdout);
        assert!(output.status.success(), "{}\n{shown}", text(&output.stderr));
        shown
    };
    // The prompt is shown again when a turn is over.
    let shown = typed(r"> =>Which word?\r|n no: =>n\r|> =>/exit\r", "fixed");
    assert!(shown.contains("call fixed of the MCP server t:") && shown.contains(r#"{"word":"harbour"}"#), "{shown}");
    assert!(shown.contains("t__fixed: denied"), "{shown}");
    let shown =
        typed(r"> =>Which word?\r|n no: =>y\r|> =>And again?\r|n no: =>a\r|> =>And now?\r|> =>/exit\r", "fixed");
    assert_eq!(shown.matches("call fixed of the MCP server t:").count(), 2, "{shown}");
    assert_eq!(shown.matches("t__fixed: ran").count(), 3, "{shown}");
}
