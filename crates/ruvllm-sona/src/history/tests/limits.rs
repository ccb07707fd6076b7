//! What is let go when there is too much, and what a full disk leaves.

use super::*;
use crate::store::Limits;

const THREE: HistoryLimits = HistoryLimits { n_generations_max: 3, items_bytes_max: 1 << 20 };

fn numbers(history: &History) -> Vec<u64> {
    history.generations().iter().map(|generation| generation.number).collect()
}

/// Teaches something and publishes it; returns the item.
fn teach(place: &Place, history: &mut History, seed: u32) -> u64 {
    let item = Request::new(seed).end(&place.toy, history).expect("learned");
    history.publish("one more", &[]).expect("a store");
    item
}

#[test]
fn what_it_goes_back_to_is_not_let_go() {
    let mut place = Place::new();
    let mut history = place.open_with("a", THREE);
    teach(&place, &mut history, 0);
    let first = history.state();
    teach(&place, &mut history, 1);
    teach(&place, &mut history, 2);
    Request::new(3).end(&place.toy, &mut history).expect("learned");
    let last = history.state();
    // What came since is a generation first, one more than may be.
    history.rollback(1, &mut place.toy).expect("it is kept");
    assert!(history.state() == first && place.open_with("a", THREE).state() == first);
    assert_eq!(numbers(&history), [1, 2, 3, 4]);
    history.rollback(4, &mut place.toy).expect("it is kept");
    assert!(history.state() == last);
}

#[test]
fn generations_without_a_state_of_their_own_are_not_let_go_all_at_once() {
    let mut place = Place::new();
    let mut history = place.open_with("a", THREE);
    let items: Vec<u64> = (0..3).map(|seed| teach(&place, &mut history, seed)).collect();
    history.undo(items[0], &mut place.toy).expect("an item");
    teach(&place, &mut history, 3);
    assert_eq!(numbers(&history), [1, 2, 3, 4]);
    history.at(2, &mut place.toy).expect("it is made anew");
    for seed in 4..12 {
        teach(&place, &mut history, seed);
        assert!((2..=6).contains(&history.generations().len()), "{:?}", numbers(&history));
        let before = numbers(&history)[history.generations().len() - 2];
        history.at(before, &mut place.toy).expect("it is kept");
    }
    assert!(place.open_with("a", THREE).state() == history.state());
}

#[test]
fn a_bad_answer_written_with_what_was_undone_teaches_nothing() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let item = Request::new(1).end(&place.toy, &mut history).expect("learned");
    let mut answer = Request::new(2);
    answer.go_on(&place.toy, history.learned(), 30);
    history.undo(item, &mut place.toy).expect("an item");
    assert_eq!(history.reject(&Names::of("What is Zorbia?"), &answer.trace).expect("a store"), None);
    assert!(history.learned().corrections().is_empty());
}

#[test]
fn what_finds_no_room_is_not_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = Limits { store_bytes_max: 4000, ..Limits::default() };
    let options = OpenOptions { limits, ..OpenOptions::default() };
    let store = store::open(&folder.path().join("sona.redb"), &options).expect("a store");
    let mut place = Place { toy: Toy::new(), _folder: folder, store };
    let mut history = place.open("a");
    let mut seed = 0;
    let (known, error) = loop {
        let mut request = Request::new(seed);
        request.go_on(&place.toy, history.learned(), usize::MAX / 2);
        let known = history.state();
        match history.ingest(request.trace, request.span, 0.9) {
            Ok(_) => seed += 1,
            Err(error) => break (known, error),
        }
    };
    assert!(seed > 3 && error.kind() == SonaErrorKind::Limit, "{seed} items, then {error}");
    assert!(history.state() == known && place.open("a").state() == known);
    // Nothing was written, so it goes on: with what needs less room, in vain with the same.
    assert_eq!(history.rehearse(0).map_err(|error| error.kind()), place.open("a").rehearse(0).map_err(|e| e.kind()));
    assert!(history.state() == known);
}
