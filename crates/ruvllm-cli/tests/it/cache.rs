//! What is kept on disk: answers that need no computing, sessions, and the command that shows and removes them.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use ruvllm_testkit::Golden;
use serde_json::Value;

use crate::common::{Bench, error_line, json_of, text, tiny, told};

const LONG: &str = "one two three four five six seven eight nine ten eleven twelve";

/// Runs `run --json` on the small model, which must succeed silently.
fn run(bench: &Bench, args: &[&str]) -> Value {
    let model = tiny();
    let model = model.to_str().expect("a plain path");
    let fixed = ["run", "--temp", "0", "--ignore-eos", "--max-tokens", "4", "--json", "--model", model];
    bench.json(fixed.iter().chain(args))
}

fn ids(list: &Value) -> Vec<u64> {
    list.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id")).collect()
}

/// A `chat --json` on the small model that is talked to line by line.
struct Talk {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Talk {
    fn begin(bench: &Bench, args: &[&str]) -> Talk {
        let mut command = Command::new(bench.ruvllm().get_program());
        command.args(["chat", "--temp", "0", "--max-tokens", "4", "--json", "--model"]).arg(tiny()).args(args);
        command.env("RUVLLM_HOME", bench.path("home")).env("RUVLLM_THREADS", "1");
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().expect("the command starts");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Talk { child, answers }
    }

    fn send(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{line}").expect("it listens");
    }

    fn say(&mut self, line: &str) -> Value {
        self.send(line);
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("text");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: '{answer}'"))
    }

    /// Leaves, as Ctrl-D does.
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("it ends").success());
    }

    fn kill(mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it is killed");
    }
}

fn sessions(bench: &Bench) -> Vec<(String, u64)> {
    let listed = bench.json(["cache", "list", "--json"]);
    let sessions = listed["sessions"].as_array().expect("a list").iter();
    let facts = |session: &Value| {
        (session["name"].as_str().expect("a name").to_owned(), session["tokens"].as_u64().expect("a number"))
    };
    sessions.map(facts).collect()
}

/// Waits until a session has so many tokens on disk.
#[track_caller]
fn wait_for(bench: &Bench, name: &str, n_tokens: u64) {
    let is_saved = || sessions(bench).contains(&(name.to_owned(), n_tokens));
    let mut waits = (0..500).map(|_| std::thread::sleep(Duration::from_millis(4)));
    assert!(waits.any(|()| is_saved()), "'{name}' of {n_tokens} tokens among {:?}", sessions(bench));
}

#[test]
fn a_prompt_is_there_after_a_restart() {
    let bench = Bench::new();
    let first = run(&bench, &["--raw", "--prompt", LONG]);
    let again = run(&bench, &["--raw", "--prompt", LONG]);
    assert_eq!(again["tokens"], first["tokens"]);
    let n_whole = (ids(&first["prompt_tokens"]).len() as u64 - 1) / 16 * 16;
    assert_eq!((&first["timings"]["disk_tokens"], &again["timings"]["disk_tokens"]), (&0.into(), &n_whole.into()));
    for other in [&["--no-prefix-cache"][..], &["--cache-dir", "elsewhere"], &["--kv", "f32"]] {
        let computed = run(&bench, &[&["--raw", "--prompt", LONG], other].concat());
        assert_eq!((&computed["tokens"], &computed["timings"]["cached_tokens"]), (&first["tokens"], &0.into()));
    }
    assert!(bench.path("elsewhere").is_dir());
}

