//! The recorded session of an editing agent, played with drafts and without.

use anyhow::Result;

use crate::{models, shell};

/// The session: a line a turn. `benches/agent_session.py` makes it of this repository's history.
const SESSION: &str = "benches/data/agent_session.jsonl";

/// Plays the session `n_rounds` times by an example of the engine, which prints its tables.
///
/// # Errors
/// The model cannot be had, or the example fails.
pub(super) fn play(model: &str, n_threads: Option<usize>, n_rounds: usize) -> Result<()> {
    models::fetch(&[model], models::build_ruvllm)?;
    let mut run = shell::cargo("run --release --package ruvllm-engine --example agent_session --");
    run.arg(models::path(model)?).arg(shell::root().join(SESSION)).args(["--rounds", &n_rounds.to_string()]);
    if let Some(n_threads) = n_threads {
        run.args(["--threads", &n_threads.to_string()]);
    }
    shell::run(&mut run)
}
