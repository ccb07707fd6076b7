//! The tensors of a GGUF file, and the first values of one of them.
//!
//! `cargo run -p ruvllm-gguf --example tensors -- MODEL.gguf token_embd.weight`; without arguments a tiny file of the test data.

use std::error::Error;

use ruvllm_gguf::GgufFile;
use ruvllm_kernels::{Isa, dequant};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let tiny = || ruvllm_testkit::Golden::load("llama-a").model("bf16");
    let file = GgufFile::open(&args.next().map_or_else(tiny, Into::into))?;
    for tensor in file.tensors() {
        println!("{:32} {:6} {:?}", tensor.name, tensor.ty.name(), tensor.shape);
    }
    let name = args.next().unwrap_or_else(|| "token_embd.weight".to_owned());
    let tensor = file.tensor(&name).ok_or_else(|| format!("there is no tensor '{name}'"))?;
    // A row of the file's format becomes f32: scalar or SIMD, the values are the same.
    let n_cols = tensor.shape[0];
    let row_bytes = tensor.ty.row_bytes(n_cols).ok_or("a row is no whole number of blocks")?;
    let (bytes, mut row) = (file.data(tensor), vec![0.0; n_cols]);
    dequant::pick(Isa::best()).dequantize(tensor.ty, &bytes[..row_bytes], &mut row);
    println!("{name}, row 0: {:?} ...", &row[..4.min(n_cols)]);
    Ok(())
}
