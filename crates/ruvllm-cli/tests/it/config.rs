//! The settings file: made, checked, shown, read by commands and read again by a server; and its page of the docs.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use ruvllm_testkit::check_page;
use serde_json::{Value, json};

use crate::common::{Bench, error_line, text, tiny};
use crate::serve::Server;

/// Returns the schema as the command prints it.
fn schema(bench: &Bench) -> Value {
    let output = bench.run(["config", "schema"]);
    assert!(output.status.success());
    serde_json::from_str(&text(&output.stdout)).expect("JSON")
}

#[test]
fn a_new_file_is_right_also_with_every_default_in_it() {
    let bench = Bench::new();
    let file = bench.path("config/ruvllm/config.toml");
    let made = bench.run(["config", "init"]);
    assert!(made.status.success() && file.exists(), "{made:?}");
    let checked = bench.run(["config", "check"]);
    assert!(text(&checked.stdout).contains("is right: 0 settings"), "{checked:?}");
    assert!(error_line(&bench.run(["config", "init"]), 1).contains("--force writes over it"));
    // Those that have a default have it as it could stand there.
    let (schema, written) = (schema(&bench), std::fs::read_to_string(&file).expect("it is there"));
    let mut table = String::new();
    let mut all = String::new();
    for line in written.lines() {
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_end_matches(']').to_owned();
        }
        let key = line.strip_prefix("# ").and_then(|line| line.split(" = ").next()).unwrap_or_default();
        let has_default = schema["properties"][&table]["properties"][key].get("default").is_some();
        let _ = writeln!(all, "{}", if has_default { &line[2..] } else { line });
    }
    let whole = bench.file("whole.toml", all);
    let checked = bench.run(["config", "check", whole.to_str().expect("a plain path")]);
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn every_option_of_serve_is_a_setting() {
    let bench = Bench::new();
    let (schema, help) = (schema(&bench), text(&bench.run(["serve", "--help"]).stdout));
    let options = help.lines().filter_map(|line| {
        // Explanations, which may name options as well, stand further to the right.
        let indent = line.len() - line.trim_start().len();
        let name = line.trim_start().split_once("--").filter(|(before, _)| indent <= 6 && before.len() <= 4)?.1;
        Some(name.split([' ', '=', '[', '\n']).next()?.trim_end_matches(',').to_owned())
    });
    let options: Vec<String> = options.filter(|name| !["help", "config"].contains(&name.as_str())).collect();
    assert!(options.len() > 80, "{options:?}");
    for option in options {
        assert!(schema["properties"]["serve"]["properties"][&option].is_object(), "{option}");
    }
}

#[test]
fn mistakes_cost_a_line_each_and_every_other_command_its_start() {
    let bench = Bench::new();
    let file = bench.file("wrong.toml", "[serve]\nprot = 1\nport = \"80\"\n\n[common]\nthreads = 0\n");
    let path = file.to_str().expect("a plain path");
    let checked = bench.run(["config", "check", path]);
    assert_eq!(checked.status.code(), Some(1));
    let lines: Vec<String> = text(&checked.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("wrong.toml:2: [serve] has no setting 'prot'; is 'port' meant?"), "{lines:?}");
    assert!(lines[1].contains("wrong.toml:3: port in [serve]: it is text; use a whole number"), "{lines:?}");
    assert!(
        lines[2].contains("wrong.toml:6: threads in [common]: 0 cannot be used: use a number from 1 to 1024"),
        "{lines:?}"
    );
    let line = error_line(&bench.run(["list", "--config", path]), 2);
    assert!(line.contains("wrong.toml line 2: ") && line.contains("2 more"), "{line}");
    let line = error_line(&bench.run(["--config", "none.toml", "list"]), 1);
    assert!(line.contains("cannot read the settings file none.toml"), "{line}");
    // What stands alone is right, and does not fit.
    let file = bench.file("apart.toml", "[serve]\nlearn-key = \"x\"\n");
    let checked = bench.run(["config", "check", file.to_str().expect("a plain path")]);
    assert!(
        text(&checked.stdout).contains("[serve] the following required arguments were not provided"),
        "{checked:?}"
    );
    let file = bench.file("general.toml", "\n[general]\nisa = \"mmx\"\n");
    let line = error_line(&bench.run(["list", "--config", file.to_str().expect("a plain path")]), 2);
    assert!(line.contains("general.toml line 3: isa in [general]"), "{line}");
}

