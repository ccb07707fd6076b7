//! The server, and a client's packages and script: installed, run within a time, and what came of it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::SCRIPTS;
use super::report::{Check, Report};
use super::table::{Client, From};
use crate::{python, shell};

/// The address that the scripts are written for.
const WRITTEN_FOR: &str = "127.0.0.1:8080";
/// What an agent is asked to make.
const FILE: &str = "hello.txt";

/// A server of both models that writes the likeliest tokens.
pub(super) struct Server {
    process: Child,
    address: String,
    folder: TempDir,
}

impl Server {
    pub(super) fn start(ruvllm: &Path) -> Result<Server> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let log = File::create(folder.path().join("log")).context("cannot write the server's log")?;
        let mut command = Command::new(ruvllm);
        command.args(["serve", "--port", "0", "--temp", "0", "--parallel", "4"]);
        command.args(["--model", "qwen2.5-coder:0.5b", "--model", "smollm2:135m"]).stderr(log);
        let (process, address) = shell::serve(&mut command)?;
        Ok(Server { process, address, folder })
    }

    /// Returns the lines that the log has of requests that were answered with 4xx or 5xx, from `start` on.
    fn refused(&self, start: usize) -> Vec<String> {
        let log = self.log();
        let lines = log.get(start..).unwrap_or_default().lines();
        let faults = lines.filter(|line| line.contains(" status=4") || line.contains(" status=5"));
        faults.map(|line| line.split("request: ").last().unwrap_or(line).to_owned()).collect()
    }

    fn log(&self) -> String {
        let bytes = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Installs a client and runs its script.
pub(super) fn client<'a>(client: &'a Client, server: &Server, ruvllm: &Path) -> Report<'a> {
    let (start, log_start) = (Instant::now(), server.log().len());
    let (checks, end) = match try_client(client, server, ruvllm) {
        Ok((checks, end)) => (checks, end),
        Err(error) => (Vec::new(), format!("{error:#}")),
    };
    Report { client, checks, end, refused: server.refused(log_start), took: start.elapsed() }
}

fn try_client(client: &Client, server: &Server, ruvllm: &Path) -> Result<(Vec<Check>, String)> {
    let folder = shell::target_dir().join("clients").join(client.name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let programs = install(client, &folder)?;
    copy_scripts(&folder, &server.address)?;
    let script = folder.join(client.script);
    let mut command = match client.script.rsplit_once('.').expect("scripts have an ending").1 {
        "py" => Command::new(programs.join("python")),
        "mjs" => Command::new("node"),
        _ => Command::new("sh"),
    };
    // An agent sees an empty folder, and a home without anybody's settings.
    let (work, home) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let path = std::env::var("PATH").unwrap_or_default();
    command.arg(&script).env("PATH", format!("{}:{path}", programs.display())).env("RUVLLM", ruvllm);
    match client.is_agent() {
        true => command.current_dir(work.path()).env("HOME", home.path()),
        false => command.current_dir(&folder),
    };
    let (out, error) = (folder.join("out.txt"), folder.join("error.txt"));
    command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(error)?);
    let end = within(&mut command, Duration::from_secs(client.limit_s))?;
    let out = String::from_utf8_lossy(&fs::read(out)?).into_owned();
    let mut checks: Vec<Check> = out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if client.is_agent() {
        checks.push(Check::of_file(fs::read_to_string(work.path().join(FILE)).ok().as_deref()));
    } else if checks.is_empty() {
        bail!("{end}, without a report; see {}", folder.join("error.txt").display());
    }
    Ok((checks, end))
}

/// Installs the packages and returns the folder of their programs.
fn install(client: &Client, folder: &Path) -> Result<PathBuf> {
    if client.from == From::PyPi {
        let python = python::install(&folder.join("python"), &client.packages.join("\n"))?;
        return Ok(python.parent().expect("it lies in a folder").to_path_buf());
    }
    let (stamp, wanted) = (folder.join("installed.txt"), client.packages.join("\n"));
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        fs::write(folder.join("package.json"), r#"{"private": true, "type": "module"}"#)?;
        let npm = ["install", "--no-audit", "--no-fund", "--loglevel", "error", "--save-exact"];
        let mut command = Command::new("npm");
        shell::run(command.args(npm).args(client.packages).current_dir(folder).stdout(Stdio::null()))?;
        fs::write(&stamp, wanted)?;
    }
    Ok(folder.join("node_modules/.bin"))
}

/// Copies all scripts to `folder`, for the server at `address`. Node looks for packages where a script lies.
fn copy_scripts(folder: &Path, address: &str) -> Result<()> {
    let scripts = shell::root().join(SCRIPTS);
    for entry in fs::read_dir(&scripts).with_context(|| format!("cannot read {SCRIPTS}"))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.file_name().expect("an entry has a name");
        fs::write(folder.join(name), text.replace(WRITTEN_FOR, address))?;
    }
    Ok(())
}

/// Runs a program and all that it starts within a time, and returns how it ended.
fn within(command: &mut Command, limit: Duration) -> Result<String> {
    let (start, mut process) = (Instant::now(), command.process_group(0).spawn().context("cannot run it")?);
    loop {
        if let Some(status) = process.try_wait()? {
            return Ok(status.code().map_or_else(|| status.to_string(), |code| format!("rc {code}")));
        }
        if start.elapsed() > limit {
            shell::run(Command::new("kill").args(["-KILL", "--"]).arg(format!("-{}", process.id())))?;
            process.wait()?;
            return Ok(format!("no end within {} s", limit.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_end_or_are_ended() {
        let sh = |script: &str| within(Command::new("sh").args(["-c", script]), Duration::from_millis(500));
        assert_eq!(sh("exit 3").expect("it runs"), "rc 3");
        assert_eq!(sh("sleep 60").expect("it runs"), "no end within 0 s");
    }
}
