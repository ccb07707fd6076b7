//! `ruvllm route`: from tasks to outcomes, to a router, to a server that chooses.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::common::{Bench, error_line, text, tiny};
use crate::serve::Server;

/// Outcomes of two models: the small one answers short questions, the large one all.
fn outcomes(from: usize, n: usize) -> String {
    let mut lines = String::new();
    for i in from..from + n {
        let is_easy = i % 2 == 0;
        let prompt = match is_easy {
            true => format!("What is {i} + 1?"),
            false => format!(
                "Explain step by step, with reasons and examples, why the plan of group {i} failed and what follows."
            ),
        };
        let models = json!({
            "small": { "quality": u8::from(is_easy), "cost": 1.0 },
            "large": { "quality": 1, "cost": 5.0 },
        });
        let line = json!({ "prompt": prompt, "template": format!("t{}", i / 4), "models": models });
        writeln!(lines, "{line}").expect("a string");
    }
    lines
}

/// Trains a router in the folder `router`.
fn trained(bench: &Bench) -> String {
    let (file, router) = (bench.file("outcomes.jsonl", outcomes(0, 96)), bench.path("router"));
    let routes = "{\"route\": \"refunds\", \"text\": \"I want my money back\"}\n\
        {\"route\": \"refunds\", \"text\": \"give me a refund for my money\"}\n{\"text\": \"good morning\"}\n";
    let routes = bench.file("routes.jsonl", routes);
    let [file, router, routes] = [file, router, routes].map(|path| path.to_string_lossy().into_owned());
    let told = bench.json(["route", "train", "--outcomes", &file, "--routes", &routes, "--router", &router, "--json"]);
    assert_eq!((&told["outcomes"], &told["groups"], &told["routes"]), (&json!(96), &json!(24), &json!(1)), "{told}");
    router
}

#[test]
fn a_router_learns_from_outcomes_and_chooses() {
    let bench = Bench::new();
    let router = trained(&bench);
    let decide = |text: &str| bench.json(["route", text, "--router", &router, "--json"]);
    let easy = decide("What is 700 + 1?");
    assert_eq!((easy["model"].as_str(), easy["cost"].as_f64()), (Some("small"), Some(1.0)), "{easy}");
    let hard =
        decide("Explain step by step, with reasons and examples, why the plan of group 700 failed and what follows.");
    assert_eq!(hard["model"], "large", "{hard}");
    assert_eq!(decide("please, my money back")["route"]["name"], "refunds");
    let role = decide("Write unit tests for the date parser, edge cases included.");
    assert_eq!(role["role"]["likeliest"][0]["role"], "tester", "{role}");
    let shown = text(&bench.run(["route", "What is 700 + 1?", "--router", &router]).stdout);
    assert!(shown.starts_with("small: expected quality") && shown.contains("role: "), "{shown}");

    let held_out = bench.file("held-out.jsonl", outcomes(1000, 40)).to_string_lossy().into_owned();
    let told = bench.json(["route", "eval", "--outcomes", &held_out, "--router", &router, "--json"]);
    assert!(told["router"]["quality_of_best"].as_f64() >= Some(0.98), "{told}");
    assert!(told["router"]["saved_of_best"].as_f64() >= Some(0.3), "{told}");
    // What to weigh by can be found, and the folder says it.
    let (file, keeping) = (bench.path("outcomes.jsonl"), bench.path("keeping").to_string_lossy().into_owned());
    let file = file.to_string_lossy().into_owned();
    let keep = ["--keep", "0.98", "--groups", "prompt", "--router", &keeping, "--json"];
    let told = bench.json([&["route", "train", "--outcomes", &file], &keep[..]].concat());
    assert!(told["weighing"]["price"].as_f64() > Some(0.0) && told["groups"] == 96, "{told}");
    let told = bench.json(["route", "eval", "--outcomes", &held_out, "--router", &keeping, "--json"]);
    assert!(told["router"]["quality_of_best"].as_f64() >= Some(0.98), "{told}");
    assert!(told["router"]["saved_of_best"].as_f64() >= Some(0.3), "{told}");
    let line =
        error_line(&bench.run([&["route", "train", "--outcomes", &file, "--within", "0.1"], &keep[..]].concat()), 2);
    assert!(line.contains("--within"), "{line}");
    // The same again, bit for bit.
    let again = bench.path("again").to_string_lossy().into_owned();
    let file = bench.path("outcomes.jsonl").to_string_lossy().into_owned();
    bench.json(["route", "train", "--outcomes", &file, "--router", &again, "--json"]);
    let selector = |folder: &str| std::fs::read(bench.path(folder).join("selector.safetensors")).expect("written");
    assert_eq!(selector("again"), selector("router"));
}

