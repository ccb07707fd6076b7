//! Histories of a toy model: undo is never having learned, whoever ran beside whom; going back; what is let go; kills.

use proptest::prelude::*;
use ruvllm_kernels::Isa;
use ruvllm_lora::micro::{HeadRows, MicroLora};
use tempfile::TempDir;

use super::*;
use crate::bank::{self, BankConfig, Pattern, ReasoningBank};
use crate::deep::DeepState;
use crate::error::limit;
use crate::store::{self, OpenOptions, Transaction};
use crate::toy::{N_VOCAB, Toy, approx, changed, leave_out, logits, one, state, text};
use ruvllm_lora::micro::LogitRow;

mod faults;
mod kill;
mod limits;

impl Reading for Toy {
    fn read(
        &mut self,
        passage: &Passage,
        range: Range<usize>,
        micro: Option<&MicroLora>,
        each: &mut Each<'_>,
    ) -> Result<(), SonaError> {
        for at in range {
            let hidden = state(passage.tokens[at - 1]);
            let mut row = logits(&self.head, &changed(&hidden, micro));
            let approx = passage.is_approx.then(|| approx(&row));
            each(at, one(&hidden), LogitRow { exact: &mut row, approx: approx.as_deref() });
        }
        Ok(())
    }

    fn adopt(&mut self, deep: Option<&[u8]>) -> Result<(), SonaError> {
        self.adopted = deep.map(<[u8]>::to_vec);
        Ok(())
    }

    fn head(&self) -> &dyn HeadRows {
        self
    }
}

/// A request that is being served.
struct Request {
    notes: Notes,
    passage: Passage,
    at: usize,
}

impl Request {
    fn new(seed: u32) -> Request {
        let asked = seed.is_multiple_of(2).then(|| Names::of(&format!("What is the capital of Place{seed}?")));
        let tokens = text(seed)[..30].to_vec();
        // Some have places whose tokens were only read, in the prompt and in the answer.
        let skipped = if seed.is_multiple_of(4) { vec![4, 7, 8, 21] } else { Vec::new() };
        // And some had approximate logits.
        let (n_read, is_approx) = (1 + seed as usize % 3, seed.is_multiple_of(3));
        let passage = Passage { tokens, n_read, n_remembered: 5, asked, n_step: 0, skipped, is_approx };
        Request { notes: Notes::default(), passage, at: 0 }
    }

    /// Serves some tokens more, as an engine would.
    fn go_on(&mut self, toy: &Toy, learned: &Learned, n: usize) {
        for at in self.at..(self.at + n).min(self.passage.tokens.len()) {
            let token = self.passage.tokens[at];
            self.at = at + 1;
            if at < self.passage.n_read {
                self.notes.read(token);
                continue;
            }
            self.notes.begin(learned);
            let hidden = state(self.passage.tokens[at - 1]);
            if at == self.passage.n_remembered {
                self.passage.asked.iter().for_each(|names| self.notes.ask(names.clone()));
            }
            if self.passage.skipped.contains(&(at as u32)) {
                self.notes.read(token);
                continue;
            }
            if at < self.passage.n_remembered {
                self.notes.remember(learned, &hidden, token);
                continue;
            }
            let mut row = logits(&toy.head, &changed(&hidden, self.notes.micro().map(|micro| &**micro)));
            let approx = self.passage.is_approx.then(|| approx(&row));
            if approx.is_some() && !self.notes.needs_all(learned) {
                leave_out(&mut row, at);
            }
            self.notes.adjust(learned, one(&hidden), LogitRow { exact: &mut row, approx: approx.as_deref() });
            self.notes.accept(learned, token, toy);
        }
    }

    fn end(mut self, toy: &Toy, history: &mut History) -> Option<u64> {
        self.go_on(toy, history.learned(), usize::MAX / 2);
        history.take_in(self.notes, self.passage, 0.9).expect("a store")
    }
}

