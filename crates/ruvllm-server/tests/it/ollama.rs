//! The API of Ollama: each endpoint whole and in lines, calls and their results, forms, names, and what is refused.

use ruvllm_engine::LoadOptions;
use ruvllm_server::{KeyOptions, ModelSource, ServerOptions};
use ruvllm_testkit::{Golden, real_model};
use serde_json::{Value, json};

use crate::client::{Bench, Reply, load_options, options, tiny_chat, with};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn bench(model: &str) -> Bench {
    let load = LoadOptions { n_ctx: Some(2048), ..load_options() };
    Bench::named(model, &real_model(model), &load, options())
}

/// Returns the lines of a streamed answer, of which only the last is done.
#[track_caller]
fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/x-ndjson")), "{}", reply.body);
    let lines: Vec<Value> =
        reply.body.lines().map(|line| serde_json::from_str(line).expect("lines are JSON")).collect();
    let n_done = lines.iter().filter(|line| line["done"] == true).count();
    assert_eq!((n_done, lines.last().map(|line| &line["done"])), (1, Some(&json!(true))), "{}", reply.body);
    lines
}

/// Returns a field's texts over all lines, joined.
fn text(lines: &[Value], pointer: &str) -> String {
    lines.iter().filter_map(|line| line.pointer(pointer)?.as_str()).collect()
}

/// Returns the status and the line of a refusal in Ollama's shape.
#[track_caller]
fn refusal(reply: &Reply) -> String {
    let body = reply.json();
    assert!(reply.status >= 400 && body.as_object().map(serde_json::Map::len) == Some(1), "{}", reply.body);
    format!("{} {}", reply.status, body["error"].as_str().expect("a line"))
}

/// Returns whether a text is a time of RFC 3339 in UTC.
fn is_date(value: &Value) -> bool {
    let form = |c: char| if c.is_ascii_digit() { '0' } else { c };
    value.as_str().is_some_and(|text| text.chars().map(form).eq("0000-00-00T00:00:00.000000Z".chars()))
}

#[test]
fn a_conversation_is_answered_whole_and_in_lines() {
    let bench = bench("smollm2:135m");
    let question = json!([{ "role": "user", "content": "What is the capital of France?" }]);
    let options = json!({ "temperature": 0, "num_predict": 24 });
    let body = json!({ "model": "smollm2:135m", "messages": question, "options": options });
    let whole = bench.post(CHAT, &with(body.clone(), json!({ "stream": false }))).ok();
    assert!(whole["message"]["content"].as_str().is_some_and(|text| text.contains("Paris")), "{whole}");
    assert_eq!((&whole["model"], &whole["message"]["role"]), (&json!("smollm2:135m"), &json!("assistant")));
    assert!(is_date(&whole["created_at"]) && whole["done"] == true, "{whole}");
    // The same as by the other API, with the same counts.
    let other = json!({ "messages": question, "temperature": 0, "max_tokens": 24 });
    let other = bench.post("/v1/chat/completions", &other).ok();
    assert_eq!(whole["message"]["content"], other["choices"][0]["message"]["content"]);
    assert_eq!(whole["prompt_eval_count"], other["usage"]["prompt_tokens"]);
    assert_eq!(whole["eval_count"], other["usage"]["completion_tokens"]);
    assert_eq!(whole["done_reason"], other["choices"][0]["finish_reason"]);
    let ns = |name: &str| whole[name].as_u64().unwrap_or_else(|| panic!("{name}: {whole}"));
    let (total, parts) = (ns("total_duration"), ns("prompt_eval_duration") + ns("eval_duration") + ns("load_duration"));
    assert!(ns("eval_duration") > 0 && parts <= total && total < 60_000_000_000, "{whole}");
    // Lines are the default.
    let lines = lines(&bench.post(CHAT, &body));
    assert!(lines.len() > 5, "{lines:?}");
    assert_eq!(json!(text(&lines, "/message/content")), whole["message"]["content"]);
    let last = &lines[lines.len() - 1];
    assert_eq!((&last["eval_count"], &last["message"]["content"]), (&whole["eval_count"], &json!("")));
    assert!(lines.iter().all(|line| line["message"]["role"] == "assistant" && is_date(&line["created_at"])));
    assert!(lines[0]["done"] == false && lines[0].get("eval_count").is_none(), "{}", lines[0]);
}

