//! Memory that adapters and the KV cache share: who loads an adapter asks the thread that owns the cache.

use std::sync::mpsc::{Sender, sync_channel};

use ruvllm_kvcache::PageLender;
use ruvllm_lora::manager::SharedMemory;

use super::owner::Command;

/// Pages of an engine's KV cache, for its adapters.
pub(super) struct OfKeysAndValues {
    lender: PageLender,
    commands: Sender<Command>,
}

impl OfKeysAndValues {
    pub(super) fn new(lender: PageLender, commands: Sender<Command>) -> OfKeysAndValues {
        OfKeysAndValues { lender, commands }
    }
}

impl SharedMemory for OfKeysAndValues {
    /// Waits for the end of the step at work. An owner that has ended lends nothing.
    fn take(&self, n_pages: usize) -> bool {
        let (reply, is_lent) = sync_channel(1);
        self.commands.send(Command::Lend(n_pages, reply)).is_ok() && is_lent.recv().unwrap_or(false)
    }

    fn give(&self, n_pages: usize) {
        self.lender.take_back(n_pages);
    }
}
