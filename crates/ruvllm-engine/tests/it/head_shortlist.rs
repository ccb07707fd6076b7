//! A head that is screened gives the same tokens.

use ruvllm_engine::{
    Engine, GenerateRequest, LoadOptions, LogitRows, SamplingParams, SchedulerOptions, Segment, Speculation,
};
use ruvllm_testkit::real_model;

fn open(model: &str, head_shortlist: bool, n_threads: usize) -> Engine {
    let options = LoadOptions { head_shortlist, n_threads, n_ctx: Some(512), n_seq_max: 3, ..LoadOptions::default() };
    Engine::load(&real_model(model), &options, &mut |_| {}).expect("it loads")
}

/// Returns requests of which some are screened and some are not.
fn requests(engine: &Engine) -> Vec<GenerateRequest> {
    let prompts = ["Explain how bread is made.", "def fibonacci(n):", "The capital of Peru is"];
    let hot = |seed| SamplingParams { seed: Some(seed), ..SamplingParams::default() };
    let samplings = [
        SamplingParams::greedy(),
        hot(1),
        SamplingParams { top_k: 0, ..hot(2) },
        SamplingParams { repeat_penalty: 1.1, ..hot(3) },
        SamplingParams { top_k: 8, temperature: 1.5, ..hot(4) },
    ];
    let requests = samplings.into_iter().enumerate().map(|(i, sampling)| GenerateRequest {
        prompt: engine.tokenizer().expect("it has one").encode(prompts[i % 3], Default::default()).expect("text"),
        max_tokens: Some(40),
        sampling,
        speculation: if i % 2 == 0 { Speculation::Off } else { Speculation::Ngram },
        logprobs: (i == 4).then_some(2),
        ignore_eos: true,
        ..GenerateRequest::default()
    });
    requests.collect()
}

/// Returns the tokens of answers one after the other, then of all at once.
fn answers(engine: &mut Engine) -> Vec<Vec<u32>> {
    let requests = requests(engine);
    let mut tokens = Vec::new();
    for request in &requests {
        let answer = engine.generate(request).expect("a valid request").for_each_token(|_| {});
        tokens.push(answer.expect("it runs").tokens);
    }
    let mut scheduler = engine.scheduler(&SchedulerOptions::default()).expect("valid options");
    let ids: Vec<_> = requests.into_iter().map(|request| scheduler.submit(request).expect("a valid request")).collect();
    let mut answers = scheduler.run();
    answers.sort_by_key(|(id, _)| ids.iter().position(|known| known == id));
    tokens.extend(answers.into_iter().map(|(_, answer)| answer.expect("it runs").tokens));
    tokens
}

#[test]
fn answers_are_those_of_the_whole_head() {
    for model in ["smollm2:135m", "gemma3:270m", "qwen2.5-coder:0.5b"] {
        let whole = answers(&mut open(model, false, 2));
        for n_threads in [1, 2] {
            assert_eq!(answers(&mut open(model, true, n_threads)), whole, "{model}, {n_threads} threads");
        }
    }
}

#[test]
fn the_largest_logits_are_those_of_the_whole_head_and_most_others_are_ruled_out() {
    for (model, most) in [("smollm2:135m", 0.5), ("gemma3:270m", 0.2), ("qwen2.5-coder:0.5b", 0.2)] {
        let (mut whole, mut screened) = (open(model, false, 2), open(model, true, 2));
        let text = "Bread is made of flour, water, salt and yeast. The dough is kneaded until it is smooth, and then it rests.";
        let tokens = whole.tokenizer().expect("it has one").encode(text, Default::default()).expect("text");
        let (a, b) = (whole.new_sequence().expect("a place"), screened.new_sequence().expect("a place"));
        let (mut n_out, mut n_all) = (0, 0);
        for (i, token) in tokens.iter().enumerate() {
            let n_best = if i % 2 == 0 { 1 } else { 5 };
            let tokens = std::slice::from_ref(token);
            let all = whole.forward(&[Segment { seq: a, tokens, logits: LogitRows::Last }]).expect("it fits");
            let logits = LogitRows::Top { n_tail: 1, n_best };
            let top = screened.forward(&[Segment { seq: b, tokens, logits }]).expect("it fits");
            let mut sorted = all.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            for (id, (all, top)) in all.iter().zip(top.iter()).enumerate() {
                let is_out = *top == f32::NEG_INFINITY && *all < sorted[n_best - 1];
                assert!(all.to_bits() == top.to_bits() || is_out, "{model}, row {i}, token {id}: {top}, in full {all}");
            }
            // The screen is made behind the 16th.
            if i >= 16 && n_best == 1 {
                n_out += top.iter().filter(|logit| **logit == f32::NEG_INFINITY).count();
                n_all += top.len();
            }
        }
        let left = 1.0 - n_out as f32 / n_all as f32;
        assert!(n_all > 0 && left < most, "{model}: {left} of the head was read");
    }
}
