//! Documents as spans: the tokens of a text that are learned at once, and those that are only read before them.

use std::ops::ControlFlow;

use ruvllm_engine::{Engine, EngineError, ErrorKind};
use ruvllm_sona::history::Span;

use crate::evaluation_stream::{Window, WindowOptions, window_start};
use crate::reading::ReadSums;
use crate::tenant::TenantLearning;

/// Tokens that are learned together: until then the datastore has none of them.
const N_REQUEST: usize = 512;

/// Tokens between steps of λ, and of a MicroLoRA that takes no steps of its own size.
const N_STEP: usize = 32;

/// Reads a document and has a tenant learn it, piece by piece; returns how it was read. Each piece is an item of the tenant's
/// log. `watch` gets how many tokens were read; where it breaks off, what was read of the document is taken back.
///
/// # Errors
/// The context is too short, `watch` breaks off, or it cannot be written.
pub fn learn_document(
    engine: &mut Engine,
    tenant: &TenantLearning,
    tokens: &[u32],
    watch: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<ReadSums, EngineError> {
    let spans = spans(engine, tokens, &WindowOptions::default(), tenant.n_step())?;
    tenant.settle();
    let (first, mut sums) = (tenant.stats().version + 1, ReadSums::default());
    for span in spans {
        // Between spans, where what is known is what the log says.
        let mut goes_on = ControlFlow::Continue(());
        let read = tenant.learn_span(engine, span, &mut |n| {
            goes_on = watch(n);
            ControlFlow::Continue(())
        })?;
        sums.n_tokens += read.n_tokens;
        sums.model += read.model;
        sums.learned += read.learned;
        if goes_on.is_break() {
            tenant.discard_since(engine, first, "the document was not read to its end")?;
            return Err(EngineError::new(ErrorKind::Cancelled, "stopped; nothing was kept"));
        }
    }
    Ok(sums)
}

/// Cuts a document into spans that are read one after another: windows that overlap, each with the model's first token before it.
fn spans(engine: &Engine, tokens: &[u32], windows: &WindowOptions, n_step: usize) -> Result<Vec<Span>, EngineError> {
    let windows = windows.cut(tokens.len(), engine.info().n_ctx)?;
    let Some(&first) = tokens.first() else { return Ok(Vec::new()) };
    let start = window_start(engine, first)?;
    let spans = windows.flat_map(|Window { from, new }| {
        new.clone().step_by(N_REQUEST).map(move |at| {
            let n_read = 1 + at - from;
            let tokens = [&[start], &tokens[from..(at + N_REQUEST).min(new.end)]].concat();
            Span { tokens, n_read, n_remembered: n_read, n_step, ..Span::default() }
        })
    });
    Ok(spans.collect())
}

impl TenantLearning {
    /// Returns after how many tokens of a document a step is taken.
    fn n_step(&self) -> usize {
        self.shared.options.learn.micro.map_or(N_STEP, |micro| micro.n_tokens)
    }
}