#[test]
fn values_are_shown_with_where_they_come_from() {
    let bench = Bench::new();
    let file = bench.file(
        "c.toml",
        "[general]\nsources = \"pypi\"\n[common]\ntemp = 0\nthreads = 3\n[serve]\nport = 9\napi-key = \"very-secret\"\n",
    );
    let run = |args: &[&str]| {
        let mut command = bench.ruvllm();
        command.env("RUVLLM_CONFIG", &file).env_remove("RUVLLM_THREADS").env("RUST_LOG", "warn").args(args);
        command.output().expect("the command starts")
    };
    let output = run(&["config", "show", "--json", "--", "--queue", "7"]);
    assert!(!text(&output.stdout).contains("very-secret"));
    let shown: Value = serde_json::from_str(&text(&output.stdout)).expect("JSON");
    let of = |key: &str| {
        let rows = shown["settings"].as_array().expect("a list");
        let row = rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{key}"));
        [&row["value"], &row["source"], &row["place"]].map(|value| value.as_str().expect("text").to_owned())
    };
    assert_eq!(of("sources"), ["pypi", "file", "line 2"]);
    assert_eq!(of("temp"), ["0", "file", "line 4"]);
    assert_eq!(of("port"), ["9", "file", "line 7"]);
    assert_eq!(of("queue"), ["7", "option", "command line"]);
    assert_eq!(of("log-level"), ["warn", "environment", "RUST_LOG"]);
    assert_eq!(of("host"), ["127.0.0.1", "default", "default"]);
    assert_eq!(of("api-key")[0], "(not shown)");
    assert_eq!(of("home")[1], "environment");
    let lines = text(&run(&["config", "show", "run"]).stdout);
    assert!(lines.contains("[run]") && !lines.contains("[serve]"), "{lines}");
}

#[test]
fn a_command_reads_its_settings() {
    let bench = Bench::new();
    let model = tiny();
    let file = bench.file(
        "run.toml",
        format!("[run]\nmodel = {:?}\nraw = true\nmax-tokens = 3\ntemp = 0\nignore-eos = true\njson = true\n", model),
    );
    let path = file.to_str().expect("a plain path");
    let answer = bench.json(["run", "--config", path, "--prompt", "Once"]);
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(3), "{answer}");
    let answer = bench.json(["run", "--config", path, "--prompt", "Once", "--max-tokens", "2"]);
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(2), "{answer}");
    let plain = bench.run(["run", "--config", path, "--prompt", "Once", "--json=false"]);
    assert!(plain.status.success() && !text(&plain.stdout).starts_with('{'), "{plain:?}");
}

/// Replaces a file at once, as editors do.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).expect("written");
}

