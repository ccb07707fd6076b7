//! A server's process: started with the variables it is given, in a group of its own, read within bounds, and ended.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::config::McpServerConfig;

/// Bytes that are kept of the end of a server's standard error.
const TAIL_BYTES: usize = 4096;
/// Lines of it that are told.
const TAIL_LINES: usize = 3;
/// Time that a server has to end when its input ends, and again when it is asked to.
const END: Duration = Duration::from_secs(1);
/// Time that the rest of its standard error has to come.
const REST: Duration = Duration::from_millis(200);

/// Knowledge of a process that outlives it: how it ended, and what it said on standard error.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    status: Mutex<Option<String>>,
    tail: Mutex<Vec<u8>>,
    /// Whether a message was longer than may be.
    is_oversized: AtomicBool,
    message_bytes_max: usize,
}

impl Ended {
    /// Returns how the server ended, as the end of a line.
    pub(crate) fn reason(&self) -> String {
        if self.is_oversized.load(Ordering::Relaxed) {
            return format!("sent a message of more than {} MiB and was ended", self.message_bytes_max >> 20);
        }
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let ended = status.map_or_else(|| "closed its output".to_owned(), |status| format!("ended ({status})"));
        match self.said() {
            said if said.is_empty() => ended,
            said => format!("{ended}: {said}"),
        }
    }

    /// Returns the last lines on standard error, as one.
    pub(crate) fn said(&self) -> String {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&tail);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join(" | ")
    }
}

/// A server's process, and the messages that it sends and gets.
pub(crate) struct Process {
    child: Child,
    pipes: AsyncRwTransport<RoleClient, Bounded<ChildStdout>, ChildStdin>,
    stderr: Option<JoinHandle<()>>,
    ended: Arc<Ended>,
}

impl Process {
    /// Starts a server. It gets the variables of `environment` and those of its entry, and no others.
    ///
    /// # Errors
    /// The program is not there, or the system refuses.
    pub(crate) fn start(
        config: &McpServerConfig,
        environment: &[(String, String)],
        message_bytes_max: usize,
    ) -> io::Result<(Process, Arc<Ended>)> {
        let mut command = Command::new(&config.command);
        command.args(&config.args).env_clear();
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.envs(config.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.current_dir(config.cwd.as_deref().unwrap_or(Path::new(".")));
        // In a group of its own: Ctrl-C is for the person's program, and what the server starts ends with it.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn()?;
        let missing = || io::Error::other("it has no pipes");
        let (stdin, stdout) = (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
        let ended = Arc::new(Ended { message_bytes_max, ..Ended::default() });
        let stderr = child.stderr.take().map(|stderr| tokio::spawn(keep_tail(stderr, Arc::clone(&ended))));
        let stdout = Bounded { inner: stdout, n_line: 0, ended: Arc::clone(&ended) };
        // What is too long is met before it is here.
        let pipes = AsyncRwTransport::new(stdout, stdin).with_max_line_length(usize::MAX);
        Ok((Process { child, pipes, stderr, ended: Arc::clone(&ended) }, ended))
    }

    /// Waits a moment for the end; returns whether it came.
    async fn waits(&mut self) -> bool {
        let Ok(Ok(status)) = timeout(END, self.child.wait()).await else { return false };
        *self.ended.status.lock().unwrap_or_else(PoisonError::into_inner) = Some(status.to_string());
        true
    }

    /// Ends the process: by the end of its input, by a signal, by force.
    async fn end(&mut self) {
        // A pipe that is closed already is as well.
        let _ = self.pipes.close().await;
        if !self.waits().await {
            self.signal(false);
            if !self.waits().await {
                self.signal(true);
                self.waits().await;
            }
        }
        if let Some(reader) = self.stderr.take() {
            let stop = reader.abort_handle();
            // What the server started may have the pipe still.
            if timeout(REST, reader).await.is_err() {
                stop.abort();
            }
        }
    }

    /// Asks the process and those of its group to end, or with `is_forced` ends them.
    #[cfg(unix)]
    fn signal(&mut self, is_forced: bool) {
        use rustix::process::{Pid, Signal, kill_process_group};
        let signal = if is_forced { Signal::KILL } else { Signal::TERM };
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            // One that has just ended is no fault.
            let _ = kill_process_group(pid, signal);
        }
    }

    #[cfg(not(unix))]
    fn signal(&mut self, _is_forced: bool) {
        let _ = self.child.start_kill();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // `id` is none once it was waited for.
        self.signal(true);
    }
}

impl Transport<RoleClient> for Process {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        self.pipes.send(item)
    }

    fn receive(&mut self) -> impl Future<Output = Option<RxJsonRpcMessage<RoleClient>>> + Send {
        self.pipes.receive()
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.end().await;
        Ok(())
    }
}

/// Reads standard error to its end and keeps the last of it.
async fn keep_tail(mut stderr: ChildStderr, ended: Arc<Ended>) {
    let mut chunk = [0; 1024];
    while let Ok(n @ 1..) = stderr.read(&mut chunk).await {
        let mut tail = ended.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&chunk[..n]);
        let n_before = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..n_before);
    }
}

/// Reads lines, and fails at one that is too long.
struct Bounded<R> {
    inner: R,
    /// Bytes of the line so far.
    n_line: usize,
    ended: Arc<Ended>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Bounded<R> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let n_before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buf))?;
        let read = &buf.filled()[n_before..];
        self.n_line = match read.iter().rposition(|&byte| byte == b'\n') {
            Some(at) => read.len() - at - 1,
            None => self.n_line + read.len(),
        };
        if self.n_line > self.ended.message_bytes_max {
            self.ended.is_oversized.store(true, Ordering::Relaxed);
            return Poll::Ready(Err(io::Error::other("a message is too long")));
        }
        Poll::Ready(Ok(()))
    }
}
