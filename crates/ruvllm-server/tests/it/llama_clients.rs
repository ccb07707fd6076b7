//! What clients of llama.cpp's server send: editors, its page, and scripts that were written for it.

use ruvllm_engine::LoadOptions;
use ruvllm_server::ServerOptions;
use ruvllm_testkit::real_model;
use serde_json::{Value, json};

use crate::client::{Bench, load_options, options, tiny_chat, with};

const CHAT: &str = "/v1/chat/completions";

fn says(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

/// A request that the tiny model answers with eight tokens of `path`.
fn asks(path: &str, more: Value) -> Value {
    let text = if path == CHAT { json!({ "messages": says("a b") }) } else { json!({ "prompt": "a b" }) };
    with(with(text, json!({ "max_tokens": 8, "temperature": 0, "ignore_eos": true })), more)
}

#[test]
fn editors_have_gaps_filled() {
    let load = LoadOptions { n_ctx: Some(2048), ..load_options() };
    let bench = Bench::named("qwen", &real_model("qwen2.5-coder:0.5b"), &load, options());
    // llama.vim's request; a request of llama.vscode has a part of it. Its samplers leave temperature out, so tokens are drawn:
    // the seed is ours.
    let vim = json!({
        "id_slot": 0, "input_prefix": "def add(a, b):\n", "input_suffix": "\n", "prompt": "    return ",
        "input_extra": [{ "text": "x = 1\n", "time": [1, 2], "filename": "a.py" }],
        "n_predict": 8, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.9, "stream": false, "temperature": 0, "seed": 1,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": true, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/prompt_n", "truncated", "tokens_cached", "generation_settings/samplers"],
    });
    let reply = bench.post("/infill", &vim);
    let unheeded = reply.header("x-ruvllm-unheeded").expect("a header").split(", ").collect::<Vec<_>>();
    assert_eq!(unheeded, ["input_extra.time", "t_max_prompt_ms"]);
    let answer = reply.ok();
    assert_eq!(answer.as_object().map(serde_json::Map::len), Some(5), "{answer}");
    assert!(answer["content"].as_str().is_some_and(|text| text.starts_with("a + b")), "{answer}");
    assert_eq!(
        (&answer["truncated"], &answer["generation_settings/samplers"]),
        (&json!(false), &json!(["top_k", "top_p"]))
    );
    // A line that is indented less ends the answer, in pieces as well.
    let long = json!({ "prompt": "    x = 1\n    y = 2\n    z =", "n_predict": 64, "temperature": 0 });
    let whole = bench.post("/completion", &long).ok()["content"].as_str().expect("a text").to_owned();
    let is_outdented = |(i, line): (usize, &str)| i > 0 && line.len() - line.trim_start().len() < 4;
    let n_kept = whole.lines().enumerate().position(is_outdented).expect("the model ends its block");
    let kept: String = whole.split_inclusive('\n').take(n_kept).collect();
    let cut = with(long, json!({ "n_indent": 4 }));
    let answer = bench.post("/completion", &cut).ok();
    assert_eq!(answer["content"].as_str().map(str::trim_end), Some(kept.trim_end()));
    assert_eq!((&answer["stop_type"], &answer["truncated"]), (&json!("limit"), &json!(false)));
    let pieces = bench.post("/completion", &with(cut, json!({ "stream": true }))).data();
    let text: String = pieces.iter().filter_map(|piece| piece["content"].as_str()).collect();
    assert_eq!(json!(text), answer["content"]);
}

