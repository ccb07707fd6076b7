//! The cache folder as a caller sees it: the same answers as without it, whatever happens to the process or the files.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ruvllm_engine::{
    Engine, EngineError, ErrorKind, GenerateRequest, KvPolicy, LoadOptions, SamplingParams, Session, Timings,
};
use ruvllm_testkit::{Golden, real_model};
use serde_json::json;

const CHILD: &str = "RUVLLM_TEST_PERSIST_CHILD";

fn tiny() -> PathBuf {
    Golden::load("llama-a").model("f32")
}

fn options(folder: &Path) -> LoadOptions {
    LoadOptions { n_threads: 1, n_ctx: Some(256), cache_dir: Some(folder.to_owned()), ..LoadOptions::default() }
}

fn load(path: &Path, options: &LoadOptions) -> Result<Engine, EngineError> {
    Engine::load(path, options, &mut |_| {})
}

fn open(path: &Path, folder: &Path) -> Engine {
    load(path, &options(folder)).expect("the folder can be used")
}

/// Returns an engine without any cache.
fn cacheless(path: &Path) -> Engine {
    load(path, &LoadOptions { prefix_cache: false, cache_dir: None, ..options(path) }).expect("it loads")
}

/// Returns the answer's tokens and its timings.
fn answer(engine: &mut Engine, prompt: &[u32], tenant: u64) -> (Vec<u32>, Timings) {
    let sampling = SamplingParams::greedy();
    let prompt = prompt.to_vec();
    let request =
        GenerateRequest { prompt, max_tokens: Some(4), ignore_eos: true, sampling, tenant, ..Default::default() };
    let summary = engine.generate(&request).expect("a valid request").for_each_token(|_| {}).expect("it runs");
    (summary.tokens, summary.timings)
}

/// Returns tokens of document `i`, which shares its first half with others.
fn document(i: u64, len: usize) -> Vec<u32> {
    let word = |at: usize| (at as u64 * 7919 + if at < len / 2 { i % 3 } else { i } * 101) % 500;
    (0..len).map(|at| word(at) as u32).collect()
}

#[test]
fn prefixes_come_back_after_a_restart() {
    let (folder, path, prompt) = (tempfile::tempdir().expect("a folder"), tiny(), document(1, 150));
    let expected = answer(&mut cacheless(&path), &prompt, 0).0;
    let (first, timings) = answer(&mut open(&path, folder.path()), &prompt, 0);
    assert_eq!((&first, timings.cached_tokens, timings.disk_tokens), (&expected, 0, 0));
    let mut again = open(&path, folder.path());
    let (second, timings) = answer(&mut again, &prompt, 0);
    assert_eq!((&second, timings.cached_tokens, timings.disk_tokens), (&expected, 144, 144));
    assert_eq!(again.cache_stats().expect("a cache").tokens_from_disk, 144);
    let disk = again.disk_stats().expect("a folder");
    assert_eq!((disk.n_blocks, disk.n_read, disk.n_written), (9, 9, 0));
    // In memory by now, and to the token.
    let (third, timings) = answer(&mut again, &prompt, 0);
    assert_eq!((&third, timings.cached_tokens, timings.disk_tokens), (&expected, 149, 0));
    // Another tenant finds nothing, and writes its own.
    assert_eq!(answer(&mut again, &prompt, 7).1.cached_tokens, 0);
    again.flush_cache().expect("it is written");
    assert_eq!(again.disk_stats().expect("a folder").n_blocks, 18);
    drop(again);
    let mut again = open(&path, folder.path());
    assert_eq!(again.restore_prefix(&prompt, 7), 144);
    let (tokens, timings) = answer(&mut again, &prompt, 7);
    assert_eq!((tokens, timings.cached_tokens, timings.disk_tokens), (expected, 144, 0));
}

#[test]
fn another_setting_or_file_finds_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, prompt) = (folder.path().join("model.gguf"), document(1, 100));
    fs::copy(tiny(), &path).expect("a golden file");
    answer(&mut open(&path, folder.path()), &prompt, 0);
    let f32 = LoadOptions { kv: KvPolicy::F32, ..options(folder.path()) };
    let mut exact = load(&path, &f32).expect("it loads");
    assert_eq!(answer(&mut exact, &prompt, 0).1.cached_tokens, 0);
    drop(exact);
    assert_eq!(answer(&mut open(&path, folder.path()), &prompt, 0).1.disk_tokens, 96);
    // The last weight of the file, far from what identifies a model in memory.
    let mut bytes = fs::read(&path).expect("the file");
    *bytes.last_mut().expect("a byte") ^= 0x10;
    fs::write(&path, bytes).expect("the file can be written");
    let mut tuned = open(&path, folder.path());
    let (tokens, timings) = answer(&mut tuned, &prompt, 0);
    assert_eq!((tokens, timings.cached_tokens), (answer(&mut cacheless(&path), &prompt, 0).0, 0));
}

