//! Threads of a pool: the system's, or those of the host where the system starts none.

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
mod system {
    use std::thread::{Builder, JoinHandle};

    /// A thread that works until its pool ends.
    #[derive(Debug)]
    pub(in crate::pool) struct Worker(JoinHandle<()>);

    impl Worker {
        /// Starts one.
        ///
        /// # Panics
        /// If the system refuses it.
        pub(in crate::pool) fn start(number: usize, work: impl FnOnce() + Send + 'static) -> Worker {
            let builder = Builder::new().name(format!("ruvllm-{number}"));
            Worker(builder.spawn(work).expect("the system starts a worker thread"))
        }

        /// Returns once its work is over.
        pub(in crate::pool) fn join(self) {
            // A worker catches the panics of its closures, so it can only have ended well.
            let _ = self.0.join();
        }
    }

    /// Returns how many of the workers that are wished for a pool may have, and how many cores there are for them.
    pub(in crate::pool) fn at_most(n_wished: usize) -> (usize, usize) {
        // Without threads, as under WASI, the caller is alone.
        let has_threads = cfg!(any(not(target_family = "wasm"), target_feature = "atomics"));
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        (if has_threads { n_wished } else { 0 }, n_cores)
    }
}

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
pub(super) use system::{Worker, at_most};

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub(super) use crate::host::{Worker, at_most};
