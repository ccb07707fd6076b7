//! Adapters over HTTP: loaded, named, replaced and removed while requests run.

mod limits;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ruvllm_engine::{
    AdapterSet, Engine, FactorFormat, GenerateRequest, LoadOptions, Readout, SamplingParams, Speculation,
};
use ruvllm_lora::format::{gguf, peft};
use ruvllm_lora::{Adapter, Delta, FactorPair, RowOrder, Values};
use ruvllm_server::{AdapterOptions, KeyOptions, ModelSource, ServerOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Bench, Reply, load_options, options, tiny_chat};

/// Takes the text out of an answer.
type Pick = fn(&Value) -> &Value;

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ruvllm-lora/testdata").join(name)
}

/// A folder with adapters of the tests' model: `qv`, `all` and `dora`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["qv", "all", "dora"] {
        put(folder.path(), name, &format!("llama-{name}"));
    }
    folder
}

/// Copies an adapter, whole or not at all, as one who replaces files of a running server should.
fn put(folder: &Path, name: &str, from: &str) {
    let partial = folder.join(format!(".{name}.part"));
    std::fs::create_dir_all(&partial).expect("a temporary folder is writable");
    for file in [peft::CONFIG, peft::WEIGHTS] {
        std::fs::copy(testdata(from).join(file), partial.join(file)).expect("a temporary folder is writable");
    }
    std::fs::rename(partial, folder.join(name)).expect("a temporary folder is writable");
}

fn bench_with(folder: &Path, bytes_max: usize, options: ServerOptions) -> Bench {
    let (model, path) = tiny_chat();
    let engine = Engine::load(&path, &load_options(), &mut |_| {}).expect("it loads");
    drop(model);
    let adapters = AdapterOptions { folder: Some(folder.to_owned()), named: Vec::new(), bytes_max };
    Bench::of(vec![ModelSource::loaded("tiny", engine).with_adapters(adapters)], options)
}

fn bench(folder: &Path) -> Bench {
    bench_with(folder, 64 << 20, options())
}

/// An engine of the same model, beside the server.
fn engine() -> Engine {
    let (_model, path) = tiny_chat();
    Engine::load(&path, &load_options(), &mut |_| {}).expect("it loads")
}

fn set(engine: &Engine, members: &[(&str, f32)]) -> AdapterSet {
    let load = |name: &str| {
        engine
            .adapter_loader()
            .expect("it applies adapters")
            .load(&testdata(name), FactorFormat::F16)
            .expect("it is sound")
    };
    AdapterSet::new(members.iter().map(|(name, scale)| (load(name), *scale)).collect()).expect("a set")
}

const PROMPT: &str = "Once upon a time there was a river that ran uphill, and nobody in the valley thought it strange";

/// What a request's body says more than the others'.
fn body(more: &Value) -> Value {
    let mut body = json!({ "prompt": PROMPT, "max_tokens": 24, "ignore_eos": true, "seed": 3 });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    body
}

fn text(reply: &Reply) -> String {
    reply.ok()["choices"][0]["text"].as_str().expect("a text").to_owned()
}

fn ask(bench: &Bench, more: &Value) -> String {
    text(&bench.post("/v1/completions", &body(more)))
}

/// What the engine says to the same.
fn expected(engine: &mut Engine, members: &[(&str, f32)]) -> String {
    let (prompt, adapters) = (engine.encode_prompt(PROMPT, true).expect("a prompt"), set(engine, members));
    let sampling = SamplingParams::greedy();
    let request =
        GenerateRequest { prompt, adapters, sampling, max_tokens: Some(24), ignore_eos: true, ..Default::default() };
    engine.generate(&request).expect("it fits").for_each_token(|_| {}).expect("it runs").text
}

