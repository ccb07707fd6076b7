//! Prints what a model is made of: `cargo run -p ruvllm-model --example layers [FILE.gguf]`.

use std::path::PathBuf;

use ruvllm_gguf::GgufFile;
use ruvllm_model::{AttentionSpec, FfnSpec, MixerSpec, ModelSpec};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path =
        std::env::args().nth(1).map_or_else(|| ruvllm_testkit::Golden::load("llama-a").model("f32"), PathBuf::from);
    let file = GgufFile::open(&path)?;
    let spec = ModelSpec::read(&file, None)?;
    println!("{}: {} layers of width {}, {} tokens", spec.arch, spec.layers.len(), spec.n_embd, spec.n_vocab);
    for (i, layer) in spec.layers.iter().enumerate() {
        let heads =
            |own: &AttentionSpec| format!("attention of {} heads over {} key heads", own.n_heads, own.n_kv_heads);
        let mixer = match &layer.mixer {
            MixerSpec::Attention(own) => heads(own),
            MixerSpec::LatentAttention(own) => {
                format!("attention of {} heads over a row of {}", own.n_heads, own.latent.n_out())
            }
            MixerSpec::ShortConv(own) => format!("convolution of {} taps", own.taps.n_cols),
            MixerSpec::Mamba(_) => "state space".to_owned(),
            MixerSpec::Mamba2(_) => "state space of heads".to_owned(),
            MixerSpec::AttentionAndMamba2(own, _) => format!("{} beside a state space of heads", heads(own)),
        };
        let ffn = match &layer.ffn {
            None => "no feed-forward block".to_owned(),
            Some(FfnSpec::Mlp(own)) => format!("{:?} of {}", own.activation, own.up.n_out()),
            Some(FfnSpec::Moe(own)) => format!("{} of {} experts", own.n_used, own.up.len()),
        };
        println!("{i:3}  {mixer}, {ffn}, {:?}", layer.wiring);
    }
    Ok(())
}