#[test]
fn options_reach_the_sampler() {
    let bench = bench("smollm2:135m");
    let ask = |options: Value| {
        let body = json!({ "prompt": "Count: one, two,", "raw": true, "stream": false, "options": options });
        bench.post(GENERATE, &body).ok()
    };
    let (greedy, cut) = (json!({ "temperature": 0, "num_predict": 12 }), json!({ "temperature": 0, "num_predict": 3 }));
    let (all, cut) = (ask(greedy.clone()), ask(cut));
    assert_eq!((&cut["eval_count"], &cut["done_reason"]), (&json!(3), &json!("length")));
    let said = all["response"].as_str().expect("a text");
    assert!(said.starts_with(cut["response"].as_str().expect("a text")) && said.contains("four"), "{all}");
    let stopped = ask(with(greedy.clone(), json!({ "stop": ["four"] })));
    assert_eq!(stopped["done_reason"], "stop");
    assert_eq!(json!(said.split("four").next()), stopped["response"]);
    let hot = |seed: i64| ask(json!({ "temperature": 2, "seed": seed, "num_predict": 12 }))["response"].clone();
    assert_eq!(hot(7), hot(7));
    assert_ne!(hot(7), hot(8));
    assert_ne!(hot(-1), hot(-1), "-1 is no seed");
    assert_eq!(ask(with(greedy, json!({ "repeat_last_n": -1, "repeat_penalty": 1 })))["response"], said);
}

#[test]
fn a_prompt_is_answered_gone_on_with_or_filled() {
    let bench = bench("qwen2.5-coder:0.5b");
    let options = json!({ "temperature": 0, "num_predict": 16 });
    let whole = |more: Value| bench.post(GENERATE, &with(json!({ "options": options, "stream": false }), more)).ok();
    let told = whole(json!({ "prompt": "Say hello.", "system": "You speak French only." }));
    let messages =
        json!([{ "role": "system", "content": "You speak French only." }, { "role": "user", "content": "Say hello." }]);
    let chat = bench.post(CHAT, &json!({ "messages": messages, "options": options, "stream": false })).ok();
    assert_eq!(told["response"], chat["message"]["content"]);
    assert_eq!(told["prompt_eval_count"], chat["prompt_eval_count"]);
    let raw = whole(json!({ "prompt": "1, 2, 3, 4,", "raw": true }));
    assert!(raw["response"].as_str().is_some_and(|text| text.starts_with(" 5, 6")), "{raw}");
    let gap = json!({ "prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))\n",
        "options": { "temperature": 0, "stop": ["\n"], "num_predict": 8 } });
    assert_eq!(whole(gap)["response"], "a + b");
    let streamed = lines(&bench.post(GENERATE, &json!({ "prompt": "1, 2, 3, 4,", "raw": true, "options": options })));
    assert_eq!(json!(text(&streamed, "/response")), raw["response"]);
    assert_eq!(streamed[streamed.len() - 1]["done_reason"], "length");
    // What the assistant has begun is gone on with.
    let begun =
        json!([{ "role": "user", "content": "Count to ten." }, { "role": "assistant", "content": "1, 2, 3, 4," }]);
    let chat = bench.post(CHAT, &json!({ "messages": begun, "options": options, "stream": false })).ok();
    assert!(chat["message"]["content"].as_str().is_some_and(|text| text.starts_with(" 5, 6")), "{chat}");
    let logprobs = whole(json!({ "prompt": "1, 2, 3, 4,", "raw": true, "logprobs": true, "top_logprobs": 2 }));
    let told = logprobs["logprobs"].as_array().expect("a list");
    assert_eq!(
        (told.len(), &told[0]["token"], told[0]["top_logprobs"].as_array().map(Vec::len)),
        (16, &json!(" "), Some(2))
    );
    assert!(told[0]["logprob"].as_f64().is_some_and(|x| x < 0.0 && x > -5.0), "{}", told[0]);
}

