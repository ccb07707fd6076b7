//! Publishing: what is sent, what is not sent again, and what stays secret.

use super::server::{Hub, PART, hex_digest};
use super::{TOKEN, run, ruvllm};
use crate::common::{Bench, error_line, json_of, text, tiny, tiny_with};

/// Writes a small model that says something about itself.
fn model(bench: &Bench, name: &str) -> String {
    let path = bench.path(name);
    tiny_with(&path, |metadata| {
        metadata.set("general.name", "Tiny | one");
        metadata.set("general.license", "apache-2.0");
        metadata.set("general.base_model.0.repo_url", "https://huggingface.co/owner/base");
        metadata.set("quantize.imatrix.file", "own.imatrix.gguf");
        metadata.set("quantize.imatrix.dataset", "own text");
        metadata.set("ruvllm.witness.digest", "0123abcd");
    });
    path.to_string_lossy().into_owned()
}

fn push(bench: &Bench, hub: &Hub, args: &[&str]) -> std::process::Output {
    let mut command = ruvllm(bench, hub);
    command.env("HF_TOKEN", TOKEN).arg("push");
    run(&mut command, args)
}

#[test]
fn what_is_pushed_is_pulled_byte_for_byte() {
    let (bench, hub) = (Bench::new(), Hub::start(&[]));
    hub.state().token = Some(TOKEN.to_owned());
    let path = model(&bench, "m.gguf");
    let bytes = std::fs::read(&path).expect("the model");
    assert!(bytes.len() > 2 * PART, "it goes in parts: {}", bytes.len());
    let table = bench.file("ppl.json", "{\"ppl\":12.5,\"n_tokens\":4096}\n");
    let table = table.to_string_lossy();
    let args = [path.as_str(), "hf:owner/repo", "--private", "--table", &table, "--json"];
    let pushed = json_of(&push(&bench, &hub, &args));
    assert_eq!(pushed["repository"], "owner/repo");
    assert!(pushed["url"].as_str().is_some_and(|url| url.contains("/owner/repo/commit/")), "{pushed}");
    {
        let state = hub.state();
        let files = &state.repos["owner/repo"];
        assert_eq!(files.keys().collect::<Vec<_>>(), ["README.md", "SHA256SUMS", "m.gguf"]);
        assert!(files["m.gguf"] == bytes);
        assert_eq!(text(&files["SHA256SUMS"]), format!("{}  m.gguf\n", hex_digest(&bytes)));
        let card = text(&files["README.md"]);
        for piece in [
            "license: \"apache-2.0\"\nbase_model: \"owner/base\"\n",
            "# Tiny \\| one\n",
            "| Importance matrix | own.imatrix.gguf, of own text |",
            "witness digest 0123abcd",
            "| ppl | n_tokens |\n| --- | --- |\n| 12.5 | 4096 |\n",
            "ruvllm run --model 'hf:owner/repo/m.gguf'",
        ] {
            assert!(card.contains(piece), "{piece}\nin\n{card}");
        }
        assert_eq!(state.message, "Add m.gguf");
        let created = state.seen.iter().filter(|seen| seen.line == "POST /api/repos/create").count();
        assert_eq!(created, 1);
        assert!(
            state.seen.iter().filter(|seen| seen.at_storage).all(|seen| !seen.headers.contains_key("authorization"))
        );
    }
    // Nothing is noted of an upload that has ended.
    assert_eq!(std::fs::read_dir(bench.path("home/uploads")).expect("the folder").count(), 0);

    let other = Bench::new();
    let mut command = ruvllm(&other, &hub);
    let pulled = json_of(&run(command.env("HF_TOKEN", TOKEN), &["pull", "hf:owner/repo/m.gguf", "--json"]));
    assert!(std::fs::read(pulled["path"].as_str().expect("a path")).expect("the model") == bytes);
}