#[test]
fn every_api_has_adapters_by_every_way_of_naming_them() {
    let (folder, mut engine) = (folder(), engine());
    let bench = bench(folder.path());
    let base = expected(&mut engine, &[]);
    let qv = expected(&mut engine, &[("llama-qv", 1.0)]);
    let both = expected(&mut engine, &[("llama-qv", 0.5), ("llama-dora", 0.25)]);
    assert!(base != qv && qv != both && base != both);
    assert_eq!(ask(&bench, &json!({})), base);
    for more in [
        json!({ "adapter": "qv" }),
        json!({ "model": "tiny:qv" }),
        json!({ "model": "tiny", "adapters": [{ "name": "qv" }] }),
        json!({ "adapters": [{ "name": "qv", "scale": 1 }, { "name": "all", "scale": 0 }] }),
    ] {
        assert_eq!(ask(&bench, &more), qv, "{more}");
    }
    let members = json!([{ "name": "qv", "scale": 0.5 }, { "name": "dora", "scale": 0.25 }]);
    assert_eq!(ask(&bench, &json!({ "adapters": members })), both);
    assert_eq!(ask(&bench, &json!({ "adapters": [] })), base);
    // By their numbers, as llama.cpp's clients have it.
    let listed = bench.get("/lora-adapters").ok();
    let id = |name: &str| listed.as_array().expect("a list").iter().position(|info| info["path"] == name);
    let members = json!([{ "id": id("qv"), "scale": 0.5 }, { "id": id("dora"), "scale": 0.25 }]);
    assert_eq!(ask(&bench, &json!({ "lora": members })), both);
    assert_eq!(ask(&bench, &json!({ "lora": [], "adapter": "qv" })), qv);
    let n = listed.as_array().map_or(0, Vec::len);
    assert_eq!(
        bench.post("/v1/completions", &body(&json!({ "lora": [{ "id": 99 }] }))).refusal(),
        format!("404 there is no adapter 99; /lora-adapters lists the {n} that there are")
    );
    assert_eq!(bench.post("/v1/completions", &body(&json!({ "model": "tiny:qv" }))).ok()["model"], "tiny:qv");

    // The other APIs: what they say differs from the base's as it does by the field.
    let said = json!([{ "role": "user", "content": PROMPT }]);
    let chat = |more: Value| {
        let mut body = json!({ "messages": said, "max_tokens": 16, "temperature": 0 });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let answers: [(&str, Pick); 3] = [
        ("/v1/chat/completions", |answer| &answer["choices"][0]["message"]["content"]),
        ("/v1/messages", |answer| &answer["content"][0]["text"]),
        ("/v1/responses", |answer| &answer["output"][0]["content"][0]["text"]),
    ];
    for (path, said) in answers {
        let ask = |more: Value| {
            let mut body = chat(more);
            if path == "/v1/responses" {
                body = json!({ "input": PROMPT, "max_output_tokens": 16, "temperature": 0, "model": body["model"],
                    "adapter": body["adapter"], "adapters": body["adapters"] });
            }
            let answer = bench.post(path, &body).ok();
            assert!(said(&answer).is_string(), "{answer}");
            said(&answer).clone()
        };
        let (plain, adapted) = (ask(json!({})), ask(json!({ "adapter": "qv" })));
        assert_ne!(plain, adapted, "{path}");
        assert_eq!(ask(json!({ "model": "tiny:qv" })), adapted, "{path}");
        assert_eq!(ask(json!({ "adapters": [{ "name": "qv" }] })), adapted, "{path}");
        let refusal = bench.post(path, &chat(json!({ "adapter": "nobody" })));
        assert_eq!(refusal.status, if path == "/v1/responses" { 400 } else { 404 }, "{}", refusal.body);
    }
    // Counting tokens and the like needs no adapter, and knows the name.
    let count = json!({ "model": "tiny:qv", "messages": said });
    assert!(bench.post("/v1/messages/count_tokens", &count).ok()["input_tokens"].as_u64() > Some(0));
    let embed = |more: Value| bench.post("/v1/embeddings", &more).ok()["data"][0]["embedding"].clone();
    let embedding = embed(json!({ "input": "a river", "adapter": "qv" }));
    assert_eq!(embed(json!({ "input": "a river", "model": "tiny:qv" })), embedding);
    let tokens = engine
        .text()
        .expect("a tokenizer")
        .tokenizer()
        .encode("a river", ruvllm_engine::tokenizer::EncodeOptions { add_special: true, parse_special: false });
    let adapters = set(&engine, &[("llama-qv", 1.0)]);
    let vector =
        engine.read_out_adapted(&tokens.expect("a text"), Readout::Embedding(None), &adapters).expect("it embeds");
    let numbers: Vec<f32> =
        embedding.as_array().expect("numbers").iter().filter_map(|x| Some(x.as_f64()? as f32)).collect();
    assert_eq!(numbers, vector);
    assert_ne!(embed(json!({ "input": "a river" })), embedding);
    let rank = json!({ "query": "river", "documents": ["a river", "bread"], "adapter": "qv" });
    assert_eq!(bench.post("/v1/rerank", &rank).ok()["results"].as_array().map(Vec::len), Some(2));
}

#[test]
fn adapters_are_listed_loaded_pinned_and_removed() {
    let folder = folder();
    let bench = bench(folder.path());
    let list = |bench: &Bench| bench.get("/v1/adapters").ok()["data"].as_array().expect("adapters").clone();
    let names =
        |all: &[Value]| all.iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&list(&bench)), ["all", "dora", "qv"]);
    let expected = json!({ "name": "all", "model": "tiny", "generation": 1, "tier": "cold", "bytes": 0, "rank": null,
        "pinned": false, "tenant": null, "uses": 0 });
    assert_eq!(list(&bench)[0], expected);
    let loaded = bench.post("/v1/adapters", &json!({ "name": "poet", "path": "qv", "pinned": true })).ok();
    assert_eq!((&loaded["generation"], &loaded["tier"], &loaded["pinned"]), (&json!(1), &json!("hot"), &json!(true)));
    assert!(loaded["bytes"].as_u64() > Some(100) && loaded["rank"].as_u64() > Some(0), "{loaded}");
    let again = bench.post("/v1/adapters", &json!({ "name": "poet", "path": "all", "model": "tiny" })).ok();
    assert_eq!((&again["generation"], &again["pinned"]), (&json!(2), &json!(true)));
    assert_eq!(bench.post("/v1/adapters/poet", &json!({ "pinned": false })).ok()["pinned"], false);
    assert_eq!(bench.post("/v1/adapters/tiny:poet", &json!({ "pinned": true })).ok()["pinned"], true);
    // By its own name alone.
    assert_eq!(bench.post("/v1/adapters", &json!({ "name": "qv" })).ok()["generation"], 2);

    let models = bench.get("/v1/models").ok();
    let ids: Vec<&str> =
        models["data"].as_array().expect("models").iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids, ["tiny", "tiny:all", "tiny:dora", "tiny:poet", "tiny:qv"]);
    let one = bench.get("/v1/models/tiny:poet").ok();
    assert_eq!(
        (&one["id"], &one["parent"], &one["meta"]["architecture"]),
        (&json!("tiny:poet"), &json!("tiny"), &json!("llama"))
    );
    assert_eq!(bench.get("/v1/models/tiny:nobody").status, 404);
    assert_ne!(ask(&bench, &json!({ "model": "tiny:poet" })), ask(&bench, &json!({})));
    assert_eq!(bench.metric("ruvllm_adapters"), 4.0);
    assert!(bench.metric("ruvllm_adapter_bytes") > 0.0 && bench.metric("ruvllm_adapter_requests_total") > 2.0);
    assert_eq!(bench.metric("ruvllm_adapter_bytes_max"), f64::from(64 << 20));

    assert_eq!(
        bench.ask("DELETE", "/v1/adapters/poet", &[]).ok(),
        json!({ "name": "poet", "model": "tiny", "deleted": true })
    );
    assert_eq!(names(&list(&bench)), ["all", "dora", "qv"]);
    for (status, reply) in [
        (404, bench.ask("DELETE", "/v1/adapters/poet", &[])),
        (404, bench.ask("DELETE", "/v1/adapters/tiny:poet", &[])),
        (404, bench.ask("DELETE", "/v1/adapters/other:qv", &[])),
        (404, bench.post("/v1/adapters/poet", &json!({ "pinned": true }))),
        (404, bench.post("/v1/completions", &body(&json!({ "adapter": "poet" })))),
        (404, bench.post("/v1/completions", &body(&json!({ "model": "tiny:poet" })))),
        (404, bench.post("/tokenize", &json!({ "text": "x", "model": "tiny:poet" }))),
        (
            404,
            bench.post("/v1/embeddings", &json!({ "input": "x", "adapters": [{ "name": "qv" }, { "name": "poet" }] })),
        ),
    ] {
        assert_eq!(reply.status, status, "{}", reply.body);
    }
    let refusal = bench.post("/v1/completions", &body(&json!({ "adapter": "poet" }))).refusal();
    assert_eq!(refusal, "404 the model has no adapter 'poet'; 'all', 'dora', 'qv' are there");
    for more in [
        json!({ "adapter": "qv", "adapters": [{ "name": "qv" }] }),
        json!({ "adapter": "qv", "model": "tiny:qv" }),
        json!({ "adapters": [{ "name": "qv", "scale": 1e9 }] }),
        json!({ "adapters": [{ "scale": 1 }] }),
        json!({ "adapters": vec![json!({ "name": "qv" }); 9] }),
        json!({ "adapter": 5 }),
    ] {
        assert_eq!(bench.post("/v1/completions", &body(&more)).status, 400, "{more}");
    }
}

