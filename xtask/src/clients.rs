//! `cargo xtask clients`: other people's clients and agents, unmodified, against a server.
//!
//! Each client has a script in [`SCRIPTS`], which reports what came of its checks in lines of JSON. The pages' snippets
//! are parts of these scripts ([`page`]), so what the book says is what runs here.

mod page;
mod report;
mod run;
mod table;

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::models;
use report::Report;
use run::Server;
use table::CLIENTS;

/// Where the scripts lie.
const SCRIPTS: &str = "crates/ruvllm-server/tests/clients/more";

/// Which clients `cargo xtask clients` runs.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these [default: all]
    #[arg(value_name = "NAME", value_parser = CLIENTS.map(|client| client.name))]
    only: Vec<String>,
    /// The program [default: built from this checkout]
    #[arg(long)]
    ruvllm: Option<PathBuf>,
    /// Answer with JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// The clients of every CI run: those that install within seconds.
const QUICK: [&str; 8] =
    ["openai", "anthropic", "ollama", "openai-js", "anthropic-js", "ollama-js", "mcp-filesystem", "mcp-time"];

/// Runs the clients of every CI run against a program that was built.
///
/// # Errors
/// As for `run`.
pub(crate) fn run_quick(ruvllm: PathBuf) -> Result<()> {
    run(&Args { only: QUICK.map(str::to_owned).to_vec(), ruvllm: Some(ruvllm), json: false })
}

/// Runs them, one behind the other, and prints the table.
///
/// # Errors
/// A check of a client failed, one did not end by itself and well, or the server refused a request.
pub(crate) fn run(args: &Args) -> Result<()> {
    page::check()?;
    let ruvllm = models::given_or_built(args.ruvllm.as_ref())?;
    let server = Server::start(&ruvllm)?;
    let chosen =
        CLIENTS.iter().filter(|client| args.only.is_empty() || args.only.iter().any(|name| name == client.name));
    let mut reports = Vec::new();
    for client in chosen {
        eprintln!("== {}", client.name);
        let report = run::client(client, &server, &ruvllm);
        eprintln!("{}", report.line());
        reports.push(report);
    }
    match args.json {
        true => println!("{}", report::json(&reports)),
        false => print!("{}", report::table(&reports)),
    }
    let failed: Vec<_> = reports.iter().filter(|report| report.failed()).map(Report::name).collect();
    if !failed.is_empty() {
        bail!("{} of {} clients failed: {}", failed.len(), reports.len(), failed.join(", "));
    }
    Ok(())
}
