//! What llama.cpp's own server answers, where its clients look for it.

use std::time::Duration;

use ruvllm_engine::{Engine, LoadOptions};
use ruvllm_server::{KeyOptions, ModelSource, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Bench, load_options, options, tiny_chat, with};

/// A prompt that takes several steps.
fn long() -> String {
    "river stone ".repeat(80)
}

/// A prompt of an endpoint, in the field that it has for it.
fn asks(path: &str, text: &str, more: Value) -> Value {
    let body = match path {
        path if path.ends_with("/chat/completions") => json!({ "messages": [{ "role": "user", "content": text }] }),
        "/v1/responses" => json!({ "input": text }),
        _ => json!({ "prompt": text }),
    };
    with(with(body, json!({ "temperature": 0 })), more)
}

#[test]
fn a_stream_tells_how_far_its_prompt_is() {
    let mut options = options();
    options.scheduler.prefill_tokens = 64;
    options.scheduler.step_tokens = 64;
    let bench = Bench::tiny(options);
    for path in ["/chat/completions", "/v1/completions", "/completion", "/v1/responses"] {
        let limit = if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" };
        let asked = json!({ "stream": true, "return_progress": true, "timings_per_token": true, (limit): 4 });
        // What one endpoint computed is cached for the next.
        let text = format!("{path} {}", long());
        let events = bench.post(path, &asks(path, &text, asked.clone())).data();
        let progress: Vec<&Value> = events.iter().filter_map(|event| event.get("prompt_progress")).collect();
        let count = |progress: &Value, name: &str| progress[name].as_u64().expect("a count");
        let total = count(progress[0], "total");
        assert!(total > 128 && progress.len() > 2, "{path}: {progress:?}");
        assert_eq!(count(progress[0], "cache"), count(progress[0], "processed"), "{path}");
        let processed: Vec<u64> = progress.iter().map(|progress| count(progress, "processed")).collect();
        assert!(processed.is_sorted_by(|a, b| a < b) && processed.last() == Some(&total), "{path}: {processed:?}");
        let last_progress = events.iter().rposition(|event| event.get("prompt_progress").is_some());
        let first_times = events.iter().position(|event| event.get("timings").is_some());
        assert!(last_progress < first_times, "{path}: the prompt comes before the answer");
        // The second time there is little to compute, and who does not ask hears nothing.
        let again = bench.post(path, &asks(path, &text, asked)).data();
        let first = again.iter().find_map(|event| event.get("prompt_progress")).expect("progress");
        assert!(count(first, "cache") > total / 2, "{path}: {first}");
        let plain = bench.post(path, &asks(path, &text, json!({ "stream": true, (limit): 4 })));
        assert!(!plain.body.contains("prompt_progress"), "{path}");
    }
}

#[test]
fn a_response_tells_its_times_if_they_are_asked_for() {
    let bench = Bench::tiny(options());
    let ask = |more: Value| {
        bench.post("/v1/responses", &with(json!({ "input": "a", "max_output_tokens": 4, "stream": true }), more)).data()
    };
    let events = ask(json!({ "timings_per_token": true }));
    let is_delta = |event: &&Value| event["type"] == "response.output_text.delta";
    assert!(events.iter().filter(is_delta).all(|event| event["timings"]["predicted_n"].is_u64()));
    let last = events.last().expect("an event");
    assert_eq!((&last["timings"]["predicted_n"], last["response"]["usage"].is_object()), (&json!(4), true));
    assert!(ask(json!({})).iter().all(|event| event.get("timings").is_none()));
}

#[test]
fn probabilities_of_the_draw_are_told() {
    let bench = Bench::tiny(options());
    let ask = |more: Value| {
        let body = json!({ "n_probs": 5, "post_sampling_probs": true, "n_predict": 4, "ignore_eos": true, "seed": 3 });
        bench.post("/completion", &asks("/completion", "a b c", with(body, more))).ok()
    };
    let number = |value: &Value| value.as_f64().expect("a number");
    let told = |answer: &Value| answer["completion_probabilities"].as_array().expect("a list").clone();
    // Greedy: the token that is taken could be no other.
    for token in told(&ask(json!({}))) {
        let top = token["top_probs"].as_array().expect("a list");
        assert_eq!((number(&token["prob"]), top.len(), number(&top[0]["prob"])), (1.0, 5, 1.0));
        assert!(top[1..].iter().all(|other| number(&other["prob"]) == 0.0) && token.get("logprob").is_none());
    }
    // Two candidates are left by top-k, and share all there is.
    for token in told(&ask(json!({ "temperature": 2.0, "top_k": 2, "min_p": 0, "top_p": 1 }))) {
        let top: Vec<f64> =
            token["top_probs"].as_array().expect("a list").iter().map(|one| number(&one["prob"])).collect();
        assert!((top[0] + top[1] - 1.0).abs() < 1e-5 && top[0] < 1.0 && top[2..] == [0.0; 3], "{top:?}");
        assert!(top[..2].contains(&number(&token["prob"])), "{token}");
    }
    // A grammar leaves one token.
    let forced = ask(json!({ "grammar": "root ::= \"yes\"", "ignore_eos": false }));
    assert!(told(&forced).iter().all(|token| number(&token["prob"]) > 0.0), "{forced}");
    let refused = asks("/chat/completions", "a", json!({ "post_sampling_probs": true }));
    assert!(bench.post("/chat/completions", &refused).refusal().contains("use /completion"));
}

