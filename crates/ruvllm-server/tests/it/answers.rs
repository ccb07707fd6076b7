//! What is answered: whole and in pieces, alone and beside others, from the cache and not.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, Pooling, Readout, SamplingParams, Speculation};
use ruvllm_server::ServerOptions;
use ruvllm_testkit::{Golden, real_model};
use serde_json::{Value, json};

use crate::client::{Bench, load_options, options};

fn messages(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

/// Returns the text of one choice of a stream, which must begin and end as streams do.
fn streamed(events: &[Value], index: u64) -> (String, String) {
    let of_choice = |event: &&Value| event["choices"][0]["index"] == index;
    let choices: Vec<&Value> = events.iter().filter(of_choice).map(|event| &event["choices"][0]).collect();
    let text = |choice: &&Value| {
        let text = choice.get("text").unwrap_or(&choice["delta"]["content"]);
        text.as_str().unwrap_or_default().to_owned()
    };
    let last = choices.last().expect("it ends");
    assert!(choices[..choices.len() - 1].iter().all(|choice| choice["finish_reason"].is_null()));
    (choices.iter().map(text).collect(), last["finish_reason"].as_str().expect("a reason").to_owned())
}

#[test]
fn a_chat_is_answered_whole_and_in_pieces_alike() {
    let bench = Bench::tiny(options());
    let body = json!({ "model": "tiny", "messages": messages("Name three rivers."), "max_tokens": 12, "seed": 3, "temperature": 0.9 });
    let whole = bench.post("/v1/chat/completions", &body).ok();
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("tiny")));
    let choice = &whole["choices"][0];
    assert_eq!((&choice["message"]["role"], &choice["index"]), (&json!("assistant"), &json!(0)));
    let usage = &whole["usage"];
    let n_prompt = usage["prompt_tokens"].as_u64().expect("a count");
    assert_eq!(usage["total_tokens"].as_u64(), Some(n_prompt + usage["completion_tokens"].as_u64().expect("a count")));

    let mut stream = body.clone();
    (stream["stream"], stream["stream_options"]) = (json!(true), json!({ "include_usage": true }));
    let events = bench.post("/v1/chat/completions", &stream).events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let (last, others) = events.split_last().expect("events");
    assert!(others.iter().all(|event| event["usage"].is_null() && event["object"] == "chat.completion.chunk"));
    assert_eq!(last["choices"], json!([]));
    let (text, reason) = streamed(&events, 0);
    assert_eq!((json!(text), json!(reason)), (choice["message"]["content"].clone(), choice["finish_reason"].clone()));
    assert_eq!(last["usage"]["completion_tokens"], usage["completion_tokens"]);
    // The second time all of the prompt but its last token is known.
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], n_prompt - 1);
    // Nothing was asked for about usage, so nothing comes.
    stream.as_object_mut().expect("an object").remove("stream_options");
    let events = bench.post("/v1/chat/completions", &stream).events();
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn several_answers_have_seeds_of_their_own() {
    let bench = Bench::tiny(options());
    let ask = |n: usize, seed: i64| {
        let body = json!({ "prompt": "Once", "n": n, "seed": seed, "temperature": 1.5, "top_k": 0, "max_tokens": 8 });
        let answer = bench.post("/v1/completions", &body).ok();
        answer["choices"].as_array().expect("choices").iter().map(|choice| choice["text"].clone()).collect::<Vec<_>>()
    };
    let (three, second) = (ask(3, 40), ask(1, 41));
    assert_eq!(three.len(), 3);
    assert_eq!(three[1], second[0]);
    assert!(three[0] != three[1] && three[1] != three[2]);
    let body = json!({ "prompt": ["Once", "Twice"], "n": 2, "seed": 40, "temperature": 1.5, "top_k": 0, "max_tokens": 8, "stream": true });
    let events = bench.post("/v1/completions", &body).events();
    assert_eq!((json!(streamed(&events, 0).0), json!(streamed(&events, 1).0)), (three[0].clone(), three[1].clone()));
    assert_eq!(streamed(&events, 3).1, "length");
}