#[test]
fn a_server_under_load_takes_new_settings_and_no_request_fails() {
    let bench = Bench::new();
    let text_with = |more: &str| {
        format!("[serve]\nmodel = {:?}\nalias = \"tiny\"\nctx = 512\ntemp = 0\nlog-level = \"info\"\n{more}", tiny())
    };
    let file = bench.file("serve.toml", text_with("queue = 500\n"));
    let path = file.to_str().expect("a plain path");
    let server = Server::start_as(&bench, &["--config", path]);
    let status = |model: &str, max_tokens: usize| {
        let body = json!({ "model": model, "prompt": "Once", "max_tokens": max_tokens, "ignore_eos": true });
        let answer = server.ask("POST /v1/completions", &body);
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let wait = |what: &str, is_there: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !is_there() {
            assert!(start.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let n_answered = std::thread::scope(|scope| {
        let load = || {
            let mut n = 0;
            while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                assert_eq!(status("tiny", 8), "200");
                n += 1;
            }
            n
        };
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(load)).collect();
        assert_eq!(status("other", 1), "404");
        // By the change of the file: another name, another limit.
        replace(&file, &text_with("queue = 400\nmax-body = 2000000\n").replace("\"tiny\"", "\"tiny,other\""));
        wait("the other name", &|| status("other", 1) == "200");
        let limits = server.ask("GET /v1/capabilities", &Value::Null);
        assert!(limits.contains("\"body_bytes\":2000000") && limits.contains("\"queue\":400"), "{limits}");
        // A file that is wrong changes nothing.
        replace(&file, "[serve]\nprot = 1\n");
        std::thread::sleep(Duration::from_millis(1200));
        assert_eq!(status("other", 1), "200");
        // What takes a restart is told; the rest is taken.
        replace(&file, &text_with("prefill-chunk = 64\nany-model-name = true\n"));
        wait("any name", &|| status("whatever", 1) == "200");
        is_over.store(true, std::sync::atomic::Ordering::Release);
        clients.into_iter().map(|client| client.join().expect("no request fails")).sum::<usize>()
    });
    assert!(n_answered > 10, "{n_answered}");
    let log = server.end("-TERM");
    for piece in [
        "the settings file was read again: alias, max-body, queue",
        "has no setting 'prot'; is 'port' meant?",
        "these settings have changed, and hold after a restart: prefill-chunk",
    ] {
        assert!(log.contains(piece), "'{piece}' in {log}");
    }
}

#[test]
#[cfg(unix)]
fn a_hangup_and_a_change_bring_keys_and_levels() {
    let bench = Bench::new();
    let (one, two) = (bench.file("one", "ann key-of-ann\n"), bench.file("two", "bob key-of-bob\n"));
    let text_with = |keys: &Path, level: &str| {
        format!("[serve]\nmodel = {:?}\nctx = 512\napi-key-file = {keys:?}\nlog-level = {level:?}\n", tiny())
    };
    let file = bench.file("serve.toml", text_with(&one, "info"));
    let server = Server::start_as(&bench, &["--config", file.to_str().expect("a plain path")]);
    let status = |key: &str| {
        let head = format!("GET /v1/models HTTP/1.1\r\nauthorization: Bearer {key}\r\nx-first-line:");
        server.ask(&head, &Value::Null).split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!((status("key-of-ann").as_str(), status("key-of-bob").as_str()), ("200", "401"));
    std::fs::write(&file, text_with(&two, "debug")).expect("written");
    let sent = std::process::Command::new("kill").args(["-HUP", &server.id().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
    let start = Instant::now();
    while status("key-of-bob") != "200" {
        assert!(start.elapsed() < Duration::from_secs(30), "the key is not read");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(status("key-of-ann"), "401");
    let health = server.ask("GET /health", &Value::Null);
    assert!(health.starts_with("HTTP/1.1 200"));
    let log = server.end("-TERM");
    assert!(log.contains("the settings file was read again: api-key-file, log-level"), "{log}");
    assert!(log.contains("DEBUG") && log.contains("path=\"/health\""), "probes are debug: {log}");
}

/// `RUVLLM_WRITE_DOCS=1` writes the page instead of comparing it.
#[test]
fn the_page_of_settings_is_that_of_the_schema() {
    let page = page(&schema(&Bench::new()));
    check_page("settings.md", &page, "cargo test -p ruvllm-cli --test it config");
}

const HEAD: &str = "\
# Settings

<!-- generated from `ruvllm config schema` by crates/ruvllm-cli/tests/it/config.rs -->

Every option of `serve`, `run` and `chat` is a setting of a TOML file. The command line wins over the environment, the
environment over the file, and a table of a command over `[common]`. A switch that the file turns on is turned off by
`--NAME=false`.

```sh
ruvllm config init       # a file in which every setting is a comment
ruvllm config check      # a line for each mistake, with its number and what is right
ruvllm config show       # each value of `serve`, and where it comes from
ruvllm config schema     # JSON Schema, for editors
```

```toml
[general]
home = \"/var/lib/ruvllm\"

[common]
threads = 8

[serve]
model = [\"smollm2:135m\", \"qwen2.5-coder:0.5b\"]
host = \"0.0.0.0\"
api-key-file = \"/etc/ruvllm/keys\"
```

## The file

The first of these is read: the file of `--config FILE`; that of `RUVLLM_CONFIG`; `ruvllm/config.toml` in `$XDG_CONFIG_HOME`
(`~/.config`); `/etc/ruvllm/config.toml`. `--config none` and `RUVLLM_CONFIG=none` read none. Paths in it are relative to the
folder that the program is started in. A key that is no setting, a value of another type and one that the option refuses end
the start, with the line and what is right.

Keys need not stand in it: `api-key-file`, `remote-key-file`, `hf-token-path`, `learn-key` and `witness-key` name files.
`config show` prints no value of `api-key`, and `config check` warns of a file with keys that others may read.

## While a server runs

`ruvllm serve` reads the file again when it changes and on SIGHUP. What is *at once* in the table below holds from the next
request on, and no request fails. The log names what has changed, and which of it holds after a restart. A file with a mistake
changes nothing. The key file, the certificate and its key are read again when their content changes, as before.
";

/// Returns the page.
fn page(schema: &Value) -> String {
    let mut page = HEAD.to_owned();
    for (table, about, column) in [
        ("general", "What has a variable of the environment ([Configuration](configuration.md)) and no option.", false),
        ("common", "Options that `serve`, `run` and `chat` have.", true),
        ("serve", "All options of `ruvllm serve`; those of `[common]` have the same meaning and stand there.", true),
        ("run", "Options of `ruvllm run` that are not in `[common]`.", false),
        ("chat", "Options of `ruvllm chat` that are not in `[common]`.", false),
    ] {
        let _ = writeln!(page, "\n## [{table}]\n\n{about}\n");
        page.push_str(if column {
            "| setting | takes | default | new value | what it does |\n|---|---|---|---|---|\n"
        } else {
            "| setting | takes | default | what it does |\n|---|---|---|---|\n"
        });
        let common = &schema["properties"]["common"]["properties"];
        for (key, setting) in schema["properties"][table]["properties"].as_object().expect("settings") {
            if table != "common" && table != "general" && common.get(key).is_some() {
                continue;
            }
            let default = setting.get("default").map_or_else(String::new, |default| format!("`{default}`"));
            let reload = match (column, setting["x-reload"] == true) {
                (false, _) => String::new(),
                (true, true) => " at once |".to_owned(),
                (true, false) => " restart |".to_owned(),
            };
            let help = escaped(setting["description"].as_str().unwrap_or_default());
            let _ =
                writeln!(page, "| `{key}` | {} | {} |{reload} {help} |", takes(setting), default.replace('|', "\\|"));
        }
    }
    page
}

/// Returns what a setting takes, in words.
fn takes(setting: &Value) -> String {
    if let Some([one, _]) = setting["anyOf"].as_array().map(Vec::as_slice) {
        return format!("{}, or a list", takes(one));
    }
    if let Some(words) = setting["enum"].as_array() {
        let words: Vec<String> = words.iter().map(|word| format!("`{}`", word.as_str().unwrap_or_default())).collect();
        return words.join(", ");
    }
    match setting["type"].as_str() {
        Some("boolean") => "`true`, `false`",
        Some("integer") => "whole number",
        Some("number") => "number",
        Some("string") => "text",
        _ => "text or number",
    }
    .to_owned()
}

/// Returns a help text as Markdown.
fn escaped(text: &str) -> String {
    let marks = ['|', '<', '>', '*', '_', '[', ']'];
    text.chars().flat_map(|c| marks.contains(&c).then_some('\\').into_iter().chain([c])).collect()
}
