//! Texts that drafts are made of, over restarts: drafted from again, each tenant's for itself, bounded, hidden, forgotten, and
//! files that are no such files set aside.

use std::fs;
use std::path::{Path, PathBuf};

use ruvllm_engine::{Engine, GenerateRequest, GenerationSummary, LoadOptions, SamplingParams};
use ruvllm_learning::{DraftHistory, DraftHistoryFile, DraftHistoryOptions};
use ruvllm_testkit::Golden;

const TENANTS: [u64; 3] = [0, 1, 2];

fn load(model: &str, budget_bytes: usize) -> Engine {
    let path = Golden::load(model).model("f32");
    let mut engine = Engine::load(&path, &LoadOptions::default(), &mut |_| {}).expect("it loads");
    engine.runner_mut().set_history_bytes(budget_bytes);
    engine
}

fn options(folder: &Path) -> DraftHistoryOptions {
    DraftHistoryOptions { folder: folder.to_owned(), key: None, tenants: TENANTS.to_vec() }
}

/// A process: a new engine with what lies in the folder.
fn start(options: &DraftHistoryOptions) -> (Engine, DraftHistory) {
    let mut engine = load("llama-a", 1 << 20);
    let history = DraftHistory::open(&mut engine, options).expect("no key file is wrong");
    (engine, history)
}

fn answer(engine: &mut Engine, tenant: u64, seed: u32) -> GenerationSummary {
    let n_vocab = engine.info().n_vocab as u32;
    let prompt = (0..24).map(|i: u32| (7 + seed * 31 + i * i * 13) % (n_vocab - 8) + 4).collect();
    let request = GenerateRequest {
        prompt,
        tenant,
        max_tokens: Some(40),
        ignore_eos: true,
        sampling: SamplingParams::greedy(),
        ..GenerateRequest::default()
    };
    engine.generate(&request).expect("a valid request").for_each_token(|_| {}).expect("it runs")
}

/// Returns the tokens that were drafted from earlier texts, and those of them that were accepted.
fn of_history(summary: &GenerationSummary) -> (usize, usize) {
    let count = summary.timings.draft_sources.history;
    (count.draft_tokens, count.accepted_tokens)
}

fn the_file(folder: &Path) -> PathBuf {
    let files = DraftHistoryFile::list(folder);
    let [file] = &files[..] else { panic!("one file: {files:?}") };
    file.path.clone()
}

#[test]
fn a_tenant_drafts_from_its_texts_after_a_restart_and_no_other_does() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = options(folder.path());
    let (mut engine, history) = start(&options);
    assert_eq!(history.notes(), [""; 0]);
    let first = answer(&mut engine, 1, 0);
    let own = answer(&mut engine, 1, 0);
    assert!(of_history(&own).1 >= 20, "{:?}", own.timings);
    assert_eq!(own.tokens, first.tokens);
    let total = own.timings.draft_sources.total();
    let timings = &own.timings;
    assert_eq!((total.draft_tokens, total.accepted_tokens), (timings.draft_tokens, timings.accepted_tokens));
    drop(history);
    drop(engine);

    let (mut engine, history) = start(&options);
    assert_eq!(history.notes(), [""; 0]);
    assert!(engine.runner().history_bytes() > 0);
    // Another tenant has the counts of a process that never had a history.
    let (mut other_engine, other) = (load("llama-a", 1 << 20), answer(&mut engine, 2, 0));
    let fresh = answer(&mut other_engine, 2, 0);
    assert_eq!((&other.tokens, of_history(&other)), (&first.tokens, (0, 0)));
    assert_eq!(other.timings.draft_sources, fresh.timings.draft_sources);
    let again = answer(&mut engine, 1, 0);
    assert_eq!(again.tokens, first.tokens);
    assert!(of_history(&again).1 >= 20, "{:?}", again.timings);

    // Forgotten in memory and on disk, for one tenant only.
    engine.runner_mut().forget_history(1);
    history.forget(1).expect("it can be written");
    assert_eq!(of_history(&answer(&mut engine, 2, 0)).1, of_history(&own).1);
    drop((history, engine));
    let (mut engine, _history) = start(&options);
    assert_eq!(of_history(&answer(&mut engine, 1, 0)), (0, 0));
    assert!(of_history(&answer(&mut engine, 2, 0)).1 >= 20);
}

#[test]
fn texts_of_tenants_that_are_no_more_are_removed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (mut engine, history) = start(&options(folder.path()));
    TENANTS.iter().for_each(|&tenant| drop(answer(&mut engine, tenant, tenant as u32)));
    history.flush().expect("it can be written");
    history.forget_others(&[0, 1]).expect("it can be written");
    drop((history, engine));
    // The next process knows one tenant less.
    let (engine, history) = start(&DraftHistoryOptions { tenants: vec![1], ..options(folder.path()) });
    drop((history, engine));
    let (mut engine, history) = start(&options(folder.path()));
    let n_drafted = TENANTS.map(|tenant| of_history(&answer(&mut engine, tenant, tenant as u32)).1);
    assert!(n_drafted[0] == 0 && n_drafted[1] >= 20 && n_drafted[2] == 0, "{n_drafted:?}");
    assert_eq!(history.notes(), [""; 0]);
}