#[test]
fn damaged_blocks_are_computed() {
    let (folder, path, prompt) = (tempfile::tempdir().expect("a folder"), tiny(), document(1, 150));
    let expected = answer(&mut open(&path, folder.path()), &prompt, 0).0;
    let segment = |folder: &Path| {
        let files = fs::read_dir(folder).expect("a folder").flat_map(|entry| fs::read_dir(entry.ok()?.path()).ok());
        let mut files = files.flatten().map(|entry| entry.expect("a file").path());
        files.find(|path| path.extension().is_some_and(|ending| ending == "seg")).expect("a segment")
    };
    let file = segment(folder.path());
    let whole = fs::read(&file).expect("a segment");
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut n_computed = 0;
    for _ in 0..40 {
        let mut bytes = whole.clone();
        let bit = rng.next_u32() as usize % (8 * bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&file, bytes).expect("the segment can be written");
        let mut engine = open(&path, folder.path());
        let (tokens, timings) = answer(&mut engine, &prompt, 0);
        assert_eq!(tokens, expected, "bit {bit}");
        n_computed += u32::from(timings.disk_tokens < 144);
        drop(engine);
        // What was damaged has been written anew.
        assert_eq!(answer(&mut open(&path, folder.path()), &prompt, 0).1.disk_tokens, 144, "bit {bit}");
        fs::remove_file(segment(folder.path())).expect("a segment");
        for entry in fs::read_dir(file.parent().expect("a folder")).expect("a folder").flatten() {
            if entry.path().extension().is_some_and(|ending| ending == "seg") {
                fs::remove_file(entry.path()).expect("a segment");
            }
        }
    }
    assert!(n_computed > 30, "{n_computed} of 40 flips hit a block");
}

#[test]
fn a_folder_in_use_or_unusable_is_refused() {
    let (folder, path) = (tempfile::tempdir().expect("a folder"), tiny());
    let first = open(&path, folder.path());
    let error = load(&path, &options(folder.path())).err().expect("it is in use");
    assert_eq!(error.kind(), ErrorKind::Cache);
    let line = error.to_string();
    assert!(line.contains(&format!("is in use by process {}", std::process::id())), "{line}");
    // Another model's part of the folder is its own.
    open(&Golden::load("gpt2-a").model("f32"), folder.path());
    drop(first);
    open(&path, folder.path());
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    let error = load(&path, &options(&file)).err().expect("it is a file");
    assert_eq!(error.kind(), ErrorKind::Cache);
    let error = load(&path, &LoadOptions { cache_bytes: Some(1), ..options(folder.path()) }).err().expect("too small");
    assert!(error.to_string().contains("too small"), "{error}");
}

#[test]
fn sessions_go_on_in_another_process() {
    let (folder, path) = (tempfile::tempdir().expect("a folder"), tiny());
    let messages = vec![json!({ "role": "user", "content": "hi" })];
    let session = Session { tokens: document(2, 90), messages, seed: Some(9) };
    let mut engine = open(&path, folder.path());
    let rest = answer(&mut engine, &session.tokens, 0).0;
    engine.save_session("talk", &session).expect("it is written");
    drop(engine);

    let mut engine = open(&path, folder.path());
    assert_eq!(engine.load_session("talk").expect("it is there"), Some(session.clone()));
    assert_eq!(engine.load_session("other").expect("none is"), None);
    assert_eq!(engine.restore_prefix(&session.tokens, 0), 80);
    assert_eq!(answer(&mut engine, &session.tokens, 0).0, rest);
    engine.fork_session("talk", "talk 2").expect("a new name");
    let longer = Session { tokens: [&session.tokens[..], &rest].concat(), ..session.clone() };
    engine.save_session("talk 2", &longer).expect("it is written");
    let lens = |engine: &Engine| -> Vec<(String, usize)> {
        let sessions = engine.sessions().expect("a folder").into_iter();
        sessions.map(|session| (session.name, session.n_tokens)).collect()
    };
    assert_eq!(lens(&engine), [("talk".to_owned(), 90), ("talk 2".to_owned(), 94)]);
    // Two sessions of one beginning, and its blocks once.
    assert_eq!(engine.disk_stats().expect("a folder").n_blocks, 5);
    for (from, to, piece) in [("no", "new", "no session 'no'"), ("talk", "talk 2", "already"), ("talk", "", "1 to 200")]
    {
        let error = engine.fork_session(from, to).expect_err(piece);
        assert!(error.kind() == ErrorKind::Cache && error.to_string().contains(piece), "{error}");
    }
    assert_eq!(engine.expire_sessions(Duration::from_secs(60)).expect("none is so old"), 0);
    assert!(engine.delete_session("talk 2").expect("it is there"));
    drop(engine);

    let other = open(&Golden::load("gpt2-a").model("f32"), folder.path());
    for error in
        [other.load_session("talk").expect_err("not its own"), other.save_session("talk", &session).expect_err("taken")]
    {
        assert!(error.to_string().starts_with("session 'talk' is of another model"), "{error}");
    }
    drop(other);
    let engine = open(&path, folder.path());
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(engine.expire_sessions(Duration::ZERO).expect("all are older"), 1);
    assert_eq!(lens(&engine), []);
    let error = cacheless(&path).load_session("talk").expect_err("no folder");
    assert_eq!(error.kind(), ErrorKind::Cache);
}

