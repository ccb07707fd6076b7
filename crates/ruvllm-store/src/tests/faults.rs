//! A disk that fails at each of its writes: what was acknowledged stays, and the store goes on when the disk does.

use std::cell::Cell;

use super::*;
use ruvllm_testkit::Faults;

const ENOSPC: i32 = 28;
const EIO: i32 = 5;

/// Opens on a disk that fails.
fn on<'a>(guard: &'a Guard, key: Option<&'a MasterKey>) -> OpenOptions<'a> {
    OpenOptions { guard: Some(guard), ..with(key) }
}

/// Writes records until one fails; returns how many stand.
fn write(store: &dyn Store, from: u8) -> Result<u8, u8> {
    for n in from..from + 6 {
        let put = || {
            let mut change = store.begin(Durability::Durable)?;
            change.put(A, b"who", &[n], &[n; 3000])?;
            change.commit()
        };
        if put().is_err() {
            return Err(n);
        }
    }
    Ok(from + 6)
}

fn check(sealed: bool, code: i32) -> u64 {
    let master = key(7);
    let n_calls = {
        let (folder, path) = file();
        let faults = Faults::watch(folder.path());
        let guard = faults.guard();
        let store = open(&path, &on(&guard, sealed.then_some(&master))).expect("a store");
        let before = faults.n_done();
        write(store.as_ref(), 0).expect("a disk that works");
        faults.n_done() - before
    };
    for n in 0..n_calls {
        let (folder, path) = file();
        let faults = Faults::watch(folder.path());
        let guard = faults.guard();
        let store = open(&path, &on(&guard, sealed.then_some(&master))).expect("a store");
        faults.after(n, code);
        let n_stand = write(store.as_ref(), 0).unwrap_or_else(|n| n);
        // As long as it lasts nothing is written, and nothing is said to be.
        if n_stand < 6 {
            assert_eq!(write(store.as_ref(), n_stand), Err(n_stand), "call {n}");
        }
        faults.clear();
        assert_eq!(write(store.as_ref(), n_stand), Ok(n_stand + 6), "call {n}: the same store goes on");
        let records = all(store.as_ref(), A, Scan::all(b"who"));
        let expected: Vec<_> = (0..n_stand + 6).map(|n| (vec![n], vec![n; 3000])).collect();
        assert_eq!(records, expected, "call {n}");
        drop(store);
        let store = open(&path, &on(&guard, sealed.then_some(&master))).expect("the store again");
        assert_eq!(all(store.as_ref(), A, Scan::all(b"who")), expected, "call {n}: opened again");
    }
    n_calls
}

#[test]
fn store_goes_on_when_the_disk_does() {
    let n_runs = check(false, ENOSPC) + check(false, EIO) + check(true, ENOSPC);
    assert!(n_runs >= 60, "{n_runs} runs");
}

#[test]
fn only_a_file_that_is_not_there_is_new() {
    let (_folder, whole) = file();
    put(open(&whole, &OpenOptions::default()).expect("a store").as_ref(), A, b"who", &[(b"k", b"v")]);
    let whole = std::fs::read(&whole).expect("the store's file");
    let check = |bytes: &[u8], line: &str| {
        let (_folder, path) = file();
        std::fs::write(&path, bytes).expect("a file");
        let (kind, message) = refused(open(&path, &OpenOptions::default()));
        assert_eq!(kind, StoreErrorKind::Invalid, "{message}");
        assert!(message.contains(line), "{message}");
        assert_eq!(std::fs::read(&path).expect("the file"), bytes, "it is left as it is: {message}");
    };
    check(b"", "the store is empty, though it was written before");
    check(b"redb", "the store is damaged: 4 bytes are left of it");
    check(&[0; 5000], "this is no store");
    check(b"something else altogether", "this is no store");
    check(&whole[..100], "the store is damaged");
    check(&whole[..300], "the store is damaged");
}

/// Opens stores of forty records that are damaged in many places where opening does not look, and has each used.
fn with_damaged(work: impl Fn(&dyn Store)) {
    let (_folder, path) = file();
    let store = open(&path, &OpenOptions::default()).expect("a store");
    (0..40).for_each(|n| put(store.as_ref(), A, b"who", &[(&[n], &[n; 500])]));
    drop(store);
    let whole = std::fs::read(&path).expect("the store's file");
    let mut n_opened = 0;
    for (from, step) in (0..64).map(|i| (512 + i * whole.len() / 64, 61 + i)) {
        let mut bytes = whole.clone();
        bytes.iter_mut().skip(from).step_by(step).take(40).for_each(|byte| *byte ^= 0x55);
        std::fs::write(&path, &bytes).expect("a file");
        let Ok(store) = open(&path, &OpenOptions::default()) else { continue };
        n_opened += 1;
        work(store.as_ref());
    }
    assert!(n_opened > 0, "opening finds all damage: nothing was done");
}

