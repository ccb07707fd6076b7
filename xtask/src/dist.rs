//! `cargo xtask dist`: packages for people who build nothing.
//!
//! Two programs are built for Linux on x86-64. One has the GPU backend and is linked with the C library of the machine that
//! builds it: the least version that it runs with is read from its symbols, and is the package's dependency. The other one has the
//! C library in it and no GPU backend, because drivers of GPUs are loaded at run time: it runs on every Linux.

mod deb;
pub(crate) mod elf;
mod formula;
mod sbom;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::shell::{self, cargo};
use deb::Entry;
use formula::Archive;

/// Version of the packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The file of checksums.
const SUMS: &str = "SHA256SUMS";

/// Options of `cargo xtask dist`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder for the packages [default: dist in the target folder]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Profile of cargo to build with
    #[arg(long, value_name = "PROFILE", default_value = "release")]
    profile: String,
    /// Make only an archive of this machine's program, named after this system
    #[arg(long, value_name = "SYSTEM")]
    archive: Option<String>,
    /// Build nothing: write the formula and the checksums of the archives that are there
    #[arg(long, conflicts_with = "archive")]
    only_sums: bool,
    /// Address of the project, below which releases/download/vVERSION/ has the archives; without it no Homebrew formula is made
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Install the package in an empty folder of Debian, run the unit's command, ask it, and remove the package again; then
    /// run the program with the C library in it in an older Debian. Needs root and debootstrap
    #[arg(long)]
    trial: bool,
}

/// Makes the packages.
///
/// # Errors
/// Something does not build, cannot be written, or fails its trial.
pub(crate) fn run(args: &Args) -> Result<()> {
    let out = args.out.clone().unwrap_or_else(|| shell::target_dir().join("dist"));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    match &args.archive {
        _ if args.only_sums => {}
        Some(system) => archive(&out, system, &build(&args.profile, true, &[])?)?,
        None => linux(&out, args)?,
    }
    if args.archive.is_none() {
        if let Some(url) = &args.url {
            write(&out, "ruvllm.rb", formula::formula(VERSION, url, &archives(&out)?))?;
        }
        sums(&out)?;
    }
    report(&out)?;
    if args.trial { trial::run(&out) } else { Ok(()) }
}

/// Makes all that there is for Linux on x86-64.
fn linux(out: &Path, args: &Args) -> Result<()> {
    let profile = args.profile.as_str();
    let program = build(profile, true, &[])?;
    let needs = elf::needs(&program)?;
    let (major, minor) = needs.glibc.context("the program names no version of the C library")?;
    println!("linux-x64: needs glibc {major}.{minor}, {}", needs.libraries.join(", "));
    archive(out, "linux-x64", &program)?;
    write(out, &format!("ruvllm_{VERSION}_amd64.deb"), debian(&program, (major, minor), args.url.as_deref())?)?;
    write(out, "ruvllm.cdx.json", format!("{:#}\n", sbom::bill("ruvllm-cli")?))?;
    for file in ["Dockerfile", "ruvllm.service"] {
        write(out, file, packaged(file)?)?;
    }
    let program = build(profile, false, &["-C", "target-feature=+crt-static"])?;
    let needs = elf::needs(&program)?;
    if !needs.libraries.is_empty() || needs.glibc.is_some() {
        bail!("{} is not static: it needs {}", program.display(), needs.libraries.join(", "));
    }
    archive(out, "linux-x64-static", &program)
}

/// Builds the program, without symbols, and returns a copy of it that the next build does not replace.
fn build(profile: &str, has_gpu: bool, flags: &[&str]) -> Result<PathBuf> {
    let mut command = cargo("rustc --locked --package ruvllm-cli --bin ruvllm");
    command.args(["--profile", profile]);
    if !has_gpu {
        command.args(["--no-default-features", "--features", "train"]);
    }
    shell::run(command.args(["--", "-C", "strip=symbols"]).args(flags))?;
    let built = crate::models::ruvllm_path(profile);
    let kept = built.with_file_name(if has_gpu { "ruvllm-dist" } else { "ruvllm-dist-static" });
    fs::copy(&built, &kept).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(kept)
}

/// Returns what `ruvllm` prints.
fn told(program: &Path, args: &[&str]) -> Result<String> {
    shell::output(Command::new(program).args(args).env("RUVLLM_CONFIG", "none"))
}