#[test]
fn models_answer_tasks_that_are_checked() {
    let bench = Bench::new();
    let tasks = "{\"prompt\": \"2 + 2\", \"check\": {\"kind\": \"regex\", \"of\": \"\"}, \"subject\": \"any\"}\n\
        {\"prompt\": \"Say nothing\", \"check\": {\"kind\": \"exact\", \"of\": \"impossible to say\"}, \"subject\": \"none\"}\n";
    let tasks = bench.file("tasks.jsonl", tasks).to_string_lossy().into_owned();
    let (model, out) = (tiny().to_string_lossy().into_owned(), bench.path("out.jsonl").to_string_lossy().into_owned());
    let (first, second) = (format!("one={model}"), format!("two={model}"));
    let args = ["route", "collect", "--tasks", &tasks, "--model", &first, "--model", &second, "--out", &out];
    let told = bench.json([&args[..], &["--max-tokens", "4", "--json"]].concat());
    assert_eq!(
        (&told["models"][0]["quality"], &told["models"][1]["by_subject"]["any"]),
        (&json!(0.5), &json!(1.0)),
        "{told}"
    );
    let lines = std::fs::read_to_string(&out).expect("written");
    let line: Value = serde_json::from_str(lines.lines().next().expect("a line")).expect("JSON");
    assert!(
        line["models"]["one"]["cost"].as_f64() > Some(0.0) && line["models"]["two"]["answer"].is_string(),
        "{line}"
    );

    let line = error_line(&bench.run(&args[..6]), 2);
    assert!(line.contains("--out"), "{line}");
    let bad = bench.file("bad.jsonl", "{\"prompt\": \"x\", \"check\": {\"kind\": \"regex\", \"of\": \"(\"}}\n");
    let bad = bad.to_string_lossy().into_owned();
    let line =
        error_line(&bench.run(["route", "collect", "--tasks", &bad, "-m", &first, "-m", &second, "--out", &out]), 1);
    assert!(line.contains("bad.jsonl line 1"), "{line}");
    let line = error_line(&bench.run(["route", "x"]), 1);
    assert!(line.contains("there is no router in"), "{line}");
}

/// What SmolLM2, Gemma 3 and Qwen2.5-Coder answered to tasks of `more_route_tasks.py` (see docs/src/routing.md); the prompts
/// of the second file are not in the first.
#[test]
fn a_third_of_the_compute_of_three_real_models_is_saved() {
    let bench = Bench::new();
    let file = |name: &str| format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    let (learned, held_out) = (file("route-outcomes.jsonl"), file("route-held-out.jsonl"));
    let router = bench.path("router").to_string_lossy().into_owned();
    let keep = ["--keep", "1", "--groups", "prompt", "--router", &router, "--json"];
    bench.json([&["route", "train", "--outcomes", &learned][..], &keep].concat());
    let told = bench.json(["route", "eval", "--outcomes", &held_out, "--router", &router, "--json"]);
    let of = |key: &str| told["router"][key].as_f64().expect("a share");
    assert!(of("quality_of_best") >= 0.98 && of("saved_of_best") >= 0.3, "{told}");
    let errors = told["calibration_error"].as_object().expect("one each model");
    assert!(errors.len() == 3 && errors.values().all(|error| error.as_f64() < Some(0.05)), "{told}");
}

#[test]
fn a_server_chooses_for_requests_of_the_model_auto() {
    let bench = Bench::new();
    let router = trained(&bench);
    let (model, log) = (tiny().to_string_lossy().into_owned(), bench.path("log").to_string_lossy().into_owned());
    // The first model is the helper's own; two more of the same file under the names that the router knows.
    let args = [
        "--model",
        &model,
        "--model",
        &model,
        "--alias",
        "tiny",
        "--alias",
        "small",
        "--alias",
        "large",
        "--router",
        &router,
        "--witness",
        &log,
    ];
    let server = Server::start(&bench, &args);
    let ask = |prompt: &str, model: &str| {
        server.ask("POST /v1/completions", &json!({ "prompt": prompt, "max_tokens": 2, "model": model }))
    };
    let easy = ask("What is 900 + 1?", "auto");
    assert!(easy.contains("x-ruvllm-model: small\r\n") && easy.contains("x-ruvllm-routing: small: expected"), "{easy}");
    assert!(easy.contains("\"model\":\"small\""), "{easy}");
    let hard = "Explain step by step, with reasons and examples, why the plan of group 900 failed and what follows.";
    assert!(ask(hard, "auto").contains("x-ruvllm-model: large\r\n"));
    assert!(!ask(hard, "small").contains("x-ruvllm-model"));
    let told = server.ask("POST /v1/route", &json!({ "input": hard }));
    assert!(told.contains("\"model\":\"large\"") && told.contains("\"took_us\":"), "{told}");
    let refused = server.ask("POST /v1/completions", &json!({ "prompt": [1, 2], "max_tokens": 2, "model": "auto" }));
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("no text to choose a model by"), "{refused}");
    server.end("-TERM");
    // Why is on record.
    let listed = bench.json(["witness", "list", &log, "--json"]);
    let reasons: Vec<&str> = listed["records"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|r| r["routing"].as_str().unwrap_or_default())
        .collect();
    assert!(
        reasons[0].is_empty() && reasons[1].starts_with("large: ") && reasons[2].starts_with("small: "),
        "{reasons:?}"
    );

    // An operator's policy overrules the router's own weighing.
    bench.json(["policy", "set", &log, "router", "{\"within\":1}", "--json"]);
    let server = Server::start(&bench, &args);
    assert!(server.ask("POST /v1/route", &json!({ "input": hard })).contains("\"model\":\"small\""));
    server.end("-TERM");
    // A router that knows models which are not served.
    let line = error_line(&bench.run(["serve", "--model", &model, "--router", &router, "--port", "0"]), 1);
    assert!(line.contains("needs the model 'large', which is not served"), "{line}");
}

