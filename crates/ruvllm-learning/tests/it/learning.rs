//! What requests teach a model: nothing known changes nothing, what is known says itself, and nobody else hears of it.

mod log;

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};

use ruvllm_engine::{
    Engine, ErrorKind, GenerateRequest, GenerationSummary, GrammarSource, KvPolicy, LoadOptions, LogitRows,
    LogitsProcessor, SamplingParams, SchedulerOptions, Segment, Speculation, Timings,
};
use ruvllm_learning::{
    Correctness, EvaluationStream, EvaluationStreamOptions, Item, LearnOptions, Learned, Learning, LearningOptions,
    Question, Task, TenantLearning, WindowOptions, add_correction, read_text,
};
use ruvllm_sona::bank::{Pattern, Select, Verdict as Ended};
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

/// Reads a text a few times. What was learned of it takes the place of what the tenant knew.
fn learn_document(engine: &mut Engine, learning: &Learning, tenant: &TenantLearning, text: &[u32]) -> (f32, f32) {
    let options = EvaluationStreamOptions { n_request: 64, ..EvaluationStreamOptions::default() };
    let mut course = EvaluationStream::new((*tenant.learned()).clone(), options);
    let mut means = Vec::new();
    for _ in 0..4 {
        let read = read_text(engine, text, &WindowOptions::default(), &mut |engine, shown| {
            course.read(engine, shown.rows, None, learning.head())
        });
        read.expect("it reads");
        course.end_text();
        let nll = course.take_nll();
        assert_eq!(nll.len(), text.len());
        means.push(nll.iter().sum::<f32>() / nll.len() as f32);
    }
    tenant.replace(course.finish(), "a course").expect("of this model");
    (means[0], means[3])
}

#[test]
fn a_text_is_predicted_by_what_was_known_before_it_or_as_it_is_learned() {
    let (mut engine, folder) = (open(2), tempfile::tempdir().expect("a folder"));
    let learning = learning(&mut engine, &folder, LearningOptions::default());
    let empty = (*learning.transient().expect("a tenant").learned()).clone();
    let isa = engine.compute().isa;
    let mut courses = [false, true].map(|is_by_text| {
        let options = EvaluationStreamOptions { n_request: 64, is_by_text, ..EvaluationStreamOptions::default() };
        EvaluationStream::new(empty.clone(), options)
    });
    let mut mean = |courses: &mut [EvaluationStream]| {
        let mut base = Vec::new();
        let read = read_text(&mut engine, &text(3, 400), &WindowOptions::default(), &mut |engine, shown| {
            base.extend(shown.rows.nll(isa));
            courses.iter_mut().try_for_each(|course| course.read(engine, shown.rows, None, learning.head()))
        });
        read.expect("it reads");
        courses.iter_mut().for_each(EvaluationStream::end_text);
        let nll: Vec<Vec<f32>> = courses.iter_mut().map(EvaluationStream::take_nll).collect();
        let mean = |nll: &[f32]| nll.iter().sum::<f32>() / nll.len() as f32;
        (base == nll[1], mean(&base), mean(&nll[0]), mean(&nll[1]))
    };
    let (is_base, base, by_token, _) = mean(&mut courses);
    assert!(is_base && by_token < base, "{by_token} nats of {base}");
    // What is learned is the same; the second time it is known from the first token on.
    assert_eq!(courses[0].learned().snapshot(), courses[1].learned().snapshot());
    let (_, base, _, by_text) = mean(&mut courses);
    assert!(by_text < 0.7 * base, "{by_text} nats of {base}");
    assert_eq!(courses[0].learned().snapshot(), courses[1].learned().snapshot());
}