#[test]
fn samplers_and_biases_are_named_in_many_ways() {
    let bench = Bench::tiny(options());
    let path = "/completion";
    let asks = |path: &str, more: Value| with(asks(path, json!({ "ignore_eos": false, "return_tokens": true })), more);
    let settings = |more: Value| bench.post(path, &asks(path, more)).ok()["generation_settings"].take();
    assert_eq!(settings(json!({ "samplers": "kit" }))["samplers"], json!(["top_k", "temperature"]));
    assert_eq!(settings(json!({ "samplers": [] }))["samplers"], json!([]));
    let odd = settings(json!({
        "temperature": -1, "repeat_penalty": 0, "top_n_sigma": -1, "dry_penalty_last_n": -1, "n_predict": -2, "max_tokens": null,
        "grammar": "", "stop": ["R"],
    }));
    assert_eq!((&odd["temperature"], &odd["repeat_penalty"]), (&json!(0.0), &json!(1.0)));
    assert_eq!((&odd["n_predict"], &odd["dry_penalty_last_n"]), (&json!(-1), &json!(1 << 20)));
    let refused = bench.post(path, &asks(path, json!({ "samplers": "kz" }))).refusal();
    assert_eq!(refused, "400 'z' in 'samplers' is no sampler's letter; they are edskypmxt and i");
    // All forms of a bias are the same.
    let ids = bench.post("/tokenize", &json!({ "content": "river" })).ok()["tokens"].take();
    let ids: Vec<u64> = ids.as_array().expect("a list").iter().filter_map(Value::as_u64).collect();
    let by_id: Vec<Value> = ids.iter().map(|id| json!([id, -7.5])).collect();
    let by_key: serde_json::Map<String, Value> = ids.iter().map(|id| (id.to_string(), json!(-7.5))).collect();
    let expected = json!(ids.iter().map(|id| json!({ "token": id, "bias": -7.5 })).collect::<Vec<_>>());
    for bias in [json!(by_id), json!([["river", -7.5]]), json!({ "river": -7.5 })] {
        assert_eq!(settings(json!({ "logit_bias": bias }))["logit_bias"], expected, "{bias}");
    }
    let told = settings(json!({ "logit_bias": by_key }));
    assert_eq!(told["logit_bias"].as_array().map(Vec::len), Some(ids.len()));
    for none in [json!([]), json!({}), json!(false)] {
        assert_eq!(settings(json!({ "logit_bias": none }))["logit_bias"], json!([]));
    }
    let first = bench.post(path, &asks(path, json!({}))).ok()["tokens"][0].take();
    let without = bench.post(path, &asks(path, json!({ "logit_bias": [[first, false]] }))).ok();
    assert!(!without["tokens"].as_array().expect("a list").contains(&first));
    let refused = bench.post(path, &asks(path, json!({ "logit_bias": [[1, "x"]] }))).refusal();
    assert_eq!(refused, "400 'logit_bias[0]' must be a token's id or a text, and a number or false");
}

#[test]
fn answers_tell_their_times() {
    let bench = Bench::tiny(options());
    let hints = json!({ "return_progress": true, "backend_sampling": false, "id_slot": 0, "speculative.n_max": 4, "n_keep": 0 });
    for path in [CHAT, "/v1/completions"] {
        let reply = bench.post(path, &asks(path, hints.clone()));
        assert_eq!(reply.header("x-ruvllm-unheeded"), Some("backend_sampling, speculative.n_max, n_keep"));
        let answer = reply.ok();
        let times = &answer["timings"];
        assert_eq!((&times["predicted_n"], times["predicted_ms"].is_number()), (&json!(8), true));
        let n_prompt = times["prompt_n"].as_u64().zip(times["cache_n"].as_u64()).map(|(a, b)| a + b);
        assert_eq!(n_prompt, answer["usage"]["prompt_tokens"].as_u64());
        let streamed = json!({ "stream": true, "stream_options": { "include_usage": true } });
        let events = bench.post(path, &asks(path, streamed.clone())).events();
        let with_times: Vec<&Value> = events.iter().filter(|event| event["timings"].is_object()).collect();
        assert_eq!(with_times.len(), 2, "the end and the usage have times");
        assert_eq!(events.last().map(|last| &last["timings"]["predicted_n"]), Some(&json!(8)));
        let events = bench.post(path, &asks(path, with(streamed, json!({ "timings_per_token": true })))).events();
        let counts: Vec<u64> = events.iter().filter_map(|event| event["timings"]["predicted_n"].as_u64()).collect();
        assert!(counts.is_sorted() && counts.len() > 4 && counts.ends_with(&[8, 8]), "{counts:?}");
    }
    let pieces =
        bench.post("/completion", &asks("/completion", json!({ "stream": true, "timings_per_token": true }))).data();
    let counts: Vec<u64> = pieces.iter().filter_map(|piece| piece["timings"]["predicted_n"].as_u64()).collect();
    assert_eq!(counts, [1, 2, 3, 4, 5, 6, 7, 8, 8]);
    let response = json!({ "input": "a", "max_output_tokens": 1, "timings_per_token": true, "return_progress": true });
    assert_eq!(bench.post("/v1/responses", &response).status, 200);
}

