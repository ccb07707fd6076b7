//! What a request costs before the model runs: 1,000 sessions recovered one by one, then the router's decision, the session,
//! the policy and the witness record of 1,000 requests, without and with the query's embedding.
//!
//! `cargo run --release -p ruvllm-learning --example orchestration -- [MODEL.gguf]`
//!
//! The store is encrypted and opened anew before anything is timed. Embeddings are hashed words; with MODEL, an encoder,
//! they are also made by that. One JSON object on standard output has the percentiles in microseconds; the program fails if
//! a session takes 100 µs or more at the median, or a request 1 ms or more without its embedding.

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_engine::{Engine, LoadOptions};
use ruvllm_learning::{EmbedderName, ModelEmbedder, ModelRouter, NearestIndex};
use ruvllm_router::roles::{RoleClassifier, RoleOptions, examples};
use ruvllm_router::routes::SemanticRoutes;
use ruvllm_router::{Embedder, Model, Outcome, Rows, Selector, TrainOptions, Weighing, features};
use ruvllm_sona::policy::{NewPolicy, PolicyKind, PolicyLimits, PolicyStore, StoredPolicies, Wanted};
use ruvllm_sona::session::{SessionIndex, SessionRecord};
use ruvllm_sona::store::{self, MasterKey, OpenOptions, Store};
use ruvllm_sona::witness::{Content, Event, LogOptions, Served, WitnessLog, verify};
use serde_json::{Value, json};

const N: usize = 1000;
/// Values of hashed words, and of a session's context.
const DIM: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("ruvllm-orchestration-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = measure(&folder);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn measure(folder: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let (path, key) = (folder.join("witness.redb"), MasterKey::new([7; 32]));
    let options = OpenOptions { key: Some(&key), ..OpenOptions::default() };
    let prompts: Vec<String> = examples().into_iter().map(|example| example.prompt).collect();
    let query = |i: usize| &prompts[i * 7 % prompts.len()];
    let router = router()?;
    fill(store::open(&path, &options)?, &prompts, &router.embedder)?;

    // As another process finds them.
    let store = store::open(&path, &options)?;
    let sessions = SessionIndex::open(Arc::clone(&store), DIM)?;
    let recovered = times(|i| {
        let session = sessions.recover("acme", &format!("session {i}"))?;
        session.map(drop).ok_or_else(|| format!("session {i} is gone").into())
    })?;

    let policies = StoredPolicies::open(Arc::clone(&store), PolicyLimits::default())?;
    let log = WitnessLog::start(Arc::clone(&store), LogOptions::default())?;
    let embeddings: Vec<Vec<f32>> =
        (0..N).map(|i| router.embedder.embed(query(i)).ok_or("it takes no model")).collect::<Result<_, _>>()?;
    let mut parts = [(); 4].map(|()| Vec::new());
    let mut request = |i: usize, embedding: &[f32]| -> Result<(), Box<dyn Error>> {
        let mut at = Instant::now();
        let mut lap = |part: &mut Vec<Duration>| {
            part.push(at.elapsed());
            at = Instant::now();
        };
        let decision = router.decide(query(i), embedding)?;
        lap(&mut parts[0]);
        let session = sessions.recover("acme", &format!("session {}", i * 13 % N))?;
        lap(&mut parts[1]);
        let policy = policies.best(&Wanted::new(PolicyKind::Speculation, "alone").of_tenant("acme"), 1_000);
        lap(&mut parts[2]);
        let served = Served {
            request: i as u64,
            prompt: Content::new(&[1; 200], false),
            settings: "x".repeat(700),
            routing: decision.choice.reason,
            policy: policy.map(|policy| policy.put.reason).unwrap_or_default(),
            ..Served::default()
        };
        if session.is_none() || !log.record("acme", Event::Served(Box::new(served))) {
            return Err("a session is gone, or the queue is full".into());
        }
        lap(&mut parts[3]);
        Ok(())
    };
    let excluded = times(|i| request(i, &embeddings[i]))?;
    let included = times(|i| {
        let embedding = router.embedder.embed(query(i)).ok_or("it takes no model")?;
        request(i, &embedding)
    })?;
    let [decided, session, policy, recorded] = parts.map(|mut part| {
        part.sort_unstable();
        percentiles(&part)
    });
    let anchor = log.flush()?;
    let verified = verify(store.as_ref(), Some(&anchor))?;
    if !verified.faults.is_empty() || verified.n_records != 2 * N as u64 {
        return Err(format!("{} records, {} faults", verified.n_records, verified.faults.len()).into());
    }
    let encoder = std::env::args().nth(1).map(|model| encoder(&model, &prompts)).transpose()?;
    println!(
        "{}",
        json!({
            "sessions": N,
            "session_recovered_us": percentiles(&recovered),
            "request_us": percentiles(&excluded),
            "request_with_hashed_words_us": percentiles(&included),
            "parts_us": { "router": decided, "session": session, "policy": policy, "record": recorded },
            "embedding_by_encoder_us": encoder,
        })
    );
    if recovered[N / 2] >= Duration::from_micros(100) || excluded[N / 2] >= Duration::from_millis(1) {
        return Err("a session takes 100 µs or more, or a request 1 ms or more".into());
    }
    Ok(())
}

