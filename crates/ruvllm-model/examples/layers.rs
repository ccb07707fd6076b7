//! Prints what a model is made of: `cargo run -p ruvllm-model --example layers [FILE.gguf]`.

use std::path::PathBuf;

use ruvllm_gguf::GgufFile;
use ruvllm_model::{FfnSpec, MixerSpec, ModelSpec};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path =
        std::env::args().nth(1).map_or_else(|| ruvllm_testkit::Golden::load("llama-a").model("f32"), PathBuf::from);
    let file = GgufFile::open(&path)?;
    let spec = ModelSpec::read(&file, None)?;
    println!("{}: {} layers of width {}, {} tokens", spec.arch, spec.layers.len(), spec.n_embd, spec.n_vocab);
    for (i, layer) in spec.layers.iter().enumerate() {
        let mixer = match &layer.mixer {
            MixerSpec::Attention(own) => {
                format!("attention of {} heads over {} key heads", own.n_heads, own.n_kv_heads)
            }
            MixerSpec::ShortConv(own) => format!("convolution of {} taps", own.taps.n_cols),
        };
        let ffn = match &layer.ffn {
            FfnSpec::Mlp(own) => format!("{:?} of {}", own.activation, own.up.n_out()),
            FfnSpec::Moe(own) => format!("{} of {} experts", own.n_used, own.up.len()),
        };
        println!("{i:3}  {mixer}, {ffn}, {:?}", layer.wiring);
    }
    Ok(())
}
