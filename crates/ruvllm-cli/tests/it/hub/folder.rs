//! Folders of safetensors on the hub: converted on the way, resumed, all of one commit.

use std::path::Path;

use ruvllm_gguf::{GgmlType, GgufFile};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use super::server::{Cut, Hub, LARGE, hex_digest};
use super::{run, ruvllm};
use crate::common::{Bench, error_line, json_of};
use crate::convert::model_files;

const REPO: &str = "owner/Tiny-Llama";

/// A hub with a tiny model, in one file.
fn hub() -> Hub {
    let hub = Hub::start(&[]);
    for (name, bytes) in model_files("llama") {
        hub.put(REPO, &name, &bytes);
    }
    hub
}

/// A hub with the same model in two files with an index.
fn sharded() -> Hub {
    let hub = hub();
    let whole = hub.state().repos.get_mut(REPO).and_then(|files| files.remove("model.safetensors")).expect("the model");
    let tensors = SafeTensors::deserialize(&whole).expect("safetensors");
    let mut map = serde_json::Map::new();
    let mut names: Vec<String> = tensors.names().into_iter().map(str::to_owned).collect();
    names.sort();
    for (i, names) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", i + 1);
        let part = names.iter().map(|name| (name, tensors.tensor(name).expect("a tensor")));
        hub.put(REPO, &file, &safetensors::serialize(part, None).expect("a file"));
        names.iter().for_each(|name| drop(map.insert(name.clone(), json!(file))));
    }
    hub.put(REPO, "model.safetensors.index.json", json!({ "weight_map": map }).to_string().as_bytes());
    hub
}

fn file_of(pulled: &Value) -> GgufFile {
    GgufFile::open(Path::new(pulled["path"].as_str().expect("a path"))).expect("a GGUF file")
}

#[test]
fn a_folder_is_converted_on_the_way_and_runs_by_its_name() {
    let (bench, hub) = (Bench::new(), sharded());
    let name = "hf:owner/Tiny-Llama";
    let pulled = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", name, "--json"]));
    assert_eq!(pulled["name"], "hf:owner/Tiny-Llama/");
    let file = file_of(&pulled);
    assert_eq!(file.metadata().str("general.name").expect("text"), Some("Tiny Llama"));
    // The same bytes as those of the folder when it lies here.
    let local = bench.path("Tiny-Llama");
    std::fs::create_dir(&local).expect("a temporary folder is writable");
    for (name, bytes) in hub.state().repos[REPO].clone() {
        bench.file(&format!("Tiny-Llama/{name}"), bytes);
    }
    assert!(bench.run(["convert", "Tiny-Llama", "local.gguf"]).status.success());
    let pulled_bytes = std::fs::read(pulled["path"].as_str().expect("a path")).expect("the model");
    assert!(pulled_bytes == std::fs::read(bench.path("local.gguf")).expect("the file"));
    // By its name, with a slash or without, and nobody is asked.
    let n_seen = hub.state().seen.len();
    let args =
        ["--raw", "--prompt", "the fox", "--temp", "0", "--max-tokens", "3", "--ignore-eos", "--json", "--model"];
    for name in [name, "hf:owner/Tiny-Llama/"] {
        let args = [&["run"], &args[..], &[name]].concat();
        let answer = json_of(&run(&mut ruvllm(&bench, &hub), &args));
        assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(3));
    }
    assert_eq!(hub.state().seen.len(), n_seen);
    // Files that are not listed are not asked for.
    assert!(hub.seen("/resolve/").iter().all(|seen| !seen.line.contains("merges.txt")));
}

#[test]
fn a_type_is_a_part_of_the_name() {
    let (bench, hub) = (Bench::new(), hub());
    let pulled = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:owner/Tiny-Llama", "--type", "q8_0", "--json"]));
    assert_eq!(pulled["name"], "hf:owner/Tiny-Llama/:Q8_0");
    let head = file_of(&pulled).tensor("token_embd.weight").expect("a tensor").ty;
    assert!(matches!(head, GgmlType::Q8_0 | GgmlType::F16), "{head}");
    let again = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:owner/Tiny-Llama:Q8_0", "--json"]));
    assert_eq!((&again["path"], &again["was_there"]), (&pulled["path"], &json!(true)));
    // The cache has the folder: another type costs no download.
    let n_blobs = hub.seen("/blob/").len();
    let other = json_of(&run(
        &mut ruvllm(&bench, &hub),
        &["pull", "hf:owner/Tiny-Llama", "--type", "F32", "--offline", "--json"],
    ));
    assert_eq!((other["was_there"].as_bool(), hub.seen("/blob/").len()), (Some(false), n_blobs));
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:owner/Tiny-Llama:Q9"]), 1);
    assert!(line.contains("no type 'Q9'; choose one of "), "{line}");
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:o/r/m.gguf", "--type", "Q8_0"]), 2);
    assert!(line.contains("is one exact file, and only folders are converted"), "{line}");
}

