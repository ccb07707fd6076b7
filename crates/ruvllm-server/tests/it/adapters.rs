//! Adapters over HTTP: loaded, named, replaced and removed while requests run.

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

/// An adapter of `rank` on every layer of the tests' model, about `rank` * 10 KiB.
fn large(engine: &Engine, rank: usize, seed: usize, path: &Path) {
    let loader = engine.adapter_loader().expect("it applies adapters");
    let noise = |n: usize| (0..n).map(|i| ((i * 31 + seed * 977) as f32 * 0.37).sin() * 0.05).collect::<Vec<f32>>();
    let delta = |target: &ruvllm_lora::Target| {
        let n_out = target.rows.len();
        let a = Values::from_f32(rank, target.n_in, &noise(rank * target.n_in));
        Delta::new(
            &target.tensor,
            1.0,
            FactorPair { a, b: Values::from_f32(n_out, rank, &noise(n_out * rank)) },
            None,
            RowOrder::Same,
        )
    };
    let deltas = loader.targets().all().iter().filter(|target| target.tensor.starts_with("blk.")).map(delta);
    let adapter = Adapter::new("large", deltas.collect::<Result<_, _>>().expect("pairs")).expect("an adapter");
    gguf::write(&adapter, loader.targets().facts(), path).expect("a temporary folder is writable");
}

#[test]
fn what_finds_no_room_waits_for_it_and_what_never_fits_is_refused() {
    let (folder, engine) = (tempfile::tempdir().expect("a folder"), engine());
    // Of 4 MiB each takes more than half.
    for i in 0..3 {
        large(&engine, 450, i, &folder.path().join(format!("a{i}.gguf")));
    }
    large(&engine, 1024, 9, &folder.path().join("huge.gguf"));
    let bench = bench_with(folder.path(), 4 << 20, options());
    let first = bench.post("/v1/adapters", &json!({ "name": "a0" })).ok();
    assert!(first["bytes"].as_u64() > Some(2 << 20) && first["bytes"].as_u64() <= Some(4 << 20), "{first}");
    let refusal = bench.post("/v1/adapters", &json!({ "name": "a0", "path": "huge.gguf" })).refusal();
    assert!(refusal.starts_with("400 adapter 'a0' needs ") && refusal.ends_with("allow them more"), "{refusal}");
    let refusal = bench.post("/v1/completions", &body(&json!({ "adapter": "huge" }))).refusal();
    assert!(refusal.starts_with("500 adapter 'huge' needs "), "{refusal}");
    std::thread::scope(|scope| {
        let ask = |i: usize| ask(&bench, &json!({ "adapter": format!("a{}", i % 3), "max_tokens": 60 }));
        let asked: Vec<_> = (0..9).map(|i| scope.spawn(move || ask(i))).collect();
        let all: HashSet<String> = asked.into_iter().map(|answer| answer.join().expect("it waits its turn")).collect();
        assert!(all.len() > 1, "{all:?}");
    });
    assert!(bench.metric("ruvllm_adapter_evictions_total") >= 2.0);
    // Two at once never fit; the request's own time ends the wait.
    let pair = json!({ "adapters": [{ "name": "a0" }, { "name": "a1" }], "timeout_ms": 300 });
    assert_eq!(bench.post("/v1/completions", &body(&pair)).status, 504);
    assert!(bench.metric("ruvllm_adapter_bytes") <= f64::from(4 << 20));
}