#[test]
fn a_model_is_loaded_by_an_empty_request() {
    let bench = Bench::tiny(options());
    for (path, body, name) in [(GENERATE, json!({}), "response"), (GENERATE, json!({ "prompt": "" }), "response")] {
        let answer = bench.post(path, &with(body, json!({ "model": "tiny", "keep_alive": "5m" }))).ok();
        assert_eq!(
            (&answer["done_reason"], &answer[name], &answer["done"]),
            (&json!("load"), &json!(""), &json!(true))
        );
    }
    let answer = bench.post(CHAT, &json!({ "model": "tiny", "messages": [] })).ok();
    assert_eq!((&answer["done_reason"], &answer["message"]["content"]), (&json!("load"), &json!("")));
}

fn weather() -> Value {
    let city = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    json!([{ "type": "function", "function": { "name": "weather", "description": "The weather in a city", "parameters": city } }])
}

#[test]
fn functions_are_called_and_their_results_answered() {
    let bench = bench("qwen2.5-coder:0.5b");
    let question = json!({ "role": "user", "content": "What is the weather like in Paris? Use the function." });
    let options = json!({ "temperature": 0, "num_predict": 80 });
    let body = json!({ "messages": [question], "tools": weather(), "options": options });
    let whole = bench.post(CHAT, &with(body.clone(), json!({ "stream": false }))).ok();
    let calls = whole["message"]["tool_calls"].as_array().expect("calls");
    let function = &calls[0]["function"];
    assert_eq!((&function["name"], &function["arguments"]), (&json!("weather"), &json!({ "city": "Paris" })));
    assert_eq!((&whole["message"]["content"], &whole["done_reason"]), (&json!(""), &json!("stop")));
    let streamed = lines(&bench.post(CHAT, &body));
    let found: Vec<&Value> =
        streamed.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten().collect();
    assert_eq!((found.len(), &found[0]["function"]), (1, function));
    assert_eq!(text(&streamed, "/message/content"), "");
    // The answer is sent back as it came, and the result with it.
    let result = json!({ "role": "tool", "tool_name": "weather", "content": "sunny, 31 degrees" });
    let history = json!([question, whole["message"], result]);
    let told = bench.post(CHAT, &json!({ "messages": history, "options": options, "stream": false })).ok();
    assert!(told["message"]["content"].as_str().is_some_and(|text| text.contains("31")), "{told}");
    // A call that was cut is no call.
    let options = json!({ "temperature": 0, "num_predict": 5 });
    let cut = json!({ "messages": [question], "tools": weather(), "options": options, "stream": false });
    let cut = bench.post(CHAT, &cut).ok();
    assert_eq!((&cut["done_reason"], cut["message"].get("tool_calls")), (&json!("length"), None));
}

#[test]
fn answers_have_the_form_that_is_asked_for() {
    let bench = bench("qwen2.5-coder:0.5b");
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string", "maxLength": 12 }, "age": { "type": "integer" } },
        "required": ["name", "age"], "additionalProperties": false });
    let options = json!({ "temperature": 0, "num_predict": 80 });
    let parse = |value: &Value| -> Value { serde_json::from_str(value.as_str().expect("a text")).expect("JSON") };
    let said = "Bob is 3 years old. Give me the person as JSON.";
    let messages = json!([{ "role": "user", "content": said }]);
    let chat = json!({ "messages": messages, "format": schema, "options": options, "stream": false });
    assert_eq!(parse(&bench.post(CHAT, &chat).ok()["message"]["content"]), json!({ "name": "Bob", "age": 3 }));
    let body = |format: Value| json!({ "prompt": said, "format": format, "options": options });
    let streamed = lines(&bench.post(GENERATE, &body(schema)));
    assert_eq!(parse(&json!(text(&streamed, "/response"))), json!({ "name": "Bob", "age": 3 }));
    let any = bench.post(GENERATE, &with(body(json!("json")), json!({ "stream": false }))).ok();
    assert!(parse(&any["response"]).is_object(), "{any}");
    let free = bench.post(GENERATE, &with(body(json!("")), json!({ "stream": false }))).ok();
    assert!(serde_json::from_str::<Value>(free["response"].as_str().expect("a text")).is_err(), "{free}");
}

