//! What requests teach a model: nothing known changes nothing, what is known says itself, and nobody else hears of it.

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use ruvllm_engine::learning::{
    Course, CourseOptions, LearnOptions, Learning, LearningOptions, Tenant, Verdict, WindowOptions,
};
use ruvllm_engine::{
    Engine, ErrorKind, GenerateRequest, GenerationSummary, KvPolicy, Learner, LoadOptions, LogitRows, SamplingParams,
    SchedulerOptions, Segment, Speculation, Timings,
};
use ruvllm_testkit::Golden;
use tempfile::TempDir;

fn open(n_threads: usize) -> Engine {
    let golden = Golden::load("llama-a");
    let options = LoadOptions { n_threads, kv: KvPolicy::F16, n_seq_max: 6, ..LoadOptions::default() };
    Engine::load(&golden.model("f32"), &options, &mut |_| {}).expect("a golden model loads")
}

/// A folder with the golden model's calibration, which is made once.
fn calibrated() -> &'static TempDir {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let options = LearningOptions { folder: Some(folder.path().to_owned()), ..LearningOptions::default() };
        Learning::open(&mut open(2), options, &mut |_| ControlFlow::Continue(())).expect("it is calibrated");
        folder
    })
}

/// Opens what was learned in a folder of its own.
fn learning(engine: &mut Engine, folder: &TempDir, options: LearningOptions) -> Learning {
    let made = calibrated().path().read_dir().expect("a folder").next().expect("a model").expect("a model").path();
    let own = folder.path().join(made.file_name().expect("a name"));
    std::fs::create_dir_all(&own).expect("a folder");
    std::fs::copy(made.join("calibration"), own.join("calibration")).expect("it can be written");
    let options = LearningOptions { folder: Some(folder.path().to_owned()), ..options };
    let mut progress = |_| panic!("it was calibrated before");
    Learning::open(engine, options, &mut progress).expect("it opens")
}

fn text(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * i * 31 + i * seed) % 97 + 7).collect()
}

/// Reads a text a few times.
fn study(engine: &mut Engine, learning: &Learning, tenant: &Tenant, text: &[u32]) -> (f32, f32) {
    let options = CourseOptions { n_request: 64, ..CourseOptions::default() };
    let mut course = Course::new((*tenant.learned()).clone(), options);
    let mut means = Vec::new();
    for _ in 0..4 {
        let read = engine.read_text(text, &WindowOptions::default(), &mut |engine, shown| {
            course.read(engine, shown.rows, None, learning.head());
            Ok(())
        });
        read.expect("it reads");
        course.end_text();
        let nll = course.take_nll();
        assert_eq!(nll.len(), text.len());
        means.push(nll.iter().sum::<f32>() / nll.len() as f32);
    }
    tenant.replace(course.finish());
    (means[0], means[3])
}

fn request(i: usize, learner: Option<Arc<dyn Learner>>) -> GenerateRequest {
    let sampling = match i % 2 {
        0 => SamplingParams::greedy(),
        _ => SamplingParams { seed: Some(i as u64), ..SamplingParams::default() },
    };
    let prompt = text(i as u32 % 5, 30 + 9 * i as u32);
    GenerateRequest { prompt, learner, sampling, max_tokens: Some(24), ignore_eos: true, ..Default::default() }
}

fn answer(engine: &mut Engine, request: &GenerateRequest) -> GenerationSummary {
    engine.clear_cache();
    let summary = engine.generate(request).expect("a valid request").for_each_token(|_| {}).expect("it runs");
    GenerationSummary { timings: Timings::default(), ..summary }
}

