//! Generations: gone back to, let go, kept beside the log, replaced.

use super::*;

#[test]
fn rolled_back_is_what_it_was_and_nothing_is_lost() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let empty = history.state();
    Request::new(1).end(&place.toy, &mut history).expect("learned");
    let first = history.publish("first", &[("target".into(), -0.1)]).expect("a store");
    let known = history.state();
    let mut begun = Request::new(3);
    begun.go_on(&place.toy, history.learned(), 10);
    Request::new(2).end(&place.toy, &mut history).expect("learned");
    let later = history.state();
    begun.go_on(&place.toy, history.learned(), 5);
    history.rollback(first, &mut place.toy).expect("kept");
    assert!(history.state() == known && history.generation() == first);
    assert_eq!(begun.end(&place.toy, &mut history), None, "it read what was rolled back");
    assert!(history.state() == known);
    // What was left is a generation too.
    assert_eq!(history.generations().iter().map(|g| (g.number, g.parent)).collect::<Vec<_>>(), [(1, 0), (2, 1)]);
    history.rollback(2, &mut place.toy).expect("kept");
    assert!(history.state() == later);
    history.rollback(0, &mut place.toy).expect("nothing was let go");
    assert!(history.state() == empty);
    assert!(history.rollback(9, &mut place.toy).expect_err("not there").to_string().contains("choose of: 0, 1, 2"));
    Request::new(5).end(&place.toy, &mut history).expect("learned");
    assert_eq!(history.publish("on its own", &[]).expect("a store"), 3);
    assert_eq!(history.generations()[2].parent, 0);
}

#[test]
fn a_request_that_read_what_was_undone_is_not_ingested() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let mut before = Request::new(3);
    before.go_on(&place.toy, history.learned(), 10);
    let item = Request::new(1).end(&place.toy, &mut history).expect("learned");
    let mut behind = Request::new(4);
    behind.go_on(&place.toy, history.learned(), 10);
    history.undo(item, &mut place.toy).expect("an item");
    let undone = history.state();
    assert_eq!(behind.end(&place.toy, &mut history), None);
    assert!(history.state() == undone);
    assert!(before.end(&place.toy, &mut history).is_some(), "it read only what was there without the item");
    let line = history.undo(item, &mut place.toy).expect_err("twice").to_string();
    assert_eq!(line, "item 1 taught nothing that is left");
    assert_eq!(history.undo(99, &mut place.toy).expect_err("none").to_string(), "there is no item 99");
}

#[test]
fn what_was_let_go_is_refused_and_the_rest_stays() {
    let mut place = Place::new();
    let limits = HistoryLimits { n_generations_max: 3, items_bytes_max: 1 << 20 };
    let mut history = place.open_with("a", limits);
    let mut items = Vec::new();
    for seed in 0..8 {
        items.push(Request::new(seed).end(&place.toy, &mut history).expect("learned"));
        if seed == 5 {
            history.discard("the controls rose", &[("control".into(), 0.02)]).expect("a store");
        }
        history.publish("another one", &[]).expect("a store");
        assert!(history.generations().len() <= 3);
    }
    assert_eq!(history.generations().iter().map(|g| g.number).collect::<Vec<_>>(), [6, 7, 8]);
    assert!(history.items(u64::MAX, 100).expect("a store").iter().all(|(id, ..)| *id > items[5]));
    let known = history.state();
    let error = history.undo(items[0], &mut place.toy).expect_err("let go");
    assert_eq!(error.kind(), SonaErrorKind::Limit);
    assert!(error.to_string().contains("cannot be undone"), "{error}");
    assert!(history.rollback(0, &mut place.toy).is_err() && history.rollback(2, &mut place.toy).is_err());
    assert!(history.state() == known && place.open_with("a", limits).state() == known);
    history.undo(items[6], &mut place.toy).expect("kept");
    assert!(history.state() != known);
    // A log of few bytes keeps what came since the last generation.
    let tight = HistoryLimits { n_generations_max: 100, items_bytes_max: 400 };
    let mut history = place.open_with("b", tight);
    for seed in 0..6 {
        Request::new(seed).end(&place.toy, &mut history).expect("learned");
        history.publish("another one", &[]).expect("a store");
    }
    assert!(history.items(u64::MAX, 100).expect("a store").len() <= 3);
}

