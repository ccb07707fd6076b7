//! Downloads: resume, checksums, refusals, files that are replaced meanwhile, models in several files.

use std::time::{Duration, Instant};

use super::server::{Cut, Hub, hex_digest};
use super::{TOKEN, model_bytes, run, ruvllm};
use crate::common::{Bench, error_line, json_of};

const NAME: &str = "hf:owner/repo/dir/m.gguf";

fn hub() -> Hub {
    Hub::start(&[("owner/repo", "dir/m.gguf", &model_bytes(7))])
}

fn cut(after: usize) -> Cut {
    Cut { after, then: None }
}

#[test]
fn a_download_that_is_cut_goes_on_and_the_token_stays_with_the_hub() {
    let (bench, hub) = (Bench::new(), hub());
    hub.state().token = Some(TOKEN.to_owned());
    hub.state().cuts.extend([cut(50_000), cut(0), cut(30_000)]);
    let output = run(ruvllm(&bench, &hub).env("HF_TOKEN", TOKEN), &["pull", NAME, "--json"]);
    let pulled = json_of(&output);
    assert_eq!(pulled["sha256"].as_str(), Some(hex_digest(&model_bytes(7)).as_str()));
    let ranges: Vec<String> =
        hub.seen("/blob/").into_iter().map(|seen| seen.headers.get("range").cloned().unwrap_or_default()).collect();
    for start in ["bytes=50000-", "bytes=80000-"] {
        assert!(ranges.iter().any(|range| range == start), "{ranges:?}");
    }
    assert!(hub.seen("/blob/").iter().all(|seen| !seen.headers.contains_key("authorization")));
    assert!(hub.seen("/resolve/").iter().all(|seen| seen.headers["authorization"].ends_with(TOKEN)));
}