#[test]
fn a_second_file_joins_the_first_and_nothing_is_sent_twice() {
    let (bench, hub) = (Bench::new(), Hub::start(&[]));
    let first = model(&bench, "m-f32.gguf");
    json_of(&push(&bench, &hub, &[&first, "hf:owner/repo", "--json"]));
    let second = bench.path("m-other.gguf");
    tiny_with(&second, |metadata| metadata.set("general.name", "Other"));
    json_of(&push(&bench, &hub, &[&second.to_string_lossy(), "hf:owner/repo", "-m", "Another\nfile", "--json"]));
    let (card, sums) = {
        let state = hub.state();
        assert_eq!(state.message, "Another file");
        let files = &state.repos["owner/repo"];
        (text(&files["README.md"]), text(&files["SHA256SUMS"]))
    };
    for name in ["m-f32.gguf", "m-other.gguf"] {
        assert!(card.contains(&format!("| `{name}` |")) && sums.contains(&format!("  {name}\n")), "{card}{sums}");
    }
    let n_parts = hub.seen("PUT /part/").len();
    let again = json_of(&push(&bench, &hub, &[&second.to_string_lossy(), "hf:owner/repo", "--json"]));
    assert_eq!(hub.seen("PUT /part/").len(), n_parts);
    let file = again["files"].as_array().expect("files").iter().find(|file| file["name"] == "m-other.gguf");
    assert_eq!(file.expect("the file")["sent_bytes"], 0);
    // A card by hand is left alone.
    hub.put("owner/repo", "README.md", b"# By hand\n");
    let again = json_of(&push(&bench, &hub, &[&second.to_string_lossy(), "hf:owner/repo", "--json"]));
    assert_eq!(again["kept_card"], true);
    assert_eq!(text(&hub.state().repos["owner/repo"]["README.md"]), "# By hand\n");
}

#[test]
fn a_push_that_is_cut_sends_the_missing_parts_only() {
    let (bench, hub) = (Bench::new(), Hub::start(&[]));
    let path = model(&bench, "m.gguf");
    let bytes = std::fs::read(&path).expect("the model");
    let args = [path.as_str(), "hf:owner/repo", "--json"];
    // The connection breaks, and the hub then answers nothing useful for long enough.
    hub.state().cut_upload_after = Some(1);
    for _ in 0..5 {
        hub.state().faults.push_back((
            "/2?".to_owned(),
            "503 Service Unavailable".to_owned(),
            "Retry-After: 0\r\n".to_owned(),
        ));
    }
    let line = error_line(&push(&bench, &hub, &args), 1);
    assert!(line.contains("cannot send m.gguf: ") && line.ends_with("push again to go on"), "{line}");
    hub.state().faults.clear();
    let n_before = hub.seen("PUT /part/").len();
    let noted: Vec<_> = std::fs::read_dir(bench.path("home/uploads")).expect("the folder").flatten().collect();
    assert_eq!(noted.len(), 1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(
            noted[0].metadata().expect("a file").permissions().mode() & 0o077,
            0,
            "signed addresses are secrets"
        );
    }
    assert!(!hub.state().repos["owner/repo"].contains_key("m.gguf"), "no commit without the file");

    let pushed = json_of(&push(&bench, &hub, &args));
    let sent = hub.seen("PUT /part/")[n_before..].to_vec();
    assert!(sent.iter().all(|seen| !seen.line.contains("/1?")), "{sent:?}");
    assert_eq!(sent.len(), bytes.len().div_ceil(PART) - 1);
    let file =
        pushed["files"].as_array().expect("files").iter().find(|file| file["name"] == "m.gguf").expect("the file");
    assert_eq!(file["sent_bytes"].as_u64(), Some((bytes.len() - PART) as u64));
    assert!(hub.state().repos["owner/repo"]["m.gguf"] == bytes);
}

#[test]
fn an_upload_that_the_storage_forgot_begins_again() {
    let (bench, hub) = (Bench::new(), Hub::start(&[]));
    let path = model(&bench, "m.gguf");
    let args = [path.as_str(), "hf:owner/repo", "--json"];
    let fault = |status: &str| ("/2?".to_owned(), status.to_owned(), "Retry-After: 0\r\n".to_owned());
    (0..5).for_each(|_| hub.state().faults.push_back(fault("500 Internal Server Error")));
    error_line(&push(&bench, &hub, &args), 1);
    hub.state().faults.clear();
    hub.state().parts.clear();
    hub.state().faults.push_back(fault("403 Forbidden"));
    json_of(&push(&bench, &hub, &args));
    assert!(hub.state().repos["owner/repo"]["m.gguf"] == std::fs::read(&path).expect("the model"));
}