#[test]
fn a_session_of_text_goes_on_token_by_token() {
    let bench = Bench::new();
    let first = run(&bench, &["--raw", "--session", "story", "--prompt", LONG]);
    assert_eq!((&first["session"]["name"], &first["session"]["restored_tokens"]), (&"story".into(), &0.into()));
    let second = run(&bench, &["--raw", "--session", "story", "--prompt", " and on"]);
    let before = [ids(&first["prompt_tokens"]), ids(&first["tokens"])].concat();
    let prompt = ids(&second["prompt_tokens"]);
    assert!(prompt.len() > before.len() && prompt.starts_with(&before));
    assert_eq!(second["session"]["restored_tokens"], ((before.len() - 1) / 16 * 16) as u64);
    assert_eq!(sessions(&bench), [("story".to_owned(), prompt.len() as u64 + 4)]);
    let forked = run(&bench, &["--raw", "--session", "other", "--fork", "story", "--prompt", " elsewhere"]);
    assert!(ids(&forked["prompt_tokens"]).starts_with(&prompt));
    assert_eq!(sessions(&bench)[1], ("story".to_owned(), prompt.len() as u64 + 4));
    let model = tiny();
    for (args, code, piece) in [
        (&["--session", "other", "--fork", "story"][..], 1, "there is a session 'other' already"),
        (&["--session", "third", "--fork", "nobody"], 1, "there is no session 'nobody'"),
        (&["--fork", "story"], 2, "--session <NAME>"),
    ] {
        let fixed = ["run", "--raw", "--prompt", "x", "--model", model.to_str().expect("a plain path")];
        let line = error_line(&bench.run(fixed.iter().chain(args)), code);
        assert!(line.contains(piece), "'{piece}' in: {line}");
    }
    // A stop string ends what was shown, and so what the session holds.
    let said = first["text"].as_str().expect("a text");
    let stop: String = said.chars().skip(2).take(2).collect();
    let third = run(&bench, &["--raw", "--session", "short", "--prompt", LONG, "--stop", &stop]);
    let fourth = run(&bench, &["--raw", "--session", "short", "--prompt", " x"]);
    let shown = ids(&fourth["prompt_tokens"]).len() - ids(&third["prompt_tokens"]).len();
    assert!(third["finish_reason"] == "stop" && shown < 4 + 3, "{third} {fourth}");
}

#[test]
fn a_conversation_survives_kill_9() {
    let bench = Bench::new();
    let whole = {
        let mut talk = Talk::begin(&bench, &["--no-prefix-cache"]);
        let answers = ["one", "two", "three", "four"].map(|line| talk.say(line));
        talk.end();
        answers
    };
    let mut spoken = Vec::new();
    for (i, line) in ["one", "two", "three", "four"].iter().enumerate() {
        let mut talk = Talk::begin(&bench, &["--session", "talk"]);
        let answer = talk.say(line);
        assert_eq!(answer["prompt_tokens"], whole[i]["prompt_tokens"], "turn {i}");
        assert_eq!(answer["tokens"], whole[i]["tokens"], "turn {i}");
        spoken.push(ids(&answer["prompt_tokens"]).len() as u64 + 4);
        // The answer is printed before the session is saved.
        wait_for(&bench, "talk", spoken[i]);
        talk.kill();
    }
    let mut talk = Talk::begin(&bench, &["--session", "talk"]);
    talk.send("/clear");
    wait_for(&bench, "talk", 0);
    talk.kill();
    let line = |args: &[&str]| {
        let args = ["chat", "--model", tiny().to_str().expect("a plain path")]
            .iter()
            .chain(args)
            .map(|s| (*s).to_owned())
            .collect::<Vec<_>>();
        error_line(&bench.run(args), 2)
    };
    let mut talk = Talk::begin(&bench, &["--session", "brief", "--system", "Be brief."]);
    talk.say("one");
    talk.end();
    assert!(line(&["--session", "brief", "--system", "Other."]).contains("other instructions"));
}

#[test]
fn sessions_are_of_one_model_and_one_kind() {
    let bench = Bench::new();
    run(&bench, &["--raw", "--session", "text", "--prompt", LONG]);
    let mut talk = Talk::begin(&bench, &["--session", "talk"]);
    talk.say("hello");
    talk.end();
    let model = tiny();
    let other = Golden::load("gpt2-a").model("f32");
    let [model, other] = [&model, &other].map(|path| path.to_str().expect("a plain path"));
    let cases: [(&[&str], i32, &str); 5] = [
        (
            &["run", "--raw", "--session", "text", "--prompt", "x", "--model", other],
            1,
            "session 'text' is of another model",
        ),
        (&["run", "--raw", "--session", "talk", "--prompt", "x", "--model", model], 2, "'talk' is a conversation"),
        (&["chat", "--session", "text", "--model", model], 2, "'text' continues a text"),
        (&["run", "--session", "", "--prompt", "x", "--model", model], 2, "1 to 200 bytes"),
        (&["run", "--session", "a\tb", "--prompt", "x", "--model", model], 2, "control characters"),
    ];
    for (args, code, piece) in cases {
        let line = error_line(&bench.run(args), code);
        assert!(line.contains(piece), "'{piece}' in: {line}");
    }
}