#[test]
fn a_file_holds_no_more_than_its_share_of_memory() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = options(folder.path());
    let (n_answers, budget_bytes) = (140, 128 << 10);
    let mut engine = load("llama-a", budget_bytes);
    let history = DraftHistory::open(&mut engine, &options).expect("no key file is wrong");
    for seed in 0..n_answers {
        answer(&mut engine, 1 + u64::from(seed % 2), seed);
    }
    history.flush().expect("it can be written");
    drop((history, engine));
    let mut engine = load("llama-a", budget_bytes);
    let history = DraftHistory::open(&mut engine, &options).expect("no key file is wrong");
    assert!(engine.runner().history_bytes() <= budget_bytes, "{} bytes", engine.runner().history_bytes());
    assert!(of_history(&answer(&mut engine, 2, n_answers - 1)).1 >= 20, "what is new is there");
    drop(history);
    // With a smaller budget the oldest go from the file as well.
    let in_file = || {
        let mut engine = load("llama-a", 1 << 20);
        drop(DraftHistory::open(&mut engine, &options).expect("no key file is wrong"));
        engine.runner().history_bytes()
    };
    let before = in_file();
    let mut small = load("llama-a", 33 << 10);
    drop(DraftHistory::open(&mut small, &options).expect("no key file is wrong"));
    let after = in_file();
    assert!(after > 0 && 2 * after <= before, "{before} bytes, then {after}");
    let n_bytes = fs::metadata(the_file(folder.path())).expect("it is there").len();
    assert!(n_bytes < 2 << 20, "{n_bytes} bytes");
}

#[test]
fn what_is_no_such_file_is_set_aside() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let options = options(folder.path());
    let (mut engine, history) = start(&options);
    answer(&mut engine, 1, 0);
    drop((history, engine));
    let path = the_file(folder.path());
    let whole = fs::read(&path).expect("it is there");
    let mut flipped = whole.clone();
    flipped.iter_mut().skip(whole.len() / 3).step_by(97).for_each(|byte| *byte ^= 0x55);
    for (what, bytes) in [
        ("empty", vec![]),
        ("torn", whole[..whole.len() / 2].to_vec()),
        ("of another program", b"\x7fELF, or whatever else".repeat(500)),
        ("flipped", flipped),
    ] {
        fs::write(&path, bytes).expect("written");
        let (mut engine, history) = start(&options);
        let told = history.notes().join("; ");
        let is_read = of_history(&answer(&mut engine, 1, 0)).1 > 0;
        // Bits may have flipped where nothing lies; then it is still what was written.
        assert!(is_read || (told.contains(".redb") && !told.is_empty()), "{what}: '{told}'");
        if !is_read && told.contains("set aside") {
            let aside = path.with_extension("damaged");
            assert!(aside.is_file(), "{what}: '{told}'");
            fs::remove_file(aside).expect("removed");
        }
        drop((history, engine));
        fs::write(&path, &whole).expect("written");
    }
    // Another model's, with the name of this one's.
    let other = tempfile::tempdir().expect("a temporary folder");
    let mut engine = load("gpt2-a", 1 << 20);
    drop(DraftHistory::open(&mut engine, &self::options(other.path())).expect("no key file is wrong"));
    drop(engine);
    let foreign = the_file(other.path());
    assert_ne!(foreign.file_name(), path.file_name(), "a model has a name of its own");
    fs::copy(foreign, &path).expect("copied");
    let (_engine, history) = start(&options);
    assert!(history.notes()[0].contains("another model's") && history.notes()[0].contains("set aside"));
    drop(history);
    let files = DraftHistoryFile::list(folder.path());
    assert_eq!(files.len(), 2, "{files:?}");
    files.iter().for_each(|file| file.remove().expect("nobody has it"));
}

#[test]
fn a_key_hides_texts_and_tenants() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let key = folder.path().join("key");
    fs::write(&key, [7; 32]).expect("written");
    let tenant = u64::from_le_bytes(*b"TENANT-1");
    let open = |key: Option<&Path>| DraftHistoryOptions {
        key: key.map(Path::to_owned),
        tenants: vec![tenant],
        ..options(folder.path())
    };
    let (mut engine, history) = start(&open(Some(&key)));
    let first = answer(&mut engine, tenant, 0);
    let needle: Vec<u8> = first.prompt_tokens[..6].iter().flat_map(|id| id.to_le_bytes()).collect();
    drop((history, engine));
    let bytes = fs::read(the_file(folder.path())).expect("it is there");
    let has = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    assert!(!has(&needle) && !has(b"TENANT-1"));
    // Without the key, or with another one, it is left as it is, and texts are in memory only.
    let other = folder.path().join("other");
    fs::write(&other, [8; 32]).expect("written");
    for wrong in [None, Some(other.as_path())] {
        let (mut engine, history) = start(&open(wrong));
        assert!(history.notes()[0].contains("in memory only"), "{:?}", history.notes());
        assert_eq!(of_history(&answer(&mut engine, tenant, 0)), (0, 0));
        history.forget(tenant).expect("there is nothing");
    }
    let (mut engine, history) = start(&open(Some(&key)));
    assert!(of_history(&answer(&mut engine, tenant, 0)).1 >= 20, "{:?}", history.notes());
    // One process has the file.
    let (_second, refused) = start(&open(Some(&key)));
    assert!(refused.notes()[0].contains("in memory only"), "{:?}", refused.notes());
    let error = DraftHistoryFile::list(folder.path())[0].remove().expect_err("it is in use");
    assert!(error.to_string().contains("is in use"), "{error}");
    let missing = folder.path().join("missing");
    let mut engine = load("llama-a", 1 << 20);
    assert!(DraftHistory::open(&mut engine, &open(Some(&missing))).is_err());
}