/// Times `N` calls; returns the times sorted.
fn times(mut one: impl FnMut(usize) -> Result<(), Box<dyn Error>>) -> Result<Vec<Duration>, Box<dyn Error>> {
    let mut times = Vec::with_capacity(N);
    for i in 0..N {
        let start = Instant::now();
        one(i)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

fn percentiles(sorted: &[Duration]) -> Value {
    let us = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    let round = |x: f64| (x * 10.0).round() / 10.0;
    json!({ "p50": round(us(0.5)), "p99": round(us(0.99)), "max": round(us(1.0)) })
}

/// Keeps sessions and policies.
fn fill(store: Arc<dyn Store>, prompts: &[String], embedder: &EmbedderName) -> Result<(), Box<dyn Error>> {
    let sessions = SessionIndex::open(Arc::clone(&store), DIM)?;
    for i in 0..N {
        let context = embedder.embed(&prompts[i % prompts.len()]).ok_or("it takes no model")?;
        let (user, kv) = (format!("user {}", i % 50), format!("kv {i}"));
        let session = SessionRecord { user, kv, context, n_turns: 3, n_tokens: 400, ..SessionRecord::default() };
        sessions.save("acme", &format!("session {i}"), &session, i as u64)?;
    }
    let policies = StoredPolicies::open(store, PolicyLimits::default())?;
    for i in 0..200 {
        let policy = NewPolicy::new(PolicyKind::Speculation, &format!("workload {i}"), &i)?;
        policies.put(policy.learned(0.9).because("measured"), 1)?;
    }
    policies.put(NewPolicy::new(PolicyKind::Speculation, "alone", &24)?.learned(0.9).because("measured"), 1)?;
    Ok(())
}

/// A router between two models with roles and a named route; what it has learned matters to nobody here, its size does.
fn router() -> Result<ModelRouter, Box<dyn Error>> {
    let embedder = EmbedderName::Hashed(DIM);
    let embed = |text: &str| embedder.embed(text).ok_or("it takes no model");
    let all: Vec<_> = examples().into_iter().step_by(3).collect();
    let (mut outcomes, mut rows) = (Vec::new(), Rows::new(DIM));
    for (i, example) in all.iter().enumerate() {
        let embedding = embed(&example.prompt)?;
        rows.push(&embedding)?;
        let query = [&features::of(&example.prompt)[..], &embedding].concat();
        let qualities = vec![Some(f32::from(i % 3 == 0)), Some(1.0)];
        outcomes.push(Outcome { query, group: (i % 20) as u64, qualities, settings: None });
    }
    let options = TrainOptions { n_epochs: 4, ..TrainOptions::default() };
    let selector = Selector::train(&["small", "large"], &outcomes, &options, |_| ControlFlow::Continue(()))?;
    let mut routes = SemanticRoutes::new(NearestIndex::new(DIM)?);
    routes.add_route("refunds", 0.4)?;
    routes.add_example("refunds", &embed("I want my money back")?)?;
    let model = |name: &str, cost| Model { name: name.into(), cost };
    Ok(ModelRouter {
        models: vec![model("small", 1.0), model("large", 8.0)],
        weighing: Weighing::Within(0.05),
        selector,
        costs: None,
        roles: Some(RoleClassifier::train(&all, &rows, &RoleOptions::default())?),
        routes: Some(routes),
        embedder,
    })
}

/// Times embeddings of queries by an encoder.
fn encoder(model: &str, prompts: &[String]) -> Result<Value, Box<dyn Error>> {
    let mut engine = Engine::load(model.as_ref(), &LoadOptions::default(), &mut |_| {})?;
    let mut embedder = ModelEmbedder::new(&mut engine);
    let mut times = Vec::new();
    for prompt in prompts.iter().take(200) {
        let start = Instant::now();
        embedder.embed(prompt)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(percentiles(&times))
}
