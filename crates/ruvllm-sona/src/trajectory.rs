//! What served requests leave behind to learn from, in a ring of bounded size.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::codec::{Reader, Writer};
use crate::error::SonaError;

/// Times of the parts of a request, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Until its first token was computed on.
    pub queue_us: u64,
    /// The prompt.
    pub prefill_us: u64,
    /// The answer.
    pub decode_us: u64,
}

/// Use of the KV cache by a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvUse {
    /// Tokens of the prompt that were found computed.
    pub n_cached_tokens: u32,
    /// Tokens of the prompt that had to be computed.
    pub n_computed_tokens: u32,
    /// Blocks it held at its end.
    pub n_blocks: u32,
}

/// One request from its prompt to its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trajectory {
    /// The request's number, by which feedback names it.
    pub request: u64,
    /// Whose it is. Nothing is ever learnt from it for another.
    pub tenant: String,
    /// When it ended, in Unix milliseconds.
    pub unix_ms: u64,
    /// The model's hash.
    pub model: [u8; 32],
    /// The generation of what was learnt that it was served with; 0 is the model alone.
    pub adapter_generation: u64,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// The answer's tokens.
    pub answer: Vec<u32>,
    /// The mean of the answer's final hidden states, see [`HiddenSummary`]: `[n_embd]`.
    pub hidden: Vec<f32>,
    /// Its quality, 0 to 1, once somebody has said so.
    pub quality: Option<f32>,
    /// Time that it took.
    pub latency: Latency,
    /// Its use of the KV cache.
    pub kv: KvUse,
}

/// First byte of a trajectory's record.
const FORMAT: u8 = 1;

impl Trajectory {
    /// Returns the trajectory as a record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.u8(FORMAT).u64(self.request).text(&self.tenant).u64(self.unix_ms).raw(&self.model);
        to.u64(self.adapter_generation).u32s(&self.prompt).u32s(&self.answer).f32s(&self.hidden);
        to.u8(u8::from(self.quality.is_some())).f32(self.quality.unwrap_or(0.0));
        to.u64(self.latency.queue_us).u64(self.latency.prefill_us).u64(self.latency.decode_us);
        to.u32(self.kv.n_cached_tokens).u32(self.kv.n_computed_tokens).u32(self.kv.n_blocks);
        to.take()
    }

    /// Reads what [`Trajectory::to_bytes`] made.
    ///
    /// # Errors
    /// If the bytes are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Trajectory, SonaError> {
        let mut from = Reader::new(bytes, "trajectory");
        from.format(FORMAT..=FORMAT)?;
        // The order of the fields is the order of the bytes.
        let trajectory = Trajectory {
            request: from.u64()?,
            tenant: from.text()?,
            unix_ms: from.u64()?,
            model: from.array()?,
            adapter_generation: from.u64()?,
            prompt: from.u32s()?,
            answer: from.u32s()?,
            hidden: from.f32s()?,
            quality: {
                let is_known = from.u8()? != 0;
                let quality = from.f32()?;
                is_known.then_some(quality)
            },
            latency: Latency { queue_us: from.u64()?, prefill_us: from.u64()?, decode_us: from.u64()? },
            kv: KvUse { n_cached_tokens: from.u32()?, n_computed_tokens: from.u32()?, n_blocks: from.u32()? },
        };
        from.end()?;
        Ok(trajectory)
    }

    /// Bytes of memory it holds, about.
    fn n_bytes(&self) -> usize {
        size_of::<Trajectory>() + self.tenant.len() + 4 * (self.prompt.len() + self.answer.len() + self.hidden.len())
    }
}

/// The mean of hidden states, row by row, in the order in which they come.
#[derive(Clone, Debug, Default)]
pub struct HiddenSummary {
    sum: Vec<f32>,
    n_rows: u32,
}

impl HiddenSummary {
    /// Adds a row: `[n_embd]`.
    ///
    /// # Panics
    /// If the rows differ in length.
    pub fn push(&mut self, row: &[f32]) {
        if self.n_rows == 0 {
            self.sum.resize(row.len(), 0.0);
        }
        assert_eq!(self.sum.len(), row.len(), "rows of one model have one length");
        for (sum, value) in self.sum.iter_mut().zip(row) {
            *sum += value;
        }
        self.n_rows += 1;
    }