#[test]
fn what_was_kept_is_not_read_again() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let items = [1, 2].map(|seed| Request::new(seed).end(&place.toy, &mut history).expect("learned"));
    history.keep().expect("a store");
    let known = history.state();
    let setup = place.setup(HistoryLimits::default());
    let closed = &mut Closed(Toy::new());
    let again = History::open(Arc::clone(&place.store), "a", setup.clone(), closed).expect("a history");
    assert!(again.state() == known && again.next_item() == history.next_item());
    // What is undone is not in what was kept.
    history.undo(items[0], &mut place.toy).expect("an item");
    assert!(place.open("a").state() == history.state());
    history.forget().expect("a store");
    assert!(history.state() == place.open("b").state() && history.next_item() > items[1]);
    let item = Request::new(1).end(&place.toy, &mut history).expect("learned");
    assert!(place.open("a").state() == history.state());
    history.undo(item, &mut place.toy).expect("an item");
    assert!(history.state() == place.open("b").state());
}

#[test]
fn what_was_learned_elsewhere_takes_the_place_of_all() {
    let mut place = Place::new();
    let (mut one, mut two) = (place.open("one"), place.open("two"));
    let item = Request::new(1).end(&place.toy, &mut one).expect("learned");
    Request::new(2).end(&place.toy, &mut two).expect("learned");
    assert_eq!(one.replace(two.learned().clone(), "from two").expect("of the same model"), 1);
    assert!(one.state() == two.state() && place.open("one").state() == two.state());
    assert!(one.undo(item, &mut place.toy).is_err() && one.rollback(0, &mut place.toy).is_err());
    let item = Request::new(3).end(&place.toy, &mut one).expect("learned");
    one.undo(item, &mut place.toy).expect("an item");
    assert!(one.state() == two.state());
    // The same in a signed file.
    let key = crate::SigningKey::from_seed([7; 32]);
    let file = two.export(&key).expect("a file");
    let mut three = place.open("three");
    assert!(three.import(&file, &[]).expect_err("nobody is trusted").to_string().contains("not trusted"));
    let mut changed = file.clone();
    changed[60] ^= 1;
    let error = three.import(&changed, &[key.public()]).expect_err("it was changed");
    assert_eq!(error.kind(), SonaErrorKind::Key);
    assert_eq!(three.import(&file, &[key.public()]).expect("a file"), (1, key.public()));
    assert!(three.state() == two.state());
    let other = LearnOptions { datastore: None, ..*one.learned().options() };
    let other = Learned::new(Arc::clone(&place.toy.calibration), other, Isa::best()).expect("options");
    assert!(one.replace(other, "from nowhere").is_err() && one.state() == two.state());
}

#[test]
fn what_was_learned_without_a_basis_and_with_rank_2_goes_on() {
    let mut place = Place::new();
    let mut setup = place.setup(HistoryLimits::default());
    let bytes = setup.calibration.snapshot();
    setup.calibration = Arc::new(crate::Calibration::restore(&bytes).expect("a calibration"));
    setup.options.micro.as_mut().expect("a MicroLoRA").rank = 2;
    let mut before = History::open(Arc::clone(&place.store), "a", setup, &mut place.toy).expect("a history");
    Request::new(1).end(&place.toy, &mut before).expect("learned");
    let datastore = before.learned().datastore().clone();
    drop(before);
    let mut history = place.open("a");
    assert_eq!(history.learned().datastore(), &datastore);
    assert_eq!(history.learned().micro().map(|micro| (micro.rank(), micro.n_updates())), Some((4, 0)));
    Request::new(2).end(&place.toy, &mut history).expect("learned");
    let state = history.state();
    drop(history);
    assert!(place.open("a").state() == state);
}

/// A model that reads nothing again.
struct Closed(Toy);

impl Reading for Closed {
    fn read(&mut self, _: &Span, _: Range<usize>, _: Option<&MicroLora>, _: &mut Each<'_>) -> Result<(), SonaError> {
        panic!("nothing is to be read again")
    }

    fn adopt(&mut self, deep: Option<&[u8]>) -> Result<(), SonaError> {
        self.0.adopt(deep)
    }

    fn head(&self) -> &dyn HeadRows {
        &self.0
    }
}