#[test]
fn tenants_see_their_own_adapters_and_everybodys() {
    let folder = folder();
    let lines = vec!["ann key-of-ann adapter_mib=16".to_owned(), "bob key-of-bob".to_owned()];
    let keys = KeyOptions { file: None, lines };
    let bench = bench_with(folder.path(), 64 << 20, ServerOptions { keys, ..options() });
    let send = |who: &str, method: &str, path: &str, body: Value| {
        let auth = format!("Bearer key-of-{who}");
        match method {
            "POST" => bench.send(path, body.to_string(), &[("authorization", &auth)]),
            _ => bench.ask(method, path, &[("authorization", &auth)]),
        }
    };
    let names = |who: &str| {
        let all = send(who, "GET", "/v1/adapters", Value::Null).ok();
        let one = |one: &Value| {
            format!(
                "{}{}",
                one["name"].as_str().expect("a name"),
                one["tenant"].as_str().map_or(String::new(), |who| format!(" of {who}"))
            )
        };
        all["data"].as_array().expect("adapters").iter().map(one).collect::<Vec<_>>()
    };
    let said = |who: &str, adapter: &str| {
        let reply = send(who, "POST", "/v1/completions", body(&json!({ "adapter": adapter })));
        if reply.status == 200 { Ok(text(&reply)) } else { Err(reply.refusal()) }
    };
    assert_eq!(bench.get("/v1/adapters").status, 401);
    send("ann", "POST", "/v1/adapters", json!({ "name": "poet", "path": "qv" })).ok();
    assert_eq!(
        (names("ann"), names("bob")),
        (
            vec!["all".into(), "dora".into(), "poet of ann".into(), "qv".into()],
            vec!["all".to_owned(), "dora".into(), "qv".into()]
        )
    );
    assert_eq!(said("ann", "poet"), said("bob", "qv"));
    assert_eq!(
        said("bob", "poet"),
        Err("404 the model has no adapter 'poet'; 'all', 'dora', 'qv' are there".to_owned())
    );
    assert_eq!(send("bob", "DELETE", "/v1/adapters/poet", Value::Null).status, 404);
    // The same name for another one, and one before everybody's.
    send("bob", "POST", "/v1/adapters", json!({ "name": "poet", "path": "dora" })).ok();
    send("bob", "POST", "/v1/adapters", json!({ "name": "qv", "path": "all" })).ok();
    assert_eq!((said("bob", "poet"), said("bob", "qv")), (said("ann", "dora"), said("ann", "all")));
    assert_ne!(said("ann", "qv"), said("bob", "qv"));
    assert_eq!(names("bob"), ["all", "dora", "poet of bob", "qv of bob"]);
    let models = send("bob", "GET", "/v1/models", Value::Null).ok();
    assert_eq!(models["data"].as_array().map(Vec::len), Some(5));
    // Everybody's are the operator's.
    let refusal = send("ann", "DELETE", "/v1/adapters/qv", Value::Null).refusal();
    assert_eq!(refusal, "403 adapter 'qv' is everybody's; only who runs the server changes it");
    send("bob", "DELETE", "/v1/adapters/qv", Value::Null).ok();
    assert_eq!(said("bob", "qv"), said("ann", "qv"));
    // Who has no quota would keep memory from others.
    assert_eq!(send("bob", "POST", "/v1/adapters/poet", json!({ "pinned": true })).status, 403);
    assert_eq!(send("ann", "POST", "/v1/adapters/poet", json!({ "pinned": true })).ok()["pinned"], true);
    assert_eq!(send("ann", "POST", "/v1/adapters/qv", json!({ "pinned": true })).status, 403);
}