struct Place {
    toy: Toy,
    _folder: TempDir,
    store: Arc<dyn Store>,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        let store = store::open(&folder.path().join("sona.redb"), &OpenOptions::default()).expect("a store");
        Place { toy: Toy::new(), _folder: folder, store }
    }

    fn setup(&self, limits: HistoryLimits) -> Setup {
        setup(&self.toy, limits)
    }

    fn open(&mut self, tenant: &str) -> History {
        self.open_with(tenant, HistoryLimits::default())
    }

    fn open_with(&mut self, tenant: &str, limits: HistoryLimits) -> History {
        let setup = self.setup(limits);
        History::open(Arc::clone(&self.store), tenant, setup, &mut self.toy).expect("a history")
    }
}

fn setup(toy: &Toy, limits: HistoryLimits) -> Setup {
    let memory = crate::memory::MemoryOptions { n_bytes_max: 200 * 84, ..Default::default() };
    let options = LearnOptions { memory: Some(memory), ..LearnOptions::default() };
    Setup { calibration: Arc::clone(&toy.calibration), options, compute: Isa::best().into(), limits }
}

/// What happens to a history. Numbers choose among what is there.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// A request begins and is served a little, while others go on.
    Begin(u32),
    /// All that run are served a little.
    Serve(usize),
    /// One ends.
    End(usize),
    Study(u32),
    Tell(u32),
    Rehearse,
    Configure(u32),
    Consolidate,
    Publish,
    Rollback(usize),
    Keep,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u32..12).prop_map(Op::Begin),
        4 => (1usize..12).prop_map(Op::Serve),
        6 => (0usize..8).prop_map(Op::End),
        1 => (0u32..12).prop_map(Op::Study),
        2 => (0u32..12).prop_map(Op::Tell),
        2 => Just(Op::Rehearse),
        1 => (0u32..4).prop_map(Op::Configure),
        1 => Just(Op::Consolidate),
        2 => Just(Op::Publish),
        1 => (0usize..8).prop_map(Op::Rollback),
        2 => Just(Op::Keep),
        2 => Just(Op::Reopen),
    ]
}

/// Runs operations on two histories: one that has everything, and one that never has what operation `without` takes in. The
/// first then takes it back.
struct Run {
    history: History,
    running: Vec<(usize, Request)>,
    /// What could be gone back to, each time that it was.
    choices: Vec<Vec<u64>>,
}

/// Does an operation; returns the item of it, if it is one. `skip` does everything but take in: the requests that run are
/// the same.
fn step(place: &mut Place, run: &mut Run, (at, op): (usize, Op), skip: &dyn Fn(usize) -> bool) -> Option<(usize, u64)> {
    let toy = &mut place.toy;
    let Run { history, running, choices } = run;
    match op {
        Op::Begin(seed) => {
            let mut request = Request::new(seed);
            request.go_on(toy, history.learned(), 8);
            running.push((at, request));
            None
        }
        Op::Serve(n) => {
            running.iter_mut().for_each(|(_, request)| request.go_on(toy, history.learned(), n));
            None
        }
        Op::End(i) => {
            let (begun, mut request) = (!running.is_empty()).then(|| running.remove(i % running.len()))?;
            request.go_on(toy, history.learned(), usize::MAX / 2);
            if skip(begun) { None } else { Some((begun, request.end(toy, history)?)) }
        }
        _ if skip(at) => None,
        Op::Study(seed) => {
            let passage = Passage {
                tokens: text(seed),
                n_read: 1,
                n_remembered: 9,
                asked: None,
                n_step: 32,
                skipped: Vec::new(),
                is_approx: seed.is_multiple_of(2),
            };
            Some((at, history.study(passage, 0.5, toy).expect("a passage")))
        }
        Op::Tell(seed) => {
            let names = Names::of(&format!("What is the capital of Place{seed}?"));
            let hidden: Vec<f32> = (0..3).flat_map(|i| state(seed + i)).collect();
            let verdict = if seed % 3 == 0 { Verdict::Wrong } else { Verdict::Right };
            Some((at, history.tell(&names, &hidden, &[seed, 1, 2], verdict).expect("an answer")))
        }
        Op::Rehearse => {
            // At a limit that is not always reached, and also when nothing is due in one of the two.
            let before = history.next_item;
            history.rehearse(5).expect("a store");
            (history.next_item > before).then_some((at, before))
        }
        Op::Configure(n) => {
            let options = LearnOptions { temperature: 0.03 + 0.01 * n as f32, ..*history.learned().options() };
            Some((at, history.configure(options).expect("options")))
        }
        Op::Consolidate => {
            let how = Consolidate { rank: 4, share: 0.5, keep: 0.9, newest: 0.5, strength: 10.0 };
            Some((at, history.consolidate(how).expect("a MicroLoRA")))
        }
        Op::Publish => {
            history.publish("a test", &[("n".into(), at as f64)]).expect("a store");
            None
        }
        Op::Rollback(i) => {
            let numbers: Vec<u64> = history.generations().iter().map(|g| g.number).chain([0]).collect();
            history.rollback(numbers[i % numbers.len()], toy).expect("a generation");
            choices.push(numbers);
            None
        }
        Op::Keep => {
            history.keep().expect("a store");
            None
        }
        Op::Reopen => {
            // Requests that run survive no restart.
            running.clear();
            let (store, tenant) =
                (Arc::clone(&history.store), String::from_utf8(history.tenant.clone()).expect("a name"));
            let options = *history.learned().options();
            let setup = Setup { options, ..history.setup.clone() };
            *history = History::open(store, &tenant, setup, toy).expect("a history");
            None
        }
    }
}

