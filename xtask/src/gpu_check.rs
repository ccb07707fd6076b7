//! `cargo xtask gpu-check`: one folder with (compressed) programs, golden models and adapters, and a script, which tests and measures the GPU backend on a
//! machine that has nothing but a GPU and its driver.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::Message;

use crate::shell::{self, cargo};

/// The most bytes of the folder.
const BYTES_MAX: u64 = 60 << 20;

/// Part of the names of tests that need files which are not in the folder: those that read the model of this name.
const SKIPPED: &str = "smollm2";

/// What the folder is made of.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder to make; an older one is replaced [default: target/gpu-check]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Profile that the programs are built with
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
    /// Run the script as well, with small shapes: does the folder work?
    #[arg(long)]
    run: bool,
}

/// A program of the folder: its name there, and what cargo calls it.
struct Program {
    name: &'static str,
    package: &'static str,
    /// Arguments that build it.
    args: &'static str,
    /// Name and kind of the target.
    target: (&'static str, &'static str),
}

const PROGRAMS: [Program; 5] = [
    Program { name: "ruvllm", package: "ruvllm-cli", args: "build --bin ruvllm", target: ("ruvllm", "bin") },
    Program { name: "xtask", package: "xtask", args: "build --bin xtask", target: ("xtask", "bin") },
    Program { name: "kernels", package: "ruvllm-shaders", args: "test --no-run --test it", target: ("it", "test") },
    Program { name: "devices", package: "ruvllm-gpu", args: "test --no-run --test it", target: ("it", "test") },
    Program { name: "models", package: "ruvllm-wgpu", args: "test --no-run --lib", target: ("ruvllm_wgpu", "lib") },
];

/// Makes the folder.
///
/// # Errors
/// A program cannot be built, or the folder is too large; with `--run`, a check fails.
pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = args.out.clone().unwrap_or_else(|| shell::target_dir().join("gpu-check"));
    if folder.exists() {
        if !folder.join("check.sh").exists() {
            bail!("{} is there and is none of ours; name another folder", folder.display());
        }
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot replace {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for program in &PROGRAMS {
        let built = build(program, &args.profile)?;
        let to = folder.join(program.name);
        std::fs::copy(&built, &to).with_context(|| format!("cannot copy {}", built.display()))?;
        shell::run(Command::new("strip").arg(&to))?;
        shell::run(Command::new("gzip").arg("-9").arg(&to))?;
    }
    copy_folder(&shell::root().join("crates/ruvllm-testkit/testdata/models"), &folder.join("testdata/models"))?;
    copy_folder(&shell::root().join("crates/ruvllm-lora/testdata"), &folder.join("testdata/adapters"))?;
    let script = folder.join("check.sh");
    std::fs::write(&script, SCRIPT.replace("SKIPPED", SKIPPED))
        .with_context(|| format!("cannot write {}", script.display()))?;
    let n_bytes = size_of(&folder)?;
    println!("{}: {:.1} MiB; run `sh check.sh` there", folder.display(), n_bytes as f64 / (1 << 20) as f64);
    if n_bytes > BYTES_MAX {
        bail!("the folder has {n_bytes} bytes, {BYTES_MAX} are allowed");
    }
    match args.run {
        true => shell::run(Command::new("sh").arg("check.sh").arg("small").current_dir(&folder)),
        false => Ok(()),
    }
}

/// Builds a program and returns where it lies.
fn build(program: &Program, profile: &str) -> Result<PathBuf> {
    let mut command = cargo(program.args);
    command.args(["--package", program.package, "--profile", profile, "--locked"]);
    command.args(["--message-format", "json-render-diagnostics"]).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot run cargo")?;
    let output = BufReader::new(child.stdout.take().context("standard output was piped above")?);
    let mut found = None;
    for message in Message::parse_stream(output) {
        if let Message::CompilerArtifact(artifact) = message?
            && let Some(path) = artifact.executable
        {
            let (name, kind) = program.target;
            let is_it = artifact.target.name == name && artifact.target.kind.iter().any(|k| k.to_string() == kind);
            found = found.or(is_it.then(|| path.into_std_path_buf()));
        }
    }
    if !child.wait()?.success() {
        bail!("{} cannot be built", program.package);
    }
    found.with_context(|| format!("cargo does not say where it built {}", program.name))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &to)?,
            false => drop(std::fs::copy(entry.path(), to)?),
        }
    }
    Ok(())
}

fn size_of(folder: &Path) -> Result<u64> {
    let mut n_bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        n_bytes += if entry.file_type()?.is_dir() { size_of(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(n_bytes)
}

/// Tests first, then figures. `small` takes a golden model in the place of large ones.
const SCRIPT: &str = r#"#!/bin/sh
# Tests and measures the GPU backend of RuvLLM on this machine: `sh check.sh`, or `RUVLLM_GPU=nvidia sh check.sh` where there
# are several GPUs. What it finds is in report/.
cd "$(dirname "$0")" || exit 1
RUVLLM_TESTDATA=$PWD/testdata
RUVLLM_HOME=$PWD/home
export RUVLLM_TESTDATA RUVLLM_HOME
mkdir -p report
for program in ruvllm xtask kernels devices models; do
    [ -x $program ] || { gunzip -c $program.gz > $program && chmod +x $program; } || exit 1
done
failed=0
step() {
    name=$1
    shift
    echo "== $name"
    if "$@" > "report/$name.txt" 2>&1; then tail -n 3 "report/$name.txt"; else
        failed=1
        echo "FAILED: report/$name.txt"
        tail -n 20 "report/$name.txt"
    fi
}
step detect ./ruvllm detect
[ -n "$RUVLLM_GPU" ] || RUVLLM_GPU=0
export RUVLLM_GPU
step kernels ./kernels --skip metal
step devices ./devices
step models ./models --test-threads 1 --skip SKIPPED
if [ "$1" = small ]; then
    golden=testdata/models/llama-a/model.gguf
    step profile-small ./ruvllm bench --backend gpu --model $golden --profile --pp 32
    step bench-small ./ruvllm bench --backend gpu --model $golden --pp 32 --tg 8 --reps 1 --top-k 1
else
    for shape in llama3b llama8b olmoe; do
        ./xtask synth --shape $shape --out $shape.gguf > "report/synth-$shape.txt" 2>&1 || continue
        step "profile-$shape" ./ruvllm bench --backend gpu --model $shape.gguf --profile --pp 256 --depth 0,2048 --json
        step "bench-$shape" ./ruvllm bench --backend gpu --model $shape.gguf --pp 512 --tg 64 --depth 0,2048 --top-k 1 --json
        rm -f $shape.gguf
    done
fi
[ $failed = 0 ] && echo "all checks passed"
exit $failed
"#;
