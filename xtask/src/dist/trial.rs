//! A trial of the packages: in an empty folder of Debian the package is installed, the unit's command is run and asked, and the
//! package is removed; nothing of it is left. The static program is run in an older Debian.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::VERSION;
use crate::{models, shell};

/// Debian that the package is installed in.
const SUITE: &str = "bookworm";
/// Older Debian for the static program: glibc 2.31.
const OLD_SUITE: &str = "bullseye";
/// Where they lie.
const MIRROR: &str = "http://deb.debian.org/debian";
/// Model that is asked.
const MODEL: &str = "smollm2:135m";
/// Longest time until the server listens.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Folders whose content is the system's own book-keeping.
const BOOKS: [&str; 4] = ["/proc/", "/var/cache/", "/var/log/", "/var/lib/dpkg/"];

/// Tries the packages in a folder.
///
/// # Errors
/// A step fails, or something is left.
pub(super) fn run(out: &Path) -> Result<()> {
    if Command::new("debootstrap").arg("--version").output().is_err() {
        shell::apt_install(&["debootstrap"])?;
    }
    let root = debian(SUITE)?;
    let before = listed(&root)?;
    let package = format!("ruvllm_{VERSION}_amd64.deb");
    fs::copy(out.join(&package), root.join("root").join(&package))?;
    in_root(&root, &["dpkg", "--install", &format!("/root/{package}")])?;
    println!("trial: {}", in_root(&root, &["/usr/bin/ruvllm", "--version"])?.trim());
    put_model(&root)?;
    ask(&root)?;
    in_root(&root, &["dpkg", "--purge", "ruvllm"])?;
    fs::remove_file(root.join("root").join(&package))?;
    let after = listed(&root)?;
    let left: Vec<&String> = after.difference(&before).collect();
    if !left.is_empty() {
        bail!("the package left behind: {left:?}");
    }
    println!("trial: installed, asked and removed in {SUITE}; nothing is left");
    old(out)
}

/// Runs the static program in an older Debian.
fn old(out: &Path) -> Result<()> {
    let root = debian(OLD_SUITE)?;
    let folder = format!("ruvllm-{VERSION}-linux-x64-static");
    shell::run(
        Command::new("tar").arg("-xzf").arg(out.join(format!("{folder}.tar.gz"))).arg("-C").arg(root.join("root")),
    )?;
    put_model(&root)?;
    let program = format!("/root/{folder}/bin/ruvllm");
    let answer = ["run", "--raw", "--prompt", "Once upon a time", "--max-tokens", "8", "--temp", "0"];
    let answer = in_root(&root, &[&[program.as_str()], &answer[..]].concat())?;
    let libc = in_root(&root, &["ldd", "--version"])?;
    println!("trial: in {OLD_SUITE} ({}): {:?}", libc.lines().next().unwrap_or_default(), answer.trim());
    Ok(())
}

/// Makes a folder of a Debian with nothing but its base, or takes the one that is there.
fn debian(suite: &str) -> Result<PathBuf> {
    let root = shell::target_dir().join("dist-trial").join(suite);
    if !root.join("etc/debian_version").exists() {
        fs::create_dir_all(&root)?;
        // The keys of old releases are not on every machine; nothing of this folder leaves it.
        let options = ["--variant=minbase", "--no-check-gpg", suite];
        shell::run(Command::new("debootstrap").args(options).arg(&root).arg(MIRROR))?;
    }
    Ok(root)
}

/// Runs a program in a folder of Debian and returns what it prints.
fn in_root(root: &Path, args: &[&str]) -> Result<String> {
    shell::output(&mut chroot(root, args))
}

fn chroot(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("chroot");
    command.arg(root).args(args).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.env("RUVLLM_HOME", "/var/lib/ruvllm").env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Puts the model where a pull would put it.
fn put_model(root: &Path) -> Result<()> {
    models::fetch(&[MODEL], models::build_ruvllm)?;
    let (from, to) = (models::path(MODEL)?, root.join("var/lib/ruvllm/models"));
    fs::create_dir_all(&to)?;
    let name = from.file_name().context("a model is a file")?;
    fs::copy(&from, to.join(name)).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// Runs the unit's command, on a port that is free, and asks it.
fn ask(root: &Path) -> Result<()> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/ruvllm.service"))?;
    let command = command_of(&unit)?;
    let config = root.join("etc/ruvllm/config.toml");
    let text = fs::read_to_string(&config)?.replace("[serve]\n", &format!("[serve]\nport = {port}\nctx = 1024\n"));
    fs::write(&config, text)?;
    let args: Vec<&str> = command.iter().map(String::as_str).collect();
    let mut server = Server(chroot(root, &args).spawn().context("cannot start the unit's command")?);
    let answer = server.answer(port)?;
    if !answer.starts_with("HTTP/1.1 200") {
        bail!("the server answered {answer:?}");
    }
    println!("trial: {} answered: {}", command.join(" "), answer.lines().last().unwrap_or_default());
    shell::run(Command::new("kill").args(["-TERM", &server.0.id().to_string()]))?;
    let status = server.0.wait()?;
    if !status.success() {
        bail!("the server ended with {status}");
    }
    Ok(())
}

/// A server that ends with its owner.
struct Server(Child);

impl Server {
    /// Asks for a few tokens, once it listens.
    fn answer(&mut self, port: u16) -> Result<String> {
        let start = Instant::now();
        loop {
            if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
                let body = "{\"prompt\": \"The capital of France is\", \"max_tokens\": 8, \"temperature\": 0}";
                let head =
                    "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
                write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer)?;
                return Ok(answer);
            }
            if let Some(status) = self.0.try_wait()? {
                bail!("the server ended before it listened: {status}");
            }
            if start.elapsed() > START_TIMEOUT {
                bail!("the server does not listen");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the command that a unit starts.
///
/// # Errors
/// It starts none.
pub(super) fn command_of(unit: &str) -> Result<Vec<String>> {
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart="));
    let line = line.context("the unit has no ExecStart")?;
    Ok(line.split_whitespace().map(str::to_owned).collect())
}

/// Returns the paths in a folder, but for the system's books.
fn listed(root: &Path) -> Result<BTreeSet<String>> {
    let (mut found, mut folders) = (BTreeSet::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let path = entry.path();
            let shown = format!("/{}", path.strip_prefix(root)?.display());
            if BOOKS.iter().any(|book| format!("{shown}/").starts_with(book)) {
                continue;
            }
            found.insert(shown);
            if entry.file_type()?.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(found)
}