#[test]
fn nothing_learned_changes_nothing_and_what_is_learned_depends_on_no_company() {
    let (mut engine, folder) = (open(2), tempfile::tempdir().expect("a folder"));
    let learning = learning(&mut engine, &folder, LearningOptions::default());
    let tenant = learning.tenant("a").expect("a tenant");
    let empty = (*tenant.learned()).clone();
    let base: Vec<_> = (0..8).map(|i| answer(&mut engine, &request(i, None))).collect();
    for (i, base) in base.iter().enumerate() {
        tenant.replace(empty.clone());
        assert_eq!(&answer(&mut engine, &request(i, Some(tenant.learner(Some("What?"), None)))), base);
    }
    tenant.replace(empty);
    let (first, last) = study(&mut engine, &learning, &tenant, &text(3, 400));
    assert!(last < 0.5 * first, "{last} nats after {first}");
    let known = (*tenant.learned()).clone();
    let other = learning.tenant("b").expect("a tenant");
    let mut alone = Vec::new();
    for (i, base) in base.iter().enumerate() {
        let mut answer = |speculation, tenant: &Arc<Tenant>| {
            tenant.settle();
            let request = request(i, Some(tenant.learner(None, None)));
            answer(&mut engine, &GenerateRequest { speculation, ..request })
        };
        tenant.replace(known.clone());
        let off = answer(Speculation::Off, &tenant);
        tenant.replace(known.clone());
        assert_eq!(answer(Speculation::Ngram, &tenant), off);
        // A tenant that was taught nothing is the model itself.
        other.forget().expect("it is written");
        assert_eq!(&answer(Speculation::Off, &other), base);
        alone.push(off);
    }
    assert!(alone.iter().zip(&base).filter(|(a, b)| a != b).count() >= 3, "nothing changed");
    // Together they see what was known when they came, also when others have ended and taught something since.
    tenant.replace(known);
    engine.clear_cache();
    let mut scheduler = engine
        .scheduler(&SchedulerOptions { step_tokens: 40, prefill_tokens: 11, ..SchedulerOptions::default() })
        .expect("valid");
    (0..8).for_each(|i| {
        scheduler.submit(request(i, Some(tenant.learner(None, None)))).expect("a valid request");
    });
    for ((_, answer), alone) in scheduler.run().into_iter().zip(alone) {
        let answer = GenerationSummary { timings: Timings::default(), ..answer.expect("it ran") };
        assert_eq!(answer, alone);
    }
}

#[test]
fn states_of_a_prompt_are_the_same_however_it_is_cut() {
    let mut engine = open(2);
    let tokens = text(2, 90);
    let mut states = |parts: &[(usize, LogitRows)]| {
        let (seq, mut at) = (engine.new_sequence().expect("free"), 0);
        let (mut logits, mut hidden) = (Vec::new(), Vec::new());
        for &(n, wanted) in parts {
            let segment = Segment { seq, tokens: &tokens[at..at + n], logits: wanted };
            let states = engine.forward_states(&[segment]).expect("it fits");
            logits.extend(states.logits.iter().map(|x| x.to_bits()));
            hidden.extend(states.hidden.iter().map(|x| x.to_bits()));
            at += n;
        }
        engine.free_sequence(seq);
        (logits, hidden)
    };
    let (logits, hidden) = states(&[(90, LogitRows::All)]);
    let n_vocab = logits.len() / 90;
    let cut =
        states(&[(7, LogitRows::TailOfStates(0)), (60, LogitRows::TailOfStates(2)), (23, LogitRows::TailOfStates(1))]);
    assert!(cut.1 == hidden, "states differ");
    let rows = [65, 66, 89].iter().flat_map(|&row| logits[row * n_vocab..][..n_vocab].iter().copied());
    assert!(cut.0 == rows.collect::<Vec<_>>(), "logits differ");
    let n_embd = engine.info().n_embd;
    let hidden: Vec<f32> = hidden[20 * n_embd..50 * n_embd].iter().map(|&x| f32::from_bits(x)).collect();
    let mut again = Vec::new();
    engine.logits_of(&hidden, &mut again);
    assert!(
        again.iter().map(|x| x.to_bits()).eq(logits[20 * n_vocab..50 * n_vocab].iter().copied()),
        "the head differs"
    );
}

