//! Logits against logits: with a prefix cache and without, from a source and from a map.

use std::sync::Arc;

use bytes::Bytes;
use ruvllm_gguf::{ByteSource, GgmlType, GgufFile, GgufWriter};
use ruvllm_testkit::Golden;

use super::*;
use crate::load::LoadOptions;

/// Computes what is not known of `tokens` and returns the bits of the last logits, and how many tokens were known.
fn bits(backend: &mut NativeBackend, tokens: &[u32]) -> (Vec<u32>, usize) {
    let (seq, n_known) = backend.open(Some(tokens), &CacheSalt::default()).expect("a free sequence");
    let rest = Segment { seq, tokens: &tokens[n_known..], logits: LogitRows::Last };
    let logits = backend.forward(&[rest]).expect("it fits").logits.iter().map(|x| x.to_bits()).collect();
    backend.close(seq);
    (logits, n_known)
}

/// What the tests of the prefix cache compare would show an entry that holds what other tokens wrote.
#[test]
fn a_planted_stale_entry_changes_the_logits() {
    let path = Golden::load("llama-a").model("f32");
    let mut backend = NativeBackend::load(&path, &LoadOptions::default(), &mut |_| {}).expect("it loads");
    let tokens: Vec<u32> = (0..40).collect();
    let mut other = tokens.clone();
    other[20] = 7;
    let (expected, n_known) = bits(&mut backend, &tokens);
    assert_eq!((n_known, bits(&mut backend, &tokens)), (0, (expected.clone(), 39)));
    backend.clear_cache();
    // Planted: the blocks of other tokens under the name of these.
    let (seq, _) = backend.open(Some(&other), &CacheSalt::default()).expect("a free sequence");
    backend.forward(&[Segment { seq, tokens: &other, logits: LogitRows::None }]).expect("it fits");
    backend.kv.plant(seq, &tokens);
    backend.close(seq);
    let (stale, n_known) = bits(&mut backend, &tokens);
    assert_eq!(n_known, 39);
    assert_ne!(stale, expected);
    backend.clear_cache();
    assert_eq!(bits(&mut backend, &tokens), (expected, 0));
}

/// Returns the bits of all logits.
fn all_bits(backend: &mut NativeBackend, tokens: &[u32]) -> Vec<u32> {
    let (seq, _) = backend.open(None, &CacheSalt::default()).expect("a free sequence");
    let states = backend.forward(&[Segment { seq, tokens, logits: LogitRows::All }]).expect("it fits");
    let bits = states.logits.iter().map(|x| x.to_bits()).collect();
    backend.close(seq);
    bits
}

/// The file of a golden model with another table of embeddings, in blocks of Q8_0.
fn with_quantised_embeddings(file: &GgufFile) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    *writer.metadata_mut() = file.metadata().clone();
    for tensor in file.tensors() {
        let (ty, data) = match tensor.name == "token_embd.weight" {
            // Scales of 2^-10, and quants of all kinds.
            true => {
                let block =
                    |i: usize| (0..34).map(move |at| [0, 20].get(at).copied().unwrap_or((i * 7 + at * 31) as u8));
                (GgmlType::Q8_0, (0..tensor.n_elements() / 32).flat_map(block).collect::<Vec<u8>>().into())
            }
            false => (tensor.ty, file.data(tensor)),
        };
        writer.add_tensor(&tensor.name, ty, &tensor.shape, data).expect("a valid tensor");
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("a vector takes everything");
    bytes
}

/// A file that is read piece by piece gives the bits of a mapped one: also where embeddings are read out of the head's panels,
/// and with passes of fewer rows.
#[test]
fn a_model_from_a_source_is_the_mapped_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    for (name, dtype) in
        [("llama-a", "f32"), ("llama-c", "f32"), ("gemma3-a", "f16"), ("qwen2-a", "bf16"), ("qwen3moe-a", "f32")]
    {
        let golden = Golden::load(name);
        let file = GgufFile::open(&golden.model(dtype)).expect("a golden file is sound");
        let plain = std::fs::read(golden.model(dtype)).expect("a golden file can be read");
        for bytes in [plain, with_quantised_embeddings(&file)] {
            std::fs::write(&path, &bytes).expect("the folder can be written to");
            let options = LoadOptions { n_threads: 2, ..LoadOptions::default() };
            let mut mapped = NativeBackend::load(&path, &options, &mut |_| {}).expect("it loads");
            let source: Arc<dyn ByteSource> = Arc::new(Bytes::from(bytes));
            let options = LoadOptions { n_rows_max: 5, ..options };
            let mut read = NativeBackend::load_source("model", source, &options, &mut |_| {}).expect("it loads");
            assert_eq!(all_bits(&mut read, &golden.tokens), all_bits(&mut mapped, &golden.tokens), "{name}");
            assert_eq!(read.info().weight_bytes, mapped.info().weight_bytes);
        }
    }
}

/// A file that ends while it is read, wherever that is.
struct Cut(Bytes, u64);

impl ByteSource for Cut {
    fn n_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> std::io::Result<usize> {
        let n = self.1.saturating_sub(offset).min(to.len() as u64) as usize;
        self.0.read_at(offset, &mut to[..n])
    }
}

#[test]
fn a_source_that_ends_while_it_is_loaded_is_an_error() {
    let bytes = Bytes::from(std::fs::read(Golden::load("qwen2-a").model("f32")).expect("a golden file can be read"));
    let options = LoadOptions { n_threads: 1, ..LoadOptions::default() };
    let load = |ends: u64, options: &LoadOptions| {
        let source = Arc::new(Cut(bytes.clone(), ends));
        NativeBackend::load_source("model", source, options, &mut |_| {}).map(drop).map_err(|error| error.to_string())
    };
    let n = bytes.len() as u64;
    assert_eq!(load(n, &options), Ok(()));
    for ends in [0, 1000, n / 2, n - 5000, n - 1] {
        let line = load(ends, &options).expect_err("it ends there");
        assert!(line.contains("the file was cut short while it was in use: it ends at byte"), "{line}");
    }
    let kept = LoadOptions { cache_dir: Some("/nowhere".into()), ..options.clone() };
    assert!(load(n, &kept).is_err_and(|line| line.contains("is kept in no cache folder")));
    let no_rows = LoadOptions { n_rows_max: 0, ..options };
    assert!(load(n, &no_rows).is_err_and(|line| line.starts_with("0 rows of a pass")));
}