#[test]
fn a_recorded_sum_holds_whatever_the_card_says() {
    let (bench, hub) = (Bench::new(), hub());
    let pulled = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:owner/Tiny-Llama:F32", "--json"]));
    let sum = pulled["sha256"].as_str().expect("a sum");
    std::fs::create_dir_all(bench.path("config/ruvllm")).expect("a temporary folder is writable");
    let hub_of = "hub = { repo = \"owner/Tiny-Llama\", file = \"\" }";
    let entry = format!("[[model]]\nname = \"tiny:1\"\nquantization = \"F32\"\nsha256 = \"{sum}\"\n{hub_of}\n");
    bench.file("config/ruvllm/registry.toml", entry);
    std::fs::remove_dir_all(bench.path("hf")).expect("the cache");
    hub.put(REPO, "README.md", b"---\nlicense: mit\n---\n# Edited later\n");
    let again = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", "tiny:1", "--json"]));
    assert_eq!((again["was_there"].as_bool(), again["sha256"].as_str()), (Some(false), Some(sum)));
    // Without a recorded sum the card counts.
    let bench = Bench::new();
    let other = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:owner/Tiny-Llama:F32", "--json"]));
    assert_ne!(other["sha256"].as_str(), Some(sum));
    assert_eq!(file_of(&other).metadata().str("general.license").expect("text"), Some("mit"));
}

