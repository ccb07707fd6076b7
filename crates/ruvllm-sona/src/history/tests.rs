//! Histories of a toy model: undo is never having learned, whoever ran beside whom; going back; what is let go; kills.

use proptest::prelude::*;
use ruvllm_kernels::Isa;
use ruvllm_lora::micro::{HeadRows, MicroLora};
use tempfile::TempDir;

use super::*;
use crate::background::Consolidate;
use crate::bank::{self, BankConfig, Pattern, ReasoningBank};
use crate::corrections::Correctness;
use crate::error::limit;
use crate::instant::RequestTrace;
use crate::names::Names;
use crate::store::{self, OpenOptions, Transaction};
use crate::toy::{N_VOCAB, Toy, approx, changed, leave_out, logits, one, state, text};
use ruvllm_lora::micro::LogitRow;

mod adopted;
mod faults;
mod generations;
mod kill;
mod limits;

impl Reading for Toy {
    fn read(
        &mut self,
        span: &Span,
        range: Range<usize>,
        micro: Option<&MicroLora>,
        each: &mut Each<'_>,
    ) -> Result<(), SonaError> {
        for at in range {
            let hidden = state(span.tokens[at - 1]);
            let mut row = logits(&self.head, &changed(&hidden, micro));
            let approx = span.is_approx.then(|| approx(&row));
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
    trace: RequestTrace,
    span: Span,
    at: usize,
}

impl Request {
    fn new(seed: u32) -> Request {
        let question = seed.is_multiple_of(2).then(|| Names::of(&format!("What is the capital of Place{seed}?")));
        let tokens = text(seed)[..30].to_vec();
        // Some have places whose tokens were only read, in the prompt and in the answer.
        let skipped = if seed.is_multiple_of(4) { vec![4, 7, 8, 21] } else { Vec::new() };
        // And some had approximate logits.
        let (n_read, is_approx) = (1 + seed as usize % 3, seed.is_multiple_of(3));
        let span = Span { tokens, n_read, n_remembered: 5, question, n_step: 0, skipped, is_approx };
        Request { trace: RequestTrace::default(), span, at: 0 }
    }

    /// Serves some tokens more, as an engine would.
    fn go_on(&mut self, toy: &Toy, learned: &Learned, n: usize) {
        for at in self.at..(self.at + n).min(self.span.tokens.len()) {
            let token = self.span.tokens[at];
            self.at = at + 1;
            if at < self.span.n_read {
                self.trace.read(token);
                continue;
            }
            self.trace.begin(learned);
            let hidden = state(self.span.tokens[at - 1]);
            if at == self.span.n_remembered {
                self.span.question.iter().for_each(|names| self.trace.set_question(names.clone()));
            }
            if self.span.skipped.contains(&(at as u32)) {
                self.trace.read(token);
                continue;
            }
            if at < self.span.n_remembered {
                self.trace.remember(learned, &hidden, token);
                continue;
            }
            let mut row = logits(&toy.head, &changed(&hidden, self.trace.micro().map(|micro| &**micro)));
            let approx = self.span.is_approx.then(|| approx(&row));
            if approx.is_some() && !self.trace.needs_all(learned) {
                leave_out(&mut row, at);
            }
            self.trace.adjust(learned, one(&hidden), LogitRow { exact: &mut row, approx: approx.as_deref() });
            self.trace.accept(learned, token, toy);
        }
    }

    fn end(mut self, toy: &Toy, history: &mut History) -> Option<u64> {
        self.go_on(toy, history.learned(), usize::MAX / 2);
        history.ingest(self.trace, self.span, 0.9).expect("a store")
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
    let datastore = crate::datastore::DatastoreOptions { n_bytes_max: 200 * 84, ..Default::default() };
    let options = LearnOptions { datastore: Some(datastore), ..LearnOptions::default() };
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

/// Runs operations on two histories: one that has everything, and one that never has what operation `without` ingests. The
/// first then takes it back.
struct Run {
    history: History,
    running: Vec<(usize, Request)>,
    /// What could be gone back to, each time that it was.
    choices: Vec<Vec<u64>>,
}

/// Does an operation; returns the item of it, if it is one. `skip` does everything but ingest: the requests that run are
/// the same.
fn step(place: &mut Place, run: &mut Run, at: usize, op: Op, skip: &dyn Fn(usize) -> bool) -> Option<(usize, u64)> {
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
            let span = Span {
                tokens: text(seed),
                n_read: 1,
                n_remembered: 9,
                question: None,
                n_step: 32,
                skipped: Vec::new(),
                is_approx: seed.is_multiple_of(2),
            };
            Some((at, history.learn_document(span, 0.5, toy).expect("a span")))
        }
        Op::Tell(seed) => {
            let names = Names::of(&format!("What is the capital of Place{seed}?"));
            let hidden: Vec<f32> = (0..3).flat_map(|i| state(seed + i)).collect();
            let verdict = if seed % 3 == 0 { Correctness::Wrong } else { Correctness::Right };
            Some((at, history.add_correction(&names, &hidden, &[seed, 1, 2], verdict).expect("an answer")))
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
        items.extend(step(place, &mut run, at, op, &|at| without == Some(at)));
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
        // A request that read the item and then lived through a rollback is not ingested; without the item it may be.
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
fn a_bad_answer_is_remembered_and_taken_back() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let names = Names::of("What is the capital of Zorbia?");
    let mut request = Request::new(1);
    assert_eq!(history.reject(&names, &request.trace).expect("a store"), None);
    request.go_on(&place.toy, history.learned(), 30);
    let empty = history.state();
    let item = history.reject(&names, &request.trace).expect("a store").expect("an answer");
    assert_eq!(history.learned().corrections().len(), 1);
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

#[test]
fn the_holdout_teaches_nothing_and_says_what_was_gained() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let empty = history.state();
    let span = Span { tokens: text(1), n_read: 1, n_remembered: 1, ..Span::default() };
    history.hold_out(span.clone()).expect("a text");
    assert!(history.state() == empty && !history.has_news().expect("a store"));
    assert!(
        matches!(&history.items(u64::MAX, 1).expect("a store")[0].2, Item::Holdout { span: held } if *held == span)
    );
    let mean = |losses: Vec<f32>| losses.iter().sum::<f32>() / losses.len() as f32;
    let before = history.at(0, &mut place.toy).expect("nothing");
    let study = Span { n_step: 32, ..span.clone() };
    history.learn_document(study, 1.0, &mut place.toy).expect("a span");
    let [nothing, known] = [&*before, history.learned()].map(|learned| {
        let losses = losses(&span, learned, &mut place.toy).expect("it reads");
        assert_eq!(losses.len(), span.tokens.len() - 1);
        mean(losses)
    });
    assert!(known < 0.8 * nothing, "{known} after {nothing}");
    assert!(place.open("a").state() == history.state());
}

#[test]
fn traces_and_spans_must_fit() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let mut request = Request::new(1);
    request.go_on(&place.toy, history.learned(), 9);
    assert!(history.ingest(request.trace, request.span, 1.0).is_err(), "a trace of 9 tokens of 30");
    let mut request = Request::new(1);
    request.go_on(&place.toy, history.learned(), 99);
    assert!(matches!(history.ingest(request.trace, request.span, 0.0), Ok(None)));
    let beyond = Span {
        tokens: vec![1, N_VOCAB as u32 + 7],
        n_read: 1,
        n_remembered: 1,
        question: None,
        n_step: 8,
        skipped: Vec::new(),
        is_approx: false,
    };
    let known = history.state();
    assert!(
        history
            .learn_document(beyond, 1.0, &mut place.toy)
            .expect_err("no such token")
            .to_string()
            .contains("same model")
    );
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