#[test]
fn an_answer_tells_its_tokens_if_they_are_asked_for_and_does_not_end() {
    let bench = Bench::tiny(options());
    let ask =
        |more: Value| bench.post("/completion", &asks("/completion", "a", with(json!({ "n_predict": 4 }), more))).ok();
    assert_eq!(ask(json!({ "ignore_eos": true }))["tokens"], json!([]));
    let tokens = ask(json!({ "ignore_eos": true, "return_tokens": true }))["tokens"].take();
    assert_eq!(tokens.as_array().map(Vec::len), Some(4));
    let biases =
        |ignore_eos: bool| ask(json!({ "ignore_eos": ignore_eos }))["generation_settings"]["logit_bias"].take();
    assert_eq!(biases(false), json!([]));
    let ends = biases(true);
    assert!(!ends.as_array().expect("a list").is_empty(), "{ends}");
    assert!(
        ends.as_array().expect("a list").iter().all(|end| end["token"].is_u64() && end["bias"].is_null()),
        "{ends}"
    );
}

/// Paths of llama.cpp's server answer as that does, paths of OpenAI's API as OpenAI's.
#[test]
fn a_chat_is_told_as_its_path_has_it() {
    let bench = Bench::tiny(options());
    let first = |path: &str| {
        let body = asks(path, "a", json!({ "stream": true, "max_tokens": 2 }));
        bench.post(path, &body).data()[0]["choices"][0]["delta"]["content"].take()
    };
    assert_eq!((first("/chat/completions"), first("/v1/chat/completions")), (Value::Null, json!("")));
    let error = |path: &str| bench.post(path, &asks(path, &long().repeat(40), json!({}))).json()["error"].take();
    let (own, openai) = (error("/chat/completions"), error("/v1/chat/completions"));
    assert_eq!((&own["type"], &openai["type"]), (&json!("exceed_context_size_error"), &json!("invalid_request_error")));
    assert_eq!((&own["code"], &own["n_ctx"]), (&json!("context_length_exceeded"), &json!(1024)));
    assert!(own["n_prompt_tokens"].as_u64() > Some(1024));
    let fingerprint = bench.post("/chat/completions", &asks("/chat/completions", "a", json!({ "max_tokens": 1 }))).ok();
    assert!(fingerprint["system_fingerprint"].as_str().is_some_and(|build| build.starts_with('b')), "{fingerprint}");
}

#[test]
fn a_verbose_server_tells_the_prompt_as_it_was_read() {
    let bench = Bench::tiny(ServerOptions { is_verbose: true, ..options() });
    let body = asks("/v1/chat/completions", "a", json!({ "max_tokens": 2 }));
    let verbose = bench.post("/v1/chat/completions", &body).ok()["__verbose"].take();
    let prompt = verbose["prompt"].as_str().expect("a text");
    assert!(prompt.ends_with("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"), "{prompt}");
    assert_eq!(verbose["generation_settings"]["n_predict"], 2);
    let streamed =
        bench.post("/v1/completions", &asks("/v1/completions", "a", json!({ "stream": true, "max_tokens": 2 })));
    assert_eq!(streamed.data().iter().filter(|event| event["__verbose"]["prompt"].is_string()).count(), 1);
    let quiet = Bench::tiny(options()).post("/v1/chat/completions", &body).ok();
    assert!(quiet.get("__verbose").is_none());
}

#[test]
fn places_and_page_may_be_left_out() {
    let bench = Bench::tiny(ServerOptions { has_slots: false, has_page: false, ..options() });
    assert!(bench.get("/slots").refusal().starts_with("501 "));
    assert_eq!((bench.get("/").status, bench.get("/page/app.js").status, bench.get("/health").status), (404, 404, 200));
}