fn request(i: usize, logits_processor: Option<Arc<dyn LogitsProcessor>>) -> GenerateRequest {
    let sampling = match i % 2 {
        0 => SamplingParams::greedy(),
        _ => SamplingParams { seed: Some(i as u64), ..SamplingParams::default() },
    };
    let prompt = text(i as u32 % 5, 30 + 9 * i as u32);
    GenerateRequest { prompt, logits_processor, sampling, max_tokens: Some(24), ignore_eos: true, ..Default::default() }
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
    let tenant = learning.transient().expect("a tenant");
    let set =
        |tenant: &TenantLearning, learned: &Learned| tenant.replace(learned.clone(), "a test").expect("of this model");
    let empty = (*tenant.learned()).clone();
    let base: Vec<_> = (0..8).map(|i| answer(&mut engine, &request(i, None))).collect();
    for (i, base) in base.iter().enumerate() {
        set(&tenant, &empty);
        assert_eq!(&answer(&mut engine, &request(i, Some(tenant.logits_processor(Task::of("What?"), None)))), base);
    }
    set(&tenant, &empty);
    let (first, last) = learn_document(&mut engine, &learning, &tenant, &text(3, 400));
    assert!(last < 0.5 * first, "{last} nats after {first}");
    let known = (*tenant.learned()).clone();
    let other = learning.tenant(&mut engine, "b").expect("a tenant");
    let mut alone = Vec::new();
    for (i, base) in base.iter().enumerate() {
        let mut answer = |speculation, tenant: &Arc<TenantLearning>| {
            tenant.settle();
            let request = request(i, Some(tenant.logits_processor(Task::default(), None)));
            answer(&mut engine, &GenerateRequest { speculation, ..request })
        };
        set(&tenant, &known);
        let off = answer(Speculation::Off, &tenant);
        set(&tenant, &known);
        assert_eq!(answer(Speculation::Ngram, &tenant), off);
        // A tenant that was taught nothing is the model itself.
        other.forget().expect("it is written");
        assert_eq!(&answer(Speculation::Off, &other), base);
        alone.push(off);
    }
    assert!(alone.iter().zip(&base).filter(|(a, b)| a != b).count() >= 3, "nothing changed");
    // Together they see what was known when they came, also when others have ended and taught something since.
    set(&tenant, &known);
    engine.clear_cache();
    let mut scheduler = engine
        .scheduler(&SchedulerOptions { step_tokens: 40, prefill_tokens: 11, ..SchedulerOptions::default() })
        .expect("valid");
    (0..8).for_each(|i| {
        scheduler.submit(request(i, Some(tenant.logits_processor(Task::default(), None)))).expect("a valid request");
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
            hidden.extend(states.rows.hidden.iter().map(|x| x.to_bits()));
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
    engine.logits_of(&hidden, &mut again).expect("the files are there");
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
    let ask = |tenant: &Arc<TenantLearning>, speculation| GenerateRequest {
        prompt: prompt.clone(),
        logits_processor: Some(tenant.logits_processor(Task::default(), None)),
        sampling: SamplingParams::greedy(),
        speculation,
        max_tokens: Some(8),
        ignore_eos: true,
        ..GenerateRequest::default()
    };
    let snapshot = |tenant: &TenantLearning| {
        tenant.settle();
        tenant.learned().snapshot()
    };
    let (one, two) = (
        learning.tenant(&mut engine, "one").expect("a tenant"),
        learning.tenant(&mut engine, "two").expect("a tenant"),
    );
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
    let shy = self::learning(&mut engine, &other, shy).tenant(&mut engine, "one").expect("a tenant");
    answer(&mut engine, &ask(&shy, Speculation::Off));
    shy.settle();
    assert_eq!(shy.stats().n_entries, 0);
}

#[test]
fn answers_are_learned_when_they_are_judged() {
    let (mut engine, folder) = (open(1), tempfile::tempdir().expect("a folder"));
    let options = LearningOptions { prompts: false, n_waiting_max: 3, ..LearningOptions::default() };
    let learning = learning(&mut engine, &folder, options);
    let tenant = learning.tenant(&mut engine, "a").expect("a tenant");
    for i in 0..4 {
        answer(
            &mut engine,
            &request(0, Some(tenant.logits_processor(Task::of("Who is Ann?"), Some(&format!("answer-{i}"))))),
        );
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
    assert_eq!((tenant.stats().n_entries, tenant.stats().n_corrections), (24, 1));
    let (prompt, task) = tenant.correct("answer-3").expect("it waits");
    assert_eq!((prompt, task, tenant.stats().n_waiting), (request(0, None).prompt, Task::of("Who is Ann?"), 0));
}

#[test]
fn patterns_are_found_by_what_the_model_makes_of_their_words() {
    let (mut engine, folder) = (open(1), tempfile::tempdir().expect("a folder"));
    let learning = learning(&mut engine, &folder, LearningOptions::default());
    let tenant = learning.tenant(&mut engine, "a").expect("a tenant");
    let bank = tenant.patterns().expect("a bank");
    let mut embed = |tokens: Vec<u32>| {
        let (tokens, readout) = TenantLearning::task_readout(tokens);
        tenant.task_embedding(&engine.read_out(&tokens, readout).expect("it is read"))
    };
    let mut ids = Vec::new();
    for i in 0..4 {
        let pattern = Pattern::new("a task", embed(text(i, 20)), vec![], Ended::Success, 0.5);
        ids.push(bank.add(&pattern).expect("room"));
    }
    // The same words with another end.
    let query = embed([&text(2, 20)[..], &text(7, 4)].concat());
    let found = bank.search(&query, 2, &Select::default()).expect("sound");
    assert!(found[0].id == ids[2] && found[0].similarity > found[1].similarity + 0.1, "{found:?}");
    // However long, and however short.
    assert_eq!((embed(text(3, 400)).len(), embed(vec![5]).len()), (query.len(), query.len()));
    assert_eq!(TenantLearning::task_readout(text(3, 400)).0, text(3, 256));
    // What came from an item that is not there, or not any more, is not kept.
    let (prompt, told) = (text(1, 40), text(9, 12));
    let item = add_correction(
        &mut engine,
        &tenant,
        Question { prompt: &prompt, text: Some("Who?") },
        &told,
        Correctness::Right,
    )
    .expect("it is taken in")
    .expect("an item");
    let made = || Pattern::new("a task", query.clone(), vec![], Ended::Success, 0.5);
    assert_eq!(tenant.keep_pattern(item + 1, made()).expect("readable"), None);
    let kept = tenant.keep_pattern(item, made()).expect("room").expect("it is kept");
    assert_eq!(bank.get(kept).expect("readable").expect("it is there").items, [item]);
    tenant.undo(&mut engine, &[item], &mut |_| ControlFlow::Continue(())).expect("it is undone");
    assert_eq!((bank.get(kept).expect("readable"), tenant.keep_pattern(item, made()).expect("readable")), (None, None));
    tenant.forget().expect("it is written");
    assert!(bank.is_empty());
    let nowhere = learning.transient().expect("a tenant");
    assert_eq!(nowhere.patterns().err().map(|error| error.kind()), Some(ErrorKind::Learning));
}

#[test]
fn corrections_are_given_and_wrong_answers_are_not() {
    let (mut engine, folder) = (open(2), tempfile::tempdir().expect("a folder"));
    let learn = LearnOptions { micro: None, ..LearnOptions::default() };
    let learning = learning(&mut engine, &folder, LearningOptions { learn, prompts: false, ..Default::default() });
    let tenant = learning.tenant(&mut engine, "a").expect("a tenant");
    let (prompt, told) = (text(1, 40), text(9, 12));
    add_correction(
        &mut engine,
        &tenant,
        Question { prompt: &prompt, text: Some("Where is Ulm?") },
        &told,
        Correctness::Right,
    )
    .expect("it is taken in");
    let mut ask = |question: Option<&str>| {
        let logits_processor = Some(tenant.logits_processor(question.map(Task::of).unwrap_or_default(), None));
        let sampling = SamplingParams::greedy();
        let request = GenerateRequest { prompt: prompt.clone(), logits_processor, sampling, ..request(0, None) };
        answer(&mut engine, &GenerateRequest { max_tokens: Some(12), ..request }).tokens
    };
    assert_eq!(ask(Some("Where is Ulm?")), told);
    let base = ask(None);
    assert!(base != told && ask(Some("Where is Bonn?")) == base);
    add_correction(
        &mut engine,
        &tenant,
        Question { prompt: &prompt, text: Some("Where is Bonn?") },
        &base,
        Correctness::Wrong,
    )
    .expect("it is taken in");
    let mut ask = |question: &str| {
        let logits_processor = Some(tenant.logits_processor(Task::of(question), None));
        let sampling = SamplingParams::greedy();
        let request = GenerateRequest { prompt: prompt.clone(), logits_processor, sampling, ..request(0, None) };
        answer(&mut engine, &GenerateRequest { max_tokens: Some(12), ..request }).tokens
    };
    assert_ne!(ask("Where is Bonn?")[0], base[0]);
    assert_eq!(ask("Where is Ulm?"), told);
    assert!(
        add_correction(&mut engine, &tenant, Question { prompt: &prompt, text: Some("?") }, &[], Correctness::Right)
            .is_err()
    );
    assert!(
        add_correction(&mut engine, &tenant, Question { prompt: &[], text: Some("?") }, &told, Correctness::Right)
            .is_err()
    );
}