#[test]
fn an_answer_that_the_context_ends_is_truncated() {
    let bench = Bench::tiny(options());
    let truncated = |more: Value| {
        let answer = bench.post("/completion", &with(json!({ "prompt": "a b", "ignore_eos": true }), more)).ok();
        answer["truncated"].as_bool().expect("a flag")
    };
    let long = "river ".repeat(2000);
    assert!(!truncated(json!({ "n_predict": 8 })));
    assert!(truncated(json!({ "n_predict": -1 })));
    assert!(truncated(json!({ "n_predict": 8, "prompt": long, "truncation": "auto" })));
}

#[test]
fn prompts_are_texts_and_tokens_in_any_mixture() {
    let bench = Bench::tiny(options());
    let tokens =
        |text: &str| bench.post("/tokenize", &json!({ "content": text, "add_special": true })).ok()["tokens"].take();
    let whole = tokens("a b");
    let answer = |prompt: Value| bench.post("/completion", &asks("/completion", json!({ "prompt": prompt }))).ok();
    let expected = answer(json!("a b"))["content"].take();
    let both = answer(json!([whole, "a b", { "prompt_string": "a b" }]));
    assert_eq!(
        both.as_array().map(|all| all.iter().map(|one| &one["content"]).collect::<Vec<_>>()),
        Some(vec![&expected; 3])
    );
    let mixed = answer(json!([5, 6, "river", 7]));
    let n_river = bench.post("/tokenize", &json!({ "content": "river" })).ok()["count"].as_u64().expect("a count");
    assert_eq!(mixed["tokens_evaluated"], 3 + n_river);
    let echoed = json!({ "prompt": [5, "river"], "echo": true, "max_tokens": 1 });
    assert!(
        bench.post("/v1/completions", &echoed).ok()["choices"][0]["text"]
            .as_str()
            .is_some_and(|text| text.contains("river"))
    );
    let embedded = |input: Value| bench.post("/v1/embeddings", &json!({ "input": input })).ok()["data"].take();
    let parts = json!({ "content": [{ "type": "text", "text": "a " }, { "type": "text", "text": "b" }] });
    let all = embedded(json!(["a b", whole, parts]));
    assert_eq!((&all[0]["embedding"], &all[0]["embedding"]), (&all[1]["embedding"], &all[2]["embedding"]));
    let own = bench.post("/embedding", &json!({ "content": "a b" })).ok();
    assert_eq!((&own[0]["index"], &own[0]["embedding"][0]), (&json!(0), &all[0]["embedding"]));
}

