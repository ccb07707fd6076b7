//! `ruvllm doctor`, completions and manual pages.

use serde_json::Value;

use crate::common::{Bench, error_line, text, tiny};

fn findings(report: &Value, subject: &str) -> Vec<(String, String)> {
    let all = report["findings"].as_array().expect("a list").iter();
    let meant = all.filter(|finding| finding["subject"] == subject);
    meant.map(|one| ["verdict", "line"].map(|key| one[key].as_str().expect("text").to_owned()).into()).collect()
}

#[test]
fn what_is_wrong_is_told_with_what_to_do() {
    let bench = Bench::new();
    // A port that nobody has, whoever else runs on this machine.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let config = bench.path("config/ruvllm/config.toml");
    std::fs::create_dir_all(config.parent().expect("a folder")).expect("made");
    std::fs::write(&config, format!("[serve]\nport = {port}\n")).expect("written");
    let report = bench.json(["doctor", "--json"]);
    assert_eq!(report["is_well"], true, "{report}");
    for subject in ["settings", "processor", "memory", "gpu", "home folder", "disk", "models", "port", "python"] {
        assert_eq!(findings(&report, subject).len(), 1, "{subject} in {report}");
    }
    assert!(findings(&report, "models")[0].1.contains("'ruvllm pull' brings the default one"));
    assert!(findings(&report, "port")[0].1.contains(&format!("127.0.0.1:{port} is free")));

    // A model that is another one than was pulled.
    let models = bench.path("home/models");
    std::fs::create_dir_all(&models).expect("made");
    std::fs::copy(tiny(), models.join("tiny.gguf")).expect("copied");
    let n_bytes = std::fs::metadata(tiny()).expect("it is there").len();
    let record = |sha256: &str| {
        let record = serde_json::json!({ "name": "tiny", "source": "hand", "sha256": sha256, "n_bytes": n_bytes, "pulled_at": "" });
        std::fs::write(models.join("tiny.json"), record.to_string()).expect("written");
    };
    record(&"0".repeat(64));
    let output = bench.run(["doctor"]);
    let (lines, line) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.code() == Some(1) && line.contains("one thing is wrong"), "{line}");
    assert!(lines.contains("wrong") && lines.contains("; ruvllm rm tiny, then ruvllm pull tiny"), "{lines}");
    assert!(bench.run(["doctor", "--quick"]).status.success());
    let sha256 = lines.split("has sha256 ").nth(1).and_then(|rest| rest.split(',').next()).expect("a digest");
    record(sha256);
    let report = bench.run(["doctor", "--json"]);
    assert!(text(&report.stdout).contains("tiny has the checksum it was pulled with"), "{report:?}");

    // A settings file that is wrong is a finding, not the end.
    std::fs::write(&config, "[serve]\nprot = 1\n").expect("written");
    let output = bench.run(["doctor", "--json"]);
    let report: Value = serde_json::from_str(&text(&output.stdout)).expect("JSON");
    assert_eq!(findings(&report, "settings")[0].0, "wrong");
    assert!(findings(&report, "settings")[0].1.contains("line 2"), "{report}");
}

#[test]
fn shells_know_commands_and_options() {
    let bench = Bench::new();
    for (shell, piece) in [
        ("bash", "complete -F _ruvllm"),
        ("zsh", "#compdef ruvllm"),
        ("fish", "complete -c ruvllm"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let output = bench.run(["completions", shell]);
        let script = text(&output.stdout);
        assert!(script.contains(piece) && script.contains("max-tokens") && script.contains("witness-keep"), "{shell}");
    }
    assert!(error_line(&bench.run(["completions", "csh"]), 2).contains("invalid value 'csh'"));
    let folder = bench.path("man");
    let made = bench.run(["completions", "--man", folder.to_str().expect("a plain path")]);
    assert!(made.status.success(), "{made:?}");
    let page =
        |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(page("ruvllm.1").contains(".TH ruvllm 1") && page("ruvllm-serve.1").contains("api\\-key\\-file"));
    assert!(
        page("ruvllm-config-check.1").contains("Check the settings file") && !folder.join("ruvllm-help.1").exists()
    );
}