#[test]
fn thoughts_are_told_apart_where_a_model_thinks() {
    let bench = Bench::tiny(options());
    let ask = |think: Value| {
        let messages = json!([{ "role": "user", "content": "a" }]);
        bench.post(
            CHAT,
            &json!({ "messages": messages, "think": think, "options": { "num_predict": 1 }, "stream": false }),
        )
    };
    assert_eq!(refusal(&ask(json!(true))), "400 'tiny' does not support thinking; leave out 'think'");
    assert_eq!(refusal(&ask(json!("high"))), "400 'tiny' does not support thinking; leave out 'think'");
    assert!(ask(json!(false)).ok()["message"].get("thinking").is_none());
    assert!(refusal(&ask(json!("loud"))).contains("it must be one of low, medium, high, max"));
}

#[test]
fn what_a_prompt_has_the_model_think_is_no_part_of_the_answer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("thinker.gguf");
    let file = ruvllm_gguf::GgufFile::open(&Golden::load("llama-a").model("f32")).expect("a golden file");
    let mut writer = ruvllm_gguf::GgufWriter::from_file(&file);
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if enable_thinking is not defined or \
        enable_thinking %}<think>\n{% endif %}";
    writer.metadata_mut().set("tokenizer.chat_template", template);
    writer.write_file(&path).expect("a temporary folder is writable");
    let bench = Bench::new(&path, &load_options(), options());
    assert!(bench.post("/api/show", &json!({})).ok()["capabilities"].to_string().contains("thinking"));
    let body = json!({ "messages": [{ "role": "user", "content": "a b c" }], "options": { "num_predict": 8 } });
    let whole = |think: Value| bench.post(CHAT, &with(body.clone(), json!({ "think": think, "stream": false }))).ok();
    let thought = whole(Value::Null)["message"].clone();
    assert!(thought["content"] == "" && thought["thinking"].as_str().is_some_and(|text| text.len() > 3), "{thought}");
    assert_eq!(whole(json!(true))["message"], thought);
    let said = whole(json!(false))["message"].clone();
    assert!(said.get("thinking").is_none() && said["content"].as_str().is_some_and(|text| text.len() > 3), "{said}");
    let streamed = lines(&bench.post(CHAT, &body));
    assert_eq!(json!(text(&streamed, "/message/thinking")), thought["thinking"]);
    assert_eq!(text(&streamed, "/message/content"), "");
}

#[test]
fn texts_are_embedded() {
    let (name, load) = ("minilm:l6", LoadOptions { n_ctx: None, ..load_options() });
    let bench = Bench::named(name, &real_model(name), &load, options());
    let vector =
        |value: &Value| -> Vec<f64> { value.as_array().expect("a list").iter().filter_map(Value::as_f64).collect() };
    let two = bench.post("/api/embed", &json!({ "model": name, "input": ["a cat", "a dog"] })).ok();
    let other = bench.post("/v1/embeddings", &json!({ "input": ["a cat", "a dog"] })).ok();
    assert_eq!((&two["embeddings"][1], &two["model"]), (&other["data"][1]["embedding"], &json!(name)));
    assert_eq!(two["prompt_eval_count"], other["usage"]["prompt_tokens"]);
    let one = bench.post("/api/embed", &json!({ "input": "a cat", "dimensions": 8 })).ok();
    let (cut, full) = (vector(&one["embeddings"][0]), vector(&two["embeddings"][0]));
    assert_eq!((one["embeddings"].as_array().map(Vec::len), cut.len(), full.len()), (Some(1), 8, 384));
    let norm = cut.iter().map(|x| x * x).sum::<f64>().sqrt();
    assert!((norm - 1.0).abs() < 1e-5 && (cut[0] / cut[1] - full[0] / full[1]).abs() < 1e-4, "{cut:?}");
    let older = bench.post("/api/embeddings", &json!({ "model": name, "prompt": "a cat" })).ok();
    assert_eq!(older["embedding"], two["embeddings"][0]);
    for (path, body, field) in [
        ("/api/embed", json!({ "input": "" }), "embeddings"),
        ("/api/embeddings", json!({ "prompt": "" }), "embedding"),
    ] {
        assert_eq!(bench.post(path, &body).ok()[field], json!([]));
    }
    let long = "cat ".repeat(2000);
    let n = bench.post("/api/embed", &json!({ "input": long })).ok()["prompt_eval_count"].clone();
    assert_eq!(n, 512);
    let refused = refusal(&bench.post("/api/embed", &json!({ "input": long, "truncate": false })));
    assert!(refused.starts_with("400 ") && refused.contains("512"), "{refused}");
    let refused = refusal(&bench.post("/api/embed", &json!({ "input": "a", "dimensions": 385 })));
    assert_eq!(refused, "400 'dimensions' is 385; the model's embeddings have 384");
    assert_eq!(bench.post("/api/show", &json!({ "model": name })).ok()["capabilities"], json!(["embedding"]));
}

