//! Rough logits: the same however they are asked for, near the exact ones, and what is learned by them is learned again.

use std::ops::ControlFlow;
use std::sync::Arc;

use ruvllm_engine::{
    Engine, GenerateRequest, LoadOptions, LogitRows, LogitsProcessor, SamplingParams, SchedulerOptions, Segment,
    Speculation,
};
use ruvllm_learning::{Correctness, Item, Learning, LearningOptions, Question, Task, TenantLearning, add_correction};
use ruvllm_testkit::real_model;

const TEXT: &str = "Bread is made of flour, water, salt and yeast. The dough is kneaded until it is smooth, and then it rests. \
                    Bread is baked when the dough has risen. Once more: Bread is made of";

fn open(model: &str, head_shortlist: bool) -> Engine {
    let options =
        LoadOptions { head_shortlist, n_threads: 2, n_ctx: Some(512), n_seq_max: 4, ..LoadOptions::default() };
    Engine::load(&real_model(model), &options, &mut |_| {}).expect("it loads")
}

fn tokens(engine: &Engine, text: &str) -> Vec<u32> {
    engine.tokenizer().expect("it has one").encode(text, Default::default()).expect("text")
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Kullback-Leibler divergence of what approximate logits say from what exact ones do, in nats.
fn divergence(exact: &[f32], approx: &[f32]) -> f64 {
    let log_sum = |row: &[f32]| row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
    let (a, b) = (log_sum(exact), log_sum(approx));
    let both = exact.iter().zip(approx).map(|(&x, &y)| (f64::from(x) - a, f64::from(y) - b));
    both.map(|(x, y)| x.exp() * (x - y)).sum()
}

#[test]
fn rough_logits_are_the_same_however_they_are_asked_for_and_near_the_exact_ones() {
    for (model, most) in [("smollm2:135m", 0.05), ("qwen2.5-coder:0.5b", 0.02)] {
        let mut engine = open(model, true);
        let (text, n_vocab) = (tokens(&engine, TEXT), engine.info().n_vocab);
        let mut approx = Vec::new();
        // The screen is made for this.
        assert!(engine.approx_logits_of(&vec![0.0; engine.info().n_embd], &mut approx));
        let seq = engine.new_sequence().expect("a place");
        let wanted = LogitRows::Approx { n_tail: 8, n_best: None, has_states: true };
        let states = engine.forward_states(&[Segment { seq, tokens: &text, logits: wanted }]).expect("it fits");
        let (exact, all) = (states.logits.to_vec(), states.approx.to_vec());
        let n_embd = states.rows.hidden.len() / text.len();
        let hidden = states.rows.hidden[(text.len() - 8) * n_embd..].to_vec();
        assert!(engine.approx_logits_of(&hidden, &mut approx));
        assert_eq!(bits(&approx), bits(&all), "{model}");
        let mean = exact.chunks(n_vocab).zip(all.chunks(n_vocab)).map(|(x, y)| divergence(x, y)).sum::<f64>() / 8.0;
        assert!((0.0..most).contains(&mean), "{model}: {mean} nats");
        for (n_best, n_tail) in [(Some(1), 1), (Some(40), 2), (None, 1)] {
            let seq = engine.new_sequence().expect("a place");
            let wanted = LogitRows::Approx { n_tail, n_best, has_states: false };
            let states = engine.forward_states(&[Segment { seq, tokens: &text, logits: wanted }]).expect("it fits");
            assert_eq!(bits(states.approx), bits(&all[(8 - n_tail) * n_vocab..]), "{model}: {n_best:?}");
            engine.free_sequence(seq);
        }
        let other = engine.forward_states(&[Segment { seq, tokens: &text[..1], logits: LogitRows::Last }]);
        assert!(other.expect("it fits").approx.is_empty());
    }
    // Where passes are not screened nobody is given any, but what has been learned by them is read again by them.
    let (mut engine, mut approx) = (open("smollm2:135m", false), Vec::new());
    assert!(engine.approx_logits_of(&vec![0.5; engine.info().n_embd], &mut approx));
    let (seq, text) = (engine.new_sequence().expect("a place"), tokens(&engine, TEXT));
    let wanted = LogitRows::Approx { n_tail: 1, n_best: Some(1), has_states: false };
    let states = engine.forward_states(&[Segment { seq, tokens: &text, logits: wanted }]).expect("it fits");
    assert!(states.approx.is_empty() && states.logits.iter().all(|logit| logit.is_finite()));
}

fn request(
    engine: &Engine,
    logits_processor: Option<Arc<dyn LogitsProcessor>>,
    speculation: Speculation,
) -> GenerateRequest {
    let mut prompt = tokens(engine, TEXT);
    if logits_processor.is_none() {
        prompt.reverse();
    }
    let sampling = SamplingParams::greedy();
    GenerateRequest {
        prompt,
        logits_processor,
        sampling,
        max_tokens: Some(40),
        ignore_eos: true,
        speculation,
        ..Default::default()
    }
}

/// Asks for an answer, and says that it was good.
fn hear(engine: &mut Engine, tenant: &Arc<TenantLearning>, id: &str, speculation: Speculation) -> (u64, Vec<u32>) {
    engine.clear_cache();
    let request =
        request(engine, Some(tenant.logits_processor(Task::of("What is bread made of?"), Some(id))), speculation);
    let answer = engine.generate(&request).expect("a valid request").for_each_token(|_| {}).expect("it runs");
    tenant.settle();
    (tenant.judge(id, 1.0).expect("it waits").item.expect("it is learned"), answer.tokens)
}

#[test]
fn what_is_learned_by_rough_logits_is_the_same_with_guesses_and_in_company_and_can_be_undone() {
    let (mut engine, folder) = (open("smollm2:135m", true), tempfile::tempdir().expect("a folder"));
    let options = LearningOptions { folder: Some(folder.path().to_owned()), ..LearningOptions::default() };
    let watch = &mut |_| ControlFlow::Continue(());
    let learning = Learning::open(&mut engine, options, &mut |_| ControlFlow::Continue(())).expect("it is calibrated");
    let [alone, guessing, company, nobody] =
        ["alone", "guessing", "company", "nobody"].map(|name| learning.tenant(&mut engine, name).expect("a tenant"));
    let (prompt, answer) = (tokens(&engine, "Where is Ulm?"), tokens(&engine, " On the Danube."));
    let mut teach = |tenant, speculation| {
        let (_, first) = hear(&mut engine, tenant, "1", speculation);
        let known = tenant.digest();
        // From here on the first row of an answer has to be exact: something may have been told of what is asked.
        add_correction(
            &mut engine,
            tenant,
            Question { prompt: &prompt, text: Some("Where is Ulm?") },
            &answer,
            Correctness::Right,
        )
        .expect("it is taken in");
        let (item, second) = hear(&mut engine, tenant, "2", speculation);
        ((first, second), (known, tenant.digest()), item)
    };
    let (said, (known, last), item) = teach(&alone, Speculation::Off);
    let with_guesses = teach(&guessing, Speculation::Ngram);
    assert_eq!((said, (known, last)), (with_guesses.0, with_guesses.1));
    let log = alone.log(10).expect("a store");
    let is_approx = |item: &Item| matches!(item, Item::Read { span, .. } if span.is_approx);
    assert!(log.items.iter().any(|(.., item)| is_approx(item)), "nothing was learned by rough logits");
    // In passes of more rows than are screened.
    engine.clear_cache();
    let logits_processor: Arc<dyn LogitsProcessor> =
        company.logits_processor(Task::of("What is bread made of?"), Some("1"));
    let requests = [None, Some(logits_processor), None]
        .map(|logits_processor| request(&engine, logits_processor, Speculation::Ngram));
    let mut scheduler = engine.scheduler(&SchedulerOptions::default()).expect("valid options");
    requests.into_iter().for_each(|request| _ = scheduler.submit(request).expect("a valid request"));
    scheduler.run().into_iter().for_each(|(_, answer)| _ = answer.expect("it runs"));
    drop(scheduler);
    company.settle();
    company.judge("1", 1.0).expect("it waits").item.expect("it is learned");
    assert_eq!(company.digest(), known);
    alone.undo(&mut engine, &[item], watch).expect("an item");
    assert_ne!(known, nobody.digest());
    // Prompts are items of their own.
    let learned: Vec<u64> = log.items.iter().map(|(id, ..)| *id).filter(|id| *id != item).collect();
    alone.undo(&mut engine, &learned, watch).expect("items");
    assert_eq!(alone.digest(), nobody.digest());
}
