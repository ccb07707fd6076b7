//! Logits processors: they see final hidden states and logits while answers are written, may change both, and hear what came of it.
//!
//! The engine only says when. A [`LogitsProcessor`] is shared by the requests that have it; each gets a [`LogitsHook`] of its own, whose
//! methods run between passes, on the thread that runs the model. What a hook does depends on its own request's tokens
//! only, at the same places of the answer alone, in a batch and with draft tokens: so do the tokens.

use std::fmt::Debug;
use std::sync::Arc;

use ruvllm_lora::micro::{LogitRow, MicroLora, StateRows};

/// Learns from the answers of the requests that have it ([`GenerateRequest::logits_processor`](crate::GenerateRequest::logits_processor)).
pub trait LogitsProcessor: Debug + Send + Sync {
    /// Begins with a request, of whose prompt these are the tokens. `is_approx`: its tokens are the most likely by an approximate head,
    /// so [`LogitsHook::adjust`] sees approximate logits wherever the hook does not [need all](LogitsHook::needs_all).
    fn begin(&self, prompt: &[u32], is_approx: bool) -> Box<dyn LogitsHook>;
}

/// The part of a [`LogitsProcessor`] in one request. Whatever it keeps for others it gives to its processor when it is dropped, or as
/// soon as it likes.
pub trait LogitsHook: Send {
    /// Returns whether it wants to [`LogitsHook::read`]. That costs a prompt the rows of its last layer, which are left out
    /// otherwise.
    fn reads_prompt(&self) -> bool {
        false
    }

    /// Sees final hidden states of the prompt, `[n, n_embd]`: those of its tokens from position `first` on. What was cached
    /// is not computed again and not shown; nor is the last token, whose state comes to [`LogitsHook::adjust`].
    fn read(&mut self, first: usize, hidden: &[f32]) {
        let _ = (first, hidden);
    }

    /// Returns what changes the final hidden states, as it is now.
    fn micro(&self) -> Option<&Arc<MicroLora>>;

    /// Returns for how many tokens more [`LogitsHook::micro`] stays what it is: after that many calls of [`LogitsHook::accept`] it
    /// may be another. At least 1; tokens beyond them are not drafted.
    fn n_steady(&self) -> usize;

    /// Returns whether all logits of the next token must be exact, now that the last one was accepted. Otherwise, in a request
    /// that began as approximate, exact ones that do not count may be -∞.
    fn needs_all(&self) -> bool {
        true
    }

    /// Changes the logits of the next token: `[n_vocab]`, made of a final hidden state, one row as it was before
    /// [`LogitsHook::micro`]. Not called where a grammar leaves no choice and nothing was computed.
    fn adjust(&mut self, state: StateRows<'_>, logits: LogitRow<'_>);

    /// Hears which token it became.
    fn accept(&mut self, token: u32);
}
