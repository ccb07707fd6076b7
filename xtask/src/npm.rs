//! `cargo xtask npm`: the packages of npm, built and packed into `target/npm`, and tested in an empty folder.
//!
//! | package | holds |
//! |---|---|
//! | `@ruvllm/node` | the client in JavaScript, for modules and `require`, and its types |
//! | `@ruvllm/node-<platform>` | the addon and the program `ruvllm` of one platform ([`PLATFORMS`]) |
//! | `ruvllm` | the command, and `@ruvllm/node` or `@ruvllm/web`, as the platform is |
//!
//! Types of bodies and options are generated from the addon and compared with those that are committed; `--write` writes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::files::{copy, copy_folder, empty, license};
use crate::shell::{self, PROFILE, cargo};
use crate::{dist, models, node};

/// Sources of the packages.
const SOURCES: &str = "crates/ruvllm-node/js";
/// A tiny model with random weights.
const GOLDEN: &str = "crates/ruvllm-testkit/testdata/models/llama-a/model.gguf";
/// Pages whose programs are run.
const PAGES: [&str; 3] = [
    "crates/ruvllm-node/js/packages/node/README.md",
    "crates/ruvllm-node/js/packages/ruvllm/README.md",
    "docs/src/node.md",
];
/// Types that both packages have, and those that are generated.
const TYPES: [&str; 3] = ["api.d.ts", "bodies.d.ts", "options.d.ts"];

/// How `cargo xtask npm` builds the packages.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Profile of the addon and the program
    #[arg(long, default_value = "release")]
    profile: String,
    /// Platform of the addon and the program; others than this machine's need their toolchain, and are not tested
    #[arg(long, value_name = "NAME", value_parser = PLATFORMS.map(|platform| platform.name))]
    platform: Option<String>,
    /// Write the generated types instead of comparing them
    #[arg(long)]
    write: bool,
    /// Only build and pack
    #[arg(long)]
    no_test: bool,
}

/// A platform that has a package of its own.
struct Platform {
    name: &'static str,
    target: &'static str,
    os: &'static str,
    cpu: &'static str,
    libc: Option<&'static str>,
}

const fn platform(name: &'static str, target: &'static str, os: &'static str, cpu: &'static str) -> Platform {
    Platform { name, target, os, cpu, libc: None }
}

/// All of them. The first is built and tested; nobody has built the others yet, so `@ruvllm/node` does not depend on them.
const PLATFORMS: [Platform; 6] = [
    Platform { libc: Some("glibc"), ..platform("linux-x64-gnu", "x86_64-unknown-linux-gnu", "linux", "x64") },
    Platform { libc: Some("glibc"), ..platform("linux-arm64-gnu", "aarch64-unknown-linux-gnu", "linux", "arm64") },
    Platform { libc: Some("musl"), ..platform("linux-x64-musl", "x86_64-unknown-linux-musl", "linux", "x64") },
    platform("darwin-arm64", "aarch64-apple-darwin", "darwin", "arm64"),
    platform("darwin-x64", "x86_64-apple-darwin", "darwin", "x64"),
    platform("win32-x64-msvc", "x86_64-pc-windows-msvc", "win32", "x64"),
];

/// An addon and a program that were built.
struct Built {
    platform: &'static Platform,
    addon: PathBuf,
    program: PathBuf,
    /// Whether they run on this machine.
    is_own: bool,
}

/// Builds and packs the packages, and tests them.
///
/// # Errors
/// Something does not build, the committed types are not those of the addon, or a test fails.
pub(crate) fn run(args: &Args) -> Result<()> {
    let own = own()?;
    let platform = PLATFORMS.iter().find(|platform| Some(platform.name) == args.platform.as_deref()).unwrap_or(own);
    let is_own = std::ptr::eq(platform, own);
    let mut command = cargo("build --package ruvllm-node --package ruvllm-cli");
    command.args(["--profile", &args.profile]);
    if !is_own {
        command.args(["--target", platform.target]);
    }
    if platform.libc == Some("musl") {
        // Programs for musl are static by default, and static programs load no addons.
        let variable = format!("CARGO_TARGET_{}_RUSTFLAGS", platform.target.to_uppercase().replace('-', "_"));
        command.env(variable, "-C target-feature=-crt-static");
    }
    shell::run(&mut command)?;
    let built = built(platform, &args.profile, is_own);
    if !is_own {
        return pack(&[stage_platform(&built)?]).map(drop);
    }
    packages(&built, args.write, !args.no_test)
}

/// Does the same with what CI builds for its other steps.
///
/// # Errors
/// As for [`run`].
pub(crate) fn run_in_ci() -> Result<()> {
    shell::build_in_ci()?;
    packages(&built(&PLATFORMS[0], PROFILE, true), false, true)
}

