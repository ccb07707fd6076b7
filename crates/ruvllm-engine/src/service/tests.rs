//! The owner's thread over a model that is made up: the test says when it may compute a step, and sees what it computed.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use ruvllm_backend::{
    BackendError, BackendErrorKind, CacheSalt, CachedPrefix, DeviceInfo, Embeddings, KvRoom, PagedKv, Pooling, Segment,
    SeqId, States, TokenModel,
};
use ruvllm_gguf::GgufFile;
use ruvllm_kvcache::{BlockPool, KvFormat, KvLayout, KvPolicy, LayerKv, Pressure};
use ruvllm_testkit::Golden;

use super::*;
use crate::request::{FinishReason, Unread};
use crate::runner::{ModelRunner, Vocabulary};
use crate::sampler::SamplingParams;

/// Counts up: the token after `n` is `n + 1`.
struct Counting {
    info: ModelInfo,
    /// The tokens of each sequence, in its place.
    sequences: Vec<Option<Vec<u32>>>,
    logits: Vec<f32>,
    /// Told what a step is about to compute: the first token of each request, and how many.
    steps: Sender<String>,
    /// A step goes on when one of these comes.
    permits: Receiver<()>,
}

impl TokenModel for Counting {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, _: Option<&[u32]>, _: &CacheSalt) -> Result<(SeqId, usize), BackendError> {
        let free = self.sequences.iter().position(Option::is_none).expect("the scheduler counts");
        self.sequences[free] = Some(Vec::new());
        Ok((SeqId(free), 0))
    }

    fn fork(&mut self, _: SeqId, _: usize) -> Result<SeqId, BackendError> {
        unreachable!("nothing is guessed")
    }

    fn rewind(&mut self, _: SeqId, _: usize) -> Result<(), BackendError> {
        unreachable!("nothing is guessed")
    }

    fn close(&mut self, seq: SeqId) {
        self.sequences[seq.0] = None;
    }

    fn n_tokens(&self, seq: SeqId) -> usize {
        self.sequences[seq.0].as_ref().map_or(0, Vec::len)
    }

    fn n_free(&self) -> usize {
        self.sequences.iter().filter(|sequence| sequence.is_none()).count()
    }

    fn forward(&mut self, segments: &[Segment<'_>]) -> Result<States<'_>, BackendError> {
        let (n_vocab, mut step) = (self.info.n_vocab, Vec::new());
        self.logits.clear();
        for segment in segments {
            let tokens = self.sequences[segment.seq.0].as_mut().expect("it is open");
            tokens.extend_from_slice(segment.tokens);
            step.push(format!("{}x{}", tokens[0], segment.tokens.len()));
            for token in &tokens[tokens.len() - segment.logits.count(segment.tokens.len())..] {
                let next = (*token as usize + 1) % n_vocab;
                self.logits.extend((0..n_vocab).map(|id| if id == next { 1.0 } else { 0.0 }));
            }
        }
        let _ = self.steps.send(step.join(" "));
        self.permits.recv().map_err(|_| BackendError::new(BackendErrorKind::Model, "the test is over"))?;
        Ok(States::of_logits(&mut self.logits))
    }

    fn paged_kv(&self) -> Option<&dyn PagedKv> {
        Some(self)
    }

    fn paged_kv_mut(&mut self) -> Option<&mut dyn PagedKv> {
        Some(self)
    }

    fn embeddings(&mut self) -> Option<&mut dyn Embeddings> {
        Some(self)
    }
}

/// A byte a token, of a mebibyte, and no prefix cache.
impl PagedKv for Counting {
    fn room(&self) -> KvRoom {
        KvRoom { free_bytes: 1 << 20, committed_bytes: 0 }
    }

    fn bytes_for(&self, n_tokens: usize) -> usize {
        n_tokens
    }

    fn sequence_bytes(&self, seq: SeqId) -> usize {
        self.n_tokens(seq)
    }

    fn reserve(&mut self, _: SeqId, _: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn match_prefix(&self, _: &[u32], _: &CacheSalt) -> Option<CachedPrefix> {
        None
    }

    fn restore_prefix(&mut self, _: &[u32], _: &CacheSalt) -> usize {
        0
    }

    fn share(&mut self, _: SeqId) {}

    fn discard(&mut self, seq: SeqId) {
        self.close(seq);
    }

    fn set_quota(&mut self, _: u64, _: Option<usize>) {}

    fn cache_stats(&self) -> Option<CacheStats> {
        None
    }

    fn clear_cache(&mut self) {}

    fn usage(&self) -> Usage {
        let in_use = self.sequences.iter().flatten().count();
        Usage { total: self.sequences.len(), in_use, free: self.sequences.len() - in_use, ..Usage::default() }
    }

    fn bytes_by_format(&self) -> Vec<(&'static str, usize)> {
        vec![("f32", self.sequences.iter().flatten().map(Vec::len).sum())]
    }

    fn pressure(&mut self) -> Pressure {
        unreachable!("nobody asks")
    }

    fn policies(&self) -> Vec<KvPolicy> {
        Vec::new()
    }

    fn aged_bytes(&self, _: KvPolicy, n_tokens: usize) -> usize {
        n_tokens
    }

    fn reusable_bytes(&self) -> usize {
        0
    }
}

impl Embeddings for Counting {
    fn embed(&mut self, tokens: &[u32], _: Option<Pooling>, _: &AdapterSet) -> Result<Vec<f32>, BackendError> {
        assert_ne!(tokens, [13], "a bug in the model");
        if tokens == [14] && self.sequences.iter().any(Option::is_some) {
            let layout = KvLayout { layers: vec![LayerKv { n_kv_heads: 1, k_dim: 8, v_dim: 8 }] };
            let mut pool = BlockPool::new(&layout, KvFormat::F32, 1);
            let mut sequence = pool.sequence(32);
            pool.reserve(&mut sequence, 32)?;
        }
        Ok(vec![tokens.len() as f32])
    }

    fn score(&mut self, _: &[u32], _: usize, _: &AdapterSet) -> Result<f32, BackendError> {
        unreachable!("nobody asks")
    }
}

/// A service over [`Counting`].
struct Bench {
    service: Service,
    thread: ServiceThread,
    permits: SyncSender<()>,
    steps: Receiver<String>,
    /// A step that waits for its permit.
    planned: RefCell<Option<String>>,
}

impl Bench {
    fn new(n_seqs: usize, queue_max: usize) -> Bench {
        let file = GgufFile::open(&Golden::load("llama-a").model("f32")).expect("a golden file");
        let device = DeviceInfo { backend: "counting", ..DeviceInfo::default() };
        let size =
            ModelInfo { n_vocab: 200, n_embd: 1, n_ctx_train: 1000, n_ctx: 1000, ..ModelInfo::new("counting", device) };
        let info = ModelInfo { n_seq_max: n_seqs, ..size };
        let (permits, permitted) = sync_channel(1000);
        let (told, steps) = channel();
        let (sequences, logits) = (vec![None; n_seqs], Vec::new());
        let model = Counting { info, sequences, logits, permits: permitted, steps: told };
        let vocabulary = Vocabulary::of_gguf(&Arc::new(file)).expect("a golden file");
        let engine = Engine::new(ModelRunner::new(Box::new(model), vocabulary));
        let scheduler = SchedulerOptions { step_tokens: 100, prefill_tokens: 50, ..SchedulerOptions::default() };
        let options = ServiceOptions { scheduler, queue_max, ..ServiceOptions::default() };
        let (service, thread) = Service::start(engine, options).expect("valid options");
        Bench { service, thread, permits, steps, planned: RefCell::default() }
    }

    /// Waits until the next step is planned: whoever comes now is in the one after it.
    fn settle(&self) {
        let mut planned = self.planned.borrow_mut();
        planned.get_or_insert_with(|| self.steps.recv_timeout(Duration::from_secs(20)).expect("it steps"));
    }

    /// Lets the model compute one step, and returns what that was.
    fn step(&self) -> String {
        self.settle();
        self.permits.send(()).expect("the owner lives");
        self.planned.take().expect("it is settled")
    }

    /// Lets the model compute without end.
    fn run_freely(&self) {
        let permits = self.permits.clone();
        std::thread::spawn(move || while permits.send(()).is_ok() {});
    }

    fn submit(&self, request: GenerateRequest) -> Result<(Ticket, Receiver<ServiceEvent>), EngineError> {
        let (sender, receiver) = channel();
        let ticket = self.service.submit(request, Box::new(move |event| sender.send(event).is_ok()))?;
        Ok((ticket, receiver))
    }
}

/// A request whose prompt is `n` times the token `id`.
fn request(id: u32, n: usize, max_tokens: usize) -> GenerateRequest {
    let (prompt, sampling) = (vec![id; n], SamplingParams::greedy());
    GenerateRequest { prompt, sampling, max_tokens: Some(max_tokens), ignore_eos: true, ..Default::default() }
}

/// Waits for the end of a request.
fn done(events: &Receiver<ServiceEvent>) -> Result<GenerationSummary, EngineError> {
    loop {
        match events.recv_timeout(Duration::from_secs(20)).expect("it ends") {
            ServiceEvent::Done(result) => return result,
            ServiceEvent::Token(_) => {}
        }
    }
}

#[test]
fn tokens_come_as_they_are_computed() {
    let bench = Bench::new(2, 4);
    let (_ticket, events) = bench.submit(request(7, 3, 2)).expect("there is room");
    insta::assert_snapshot!(bench.step(), @"7x3");
    let ServiceEvent::Token(token) = events.recv().expect("a token") else { panic!("no token") };
    assert_eq!((token.id, bench.service.n_inside()), (8, 1));
    insta::assert_snapshot!(bench.step(), @"7x1");
    let summary = done(&events).expect("it fits");
    assert_eq!((summary.tokens, summary.finish_reason), (vec![8, 9], FinishReason::Length));
    assert_eq!(bench.service.n_inside(), 0);
    bench.service.drain(Duration::ZERO);
    let engine = bench.thread.join().expect("no panic");
    assert_eq!(engine.info().n_seq_max, engine.runner.n_free());
}

#[test]
fn beyond_the_queue_is_refused_with_a_number() {
    let bench = Bench::new(1, 2);
    let kept: Vec<_> = (0..3).map(|_| bench.submit(request(7, 3, 9)).expect("there is room")).collect();
    let error = bench.submit(request(7, 3, 9)).map(drop).expect_err("it is full");
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    assert_eq!(error.to_string(), "the queue is full: 2 requests wait; try again in 1 s");
    drop(kept);
    bench.run_freely();
    while bench.service.n_inside() > 0 {
        std::thread::yield_now();
    }
    drop(bench.submit(request(7, 3, 9)).expect("there is room again"));
    // What cannot be is told at once, and takes no place.
    for (wrong, kind) in [(request(7, 0, 1), ErrorKind::Prompt), (request(7, 1000, 1), ErrorKind::ContextLength)] {
        assert_eq!(bench.submit(wrong).map(drop).expect_err("it cannot be").kind(), kind);
    }
}

#[test]
fn whoever_leaves_is_gone_with_the_next_step() {
    let bench = Bench::new(3, 4);
    // One that writes, one in its prompt, one that stopped listening.
    let (writer, writer_events) = bench.submit(request(7, 3, 500)).expect("there is room");
    insta::assert_snapshot!(bench.step(), @"7x3");
    bench.settle();
    let (reader, reader_events) = bench.submit(request(8, 400, 500)).expect("there is room");
    let (_deaf, deaf_events) = bench.submit(request(9, 2, 500)).expect("there is room");
    insta::assert_snapshot!(bench.step(), @"7x1");
    bench.settle();
    drop((reader, deaf_events));
    insta::assert_snapshot!(bench.step(), @"7x1 8x50");
    assert_eq!(done(&reader_events).expect("no error").finish_reason, FinishReason::Cancelled);
    bench.settle();
    drop(writer);
    insta::assert_snapshot!(bench.step(), @"7x1 9x2");
    assert_eq!(done(&writer_events).expect("no error").finish_reason, FinishReason::Cancelled);
    // Nothing is computed for the one whose first token nobody took.
    while bench.service.n_inside() > 0 {
        std::thread::yield_now();
    }
    assert!(bench.steps.try_recv().is_err());
}

#[test]
fn a_deadline_ends_a_request_wherever_it_is() {
    let bench = Bench::new(1, 4);
    let soon = Some(Instant::now() + Duration::from_millis(400));
    let (_one, first) = bench.submit(GenerateRequest { deadline: soon, ..request(7, 3, 500) }).expect("there is room");
    let (_two, second) = bench.submit(GenerateRequest { deadline: soon, ..request(8, 3, 500) }).expect("there is room");
    bench.step();
    std::thread::sleep(Duration::from_millis(450));
    bench.step();
    let first = done(&first).expect("no error");
    assert_eq!((first.finish_reason, first.tokens), (FinishReason::Deadline, vec![8, 9]));
    let second = done(&second).expect("no error");
    assert_eq!((second.finish_reason, second.tokens.len()), (FinishReason::Deadline, 0));
}

#[test]
fn a_tenant_that_floods_the_queue_leaves_room_for_others() {
    let bench = Bench::new(1, 20);
    let of = |id: u32, tenant, priority| GenerateRequest { tenant, priority, ..request(id, 10, 1) };
    let mut kept = vec![bench.submit(of(1, 1, 0)).expect("there is room")];
    bench.settle();
    // While the first is computed, its tenant sends three more, then others come.
    kept.extend((2..5).map(|id| bench.submit(of(id, 1, 0)).expect("there is room")));
    kept.extend((5..7).map(|id| bench.submit(of(id, 2, 0)).expect("there is room")));
    kept.push(bench.submit(of(9, 3, 5)).expect("there is room"));
    let steps: Vec<String> = (0..7).map(|_| bench.step()).collect();
    assert_eq!(steps[0], "1x10");
    // The most important next, then the tenants in turns.
    insta::assert_snapshot!(steps[1..].join(" "), @"9x10 2x10 5x10 3x10 6x10 4x10");
}

#[test]
fn draining_lets_the_work_end_or_ends_it() {
    let bench = Bench::new(1, 4);
    let (_one, quick) = bench.submit(request(7, 3, 3)).expect("there is room");
    bench.service.drain(Duration::from_secs(20));
    let error = bench.submit(request(7, 3, 1)).map(drop).expect_err("it stops");
    assert_eq!((error.kind(), bench.service.is_stopping()), (ErrorKind::Stopped, true));
    bench.run_freely();
    assert_eq!(done(&quick).expect("it has time").tokens, [8, 9, 10]);
    bench.thread.join().expect("no panic");

    let bench = Bench::new(1, 4);
    let (_one, endless) = bench.submit(request(7, 3, 900)).expect("there is room");
    bench.step();
    bench.service.drain(Duration::ZERO);
    bench.run_freely();
    assert_eq!(done(&endless).expect("no error").finish_reason, FinishReason::Cancelled);
    bench.thread.join().expect("no panic");
}

#[test]
fn embeddings_are_computed_between_steps() {
    let bench = Bench::new(2, 4);
    let embed = |tokens: Vec<u32>| {
        let (sender, receiver) = channel();
        let ticket = bench.service.embed(tokens, Box::new(move |result| drop(sender.send(result))));
        ticket.map(|ticket| (ticket, receiver))
    };
    let (_kept, _events) = bench.submit(request(7, 3, 900)).expect("there is room");
    let (_ticket, embedding) = embed(vec![1, 2]).expect("there is room");
    bench.run_freely();
    assert_eq!(embedding.recv().expect("an answer").expect("it fits"), [2.0]);
    // One that finds the memory full waits for those that write.
    let (_ticket, large) = embed(vec![14]).expect("there is room");
    assert_eq!(large.recv().expect("an answer").expect("it fits when they have ended"), [1.0]);
    // A model that breaks takes nobody with it but those that wait for it, and is told about.
    let (_ticket, broken) = embed(vec![13]).expect("there is room");
    assert!(broken.recv().is_err());
    let error = loop {
        match embed(vec![1]) {
            Ok((_ticket, receiver)) => assert!(receiver.recv().is_err()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.to_string(), "the engine's thread has ended and takes no requests");
    assert_eq!(bench.thread.join().map(drop).expect_err("it broke").kind(), ErrorKind::Stopped);
}

#[test]
fn an_owner_without_handles_ends_when_its_work_does() {
    let bench = Bench::new(1, 4);
    let (_ticket, events) = bench.submit(request(7, 3, 2)).expect("there is room");
    let Bench { service, thread, permits, .. } = bench;
    drop(service);
    permits.send(()).and_then(|()| permits.send(())).expect("the owner lives");
    assert_eq!(done(&events).expect("it fits").tokens, [8, 9]);
    thread.join().expect("no panic");
}

#[test]
fn an_answer_that_nobody_reads_gives_its_place_and_goes_on_when_somebody_does() {
    let bench = Bench::new(1, 4);
    bench.run_freely();
    let unread = Unread::default();
    let (count, (sender, events)) = (unread.clone(), channel());
    let sink = move |event| {
        if matches!(event, ServiceEvent::Token(_)) {
            count.add();
        }
        sender.send(event).is_ok()
    };
    let slow = GenerateRequest { unread: unread.clone(), ..request(7, 3, 600) };
    let _ticket = bench.service.submit(slow, Box::new(sink)).expect("there is room");
    while !unread.is_full() {
        std::thread::yield_now();
    }
    // The only place is somebody else's now, of the same tenant or another one.
    for tenant in [0, 5] {
        let other = GenerateRequest { tenant, ..request(8, 3, 20) };
        let (_ticket, of_other) = bench.submit(other).expect("there is room");
        assert_eq!(done(&of_other).expect("it is computed").tokens.len(), 20);
    }
    assert!(unread.is_full());
    let (mut n_read, mut summary) = (0, None);
    while summary.is_none() {
        match events.recv_timeout(Duration::from_secs(20)).expect("it goes on") {
            ServiceEvent::Done(result) => summary = Some(result.expect("it fits")),
            ServiceEvent::Token(_) => {
                n_read += 1;
                unread.take();
            }
        }
    }
    let tokens = summary.expect("it is over").tokens;
    assert_eq!((n_read, tokens.len()), (600, 600));
    // The tokens are those that it would have had alone.
    let (_ticket, alone) = bench.submit(request(7, 3, 600)).expect("there is room");
    assert_eq!(tokens, done(&alone).expect("it fits").tokens);
}

#[test]
fn a_tenant_with_all_places_gives_one_up() {
    let bench = Bench::new(2, 8);
    let flood = GenerateRequest { tenant: 1, ..request(7, 3, 900) };
    let kept: Vec<_> = (0..5).map(|_| bench.submit(flood.clone()).expect("there is room")).collect();
    bench.step();
    bench.settle();
    let (_ticket, events) = bench.submit(GenerateRequest { tenant: 2, ..request(8, 3, 4) }).expect("there is room");
    // It is in the step behind the one that is planned, and stays in to its end.
    let steps: Vec<String> = (0..6).map(|_| bench.step()).collect();
    assert_eq!(done(&events).expect("it is computed").tokens.len(), 4);
    assert!(steps[1].contains("8x3") && steps[4].contains("8x1") && !steps[5].contains("8x"), "{steps:?}");
    assert_eq!(bench.service.stats().scheduler.n_preemptions, 1);
    drop(kept);
    bench.run_freely();
}

#[test]
fn a_tenant_fills_three_quarters_of_the_queue() {
    let bench = Bench::new(1, 7);
    let of = |tenant| GenerateRequest { tenant, ..request(7, 3, 9) };
    let mut kept: Vec<_> = (0..6).map(|_| bench.submit(of(1)).expect("it has its share")).collect();
    let error = bench.submit(of(1)).map(drop).expect_err("it has more than its share");
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    assert_eq!(error.to_string(), "this key has its share of the queue; try again in 1 s");
    kept.push(bench.submit(of(2)).expect("another tenant finds room"));
    kept.push(bench.submit(of(0)).expect("there is one place"));
    assert!(bench.submit(of(2)).is_err());
    drop(kept);
    bench.run_freely();
}