#[test]
fn models_are_listed_and_described() {
    let bench = bench("qwen2.5-coder:0.5b");
    let tags = bench.get("/api/tags").ok();
    let model = &tags["models"][0];
    assert_eq!((&model["name"], &model["model"]), (&json!("qwen2.5-coder:0.5b"), &json!("qwen2.5-coder:0.5b")));
    assert!(is_date(&model["modified_at"]) && model["size"].as_u64().is_some_and(|n| n > 100_000_000), "{model}");
    assert_eq!(model["digest"].as_str().map(str::len), Some(64));
    assert_eq!(
        (&model["details"]["family"], &model["details"]["parameter_size"]),
        (&json!("qwen2"), &json!("630.17M"))
    );
    let ps = bench.get("/api/ps").ok();
    assert_eq!((&ps["models"][0]["name"], &ps["models"][0]["context_length"]), (&model["name"], &json!(2048)));
    assert!(is_date(&ps["models"][0]["expires_at"]));
    for field in ["model", "name"] {
        let shown = bench.post("/api/show", &json!({ field: "Qwen2.5-Coder:0.5B" })).ok();
        assert_eq!(shown["model_info"]["qwen2.context_length"], 32768);
        assert_eq!(
            (&shown["model_info"]["general.architecture"], &shown["details"]["format"]),
            (&json!("qwen2"), &json!("gguf"))
        );
        assert_eq!(shown["capabilities"], json!(["completion", "tools", "insert", "embedding"]));
        assert!(shown["template"].as_str().is_some_and(|text| text.contains("<|im_start|>")), "{shown}");
    }
    let version = bench.get("/api/version").ok();
    assert_eq!((&version["version"], &version["ruvllm"]), (&json!("0.12.11"), &json!(env!("CARGO_PKG_VERSION"))));
    let pulled = bench.post("/api/pull", &json!({ "model": "qwen2.5-coder:0.5b" }));
    assert_eq!(
        (pulled.header("content-type"), pulled.body.as_str()),
        (Some("application/x-ndjson"), "{\"status\":\"success\"}\n")
    );
    assert_eq!(
        bench.post("/api/pull", &json!({ "name": "qwen2.5-coder:0.5b", "stream": false })).ok()["status"],
        "success"
    );
    assert_eq!(bench.ask("HEAD", "/", &[]).status, 200);
}

#[test]
fn names_are_found_as_ollama_finds_them() {
    let bench = Bench::tiny(options());
    assert_eq!(bench.get("/api/tags").ok()["models"][0]["name"], "tiny:latest");
    for name in ["tiny", "tiny:latest", "Tiny:Latest", "library/tiny", "registry.ollama.ai/library/tiny:latest"] {
        let answer = bench.post(GENERATE, &json!({ "model": name })).ok();
        assert_eq!(answer["model"], name);
    }
    for name in ["tinier", "tiny:1b", "other/tiny", ""] {
        for path in [GENERATE, CHAT, "/api/show"] {
            assert_eq!(refusal(&bench.post(path, &json!({ "model": name }))), format!("404 model '{name}' not found"));
        }
        let embedded = bench.post("/api/embed", &json!({ "model": name, "input": "a" }));
        assert_eq!(refusal(&embedded), format!("404 model '{name}' not found"));
    }
}