/// Returns this machine's platform.
fn own() -> Result<&'static Platform> {
    let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    let name = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => format!("linux-x64-{libc}"),
        ("linux", "aarch64") => format!("linux-arm64-{libc}"),
        ("macos", "aarch64") => "darwin-arm64".to_owned(),
        ("macos", "x86_64") => "darwin-x64".to_owned(),
        ("windows", "x86_64") => "win32-x64-msvc".to_owned(),
        (os, cpu) => format!("{os}-{cpu}"),
    };
    let own = PLATFORMS.iter().find(|platform| platform.name == name);
    own.with_context(|| {
        format!("there is no package for {name}; PLATFORMS in xtask/src/npm.rs names those that there are")
    })
}

/// Returns where cargo puts what it builds.
fn built(platform: &'static Platform, profile: &str, is_own: bool) -> Built {
    let folder = if profile == "dev" { "debug" } else { profile };
    let target = shell::target_dir();
    let folder = if is_own { target.join(folder) } else { target.join(platform.target).join(folder) };
    let (addon, program) = match platform.os {
        "win32" => ("ruvllm_node.dll", "ruvllm.exe"),
        "darwin" => ("libruvllm_node.dylib", "ruvllm"),
        _ => ("libruvllm_node.so", "ruvllm"),
    };
    Built { platform, addon: folder.join(addon), program: folder.join(program), is_own }
}

/// Stages and packs all packages, checks the types, and tests the packages.
fn packages(built: &Built, writes: bool, tests: bool) -> Result<()> {
    let tools = out().join("tools");
    node::install(&shell::root().join(SOURCES), &tools)?;
    let own = stage_platform(built)?;
    types(&tools, &own.join("ruvllm.node"), writes)?;
    let tarballs = pack(&[own, stage_node(&tools)?, stage_ruvllm()?])?;
    if tests { test(&tarballs) } else { Ok(()) }
}

/// Returns the folder of the packages.
fn out() -> PathBuf {
    shell::target_dir().join("npm")
}

/// Makes the package of a platform.
fn stage_platform(built: &Built) -> Result<PathBuf> {
    let Platform { name, os, cpu, libc, .. } = built.platform;
    let folder = empty(out().join(format!("node-{name}")))?;
    let program = folder.join("bin").join(built.program.file_name().expect("it has a name"));
    let addon = folder.join("ruvllm.node");
    copy(&built.addon, &addon)?;
    copy(&built.program, &program)?;
    if *os == "linux" && built.is_own {
        // Names for debuggers are half of an addon.
        shell::run(Command::new("strip").arg("--strip-unneeded").args([&addon, &program]))?;
    }
    let package = format!("@ruvllm/node-{name}");
    let mut manifest = json!({
        "name": package,
        "version": env!("CARGO_PKG_VERSION"),
        "description": format!("The addon and the program of RuvLLM for {name}"),
        "license": "MIT OR Apache-2.0",
        "os": [os],
        "cpu": [cpu],
        "main": "./ruvllm.node",
        "files": ["ruvllm.node", "bin"],
    });
    if let Some(libc) = libc {
        manifest["libc"] = json!([libc]);
    }
    if *libc == Some("glibc") {
        // `native.cjs` tells people with an older one.
        let [addon, program] = [&addon, &program].map(|file| dist::elf::needs(file));
        let (major, minor) = addon?.glibc.max(program?.glibc).context("the addon names no version of the C library")?;
        println!("{name}: needs glibc {major}.{minor}");
        manifest["ruvllm"] = json!({ "glibc": format!("{major}.{minor}") });
    }
    fs::write(folder.join("package.json"), format!("{manifest:#}\n"))?;
    fs::write(folder.join("README.md"), format!("# {package}\n\nA part of `@ruvllm/node`, which installs it.\n"))?;
    license(&folder)?;
    Ok(folder)
}

/// Makes `@ruvllm/node`: the sources as `require` reads them, and the types.
fn stage_node(tools: &Path) -> Result<PathBuf> {
    let (sources, folder) = (shell::root().join(SOURCES), empty(out().join("node"))?);
    copy_folder(&sources.join("packages/node"), &folder, true)?;
    TYPES.iter().try_for_each(|name| copy(&sources.join(name), &folder.join(name)))?;
    license(&folder)?;
    // The compiler looks for types of Node next to what it reads.
    copy_folder(&sources.join("src"), &empty(tools.join("src"))?, true)?;
    TYPES.iter().chain(&["tsconfig.json"]).try_for_each(|name| copy(&sources.join(name), &tools.join(name)))?;
    let mut tsc = Command::new("node");
    tsc.arg("node_modules/typescript/bin/tsc").args(["--project", ".", "--outDir"]).arg(folder.join("lib"));
    shell::run(tsc.current_dir(tools))?;
    check_version(&folder)?;
    Ok(folder)
}

/// Makes `ruvllm`.
fn stage_ruvllm() -> Result<PathBuf> {
    let folder = empty(out().join("ruvllm"))?;
    copy_folder(&shell::root().join(SOURCES).join("packages/ruvllm"), &folder, true)?;
    license(&folder)?;
    check_version(&folder)?;
    Ok(folder)
}