#[test]
fn control_tokens_are_read_in_prompts_and_not_in_messages() {
    let bench = Bench::tiny(options());
    let special = json!({ "text": "</s>", "parse_special": true });
    assert_eq!(bench.post("/tokenize", &special).ok()["count"], 1);
    let n_prompt = |path: &str, body: Value| bench.post(path, &body).ok()["usage"]["prompt_tokens"].as_u64();
    let completion = |more: Value| {
        let mut body = json!({ "prompt": "a</s>b", "max_tokens": 1 });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        n_prompt("/v1/completions", body)
    };
    let (read, as_text) = (completion(json!({})), completion(json!({ "parse_special": false })));
    assert!(read < as_text, "{read:?} {as_text:?}");
    assert_eq!(completion(json!({ "parse_special": true })), read);
    for path in ["/v1/chat/completions", "/v1/messages/count_tokens"] {
        let chat = |parse_special: Option<bool>| {
            let mut body = json!({ "messages": messages("a</s>b") });
            parse_special.into_iter().for_each(|parse| body["parse_special"] = json!(parse));
            if path.ends_with("completions") {
                body["max_tokens"] = json!(1);
            }
            n_prompt_of(&bench.post(path, &body).ok())
        };
        assert_eq!(chat(None), chat(Some(false)), "{path}");
        assert!(chat(Some(true)) < chat(None), "{path}");
    }
    let applied = bench.post("/apply-template", &json!({ "messages": messages("a</s>b") })).ok();
    let allowed = bench.post("/apply-template", &json!({ "messages": messages("a</s>b"), "parse_special": true })).ok();
    assert_eq!(applied["prompt"], allowed["prompt"]);
    assert!(applied["count"].as_u64() > allowed["count"].as_u64());
}

/// Returns how many tokens a prompt had, by OpenAI's or Anthropic's name.
fn n_prompt_of(answer: &Value) -> u64 {
    let n = answer["usage"]["prompt_tokens"].as_u64();
    n.or(answer["input_tokens"].as_u64()).expect("a count")
}

#[test]
fn a_completion_is_that_of_the_engine() {
    let path = Golden::load("llama-a").model("f32");
    let mut engine = Engine::load(&path, &load_options(), &mut |_| {}).expect("it loads");
    let prompt = engine.encode_prompt("Once upon a time", true).expect("text");
    let sampling = SamplingParams::greedy();
    let request = GenerateRequest { prompt: prompt.clone(), max_tokens: Some(16), sampling, ..Default::default() };
    let expected = engine.generate(&request).and_then(|run| run.for_each_token(|_| {})).expect("it runs");
    let bench = Bench::tiny(options());
    for input in [json!("Once upon a time"), json!(prompt), json!([prompt])] {
        let answer = bench.post("/v1/completions", &json!({ "prompt": input })).ok();
        assert_eq!(answer["choices"][0]["text"], json!(expected.text));
        assert_eq!(answer["usage"]["prompt_tokens"], prompt.len());
    }
    let body = json!({ "prompt": "Once upon a time", "echo": true, "stop": [&expected.text[2..5]] });
    let answer = bench.post("/v1/completions", &body).ok();
    let text = answer["choices"][0]["text"].as_str().expect("text").to_owned();
    let end = expected.text.find(&expected.text[2..5]).expect("it is in there");
    assert!(text.starts_with("Once upon a time") && text.ends_with(&expected.text[..end]), "{text}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[test]
fn log_probabilities_are_told_and_rank_answers() {
    let bench = Bench::tiny(options());
    let mut body = json!({ "messages": messages("Count."), "max_tokens": 6, "logprobs": true, "top_logprobs": 3, "ignore_eos": true });
    let choice = bench.post("/v1/chat/completions", &body).ok()["choices"][0].clone();
    let content = choice["logprobs"]["content"].as_array().expect("a list");
    assert_eq!(content.len(), 6);
    for token in content {
        let top = token["top_logprobs"].as_array().expect("a list");
        // The likeliest token was chosen.
        assert_eq!((top.len(), &top[0]["token"], &top[0]["logprob"]), (3, &token["token"], &token["logprob"]));
        assert!(top[1]["logprob"].as_f64() <= top[0]["logprob"].as_f64());
    }
    body["stream"] = json!(true);
    let events = bench.post("/v1/chat/completions", &body).events();
    let streamed = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(streamed.flatten().collect::<Vec<_>>(), content.iter().collect::<Vec<_>>());

    let body = json!({ "prompt": "Once", "n": 4, "logprobs": 2, "seed": 5, "temperature": 1.5, "max_tokens": 6, "ignore_eos": true });
    let four = bench.post("/v1/completions", &body).ok();
    let sum = |choice: &Value| {
        let logprobs = &choice["logprobs"];
        assert_eq!(
            (logprobs["text_offset"][0].as_u64(), logprobs["top_logprobs"].as_array().map(Vec::len)),
            (Some(0), Some(6))
        );
        logprobs["token_logprobs"].as_array().expect("a list").iter().filter_map(Value::as_f64).sum::<f64>()
    };
    let mut ranked: Vec<(f64, &Value)> =
        four["choices"].as_array().expect("choices").iter().map(|choice| (sum(choice), &choice["text"])).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut body = body;
    (body["n"], body["best_of"]) = (json!(2), json!(4));
    let best = bench.post("/v1/completions", &body).ok();
    assert_eq!([&best["choices"][0]["text"], &best["choices"][1]["text"]], [ranked[0].1, ranked[1].1]);
    assert_eq!(best["usage"]["completion_tokens"], 24);
}

#[test]
fn samplers_do_what_they_are_told() {
    let bench = Bench::tiny(options());
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "Once", "max_tokens": 8, "ignore_eos": true });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        bench.post("/v1/completions", &body).ok()["choices"][0]["text"].clone()
    };
    let plain = ask(json!({}));
    assert_eq!(ask(json!({ "frequency_penalty": 0, "logit_bias": {}, "samplers": ["top_k", "temperature"] })), plain);
    let body = json!({ "prompt": "Once", "max_tokens": 1, "logprobs": 0, "logit_bias": { "300": 1000 } });
    let biased = bench.post("/v1/completions", &body).ok()["choices"][0]["text"].clone();
    assert_eq!(biased, bench.post("/detokenize", &json!({ "tokens": [1, 300] })).ok()["text"]);
    for more in [
        json!({ "logit_bias": { "300": 1000 } }),
        json!({ "presence_penalty": -100 }),
        json!({ "temperature": 2, "seed": 1, "top_k": 0, "min_p": 0, "top_p": 1 }),
        json!({ "mirostat": 2, "temperature": 1, "seed": 1, "mirostat_tau": 9 }),
    ] {
        assert_ne!(ask(more.clone()), plain, "{more}");
    }
    let refusal = bench.post("/v1/completions", &json!({ "prompt": "x", "logit_bias": { "999999": 1 } })).refusal();
    assert!(refusal.starts_with("400 '999999' in 'logit_bias' is no token; ids go from 0 to"), "{refusal}");
    let refusal = bench.post("/v1/completions", &json!({ "prompt": "x", "samplers": ["top_k", "top_k"] })).refusal();
    assert_eq!(refusal, "400 the sampler top_k stands twice in the order; name it once");
}