#[test]
fn a_prompt_teaches_the_same_however_it_is_computed() {
    let (mut engine, folder) = (open(2), tempfile::tempdir().expect("a folder"));
    let learning = learning(&mut engine, &folder, LearningOptions::default());
    let prompt = text(4, 230);
    let ask = |tenant: &Arc<Tenant>, speculation| GenerateRequest {
        prompt: prompt.clone(),
        learner: Some(tenant.learner(None, None)),
        sampling: SamplingParams::greedy(),
        speculation,
        max_tokens: Some(8),
        ignore_eos: true,
        ..GenerateRequest::default()
    };
    let snapshot = |tenant: &Tenant| {
        tenant.settle();
        tenant.learned().snapshot()
    };
    let (one, two) = (learning.tenant("one").expect("a tenant"), learning.tenant("two").expect("a tenant"));
    answer(&mut engine, &ask(&one, Speculation::Off));
    let expected = snapshot(&one);
    assert_eq!(one.stats().n_entries, 229, "all but the first");
    engine.clear_cache();
    let mut scheduler = engine
        .scheduler(&SchedulerOptions { step_tokens: 64, prefill_tokens: 37, ..SchedulerOptions::default() })
        .expect("valid");
    scheduler.submit(ask(&two, Speculation::Ngram)).expect("a valid request");
    // Beside it somebody who learns nothing.
    scheduler.submit(GenerateRequest { max_tokens: Some(40), ..request(2, None) }).expect("a valid request");
    assert!(scheduler.run().iter().all(|(_, answer)| answer.is_ok()));
    drop(scheduler);
    assert!(snapshot(&two) == expected, "another state");
    // What is cached is not computed, and teaches nothing again.
    let again = engine.generate(&ask(&two, Speculation::Off)).expect("a valid request").for_each_token(|_| {});
    let cached = again.expect("it runs").timings.cached_tokens;
    two.settle();
    assert!(cached > 200 && two.stats().n_entries == 229 + 229 - cached, "{cached} cached, {:?}", two.stats());
    // Nor does a prompt where prompts are not to be learned.
    let shy = LearningOptions { prompts: false, ..LearningOptions::default() };
    let other = tempfile::tempdir().expect("a folder");
    let shy = self::learning(&mut engine, &other, shy).tenant("one").expect("a tenant");
    answer(&mut engine, &ask(&shy, Speculation::Off));
    shy.settle();
    assert_eq!(shy.stats().n_entries, 0);
}

#[test]
fn answers_are_learned_when_they_are_judged() {
    let (mut engine, folder) = (open(1), tempfile::tempdir().expect("a folder"));
    let options = LearningOptions { prompts: false, n_waiting_max: 3, ..LearningOptions::default() };
    let learning = learning(&mut engine, &folder, options);
    let tenant = learning.tenant("a").expect("a tenant");
    for i in 0..4 {
        answer(&mut engine, &request(0, Some(tenant.learner(Some("Who is Ann?"), Some(&format!("answer-{i}"))))));
    }
    tenant.settle();
    assert_eq!((tenant.stats().n_entries, tenant.stats().n_waiting), (0, 3));
    let error = tenant.judge("answer-0", 1.0).expect_err("three wait at most");
    assert!(error.kind() == ErrorKind::Learning && error.to_string().contains("answer-0"), "{error}");
    assert_eq!(tenant.judge("answer-1", 1.5).expect_err("out of range").kind(), ErrorKind::Options);
    tenant.judge("answer-1", 0.8).expect("it waits");
    tenant.settle();
    assert_eq!((tenant.stats().n_entries, tenant.stats().n_tokens, tenant.stats().n_waiting), (24, 24, 2));
    assert!(tenant.judge("answer-1", 0.8).is_err(), "once is enough");
    tenant.judge("answer-2", 0.0).expect("it waits");
    tenant.settle();
    assert_eq!((tenant.stats().n_entries, tenant.stats().n_episodes), (24, 1));
    let (prompt, question) = tenant.correct("answer-3").expect("it waits");
    assert_eq!((prompt, question.as_str(), tenant.stats().n_waiting), (request(0, None).prompt, "Who is Ann?", 0));
}

