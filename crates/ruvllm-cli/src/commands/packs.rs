//! `ruvllm packs`: kernels of others, signed and in a sandbox.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::out_file::OutFile;
use ruvllm_cli_tools::output::{print, print_json, print_line, table};
use ruvllm_cli_tools::packs::{folder, open, record};
use ruvllm_cli_tools::signing_key;
use ruvllm_packs::{
    Finding, InstalledPack, PackFile, PackFolder, Revocation, Timing, TrustedKey, VerifiedPack, bench, read_pack,
};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  ruvllm packs trust 4f2c... --name ruvllm           take packs that this key signed
  ruvllm packs add sample.pack                       check it, compare it with native, keep it
  ruvllm packs bench sample                          measure its kernels beside native's
  ruvllm quantize f16.gguf q8.gguf --type Q8_0 --pack sample
  ruvllm packs revoke 4f2c... --reason \"lost\"
  ruvllm witness list ~/.cache/ruvllm/packs/witness  what was taken, refused and removed

A pack runs without imports, with at most 256 MiB of memory and 2 s a call. What is refused is
refused in one line, and stands on record.";

/// `ruvllm packs`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct PacksCommand {
    #[command(subcommand)]
    command: PacksSubcommand,
}

#[derive(Debug, Subcommand)]
enum PacksSubcommand {
    /// List packs, trusted keys and what was revoked
    List(ListArgs),
    /// Check a pack and keep it
    Add(FileArgs),
    /// Check a pack: signature, revocations, epoch, sandbox, results
    Verify(FileArgs),
    /// Measure a pack's kernels beside native's, and keep the figures
    Bench(NameArgs),
    /// Remove a pack; an older one of its name is refused later, too
    Rm(NameArgs),
    /// Take packs that a key signed
    Trust(TrustArgs),
    /// Take no pack any more that a key signed, or one pack
    Revoke(RevokeArgs),
    /// Make a key to sign packs with
    Key(KeyArgs),
    /// Make a pack of a module and its manifest
    Sign(SignArgs),
}

