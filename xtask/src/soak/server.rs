//! The server of a soak: its process, its keys, and what it holds.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;

use super::client;
use crate::shell;

/// How long requests may go on after the server was asked to stop.
pub(super) const DRAIN: Duration = Duration::from_secs(3);
/// The most bytes of a body.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;
/// The key of those who are never refused for it.
pub(super) const KEY: &str = "key-of-the-soak";
/// The key of a tenant that is attacked by the one of [`KEY`].
pub(super) const OTHER_KEY: &str = "key-of-the-other";
/// How long the last requests may take to end when all clients have gone.
const SETTLE: Duration = Duration::from_secs(15);

/// A server that runs.
pub(super) struct Server {
    process: Child,
    pub address: String,
    keys: PathBuf,
    /// Which key the guests have.
    guest: AtomicU64,
    folder: TempDir,
}

/// What the system lets a server have.
pub(super) struct Limits {
    /// Descriptors.
    pub n_files: u32,
    /// Kibibytes of addresses.
    pub n_kib: u64,
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub resident_bytes: u64,
    pub n_threads: usize,
    pub n_files: usize,
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Held { resident_bytes, n_threads, n_files } = self;
        write!(f, "{} MB, {n_threads} threads, {n_files} descriptors", resident_bytes / 1_000_000)
    }
}

impl Server {
    /// Starts it with few places, a short queue and little memory, so that all limits are reached.
    pub(super) fn start(ruvllm: &Path, model: &str) -> Result<Server> {
        let drain = DRAIN.as_secs().to_string();
        let bytes = BODY_BYTES_MAX.to_string();
        let limits = ["--queue", "16", "--kv-mib", "64", "--max-body", &bytes, "--drain", &drain];
        Server::spawn(Command::new(ruvllm), model, &limits)
    }

    /// Starts it with few descriptors and addresses. Every answer is put on record.
    pub(super) fn start_limited(ruvllm: &Path, model: &str, limits: &Limits, body_bytes_max: usize) -> Result<Server> {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {} && ulimit -v {} && exec \"$0\" \"$@\"", limits.n_files, limits.n_kib);
        command.args(["-c", &script]).arg(ruvllm);
        let drain = DRAIN.as_secs().to_string();
        let bytes = body_bytes_max.to_string();
        let more = ["--kv-mib", "128", "--max-body", &bytes, "--drain", &drain, "--witness", "record"];
        Server::spawn(command, model, &more)
    }

    fn spawn(mut command: Command, model: &str, more: &[&str]) -> Result<Server> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let (keys, log) = (folder.path().join("keys"), folder.path().join("log"));
        write_keys(&keys, 0)?;
        let log = std::fs::File::create(&log).context("cannot write the server's log")?;
        let args = ["serve", "--port", "0", "--model", model, "--parallel", "8", "--ctx", "2048", "--api-key-file"];
        command.args(args).arg(&keys).args(more.iter().map(|word| match *word {
            "record" => folder.path().join("record").into_os_string(),
            word => word.into(),
        }));
        let (process, address) = shell::serve(command.stderr(log))?;
        println!("{model} is served at {address}");
        Ok(Server { process, address, keys, guest: AtomicU64::new(0), folder })
    }

    /// Returns the guests' key as it is now.
    pub(super) fn guest_key(&self) -> String {
        guest_key(self.guest.load(Ordering::Relaxed))
    }

    /// Revokes the guests' key and gives them another.
    pub(super) fn change_guest_key(&self) -> Result<()> {
        let n = self.guest.load(Ordering::Relaxed) + 1;
        write_keys(&self.keys, n)?;
        self.guest.store(n, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn resident_bytes(&self) -> Result<u64> {
        Ok(self.held()?.resident_bytes)
    }

    /// Returns what the process holds.
    pub(super) fn held(&self) -> Result<Held> {
        let of = |what: &str| format!("/proc/{}/{what}", self.process.id());
        let status = std::fs::read_to_string(of("status")).context("the server has ended")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the server has ended")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("no number of kB")?;
        let count = |what| std::fs::read_dir(of(what)).map_or(0, Iterator::count);
        Ok(Held { resident_bytes: kib << 10, n_threads: count("task"), n_files: count("fd") })
    }

    /// Returns what is still held when all clients have gone: `nothing`, or what.
    pub(super) fn left_behind(&self) -> Result<String> {
        let start = Instant::now();
        loop {
            let metrics = client::metrics(&self.address)?;
            let sum = |name: &str| {
                let lines = metrics.lines().filter(|line| line.starts_with(name));
                lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
            };
            let in_use = metrics.lines().filter(|line| line.starts_with("ruvllm_kv_blocks") && line.contains("in_use"));
            let n_blocks: f64 = in_use.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
            let n_requests = sum("ruvllm_requests_running") + sum("ruvllm_requests_waiting");
            // One of them asks for the metrics.
            let n_connections = (sum("ruvllm_connections") - 1.0).max(0.0);
            if n_requests + n_blocks + n_connections == 0.0 {
                return Ok("nothing".to_owned());
            }
            if start.elapsed() > SETTLE {
                return Ok(format!("{n_requests} requests, {n_blocks} blocks, {n_connections} connections"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Asks it to stop while answers are written, and returns how long it takes.
    pub(super) fn stop(mut self) -> Result<Duration> {
        let open: Vec<_> = (0..4).map(|_| client::open_long(&self.address)).collect::<Result<_>>()?;
        let took = self.terminate()?;
        drop(open);
        Ok(took)
    }

    /// Asks it to stop, and returns what `ruvllm witness verify` says of its record.
    pub(super) fn stop_and_verify(mut self, ruvllm: &Path) -> Result<Value> {
        self.terminate()?;
        let mut verify = Command::new(ruvllm);
        let output = verify.args(["witness", "verify", "--json"]).arg(self.folder.path().join("record")).output()?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("no verdict on the record: {}", String::from_utf8_lossy(&output.stderr)))
    }

    fn terminate(&mut self) -> Result<Duration> {
        let start = Instant::now();
        let sent = Command::new("kill").arg("-TERM").arg(self.process.id().to_string()).status()?;
        if !sent.success() {
            bail!("the server has ended before it was asked to");
        }
        let status = loop {
            match self.process.try_wait()? {
                Some(status) => break status,
                None if start.elapsed() > DRAIN * 10 => bail!("it does not stop"),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        match status.success() {
            true => Ok(start.elapsed()),
            false => bail!("it stopped with {status}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.process.kill();
    }
}

fn guest_key(n: u64) -> String {
    format!("key-of-guests-{n}")
}

fn write_keys(path: &Path, n: u64) -> Result<()> {
    let text = format!("soak {KEY}\nother {OTHER_KEY}\nguest {} concurrent=6 kv_mib=16\n", guest_key(n));
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path)).context("cannot write the keys")
}
