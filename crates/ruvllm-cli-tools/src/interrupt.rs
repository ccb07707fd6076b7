//! Ctrl-C: stops the answer being written, if there is one, else the program.

use std::io::{IsTerminal as _, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ruvllm_backend::Interrupt;
use ruvllm_engine::CancelToken;
use ruvllm_mcp::McpCancel;

use crate::error::{Error, Result};

/// The answer being written. The first Ctrl-C takes it, so a second one ends the program.
static ANSWER: Mutex<Option<Answer>> = Mutex::new(None);

/// The switch that ends an answer that is being written.
enum Answer {
    /// One of an engine.
    Engine(CancelToken),
    /// One of another server.
    Remote(Interrupt),
    /// A call of a tool on its way to one.
    Call(McpCancel),
}

impl Answer {
    fn end(self) {
        match self {
            Answer::Engine(token) => token.cancel(),
            Answer::Remote(interrupt) => interrupt.set(),
            Answer::Call(cancel) => cancel.cancel(),
        }
    }
}

fn answer() -> MutexGuard<'static, Option<Answer>> {
    ANSWER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the answer being written; what ends it may take a moment, in which nobody waits for it.
fn take() -> Option<Answer> {
    answer().take()
}

/// Installs the handler; call once, at start.
///
/// # Errors
/// A failure if the system refuses.
pub fn install() -> Result<()> {
    let handler = || match take() {
        Some(answer) => answer.end(),
        None => {
            // A progress bar may have hidden the cursor; anything half-written ends with the line.
            if std::io::stderr().is_terminal() {
                let _ = writeln!(std::io::stderr(), "\x1b[?25h");
            }
            std::process::exit(i32::from(Error::Interrupted.exit_code()));
        }
    };
    ctrlc::set_handler(handler).map_err(|error| Error::failure(format_args!("cannot handle Ctrl-C: {error}")))
}

/// Ends when somebody asks the program to stop, by Ctrl-C or SIGTERM. The second time ends the program at once. For the
/// runtime of a server, instead of [`install`].
pub async fn stop() {
    asked().await;
    tokio::spawn(async {
        asked().await;
        std::process::exit(i32::from(Error::Interrupted.exit_code()));
    });
}

#[cfg(unix)]
async fn asked() {
    use tokio::signal::unix::{SignalKind, signal};
    let (interrupt, terminate) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    match (interrupt, terminate) {
        (Ok(mut interrupt), Ok(mut terminate)) => tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        },
        // The system ends the program by itself then.
        _ => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn asked() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// While this lives, Ctrl-C cancels one answer instead of ending the program.
#[derive(Debug)]
pub struct InterruptGuard(());

/// Makes Ctrl-C cancel `token` until the guard is dropped.
pub fn cancels(token: &CancelToken) -> InterruptGuard {
    *answer() = Some(Answer::Engine(token.clone()));
    InterruptGuard(())
}

/// Makes Ctrl-C end a request to another server until the guard is dropped.
pub fn ends(interrupt: &Interrupt) -> InterruptGuard {
    *answer() = Some(Answer::Remote(interrupt.clone()));
    InterruptGuard(())
}

/// Makes Ctrl-C give up a call of a tool until the guard is dropped.
pub fn gives_up(cancel: &McpCancel) -> InterruptGuard {
    *answer() = Some(Answer::Call(cancel.clone()));
    InterruptGuard(())
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        *answer() = None;
    }
}