#[test]
fn hostile_adapters_are_refused_in_a_line_each() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    put(folder.path(), "other-model", "gpt2");
    let mut bytes = std::fs::read(testdata("llama-qv").join(peft::WEIGHTS)).expect("test data");
    let broken = |name: &str, weights: &[u8], config: Option<&str>| {
        std::fs::create_dir_all(at(name)).expect("a folder");
        let own = std::fs::read_to_string(testdata("llama-qv").join(peft::CONFIG)).expect("test data");
        std::fs::write(at(name).join(peft::CONFIG), config.unwrap_or(&own)).expect("a file");
        std::fs::write(at(name).join(peft::WEIGHTS), weights).expect("a file");
    };
    // A directory that is said to be as long as all memory, or longer than the file.
    broken("bomb", &[&u64::MAX.to_le_bytes()[..], &bytes[8..]].concat(), None);
    broken("long", &[&(1u64 << 40).to_le_bytes()[..], &bytes[8..]].concat(), None);
    broken("short", &bytes[..5], None);
    broken("cut", &bytes[..bytes.len() - 7], None);
    broken("settings", &bytes, Some(&format!("{{\"x\": \"{}\"}}", "y".repeat(2 << 20))));
    broken("deep", &bytes, Some(&"[".repeat(100_000)));
    broken("pattern", &bytes, Some(r#"{"peft_type": "LORA", "r": 4, "rank_pattern": {"(((a{99}){99}){99})": 4}}"#));
    broken("rank", &bytes, Some(r#"{"peft_type": "LORA", "r": 1000000000, "lora_alpha": 8}"#));
    broken("scale", &bytes, Some(r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 1e300}"#));
    let n = bytes.len();
    bytes[n - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    broken("nan", &bytes, None);
    std::fs::write(at("no.gguf"), b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x7f")
        .expect("a file");
    let (_model, path) = tiny_chat();
    std::fs::copy(path, at("model.gguf")).expect("a file");
    let bench = bench(folder.path());
    let before = bench.get("/v1/adapters").ok();
    for name in [
        "other-model",
        "bomb",
        "long",
        "short",
        "cut",
        "settings",
        "deep",
        "pattern",
        "rank",
        "scale",
        "nan",
        "no.gguf",
        "model.gguf",
    ] {
        let refusal = bench.post("/v1/adapters", &json!({ "name": "qv", "path": name })).refusal();
        assert!(refusal.starts_with("400 ") && !refusal.contains('\n') && refusal.len() < 400, "{name}: {refusal}");
        assert!(!refusal.contains(folder.path().to_str().expect("a path")), "{refusal}");
    }
    for (name, path) in [
        ("qv", "../x"),
        ("qv", "/etc/passwd"),
        ("../qv", "qv"),
        ("a/b", "qv"),
        ("", "qv"),
        ("x", "qv\0"),
        ("x", "qv/../../x"),
    ] {
        let refusal = bench.post("/v1/adapters", &json!({ "name": name, "path": path })).refusal();
        assert!(refusal.starts_with("400 ") && !refusal.contains('\n'), "{name} {path}: {refusal}");
    }
    // Nothing of it changed what is there; those that the folder had when it was looked through fail when they are used.
    assert_eq!(bench.get("/v1/adapters").ok(), before);
    let refusal = bench.post("/v1/completions", &body(&json!({ "adapter": "nan" }))).refusal();
    assert!(refusal.starts_with("500 ") && refusal.contains("NaN"), "{refusal}");
    assert_ne!(ask(&bench, &json!({ "adapter": "qv" })), ask(&bench, &json!({})));
}

#[test]
fn a_named_adapter_that_cannot_be_used_stops_the_start() {
    let (_model, path) = tiny_chat();
    let engine = Engine::load(&path, &LoadOptions { n_seq_max: 2, ..load_options() }, &mut |_| {}).expect("it loads");
    let named = vec![("poet".to_owned(), testdata("gpt2"))];
    let source =
        ModelSource::loaded("tiny", engine).with_adapters(AdapterOptions { named, ..AdapterOptions::default() });
    let error = ruvllm_server::Server::start(vec![source], options()).map(drop).expect_err("another model's");
    assert!(error.to_string().starts_with("adapter 'poet': "), "{error}");
}

/// Adapters have strengths for requests that name none, each key's for itself.
#[test]
fn strengths_hold_for_requests_that_name_no_adapter() {
    let folder = folder();
    let lines = vec!["ann key-of-ann".to_owned(), "bob key-of-bob".to_owned()];
    let bench =
        bench_with(folder.path(), 64 << 20, ServerOptions { keys: KeyOptions { file: None, lines }, ..options() });
    let ann = [("authorization", "Bearer key-of-ann")];
    let text = |more: Value, key: &str| {
        let reply = bench.send("/completion", body(&more).to_string(), &[("x-api-key", key)]);
        reply.ok()["content"].take()
    };
    let plain = text(json!({}), "key-of-ann");
    let listed = || Reply::ok(&bench.ask("GET", "/lora-adapters", &ann));
    let ids = listed();
    let id = ids.as_array().expect("a list").iter().find(|one| one["path"] == "qv").expect("it is there")["id"].clone();
    let named = text(json!({ "adapters": [{ "name": "qv", "scale": 0.7 }] }), "key-of-ann");
    assert_ne!(named, plain);
    let set = |scales: Value| bench.send("/lora-adapters", scales.to_string(), &ann);
    assert_eq!(set(json!([{ "id": id, "scale": 0.7 }])).ok(), json!({ "success": true }));
    let scale = |all: &Value| {
        all.as_array().expect("a list").iter().find(|one| one["path"] == "qv").expect("there")["scale"].as_f64()
    };
    assert!(scale(&listed()).is_some_and(|scale| (scale - 0.7).abs() < 1e-6));
    assert_eq!((text(json!({}), "key-of-ann"), text(json!({}), "key-of-bob")), (named, plain.clone()));
    // A request that says something has what it says, none too.
    assert_eq!(text(json!({ "lora": [] }), "key-of-ann"), plain);
    assert!(set(json!([{ "id": 77, "scale": 1 }])).refusal().starts_with("404 there is no adapter 77"));
    assert_eq!(set(json!([{ "id": id, "scale": 0 }])).ok(), json!({ "success": true }));
    assert_eq!(text(json!({}), "key-of-ann"), plain);
}