#[test]
fn an_answer_that_was_begun_is_gone_on_with() {
    let bench = Bench::tiny(options());
    let begun = |content: Value| json!([says("a")[0], { "role": "assistant", "content": content }]);
    let rendered =
        |more: Value| bench.post("/apply-template", &more).ok()["prompt"].as_str().expect("a text").to_owned();
    let head = "<|im_start|>user\na<|im_end|>\n";
    let expected = format!("{head}<|im_start|>assistant\nWhill");
    assert_eq!(rendered(json!({ "messages": begun(json!("Whill")) })), expected);
    let parts = json!([{ "type": "text", "text": "Wh" }, { "type": "text", "text": "ill" }]);
    assert_eq!(rendered(json!({ "messages": begun(parts) })), expected);
    let ended =
        json!({ "messages": begun(json!("x")), "continue_final_message": false, "add_generation_prompt": false });
    assert_eq!(rendered(ended), format!("{head}<|im_start|>assistant\nx<|im_end|>\n"));
    // A chat reads the same: vLLM's way to ask for it, and llama.cpp's.
    let tokens = |text: &str| {
        let body = json!({ "content": text, "add_special": true, "parse_special": true });
        bench.post("/tokenize", &body).ok()["count"].as_u64()
    };
    let n_prompt = |more: Value| {
        let body = with(json!({ "messages": begun(json!("Whill")), "max_tokens": 1 }), more);
        bench.post(CHAT, &body).ok()["usage"]["prompt_tokens"].as_u64()
    };
    assert_eq!(n_prompt(json!({})), tokens(&expected));
    assert_eq!(n_prompt(json!({ "continue_final_message": true, "add_generation_prompt": false })), tokens(&expected));
    let refused =
        |messages: Value, more: Value| bench.post(CHAT, &with(json!({ "messages": messages }), more)).refusal();
    assert_eq!(
        refused(says("a"), json!({ "continue_final_message": true })),
        "400 'continue_final_message' is set, and the last message is none of the assistant's text; add one"
    );
    let two = json!([says("a")[0], { "role": "assistant", "content": "b" }, { "role": "assistant", "content": "c" }]);
    assert_eq!(
        refused(two, json!({})),
        "400 'messages' ends with two messages of the assistant, and one is gone on with; make them one"
    );
    let call = json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{" } });
    let broken = json!([says("a")[0], { "role": "assistant", "content": null, "tool_calls": [call] }, says("b")[0]]);
    let line =
        "400 'messages[1].tool_calls[0].function.arguments' is no JSON: EOF while parsing an object at line 1 column 1";
    assert!(refused(broken, json!({})).starts_with(line));
}

#[test]
fn a_thought_that_a_template_opens_is_closed_where_none_is_wanted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("opens.gguf");
    let file = ruvllm_gguf::GgufFile::open(&real_model("smollm2:135m")).expect("a model");
    let mut writer = ruvllm_gguf::GgufWriter::from_file(&file);
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        <|im_start|>assistant\n<think>\n";
    writer.metadata_mut().set("tokenizer.chat_template", template);
    writer.write_file(&path).expect("a temporary folder is writable");
    let bench = Bench::new(&path, &LoadOptions { n_ctx: Some(1024), ..load_options() }, options());
    let rendered = |more: Value| {
        let prompt = bench.post("/apply-template", &with(json!({ "messages": says("a") }), more)).ok()["prompt"].take();
        prompt.as_str().expect("a text").rsplit_once("assistant\n").expect("an answer is opened").1.to_owned()
    };
    assert_eq!(rendered(json!({})), "<think>");
    for off in [
        json!({ "chat_template_kwargs": { "enable_thinking": false } }),
        json!({ "reasoning_effort": "none" }),
        json!({ "enable_thinking": false }),
    ] {
        assert_eq!(rendered(off.clone()), "<think></think>", "{off}");
        let body = with(json!({ "messages": says("a"), "max_tokens": 8, "temperature": 0 }), off.clone());
        let message = bench.post(CHAT, &body).ok()["choices"][0]["message"].take();
        assert!(message.get("reasoning_content").is_none() && message["content"] != "", "{off}: {message}");
    }
    let messages = json!([says("a")[0], { "role": "assistant", "content": "Yes" }]);
    assert_eq!(rendered(json!({ "messages": messages, "reasoning_effort": "none" })), "<think></think>Yes");
    // A block of thought is closed by its signature, as Anthropic's is.
    let thinks = json!({ "messages": says("a"), "max_tokens": 40, "temperature": 0, "stream": true,
        "thinking": { "type": "enabled", "budget_tokens": 5 } });
    let events = bench.post("/v1/messages", &thinks).data();
    let deltas: Vec<&str> = events.iter().filter_map(|event| event["delta"]["type"].as_str()).collect();
    let at = deltas.iter().position(|kind| *kind == "signature_delta").expect("a signature");
    assert!(deltas[..at].iter().all(|kind| *kind == "thinking_delta") && at > 0, "{deltas:?}");
    assert!(deltas[at + 1..].iter().all(|kind| *kind == "text_delta"), "{deltas:?}");
}

#[test]
fn one_model_may_answer_by_any_name() {
    let (folder, path) = tiny_chat();
    let bench = Bench::new(&path, &load_options(), ServerOptions { any_model_name: true, ..options() });
    for (path, body) in [
        (CHAT, json!({ "messages": says("a"), "max_tokens": 1, "model": "gpt-4o" })),
        ("/v1/messages", json!({ "messages": says("a"), "max_tokens": 1, "model": "claude" })),
        ("/api/chat", json!({ "messages": says("a"), "model": "llama3", "stream": false })),
    ] {
        let answer = bench.post(path, &body).ok();
        let expected = if path == "/api/chat" { "llama3" } else { "tiny" };
        assert_eq!(answer["model"], expected, "{path}");
    }
    drop(folder);
}

