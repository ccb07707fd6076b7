//! Anchors beside a log: written, refused, and not gone on without.

use super::*;

fn with_anchor(path: &Path) -> LogOptions {
    LogOptions { anchor: Some(path.to_owned()), wait_ms_max: 10, ..LogOptions::default() }
}

/// A log of `n` more records that keeps its anchor in a file.
fn anchored(store: &Arc<dyn Store>, path: &Path, n: u64) -> Result<Anchor, SonaError> {
    let log = WitnessLog::start(store.clone(), with_anchor(path))?;
    for request in 0..n {
        assert!(log.record("one", Event::Served(Box::new(served(request)))));
    }
    log.flush()
}

#[track_caller]
fn wait_until(log: &WitnessLog, is_so: impl Fn(&LogStats) -> bool) {
    let start = Instant::now();
    while !is_so(&log.stats()) {
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", log.stats());
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_place_where_no_anchor_can_be_written_is_refused_at_the_start() {
    let (folder, store) = store();
    std::fs::write(folder.path().join("file"), "").expect("writable");
    for (path, why) in [("nowhere/anchor", "cannot be written"), ("file/anchor", "cannot be"), ("", "cannot be read")] {
        let path = folder.path().join(path);
        let error = WitnessLog::start(store.clone(), with_anchor(&path)).err().expect("it cannot be written");
        let line = error.to_string();
        assert!(error.kind() == SonaErrorKind::Io && line.contains(why), "{line}");
        assert!(line.starts_with(&path.display().to_string()) && line.contains("give another file"), "{line}");
    }
    assert_eq!(verify(store.as_ref(), None).expect("readable").n_records, 0);
}

/// What was appended is never appended again, however often its anchor fails; told once, and made good.
#[test]
fn an_anchor_that_fails_puts_nothing_on_record_twice() {
    for syncs_each_batch in [true, false] {
        let (folder, store) = store();
        let elsewhere = folder.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).expect("writable");
        let path = elsewhere.join("anchor");
        let (say, said) = std::sync::mpsc::channel();
        let tell = move |error: &SonaError| drop(say.send(error.to_string()));
        let options = LogOptions { syncs_each_batch, ..with_anchor(&path) };
        let log = WitnessLog::start_telling(store.clone(), options, tell).expect("a log");
        std::fs::remove_dir_all(&elsewhere).expect("writable");
        for request in 0..3 {
            log.record("t", Event::Served(Box::new(served(request))));
        }
        let line = log.flush().expect_err("it has no anchor").to_string();
        assert!(line.contains("the anchor cannot be written"), "{line}");
        wait_until(&log, |stats| stats.n_failed_batches > 4);
        let stats = log.stats();
        assert_eq!((stats.n_written, stats.n_queued, stats.last_error.as_ref()), (3, 0, Some(&line)));
        assert_eq!(said.try_iter().collect::<Vec<_>>(), [line], "the same is told once");
        assert_eq!(verify(store.as_ref(), None).expect("readable").n_records, 3);

        // Without another record or anybody who asks, too.
        std::fs::create_dir(&elsewhere).expect("writable");
        let start = Instant::now();
        while !path.is_file() {
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", log.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(Anchor::load(&path).expect("an anchor"), Some(log.flush().expect("writable")));
        assert_eq!(verify(store.as_ref(), None).expect("readable").n_records, 3);
    }
}

/// What proves that a log was touched is not written over: neither by a log that was cut off nor by another.
#[test]
fn a_log_that_does_not_fit_its_anchor_is_not_gone_on_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let [log, older, path, new] = ["log.redb", "older.redb", "anchor", "new"].map(|name| folder.path().join(name));
    let store = |path: &Path| open(path, &OpenOptions::default()).expect("a store");
    anchored(&store(&log), &path, 10).expect("a file that is not there yet fits");
    std::fs::copy(&log, &older).expect("writable");
    let anchor = anchored(&store(&log), &path, 10).expect("its own");
    assert_eq!(anchor.n_links, 20);
    let other = folder.path().join("other.redb");
    written(&store(&other), 30);
    let short = folder.path().join("short.redb");
    // Its last record is the anchor's, by number.
    written(&store(&short), 20);
    for (log, part) in [
        (&older, "is shorter than what this anchor vouches for: 10 of 20 records"),
        (&folder.path().join("empty.redb"), "0 of 20 records"),
        (&other, "differs from what this anchor vouches for: record 19 is another"),
        (&short, "record 19 is another"),
    ] {
        let store = store(log);
        let error = anchored(&store, &path, 1).expect_err("it was touched");
        let line = error.to_string();
        assert!(error.kind() == SonaErrorKind::Invalid && line.contains(part), "{line}");
        let look = format!("'ruvllm witness verify DIR --anchor {}', and give another anchor file", path.display());
        assert!(line.contains(&look), "{line}");
        assert_eq!(Anchor::load(&path).expect("it is left alone"), Some(anchor));
        assert!(!verify(store.as_ref(), Some(&anchor)).expect("readable").faults.is_empty(), "the same comparison");
        anchored(&store, &new, 1).expect("another file");
        std::fs::remove_file(&new).expect("it was written");
    }
    // The last link alone, taken from the log itself.
    let store = store(&log);
    let mut change = store.begin(Durability::Durable).expect("a transaction");
    assert!(change.remove(LINKS, b"", &19u64.to_be_bytes()).expect("writable"));
    change.commit().expect("a commit");
    assert!(anchored(&store, &path, 1).expect_err("it was touched").to_string().contains("19 of 20 records"));

    for text in ["", "my notes\n", "\u{fffd}", "20:00"] {
        std::fs::write(&new, text).expect("writable");
        let line = anchored(&store, &new, 1).expect_err("it is no anchor").to_string();
        assert!(line.contains("this is no anchor and is not written over"), "{text:?}: {line}");
        assert_eq!(std::fs::read_to_string(&new).expect("it is left alone"), text);
    }
}

/// Contents go, links stay: what was erased in order fits each anchor that was saved before it and after.
#[test]
fn a_log_fits_its_anchors_after_it_was_erased() {
    let folder = tempfile::tempdir().expect("a folder");
    let [before, path] = ["before", "anchor"].map(|name| folder.path().join(name));
    let (_folder, store) = store();
    for path in [&before, &path] {
        anchored(&store, path, 20).expect("writable");
    }
    let log = WitnessLog::start(store.clone(), with_anchor(&path)).expect("its own");
    assert_eq!(log.erase_tenant("one").expect("writable"), 40);
    drop(log);
    anchored(&store, &path, 10).expect("after an erasure");
    let log = WitnessLog::start(store.clone(), with_anchor(&path)).expect("its own");
    let rules = Retention { n_records_max: Some(3), ..Retention::default() };
    assert_eq!(log.retain(&rules).expect("writable").n_records, 7);
    drop(log);
    for path in [&path, &before] {
        let anchor = anchored(&store, path, 1).expect("after an expiry");
        assert!(verify(store.as_ref(), Some(&anchor)).expect("readable").faults.is_empty());
    }
}
