//! Quantises a file and prints how long it took: `cargo run --release -p ruvllm-convert --example quantize_file -- IN OUT Q4_K_M [THREADS]`.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use ruvllm_convert::{QuantizeOptions, Recipe, quantize};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, recipe, rest @ ..] = &args[..] else { return Err("pass IN OUT TYPE [THREADS]".into()) };
    let mut options = QuantizeOptions::new(Recipe::parse(recipe)?);
    options.n_threads = rest.first().map(|n| n.parse()).transpose()?;
    let start = Instant::now();
    let (input, output) = (PathBuf::from(input), PathBuf::from(output));
    let summary = quantize(&input, &output, &options, &mut |progress| {
        eprint!("\r{:>3} % {:<40}", 100 * progress.done_bytes / progress.total_bytes, progress.tensor);
        ControlFlow::Continue(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    eprintln!();
    println!("{} bytes, {:.2} bits per weight, {seconds:.2} s", summary.output_bytes, summary.bits_per_weight());
    Ok(())
}
