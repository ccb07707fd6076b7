//! Running the command, and small model files to run it on.

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use ruvllm_testkit::Golden;
use serde_json::Value;
use tempfile::TempDir;

/// A folder for one test and the command with a clean environment that lives in it.
pub struct Bench {
    dir: TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        Bench { dir: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("a temporary folder is writable");
        path
    }

    /// Returns the command, whose models, history and hub cache live in the folder, with one thread.
    pub fn ruvllm(&self) -> Command {
        let mut command = Command::cargo_bin("ruvllm").expect("the binary of this package");
        command.env("RUVLLM_HOME", self.path("home")).env("HF_HOME", self.path("hf")).env("RUVLLM_THREADS", "1");
        command.env("XDG_CONFIG_HOME", self.path("config")).env_remove("RUVLLM_CONFIG");
        for name in
            ["RUVLLM_SOURCES", "RUVLLM_ISA", "RUVLLM_GPU", "HF_ENDPOINT", "HF_TOKEN", "HF_TOKEN_PATH", "NO_COLOR"]
        {
            command.env_remove(name);
        }
        // Mesa's drivers complain on standard error where there is none.
        command.env("XDG_RUNTIME_DIR", self.dir.path());
        // An empty pipe: what stands on the terminal of whoever runs the tests does not count.
        command.current_dir(self.dir.path()).write_stdin("");
        command
    }

    /// Runs the command with these arguments.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.ruvllm().args(args).output().expect("the command starts")
    }

    /// Runs the command, which must succeed silently, and returns the JSON object it answers with.
    pub fn json<S: AsRef<std::ffi::OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Value {
        json_of(&self.run(args))
    }
}

/// Returns the one JSON object on standard output of a command that succeeded and said nothing else.
pub fn json_of(output: &Output) -> Value {
    let (stdout, stderr) = (text(&output.stdout), told(&output.stderr));
    assert!(output.status.success() && stderr.is_empty(), "{:?}: {stderr}", output.status);
    assert_eq!(stdout.matches('\n').count(), 1, "one line: {stdout}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

/// Asserts that the command failed with `code`, wrote nothing to standard output and one line to standard error, and
/// returns that line.
#[track_caller]
pub fn error_line(output: &Output, code: i32) -> String {
    let (stdout, stderr) = (text(&output.stdout), told(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stdout, "", "answers only on success");
    let line = stderr.strip_suffix('\n').unwrap_or_else(|| panic!("no line: {stderr:?}"));
    assert!(!line.contains('\n') && line.starts_with("error: "), "one line: {stderr}");
    line.to_owned()
}

/// Returns what a command said on standard error, but for the lines about work that took long: a busy machine has more of them.
pub fn told(stderr: &[u8]) -> String {
    text(stderr).split_inclusive('\n').filter(|line| !line.starts_with("note: ")).collect()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Returns a small model (two layers of llama, random weights) whose file the tests may read but not change.
pub fn tiny() -> PathBuf {
    Golden::load("llama-a").model("f32")
}

/// Copies the small model with other metadata.
pub fn tiny_with(out: &Path, change: impl FnOnce(&mut ruvllm_gguf::Metadata)) {
    let file = ruvllm_gguf::GgufFile::open(&tiny()).expect("the small model is sound");
    let mut writer = ruvllm_gguf::GgufWriter::from_file(&file);
    change(writer.metadata_mut());
    writer.write_file(out).expect("a temporary folder is writable");
}