#[test]
fn a_download_goes_on_in_another_process() {
    let (bench, hub) = (Bench::new(), hub());
    hub.state().cuts.extend([cut(60_000), cut(0), cut(0), cut(0), cut(0), cut(0)]);
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", NAME]), 1);
    assert!(line.contains("broke off at byte 60000 of 150004"), "{line}");
    hub.state().cuts.clear();
    json_of(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--json"]));
    assert!(hub.seen("/blob/").iter().any(|seen| seen.headers["range"] == "bytes=60000-"));
}

#[test]
fn bytes_that_are_not_the_hubs_are_refused() {
    let (bench, hub) = (Bench::new(), hub());
    hub.state().is_damaged = true;
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", NAME]), 1);
    assert!(line.contains(&format!("and the hub says {}", hex_digest(&model_bytes(7)))), "{line}");
    // Nothing of them is taken for the file later.
    hub.state().is_damaged = false;
    json_of(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--json"]));
}

#[test]
fn a_checksum_file_of_the_repository_counts() {
    for (file, sums) in [
        ("dir/SHA256SUMS", format!("{}  m.gguf\n", "0".repeat(64))),
        ("dir/m.gguf.sha256", format!("{}  m.gguf\n", "0".repeat(64))),
        ("SHA256SUMS", format!("{} *dir/m.gguf\n", "0".repeat(64))),
    ] {
        let (bench, hub) = (Bench::new(), hub());
        hub.put("owner/repo", file, sums.as_bytes());
        let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", NAME]), 1);
        assert!(line.contains(&format!("{file} of the repository says 000000")), "{line}");
        assert!(hub.seen("/blob/").iter().all(|seen| seen.headers["range"] == "bytes=0-0"), "no traffic for it");
        hub.put("owner/repo", file, format!("{}  m.gguf\n", hex_digest(&model_bytes(7))).as_bytes());
        json_of(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--json"]));
    }
}

#[test]
fn a_checksum_of_another_folders_file_counts_for_that_one() {
    let (bench, hub) = (Bench::new(), hub());
    hub.put("owner/repo", "m.gguf", &model_bytes(5));
    hub.put("owner/repo", "SHA256SUMS", format!("{}  m.gguf\n", hex_digest(&model_bytes(5))).as_bytes());
    for (name, bytes) in [(NAME, model_bytes(7)), ("hf:owner/repo/m.gguf", model_bytes(5))] {
        let pulled = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", name, "--json"]));
        assert_eq!(pulled["sha256"].as_str(), Some(hex_digest(&bytes).as_str()), "{name}");
    }
    // The one that it names is refused by it.
    hub.put("owner/repo", "SHA256SUMS", format!("{}  m.gguf\n", "0".repeat(64)).as_bytes());
    let line = error_line(&run(&mut ruvllm(&Bench::new(), &hub), &["pull", "hf:owner/repo/m.gguf"]), 1);
    assert!(line.contains("SHA256SUMS of the repository says 000000"), "{line}");
}

/// Returns where the cache has content with this SHA-256.
fn blob(bench: &Bench, sha256: &str) -> std::path::PathBuf {
    bench.path("hf/hub/models--owner--repo/blobs").join(sha256)
}

#[test]
fn a_damaged_file_of_the_cache_is_downloaded_again() {
    let (bench, hub) = (Bench::new(), hub());
    let sha256 = hex_digest(&model_bytes(7));
    let blob = blob(&bench, &sha256);
    // Damaged behind a link, and before there is one.
    for is_linked in [true, false] {
        if is_linked {
            json_of(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--json"]));
            json_of(&run(&mut ruvllm(&bench, &hub), &["rm", NAME, "--json"]));
        } else {
            let snapshots = bench.path("hf/hub/models--owner--repo/snapshots");
            std::fs::remove_dir_all(snapshots).expect("the cache");
        }
        std::fs::write(&blob, &model_bytes(7)[..100_000]).expect("the cache is writable");
        if is_linked {
            let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--offline"]), 1);
            assert!(line.contains("in the cache is damaged: it has sha256") && line.contains(&sha256), "{line}");
            assert!(line.ends_with("pull it without --offline"), "{line}");
        }
        let pulled = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--json"]));
        assert_eq!((&pulled["was_there"], pulled["sha256"].as_str()), (&false.into(), Some(sha256.as_str())));
        assert_eq!(hex_digest(&std::fs::read(&blob).expect("the cache")), sha256);
        json_of(&run(&mut ruvllm(&bench, &hub), &["rm", NAME, "--json"]));
    }
}

#[test]
fn names_that_differ_in_separators_alone_are_two_models() {
    let (bench, hub) = (Bench::new(), hub());
    hub.put("owner/repo", "dir-m.gguf", &model_bytes(5));
    let other = "hf:owner/repo/dir-m.gguf";
    json_of(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--json"]));
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["rm", other]), 1);
    assert!(line.contains("dir-m.gguf is not on this machine"), "{line}");
    let pulled = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", other, "--json"]));
    assert_eq!((&pulled["was_there"], &pulled["sha256"]), (&false.into(), &hex_digest(&model_bytes(5)).into()));
    for (name, bytes) in [(NAME, model_bytes(7)), (other, model_bytes(5))] {
        let again = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", name, "--json"]));
        assert_eq!((&again["was_there"], &again["sha256"]), (&true.into(), &hex_digest(&bytes).into()), "{name}");
        assert!(std::fs::read(again["path"].as_str().expect("a path")).expect("the model") == bytes, "{name}");
    }
}

#[test]
fn a_login_that_is_missing_or_wrong_is_told_with_its_place() {
    let (bench, hub) = (Bench::new(), hub());
    hub.state().token = Some(TOKEN.to_owned());
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", NAME]), 1);
    assert!(line.contains("asks for a login (401), and there is no token in HF_TOKEN or "), "{line}");
    let wrong = "hf_WrongWrong";
    let output = run(ruvllm(&bench, &hub).env("HF_TOKEN", wrong), &["pull", NAME]);
    let line = error_line(&output, 1);
    assert!(line.contains("does not take the token of HF_TOKEN (401)") && !line.contains(wrong), "{line}");
    let file = bench.file("token", format!("{wrong}\n"));
    let output = run(ruvllm(&bench, &hub).env("HF_TOKEN_PATH", &file), &["pull", NAME]);
    let line = error_line(&output, 1);
    assert!(line.contains(&format!("the token of {} (401)", file.display())) && !line.contains(wrong), "{line}");
    hub.state().faults.push_back(("/resolve/".to_owned(), "403 Forbidden".to_owned(), String::new()));
    hub.state().token = None;
    let output = run(ruvllm(&bench, &hub).env("HF_TOKEN", wrong), &["pull", NAME]);
    let line = error_line(&output, 1);
    assert!(line.contains("the token of HF_TOKEN has no right to this (403)"), "{line}");
    let output = run(ruvllm(&bench, &hub).env("HF_TOKEN", "two words"), &["pull", NAME]);
    let line = error_line(&output, 1);
    assert!(line.contains("HF_TOKEN holds no token") && !line.contains("two words"), "{line}");
}

#[test]
fn a_hub_that_asks_to_wait_is_obeyed_within_a_bound() {
    let (bench, hub) = (Bench::new(), hub());
    let busy = |seconds: u64| {
        ("/resolve/".to_owned(), "429 Too Many Requests".to_owned(), format!("Retry-After: {seconds}\r\n"))
    };
    hub.state().faults.push_back(busy(2));
    let begun = Instant::now();
    json_of(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--json"]));
    assert!(begun.elapsed() >= Duration::from_secs(2));

    hub.state().faults.push_back(busy(3600));
    let begun = Instant::now();
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:owner/repo/other.gguf"]), 1);
    assert!(line.contains("asks to wait 3600 s before the next request (429)"), "{line}");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_file_that_is_replaced_meanwhile_is_never_mixed() {
    let (bench, hub) = (Bench::new(), hub());
    let other = model_bytes(11);
    let then = Some(("owner/repo".to_owned(), "dir/m.gguf".to_owned(), other.clone()));
    hub.state().cuts.push_back(Cut { after: 70_000, then });
    let pulled = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--json"]));
    let path = pulled["path"].as_str().expect("a path");
    assert!(std::fs::read(path).expect("the model") == other);
    // A shorter one, too.
    let (bench, hub) = (Bench::new(), self::hub());
    let short = model_bytes(13)[..20_000].to_vec();
    let then = Some(("owner/repo".to_owned(), "dir/m.gguf".to_owned(), short.clone()));
    hub.state().cuts.push_back(Cut { after: 70_000, then });
    let pulled = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--json"]));
    assert!(std::fs::read(pulled["path"].as_str().expect("a path")).expect("the model") == short);
}

#[test]
fn offline_takes_what_is_in_the_cache_and_asks_nobody() {
    let (bench, hub) = (Bench::new(), hub());
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--offline"]), 1);
    assert!(
        line.ends_with("(hub: it is not in the cache, and --offline asks nobody); pull it without --offline"),
        "{line}"
    );
    assert!(hub.state().seen.is_empty());
    json_of(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--json"]));
    json_of(&run(&mut ruvllm(&bench, &hub), &["rm", NAME, "--json"]));
    hub.state().seen.clear();
    json_of(&run(&mut ruvllm(&bench, &hub), &["pull", NAME, "--offline", "--json"]));
    assert!(hub.state().seen.is_empty());
}

/// Writes a small model in three files, and returns their bytes.
fn shards() -> Vec<Vec<u8>> {
    let file = ruvllm_gguf::GgufFile::open(&crate::common::tiny()).expect("the small model is sound");
    let tensors: Vec<_> = file.tensors().cloned().collect();
    let write = |no: usize| {
        let mut writer = ruvllm_gguf::GgufWriter::new();
        if no == 0 {
            *writer.metadata_mut() = file.metadata().clone();
        }
        writer.metadata_mut().set("split.no", no as u32);
        writer.metadata_mut().set("split.count", 3u32);
        writer.metadata_mut().set("split.tensors.count", tensors.len() as u32);
        for tensor in
            tensors.iter().skip(no * tensors.len() / 3).take((no + 1) * tensors.len() / 3 - no * tensors.len() / 3)
        {
            let data = ruvllm_gguf::TensorData::from(file.data(tensor));
            writer.add_tensor(tensor.name.clone(), tensor.ty, &tensor.shape, data).expect("a sound tensor");
        }
        let dir = tempfile::tempdir().expect("a temporary folder");
        writer.write_file(&dir.path().join("part.gguf")).expect("a temporary folder is writable");
        std::fs::read(dir.path().join("part.gguf")).expect("a part")
    };
    (0..3).map(write).collect()
}

#[test]
fn all_files_of_a_model_are_pulled_listed_run_and_removed() {
    let (bench, hub) = (Bench::new(), Hub::start(&[]));
    for (no, bytes) in (1..).zip(shards()) {
        hub.put("owner/repo", &format!("m-0000{no}-of-00003.gguf"), &bytes);
    }
    let name = "hf:owner/repo/m-00001-of-00003.gguf";
    let shown = json_of(&run(&mut ruvllm(&bench, &hub), &["show", name, "--json", "--tensors"]));
    let n_tensors = shown["tensors"].as_array().expect("tensors").len();
    let pulled = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", name, "--json"]));
    assert_eq!(pulled["bytes"].as_u64(), Some(shards().iter().map(|part| part.len() as u64).sum()));
    assert_eq!(json_of(&run(&mut ruvllm(&bench, &hub), &["pull", name, "--json"]))["was_there"], true);
    let listed = json_of(&run(&mut ruvllm(&bench, &hub), &["list", "--json"]));
    assert_eq!(listed["models"].as_array().map(Vec::len), Some(1));
    let shown = json_of(&run(&mut ruvllm(&bench, &hub), &["show", name, "--json", "--tensors"]));
    assert_eq!((shown["remote"].as_bool(), shown["tensors"].as_array().map(Vec::len)), (Some(false), Some(n_tensors)));
    let args = ["run", "--model", name, "--prompt", "a", "--raw", "--max-tokens", "2", "--json"];
    assert!(json_of(&run(&mut ruvllm(&bench, &hub), &args))["text"].is_string());
    let removed = json_of(&run(&mut ruvllm(&bench, &hub), &["rm", name, "--json"]));
    assert_eq!(removed["freed_bytes"], pulled["bytes"]);
    let left = std::fs::read_dir(bench.path("home/models")).expect("the folder").flatten();
    assert_eq!(left.filter(|entry| entry.path().extension().is_some_and(|e| e == "gguf")).count(), 0);

    let second = "hf:owner/repo/m-00002-of-00003.gguf";
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", second]), 1);
    assert!(line.contains("part 2 of 3; name the first one, m-00001-of-00003.gguf"), "{line}");
    hub.state().repos.get_mut("owner/repo").expect("the repository").remove("m-00003-of-00003.gguf");
    std::fs::remove_dir_all(bench.path("hf")).expect("the hub's cache");
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", name]), 1);
    assert!(line.contains("m-00003-of-00003.gguf: no such file in the repository (404)"), "{line}");
}