#[test]
fn the_api_of_anthropic_gives_the_same_answer() {
    let bench = Bench::tiny(options());
    let chat =
        json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "Name three rivers." }]);
    let body = json!({ "messages": chat, "max_tokens": 12 });
    let expected = bench.post("/v1/chat/completions", &body).ok();
    let text = expected["choices"][0]["message"]["content"].as_str().expect("text");
    let mut body = json!({
        "model": "tiny",
        "system": [{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } }],
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Name three rivers." }] }],
        "max_tokens": 12,
    });
    let count = bench
        .post("/v1/messages/count_tokens", &json!({ "system": body["system"], "messages": body["messages"] }))
        .ok();
    assert_eq!(count["input_tokens"], expected["usage"]["prompt_tokens"]);
    let answer = bench.post("/v1/messages", &body).ok();
    assert_eq!(answer["content"], json!([{ "type": "text", "text": text }]));
    let usage = &answer["usage"];
    let n_read =
        usage["input_tokens"].as_u64().expect("a count") + usage["cache_read_input_tokens"].as_u64().expect("a count");
    assert_eq!(json!(n_read), count["input_tokens"]);

    body["stream"] = json!(true);
    let reply = bench.post("/v1/messages", &body);
    let events: Vec<Value> = reply
        .body
        .split("\n\n")
        .filter_map(|event| {
            let (name, data) = event.strip_prefix("event: ")?.split_once("\ndata: ")?;
            let data: Value = serde_json::from_str(data).expect("events are JSON");
            assert_eq!(data["type"], name);
            Some(data)
        })
        .collect();
    let told: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(told, text);
    let types: Vec<&str> =
        events.iter().filter_map(|event| event["type"].as_str()).filter(|ty| *ty != "content_block_delta").collect();
    assert_eq!(types, ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]);

    let third: String = text.chars().skip(2).take(1).collect();
    (body["stream"], body["stop_sequences"]) = (json!(false), json!([third]));
    let stopped = bench.post("/v1/messages", &body).ok();
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(third)));
    // What the assistant has begun is gone on with.
    let begun = json!([body["messages"][0], { "role": "assistant", "content": third }]);
    let body = json!({ "system": body["system"], "messages": begun, "max_tokens": 2 });
    bench.post("/v1/messages", &body).ok();
    let refusal = bench.post("/v1/messages", &json!({ "messages": begun }));
    let expected = json!({ "type": "error", "error": {
        "type": "invalid_request_error",
        "message": "'max_tokens' is missing: the most tokens to write; what does not fit the context is not written",
    } });
    assert_eq!((refusal.status, refusal.json()), (400, expected));
}

