//! Masks computed while the model runs: a thread that takes a matcher, computes its mask and gives both back.
//!
//! It pays where there is a core for it. On one that the model's own threads use it takes as much from them as it saves
//! (measured: docs, "Structured output"), and the mask is computed between the steps.

use std::sync::mpsc::{self, Receiver, Sender};

use llguidance::Matcher;
use toktrie::SimpleVob;

/// What comes back: the matcher, and its mask or what was wrong.
pub(crate) type Computed = (Box<Matcher>, Result<SimpleVob, String>);

/// The thread; it ends when nobody has it any more.
pub(crate) struct MaskThread(Sender<(Box<Matcher>, Sender<Computed>)>);

impl MaskThread {
    /// Starts it, if the machine has a core beside the `n_threads` that the model runs on and a thread for it.
    pub(crate) fn start(n_threads: usize) -> Option<MaskThread> {
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        if n_cores <= n_threads {
            return None;
        }
        let (sender, inbox) = mpsc::channel::<(Box<Matcher>, Sender<Computed>)>();
        let work = move || {
            for (mut matcher, reply) in inbox {
                let mask = matcher.compute_mask().map_err(|error| error.to_string());
                // Whoever asked may be gone.
                let _ = reply.send((matcher, mask));
            }
        };
        std::thread::Builder::new().name("ruvllm-masks".to_owned()).spawn(work).ok()?;
        Some(MaskThread(sender))
    }

    /// Begins a mask. The matcher comes back with it, or at once if the thread has ended.
    pub(crate) fn begin(&self, matcher: Box<Matcher>) -> Result<Receiver<Computed>, Box<Matcher>> {
        let (reply, receiver) = mpsc::channel();
        match self.0.send((matcher, reply)) {
            Ok(()) => Ok(receiver),
            Err(mpsc::SendError((matcher, _))) => Err(matcher),
        }
    }
}
