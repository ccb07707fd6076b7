//! The thread that owns the model: takes commands between steps, steps, and hands out what came of it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::sync::{Arc, Weak};

use ruvllm_kvcache::PageLender;
use ruvllm_lora::AdapterSet;
use ruvllm_lora::manager::AdapterManager;
use web_time::{Duration, Instant};

use super::{EmbedSink, Observer, ServiceEvent, Shared, Sink, Step, Work, stopping};
use crate::request::{CancelToken, GenerateRequest, GenerationSummary};
use crate::runner::{ModelRunner, Readout};
use crate::scheduler::{Event, RequestId, Scheduler};
use crate::{EngineError, ErrorKind};

/// How often statistics that take a look at every block are renewed.
const STATS_INTERVAL: Duration = Duration::from_millis(250);

/// How long an embedding waits for a place before one of those that write gives up its own.
const EMBED_PATIENCE: Duration = Duration::from_millis(500);

/// How often it is looked whether answers have been read, while all that run wait for that.
const STALL_INTERVAL: Duration = Duration::from_millis(5);

/// What handles ask of the owner.
pub(super) enum Command {
    Generate(Box<GenerateRequest>, Sink),
    Embed(EmbedJob),
    /// Compute something between two steps.
    Run(Work),
    /// Share the memory of the KV cache with adapters; what lends it goes back.
    Share(Weak<AdapterManager>, SyncSender<Option<(PageLender, usize)>>),
    /// Lend so many pages of it; whether they were lent goes back.
    Lend(usize, SyncSender<bool>),
    /// Limit what a tenant's requests hold.
    Quota(u64, Option<usize>),
    /// End when all is over, at this time at the latest.
    Drain(Instant),
}

/// Who waits for the tokens of a request.
struct Client {
    tenant: u64,
    sink: Sink,
    cancel: CancelToken,
    last_token: Option<Instant>,
}

/// An embedding that is to be computed.
pub(super) struct EmbedJob {
    pub tenant: u64,
    /// When it was asked for.
    pub since: Instant,
    pub tokens: Vec<u32>,
    pub readout: Readout,
    pub adapters: AdapterSet,
    pub cancel: CancelToken,
    pub sink: EmbedSink,
}

/// The state of the owner's thread.
pub(super) struct Owner<'a> {
    scheduler: Scheduler<'a>,
    inbox: Receiver<Command>,
    shared: Arc<Shared>,
    observer: Box<dyn Observer>,
    clients: HashMap<RequestId, Client>,
    embeds: VecDeque<EmbedJob>,
    /// Tenants whose embeddings were computed, the last one at the end.
    embed_turns: Vec<u64>,
    works: VecDeque<Work>,
    /// When what is not over is cancelled.
    stop_at: Option<Instant>,
    /// When the slow statistics were published.
    stats_at: Option<Instant>,
    /// Kept for its allocation.
    gaps: Vec<Duration>,
}

impl Drop for Owner<'_> {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Release);
    }
}