#[test]
fn text_and_tokens_and_templates() {
    let bench = Bench::tiny(options());
    let tokens = bench.post("/tokenize", &json!({ "text": "Once upon", "with_pieces": true })).ok();
    let listed = tokens["tokens"].as_array().expect("a list");
    let pieces: String = listed.iter().filter_map(|token| token["piece"].as_str()).collect();
    assert_eq!((pieces.trim(), listed.len()), ("Once upon", tokens["count"].as_u64().expect("a count") as usize));
    let ids: Vec<&Value> = listed.iter().map(|token| &token["id"]).collect();
    // What is no text is told as bytes.
    assert!(
        tokens["pieces"].as_array().is_some_and(|old| old.len() == tokens["tokens"].as_array().map_or(0, Vec::len))
    );
    let part = bench.post("/tokenize", &json!({ "text": "é", "with_pieces": true })).ok()["tokens"].take();
    let of_piece = |piece: &Value| piece.as_str().map_or(0, str::len).max(piece.as_array().map_or(0, Vec::len));
    assert!(
        part.as_array().is_some_and(|all| all.iter().map(|token| of_piece(&token["piece"])).sum::<usize>() >= 2),
        "{part}"
    );
    let text = bench.post("/detokenize", &json!({ "tokens": ids })).ok();
    assert_eq!(text["text"].as_str().map(str::trim), Some("Once upon"));
    let parts = json!([{ "role": "developer", "content": "Be brief." }, { "role": "user", "content": [
        { "type": "text", "text": "a" }, { "type": "text", "text": "b" },
    ] }]);
    let prompt = bench.post("/apply-template", &json!({ "messages": parts })).ok();
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt["prompt"], expected);
    assert_eq!(prompt["tokens"].as_array().map(Vec::len), prompt["count"].as_u64().map(|n| n as usize));
}