#[test]
fn a_folder_in_use_is_left_alone_unless_asked_for() {
    let bench = Bench::new();
    let mut talk = Talk::begin(&bench, &[]);
    talk.say("hello");
    let model = tiny();
    let args = ["run", "--raw", "--temp", "0", "--max-tokens", "4", "--prompt", "hello", "--model"];
    let with = |more: &[&str]| {
        let mut command = bench.ruvllm();
        command.args(args).arg(&model).args(more).output().expect("the command starts")
    };
    let by = format!("in use by process {}", talk.child.id());
    let output = with(&[]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && !out.is_empty(), "{err}");
    assert!(err.lines().count() == 1 && err.starts_with("warning: ") && err.contains(&by), "{err}");
    let home = bench.path("home").join("kv");
    for more in [["--session", "x"], ["--cache-dir", home.to_str().expect("a plain path")]] {
        let line = error_line(&with(&more), 1);
        assert!(line.contains(&by), "{line}");
    }
    assert_eq!(bench.json(["cache", "stats", "--json"])["models"][0]["in_use"], true);
    let output = bench.run(["cache", "clear"]);
    assert_eq!((output.status.code(), text(&output.stderr).contains(&by)), (Some(1), true));
    talk.kill();
    assert_eq!(told(&with(&[]).stderr), "");
}

#[test]
fn the_cache_is_shown_and_cleared() {
    let bench = Bench::new();
    assert_eq!(bench.json(["cache", "stats", "--json"])["bytes"], 0);
    assert!(text(&bench.run(["cache", "list"]).stdout).starts_with("nothing is kept in "));
    run(&bench, &["--raw", "--session", "s", "--prompt", LONG]);
    let stats = bench.json(["cache", "stats", "--json"]);
    let model = &stats["models"][0];
    assert!(stats["bytes"].as_u64().is_some_and(|bytes| bytes > 1000) && stats["bytes"] == model["bytes"], "{stats}");
    let counts = ["blocks", "prefixes", "sessions"].map(|key| model[key].as_u64().expect("a number"));
    assert!(counts[0] > 0 && counts[1..] == [1, 1], "{stats}");
    let listed = bench.json(["cache", "list", "--json"]);
    assert_eq!(listed["prefixes"][0]["tokens"], 16 * counts[0]);
    for (args, pieces) in
        [(["cache", "stats"], ["MODEL", "model.gguf", "BLOCKS"]), (["cache", "list"], ["SESSION", "PREFIX", "SAVED"])]
    {
        let shown = text(&bench.run(args).stdout);
        assert!(pieces.iter().all(|piece| shown.contains(piece)), "{shown}");
    }
    let said = |args: &[&str]| {
        let output = bench.run(["cache", "clear"].iter().chain(args));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert!(said(&["--older-than", "1h"]).starts_with("nothing to remove"));
    assert!(said(&["--keep-sessions"]).starts_with(&format!("removed {} blocks of 16 tokens (", counts[0])));
    assert_eq!(sessions(&bench).len(), 1);
    assert_eq!(said(&["--session", "s"]), "removed session s\n");
    assert!(error_line(&bench.run(["cache", "clear", "--session", "s"]), 1).contains("no session 's'"));
    run(&bench, &["--raw", "--session", "t", "--prompt", LONG]);
    std::thread::sleep(Duration::from_millis(1100));
    let removed = json_of(&bench.run(["cache", "clear", "--older-than", "1s", "--json"]));
    assert_eq!((&removed["blocks"], &removed["sessions"][0]), (&counts[0].into(), &"t".into()));
    assert!(Path::new(removed["folder"].as_str().expect("a path")).is_dir());
    for wrong in [&["--older-than", "7"][..], &["--session", "s", "--older-than", "7d"], &["--age", "1"]] {
        error_line(&bench.run(["cache", "clear"].iter().chain(wrong)), 2);
    }
    error_line(&bench.run(["cache", "stats", "--cache-dir", tiny().to_str().expect("a plain path")]), 1);
}
