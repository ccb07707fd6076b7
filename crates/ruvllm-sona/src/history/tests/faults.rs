//! A disk that fails at each write of a history: the same history goes on when the disk does, and says what its log says.

use super::*;
use crate::store::faults::Faults;

fn check(code: i32) -> u64 {
    let mut n = 0;
    loop {
        let folder = tempfile::tempdir().expect("a folder");
        let faults = Faults::watch(folder.path());
        let store = store::open(&folder.path().join("sona.redb"), &OpenOptions::default()).expect("a store");
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

#[test]
fn a_history_goes_on_when_the_disk_does() {
    let n_runs = check(28) + check(5);
    assert!(n_runs >= 20, "{n_runs} runs");
}