#[test]
fn adapters_outlive_the_model_they_change() {
    let (folder, (_model, path)) = (folder(), tiny_chat());
    let model = path.clone();
    let load = move || Engine::load(&model, &load_options(), &mut |_| {});
    let options = ServerOptions { idle_timeout: Some(std::time::Duration::from_millis(600)), ..options() };
    let adapters = AdapterOptions {
        named: vec![("poet".to_owned(), testdata("llama-all"))],
        folder: Some(folder.path().to_owned()),
        ..AdapterOptions::default()
    };
    let bench = Bench::of(vec![ModelSource::new("tiny", Box::new(load)).with_adapters(adapters)], options);
    let first = ask(&bench, &json!({ "adapter": "poet" }));
    bench.post("/v1/adapters", &json!({ "name": "poet", "path": "qv" })).ok();
    let second = ask(&bench, &json!({ "adapter": "poet" }));
    assert_ne!(first, second);
    bench.ask("DELETE", "/v1/adapters/dora", &[]).ok();
    while bench.metric("ruvllm_model_loaded") > 0.0 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let all = bench.get("/v1/adapters").ok();
    let facts: Vec<_> = all["data"]
        .as_array()
        .expect("adapters")
        .iter()
        .map(|one| (one["name"].clone(), one["generation"].clone(), one["tier"].clone()))
        .collect();
    let known = |name: &str, generation: u64| (json!(name), json!(generation), json!("cold"));
    assert_eq!(facts, [known("all", 1), known("poet", 2), known("qv", 1)]);
    assert_eq!((bench.metric("ruvllm_adapters"), bench.metric("ruvllm_adapter_bytes")), (0.0, 0.0));
    assert_eq!(ask(&bench, &json!({ "model": "tiny:poet" })), second);
}