#[test]
fn what_a_place_had_is_saved_and_brought_back() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let load = LoadOptions { cache_dir: Some(cache.path().to_owned()), ..load_options() };
    let (folder, path) = tiny_chat();
    let ask = |bench: &Bench, id: u64| {
        let body = asks("/completion", &long(), json!({ "n_predict": 4, "id_slot": id }));
        let reply = bench.post("/completion", &body);
        assert_eq!(reply.header("x-ruvllm-unheeded"), None);
        reply.ok()
    };
    let first = Bench::new(&path, &load, options());
    assert!(
        first.post("/slots/1?action=save", &json!({ "filename": "x" })).refusal().contains("there is nothing to save")
    );
    let answer = ask(&first, 1);
    let n_tokens = answer["tokens_evaluated"].as_u64().expect("a count") + 4;
    let saved = first.post("/slots/1?action=save", &json!({ "filename": "x.bin" })).ok();
    assert_eq!(
        (&saved["id_slot"], &saved["n_saved"], &saved["filename"]),
        (&json!(1), &json!(n_tokens), &json!("x.bin"))
    );
    assert!(saved["n_written"].as_u64() > Some(0) && saved["timings"]["save_ms"].is_number(), "{saved}");
    drop(first.join());
    // Another process finds it.
    let second = Bench::new(&path, &load, options());
    let restored = second.post("/slots/0?action=restore", &json!({ "filename": "x.bin" })).ok();
    assert_eq!((&restored["id_slot"], &restored["n_restored"]), (&json!(0), &json!(n_tokens)));
    assert!(restored["n_ready"].as_u64() > Some(100), "{restored}");
    let again = ask(&second, 0);
    assert!(again["timings"]["cache_n"].as_u64() > Some(100) && again["content"] == answer["content"]);
    // What is erased is computed again, once.
    let erased = second.send("/slots/0?action=erase", "", &[]).ok();
    assert_eq!(erased, json!({ "id_slot": 0, "n_erased": n_tokens }));
    assert_eq!(ask(&second, 0)["timings"]["cache_n"], 0);
    assert!(ask(&second, 0)["timings"]["cache_n"].as_u64() > Some(100));
    for (path, body, expected) in [
        ("/slots/9?action=erase", json!({}), "400 '9' is no place"),
        ("/slots/0?action=pet", json!({}), "400 'action' is \"pet\""),
        ("/slots/0?action=save", json!({}), "400 'filename' is missing"),
        ("/slots/0?action=restore", json!({ "filename": "y" }), "400 nothing is saved under the name 'y'"),
    ] {
        let refused = second.post(path, &body).refusal();
        assert!(refused.starts_with(expected), "{path}: {refused}");
    }
    let without = Bench::new(&path, &load_options(), options());
    ask(&without, 0);
    let refused = without.post("/slots/0?action=save", &json!({ "filename": "x" })).refusal();
    assert_eq!(refused, "501 the server keeps nothing of places; start it with --cache-dir DIR");
    drop(folder);
}

#[test]
fn a_model_answers_to_its_other_names_and_has_tags() {
    let (folder, path) = tiny_chat();
    let engine = Engine::load(&path, &load_options(), &mut |_| {}).expect("it loads");
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let source = ModelSource::loaded("tiny", engine).with_aliases(words(&["small", "code"])).with_tags(words(&["fim"]));
    let bench = Bench::of(vec![source], options());
    let model = bench.get("/models").ok()["data"][0].take();
    assert_eq!((&model["aliases"], &model["tags"]), (&json!(["small", "code"]), &json!(["fim"])));
    for name in ["tiny", "small", "code"] {
        let body = asks("/v1/completions", "a", json!({ "model": name, "max_tokens": 1 }));
        assert_eq!(bench.post("/v1/completions", &body).ok()["model"], "tiny");
        assert_eq!(bench.get(&format!("/v1/models/{name}")).ok()["id"], "tiny");
    }
    let ollama = json!({ "model": "small", "messages": [{ "role": "user", "content": "a" }], "stream": false });
    assert_eq!(bench.post("/api/chat", &ollama).ok()["model"], "small");
    drop(folder);
}

#[test]
fn models_may_be_loaded_by_hand_only() {
    let (folder, path) = tiny_chat();
    let source = |name: &str| {
        let path = path.clone();
        ModelSource::new(name, Box::new(move || Engine::load(&path, &load_options(), &mut |_| {})))
    };
    let options = ServerOptions { loads_models: false, models_max: 1, ..options() };
    let bench = Bench::of(vec![source("a"), source("b")], options);
    let body = asks("/v1/completions", "a", json!({ "model": "b", "max_tokens": 1 }));
    let refused = bench.post("/v1/completions", &body).refusal();
    assert_eq!(refused, "400 the model 'b' is not loaded; POST /models/load loads it");
    assert_eq!(bench.post("/models/load", &json!({ "model": "b" })).ok(), json!({ "success": true }));
    assert_eq!(bench.post("/v1/completions", &body).ok()["model"], "b");
    let props = bench.get("/props").ok();
    assert_eq!(
        (&props["role"], &props["max_instances"], &props["models_autoload"]),
        (&json!("router"), &json!(1), &json!(false))
    );
    assert!(bench.get("/props?model=b").ok().get("role").is_none());
    drop(folder);
}