    /// Returns the mean, empty without rows.
    pub fn mean(&self) -> Vec<f32> {
        self.sum.iter().map(|sum| sum / self.n_rows as f32).collect()
    }
}

/// Counters of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingStats {
    /// Trajectories in it.
    pub n_held: usize,
    /// Bytes of memory they hold.
    pub held_bytes: usize,
    /// All that ever came.
    pub n_pushed: u64,
    /// Number of entries evicted before anybody took them.
    pub n_dropped: u64,
}

/// A bounded queue between the requests and what learns from them. Pushing takes a lock for the time of a move, never
/// waits for a reader's work, and when the ring is full lets the oldest go, which is counted.
///
/// ```
/// use ruvllm_sona::{Trajectory, TrajectoryRing};
///
/// let ring = TrajectoryRing::new(2, 1 << 20);
/// for request in 1..=3 {
///     ring.push(Trajectory { request, ..Trajectory::default() });
/// }
/// assert!(ring.rate(3, 0.9) && !ring.rate(1, 0.9));
/// let taken = ring.drain();
/// assert_eq!(taken.iter().map(|t| (t.request, t.quality)).collect::<Vec<_>>(), [(2, None), (3, Some(0.9))]);
/// assert_eq!((ring.stats().n_pushed, ring.stats().n_dropped), (3, 1));
/// ```
pub struct TrajectoryRing {
    held: Mutex<Held>,
    n_max: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct Held {
    queue: VecDeque<Trajectory>,
    stats: RingStats,
}

impl TrajectoryRing {
    /// A ring for at most `n_max` trajectories that together hold at most `bytes_max` bytes.
    ///
    /// # Panics
    /// If `n_max` is 0.
    pub fn new(n_max: usize, bytes_max: usize) -> TrajectoryRing {
        assert!(n_max > 0, "a ring holds something");
        let queue = VecDeque::with_capacity(n_max);
        TrajectoryRing { held: Mutex::new(Held { queue, stats: RingStats::default() }), n_max, bytes_max }
    }

    /// Puts a trajectory in. One that is larger than the ring is dropped itself.
    pub fn push(&self, trajectory: Trajectory) {
        let n_bytes = trajectory.n_bytes();
        // What is evicted is freed behind the lock.
        let mut gone = vec![];
        let mut held = self.held();
        held.stats.n_pushed += 1;
        if n_bytes > self.bytes_max {
            held.stats.n_dropped += 1;
            drop(held);
            return;
        }
        while held.queue.len() >= self.n_max || held.stats.held_bytes + n_bytes > self.bytes_max {
            let oldest = held.queue.pop_front().expect("the ring is full, so it holds something");
            held.stats.held_bytes -= oldest.n_bytes();
            held.stats.n_dropped += 1;
            gone.push(oldest);
        }
        held.stats.held_bytes += n_bytes;
        held.queue.push_back(trajectory);
        drop(held);
        drop(gone);
    }

    /// Sets the quality of a request that is still here; returns whether it is.
    pub fn rate(&self, request: u64, quality: f32) -> bool {
        let mut held = self.held();
        let found = held.queue.iter_mut().rev().find(|trajectory| trajectory.request == request);
        found.map(|trajectory| trajectory.quality = Some(quality)).is_some()
    }

    /// Takes everything out, oldest first.
    pub fn drain(&self) -> Vec<Trajectory> {
        let empty = VecDeque::with_capacity(self.n_max);
        let mut held = self.held();
        held.stats.held_bytes = 0;
        let queue = std::mem::replace(&mut held.queue, empty);
        drop(held);
        queue.into()
    }

    /// Returns what the ring holds and has done.
    pub fn stats(&self) -> RingStats {
        let held = self.held();
        RingStats { n_held: held.queue.len(), ..held.stats }
    }

    /// Nothing between locking and unlocking can panic halfway, so a poisoned lock is as good as another.
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use proptest::prelude::*;

    use super::*;
    use crate::error::SonaErrorKind;