/// Plays operations for a tenant; returns the history and the items.
fn play(place: &mut Place, tenant: &str, ops: &[Op], without: Option<usize>) -> (Run, Vec<(usize, u64)>) {
    let limits = HistoryLimits { n_generations_max: 1000, ..HistoryLimits::default() };
    let mut run = Run { history: place.open_with(tenant, limits), running: Vec::new(), choices: Vec::new() };
    let mut items = Vec::new();
    for (at, &op) in ops.iter().enumerate() {
        items.extend(step(place, &mut run, (at, op), &|at| without == Some(at)));
    }
    (run, items)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// What is known after an undo is what would be known if the item had never been: now, in every generation, and when
    /// the history is opened again.
    #[test]
    fn undone_is_never_learned(ops in prop::collection::vec(op(), 1..40), which: prop::sample::Index) {
        let mut place = Place::new();
        let (mut run, items) = play(&mut place, "a", &ops, None);
        prop_assume!(!items.is_empty());
        let (at, item) = items[which.index(items.len())];
        run.history.undo(item, &mut place.toy).expect("an item");
        let (mut never, others) = play(&mut place, "b", &ops, Some(at));
        // A request that read the item and then lived through a rollback is not taken in; without the item it may be.
        let taken = |items: &[(usize, u64)]| -> Vec<usize> {
            let begun = items.iter().map(|(begun, _)| *begun);
            begun.filter(|&begun| begun != at && matches!(ops[begun], Op::Begin(_))).collect()
        };
        prop_assume!(taken(&items) == taken(&others));
        // Going back publishes what came since. Where the item alone is that, later ones go back to something else.
        prop_assume!(run.choices == never.choices);
        prop_assert!(run.history.state() == never.history.state(), "undone {item} of {ops:?}");
        prop_assert!(run.history.undo(item, &mut place.toy).is_err());
        let setup = Setup { options: *run.history.learned().options(), ..run.history.setup.clone() };
        let again = History::open(Arc::clone(&place.store), "a", setup, &mut place.toy).expect("a history");
        prop_assert!(again.state() == run.history.state());
        // Going back publishes what came since, so numbers are the same only where there was something to publish in both.
        let numbers = |history: &History| history.generations().iter().map(|g| g.number).collect::<Vec<_>>();
        if numbers(&run.history) == numbers(&never.history) {
            for number in numbers(&run.history) {
                run.history.rollback(number, &mut place.toy).expect("a generation");
                never.history.rollback(number, &mut place.toy).expect("a generation");
                prop_assert!(run.history.state() == never.history.state(), "generation {number}, undone {item} of {ops:?}");
            }
        }
    }

    /// Opening again is what it was before, and records come back from bytes.
    #[test]
    fn opened_again_is_the_same(ops in prop::collection::vec(op(), 1..40)) {
        let mut place = Place::new();
        let (run, _) = play(&mut place, "a", &ops, None);
        let setup = Setup { options: *run.history.learned().options(), ..run.history.setup.clone() };
        let again = History::open(Arc::clone(&place.store), "a", setup, &mut place.toy).expect("a history");
        prop_assert!(again.state() == run.history.state());
        let all = look(place.store.as_ref(), "a", usize::MAX).expect("a store").expect("a tenant");
        prop_assert_eq!(all.items, again.items(u64::MAX, usize::MAX).expect("a store"));
        prop_assert_eq!(&all.generations[..], again.generations());
    }
}

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
fn a_request_that_read_what_was_undone_is_not_taken_in() {
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
fn patterns_of_an_item_go_in_the_transaction_that_takes_it_back() {
    let mut place = Place::new();
    let open = |store| ReasoningBank::open(store, "a", BankConfig::new("toy", 2), &mut |_, _| {}).expect("a bank");
    let (bank, mut history) = (open(Arc::clone(&place.store)), place.open("a"));
    let item = Request::new(1).end(&place.toy, &mut history).expect("learned");
    let pattern = Pattern::new("a task", vec![1.0, 0.0], vec![], bank::Verdict::Success, 0.5);
    let id = bank.add(&Pattern { items: vec![item], ..pattern }).expect("room");
    let (known, removal) = (history.state(), bank.removal_of(&[item]));
    let full = |change: &mut dyn Transaction| removal.write(change).and(Err(limit("a full disk")));
    assert!(history.undo_with(&[item], &mut place.toy, &mut { full }).is_err());
    drop(removal);
    assert!(history.state() == known && history.is_in_effect(item).expect("readable"));
    assert!(bank.len() == 1 && bank.get(id).expect("readable").is_some());
    let removal = bank.removal_of(&[item]);
    history.undo_with(&[item], &mut place.toy, &mut |change| removal.write(change)).expect("an item");
    assert_eq!((removal.committed(), bank.len()), (1, 0));
    assert!(!history.is_in_effect(item).expect("readable") && open(Arc::clone(&place.store)).is_empty());
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
fn a_bad_answer_is_remembered_and_taken_back() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let names = Names::of("What is the capital of Zorbia?");
    let mut request = Request::new(1);
    assert_eq!(history.reject(&names, &request.notes).expect("a store"), None);
    request.go_on(&place.toy, history.learned(), 30);
    let empty = history.state();
    let item = history.reject(&names, &request.notes).expect("a store").expect("an answer");
    assert_eq!(history.learned().episodes().len(), 1);
    assert!(place.open("a").state() == history.state());
    history.undo(item, &mut place.toy).expect("an item");
    assert!(history.state() == empty);
}

#[test]
fn tenants_are_apart_and_are_forgotten() {
    let mut place = Place::new();
    let (mut one, mut two) = (place.open("one"), place.open("two"));
    let alone = two.state();
    Request::new(1).end(&place.toy, &mut one).expect("learned");
    one.publish("a test", &[]).expect("a store");
    assert!(two.state() == alone && place.open("two").state() == alone);
    Request::new(2).end(&place.toy, &mut two).expect("learned");
    assert_eq!(tenants(place.store.as_ref()).expect("a store"), ["one", "two"]);
    assert!(forget(place.store.as_ref(), "one").expect("a store") >= 4);
    assert!(look(place.store.as_ref(), "one", 9).expect("a store").is_none());
    assert!(place.open("one").state() == alone);
    assert_eq!(look(place.store.as_ref(), "two", 9).expect("a store").expect("a tenant").items.len(), 1);
}

fn judgement(is_published: bool) -> Judgement {
    let target = crate::publish::Change { name: "target".into(), relative: -0.1, bound: -0.05, n_blocks: 9 };
    Judgement { is_published, why: "as it is".into(), target, controls: Vec::new() }
}

/// A model whose adapter is three numbers that it does not use.
struct Deep(f32);

impl crate::deep::DeepModel for Deep {
    fn fresh(&mut self) -> Result<Vec<Vec<f32>>, SonaError> {
        Ok(vec![vec![self.0; 3]])
    }

    fn train(
        &mut self,
        _: &Vec<Vec<f32>>,
        _: &[crate::deep::Lesson],
        _: f64,
        _: &mut crate::deep::Penalty<'_>,
    ) -> Result<Vec<Vec<f32>>, SonaError> {
        self.fresh()
    }

    fn gradients(
        &mut self,
        _: &Vec<Vec<f32>>,
        _: &[crate::deep::Lesson],
        _: &mut dyn FnMut(&[Vec<f32>]),
    ) -> Result<(), SonaError> {
        Ok(())
    }

    fn losses(&mut self, _: &Vec<Vec<f32>>, lessons: &[crate::deep::Lesson]) -> Result<Vec<f64>, SonaError> {
        Ok(vec![1.0; lessons.len()])
    }
}

/// A model that reads nothing again.
struct Closed(Toy);

impl Reading for Closed {
    fn read(&mut self, _: &Passage, _: Range<usize>, _: Option<&MicroLora>, _: &mut Each<'_>) -> Result<(), SonaError> {
        panic!("nothing is to be read again")
    }

    fn adopt(&mut self, deep: Option<&[u8]>) -> Result<(), SonaError> {
        self.0.adopt(deep)
    }

    fn head(&self) -> &dyn HeadRows {
        &self.0
    }
}

#[test]
fn what_is_held_back_teaches_nothing_and_says_what_was_gained() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let empty = history.state();
    let passage = Passage { tokens: text(1), n_read: 1, n_remembered: 1, ..Passage::default() };
    history.hold(passage.clone()).expect("a text");
    assert!(history.state() == empty && !history.has_news().expect("a store"));
    assert!(
        matches!(&history.items(u64::MAX, 1).expect("a store")[0].2, Item::Held { passage: held } if *held == passage)
    );
    let mean = |losses: Vec<f32>| losses.iter().sum::<f32>() / losses.len() as f32;
    let before = history.at(0, &mut place.toy).expect("nothing");
    let study = Passage { n_step: 32, ..passage.clone() };
    history.study(study, 1.0, &mut place.toy).expect("a passage");
    let [nothing, known] = [&*before, history.learned()].map(|learned| {
        let losses = losses(&passage, learned, &mut place.toy).expect("it reads");
        assert_eq!(losses.len(), passage.tokens.len() - 1);
        mean(losses)
    });
    assert!(known < 0.8 * nothing, "{known} after {nothing}");
    assert!(place.open("a").state() == history.state());
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
    let other = LearnOptions { memory: None, ..*one.learned().options() };
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
    let memory = before.learned().memory().clone();
    drop(before);
    let mut history = place.open("a");
    assert_eq!(history.learned().memory(), &memory);
    assert_eq!(history.learned().micro().map(|micro| (micro.rank(), micro.n_updates())), Some((4, 0)));
    Request::new(2).end(&place.toy, &mut history).expect("learned");
    let state = history.state();
    drop(history);
    assert!(place.open("a").state() == state);
}