fn packaged(file: &str) -> Result<Vec<u8>> {
    let path = shell::root().join("packaging").join(file);
    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(out: &Path, name: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
    let path = out.join(name);
    fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the pages of the manual, by name.
fn pages(program: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    told(program, &["completions", "--man", &folder.path().to_string_lossy()])?;
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder.path())? {
        let entry = entry?;
        pages.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
    }
    pages.sort();
    Ok(pages)
}

/// Returns what stands beside the program in every package, below `share`.
fn shared(program: &Path) -> Result<Vec<Entry>> {
    let mut files = vec![
        Entry::new("ruvllm/ruvllm.schema.json", told(program, &["config", "schema"])?),
        Entry::new("ruvllm/config.toml", told(program, &["config", "init", "-"])?),
        Entry::new("ruvllm/grafana-dashboard.json", packaged("grafana-dashboard.json")?),
        Entry::new("ruvllm/prometheus-alerts.yml", packaged("prometheus-alerts.yml")?),
        Entry::new("bash-completion/completions/ruvllm", told(program, &["completions", "bash"])?),
        Entry::new("fish/vendor_completions.d/ruvllm.fish", told(program, &["completions", "fish"])?),
    ];
    for (name, page) in pages(program)? {
        files.push(Entry::new(format!("man/man1/{name}.gz"), deb::gz(&page)?));
    }
    Ok(files)
}

/// Writes an archive of a program and what belongs to it.
fn archive(out: &Path, system: &str, program: &Path) -> Result<()> {
    let folder = format!("ruvllm-{VERSION}-{system}");
    let name = if cfg!(windows) { "ruvllm.exe" } else { "ruvllm" };
    let mut files = vec![Entry::program(format!("{folder}/bin/{name}"), fs::read(program)?)];
    files.push(Entry::new(
        format!("{folder}/share/zsh/site-functions/_ruvllm"),
        told(program, &["completions", "zsh"])?,
    ));
    for file in shared(program)? {
        files.push(Entry { path: format!("{folder}/share/{}", file.path), ..file });
    }
    files.push(Entry::new(format!("{folder}/share/ruvllm/ruvllm.service"), packaged("ruvllm.service")?));
    for licence in ["LICENSE-MIT", "LICENSE-APACHE", "README.md"] {
        files.push(Entry::new(format!("{folder}/{licence}"), fs::read(shell::root().join(licence))?));
    }
    write(out, &format!("{folder}.tar.gz"), deb::tar_gz(&files)?)
}

/// Returns the package for Debian and its relatives.
fn debian(program: &Path, (major, minor): (u32, u32), url: Option<&str>) -> Result<Vec<u8>> {
    let homepage = url.map_or_else(String::new, |url| format!("Homepage: {url}\n"));
    let config = told(program, &["config", "init", "-"])?;
    let mut files = vec![
        Entry::program("usr/bin/ruvllm", fs::read(program)?),
        Entry::new("usr/lib/systemd/system/ruvllm.service", packaged("ruvllm.service")?),
        Entry::new("usr/share/zsh/vendor-completions/_ruvllm", told(program, &["completions", "zsh"])?),
        Entry { is_config: true, ..Entry::new("etc/ruvllm/config.toml", config) },
    ];
    files.extend(shared(program)?.into_iter().map(|file| Entry { path: format!("usr/share/{}", file.path), ..file }));
    let licences = ["LICENSE-MIT", "LICENSE-APACHE"].map(|name| fs::read_to_string(shell::root().join(name)));
    let [mit, apache] = licences;
    files.push(Entry::new("usr/share/doc/ruvllm/copyright", format!("MIT or Apache-2.0.\n\n{}\n{}", mit?, apache?)));
    let n_kib = files.iter().map(|file| file.bytes.len().div_ceil(1024)).sum::<usize>();
    let control = format!(
        "Package: ruvllm\nVersion: {VERSION}\nArchitecture: amd64\nMaintainer: The RuvLLM authors <noreply@invalid>\n\
         Installed-Size: {n_kib}\nDepends: libc6 (>= {major}.{minor}), libgcc-s1\nRecommends: ca-certificates, python3-pip\n\
         Suggests: libvulkan1\nSection: science\nPriority: optional\n{homepage}\
         Description: serving runtime for language models in GGUF files\n \
         Runs models on the processor, or on a GPU by Vulkan, and speaks the APIs of\n \
         OpenAI, Anthropic, Ollama and llama.cpp. It learns while it serves, if asked to.\n"
    );
    let scripts = ["postinst", "prerm", "postrm"]
        .map(|name| Ok::<_, anyhow::Error>((name, String::from_utf8(packaged(&format!("debian/{name}"))?)?)));
    let [postinst, prerm, postrm] = scripts;
    let scripts = [postinst?, prerm?, postrm?];
    let scripts: Vec<(&str, &str)> = scripts.iter().map(|(name, text)| (*name, text.as_str())).collect();
    deb::package(&control, &scripts, &files)
}

fn sha256(path: &Path) -> Result<String> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the files of a folder by name, but for the checksums.
fn files(out: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(out).with_context(|| format!("cannot read {}", out.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.is_file() && path.file_name().is_some_and(|name| name != SUMS));
    files.sort();
    Ok(files)
}

/// Returns the archives of this version that are there.
fn archives(out: &Path) -> Result<Vec<Archive>> {
    let mut archives = Vec::new();
    for path in files(out)? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let system = name.strip_prefix(&format!("ruvllm-{VERSION}-")).and_then(|name| name.strip_suffix(".tar.gz"));
        if let Some(system) = system {
            archives.push(Archive { name: system.to_owned(), sha256: sha256(&path)? });
        }
    }
    Ok(archives)
}

/// Writes the checksums of all files, as `sha256sum --check` reads them.
fn sums(out: &Path) -> Result<()> {
    let mut text = String::new();
    for path in files(out)? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        text.push_str(&format!("{}  {name}\n", sha256(&path)?));
    }
    write(out, SUMS, text)
}

/// Prints what there is, with sizes.
fn report(out: &Path) -> Result<()> {
    for path in files(out)? {
        println!("{:>12} bytes  {}", fs::metadata(&path)?.len(), path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_all_files() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join(format!("ruvllm-{VERSION}-linux-x64-static.tar.gz")), "abc").expect("written");
        fs::write(folder.path().join("b"), "").expect("written");
        sums(folder.path()).expect("written");
        let text = fs::read_to_string(folder.path().join(SUMS)).expect("it is there");
        assert!(text.starts_with("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  b\n"), "{text}");
        assert!(text.contains("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  ruvllm-"), "{text}");
        let archives = archives(folder.path()).expect("read");
        assert_eq!(archives.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["linux-x64-static"]);
    }

    #[test]
    fn the_unit_starts_what_the_package_installs() {
        let unit = String::from_utf8(packaged("ruvllm.service").expect("it is there")).expect("text");
        assert_eq!(
            trial::command_of(&unit).expect("a command"),
            ["/usr/bin/ruvllm", "serve", "--config", "/etc/ruvllm/config.toml"]
        );
    }
}