/// Checks that a package and those of ours that it needs have the version of the workspace.
fn check_version(folder: &Path) -> Result<()> {
    let path = folder.join("package.json");
    let manifest: Value =
        serde_json::from_slice(&fs::read(&path)?).with_context(|| format!("in {}", path.display()))?;
    let lists = ["dependencies", "optionalDependencies", "peerDependencies"].map(|list| &manifest[list]);
    let needed = lists.iter().filter_map(|list| list.as_object()).flatten();
    let version = env!("CARGO_PKG_VERSION");
    for (name, found) in needed.chain([(&"version".to_owned(), &manifest["version"])]) {
        if found != version {
            bail!("{}: {name} is {found}, and the workspace {version}; make them equal", path.display());
        }
    }
    Ok(())
}

/// Compares the types that are generated with those that are committed, or writes them.
fn types(tools: &Path, addon: &Path, writes: bool) -> Result<()> {
    let (root, sources) = (shell::root(), shell::root().join(SOURCES));
    for (script, name) in [("bodies.mjs", "bodies.d.ts"), ("options.mjs", "options.d.ts")] {
        // Node looks for packages where a script lies.
        copy(&sources.join("tools").join(script), &tools.join(script))?;
        let text = shell::output(Command::new("node").arg(tools.join(script)).arg(addon).arg(root.join(GOLDEN)))?;
        let path = sources.join(name);
        if writes {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        } else if fs::read_to_string(&path).unwrap_or_default() != text {
            bail!("{SOURCES}/{name} is not what the addon says; `cargo xtask npm --write --no-test` writes it");
        }
    }
    Ok(())
}

/// Packs packages and returns the tarballs.
fn pack(folders: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut tarballs = Vec::new();
    for folder in folders {
        let mut npm = Command::new("npm");
        npm.args(["pack", "--silent", "--pack-destination"]).arg(out()).current_dir(folder);
        let name = shell::output(&mut npm)?;
        let tarball = out().join(name.trim());
        let megabytes = fs::metadata(&tarball)?.len() as f64 / 1e6;
        println!("{} ({megabytes:.1} MB)", tarball.display());
        tarballs.push(tarball);
    }
    Ok(tarballs)
}

/// Installs the tarballs and the clients in an empty folder, and runs the tests there.
fn test(tarballs: &[PathBuf]) -> Result<()> {
    let (root, sources) = (shell::root(), shell::root().join(SOURCES));
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--loglevel", "error"]).args(tarballs).args(clients(&sources)?);
    fs::write(folder.path().join("package.json"), r#"{"private": true}"#)?;
    shell::run(npm.current_dir(folder.path()).stdout(Stdio::null()))?;
    copy_folder(&sources.join("test"), folder.path(), true)?;
    let smollm2 = models::path("smollm2:135m")?;
    // A home with the models, and nothing that anybody has learned.
    let home = tempfile::tempdir().context("cannot make a temporary folder")?;
    std::os::unix::fs::symlink(smollm2.parent().expect("a file lies in a folder"), home.path().join("models"))?;
    let pages = PAGES.map(|page| root.join(page).display().to_string()).join(":");
    let mut node = Command::new("node");
    node.args(["--test", "--test-concurrency=1"]).current_dir(folder.path());
    node.env("RUVLLM_TEST_SMOLLM2", &smollm2).env("RUVLLM_TEST_GOLDEN", root.join(GOLDEN));
    shell::run(node.env("RUVLLM_TEST_PAGES", pages).env("RUVLLM_HOME", home.path()).envs(shell::ci_env()))
}

/// Returns the packages of other people that the tests need, with their exact versions.
fn clients(sources: &Path) -> Result<Vec<String>> {
    let manifest: Value = serde_json::from_slice(&fs::read(sources.join("package.json"))?)?;
    let packages = manifest["devDependencies"].as_object().context("there are no devDependencies")?;
    let package = |(name, version): (&String, &Value)| format!("{name}@{}", version.as_str().unwrap_or_default());
    Ok(packages.iter().filter(|(name, _)| *name != "openapi-typescript").map(package).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_the_version_of_the_workspace() {
        for name in ["node", "ruvllm"] {
            check_version(&shell::root().join(SOURCES).join("packages").join(name)).expect("the versions are equal");
        }
    }

    #[test]
    fn prebuilt_platforms_are_those_that_the_package_depends_on() {
        let sources = shell::root().join(SOURCES);
        let manifest = fs::read(sources.join("packages/node/package.json")).expect("a manifest");
        let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
        let own = format!("@ruvllm/node-{}", PLATFORMS[0].name);
        let needed = manifest["optionalDependencies"].as_object().expect("an object");
        assert_eq!(needed.keys().collect::<Vec<_>>(), [&own]);
        let loader = fs::read_to_string(sources.join("src/native.cjs")).expect("the loader");
        assert!(loader.contains(&format!("const PREBUILT = ['{}'];", PLATFORMS[0].name)), "the loader names others");
    }
}