#[test]
fn what_the_gate_discards_goes_and_corrections_stay() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let names = Names::of("What is the capital of Zorbia?");
    Request::new(1).end(&place.toy, &mut history).expect("learned");
    assert_eq!(history.decide(&judgement(true), &mut place.toy).expect("a store"), Some(1));
    let published = history.state();
    Request::new(2).end(&place.toy, &mut history).expect("learned");
    history.tell(&names, &state(3), &[7], Verdict::Right).expect("an answer");
    Request::new(3).end(&place.toy, &mut history).expect("learned");
    assert_eq!(history.decide(&judgement(false), &mut place.toy).expect("a store"), None);
    assert!(history.state() != published && history.learned().episodes().len() == 1);
    let newest = &history.items(u64::MAX, 1).expect("a store")[0].2;
    assert!(matches!(newest, Item::Discarded { figures, .. } if figures.len() == 2), "{newest:?}");
    history.rollback(1, &mut place.toy).expect("kept");
    assert!(history.state() == published);
}

#[test]
fn adapters_go_with_what_they_were_trained_on() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let deep = |x: f32| DeepState::new(&mut Deep(x), &crate::deep::DeepOptions::default()).expect("options");
    let a = Request::new(1).end(&place.toy, &mut history).expect("learned");
    let b = Request::new(2).end(&place.toy, &mut history).expect("learned");
    let none = history.state();
    let first = history.adopt(&deep(1.0), &[a], &judgement(true), &mut place.toy).expect("a store");
    assert!(history.state() != none && history.adopted().expect("a store") == Some(deep(1.0)));
    let with_first = history.state();
    let second = history.adopt(&deep(2.0), &[b], &judgement(true), &mut place.toy).expect("a store");
    assert_eq!(place.toy.adopted, Some(deep(2.0).snapshot()));
    assert!(place.open("a").adopted().expect("a store") == Some(deep(2.0)));
    history.rollback(first, &mut place.toy).expect("kept");
    assert!(history.state() == with_first && place.toy.adopted == Some(deep(1.0).snapshot()));
    history.rollback(second, &mut place.toy).expect("kept");
    // The second was trained on `b`; without it the first is served again. `a` takes both, since the second began with the first.
    let mut never = place.open("b");
    Request::new(1).end(&place.toy, &mut never).expect("learned");
    let only_a = never.state();
    history.undo(b, &mut place.toy).expect("an item");
    assert!(history.adopted().expect("a store") == Some(deep(1.0)) && history.state() != only_a);
    history.undo(a, &mut place.toy).expect("an item");
    assert!(history.adopted().expect("a store").is_none() && place.toy.adopted.is_none());
    assert!(history.state() == place.open("nobody").state());
    assert!(place.store.snapshot().expect("a store").scopes(ADAPTERS).expect("a store").is_empty());
}