#[test]
fn what_the_server_is_and_takes_is_told() {
    let bench = Bench::tiny(options());
    assert_eq!(bench.get("/health").ok()["status"], "ok");
    assert_eq!(bench.get("/ready").ok()["status"], "ready");
    assert_eq!(bench.get("/version").ok()["version"], env!("CARGO_PKG_VERSION"));
    let models = bench.get("/v1/models").ok();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(bench.get("/v1/models/tiny").ok(), models["data"][0]);
    assert_eq!(
        bench.get("/v1/models/other").refusal(),
        "404 the model 'other' is not served here; 'tiny' is, and with --any-model-name it answers by any"
    );
    let capabilities = bench.get("/v1/capabilities").ok();
    let document = bench.get("/openapi.json").ok();
    for endpoint in capabilities["endpoints"].as_array().expect("endpoints") {
        let path = endpoint["path"].as_str().expect("a path").replace("{*", "{");
        let method = endpoint["method"].as_str().expect("a method").to_lowercase();
        let operation = &document["paths"][&path][&method];
        let content = operation["requestBody"]["content"].as_object().and_then(|content| content.values().next());
        let properties = &content.unwrap_or(&Value::Null)["schema"]["properties"];
        let accepted = endpoint["accepted"].as_array().expect("fields");
        let n_of = |names: &Value| names.as_array().map_or(0, Vec::len);
        let n_names: usize = accepted.iter().map(|field| 1 + n_of(&field["also"]) + n_of(&field["deprecated"])).sum();
        assert_eq!(properties.as_object().map_or(0, serde_json::Map::len), n_names, "{method} {path}");
        assert!(operation["responses"]["200"].is_object(), "{method} {path}");
    }
    for (path, word) in [
        ("/", "<title>RuvLLM</title>"),
        ("/page/app.js", "v1/chat/completions"),
        ("/page/app.css", ":root"),
        ("/page/highlight.js", "hljs"),
        ("/page/math.js", "mfrac"),
        ("/page/icon.svg", "<svg"),
        ("/page/licences.txt", "preact"),
    ] {
        let page = bench.get(path);
        assert!(page.status == 200 && page.body.contains(word), "{path}");
        assert!(page.header("content-security-policy").is_some_and(|policy| policy.starts_with("default-src 'none'")));
        // Names of the languages of elements, and what libraries say in messages of their own, are no places to ask.
        let known = ["www.w3.org/", "github.com/", "\"", "`"];
        let mut named =
            page.body.split("://").skip(1).filter(|rest| !known.iter().any(|known| rest.starts_with(known)));
        assert!(path == "/page/licences.txt" || named.next().is_none(), "{path} names another place");
        assert!(page.header("etag").is_some_and(|tag| tag.len() > 10), "{path}");
    }
    bench.post("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 5, "ignore_eos": true })).ok();
    bench.wait_until_idle();
    assert_eq!(bench.metric("ruvllm_generated_tokens_total"), 5.0);
    assert_eq!(bench.metric("ruvllm_ttft_seconds_count"), 1.0);
    assert_eq!(bench.metric("ruvllm_inter_token_seconds_count"), 4.0);
    assert!(bench.metric("ruvllm_kv_blocks{model=\"tiny\",state=\"free\"}") > 0.0);
    assert!(bench.metric("ruvllm_step_seconds_count") >= 1.0);
}

#[test]
fn an_encoder_embeds_and_writes_nothing() {
    let path = Golden::load("bert-a").model("f32");
    let load = LoadOptions { n_ctx: None, ..load_options() };
    let mut engine = Engine::load(&path, &load, &mut |_| {}).expect("it loads");
    let tokenizer = engine.tokenizer().expect("a vocabulary");
    let tokens = tokenizer.encode("hello world", EncodeOptions::EMBEDDED).expect("text");
    let expected = engine.embed(&tokens).expect("it embeds");
    let bench = Bench::new(&path, &load, options());
    let answer = bench.post("/v1/embeddings", &json!({ "input": ["hello world", "x"], "model": "tiny" })).ok();
    let numbers: Vec<f32> = answer["data"][0]["embedding"]
        .as_array()
        .expect("numbers")
        .iter()
        .map(|x| x.as_f64().expect("a number") as f32)
        .collect();
    assert_eq!((numbers, &answer["data"][1]["index"]), (expected, &json!(1)));
    let base64 = bench.post("/v1/embeddings", &json!({ "input": tokens, "encoding_format": "base64" })).ok();
    assert_eq!(base64["data"][0]["embedding"].as_str().map(str::len), Some((engine.info().n_embd * 4).div_ceil(3) * 4));
    let refusal = bench.post("/v1/completions", &json!({ "prompt": "Once" })).refusal();
    assert!(refusal.starts_with("400 model '") && refusal.contains("makes embeddings, not text"), "{refusal}");
    let refusal = bench.post("/v1/embeddings", &json!({ "input": "x", "dimensions": 3 })).refusal();
    assert!(refusal.starts_with("400 'dimensions' is 3; the model's embeddings have"), "{refusal}");
}

#[test]
fn a_model_that_writes_embeds_as_well_and_documents_are_put_in_order() {
    let path = real_model("smollm2:135m");
    let load = load_options();
    let mut engine = Engine::load(&path, &load, &mut |_| {}).expect("it loads");
    let tokens = engine.encode_prompt("hello world", true).expect("text");
    let bench = Bench::new(&path, &load, options());
    for (name, pooling) in [("mean", Pooling::Mean), ("last", Pooling::Last), ("cls", Pooling::Cls)] {
        let expected = engine.read_out(&tokens, Readout::Embedding(Some(pooling))).expect("it embeds");
        let answer = bench.post("/v1/embeddings", &json!({ "input": "hello world", "pooling": name })).ok();
        let numbers = answer["data"][0]["embedding"].as_array().expect("numbers");
        assert!(numbers.iter().map(|x| x.as_f64().expect("a number") as f32).eq(expected), "{name}");
    }
    let refusal = bench.post("/v1/embeddings", &json!({ "input": "x", "pooling": "max" })).refusal();
    assert!(refusal.starts_with("400 'pooling'"), "{refusal}");
    drop(bench);

    let bench = Bench::new(&real_model("minilm:l6"), &LoadOptions { n_ctx: None, ..load_options() }, options());
    let documents = ["A train to the sea", "Paris is the capital of France.", "How to bake bread"];
    let body = json!({
        "query": "What is France's capital?",
        "documents": [documents[0], { "text": documents[1] }, documents[2]],
        "return_documents": true,
        "top_n": 2,
    });
    let answer = bench.post("/v1/rerank", &body).ok();
    let results = answer["results"].as_array().expect("results");
    let score = |i: usize| results[i]["relevance_score"].as_f64().expect("a score");
    assert_eq!(
        (results.len(), &results[0]["index"], &results[0]["document"]["text"]),
        (2, &json!(1), &json!(documents[1]))
    );
    assert!(score(0) > 0.7 && score(1) < 0.3, "{answer}");
    let refusal = bench.post("/v1/rerank", &json!({ "query": "x", "documents": [] })).refusal();
    assert!(refusal.starts_with("400 'documents'"), "{refusal}");
    let refusal =
        bench.post("/v1/rerank", &json!({ "query": "x", "documents": ["y"], "rank_fields": ["z"] })).refusal();
    assert!(refusal.starts_with("400 ") && refusal.contains("rank_fields"), "{refusal}");
}

/// Requests of many lengths, seeds and samplers.
fn mixed(i: usize) -> Value {
    let words = ["river", "stone", "why", "blue", "Once upon a time", "count to ten:", "def f(x):"];
    let text: Vec<&str> = (0..1 + i * 7 % 23).map(|k| words[(i + k * k) % words.len()]).collect();
    let mut body =
        json!({ "prompt": text.join(" "), "max_tokens": 1 + i % 17, "seed": i, "temperature": (i % 4) as f64 * 0.5 });
    match i % 3 {
        0 => body["top_k"] = json!(i % 50),
        1 => body["top_p"] = json!(0.5 + (i % 5) as f64 / 10.0),
        _ => body["repeat_penalty"] = json!(1.2),
    }
    body
}

/// Returns the answers to requests, asked for by `n_clients` at once.
fn ask_all(bench: &Bench, bodies: &[Value], n_clients: usize) -> Vec<Value> {
    let (next, answers) = (AtomicUsize::new(0), Mutex::new(vec![Value::Null; bodies.len()]));
    std::thread::scope(|scope| {
        for _ in 0..n_clients {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(body) = bodies.get(i) else { return };
                    let answer = bench.post("/v1/completions", body).ok();
                    answers.lock().expect("no panic")[i] = answer["choices"].clone();
                }
            });
        }
    });
    answers.into_inner().expect("no panic")
}

