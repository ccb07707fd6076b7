//! The three real models along llama.cpp's own greedy answers (its README's recommended comparison).

use ruvllm_engine::{Engine, LoadOptions};
use ruvllm_testkit::{argmax, generate_cases, real_model};
use serde_json::Value;

/// Below this margin the reference itself is not sure: its kernels round activations too.
const SURE_MARGIN: f64 = 0.5;

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().expect("a list of ids").iter();
    ids.map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn check(name: &str) {
    let mut engine = Engine::load(&real_model(name), &LoadOptions::default(), &mut |_| {}).expect("it loads");
    let n_vocab = engine.info().n_vocab;
    let (mut n_steps, mut n_same) = (0, 0);
    for case in generate_cases(name) {
        let (prompt, answer) = (ids(&case["prompt_ids"]), ids(&case["gen_ids"]));
        // Only steps up to the end of the answer count.
        let n = case["first_eog"].as_u64().map_or(answer.len(), |step| step as usize + 1).min(answer.len());
        let tokens: Vec<u32> = prompt.iter().chain(&answer[..n - 1]).copied().collect();
        let (mut row, mut picks) = (0, Vec::new());
        engine
            .logits(&tokens, 64, &mut |rows| {
                for logits in rows.chunks_exact(n_vocab) {
                    if row + 1 >= prompt.len() {
                        picks.push(argmax(logits) as u32);
                    }
                    row += 1;
                }
                Ok(())
            })
            .expect("the case fits the context");
        assert_eq!(picks.len(), n);
        for (step, &pick) in picks.iter().enumerate() {
            let margin = case["margins"][step].as_f64().expect("a margin");
            let top5: Vec<u32> = case["top5"][step]
                .as_array()
                .expect("five")
                .iter()
                .map(|p| p[0].as_u64().expect("an id") as u32)
                .collect();
            assert!(top5.contains(&pick), "{name}, {:?} step {step}: {pick} is not in {top5:?}", case["prompt"]);
            let same = pick == answer[step];
            assert!(same || margin < SURE_MARGIN, "{name}, {:?} step {step}: {pick}, margin {margin}", case["prompt"]);
            n_steps += 1;
            n_same += usize::from(same);
        }
    }
    let share = n_same as f64 / n_steps as f64;
    println!("{name}: {n_same} of {n_steps} steps ({:.2} %)", 100.0 * share);
    assert!(n_steps > 400 && share >= 0.95, "{name}: {n_same} of {n_steps} steps agree");
}

#[test]
fn smollm2_follows_llama_cpp() {
    check("smollm2:135m");
}

#[test]
fn gemma3_follows_llama_cpp() {
    check("gemma3:270m");
}

#[test]
fn qwen_follows_llama_cpp() {
    check("qwen2.5-coder:0.5b");
}