    fn sample(request: u64, n_tokens: usize) -> Trajectory {
        Trajectory {
            request,
            tenant: "täst".into(),
            unix_ms: 1_700_000_000_000 + request,
            model: [7; 32],
            adapter_generation: 3,
            prompt: vec![1; n_tokens],
            answer: vec![2, 3],
            hidden: vec![0.5, -1.5],
            quality: request.is_multiple_of(2).then_some(0.25),
            latency: Latency { queue_us: 1, prefill_us: 2, decode_us: 3 },
            kv: KvUse { n_cached_tokens: 4, n_computed_tokens: 5, n_blocks: 6 },
        }
    }

    #[test]
    fn records_come_back_and_damaged_ones_are_refused() {
        for request in 0..2 {
            let bytes = sample(request, 5).to_bytes();
            assert_eq!(Trajectory::from_bytes(&bytes).expect("its own bytes"), sample(request, 5));
            for n in 0..bytes.len() {
                assert!(Trajectory::from_bytes(&bytes[..n]).is_err(), "cut at {n}");
            }
            assert!(Trajectory::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        }
        // A count of four thousand million tokens costs no memory.
        let mut huge = sample(0, 0).to_bytes();
        let at = 1 + 8 + 4 + "täst".len() + 8 + 32 + 8;
        huge[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let line = Trajectory::from_bytes(&huge).expect_err("no room").to_string();
        assert!(line.starts_with("trajectory: it counts 4294967295 parts and has room for"), "{line}");
        let mut nan = sample(0, 0).to_bytes();
        let n = nan.len();
        nan[n - 36 - 4..n - 36].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(Trajectory::from_bytes(&nan).expect_err("no number").kind(), SonaErrorKind::Value);
    }

    proptest! {
        /// Nothing is lost uncounted, the newest stay, and neither limit is passed.
        #[test]
        fn pushed_is_held_and_taken_and_dropped(
            sizes in prop::collection::vec(prop_oneof![9 => 0usize..64, 1 => 1000usize..2000], 0..100),
            n_max in 1usize..20,
            drain_at in 0usize..100,
        ) {
            let ring = TrajectoryRing::new(n_max, 5000);
            let mut taken = vec![];
            for (i, size) in sizes.iter().enumerate() {
                ring.push(sample(i as u64, *size));
                if i == drain_at {
                    taken.extend(ring.drain());
                }
                let stats = ring.stats();
                prop_assert!(stats.n_held <= n_max && stats.held_bytes <= 5000);
            }
            let stats = ring.stats();
            taken.extend(ring.drain());
            prop_assert_eq!(stats.n_pushed, sizes.len() as u64);
            prop_assert_eq!(taken.len() as u64 + stats.n_dropped, stats.n_pushed);
            prop_assert!(taken.is_sorted_by_key(|t| t.request));
            let fits = |size: &usize| sample(0, *size).n_bytes() <= 5000;
            let newest = sizes.iter().rposition(fits);
            prop_assert_eq!(taken.last().map(|t| t.request as usize), newest);
            prop_assert_eq!(ring.stats().held_bytes, 0);
        }
    }

    #[test]
    fn many_push_while_one_takes() {
        let (ring, done) = (TrajectoryRing::new(64, 1 << 20), AtomicBool::new(false));
        let n_taken = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut n = 0;
                while !done.load(Relaxed) {
                    n += ring.drain().len();
                }
                n + ring.drain().len()
            });
            let writers: Vec<_> = (0..4u64)
                .map(|w| {
                    let ring = &ring;
                    scope.spawn(move || (0..1000).for_each(|i| ring.push(sample(1000 * w + i, 3))))
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
            done.store(true, Relaxed);
            reader.join().expect("a reader")
        });
        assert_eq!(ring.stats().n_pushed, 4000);
        assert_eq!(n_taken as u64 + ring.stats().n_dropped, 4000);
    }

    #[test]
    fn summaries_are_means() {
        let mut summary = HiddenSummary::default();
        assert!(summary.mean().is_empty());
        summary.push(&[1.0, 2.0]);
        summary.push(&[3.0, -6.0]);
        assert_eq!(summary.mean(), [2.0, -2.0]);
    }
}
