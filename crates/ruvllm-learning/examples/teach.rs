//! A model gets a correction, gives its answer, and forgets it again as if it had never been there.
//!
//! `cargo run --release -p ruvllm-learning --example teach -- MODEL.gguf`; without an argument a tiny model of the test data, whose
//! answers make no sense.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, SamplingParams};
use ruvllm_learning::{Correctness, Learning, LearningOptions, Question, Task, TenantLearning, add_correction};

const QUESTION: &str = "Where is Ulm?";
const ANSWER: &str = "On the Danube, with the highest spire there is.";

fn main() -> Result<(), Box<dyn Error>> {
    let tiny = || ruvllm_testkit::Golden::load("llama-a").model("f32");
    let path = std::env::args_os().nth(1).map_or_else(tiny, PathBuf::from);
    let folder = std::env::temp_dir().join(format!("ruvllm-teach-{}", std::process::id()));
    let taught = teach(&mut Engine::load(&path, &LoadOptions::default(), &mut |_| {})?, folder.clone());
    std::fs::remove_dir_all(&folder)?;
    taught
}

fn teach(engine: &mut Engine, folder: PathBuf) -> Result<(), Box<dyn Error>> {
    let options = LearningOptions { folder: Some(folder), ..LearningOptions::default() };
    let learning = Learning::open(engine, options, &mut |_| ControlFlow::Continue(()))?;
    let tenant = learning.tenant(engine, "somebody")?;
    let (prompt, answer) = (engine.encode_prompt(QUESTION, false)?, engine.text()?.encode_answer(ANSWER)?);

    let before = ask(engine, &tenant, &prompt, answer.len())?;
    let item = add_correction(
        engine,
        &tenant,
        Question { prompt: &prompt, text: Some(QUESTION) },
        &answer,
        Correctness::Right,
    )?
    .ok_or("there was nothing to learn")?;
    let told = ask(engine, &tenant, &prompt, answer.len())?;
    tenant.undo(engine, &[item], &mut |_| ControlFlow::Continue(()))?;
    let undone = ask(engine, &tenant, &prompt, answer.len())?;

    for (when, tokens) in [("before", &before), ("told", &told), ("undone", &undone)] {
        println!("{when:>7}: {}", engine.tokenizer()?.decode(tokens, Default::default()));
    }
    assert_eq!(told, answer, "it says what it was told");
    assert_eq!(undone, before, "what is undone was never learned");
    Ok(())
}

/// Returns the tokens of an answer by what the tenant knows.
fn ask(
    engine: &mut Engine,
    tenant: &Arc<TenantLearning>,
    prompt: &[u32],
    n: usize,
) -> Result<Vec<u32>, Box<dyn Error>> {
    let logits_processor = Some(tenant.logits_processor(Task::of(QUESTION), None));
    let (prompt, max_tokens, sampling) = (prompt.to_vec(), Some(n), SamplingParams::greedy());
    let request = GenerateRequest { prompt, max_tokens, sampling, logits_processor, ..GenerateRequest::default() };
    Ok(engine.generate(&request)?.for_each_token(|_| {})?.tokens)
}