#[test]
fn a_folder_that_was_cut_off_goes_on_where_it_was() {
    let (bench, hub) = (Bench::new(), sharded());
    let cut = |after| Cut { after, then: None };
    let is_before = |name: &str, bytes: &[u8]| bytes.len() >= LARGE && !name.ends_with(".safetensors");
    let n_before = hub.state().repos[REPO].iter().filter(|(name, bytes)| is_before(name, bytes)).count();
    // The first file of weights breaks off.
    hub.state().cuts.extend((0..n_before).map(|_| cut(usize::MAX)));
    hub.state().cuts.extend([cut(3_000), cut(0), cut(0), cut(0), cut(0), cut(0)]);
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:owner/Tiny-Llama"]), 1);
    assert!(line.contains(" broke off at byte ") && line.contains("pull again to go on"), "{line}");
    hub.state().cuts.clear();
    let n_before = hub.seen("/blob/").len();
    json_of(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:owner/Tiny-Llama", "--json"]));
    let ranges: Vec<String> = hub.seen("/blob/")[n_before..].iter().map(|seen| seen.headers["range"].clone()).collect();
    assert!(ranges.iter().any(|range| range == "bytes=3000-"), "{ranges:?}");
}

#[test]
fn convert_takes_a_folder_of_the_hub() {
    let (bench, hub) = (Bench::new(), sharded());
    let args = ["convert", "hf:owner/Tiny-Llama", "out.gguf", "--type", "F16", "--name", "Mine", "--json"];
    let told = json_of(&run(&mut ruvllm(&bench, &hub), &args));
    assert_eq!((&told["architecture"], &told["type"]), (&json!("llama"), &json!("F16")));
    let file = GgufFile::open(&bench.path("out.gguf")).expect("a GGUF file");
    assert_eq!(file.metadata().str("general.name").expect("text"), Some("Mine"));
    for (args, part) in [
        (["convert", "hf:owner/Tiny-Llama:Q8_0", "o.gguf"], "give the type of hf:owner/Tiny-Llama:Q8_0 with --type"),
        (["convert", "hf:owner/Tiny-Llama/m.gguf", "o.gguf"], "is a GGUF file; name the folder"),
    ] {
        let line = error_line(&run(&mut ruvllm(&bench, &hub), &args), 2);
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn what_is_refused_costs_no_download_of_weights() {
    let (bench, hub) = (Bench::new(), hub());
    let n_bytes = |hub: &Hub| hub.seen("model.safetensors").len();
    // The type is looked at before anybody is asked.
    for (args, code) in [
        (["convert", "hf:owner/Tiny-Llama", "out.gguf", "--type", "IQ1_S"].to_vec(), 2),
        (["pull", "hf:owner/Tiny-Llama", "--type", "IQ1_S"].to_vec(), 1),
    ] {
        let line = error_line(&run(&mut ruvllm(&bench, &hub), &args), code);
        assert!(line.contains("IQ1_S needs an importance matrix"), "{line}");
    }
    assert!(hub.state().seen.is_empty());
    let config = hub.state().repos[REPO]["config.json"].clone();
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    for (key, value, part) in [
        ("architectures", json!(["TalkingHeadForever"]), "TalkingHeadForever"),
        ("quantization_config", json!({ "quant_method": "gptq", "bits": 4 }), "gptq"),
    ] {
        let mut config = config.clone();
        config[key] = value;
        hub.put(REPO, "config.json", config.to_string().as_bytes());
        std::fs::remove_dir_all(bench.path("hf")).unwrap_or_default();
        for args in [&["pull", "hf:owner/Tiny-Llama"][..], &["convert", "hf:owner/Tiny-Llama", "out.gguf"]] {
            let line = error_line(&run(&mut ruvllm(&bench, &hub), args), 1);
            assert!(line.contains(part), "{line}");
        }
        assert_eq!(n_bytes(&hub), 0, "{part}");
    }
}

#[test]
fn a_damaged_file_of_a_cached_folder_is_downloaded_again() {
    let (bench, hub) = (Bench::new(), hub());
    let convert = |out: &str| run(&mut ruvllm(&bench, &hub), &["convert", "hf:owner/Tiny-Llama", out, "--json"]);
    json_of(&convert("whole.gguf"));
    let weights = hub.state().repos[REPO]["model.safetensors"].clone();
    let sum = hex_digest(&weights);
    let blob = bench.path("hf/hub/models--owner--Tiny-Llama/blobs").join(&sum);
    std::fs::write(&blob, &weights[..weights.len() - 8]).expect("the cache is writable");
    json_of(&convert("again.gguf"));
    assert_eq!(hex_digest(&std::fs::read(&blob).expect("the cache")), sum);
    let read = |name: &str| std::fs::read(bench.path(name)).expect("the model");
    assert!(read("again.gguf") == read("whole.gguf"));
}

#[test]
fn additional_templates_come_with_the_folder() {
    let (bench, hub) = (Bench::new(), hub());
    hub.put(REPO, "additional_chat_templates/tool_use.jinja", b"{{ messages[0].content }} with tools");
    let config = hub.state().repos[REPO]["tokenizer_config.json"].clone();
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    drop(config.as_object_mut().expect("an object").remove("chat_template"));
    hub.put(REPO, "tokenizer_config.json", config.to_string().as_bytes());
    hub.put(REPO, "chat_template.jinja", b"{{ messages[0].content }}");
    let pulled = json_of(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:owner/Tiny-Llama", "--json"]));
    let file = file_of(&pulled);
    let template = file.metadata().str("tokenizer.chat_template.tool_use").expect("text");
    assert_eq!(template, Some("{{ messages[0].content }} with tools"));
}

#[test]
fn repositories_without_a_folder_are_told_what_they_have() {
    let (bench, hub) = (Bench::new(), hub());
    let config = hub.state().repos[REPO]["config.json"].clone();
    hub.put("owner/quantised", "sub/m-q4.gguf", b"GGUF");
    hub.put("owner/pickled", "config.json", &config);
    hub.put("owner/pickled", "pytorch_model.bin", b"PK");
    let line = |name: &str| error_line(&run(&mut ruvllm(&bench, &hub), &["pull", name]), 1);
    let found = line("hf:owner/quantised");
    assert!(
        found.contains("it has no config.json, but GGUF files; name one, such as hf:owner/quantised/sub/m-q4.gguf"),
        "{found}"
    );
    let found = line("hf:owner/pickled");
    assert!(found.contains("only pickled weights, which are not read"), "{found}");
    let found = line("hf:owner/none");
    assert!(found.contains("config.json: no such file in the repository (404)"), "{found}");
    // A hub that does not list its files is asked for each.
    hub.state().is_mute = true;
    json_of(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:owner/Tiny-Llama", "--json"]));
    assert!(!hub.seen("merges.txt").is_empty());
    // An index that leads elsewhere is refused before anything is asked for.
    hub.put("owner/evil", "config.json", &config);
    hub.put("owner/evil", "model.safetensors.index.json", br#"{"weight_map": {"a": "../../secret"}}"#);
    let found = line("hf:owner/evil");
    assert!(found.contains("which is not in the folder") && hub.seen("secret").is_empty(), "{found}");
}

#[test]
fn a_repository_that_changes_meanwhile_is_not_mixed() {
    let (bench, hub) = (Bench::new(), sharded());
    let then = Some((REPO.to_owned(), "README.md".to_owned(), b"new".to_vec()));
    hub.state().cuts.push_back(Cut { after: usize::MAX, then });
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["pull", "hf:owner/Tiny-Llama"]), 1);
    assert!(line.contains("the repository changed while it was downloaded"), "{line}");
}
