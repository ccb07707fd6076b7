//! Prints what a GGUF file holds: `cargo run -p ruvllm-gguf --example inspect -- model.gguf`.

use std::path::Path;
use std::process::ExitCode;

use ruvllm_gguf::{GgufError, GgufFile, Value};

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: inspect FILE.gguf");
        return ExitCode::from(2);
    };
    match inspect(Path::new(&path)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn inspect(path: &Path) -> Result<(), GgufError> {
    let file = GgufFile::open(path)?;
    let (n_parts, total_bytes) = (file.n_parts(), file.total_bytes());
    println!("GGUF version {}, parts: {n_parts}, {total_bytes} bytes", file.version());
    for (key, value) in file.metadata().iter() {
        match value {
            Value::Array(_) => println!("{key} = {}", value.type_name()),
            Value::String(text) => println!("{key} = {:?}", text.chars().take(100).collect::<String>()),
            other => println!("{key} = {other:?}"),
        }
    }
    for tensor in file.tensors() {
        println!("{:40} {:8} {:?} {} bytes", tensor.name, tensor.ty.name(), tensor.shape, tensor.n_bytes());
    }
    Ok(())
}