#[derive(Args, Debug)]
struct ListArgs {
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct FileArgs {
    /// The pack's file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct NameArgs {
    /// The pack's name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct TrustArgs {
    /// The public key, 64 hexadecimal digits
    #[arg(value_name = "KEY")]
    key: String,
    /// Name of its owner
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Refuse packs of an older epoch
    #[arg(long, value_name = "N", default_value_t = 0)]
    epoch: u64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct RevokeArgs {
    /// A public key, or the SHA-256 of a pack
    #[arg(value_name = "KEY|SHA256")]
    revoked: String,
    /// Why
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct KeyArgs {
    /// Where to write the secret; keep it to yourself
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct SignArgs {
    /// The module (.wasm)
    #[arg(value_name = "MODULE")]
    module: PathBuf,
    /// Where to write the pack
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// The manifest (JSON): name, version, epoch, kernels
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    /// The secret of 'ruvllm packs key'
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

impl PacksCommand {
    /// Does what the subcommand says.
    ///
    /// # Errors
    /// A usage error for a name or key that is none, a failure for a pack that is refused or a file that cannot be used.
    pub fn run(&self, app: &App) -> Result<()> {
        match &self.command {
            PacksSubcommand::List(args) => args.run(app),
            PacksSubcommand::Add(args) => args.add(app),
            PacksSubcommand::Verify(args) => args.verify(app),
            PacksSubcommand::Bench(args) => args.bench(app),
            PacksSubcommand::Rm(args) => args.remove(app),
            PacksSubcommand::Trust(args) => args.run(app),
            PacksSubcommand::Revoke(args) => args.run(app),
            PacksSubcommand::Key(args) => args.run(),
            PacksSubcommand::Sign(args) => args.run(),
        }
    }
}

fn installed_json(pack: &InstalledPack) -> Value {
    json!({
        "name": pack.name, "version": pack.version, "epoch": pack.epoch, "sha256": pack.sha256, "key": pack.key,
        "speed": pack.speed,
    })
}

impl ListArgs {
    fn run(&self, app: &App) -> Result<()> {
        let packs = open(app)?;
        if self.output.json {
            let keys = packs.keys().iter().map(|key| json!({ "name": key.name, "key": key.key, "epoch": key.epoch }));
            let revoked = packs.revocations().iter().map(|one| json!({ "revoked": one.revoked, "reason": one.reason }));
            return print_json(&json!({
                "packs": packs.packs().iter().map(installed_json).collect::<Vec<_>>(),
                "keys": keys.collect::<Vec<_>>(),
                "revoked": revoked.collect::<Vec<_>>(),
            }));
        }
        if packs.packs().is_empty() && packs.keys().is_empty() {
            return print_line("no packs and no trusted keys; 'ruvllm packs trust KEY --name NAME' trusts one");
        }
        print(&table(&pack_rows(&packs), &[2]))?;
        for key in packs.keys() {
            print_line(&format!("trusted: {} {}, from epoch {}", key.name, key.key, key.epoch))?;
        }
        packs.revocations().iter().try_for_each(|one| print_line(&format!("revoked: {} {}", one.revoked, one.reason)))
    }
}

fn pack_rows(packs: &PackFolder) -> Vec<Vec<String>> {
    let head = ["NAME", "VERSION", "EPOCH", "SIGNED BY", "FASTER THAN NATIVE"].map(str::to_owned).to_vec();
    let row = |pack: &InstalledPack| {
        let owner = packs.keys().iter().find(|key| key.key.eq_ignore_ascii_case(&pack.key));
        let faster: Vec<String> = pack
            .speed
            .iter()
            .filter(|(_, speed)| **speed > 1.0)
            .map(|(name, speed)| format!("{name} {speed:.2}x"))
            .collect();
        let faster = match (pack.speed.is_empty(), faster.is_empty()) {
            (true, _) => "not measured".to_owned(),
            (_, true) => "nothing".to_owned(),
            _ => faster.join(", "),
        };
        let owner = owner.map_or_else(|| pack.key[..16.min(pack.key.len())].to_owned(), |key| key.name.clone());
        vec![pack.name.clone(), pack.version.clone(), pack.epoch.to_string(), owner, faster]
    };
    std::iter::once(head).chain(packs.packs().iter().map(row)).collect()
}

impl FileArgs {
    fn add(&self, app: &App) -> Result<()> {
        let verified = self.decide(app, "added", |packs, file| packs.add(file))?;
        self.tell(&verified, "is kept")
    }

    fn verify(&self, app: &App) -> Result<()> {
        let verified = self.decide(app, "verified", |packs, file| packs.verify(file))?;
        self.tell(&verified, "may run here")
    }

    /// Decides about the file, and puts the decision on record.
    fn decide(
        &self,
        app: &App,
        done: &str,
        decide: impl FnOnce(&mut PackFolder, &[u8]) -> std::result::Result<VerifiedPack, ruvllm_packs::PackError>,
    ) -> Result<VerifiedPack> {
        let file = read_pack(&self.file)?;
        let decided = decide(&mut open(app)?, &file);
        let what = match &decided {
            Ok(VerifiedPack { manifest, sha256, .. }) => {
                format!("pack {} of epoch {} was {done}, sha256 {sha256}", manifest.name, manifest.epoch)
            }
            Err(error) => format!("pack {} was refused ({}): {error}", self.file.display(), error.kind().name()),
        };
        record(app, what)?;
        let named = |line: String| format!("{}: {line}", self.file.display());
        decided.map_err(|error| match error.into() {
            Error::Failure(line) => Error::Failure(named(line)),
            Error::Usage(line) => Error::Usage(named(line)),
            other => other,
        })
    }

    fn tell(&self, verified: &VerifiedPack, outcome: &str) -> Result<()> {
        let VerifiedPack { manifest, key, sha256, findings, .. } = verified;
        if self.output.json {
            let finding =
                |one: &Finding| json!({ "kernel": one.kernel, "equal": one.is_equal(), "difference": one.difference });
            return print_json(&json!({
                "name": manifest.name, "version": manifest.version, "epoch": manifest.epoch, "sha256": sha256,
                "key": key.to_string(), "kernels": findings.iter().map(finding).collect::<Vec<_>>(),
            }));
        }
        for one in findings {
            let how = match one.is_equal() {
                true => "every bit is native's".to_owned(),
                false => format!("within {:.1e} of native", one.difference),
            };
            print_line(&format!("{:<20} {how}", one.kernel))?;
        }
        print_line(&format!("{} {} {outcome}", manifest.name, manifest.version))
    }
}

impl NameArgs {
    fn bench(&self, app: &App) -> Result<()> {
        let mut packs = open(app)?;
        let timings = bench(&mut packs.start(&self.name)?)?;
        packs.set_speed(&self.name, &timings)?;
        if self.output.json {
            let timing = |one: &Timing| json!({ "kernel": one.kernel, "pack_us": one.pack_us, "native_us": one.native_us, "speed": one.speed() });
            return print_json(
                &json!({ "name": self.name, "kernels": timings.iter().map(timing).collect::<Vec<_>>() }),
            );
        }
        let head = ["KERNEL", "PACK (us)", "NATIVE (us)", "SPEED"].map(str::to_owned).to_vec();
        let row = |one: &Timing| {
            let [pack, native] = [one.pack_us, one.native_us].map(|us| format!("{us:.1}"));
            vec![one.kernel.clone(), pack, native, format!("{:.2}x", one.speed())]
        };
        print(&table(&std::iter::once(head).chain(timings.iter().map(row)).collect::<Vec<_>>(), &[1, 2, 3]))
    }

    fn remove(&self, app: &App) -> Result<()> {
        open(app)?.remove(&self.name)?;
        record(app, format!("pack {} was removed", self.name))?;
        match self.output.json {
            true => print_json(&json!({ "removed": self.name })),
            false => print_line(&format!("{} is removed", self.name)),
        }
    }
}

impl TrustArgs {
    fn run(&self, app: &App) -> Result<()> {
        let key = TrustedKey { name: self.name.clone(), key: self.key.to_ascii_lowercase(), epoch: self.epoch };
        open(app)?.trust(key)?;
        record(app, format!("key {} of {} is trusted from epoch {}", self.key, self.name, self.epoch))?;
        match self.output.json {
            true => print_json(&json!({ "trusted": self.key, "name": self.name, "epoch": self.epoch })),
            false => print_line(&format!("packs signed by {} are taken, in {}", self.name, folder(app).display())),
        }
    }
}

impl RevokeArgs {
    fn run(&self, app: &App) -> Result<()> {
        open(app)?.revoke(Revocation { revoked: self.revoked.to_ascii_lowercase(), reason: self.reason.clone() })?;
        record(app, format!("{} was revoked: {}", self.revoked, self.reason))?;
        match self.output.json {
            true => print_json(&json!({ "revoked": self.revoked })),
            false => print_line(&format!("{} is revoked", self.revoked)),
        }
    }
}

impl KeyArgs {
    fn run(&self) -> Result<()> {
        let key = signing_key::create(&self.file)?;
        let public = key.public().to_string();
        match self.output.json {
            true => print_json(&json!({ "file": self.file, "key": public })),
            false => print_line(&format!("{public} is the public key; {} has the secret", self.file.display())),
        }
    }
}

impl SignArgs {
    fn run(&self) -> Result<()> {
        let out = OutFile::create(&self.out, &[&self.module, &self.manifest, &self.key])?;
        let key = signing_key::read(&self.key)?;
        let (manifest, module) = (read_pack(&self.manifest)?, read_pack(&self.module)?);
        let file = PackFile { manifest: &manifest, module: &module }.sign(&key)?;
        out.write_whole(&file)?;
        let public = key.public().to_string();
        match self.output.json {
            true => print_json(&json!({ "path": self.out, "key": public, "bytes": file.len() })),
            false => print_line(&format!("wrote {}, signed by {public}", self.out.display())),
        }
    }
}