#[test]
fn routing_roles_and_embeddings_are_measured_and_null_controls_find_nothing() {
    let bench = Bench::new();
    let file = bench.file("outcomes.jsonl", outcomes(0, 96)).to_string_lossy().into_owned();
    let plot = bench.path("curve.svg").to_string_lossy().into_owned();
    let told = bench.json(["eval", "routing", &file, "--folds", "3", "--draws", "20", "--plot", &plot, "--json"]);
    let row = |told: &Value, i: usize| told["table"][i].clone();
    assert_eq!((row(&told, 0)["name"].as_str(), row(&told, 3)["name"].as_str()), (Some("selector"), Some("oracle")));
    assert!(row(&told, 0)["saved"].as_f64() > Some(0.3) && row(&told, 0)["apgr"].as_f64() > Some(0.7), "{told}");
    assert!(std::fs::read_to_string(&plot).expect("a plot").contains("<polyline"));
    // Who knows nothing: each model alone, and chance.
    let names = [4, 5, 6].map(|i| row(&told, i)["name"].as_str().unwrap_or_default().to_owned());
    assert_eq!(names, ["always large", "always small", "random"].map(str::to_owned), "{told}");
    assert!(row(&told, 4)["kept"].as_f64() > Some(0.999) && row(&told, 5)["apgr"] == json!(0.5), "{told}");
    assert!((0.3..0.7).contains(&row(&told, 6)["apgr"].as_f64().expect("a number")), "{told}");
    let null = bench.json(["eval", "routing", &file, "--folds", "3", "--draws", "20", "--null", "--json"]);
    assert!(row(&null, 0)["apgr"].as_f64() < Some(0.65), "{null}");
    assert!(row(&null, 0)["saved"].as_f64() < Some(0.15), "{null}");

    let roles: Vec<String> = (0..36)
        .map(|i| {
            let (role, prompt) = [
                ("tester", "Write unit tests for part"),
                ("coder", "Implement the class of part"),
                ("debugger", "Find out why it crashes in part"),
            ][i % 3];
            json!({ "prompt": format!("{prompt} {i}"), "role": role, "group": format!("g{}", i / 6), "also": [] })
                .to_string()
        })
        .collect();
    let roles = bench.file("roles.jsonl", roles.join("\n")).to_string_lossy().into_owned();
    let told = bench.json(["eval", "roles", &roles, "--folds", "3", "--json"]);
    assert!(told["accuracy"].as_f64() > Some(0.9), "{told}");
    let null = bench.json(["eval", "roles", &roles, "--folds", "3", "--null", "--json"]);
    assert!(null["accuracy"].as_f64() < Some(0.7), "{null}");

    let texts = "{\"text\": \"the cat sleeps\", \"label\": \"cat\"}\n{\"text\": \"a cat eats\", \"label\": \"cat\"}\n\
        {\"text\": \"stocks fell today\", \"label\": \"money\"}\n{\"text\": \"today stocks rose\", \"label\": \"money\"}\n";
    let texts = bench.file("texts.jsonl", texts).to_string_lossy().into_owned();
    let told = bench.json(["eval", "embedding", &texts, "--json"]);
    assert_eq!((&told["search"]["mrr"], &told["clusters"]["purity"]), (&json!(1.0), &json!(1.0)), "{told}");
    let line = error_line(&bench.run(["eval", "routing", &file, "--folds", "90"]), 1);
    assert!(line.contains("24 groups in 90 parts"), "{line}");
}