#[test]
fn what_changes_nothing_is_named_and_what_cannot_be_is_refused() {
    let bench = Bench::tiny(options());
    let options = json!({ "num_predict": 1, "num_ctx": 1 << 20, "num_gpu": -1, "num_thread": 4, "use_mmap": true, "numa": null,
        "tfs_z": 1.0, "mirostat": 0, "seed": 0 });
    let reply = bench.post(
        GENERATE,
        &json!({ "prompt": "a", "options": options, "keep_alive": -1, "stream": false,
        "template": "", "context": [], "images": [], "system": null, "suffix": "" }),
    );
    assert_eq!(
        (reply.status, reply.header("x-ruvllm-unheeded")),
        (
            200,
            Some("options.num_ctx, options.num_gpu, options.num_thread, options.use_mmap, options.tfs_z, keep_alive")
        ),
        "{}",
        reply.body
    );
    let message = |more: Value| json!({ "messages": [with(json!({ "role": "user", "content": "a" }), more)] });
    for (path, body, expected) in [
        (
            GENERATE,
            json!({ "prompt": "a", "template": "{{ .Prompt }}" }),
            "'template' is \"{{ .Prompt }}\"; only \"\" is supported",
        ),
        (
            GENERATE,
            json!({ "prompt": "a", "images": ["eA=="] }),
            "'images' is a list; only [] is supported: the model reads text only",
        ),
        (
            GENERATE,
            json!({ "prompt": "a", "context": [1] }),
            "'context' is a list; only [] is supported: send the conversation",
        ),
        (GENERATE, json!({ "prompt": "a", "raw": true, "system": "b" }), "'system' does not go with 'raw'"),
        (GENERATE, json!({ "prompt": "a", "raw": true, "suffix": "b" }), "'suffix' does not go with 'raw'"),
        (GENERATE, json!({ "prompt": "a", "suffix": "b", "system": "c" }), "'system' does not go with 'suffix'"),
        (GENERATE, json!({ "prompt": "a", "suffix": "b" }), "the model has no tokens for a gap"),
        (GENERATE, json!({ "promt": "a" }), "'promt' is no field of this request; is 'prompt' meant?"),
        (
            GENERATE,
            json!({ "prompt": "a", "options": { "num_predct": 1 } }),
            "'options.num_predct' is no field of this request; is 'num_predict' meant?",
        ),
        (
            GENERATE,
            json!({ "prompt": "a", "options": { "temperature": "hot" } }),
            "'options.temperature' is \"hot\"; it must be a number",
        ),
        (
            GENERATE,
            json!({ "prompt": "a", "options": { "tfs_z": 0.5 } }),
            "'options.tfs_z' is 0.5; only 1 is supported",
        ),
        (GENERATE, json!({ "prompt": "a", "format": "xml" }), "'format' is \"xml\"; it must be one of json"),
        (
            GENERATE,
            json!({ "prompt": "a", "format": { "type": "integer", "minimum": 5, "maximum": 4 } }),
            "the grammar cannot be used",
        ),
        (
            CHAT,
            message(json!({ "images": ["eA=="] })),
            "'messages[0].images' is a list; only [] is supported: the model reads text only",
        ),
        (
            CHAT,
            message(json!({ "role": "robot" })),
            "'messages[0].role' is \"robot\"; it must be one of system, user, assistant, tool",
        ),
        (CHAT, json!({ "messages": [{ "role": "user" }] }), "'messages[0]' says nothing: 'content' is missing"),
        ("/api/embed", json!({}), "'input' is missing"),
        ("/api/pull", json!({ "model": "llama3" }), "this server downloads no models: run `ruvllm pull llama3`"),
    ] {
        let refused = refusal(&bench.post(path, &body));
        assert!(refused.starts_with(&format!("400 {expected}")), "{body}: {refused}");
    }
    let deleted = refusal(&bench.ask("DELETE", "/api/delete", &[]));
    assert!(deleted.starts_with("400 this server deletes no models") && deleted.contains("ruvllm rm"), "{deleted}");
    let nothing = refusal(&bench.post("/api/create", &json!({})));
    assert!(nothing.starts_with("404 there is nothing at /api/create"), "{nothing}");
}

