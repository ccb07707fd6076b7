//! What a log keeps, and what is taken back.

use super::*;

#[test]
fn what_is_kept_is_there_again_for_one_process_at_a_time() {
    let (mut engine, folder) = (open(1), tempfile::tempdir().expect("a folder"));
    let first = learning(&mut engine, &folder, LearningOptions::default());
    let tenant = first.tenant(&mut engine, "a").expect("a tenant");
    learn_document(&mut engine, &first, &tenant, &text(2, 200));
    first.save().expect("it is written");
    let bytes = tenant.learned().snapshot();
    let options = LearningOptions { process: "a test".to_owned(), ..LearningOptions::default() };
    let second = learning(&mut engine, &folder, options);
    let line = second.tenant(&mut engine, "a").expect_err("the first has it").to_string();
    let first_is = format!("a program, process {}", std::process::id());
    assert!(line.contains("tenant 'a'") && line.contains(&first_is) && !line.contains('\n'), "{line}");
    assert!(second.tenant(&mut engine, "b").is_err(), "one process has them all");
    drop((tenant, first));
    assert!(second.tenant(&mut engine, "a").expect("a tenant").learned().snapshot() == bytes);
    for name in ["", ".", "../a", "a/b", "ä", &"x".repeat(65)] {
        assert_eq!(second.tenant(&mut engine, name).expect_err(name).kind(), ErrorKind::Options);
    }
    second.tenant(&mut engine, "a").expect("a tenant").forget().expect("it is written");
    drop(second);
    let third = learning(&mut engine, &folder, LearningOptions::default());
    assert_eq!(third.tenant(&mut engine, "a").expect("a tenant").stats().n_entries, 0);
    // What an older version left is the first generation, once.
    let path = folder.path().read_dir().expect("a folder").next().expect("a model").expect("a model").path();
    std::fs::create_dir_all(path.join("tenants")).expect("it can be written");
    let old = |name: &str, bytes: &[u8]| {
        std::fs::write(path.join(format!("tenants/{name}.learned")), bytes).expect("it can be written");
    };
    old("d", &bytes);
    let adopted = third.tenant(&mut engine, "d").expect("a tenant");
    assert!(adopted.learned().snapshot() == bytes && !path.join("tenants/d.learned").exists());
    assert_eq!((adopted.stats().generation, adopted.log(9).expect("a store").generations.len()), (1, 1));
    old("c", b"no snapshot");
    assert_eq!(third.tenant(&mut engine, "c").expect_err("damaged").kind(), ErrorKind::Learning);
}

/// Two tenants hear the same, but what `judged` says of an answer; returns its item.
fn hear(engine: &mut Engine, tenant: &Arc<TenantLearning>, judged: bool) -> Option<u64> {
    let ask = |engine: &mut Engine, i: usize, grammar| {
        let logits_processor = tenant.logits_processor(Task::of("Who is Ann?"), Some(&format!("answer-{i}")));
        answer(engine, &GenerateRequest { grammar, ..request(i, Some(logits_processor)) });
        tenant.settle();
    };
    ask(engine, 0, None);
    // Places that a grammar leaves no choice of were only read.
    let schema = serde_json::json!({ "const": "Ann of Ulm, a smith" });
    let compiled = engine.grammar_compiler().expect("a vocabulary").compile(&GrammarSource::JsonSchema(schema));
    ask(engine, 1, Some(compiled.expect("a grammar")));
    let item = judged.then(|| tenant.judge("answer-0", 0.8).expect("it waits").item.expect("it is learned"));
    tenant.judge("answer-1", 1.0).expect("it waits").item.expect("it is learned");
    ruvllm_learning::learn_document(engine, tenant, &text(3, 300), &mut |_| ControlFlow::Continue(()))
        .expect("it reads");
    add_correction(
        engine,
        tenant,
        Question { prompt: &text(1, 40), text: Some("Where is Ulm?") },
        &text(9, 12),
        Correctness::Right,
    )
    .expect("it is taken in");
    ask(engine, 2, None);
    tenant.judge("answer-2", 0.0).expect("it waits").item.expect("it is remembered");
    item
}