/// Issue "Serving", 4: alone and beside fifteen others, cold and warm, guessed ahead and not, all
/// answers are the same.
#[test]
fn company_changes_no_answer() {
    let bodies: Vec<Value> = (0..200).map(mixed).collect();
    let (folder, path) = crate::client::tiny_chat();
    let load = LoadOptions { n_seq_max: 16, ..load_options() };
    let plain = ServerOptions { speculation: Speculation::Off, ..options() };
    let cold = Bench::new(&path, &LoadOptions { prefix_cache: false, ..load.clone() }, plain);
    let alone = ask_all(&cold, &bodies, 1);
    drop(cold);
    let bench = Bench::new(&path, &load, options());
    assert!(ask_all(&bench, &bodies, 16) == alone);
    // All prompts are cached now.
    assert!(ask_all(&bench, &bodies, 16) == alone);
    assert!(bench.metric("ruvllm_cached_tokens_total") > 0.0);
    drop(folder);
}

#[test]
fn a_real_model_answers_in_company_as_alone() {
    let path = real_model("smollm2:135m");
    let load = LoadOptions { n_seq_max: 8, ..load_options() };
    let bench = Bench::new(&path, &load, options());
    let bodies: Vec<Value> = (0..16).map(mixed).collect();
    let alone = ask_all(&bench, &bodies, 1);
    assert!(ask_all(&bench, &bodies, 8) == alone);
    let body = json!({ "messages": messages("What is the capital of France?"), "max_tokens": 20 });
    let answer = bench.post("/v1/chat/completions", &body).ok();
    let text = answer["choices"][0]["message"]["content"].as_str().expect("text");
    assert!(text.contains("Paris"), "{text}");
}