#[test]
fn a_told_answer_is_said_and_a_wrong_one_is_not() {
    let (mut engine, folder) = (open(2), tempfile::tempdir().expect("a folder"));
    let learn = LearnOptions { micro: None, ..LearnOptions::default() };
    let learning = learning(&mut engine, &folder, LearningOptions { learn, prompts: false, ..Default::default() });
    let tenant = learning.tenant("a").expect("a tenant");
    let (prompt, told) = (text(1, 40), text(9, 12));
    engine.tell(&tenant, (&prompt, "Where is Ulm?"), &told, Verdict::Right).expect("it is taken in");
    let mut ask = |question: Option<&str>| {
        let learner = Some(tenant.learner(question, None));
        let sampling = SamplingParams::greedy();
        let request = GenerateRequest { prompt: prompt.clone(), learner, sampling, ..request(0, None) };
        answer(&mut engine, &GenerateRequest { max_tokens: Some(12), ..request }).tokens
    };
    assert_eq!(ask(Some("Where is Ulm?")), told);
    let base = ask(None);
    assert!(base != told && ask(Some("Where is Bonn?")) == base);
    engine.tell(&tenant, (&prompt, "Where is Bonn?"), &base, Verdict::Wrong).expect("it is taken in");
    let mut ask = |question: &str| {
        let learner = Some(tenant.learner(Some(question), None));
        let sampling = SamplingParams::greedy();
        let request = GenerateRequest { prompt: prompt.clone(), learner, sampling, ..request(0, None) };
        answer(&mut engine, &GenerateRequest { max_tokens: Some(12), ..request }).tokens
    };
    assert_ne!(ask("Where is Bonn?")[0], base[0]);
    assert_eq!(ask("Where is Ulm?"), told);
    assert!(engine.tell(&tenant, (&prompt, "?"), &[], Verdict::Right).is_err());
    assert!(engine.tell(&tenant, (&[], "?"), &told, Verdict::Right).is_err());
}

#[test]
fn what_is_kept_is_there_again_for_one_process_at_a_time() {
    let (mut engine, folder) = (open(1), tempfile::tempdir().expect("a folder"));
    let first = learning(&mut engine, &folder, LearningOptions::default());
    let tenant = first.tenant("a").expect("a tenant");
    study(&mut engine, &first, &tenant, &text(2, 200));
    first.save().expect("it is written");
    let bytes = tenant.learned().snapshot();
    let second = learning(&mut engine, &folder, LearningOptions::default());
    let line = second.tenant("a").expect_err("the first has it").to_string();
    assert!(line.contains("tenant 'a'") && !line.contains('\n'), "{line}");
    assert_eq!(second.tenant("b").expect("a tenant").stats().n_entries, 0);
    drop((tenant, first));
    assert!(second.tenant("a").expect("a tenant").learned().snapshot() == bytes);
    for name in ["", ".", "../a", "a/b", "ä", &"x".repeat(65)] {
        assert_eq!(second.tenant(name).expect_err(name).kind(), ErrorKind::Options);
    }
    second.tenant("a").expect("a tenant").forget().expect("it is written");
    drop(second);
    let third = learning(&mut engine, &folder, LearningOptions::default());
    assert_eq!(third.tenant("a").expect("a tenant").stats().n_entries, 0);
    let path = folder.path().read_dir().expect("a folder").next().expect("a model").expect("a model").path();
    std::fs::write(path.join("tenants/c.learned"), b"no snapshot").expect("it can be written");
    assert_eq!(third.tenant("c").expect_err("damaged").kind(), ErrorKind::Learning);
}