#[test]
fn reading_what_is_damaged_is_an_error() {
    with_damaged(|store| {
        let Ok(snapshot) = store.snapshot() else { return };
        // Each is an answer or an error, and no panic.
        let _ = snapshot.get(A, b"who", &[7]);
        let _ = snapshot.scan(A, &Scan::all(b"who"), &mut |_, _| Ok(true));
        let _ = snapshot.scopes(A);
    });
}

#[test]
fn writing_what_is_damaged_is_an_error() {
    let n_refused = Cell::new(0);
    let note = |result: Result<(), StoreError>| n_refused.set(n_refused.get() + usize::from(result.is_err()));
    with_damaged(|store| {
        // Each is done or an error, no panic, and leaves nothing locked for the next.
        let changed = |work: &dyn Fn(&mut dyn Transaction) -> Result<(), StoreError>| {
            let mut change = store.begin(Durability::Durable)?;
            work(change.as_mut())?;
            change.commit()
        };
        note(changed(&|change| change.put(A, b"who", &[7], &[1; 900])));
        note(changed(&|change| (40..80).try_for_each(|n| change.put(A, b"who", &[n], &[n; 500]))));
        note(changed(&|change| (0..40).step_by(3).try_for_each(|n| change.remove(A, b"who", &[n]).map(drop))));
        note(changed(&|change| change.remove_scope(A, b"who").map(drop)));
        note(store.retain(A, &Retention { n_records_max: Some(1), ..Retention::default() }, 0).map(drop));
        note(store.scrub());
        drop(store.begin(Durability::Relaxed));
    });
    assert!(n_refused.get() > 0, "no damage was met");
}

#[test]
fn after_damage_is_met_a_change_cannot_be_made_real() {
    let n_given_up = Cell::new(0);
    with_damaged(|store| {
        let Ok(mut change) = store.begin(Durability::Durable) else { return };
        let mut errors = (0..40).filter_map(|n| change.put(A, b"who", &[n], &[1; 600]).err());
        let damage = errors.find(|error| error.kind() == StoreErrorKind::Invalid);
        if let Some(error) = damage {
            let line = error.to_string();
            assert!(line.contains(".redb: the store is damaged: "), "{line}");
            let line = change.commit().expect_err("half a change").to_string();
            assert!(line.ends_with(".redb: the change was given up, since the store is damaged"), "{line}");
            n_given_up.set(n_given_up.get() + 1);
        }
    });
    assert!(n_given_up.get() > 0, "no damage was met");
}

#[test]
#[should_panic(expected = "the visitor's own")]
fn a_panic_of_a_visitor_is_no_damage() {
    let store = crate::in_memory(Limits::default()).expect("a store");
    put(store.as_ref(), A, b"who", &[(b"k", b"v")]);
    let snapshot = store.snapshot().expect("what is there");
    let _ = snapshot.scan(A, &Scan::all(b"who"), &mut |_, _| panic!("the visitor's own"));
}

#[test]
fn nothing_half_made_has_the_name() {
    let n_calls = {
        let (folder, path) = file();
        let faults = Faults::watch(folder.path());
        let guard = faults.guard();
        drop(EmbeddedStore::open_guarded(&path, Limits::default(), &guard).expect("a store"));
        faults.n_done()
    };
    assert!(n_calls > 0);
    for n in 0..n_calls {
        let (folder, path) = file();
        let faults = Faults::watch(folder.path());
        let guard = faults.guard();
        faults.after(n, ENOSPC);
        let is_made = EmbeddedStore::open_guarded(&path, Limits::default(), &guard).is_ok();
        faults.clear();
        assert_eq!(path.exists(), is_made, "call {n}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), usize::from(is_made), "call {n}");
        put(
            &EmbeddedStore::open_guarded(&path, Limits::default(), &guard).expect("a store"),
            A,
            b"who",
            &[(b"k", b"v")],
        );
    }
}
