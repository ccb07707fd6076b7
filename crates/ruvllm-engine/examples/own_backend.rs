//! An engine over a backend of one's own: a model that goes on as its text did before.
//!
//! `cargo run --release -p ruvllm-engine --example own_backend -- MODEL.gguf "one two three one two"`, or without arguments.

use std::sync::Arc;

use ruvllm_engine::{
    BackendError, CacheSalt, DeviceInfo, Engine, GenerateRequest, ModelInfo, ModelRunner, SamplingParams, Segment,
    SeqId, States, TokenModel, Vocabulary,
};
use ruvllm_gguf::GgufFile;

/// The most likely token is the one that followed the last two when they stood there before, else the first token again.
struct Copier {
    info: ModelInfo,
    sequences: Vec<Option<Vec<u32>>>,
    logits: Vec<f32>,
}

fn next(known: &[u32]) -> u32 {
    let followers = known.windows(3).rev().find(|window| known.ends_with(&window[..2]));
    followers.map_or(known[0], |window| window[2])
}

impl TokenModel for Copier {
    fn info(&self) -> &ModelInfo {
        &self.info
    }
    fn open(&mut self, _prompt: Option<&[u32]>, _salt: &CacheSalt) -> Result<(SeqId, usize), BackendError> {
        let free = self.sequences.iter().position(Option::is_none);
        let free = free.ok_or_else(|| BackendError::no_sequence(self.info.n_seq_max))?;
        self.sequences[free] = Some(Vec::new());
        Ok((SeqId(free), 0))
    }
    fn fork(&mut self, _seq: SeqId, _len: usize) -> Result<SeqId, BackendError> {
        Err(BackendError::unsupported("sequences of this model cannot be forked"))
    }
    fn rewind(&mut self, _seq: SeqId, _len: usize) -> Result<(), BackendError> {
        Err(BackendError::unsupported("sequences of this model cannot go back"))
    }
    fn close(&mut self, seq: SeqId) {
        self.sequences[seq.0] = None;
    }
    fn n_tokens(&self, seq: SeqId) -> usize {
        self.sequences[seq.0].as_ref().map_or(0, Vec::len)
    }
    fn n_free(&self) -> usize {
        self.sequences.iter().filter(|sequence| sequence.is_none()).count()
    }
    fn forward(&mut self, segments: &[Segment<'_>]) -> Result<States<'_>, BackendError> {
        self.logits.clear();
        for segment in segments {
            let known = self.sequences[segment.seq.0].as_mut().ok_or_else(|| BackendError::not_open(segment.seq))?;
            let n_before = known.len() + segment.tokens.len() - segment.logits.count(segment.tokens.len());
            known.extend_from_slice(segment.tokens);
            for n in n_before + 1..=known.len() {
                let chosen = next(&known[..n]);
                self.logits.extend((0..self.info.n_vocab as u32).map(|id| if id == chosen { 1.0 } else { 0.0 }));
            }
        }
        Ok(States::of_logits(&mut self.logits))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let tiny = || ruvllm_testkit::Golden::load("llama-a").model("f32");
    let file = Arc::new(GgufFile::open(&args.next().map_or_else(tiny, Into::into))?);
    let vocabulary = Vocabulary::of_gguf(&file)?;
    let device = DeviceInfo { backend: "copier", name: "none".to_owned(), n_threads: 1 };
    let n_vocab = vocabulary.tokenizer()?.vocab_len();
    let info = ModelInfo { n_vocab, n_ctx: 4096, n_seq_max: 2, ..ModelInfo::new("copier", device) };
    let model = Copier { info, sequences: vec![None; 2], logits: Vec::new() };
    let mut engine = Engine::new(ModelRunner::new(Box::new(model), vocabulary));
    let prompt = engine.encode_prompt(&args.next().unwrap_or_else(|| "one two three one two".to_owned()), true)?;
    let request =
        GenerateRequest { prompt, max_tokens: Some(12), sampling: SamplingParams::greedy(), ..Default::default() };
    println!("{}", engine.generate(&request)?.for_each_token(|_| {})?.text);
    Ok(())
}
