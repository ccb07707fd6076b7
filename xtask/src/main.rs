//! `cargo xtask`: the tasks of this repository, the same on a laptop and in CI.
//!
//! One file per command. Every command prints what it does, exits 0 when it succeeded, 1 when it failed (with one
//! line on standard error that says why) and 2 when it was called wrongly.

mod bench;
mod ci;
mod clients;
mod codegen;
mod cross;
mod dist;
mod files;
mod fuzz;
mod gpu_check;
mod models;
mod node;
mod npm;
mod page;
mod python;
mod shell;
mod soak;
mod synth;
mod tidy;
mod vulkan;
mod web;
mod wheel;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every check, cheapest first, and stop at the first that fails
    Ci(ci::Args),
    /// Check what the compiler cannot: layers, docs, file sizes, decision records, licences
    Tidy,
    /// Measure: kernels by criterion, models by `ruvllm bench`
    Bench(bench::Args),
    /// Fetch the real models that tests and benches need
    Models(models::Args),
    /// Make a model of a real one's shape with random weights, to measure speed and memory
    Synth(synth::Args),
    /// Make the Python environment with the clients that the server's tests need
    Python,
    /// Install the npm packages and the browser that the server's tests need
    Node,
    /// Build the packages of npm into target/npm, and test them in an empty folder
    Npm(npm::Args),
    /// Build the package for Python into target/wheel, and test it in environments of its own
    Wheel(wheel::Args),
    /// Run clients and agents, unmodified, against a server: a table of what works
    Clients(clients::Args),
    /// Serve under everything that clients do wrong, and look what is left
    Soak(soak::Args),
    /// Fuzz everything that reads bytes of strangers
    Fuzz(fuzz::Args),
    /// Make what is generated and committed: the gRPC API, the Metal kernels, the page
    Codegen(codegen::Args),
    /// Make a folder that tests and measures the GPU backend on a machine with a GPU and nothing else
    GpuCheck(gpu_check::Args),
    /// Make packages: archives, a package for Debian, checksums, a bill of materials
    Dist(dist::Args),
    /// Build the sample of a kernel pack, target/pack/sample.wasm, and compare it with native
    Pack,
    /// Test the kernels for ARM and WebAssembly and the page's engine, and check the types of what is for Macs
    Cross(cross::Args),
    /// Make the package of browsers, `@ruvllm/web`, in the target folder
    Web(web::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Ci(args) => ci::run(&args),
        Command::Tidy => tidy::run(),
        Command::Bench(args) => bench::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Models(args) => models::run(&args),
        Command::Python => python::run(),
        Command::Node => node::run(),
        Command::Npm(args) => npm::run(&args),
        Command::Wheel(args) => wheel::run(&args),
        Command::Clients(args) => clients::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Codegen(args) => codegen::run(&args),
        Command::GpuCheck(args) => gpu_check::run(&args),
        Command::Dist(args) => dist::run(&args),
        Command::Pack => cross::pack::run(),
        Command::Cross(args) => cross::run(&args, &mut shell::Totals::default()),
        Command::Web(args) => web::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
