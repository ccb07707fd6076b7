//! What tools ask of llama.cpp's own server.

use ruvllm_engine::LoadOptions;
use ruvllm_testkit::real_model;
use serde_json::{Value, json};

use crate::client::{Bench, load_options, options};

const BEFORE: &str = "def add(a, b):\n    return ";
const BEHIND: &str = "\n\nprint(add(1, 2))\n";

#[test]
fn a_completion_is_that_of_the_api_in_other_words() {
    let bench = Bench::tiny(options());
    let body = json!({ "prompt": "a b c", "n_predict": 8, "temperature": 0, "ignore_eos": true, "n_keep": 0 });
    let reply = bench.post("/completion", &body);
    assert_eq!((reply.status, reply.header("x-ruvllm-unheeded")), (200, Some("n_keep")));
    let own = reply.json();
    let of_api = bench
        .post("/v1/completions", &json!({ "prompt": "a b c", "max_tokens": 8, "temperature": 0, "ignore_eos": true }))
        .json();
    assert_eq!(own["content"], of_api["choices"][0]["text"]);
    assert_eq!(own["tokens_evaluated"], of_api["usage"]["prompt_tokens"]);
    assert_eq!((&own["tokens_predicted"], &own["stop_type"], &own["stop"]), (&json!(8), &json!("limit"), &json!(true)));
    assert_eq!(own["timings"]["predicted_n"], 8);
    // In pieces, at the other path.
    let mut body = body;
    body["stream"] = json!(true);
    let reply = bench.post("/completions", &body);
    let pieces = reply.data();
    let text: String = pieces.iter().filter_map(|piece| piece["content"].as_str()).collect();
    assert_eq!(json!(text), own["content"]);
    let stops: Vec<bool> = pieces.iter().map(|piece| piece["stop"] == true).collect();
    assert_eq!(stops.iter().filter(|stop| **stop).count(), 1);
    assert_eq!(stops.last(), Some(&true));
    // Several prompts have a list of answers; a form is kept.
    let two = bench.post("/completion", &json!({ "prompt": ["a", "b"], "n_predict": 2, "ignore_eos": true })).json();
    assert_eq!(two.as_array().map(Vec::len), Some(2));
    let yes = json!({ "prompt": "a", "grammar": "root ::= \"yes\"" });
    assert_eq!(bench.post("/completion", &yes).json()["content"], "yes");
}

#[test]
fn a_gap_is_filled_alike_at_all_endpoints() {
    let load = LoadOptions { n_ctx: Some(2048), ..load_options() };
    let bench = Bench::named("qwen", &real_model("qwen2.5-coder:0.5b"), &load, options());
    let raw = format!("<|fim_prefix|>{BEFORE}<|fim_suffix|>{BEHIND}<|fim_middle|>");
    let greedy = |body: Value| {
        let mut body = body;
        (body["temperature"], body["max_tokens"]) = (json!(0), json!(12));
        body
    };
    let text = |path: &str, body: Value| {
        let answer = bench.post(path, &greedy(body)).json();
        answer["content"].as_str().or(answer["choices"][0]["text"].as_str()).map(str::to_owned)
    };
    let by_prompt = text("/v1/completions", json!({ "prompt": raw })).expect("a text");
    assert!(by_prompt.starts_with("a + b"), "{by_prompt}");
    let by_suffix = text("/v1/completions", json!({ "prompt": BEFORE, "suffix": BEHIND }));
    assert_eq!(by_suffix.as_ref(), Some(&by_prompt));
    let gap = json!({ "input_prefix": BEFORE, "input_suffix": BEHIND });
    assert_eq!(text("/infill", gap).as_ref(), Some(&by_prompt));
    let parted = json!({ "input_prefix": "def add(a, b):", "prompt": "\n    return ", "input_suffix": BEHIND });
    let n_given = bench.post("/infill", &greedy(parted)).json()["tokens_evaluated"].as_u64();
    // Other files come first: the repository's name, each file's, and that of the one with the gap.
    let file = json!({ "filename": "sub.py", "text": "def sub(a, b):\n    return a - b\n" });
    let among = json!({ "input_prefix": BEFORE, "input_suffix": BEHIND, "input_extra": [file] });
    let among = bench.post("/infill", &greedy(among)).json();
    let head = "<|repo_name|>myproject\n<|file_sep|>sub.py\ndef sub(a, b):\n    return a - b\n<|file_sep|>filename\n";
    let n_of = |text: &str| {
        let body = json!({ "content": text, "parse_special": true });
        bench.post("/tokenize", &body).json()["count"].as_u64().expect("a count")
    };
    assert_eq!(among["tokens_evaluated"], n_of(head) + n_of(&raw));
    assert!(n_given >= Some(n_of(&raw)));
    let tiny = Bench::tiny(options());
    let none = tiny.post("/infill", &json!({ "input_prefix": "a", "input_suffix": "b" })).refusal();
    assert!(none.contains("the model has no tokens for a gap in a text"), "{none}");
}

#[test]
fn what_is_served_is_told() {
    let bench = Bench::tiny(options());
    let props = bench.get("/props").json();
    let slots = bench.get("/slots").json();
    let n = slots.as_array().map(Vec::len);
    assert_eq!(props["total_slots"].as_u64(), n.map(|n| n as u64));
    assert!(props["default_generation_settings"]["n_ctx"].as_u64() > Some(0));
    assert!(slots.as_array().is_some_and(|slots| slots.iter().all(|slot| slot["is_processing"] == false)));
    for (path, of) in [("/models", "/v1/models"), ("/v1/health", "/health")] {
        assert_eq!(bench.get(path).json(), bench.get(of).json());
    }
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1 });
    assert_eq!(bench.post("/chat/completions", &body).status, 200);
}

#[test]
fn tokens_are_told_with_what_the_model_thinks_of_them() {
    let bench = Bench::tiny(options());
    let body = json!({ "prompt": "a b c", "n_predict": 4, "temperature": 0, "ignore_eos": true, "n_probs": 3, "return_tokens": true });
    let own = bench.post("/completion", &body).ok();
    let told = own["completion_probabilities"].as_array().expect("a list");
    let api = json!({ "prompt": "a b c", "max_tokens": 4, "temperature": 0, "ignore_eos": true, "logprobs": 3 });
    let of_api = bench.post("/v1/completions", &api).ok();
    let of_api = &of_api["choices"][0]["logprobs"];
    assert_eq!(told.len(), 4);
    for (i, token) in told.iter().enumerate() {
        assert_eq!((&token["token"], &token["logprob"]), (&of_api["tokens"][i], &of_api["token_logprobs"][i]));
        assert_eq!((&token["id"], token["top_logprobs"].as_array().map(Vec::len)), (&own["tokens"][i], Some(3)));
        assert_eq!(token["top_logprobs"][0]["id"], token["id"]);
    }
    let mut body = body;
    body["stream"] = json!(true);
    let reply = bench.post("/completion", &body);
    let pieces = reply.data();
    let told_of = |piece: &Value| piece["completion_probabilities"].as_array().cloned();
    let streamed: Vec<Value> = pieces.iter().filter_map(told_of).flatten().collect();
    assert_eq!(&streamed, told);
    assert_eq!(bench.get("/lora-adapters").ok(), json!([]));
}