#[test]
fn a_model_that_sleeps_is_told_of_and_loaded_and_dropped_by_hand() {
    let (folder, path) = tiny_chat();
    let load = move || ruvllm_engine::Engine::load(&path, &load_options(), &mut |_| {});
    let source = ruvllm_server::ModelSource::new("tiny", Box::new(load)).with_file("tiny.gguf");
    let bench = Bench::of(vec![source], options());
    let status = || bench.get("/v1/models").ok()["data"][0]["status"]["value"].take();
    let props = bench.get("/props").ok();
    assert_eq!((&props["is_sleeping"], &props["model_path"]), (&json!(true), &json!("tiny.gguf")));
    assert_eq!((bench.get("/slots").ok(), status()), (json!([]), json!("unloaded")));
    let named = json!({ "model": "tiny" });
    assert_eq!(bench.post("/models/load", &named).ok(), json!({ "success": true }));
    let props = bench.get("/props?autoload=false").ok();
    assert_eq!((&props["is_sleeping"], &props["total_slots"], status()), (&json!(false), &json!(4), json!("loaded")));
    assert_eq!(props["default_generation_settings"]["params"]["temperature"], 0.0);
    assert_eq!(bench.get("/slots?fail_on_no_slot=1").ok().as_array().map(Vec::len), Some(4));
    assert_eq!(bench.post("/models/unload", &named).ok(), json!({ "success": true }));
    assert_eq!(status(), "unloaded");
    let refused = bench.post("/models/unload", &json!({ "model": "x" })).refusal();
    assert!(refused.starts_with("404 the model 'x' is not served here"), "{refused}");
    let info = bench.get("/tokenizer_info").ok();
    assert_eq!((&info["model_max_length"], info["chat_template"].is_string()), (&json!(1024), true));
    // Where all places are taken, who asks may be told.
    let long =
        json!({ "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true, "n": 8, "logprobs": 20 });
    let open = bench.open("/v1/completions", &long);
    while bench.metric("ruvllm_requests_running") < 4.0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let refused = bench.get("/slots?fail_on_no_slot=1").refusal();
    assert_eq!(refused, "503 all 4 places are taken; a request waits for one, or try again later");
    let refused = bench.post("/models/unload", &named).refusal();
    assert_eq!(refused, "503 'tiny' is in use; try again when its requests are over");
    drop(open);
    drop(folder);
}

#[test]
fn documents_are_put_in_order_for_clients_of_other_rankers() {
    let bench = Bench::tiny(options());
    let texts = ["river stone", "a b c", "river"];
    let own = bench.post("/rerank", &json!({ "query": "river", "documents": texts })).ok()["results"].take();
    let other =
        bench.post("/rerank", &json!({ "query": "river", "texts": texts, "return_text": true, "top_n": 2 })).ok();
    assert_eq!(other.as_array().map(Vec::len), Some(2));
    for (own, other) in own.as_array().expect("a list").iter().zip(other.as_array().expect("a list")) {
        assert_eq!((&own["index"], &own["relevance_score"]), (&other["index"], &other["score"]));
        assert_eq!(other["text"], texts[own["index"].as_u64().expect("a number") as usize]);
    }
    assert_eq!(
        bench.post("/rerank", &json!({ "query": "a" })).refusal(),
        "400 'documents' is missing: the texts to be put in order"
    );
}

/// A prompt that is not to be cached is computed whole, whatever is cached, and leaves nothing for the next.
#[test]
fn a_prompt_that_is_not_to_be_cached_is_computed_whole() {
    let bench = Bench::tiny(options());
    let cached = |prompt: &str, cache_prompt: bool| {
        let body =
            json!({ "prompt": prompt.repeat(20), "n_predict": 2, "temperature": 0, "cache_prompt": cache_prompt });
        let answer = bench.post("/completion", &body).ok();
        (answer["timings"]["cache_n"].as_u64().expect("a count"), answer["content"].clone())
    };
    let (n_cold, text) = cached("a b c d ", true);
    let (n_warm, again) = cached("a b c d ", true);
    assert!(n_cold == 0 && n_warm > 32, "{n_cold}, {n_warm}");
    let (n_ignored, whole) = cached("a b c d ", false);
    assert_eq!((n_ignored, &again, &whole), (0, &text, &text));
    // The first token is every prompt's.
    assert_eq!(cached("e f g h ", false).0, 0);
    assert_eq!(cached("e f g h ", true).0, 1, "the one before left nothing");
}