/// The child of [`killed_processes_leave_a_cache_that_serves_nothing_wrong`]: answers and saves until it is killed.
fn work(folder: &str, bytes: &str, seed: u64) -> ! {
    let cache_bytes = Some(bytes.parse().expect("a number"));
    let mut engine =
        load(&tiny(), &LoadOptions { cache_bytes, ..options(Path::new(folder)) }).expect("nobody else uses it");
    let mut out = std::io::stdout();
    writeln!(out, "\n@open").and_then(|()| out.flush()).expect("the parent listens");
    for i in seed.. {
        let prompt = document(i, 30 + (i as usize * 37) % 180);
        let (rest, _) = answer(&mut engine, &prompt, 0);
        let session = Session { tokens: [prompt, rest].concat(), ..Session::default() };
        engine.save_session(&format!("s{}", i % 5), &session).expect("it is written");
    }
    unreachable!("there is always more to do")
}

/// Starts a child on the folder and kills it at a random point, sometimes while it starts.
fn kill_one(folder: &Path, bytes: u64, seed: u64, rng: &mut ChaCha8Rng) {
    let words = format!("{}:{bytes}:{seed}", folder.display());
    let test = "persist::killed_processes_leave_a_cache_that_serves_nothing_wrong";
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "--nocapture", "--test-threads=1", test])
        .env(CHILD, words)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut said = String::new();
    let wait_us = match seed % 8 {
        0 => rng.next_u32() % 30_000,
        _ => {
            while !said.contains("@open") {
                assert!(out.read_line(&mut said).expect("text") > 0, "the child ended: {said}");
            }
            rng.next_u32() % 40_000
        }
    };
    std::thread::sleep(Duration::from_micros(u64::from(wait_us)));
    child.kill().and_then(|()| child.wait()).expect("it is killed");
    out.read_to_string(&mut said).expect("text");
}

/// Issue "The KV cache", 3: after kill -9 at any point of writing, the folder opens and every answer is the one that is
/// computed without it. The second folder is so small that it gives up old blocks all the time.
#[test]
fn killed_processes_leave_a_cache_that_serves_nothing_wrong() {
    if let Ok(words) = std::env::var(CHILD) {
        let words: Vec<&str> = words.split(':').collect();
        work(words[0], words[1], words[2].parse().expect("a number"));
    }
    let (mut rng, mut reference, mut known) = (ChaCha8Rng::seed_from_u64(3), cacheless(&tiny()), HashMap::new());
    let (mut n_from_disk, mut n_sessions) = (0, 0);
    for bytes in [1 << 30, 512 << 10] {
        let folder = tempfile::tempdir().expect("a folder");
        for round in 0..55 {
            let seed = round * 3;
            kill_one(folder.path(), bytes, seed, &mut rng);
            let options = LoadOptions { cache_bytes: Some(bytes), ..options(folder.path()) };
            let mut engine = load(&tiny(), &options).expect("what a killed process leaves can be opened");
            // What this child wrote, and something older.
            for i in [seed, seed + 1, seed + 2, u64::from(rng.next_u32()) % (seed + 1)] {
                let prompt = document(i, 30 + (i as usize * 37) % 180);
                let expected = known.entry(i).or_insert_with(|| answer(&mut reference, &prompt, 0).0);
                let (tokens, timings) = answer(&mut engine, &prompt, 0);
                assert_eq!(tokens, *expected, "round {round}, document {i}, {timings:?}");
                n_from_disk += timings.disk_tokens;
            }
            for info in engine.sessions().expect("a folder") {
                let session = engine.load_session(&info.name).expect("a session").expect("it is listed");
                let of = |i: u64| document(i, 30 + (i as usize * 37) % 180);
                let is_one = (0..seed + 400)
                    .any(|i| session.tokens.starts_with(&of(i)) && session.tokens.len() == of(i).len() + 4);
                assert!(is_one, "session {}", info.name);
                n_sessions += 1;
            }
            let disk = engine.disk_stats().expect("a folder");
            assert!(disk.bytes <= bytes, "{disk:?}");
        }
    }
    assert!(n_from_disk > 5_000 && n_sessions > 300, "{n_from_disk} tokens from disk, {n_sessions} sessions");
}

#[test]
fn a_real_model_goes_on_after_a_restart() {
    let (folder, path) = (tempfile::tempdir().expect("a folder"), real_model("smollm2:135m"));
    let options = LoadOptions { n_ctx: Some(512), n_threads: 2, ..options(folder.path()) };
    let mut engine = load(&path, &options).expect("it loads");
    let text = "The river rises in the hills and runs through three old towns. ".repeat(20);
    let prompt = engine.encode_prompt(&text, true).expect("plain text encodes");
    let (expected, cold) = answer(&mut engine, &prompt, 0);
    drop(engine);
    let mut engine = load(&path, &options).expect("it loads");
    let (tokens, warm) = answer(&mut engine, &prompt, 0);
    assert_eq!(tokens, expected);
    assert_eq!((cold.disk_tokens, warm.disk_tokens), (0, (prompt.len() - 1) / 16 * 16));
}