#[test]
fn what_is_undone_was_never_learned() {
    let (mut engine, folder) = (open(2), tempfile::tempdir().expect("a folder"));
    let first = learning(&mut engine, &folder, LearningOptions::default());
    let watch = &mut |_| ControlFlow::Continue(());
    let [one, two] = ["one", "two"].map(|name| first.tenant(&mut engine, name).expect("a tenant"));
    let item = hear(&mut engine, &one, true).expect("an item");
    assert_eq!(hear(&mut engine, &two, false), None);
    assert_ne!(one.digest(), two.digest());
    one.undo(&mut engine, &[item], watch).expect("an item");
    // The answer that was called wrong was another one, since what was known was another: both are taken back.
    for tenant in [&one, &two] {
        let log = tenant.log(100).expect("a store");
        let rejected =
            log.items.iter().find(|(.., item)| matches!(item, Item::Corrected { verdict: Correctness::Wrong, .. }));
        tenant.undo(&mut engine, &[rejected.expect("an item").0], watch).expect("an item");
    }
    assert_eq!(one.digest(), two.digest());
    let mut next = |tenant: &Arc<TenantLearning>| {
        let answer = answer(&mut engine, &request(3, Some(tenant.logits_processor(Task::of("Where is Ulm?"), None))));
        tenant.settle();
        answer
    };
    assert_eq!(next(&one), next(&two));
    let error = one.undo(&mut engine, &[item], watch).expect_err("twice");
    assert!(error.kind() == ErrorKind::Learning && error.to_string().contains("nothing that is left"), "{error}");
    // A process that died had not put what it knew beside the log: it is read again.
    let known = one.digest();
    drop((one, two, first));
    let second = learning(&mut engine, &folder, LearningOptions::default());
    let one = second.tenant(&mut engine, "one").expect("a tenant");
    assert_eq!(one.digest(), known);
    // A document that is not read to its end leaves nothing.
    let mut n_left = 2;
    let stopped = ruvllm_learning::learn_document(&mut engine, &one, &text(5, 1500), &mut |_| {
        n_left -= 1;
        if n_left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!(stopped.expect_err("it was stopped").kind(), ErrorKind::Cancelled);
    assert_eq!(one.digest(), known);
}

#[test]
fn a_generation_says_what_it_said() {
    let (mut engine, folder) = (open(2), tempfile::tempdir().expect("a folder"));
    let key = folder.path().join("key");
    std::fs::write(&key, "5a".repeat(32)).expect("it can be written");
    let sealed = LearningOptions { key: Some(key), ..LearningOptions::default() };
    let (at, watch) = (tempfile::tempdir().expect("a folder"), &mut |_| ControlFlow::Continue(()));
    let first = learning(&mut engine, &at, sealed.clone());
    let tenant = first.tenant(&mut engine, "a").expect("a tenant");
    let frozen = first.transient().expect("a tenant");
    // Asked of what is known, without teaching it.
    let mut say = |tenant: &TenantLearning| {
        frozen.replace((*tenant.learned()).clone(), "a test").expect("of this model");
        answer(&mut engine, &request(3, Some(frozen.logits_processor(Task::default(), None))))
    };
    let nothing = say(&tenant);
    let mut engine = open(2);
    ruvllm_learning::learn_document(&mut engine, &tenant, &text(3, 400), watch).expect("it reads");
    let (known, said) = (tenant.digest(), say(&tenant));
    assert_ne!(said, nothing, "it learned nothing");
    assert_eq!(tenant.publish("read a text", &[("nats".to_owned(), 1.5)]).expect("a store"), 1);
    ruvllm_learning::learn_document(&mut engine, &tenant, &text(7, 600), watch).expect("it reads");
    let (later, said_later) = (tenant.digest(), say(&tenant));
    tenant.rollback(&mut engine, 1, watch).expect("a generation");
    assert_eq!((tenant.digest(), say(&tenant), tenant.stats().generation), (known, said, 1));
    tenant.rollback(&mut engine, 2, watch).expect("what came since was published");
    assert_eq!((tenant.digest(), say(&tenant)), (later, said_later));
    tenant.rollback(&mut engine, 0, watch).expect("the model alone");
    assert_eq!(say(&tenant), nothing);
    let log = tenant.log(2).expect("a store");
    assert_eq!((log.generation, log.generations.len(), log.items.len()), (0, 2, 2));
    assert!(matches!(log.items[0].2, Item::RolledBack { generation: 0 }));
    drop((tenant, frozen, first));
    // Without the key nobody reads it.
    let open = learning(&mut engine, &at, LearningOptions::default());
    let error = open.tenant(&mut engine, "a").expect_err("it is encrypted");
    assert!(error.to_string().contains("key"), "{error}");
    let again = learning(&mut engine, &at, sealed).tenant(&mut engine, "a").expect("a tenant");
    assert_eq!(again.log(9).expect("a store").generations.len(), 2);
}