#[test]
fn alone_in_company_and_with_guesses_it_says_the_same() {
    let folder = folder();
    let ways = [
        json!({}),
        json!({ "adapter": "qv" }),
        json!({ "adapter": "all" }),
        json!({ "model": "tiny:dora" }),
        json!({ "adapters": [{ "name": "qv", "scale": 0.5 }, { "name": "dora", "scale": 0.5 }] }),
    ];
    let mut request = Vec::new();
    for (i, way) in ways.iter().cycle().take(20).enumerate() {
        let mut more = way.clone();
        more["prompt"] = json!(format!("{} {i} {i} {i} {i} {i}", PROMPT.split_at(10 + i).0));
        more["temperature"] = json!(if i % 2 == 0 { 0.0 } else { 0.9 });
        request.push(more);
    }
    let mut alone: Option<Vec<String>> = None;
    for speculation in [Speculation::Off, Speculation::Ngram] {
        let bench = bench_with(folder.path(), 64 << 20, ServerOptions { speculation, ..options() });
        let one_by_one: Vec<String> = request.iter().map(|more| ask(&bench, more)).collect();
        let together: Vec<String> = std::thread::scope(|scope| {
            let asked: Vec<_> = request.iter().map(|more| scope.spawn(|| ask(&bench, more))).collect();
            asked.into_iter().map(|answer| answer.join().expect("an answer")).collect()
        });
        assert_eq!(together, one_by_one);
        assert_eq!(*alone.get_or_insert_with(|| one_by_one.clone()), one_by_one, "{speculation:?}");
    }
}