#[test]
fn models_are_listed_to_whoever_asks() {
    let keys = KeyOptions { file: None, lines: vec!["ann key-of-ann".to_owned()] };
    let bench = Bench::tiny(ServerOptions { keys, ..options() });
    assert_eq!(bench.get("/models").ok()["data"][0]["id"], "tiny");
    assert_eq!(bench.get("/v1/models").status, 401);
    assert_eq!(bench.get("/slots").status, 401);
}

#[test]
fn embeddings_are_lists_of_vectors() {
    let bench = Bench::tiny(options());
    let ask = |path: &str, more: Value| bench.post(path, &with(json!({ "input": "river stone" }), more));
    let pooled = ask("/embeddings", json!({})).ok();
    let openai = ask("/v1/embeddings", json!({})).ok();
    assert_eq!((&pooled[0]["index"], &pooled[0]["embedding"]), (&json!(0), &json!([openai["data"][0]["embedding"]])));
    let each = ask("/embeddings", json!({ "pooling": "none" })).ok()[0]["embedding"].take();
    assert_eq!(each.as_array().map(|each| each.len() as u64), openai["usage"]["prompt_tokens"].as_u64());
    let vectors: Vec<Vec<f64>> = serde_json::from_value(each).expect("vectors");
    let width = openai["data"][0]["embedding"].as_array().map(Vec::len);
    assert!(vectors.iter().all(|vector| Some(vector.len()) == width));
    // The last of them, brought to unit length, is what the last one makes.
    let last: Vec<f64> =
        serde_json::from_value(ask("/embeddings", json!({ "pooling": "last" })).ok()[0]["embedding"][0].take())
            .expect("a vector");
    let own = vectors.last().expect("a vector");
    let length = own.iter().map(|x| x * x).sum::<f64>().sqrt();
    assert!(own.iter().zip(&last).all(|(a, b)| (a / length - b).abs() < 1e-5));
    assert!(ask("/v1/embeddings", json!({ "pooling": "none" })).refusal().starts_with("400 'pooling' is \"none\""));
    let refused = bench.post("/v1/embeddings", &json!({ "input": long().repeat(40) })).refusal();
    assert!(refused.starts_with("400 the input is too large to process: "), "{refused}");
}

#[test]
fn schemas_of_older_drafts_need_not_name_them() {
    let bench = Bench::tiny(options());
    let schema = json!({ "type": "array", "items": [{ "const": 1 }, { "const": "b" }], "minItems": 2, "maxItems": 2 });
    let body = asks("/chat/completions", "a", json!({ "max_tokens": 64, "json_schema": schema }));
    let text = bench.post("/chat/completions", &body).ok()["choices"][0]["message"]["content"].take();
    let value: Value = serde_json::from_str(text.as_str().expect("a text")).expect("JSON");
    assert_eq!(value, json!([1, "b"]));
}

#[test]
fn metrics_have_their_names() {
    let bench = Bench::tiny(options());
    let body = asks("/completion", "a b c", json!({ "n_predict": 4, "ignore_eos": true }));
    let n_prompt = bench.post("/completion", &body).ok()["tokens_evaluated"].as_u64().expect("a count");
    for _ in 0..200 {
        if bench.metric("llamacpp:tokens_predicted_total") > 0.0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(bench.metric("llamacpp:tokens_predicted_total"), 4.0);
    assert_eq!(bench.metric("llamacpp:prompt_tokens_total"), n_prompt as f64);
    assert!(
        bench.metric("llamacpp:n_decode_total") >= 1.0 && bench.metric("llamacpp:tokens_predicted_seconds_total") > 0.0
    );
    assert_eq!(bench.metric("llamacpp:requests_processing"), 0.0);
}

#[test]
fn images_are_refused_in_so_many_words() {
    let bench = Bench::tiny(options());
    let image = json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AA==" } });
    let body = json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": [image] }] });
    let error = bench.post("/v1/messages", &body).json()["error"]["message"].take();
    assert!(error.as_str().is_some_and(|line| line.contains("image input is not supported")), "{error}");
}