#[test]
fn a_long_conversation_loses_its_oldest_unless_that_is_forbidden() {
    let bench = Bench::tiny(options());
    let says = |role: &str, n: usize| json!({ "role": role, "content": "word ".repeat(n) });
    let messages = json!([says("user", 900), says("assistant", 900), says("user", 4)]);
    let body = json!({ "messages": messages, "options": { "num_predict": 2 }, "stream": false });
    let answer = bench.post(CHAT, &body).ok();
    assert!(answer["prompt_eval_count"].as_u64().is_some_and(|n| n < 100), "{answer}");
    let refused = refusal(&bench.post(CHAT, &with(body, json!({ "truncate": false }))));
    assert!(refused.starts_with("400 ") && refused.contains("1024"), "{refused}");
}

#[test]
fn an_answer_that_fails_ends_with_a_line() {
    let bench = bench("smollm2:135m");
    let body = json!({ "prompt": "1, 2, 3, 4, 5,", "raw": true, "options": { "temperature": 0 }, "timeout_ms": 250 });
    let reply = bench.post(GENERATE, &body);
    let lines: Vec<Value> =
        reply.body.lines().map(|line| serde_json::from_str(line).expect("lines are JSON")).collect();
    let (last, before) = lines.split_last().expect("a line");
    assert_eq!((reply.status, last.as_object().map(serde_json::Map::len)), (200, Some(1)), "{last}");
    assert!(last["error"].as_str().is_some_and(|line| line.starts_with("the request's time was over")), "{last}");
    assert!(!before.is_empty() && before.iter().all(|line| line["done"] == false), "{before:?}");
}

#[test]
fn keys_are_asked_for_and_adapters_of_none_listed() {
    let keys = KeyOptions { file: None, lines: vec!["ann key-of-ann".to_owned()] };
    let bench = Bench::tiny(ServerOptions { keys, ..options() });
    for reply in
        [bench.post(CHAT, &json!({})), bench.get("/api/tags"), bench.post("/api/embed", &json!({ "input": "a" }))]
    {
        assert!(refusal(&reply).starts_with("401 "), "{}", reply.body);
    }
    let key = [("authorization", "Bearer key-of-ann")];
    assert_eq!(bench.ask("GET", "/api/tags", &key).ok()["models"].as_array().map(Vec::len), Some(1));
    assert_eq!(bench.send(GENERATE, "{}", &key).ok()["done_reason"], "load");
    assert_eq!(bench.get("/api/version").status, 200);
}

#[test]
fn models_that_are_not_loaded_are_listed_and_not_among_those_that_run() {
    let (folder, path) = tiny_chat();
    let (of_first, of_second) = (path.clone(), path);
    let load = |path: std::path::PathBuf| {
        let load = move || ruvllm_engine::Engine::load(&path, &load_options(), &mut |_| {});
        Box::new(load) as ruvllm_server::Loader
    };
    let models = vec![ModelSource::new("a:1b", load(of_first)), ModelSource::new("b", load(of_second))];
    let bench = Bench::of(models, options());
    let names = |path: &str| -> Vec<String> {
        let listed = bench.get(path).ok();
        let names = listed["models"].as_array().expect("a list").iter();
        names.filter_map(|model| model["name"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!((names("/api/tags"), names("/api/ps")), (vec!["a:1b".to_owned(), "b:latest".to_owned()], vec![]));
    assert_eq!(bench.post(GENERATE, &json!({ "model": "b" })).ok()["done_reason"], "load");
    assert_eq!(names("/api/ps"), ["b:latest"]);
    drop(folder);
}