#[test]
fn one_that_replaces_another_never_meets_its_prefix() {
    let (folder, mut engine) = (folder(), engine());
    let bench = bench(folder.path());
    let mut ask = |path: &str| {
        bench.post("/v1/adapters", &json!({ "name": "poet", "path": path })).ok();
        let answers: Vec<(String, bool)> = (0..2)
            .map(|_| {
                let reply = bench.post("/v1/completions", &body(&json!({ "adapter": "poet" })));
                let cached = reply.ok()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
                (text(&reply), cached > Some(0))
            })
            .collect();
        let expected = expected(&mut engine, &[(&format!("llama-{path}"), 1.0)]);
        assert!(answers.iter().all(|(text, _)| *text == expected), "{path}: {answers:?}");
        (answers[0].1, answers[1].1)
    };
    assert_eq!(ask("qv"), (false, true));
    assert_eq!(ask("all"), (false, true), "the second meets the first one's prefix");
    assert_eq!(ask("dora"), (false, true));
    // What was there before does the same as it did, and finds what it computed.
    assert_eq!(ask("qv"), (true, true));
}

#[test]
fn no_request_fails_while_its_adapter_is_replaced() {
    let (folder, mut engine) = (folder(), engine());
    let bench = bench(folder.path());
    let variants = ["qv", "all", "dora"];
    let known: HashSet<String> =
        variants.iter().map(|name| expected(&mut engine, &[(&format!("llama-{name}"), 1.0)])).collect();
    bench.post("/v1/adapters", &json!({ "name": "poet", "path": "qv" })).ok();
    let base = ask(&bench, &json!({}));
    let is_over = AtomicBool::new(false);
    let n_answers: usize = std::thread::scope(|scope| {
        let askers: Vec<_> = (0..3)
            .map(|i| {
                let (bench, known, base, is_over) = (&bench, &known, &base, &is_over);
                scope.spawn(move || {
                    let mut n = 0;
                    while !is_over.load(Ordering::Relaxed) || n == 0 {
                        match i {
                            0 => assert_eq!(ask(bench, &json!({})), *base),
                            1 => assert!(known.contains(&ask(bench, &json!({ "adapter": "poet" })))),
                            _ => {
                                let reply = bench
                                    .post("/v1/completions", &body(&json!({ "model": "tiny:poet", "stream": true })));
                                let pieces = reply.events();
                                let said: String =
                                    pieces.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
                                assert!(known.contains(&said), "{said}");
                            }
                        }
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        for i in 0..50 {
            let path = variants[i % variants.len()];
            let loaded = bench.post("/v1/adapters", &json!({ "name": "poet", "path": path })).ok();
            assert_eq!(loaded["generation"], i + 2);
        }
        is_over.store(true, Ordering::Relaxed);
        askers.into_iter().map(|asker| asker.join().expect("no request fails")).sum()
    });
    assert!(n_answers >= 3, "{n_answers}");
    assert_eq!(bench.metric("ruvllm_rejected_total"), 0.0);
}
