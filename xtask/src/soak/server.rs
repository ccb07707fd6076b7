//! The server of a soak: its process, its keys, and what it holds.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::client;

/// How long requests may go on after the server was asked to stop.
pub(super) const DRAIN: Duration = Duration::from_secs(3);
/// The most bytes of a body.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;
/// The key of those who are never refused for it.
pub(super) const KEY: &str = "key-of-the-soak";
/// How long the last requests may take to end when all clients have gone.
const SETTLE: Duration = Duration::from_secs(15);

/// A server that runs.
pub(super) struct Server {
    process: Child,
    pub address: String,
    keys: PathBuf,
    /// Which key the guests have.
    guest: AtomicU64,
    _folder: TempDir,
}

impl Server {
    /// Starts it with few places, a short queue and little memory, so that all limits are reached.
    pub(super) fn start(ruvllm: &Path, model: &str) -> Result<Server> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let (keys, log) = (folder.path().join("keys"), folder.path().join("log"));
        write_keys(&keys, 0)?;
        let drain = DRAIN.as_secs().to_string();
        let bytes = BODY_BYTES_MAX.to_string();
        let log = std::fs::File::create(&log).context("cannot write the server's log")?;
        let args = ["serve", "--port", "0", "--model", model, "--parallel", "8", "--queue", "16", "--ctx", "2048"];
        let more = ["--kv-mib", "64", "--max-body", &bytes, "--drain", &drain, "--api-key-file"];
        let mut process = Command::new(ruvllm)
            .args(args)
            .args(more)
            .arg(&keys)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}", ruvllm.display()))?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("it is piped")?).read_line(&mut line)?;
        let address = line.trim().split("http://").nth(1).with_context(|| format!("it does not listen: {line:?}"))?;
        let address = address.to_owned();
        println!("{model} is served at {address}");
        Ok(Server { process, address, keys, guest: AtomicU64::new(0), _folder: folder })
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
        let path = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(&path).context("the server has ended")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the server has ended")?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("no number of kB")?;
        Ok(kib << 10)
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
        drop(open);
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
    let text = format!("soak {KEY}\nguest {} concurrent=6 kv_mib=16\n", guest_key(n));
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path)).context("cannot write the keys")
}
