//! `cargo xtask web`: the package of browsers, `@ruvllm/web`: modules of WebAssembly with the JavaScript around them.
//!
//! The modules are built for `wasm32-unknown-unknown` by the compiler of `cargo xtask cross`; `wasm-bindgen` of the locked version
//! writes what JavaScript imports. `--test` also runs the package in Node and in headless Chromium, and the page of `examples/web`.
//! `--quick` builds the engine's module alone, as fast as that goes, and runs the golden models and SmolLM2 in both, as CI does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cross::{miscompiled, toolchain, wasm};
use crate::files::{copy, copy_folder, license};
use crate::{models, node, shell};

const TARGET: &str = "wasm32-unknown-unknown";
/// Profile of the modules that are published: optimised for speed, and linked as a whole.
const PROFILE: &str = "web";
/// Where the JavaScript lies.
const SOURCE: &str = "crates/ruvllm-wasm/js";
/// Where the client and the types lie that the package has in common with that of Node.
const COMMON: &str = "crates/ruvllm-node/js";
/// A page that is built with the package.
const EXAMPLE: &str = "examples/web";

/// A module of the package.
struct Module {
    name: &'static str,
    /// Whether workers compute in it together, over one memory.
    has_threads: bool,
    /// Arguments of its build.
    features: &'static [&'static str],
    /// The most bytes that it may have, packed by gzip.
    packed_max: usize,
}

const MODULES: [Module; 4] = [
    Module { name: "ruvllm_wasm", has_threads: false, features: &[], packed_max: 4 << 20 },
    Module { name: "ruvllm_wasm_threads", has_threads: true, features: &[], packed_max: 4 << 20 },
    Module { name: "ruvllm_wasm_gpu", has_threads: false, features: &["--features", "gpu"], packed_max: 4 << 20 },
    Module {
        name: "ruvllm_intelligence",
        has_threads: false,
        features: &["--no-default-features"],
        packed_max: 400 << 10,
    },
];

/// Flags of modules in which workers compute together: one memory that they all import, as large as addresses reach, and what
/// `wasm-bindgen` needs to begin a thread.
const THREAD_FLAGS: &str = "-C target-feature=+atomics,+bulk-memory -C link-arg=--shared-memory -C link-arg=--import-memory \
                            -C link-arg=--max-memory=4294967296 -C link-arg=--export=__heap_base \
                            -C link-arg=--export=__wasm_init_tls -C link-arg=--export=__tls_size \
                            -C link-arg=--export=__tls_align -C link-arg=--export=__tls_base";

/// What `cargo xtask web` is asked to do.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run the package in Node and in headless Chromium as well, with the golden models and SmolLM2, and the page of examples/web
    #[arg(long)]
    test: bool,
    /// Build only the engine's module, with the profile of CI, and run the golden models and SmolLM2 in Node and in headless Chromium
    #[arg(long, conflicts_with = "test")]
    quick: bool,
    /// The program whose answers are compared with [default: built from this checkout]
    #[arg(long)]
    ruvllm: Option<PathBuf>,
}

/// Builds the package, and tests it if that is asked for.
///
/// # Errors
/// A tool is missing and cannot be had, something does not build or is built wrongly, a module is too large, or a test fails.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.quick {
        return run_quick(&models::given_or_built(args.ruvllm.as_ref())?);
    }
    let folder = shell::target_dir().join("web");
    build(&folder, &MODULES, PROFILE)?;
    if args.test {
        test(&folder, &models::given_or_built(args.ruvllm.as_ref())?)?;
    }
    Ok(())
}

/// Tests that need the module without threads alone, and take a few seconds each beside those of the goldens and of SmolLM2.
const QUICK: [(&str, &[&str]); 2] = [
    ("node.mjs", &["wrong", "aborted", "workersThatDoNotStart", "ended", "goldens", "smol"]),
    (
        "page.mjs",
        &["cache", "uncached", "rests", "foreigns", "sizes", "faults", "hashes", "room", "listed", "goldens", "smol"],
    ),
];

/// Tests the engine's module beside a program `ruvllm` without linking it as a whole, which takes ten minutes.
///
/// # Errors
/// As for [`run`].
pub(crate) fn run_quick(ruvllm: &Path) -> Result<()> {
    node::run()?;
    let folder = shell::target_dir().join("web-quick");
    build(&folder, &MODULES[..1], shell::PROFILE)?;
    QUICK.iter().try_for_each(|(name, tests)| shell::run(script(name, &folder, ruvllm).args(*tests)))
}

