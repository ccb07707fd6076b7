//! Steps that a tuner fills: it is told what runs, and what its choices cost.

use web_time::Instant;

use super::{Event, Scheduler, SchedulerStats};
use crate::tuner::{Choice, Rows, Situation, StepCost, Tuner, steps_by_default};

/// A step that was chosen for.
pub(super) struct Tuned {
    choice: Choice,
    start: Instant,
    before: SchedulerStats,
    /// Accepted draft tokens of those that run.
    n_accepted: usize,
    /// Draft tokens that each might have by the default.
    n_default: usize,
    /// Rows of the step as the default would have filled it.
    n_default_rows: usize,
}

/// A step whose cost tells of what was chosen for the KV cache.
pub(super) struct WatchedStep {
    choice: Choice,
    start: Instant,
    rows: Rows,
}

impl Scheduler<'_> {
    /// Lets a tuner change the options from step to step; it starts from those that the scheduler was made with.
    /// Answers stay the same.
    pub fn set_tuner(&mut self, tuner: Box<dyn Tuner>) {
        self.tuner = Some(tuner);
    }

    /// Takes the tuner out, with what it has learned; steps are filled by the default again.
    pub fn take_tuner(&mut self) -> Option<Box<dyn Tuner>> {
        let tuner = self.tuner.take();
        tuner.iter().for_each(|tuner| self.options = tuner.fixed());
        tuner
    }

    /// Chooses the options of the step. Where somebody reads a prompt there is nothing to choose.
    pub(super) fn tune(&mut self) -> Option<Tuned> {
        let tuner = self.tuner.as_mut()?;
        self.options = tuner.fixed();
        let n_running = self.running.len();
        if n_running == 0 || self.running.iter().any(|task| !task.is_answering()) {
            return None;
        }
        let n_context = self.running.iter().map(super::Task::n_context).sum::<usize>() / n_running;
        let capacity = (self.n_seen != n_running).then(|| self.runner.free_kv_bytes());
        self.n_seen = n_running;
        let (options, choice) = tuner.choose(&Situation { n_running, n_context, free_bytes: capacity });
        self.options = options;
        let n_default = tuner.fixed().n_draft_max(n_running);
        let (start, before, n_accepted) = (Instant::now(), self.stats, self.n_accepted());
        Some(Tuned { choice, start, before, n_accepted, n_default, n_default_rows: 0 })
    }

    /// Counts the rows that the step, which is planned now, would have by the default.
    pub(super) fn count(&self, tuned: &mut Option<Tuned>) {
        let Some(Tuned { n_default, n_default_rows, .. }) = tuned else { return };
        *n_default_rows = self.rows(*n_default).n_answer;
    }

    /// Tells the tuner what came of a step, unless it was another one than was chosen for.
    pub(super) fn learn(&mut self, tuned: Option<Tuned>, events: &[Event]) {
        let Some(Tuned { choice, start, before, n_accepted, n_default, n_default_rows }) = tuned else { return };
        let n_answers = self.n_batch;
        if self.stats.n_tokens - before.n_tokens != n_answers as u64 || self.stats.n_preemptions != before.n_preemptions
        {
            return;
        }
        let n_draft_max = self.options.n_draft_max(n_answers);
        let mut n_default_steps = 0.0;
        let of_one = events.chunk_by(|a, b| a.token_of() == b.token_of());
        for tokens in of_one.filter(|events| events[0].token_of().is_some()) {
            n_default_steps += steps_by_default(tokens.len(), n_draft_max, n_default) / n_answers as f64;
        }
        let n_accepted = self.n_accepted().saturating_sub(n_accepted);
        let seconds = start.elapsed().as_secs_f64();
        self.running.iter_mut().for_each(|task| task.note(choice));
        if let Some(tuner) = &mut self.tuner {
            let step = StepCost { seconds, n_answers, n_default_rows, n_default_steps, n_draft_max, n_accepted };
            tuner.learn(choice, &step);
        }
    }

    /// Begins to watch a step, if the same was chosen for all requests that run.
    pub(super) fn watch_kv(&self) -> Option<WatchedStep> {
        let choice = self.running.iter().find_map(|task| task.kv)?;
        if !self.running.iter().all(|task| task.kv.is_some_and(|kv| kv.is_same_way(choice))) {
            return None;
        }
        Some(WatchedStep { choice, start: Instant::now(), rows: self.rows(usize::MAX) })
    }

    /// Counts the rows of the step, which is planned now, with up to so many draft tokens of each request.
    fn rows(&self, n_draft_max: usize) -> Rows {
        let mut rows = Rows::default();
        for task in self.running.iter().filter(|task| task.n_rows > 0) {
            match task.is_answering() {
                true => rows.n_answer += task.n_rows + task.n_drafted().min(n_draft_max),
                false => rows.n_prompt += task.n_rows,
            }
        }
        rows
    }

    /// Tells the tuner what such a step took.
    pub(super) fn learn_kv(&mut self, watched: Option<WatchedStep>) {
        if let (Some(WatchedStep { choice, start, rows }), Some(tuner)) = (watched, &mut self.tuner) {
            tuner.learn_kv(choice, start.elapsed().as_secs_f64(), rows);
        }
    }

    fn n_accepted(&self) -> usize {
        self.running.iter().map(|task| task.n_accepted()).sum()
    }
}
