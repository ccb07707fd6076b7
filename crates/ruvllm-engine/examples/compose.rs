//! An engine of one's own from the crates: a backend, a tokenizer and a decoding loop with a sampler written here.
//!
//! `cargo run --release -p ruvllm-engine --example compose -- model.gguf "The capital of France is"`

use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{CacheSalt, LoadOptions, LogitRows, NativeBackend, Segment, TokenModel, Vocabulary};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: compose MODEL.gguf PROMPT".into());
    };
    let mut backend = NativeBackend::load(path.as_ref(), &LoadOptions::default(), &mut |_| {})?;
    let vocabulary = Vocabulary::of_gguf(backend.file())?;
    let tokenizer = vocabulary.tokenizer()?;
    let mut text = tokenizer.stream_continuing();
    let mut next = tokenizer.encode(&prompt, EncodeOptions { add_special: true, parse_special: false })?;
    let (seq, _) = backend.open(None, &CacheSalt::default())?;
    for _ in 0..32 {
        let logits = backend.forward(&[Segment { seq, tokens: &next, logits: LogitRows::Last }])?.logits;
        // Greedy, except that no token may follow itself.
        let last = next[next.len() - 1] as usize;
        logits[last] = f32::NEG_INFINITY;
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).ok_or("no logits")? as u32;
        if tokenizer.is_end_of_generation(best) {
            break;
        }
        print!("{}", text.push(best).unwrap_or_default());
        next = vec![best];
    }
    println!();
    backend.close(seq);
    Ok(())
}