/// Builds the package with some of its modules into a folder.
fn build(folder: &Path, which: &[Module], profile: &str) -> Result<()> {
    toolchain::install(&[("nodejs", "/usr/bin/node")])?;
    let bindgen = bindgen()?;
    let modules = folder.join("wasm");
    fs::create_dir_all(&modules).with_context(|| format!("cannot make {}", modules.display()))?;
    for module in which {
        compile(module, profile)?;
        let built = shell::target_dir().join("cross").join(TARGET).join(profile).join("ruvllm_wasm.wasm");
        miscompiled::check(&built)?;
        let mut command = Command::new(&bindgen);
        command.args(["--target", "web", "--no-typescript", "--out-name", module.name, "--out-dir"]);
        shell::run(command.arg(&modules).arg(&built))?;
        if profile == PROFILE {
            check_size(module, &modules.join(format!("{}_bg.wasm", module.name)))?;
        }
    }
    // The JavaScript, not its tests.
    copy_folder(&shell::root().join(SOURCE), folder, false)?;
    license(folder)?;
    copy_common(folder)?;
    let version = env!("CARGO_PKG_VERSION");
    write(
        &folder.join("version.js"),
        &format!("// Written by `cargo xtask web`.\nexport const VERSION = '{version}';\n"),
    )?;
    println!("web: {}", folder.display());
    Ok(())
}

/// Compiles a module.
fn compile(module: &Module, profile: &str) -> Result<()> {
    let more = if module.has_threads { THREAD_FLAGS } else { "" };
    let flags = format!("-C target-feature=+simd128 -C link-arg=-zstack-size={} {more}", wasm::STACK_BYTES);
    let mut command = toolchain::cargo("rustc", "std,panic_abort");
    command
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", toolchain::wasm_linker()?)
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS", flags)
        .args(["--package", "ruvllm-wasm", "--lib", "--crate-type", "cdylib", "--target", TARGET])
        .args(["--profile", profile])
        .args(module.features);
    shell::run(&mut command)
}

/// Returns the program `wasm-bindgen` of the version that the lock names, which its format depends on.
fn bindgen() -> Result<PathBuf> {
    let lock = fs::read_to_string(shell::root().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let version = locked(&lock, "wasm-bindgen").context("Cargo.lock names no wasm-bindgen")?;
    let folder = shell::target_dir().join("wasm-bindgen").join(version);
    let program = folder.join("bin/wasm-bindgen");
    if !program.is_file() {
        let install = |lock: &str| {
            let mut command = shell::cargo(&format!("install {lock} wasm-bindgen-cli --bin wasm-bindgen --version"));
            // Optimised it is built in 200 seconds instead of 80, and works for 3 instead of 10.
            command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
            shell::run(command.arg(version).arg("--root").arg(&folder))
        };
        // A mirror of crates.io may not have all that its lock names.
        install("--locked").or_else(|_| install(""))?;
    }
    Ok(program)
}

/// Returns the version of a package that a lock names.
fn locked<'l>(lock: &'l str, name: &str) -> Option<&'l str> {
    let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    rest.split('"').next()
}

/// Checks how large a module is, packed as servers send it.
fn check_size(module: &Module, path: &Path) -> Result<()> {
    let script = "const z=require('node:zlib'),f=require('node:fs');process.stdout.write(String(z.gzipSync(f.readFileSync(process.argv[1]),{level:9}).length))";
    let packed: usize = shell::output(Command::new("node").args(["-e", script]).arg(path))?.trim().parse()?;
    let n_bytes = fs::metadata(path)?.len();
    println!("{}: {n_bytes} bytes, {packed} packed", module.name);
    if packed > module.packed_max {
        bail!("{} has {packed} bytes packed, and may have {}; find what grew", module.name, module.packed_max);
    }
    Ok(())
}

/// Copies the client that the package has in common with that of Node, and the types of the API.
fn copy_common(folder: &Path) -> Result<()> {
    let from = shell::root().join(COMMON);
    for path in ["src/abort.js", "src/client.js", "src/errors.js", "src/stream.js", "api.d.ts", "bodies.d.ts"]
        .map(|name| from.join(name))
    {
        let name = path.file_name().expect("a file has a name");
        copy(&path, &folder.join(name))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Runs the package in Node and in Chromium: its answers are those of `ruvllm` with the scalar kernels. Then the page that is built
/// with it; that and its screenshots lie in `target/page-web`.
fn test(folder: &Path, ruvllm: &Path) -> Result<()> {
    node::run()?;
    ["node.mjs", "page.mjs", "gpu.mjs"].iter().try_for_each(|name| shell::run(&mut script(name, folder, ruvllm)))?;
    let out = shell::target_dir().join("page-web");
    let modules = out.join("modules");
    node::install(&shell::root().join(EXAMPLE), &modules)?;
    shell::run(script("example.mjs", folder, ruvllm).arg(modules.join("node_modules/vite")).arg(out))
}

/// Returns a call of a test of the package.
fn script(name: &str, folder: &Path, ruvllm: &Path) -> Command {
    let mut command = Command::new("node");
    command.arg(shell::root().join(SOURCE).join("test").join(name)).arg(folder).arg(ruvllm);
    command.arg(shell::target_dir().join("node/node_modules/playwright-core/index.mjs")).current_dir(shell::root());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_names_a_version() {
        let lock = "[[package]]\nname = \"wasm-bindgen\"\nversion = \"0.2.130\"\nsource = \"registry\"\n";
        assert_eq!((locked(lock, "wasm-bindgen"), locked(lock, "wasm")), (Some("0.2.130"), None));
    }
}
