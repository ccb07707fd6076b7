//! Adapters that find no room, that others own, and that are refused.

use super::*;

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
