//! Commands on small golden models and on the real SmolLM2.

use std::io::Read;
use std::process::{Command, Stdio};

use ruvllm_testkit::{Golden, compare_logits, real_model};
use serde_json::Value;

use crate::common::{Bench, json_of, text, tiny, told};

fn path_of(path: &std::path::Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn run_answers_with_one_object() {
    let bench = Bench::new();
    let model = real_model("smollm2:135m");
    let args = ["run", "--model", path_of(&model), "--prompt", "Why is the sky blue?"];
    let answer =
        |more: &[&str]| bench.json(args.iter().chain(&["--temp", "0", "--max-tokens", "24", "--json"]).chain(more));
    let object = answer(&[]);
    let said = object["text"].as_str().expect("a text");
    assert!(said.contains("sky"), "{said}");
    let tokens = object["tokens"].as_array().expect("tokens");
    assert!(!tokens.is_empty() && tokens.len() <= 24);
    assert!(object["prompt_tokens"].as_array().is_some_and(|tokens| tokens.len() > 8));
    assert!(["stop", "length"].contains(&object["finish_reason"].as_str().unwrap_or_default()));
    for key in ["load_ms", "prompt_ms", "prompt_tps", "decode_tps", "ttft_ms", "cached_tokens", "kv_bytes_per_token"] {
        assert!(object["timings"][key].as_f64().is_some_and(|value| value >= 0.0), "{key}");
    }
    assert_eq!(answer(&["--threads", "2"])["tokens"], object["tokens"], "threads do not change the answer");
    let streamed = bench.run(args.iter().chain(&["--temp", "0", "--max-tokens", "24"]));
    assert_eq!(text(&streamed.stdout).trim_end(), said.trim_end());
    assert_eq!(told(&streamed.stderr), "");
}

#[test]
fn run_honours_raw_seed_and_stop() {
    let bench = Bench::new();
    let model = tiny();
    let run = |more: &[&str]| {
        let args = ["run", "--model", path_of(&model), "--raw", "--prompt", "hello", "--max-tokens", "8", "--json"];
        bench.json(args.iter().chain(more))
    };
    assert_eq!(run(&["--seed", "7"])["tokens"], run(&["--seed", "7"])["tokens"]);
    assert_eq!(run(&["--temp", "0"])["tokens"], run(&["--temp", "0", "--seed", "1"])["tokens"]);
    let all = run(&["--temp", "0", "--ignore-eos"]);
    assert_eq!(all["tokens"].as_array().map(Vec::len), Some(8));
    assert_eq!(all["finish_reason"], "length");
    let said = all["text"].as_str().expect("a text");
    if let Some(stop) = said.split_whitespace().nth(1) {
        let stopped = run(&["--temp", "0", "--ignore-eos", "--stop", stop]);
        assert_eq!(stopped["finish_reason"], "stop");
        assert!(!stopped["text"].as_str().unwrap_or_default().contains(stop));
    }
}

#[test]
fn run_reads_control_tokens_in_raw_prompts_alone() {
    let bench = Bench::new();
    let model = tiny();
    let ids = |more: &[&str]| {
        let args = ["run", "--model", path_of(&model), "--prompt", "a</s>b", "--max-tokens", "1", "--json"];
        let tokens = bench.json(args.iter().chain(more))["prompt_tokens"].clone();
        tokens.as_array().expect("tokens").iter().filter_map(Value::as_u64).collect::<Vec<_>>()
    };
    let (read, as_text) = (ids(&["--raw"]), ids(&["--raw", "--no-parse-special"]));
    // The token that ends texts stands where it was written, and at no end.
    assert_eq!(read.iter().filter(|&&id| id == 2).count(), 1, "{read:?}");
    assert!(!as_text.contains(&2) && as_text.len() > read.len(), "{as_text:?}");
    assert_eq!((ids(&["--raw", "--parse-special"]), ids(&[])), (read.clone(), as_text));
    assert_eq!(ids(&["--parse-special"]), read);
}

#[test]
fn run_reads_the_prompt_from_a_pipe() {
    let bench = Bench::new();
    let model = tiny();
    let run = |args: &[&str], stdin: &str| {
        let mut command = bench.ruvllm();
        command.args(["run", "--raw", "--temp", "0", "--max-tokens", "2", "--json", "--model", path_of(&model)]);
        json_of(&command.args(args).write_stdin(stdin).output().expect("the command starts"))
    };
    let by_flag = run(&["--prompt", "hello"], "");
    assert_eq!(run(&["--prompt", "-"], "hello\n")["prompt_tokens"], by_flag["prompt_tokens"]);
    assert_eq!(run(&[], "hello")["prompt_tokens"], by_flag["prompt_tokens"]);
}

#[test]
fn a_broken_pipe_ends_quietly() {
    let bench = Bench::new();
    let model = tiny();
    let args = ["run", "--raw", "--ignore-eos", "--prompt", "hello", "--max-tokens", "200", "--model", path_of(&model)];
    let binary = bench.ruvllm().get_program().to_owned();
    let mut child = Command::new(binary)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    drop(child.stdout.take());
    let mut stderr = Vec::new();
    child.stderr.take().expect("a pipe").read_to_end(&mut stderr).expect("a pipe");
    assert_eq!((child.wait().expect("the command ends").code(), &*told(&stderr)), (Some(0), ""));
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_the_answer_cleanly() {
    let bench = Bench::new();
    let model = real_model("smollm2:135m");
    let binary = bench.ruvllm().get_program().to_owned();
    let args =
        ["run", "--prompt", "Count to a thousand.", "--ignore-eos", "--max-tokens", "4000", "--model", path_of(&model)];
    let mut child = Command::new(binary)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_exact(&mut [0]).expect("the answer begins");
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill starts");
    assert!(killed.success());
    stdout.read_to_end(&mut Vec::new()).expect("the answer ends");
    let output = child.wait_with_output().expect("the command ends");
    assert_eq!((output.status.code(), &*told(&output.stderr)), (Some(130), ""));
}

#[test]
fn chat_answers_line_by_line() {
    let bench = Bench::new();
    let model = real_model("smollm2:135m");
    let saved = bench.path("talk.json");
    let talk =
        format!("My name is Ada.\n/save {0}\nWhat is my name?\n/stats\n/clear\n/load {0}\n/exit\n", path_of(&saved));
    let mut command = bench.ruvllm();
    command.args(["chat", "--temp", "0", "--max-tokens", "16", "--model", path_of(&model)]);
    let output = command.write_stdin(talk).output().expect("the command starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("context: "), "{said}");
    let conversation: Value = serde_json::from_slice(&std::fs::read(saved).expect("a file")).expect("JSON");
    let roles: Vec<_> = conversation["messages"].as_array().expect("messages").iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["user", "assistant"]);
}

#[test]
fn all_that_chat_prints_is_json_where_that_is_asked_for() {
    let bench = Bench::new();
    let mut command = bench.ruvllm();
    command.args(["chat", "--json", "--temp", "0", "--max-tokens", "4", "--model", path_of(&tiny())]);
    let talk = "/help\n/system\nhello\n/set\n/set temp 0.5\n/stats\n/exit\n";
    let output = command.write_stdin(talk).output().expect("the command starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(lines.iter().filter(|line| line["note"].is_string()).count(), 4, "{said}");
    assert_eq!(lines.iter().filter(|line| line["text"].is_string()).count(), 1, "{said}");
}

#[test]
fn chat_says_when_the_context_is_full() {
    let bench = Bench::new();
    let model = tiny();
    let mut command = bench.ruvllm();
    command.args(["chat", "--ctx", "24", "--model", path_of(&model)]);
    let output =
        command.write_stdin("hello there\n".repeat(5) + &"long ".repeat(40)).output().expect("the command starts");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the context holds 24") && stderr.contains("/clear"), "{stderr}");
}

#[test]
fn tokenize_gives_ids() {
    let bench = Bench::new();
    let model = real_model("smollm2:135m");
    let ids = |args: &[&str]| {
        let object = bench.json(["tokenize", "--model", path_of(&model), "--json"].iter().chain(args));
        object["tokens"].as_array().expect("tokens").iter().map(|id| id.as_u64().unwrap_or(0)).collect::<Vec<_>>()
    };
    let case = &ruvllm_testkit::tokenizer_cases("smollm2:135m")[0];
    let expected: Vec<_> =
        case["ids_plain"].as_array().expect("ids").iter().map(|id| id.as_u64().unwrap_or(0)).collect();
    assert_eq!(ids(&["--text", case["text"].as_str().expect("a text")]), expected);
    assert_eq!(ids(&["--text", "<|im_start|>", "--parse-special"]), [1]);
    assert!(ids(&["--text", "<|im_start|>"]).len() > 1);

    let lines = bench.file("lines.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n");
    let output = bench.run(["tokenize", "--model", path_of(&model), "--file", path_of(&lines), "--json"]);
    let answers: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(answers.len(), 2);
    assert_eq!(text(&bench.run(["tokenize", "--model", path_of(&model), "--text", "a"]).stdout).lines().count(), 1);
}

#[test]
fn logits_are_those_of_the_golden_model() {
    let bench = Bench::new();
    let golden = Golden::load("llama-a");
    let tokens = bench.file("ids.json", serde_json::to_vec(&golden.tokens).expect("numbers"));
    let mut files = Vec::new();
    for chunk in ["512", "13"] {
        let out = bench.path(&format!("logits-{chunk}.f32"));
        let object = bench.json([
            "logits",
            "--model",
            path_of(&golden.model("f32")),
            "--tokens",
            path_of(&tokens),
            "--kv",
            "f32",
            "--chunk",
            chunk,
            "--out",
            path_of(&out),
            "--json",
        ]);
        assert_eq!(object["shape"], serde_json::json!([golden.tokens.len(), golden.n_vocab]));
        files.push(std::fs::read(out).expect("the output"));
    }
    assert_eq!(files[0], files[1], "the chunk does not change the logits");
    let logits: Vec<_> = files[0].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let comparison = compare_logits(&golden.logits(), &logits, golden.n_vocab);
    assert!(comparison.max_kl <= 1e-7 && comparison.max_abs_diff <= 1e-3, "{comparison:?}");
}

#[test]
fn logits_of_an_encoder_are_its_embedding() {
    let bench = Bench::new();
    let golden = Golden::load("bert-a");
    let tokens = bench.file("ids.json", serde_json::to_vec(&golden.tokens).expect("numbers"));
    let (model, out) = (golden.model("f32"), bench.path("embedding.f32"));
    let object = bench.json([
        "logits",
        "--model",
        path_of(&model),
        "--tokens",
        path_of(&tokens),
        "--out",
        path_of(&out),
        "--json",
    ]);
    assert_eq!(object["shape"], serde_json::json!([1, golden.pooled().len()]));
    let bytes = std::fs::read(out).expect("the output");
    let embedding: Vec<_> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert!(ruvllm_testkit::cosine(&embedding, &golden.pooled()) > 0.999_999);
}

#[test]
fn perplexity_scores_a_text() {
    let bench = Bench::new();
    let model = real_model("smollm2:135m");
    let file = bench.file("text.txt", "The quick brown fox jumps over the lazy dog. ".repeat(40));
    let args = ["perplexity", "--model", path_of(&model), "--file", path_of(&file), "--ctx", "64", "--chunks", "2"];
    let object = bench.json(args.iter().chain(&["--json"]));
    let (ppl, nll) = (object["ppl"].as_f64().expect("a number"), object["nll"].as_f64().expect("a number"));
    assert!(ppl > 1.0 && ppl < 3.0, "a repeated sentence is easy: {ppl}");
    assert!((nll.exp() - ppl).abs() < 1e-6 * ppl);
    assert_eq!(object["n_tokens"], 62);
    assert!(text(&bench.run(args).stdout).starts_with("perplexity "));
}

#[test]
fn bench_reports_every_test() {
    let bench = Bench::new();
    let model = tiny();
    let args = ["bench", "--model", path_of(&model), "--pp", "8,32", "--tg", "4", "--depth", "0,16", "--batch", "1,3"];
    let object = bench.json(args.iter().chain(&["--reps", "3", "--json"]));
    let results = object["results"].as_array().expect("results");
    let names: Vec<_> = results.iter().map(|result| result["test"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["pp8", "pp32", "tg4", "tg4@b3", "tg4@d16"]);
    for result in results {
        let rate = |key: &str| result[key].as_f64().expect("a rate");
        assert!(rate("tps_min") > 0.0 && rate("tps_min") <= rate("tps") && rate("tps") <= rate("tps_max"));
    }
    for key in ["weight_bytes", "read_gbps", "read_share", "load_ms", "peak_bytes"] {
        assert!(object[key].as_f64().is_some_and(|value| value > 0.0), "{key}");
    }
    assert_eq!(object["threads"], 1);
    let table = text(&bench.run(args.iter().chain(&["--reps", "1"])).stdout);
    assert!(table.contains("TEST") && table.contains("tg4@d16") && table.contains("GB/s"), "{table}");
}

#[test]
fn show_tells_what_is_in_a_file() {
    let bench = Bench::new();
    let model = tiny();
    let object = bench.json(["show", "--model", path_of(&model), "--tensors", "--metadata", "--json"]);
    assert_eq!(object["architecture"], "llama");
    assert_eq!(object["quantization"], "F32");
    assert_eq!(object["chat_template"], false);
    assert!(object["tensors"].as_array().is_some_and(|tensors| tensors.len() > 10));
    assert_eq!(object["metadata"]["general.architecture"], "llama");
    let shown = text(&bench.run(["show", path_of(&model), "--tensors", "--metadata"]).stdout);
    for piece in ["architecture   llama", "TYPE", "token_embd.weight", "tokenizer.ggml.model"] {
        assert!(shown.contains(piece), "'{piece}' in: {shown}");
    }
}

#[test]
fn detect_knows_this_machine() {
    let bench = Bench::new();
    let object = bench.json(["detect", "--json"]);
    let sets: Vec<_> = object["isa_available"].as_array().expect("names").iter().collect();
    assert!(sets.contains(&&object["isa"]) && sets.contains(&&Value::from("scalar")));
    assert_eq!(object["threads"], 1);
    let scalar = bench.ruvllm().args(["detect", "--json"]).env("RUVLLM_ISA", "scalar").output();
    assert_eq!(json_of(&scalar.expect("the command starts"))["isa"], "scalar");
    assert!(text(&bench.run(["detect"]).stdout).contains("instruction sets"));
}

#[test]
fn embed_gives_unit_vectors_of_texts_and_lines() {
    let bench = Bench::new();
    let model = real_model("minilm:l6");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("texts.jsonl");
    let texts = ["A cat sat on the mat.", "A kitten lay on the rug.", "Interest rates rose again."];
    let lines: Vec<String> = texts.iter().map(|text| serde_json::json!({ "text": text }).to_string()).collect();
    std::fs::write(&file, lines.join("\n\n")).expect("a temporary folder is writable");
    let out = bench.run(["embed", "--model", path_of(&model), "--file", path_of(&file), "--json"]);
    let vectors: Vec<Vec<f64>> = text(&out.stdout)
        .lines()
        .map(|line| {
            let object: Value = serde_json::from_str(line).expect("a JSON line");
            object["embedding"].as_array().expect("numbers").iter().filter_map(Value::as_f64).collect()
        })
        .collect();
    assert_eq!(vectors.iter().map(Vec::len).collect::<Vec<_>>(), [384; 3]);
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert!(vectors.iter().all(|vector| (dot(vector, vector) - 1.0).abs() < 1e-4));
    assert!(dot(&vectors[0], &vectors[1]) > dot(&vectors[0], &vectors[2]) + 0.3);
    let alone = bench.json(["embed", "--model", path_of(&model), "--text", texts[0], "--json"]);
    assert_eq!(alone["embedding"][7].as_f64(), Some(vectors[0][7]));
    assert!(alone["n_tokens"].as_u64().is_some_and(|n| n >= 8));
}