impl<'a> Owner<'a> {
    pub(super) fn new(
        scheduler: Scheduler<'a>,
        inbox: Receiver<Command>,
        shared: Arc<Shared>,
        observer: Box<dyn Observer>,
    ) -> Owner<'a> {
        Owner {
            scheduler,
            inbox,
            shared,
            observer,
            clients: HashMap::new(),
            embeds: VecDeque::new(),
            embed_turns: Vec::new(),
            works: VecDeque::new(),
            stop_at: None,
            stats_at: None,
            gaps: Vec::new(),
        }
    }

    /// Works until it is drained, or nobody has a handle and nothing is left to do.
    pub(super) fn run(mut self) {
        while self.receive() {
            self.turn();
        }
        self.publish(true);
        self.refuse_the_rest();
    }

    /// Takes all commands there are, without waiting for one, and does one turn of what there is to do. Returns false if there is
    /// nothing.
    pub(super) fn step_once(&mut self) -> bool {
        while let Ok(command) = self.inbox.try_recv() {
            self.take(command);
        }
        if self.is_idle() {
            return false;
        }
        self.turn();
        true
    }

    /// Does a piece of everything that waits or runs.
    fn turn(&mut self) {
        if self.stop_at.is_some_and(|at| Instant::now() >= at) {
            self.clients.values().for_each(|client| client.cancel.cancel());
            self.embeds.iter().for_each(|job| job.cancel.cancel());
        }
        self.embed();
        self.work();
        self.step();
        self.publish(false);
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.embeds.is_empty() && self.works.is_empty()
    }

    /// Tells those who asked while it ended.
    fn refuse_the_rest(&mut self) {
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Generate(request, sink) => self.refuse(request.tenant, sink, stopping()),
                Command::Embed(job) => {
                    self.shared.leave(job.tenant);
                    (job.sink)(Err(stopping()));
                }
                // Their senders see that nobody answers.
                _ => {}
            }
        }
    }

    /// Takes all commands there are; waits for one if there is nothing to do, not even for the next request. Returns whether there
    /// is more to do.
    fn receive(&mut self) -> bool {
        let mut n_taken = 0;
        loop {
            let is_idle = self.is_idle();
            let command = match self.inbox.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Disconnected) if is_idle => return false,
                // Those that run wait for their readers: nothing is lost by waiting a little as well.
                Err(_) if !is_idle && n_taken == 0 && self.scheduler.is_stalled() => {
                    match self.inbox.recv_timeout(STALL_INTERVAL) {
                        Ok(command) => command,
                        Err(_) => return true,
                    }
                }
                Err(_) if !is_idle => return true,
                Err(_) if self.stop_at.is_some() => return false,
                Err(_) if self.scheduler.runner_mut().idle() => continue,
                Err(_) => match self.inbox.recv_timeout(STATS_INTERVAL) {
                    Ok(command) => command,
                    Err(RecvTimeoutError::Disconnected) => return false,
                    Err(RecvTimeoutError::Timeout) => {
                        self.publish(true);
                        match self.inbox.recv() {
                            Ok(command) => command,
                            Err(_) => return false,
                        }
                    }
                },
            };
            self.take(command);
            n_taken += 1;
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Generate(request, sink) => {
                let (tenant, cancel) = (request.tenant, request.cancel.clone());
                match self.scheduler.submit(*request) {
                    Ok(id) => drop(self.clients.insert(id, Client { tenant, sink, cancel, last_token: None })),
                    Err(error) => self.refuse(tenant, sink, error),
                }
            }
            // Who asked may be gone, with what was asked for.
            Command::Share(adapters, reply) => drop(reply.send(self.scheduler.runner_mut().share_with(adapters))),
            Command::Lend(n_pages, reply) => drop(reply.send(self.scheduler.lend(n_pages))),
            Command::Embed(job) => self.embeds.push_back(job),
            Command::Run(work) => self.works.push_back(work),
            Command::Quota(tenant, bytes) => self.scheduler.runner_mut().set_tenant_quota(tenant, bytes),
            Command::Drain(at) => self.stop_at = Some(self.stop_at.map_or(at, |before| before.min(at))),
        }
    }

    /// Tells somebody that nothing is written, and why.
    fn refuse(&mut self, tenant: u64, mut sink: Sink, error: EngineError) {
        self.shared.leave(tenant);
        let result = Err(error);
        self.observer.done(&result);
        sink(ServiceEvent::Done(result));
    }

    /// Returns the place of the embedding that is next: the oldest of the tenant whose turn was the longest ago.
    fn next_embed(&mut self) -> Option<usize> {
        if self.embeds.is_empty() {
            self.embed_turns.clear();
        }
        let turn = |job: &EmbedJob| self.embed_turns.iter().position(|&tenant| tenant == job.tenant);
        (0..self.embeds.len()).min_by_key(|&i| (turn(&self.embeds[i]), i))
    }

    /// Computes one embedding, between two steps of those that write.
    fn embed(&mut self) {
        // One that is cancelled, or is computed, makes way; one that finds no sequence waits for the next step.
        while let Some(at) = self.next_embed() {
            let job = &self.embeds[at];
            let is_cancelled = job.cancel.is_cancelled();
            if !is_cancelled && self.scheduler.runner().n_free() == 0 {
                // Those that write may do so for long.
                let is_late = job.since.elapsed() >= EMBED_PATIENCE;
                if !(is_late && self.scheduler.give_place()) {
                    return;
                }
            }
            let job = self.embeds.remove(at).expect("it is there");
            let result = match is_cancelled {
                true => Err(EngineError::new(ErrorKind::Cancelled, "the request was cancelled")),
                false => self.scheduler.runner_mut().read_out(&job.tokens, job.readout, &job.adapters),
            };
            if matches!(&result, Err(error) if error.is_kv_full()) && self.scheduler.n_running() > 0 {
                // Those that write have the memory; it may fit when one of them has ended.
                self.embeds.push_front(job);
                return;
            }
            self.shared.leave(job.tenant);
            self.embed_turns.retain(|&tenant| tenant != job.tenant);
            self.embed_turns.push(job.tenant);
            (job.sink)(result);
            if !is_cancelled {
                return;
            }
        }
    }

    /// Does one piece of work that somebody waits for, between two steps of those that write; it may need a sequence.
    fn work(&mut self) {
        if self.scheduler.runner().n_free() > 0
            && let Some(work) = self.works.pop_front()
        {
            work(self.scheduler.runner_mut());
        }
    }

    /// Steps, and hands out what came of it.
    fn step(&mut self) {
        if self.scheduler.is_idle() {
            return;
        }
        let (start, n_steps) = (Instant::now(), self.scheduler.stats().n_steps);
        let events = self.scheduler.step();
        let now = Instant::now();
        self.gaps.clear();
        for event in events {
            match event {
                Event::Token(id, token) => {
                    let Some(client) = self.clients.get_mut(&id) else { continue };
                    self.gaps.extend(client.last_token.replace(now).map(|last| now - last));
                    if !(client.sink)(ServiceEvent::Token(token)) {
                        client.cancel.cancel();
                    }
                }
                Event::Done(id, result) => self.finish(id, result),
            }
        }
        if self.scheduler.stats().n_steps > n_steps {
            self.observer.step(&Step {
                took: now - start,
                n_batch: self.scheduler.n_batch(),
                n_running: self.scheduler.n_running(),
                n_waiting: self.scheduler.n_waiting(),
                gaps: &self.gaps,
            });
        }
    }

    fn finish(&mut self, id: RequestId, result: Result<GenerationSummary, EngineError>) {
        let client = self.clients.remove(&id);
        // Each request has its client until it is over.
        self.shared.leave(client.as_ref().map_or(0, |client| client.tenant));
        self.observer.done(&result);
        if let Ok(summary) = &result {
            let timings = &summary.timings;
            let took_s = (timings.prompt_ms + timings.decode_ms) / 1e3;
            let mut stats = self.shared.stats();
            stats.request_s += (took_s - stats.request_s) / 16.0;
        }
        if let Some(mut client) = client {
            (client.sink)(ServiceEvent::Done(result));
        }
    }

    /// Publishes what it does; what takes a look at every block only when it is due, or `now`.
    fn publish(&mut self, now: bool) {
        let (scheduler, shared) = (&self.scheduler, &self.shared);
        let is_due = now || self.stats_at.is_none_or(|at| at.elapsed() >= STATS_INTERVAL);
        let slow = is_due.then(|| {
            let runner: &ModelRunner = scheduler.runner();
            (runner.cache_stats(), runner.kv_usage(), runner.kv_bytes_by_format(), runner.history_bytes())
        });
        let mut stats = shared.stats();
        (stats.n_running, stats.n_waiting) = (scheduler.n_running(), scheduler.n_waiting());
        (stats.n_embeds_waiting, stats.scheduler) = (self.embeds.len(), scheduler.stats());
        if let Some(slow) = slow {
            (stats.cache, stats.kv, stats.kv_bytes, stats.history_bytes) = slow;
            self.stats_at = Some(Instant::now());
        }
    }
}
