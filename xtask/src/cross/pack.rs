//! The sample pack: the kernels as a module of WebAssembly, signed, and compared with native in its sandbox.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::toolchain;
use crate::{models, shell};

const TARGET: &str = "wasm32-unknown-unknown";
/// What the module is built with: the sample is to be as fast as packs can be.
const PROFILE: &str = "release";
const MANIFEST: &str = "crates/ruvllm-pack-kernels/sample.json";

/// Builds the module into the target folder and returns its path.
///
/// # Errors
/// A tool is missing and cannot be installed, or the module does not build.
fn build() -> Result<PathBuf> {
    toolchain::install(&[])?;
    let mut command = toolchain::cargo("build", "std,panic_abort");
    command
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", toolchain::wasm_linker()?)
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", "-C target-feature=+simd128 -C strip=symbols");
    shell::run(command.args(["--package", "ruvllm-pack-kernels", "--lib", "--target", TARGET, "--profile", PROFILE]))?;
    let built = shell::target_dir().join("cross").join(TARGET).join(PROFILE).join("ruvllm_pack_kernels.wasm");
    let folder = shell::target_dir().join("pack");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let module = folder.join("sample.wasm");
    fs::copy(&built, &module).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(module)
}

/// Largest difference of attention, in units of the results' root mean square: its `exp` is the platform's.
const ATTENTION_DIFFERENCE_MAX: f64 = 1e-6;

/// Builds the module and lets `ruvllm packs` judge it: every bit must be native's, but for attention.
///
/// # Errors
/// As [`build`], or the pack is refused, or differs from native.
pub(crate) fn run() -> Result<()> {
    let module = build()?;
    // In CI the tests' build has made it.
    let built = models::ruvllm_path(shell::PROFILE);
    let ruvllm = if built.is_file() { built } else { models::build_ruvllm()? };
    let home = tempfile::tempdir().context("cannot make a temporary folder")?;
    let at = |name: &str| home.path().join(name);
    let packs = |args: &[&str]| packs(&ruvllm, home.path(), args);
    let text = |path: &Path| path.display().to_string();
    let (secret, pack) = (text(&at("secret")), text(&at("sample.pack")));
    let key = packs(&["key", &secret])?;
    let manifest = text(&shell::root().join(MANIFEST));
    packs(&["sign", &text(&module), &pack, "--manifest", &manifest, "--key", &secret])?;
    packs(&["trust", key["key"].as_str().context("no key")?, "--name", "this machine"])?;
    let added = packs(&["add", &pack])?;
    let kernels = added["kernels"].as_array().context("no kernels")?;
    let is_near =
        |kernel: &Value| kernel["difference"].as_f64().is_some_and(|difference| difference <= ATTENTION_DIFFERENCE_MAX);
    let is_right = |kernel: &Value| kernel["equal"] == true || kernel["kernel"] == "attention" && is_near(kernel);
    let other: Vec<&Value> = kernels.iter().filter(|kernel| !is_right(kernel)).collect();
    if !other.is_empty() {
        bail!("kernels of the sample pack differ from native: {other:?}");
    }
    println!(
        "sample pack: every bit of {} kernels is native's, attention within {ATTENTION_DIFFERENCE_MAX}",
        kernels.len() - 1
    );
    for kernel in packs(&["bench", "sample"])?["kernels"].as_array().into_iter().flatten() {
        println!(
            "{:<18} {:>6.2}x native",
            kernel["kernel"].as_str().unwrap_or(""),
            kernel["speed"].as_f64().unwrap_or(0.0)
        );
    }
    Ok(())
}

/// Calls `ruvllm packs` and returns its answer.
fn packs(ruvllm: &Path, home: &Path, args: &[&str]) -> Result<Value> {
    let mut command = Command::new(ruvllm);
    command.arg("packs").args(args).arg("--json").env("RUVLLM_HOME", home);
    serde_json::from_str(&shell::output(&mut command)?).context("ruvllm packs answers in JSON")
}