#[test]
fn a_dry_run_shows_everything_and_asks_nobody() {
    let (bench, hub) = (Bench::new(), Hub::start(&[]));
    let path = model(&bench, "m.gguf");
    let sha256 = hex_digest(&std::fs::read(&path).expect("the model"));
    let output = run(ruvllm(&bench, &hub).arg("push"), &[&path, "hf:owner/repo", "--dry-run"]);
    assert!(output.status.success());
    let shown = text(&output.stdout);
    for piece in [
        "nothing is sent",
        "owner/repo (public",
        "Add m.gguf",
        &sha256,
        "--- README.md\n---\nlicense",
        "--- SHA256SUMS\n",
    ] {
        assert!(shown.contains(piece), "{piece}\nin\n{shown}");
    }
    let planned = json_of(&run(ruvllm(&bench, &hub).arg("push"), &[&path, "hf:owner/repo", "--dry-run", "--json"]));
    assert_eq!(planned["files"].as_array().map(Vec::len), Some(3));
    assert!(hub.state().seen.is_empty());
}

#[test]
fn adapters_are_published_as_their_folder() {
    let (bench, hub) = (Bench::new(), Hub::start(&[]));
    std::fs::create_dir(bench.path("adapter")).expect("a temporary folder is writable");
    let config = "{\"peft_type\":\"LORA\",\"base_model_name_or_path\":\"/home/me/secret/base\",\"r\":8,\"lora_alpha\":16,\"target_modules\":[\"q_proj\"]}";
    bench.file("adapter/adapter_config.json", config);
    bench.file("adapter/adapter_model.safetensors", vec![7; 5000]);
    bench.file("adapter/.hidden", "x");
    let folder = bench.path("adapter");
    json_of(&push(&bench, &hub, &[&folder.to_string_lossy(), "hf:owner/adapter", "--json"]));
    let state = hub.state();
    let files = &state.repos["owner/adapter"];
    let names = ["README.md", "SHA256SUMS", "adapter_config.json", "adapter_model.safetensors"];
    assert_eq!(files.keys().collect::<Vec<_>>(), names);
    let card = text(&files["README.md"]);
    assert!(
        card.contains("library_name: peft") && card.contains("| Rank | 8 |") && card.contains("| Base | base |"),
        "{card}"
    );
    assert!(!card.contains("/home/me"), "{card}");
}

#[test]
fn what_cannot_be_pushed_is_told_in_one_line() {
    let (bench, hub) = (Bench::new(), Hub::start(&[]));
    let path = model(&bench, "m.gguf");
    let no_token = |args: &[&str]| run(ruvllm(&bench, &hub).arg("push"), args);
    let line = error_line(&no_token(&[&path, "hf:owner/repo"]), 2);
    assert!(line.contains("publishing needs a token, and there is none in HF_TOKEN or "), "{line}");
    for target in ["owner/repo", "hf:owner", "hf:owner/repo/m.gguf"] {
        let line = error_line(&no_token(&[&path, target]), 2);
        assert!(line.contains("write it as hf:owner/name"), "{line}");
    }
    let other = bench.file("notes.txt", "x");
    let line = error_line(&no_token(&[&other.to_string_lossy(), "hf:owner/repo"]), 1);
    assert!(line.contains("holds no model and no adapter"), "{line}");
    let damaged = bench.file("d.gguf", &std::fs::read(tiny()).expect("the model")[..300]);
    let line = error_line(&no_token(&[&damaged.to_string_lossy(), "hf:owner/repo"]), 1);
    assert!(line.contains("truncated"), "{line}");
    hub.state().token = Some("another".to_owned());
    let line = error_line(&push(&bench, &hub, &[&path, "hf:owner/repo"]), 1);
    assert!(
        line.contains("cannot make the repository owner/repo: the hub does not take the token of HF_TOKEN (401)"),
        "{line}"
    );
    let line = error_line(&push(&bench, &hub, &[&path, "hf:owner/repo", "--table", &other.to_string_lossy()]), 2);
    assert!(line.contains("notes.txt is no JSON"), "{line}");
}
