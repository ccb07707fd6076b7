//! A disk that fails at each write of a history: the same history goes on when the disk does, and says what its log says.

use super::adopted::{Deep, judgement};
use super::*;
use crate::deep::DeepState;
use crate::failing;

fn check(code: i32) -> u64 {
    let mut n = 0;
    loop {
        let folder = tempfile::tempdir().expect("a folder");
        let (faults, store) = failing::open(folder.path());
        let mut place = Place { toy: Toy::new(), _folder: folder, store };
        let mut history = place.open("a");
        let before = faults.n_done();
        faults.after(n, code);
        let mut told = Vec::new();
        for i in 0..3 {
            told.extend(history.discard(&format!("no {i}"), &[]).ok());
            let options = LearnOptions { temperature: 0.05 + 0.01 * i as f32, ..*history.learned().options() };
            told.extend(history.configure(options).ok());
        }
        let has_failed = faults.n_done() - before > n;
        faults.clear();
        told.push(history.discard("the disk works again", &[]).expect("the same history goes on"));
        Request::new(1).end(&place.toy, &mut history).expect("learned");
        told.push(history.next_item - 1);
        let found: Vec<u64> = look(place.store.as_ref(), "a", usize::MAX)
            .expect("a store")
            .expect("a tenant")
            .items
            .iter()
            .rev()
            .map(|(id, ..)| *id)
            .collect();
        assert_eq!(found, told, "call {n}: what was told as taken in, and nothing else");
        let setup = Setup { options: *history.learned().options(), ..history.setup.clone() };
        let again = History::open(Arc::clone(&place.store), "a", setup, &mut place.toy).expect("a history");
        assert!(again.state() == history.state(), "call {n}: opened again");
        if !has_failed {
            return n;
        }
        n += 1;
    }
}

/// Undoes, publishes, adopts and goes back while the disk fails from call `n` on.
fn check_changes(code: i32) -> u64 {
    for n in 0.. {
        let folder = tempfile::tempdir().expect("a folder");
        let (faults, store) = failing::open(folder.path());
        let mut place = Place { toy: Toy::new(), _folder: folder, store };
        let mut history = place.open("a");
        let deep = |x: f32| DeepState::new(&mut Deep(x), &crate::deep::DeepOptions::default()).expect("options");
        let items: Vec<u64> =
            (1..4).map(|seed| Request::new(seed).end(&place.toy, &mut history).expect("learned")).collect();
        let first = history.adopt(&deep(1.0), &items[..1], &judgement(true), &mut place.toy).expect("a store");
        let before = faults.n_done();
        faults.after(n, code);
        let undone = history.undo(items[1], &mut place.toy);
        let adopted = history.adopt(&deep(2.0), &items[2..], &judgement(true), &mut place.toy);
        let published = history.publish("again", &[]);
        let gone_back = history.rollback(first, &mut place.toy);
        let has_failed = faults.n_done() - before > n;
        faults.clear();

        history.discard("the disk works again", &[]).expect("the same history goes on");
        let what = format!("call {n}, error {code}");
        assert_eq!(history.is_in_effect(items[1]).expect("a store"), undone.is_err(), "{what}: what was told");
        let numbers: Vec<u64> = history.generations().iter().map(|generation| generation.number).collect();
        for told in [adopted, published].into_iter().flatten() {
            assert!(numbers.contains(&told), "{what}: generation {told} was told");
        }
        assert!(gone_back.is_err() || history.generation() == first, "{what}");
        let served = history.adopted().expect("a store").map(|deep| deep.snapshot());
        assert!(place.toy.adopted == served, "{what}: the model serves what the history says");

        let kept = look(place.store.as_ref(), "a", usize::MAX).expect("a store").expect("a tenant");
        assert_eq!(kept.generations, history.generations(), "{what}: generations on the disk");
        assert_eq!(kept.items, history.items(u64::MAX, usize::MAX).expect("a store"), "{what}");
        let setup = Setup { options: *history.learned().options(), ..history.setup.clone() };
        let again = History::open(Arc::clone(&place.store), "a", setup, &mut place.toy).expect("a history");
        assert!(again.state() == history.state() && again.next_item == history.next_item, "{what}: opened again");
        if !has_failed {
            assert!(undone.is_ok() && gone_back.is_ok(), "{what}: nothing failed");
            return n;
        }
    }
    unreachable!("a run ends")
}

#[test]
fn undone_and_adopted_are_what_was_told() {
    let n_runs = check_changes(28) + check_changes(5);
    assert!(n_runs >= 30, "{n_runs} runs");
}

#[test]
fn a_history_goes_on_when_the_disk_does() {
    let n_runs = check(28) + check(5);
    assert!(n_runs >= 20, "{n_runs} runs");
}