#[test]
fn notes_and_passages_must_fit() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let mut request = Request::new(1);
    request.go_on(&place.toy, history.learned(), 9);
    assert!(history.take_in(request.notes, request.passage, 1.0).is_err(), "notes of 9 tokens of 30");
    let mut request = Request::new(1);
    request.go_on(&place.toy, history.learned(), 99);
    assert!(matches!(history.take_in(request.notes, request.passage, 0.0), Ok(None)));
    let beyond = Passage {
        tokens: vec![1, N_VOCAB as u32 + 7],
        n_read: 1,
        n_remembered: 1,
        asked: None,
        n_step: 8,
        skipped: Vec::new(),
        is_approx: false,
    };
    let known = history.state();
    assert!(history.study(beyond, 1.0, &mut place.toy).expect_err("no such token").to_string().contains("same model"));
    // What was learned of its first half is taken back.
    assert!(history.state() == known && place.open("a").state() == known);
    assert!(history.items(u64::MAX, 9).expect("a store").is_empty());
    // Another calibration.
    let mut builder = crate::CalibrationBuilder::new(crate::toy::N_EMBD, Isa::best()).expect("a width");
    (0..400u32).for_each(|i| builder.push(&state(i % 7), &[0.0; N_VOCAB], i % 3, i == 0));
    let calibration = Arc::new(builder.finish(crate::toy::N_EMBD).expect("states"));
    let other = Setup { calibration, ..place.setup(HistoryLimits::default()) };
    assert!(History::open(Arc::clone(&place.store), "a", other, &mut place.toy).is_err());
}
