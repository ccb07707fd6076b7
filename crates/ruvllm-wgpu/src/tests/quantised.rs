//! Quantised weights: what they give is what the floats that they stand for give.

use std::path::Path;

use ruvllm_backend::{CacheSalt, LogitRows, Segment, TokenModel};
use ruvllm_candle::{CandleBackend, CandleOptions, CandleWeights};
use ruvllm_ggml::{GgmlType, quantize_row};
use ruvllm_gguf::{GgufFile, GgufWriter};
use ruvllm_kernels::dequant::dequantize;
use ruvllm_testkit::{Golden, compare_logits};

use super::{load, logits, options, same_best};

/// Writes a model twice with the matrices of its layers and tables in another type: as that type, and as the floats that it
/// stands for.
fn write_quantised(path: &Path, ty: GgmlType, to: [&Path; 2]) {
    let file = GgufFile::open(path).expect("a golden file is sound");
    let mut writers = [GgufWriter::new(), GgufWriter::new()];
    writers.iter_mut().for_each(|writer| *writer.metadata_mut() = file.metadata().clone());
    for tensor in file.tensors() {
        let data = file.data(tensor);
        let is_matrix = tensor.shape.len() > 1 && tensor.shape[0].is_multiple_of(ty.block_len());
        // What is no matrix of a product stays: convolutions' taps, rates of decay, norms of heads.
        let is_small = ["norm", "conv", "ssm_a", "ssm_d"].iter().any(|part| tensor.name.contains(part));
        if !is_matrix || is_small {
            for writer in &mut writers {
                writer.add_tensor(&*tensor.name, tensor.ty, &tensor.shape, data.clone()).expect("it is the same");
            }
            continue;
        }
        let values: Vec<f32> = data.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        add_quantised(&mut writers, &tensor.name, ty, &tensor.shape, &values);
    }
    for (writer, to) in writers.into_iter().zip(to) {
        writer.write_file(to).expect("it can be written");
    }
}

/// Adds a matrix as a type, and as the floats that it stands for then.
fn add_quantised(writers: &mut [GgufWriter<'_>; 2], name: &str, ty: GgmlType, shape: &[usize], values: &[f32]) {
    let row_bytes = ty.row_bytes(shape[0]).expect("whole blocks");
    let mut bytes = vec![0; values.len() / shape[0] * row_bytes];
    for (row, out) in values.chunks_exact(shape[0]).zip(bytes.chunks_exact_mut(row_bytes)) {
        quantize_row(ty, row, None, out);
    }
    let mut again = vec![0.0; values.len()];
    dequantize(ty, &bytes, &mut again);
    writers[0].add_tensor(name, ty, shape, bytes).expect("the shape is the same");
    writers[1].add_tensor(name, GgmlType::F32, shape, float_bytes(&again)).expect("the shape is the same");
}

fn float_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Quantised weights give what the floats that they stand for give.
#[test]
fn quantised_weights_are_the_floats_that_they_stand_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let [quantised, floats] = ["quantised.gguf", "floats.gguf"].map(|name| folder.path().join(name));
    let types = [
        GgmlType::Q4_0,
        GgmlType::Q4_1,
        GgmlType::Q5_0,
        GgmlType::Q5_1,
        GgmlType::Q8_0,
        GgmlType::IQ4_NL,
        GgmlType::MXFP4,
    ];
    let few = &[GgmlType::Q4_0, GgmlType::Q8_0][..];
    for (name, types) in [("llama-a", &types[..]), ("olmoe-a", few), ("mamba2-a", few), ("deepseek2-b", few)] {
        let golden = Golden::load(name);
        for ty in types {
            write_quantised(&golden.model("f32"), *ty, [&quantised, &floats]);
            let of = |path: &Path| logits(&mut load(path, &options(golden.n_ctx)), &golden.tokens);
            let comparison = compare_logits(&of(&floats), &of(&quantised), golden.n_vocab);
            assert!(comparison.max_kl <= 1e-6, "{name} in {ty}: {comparison:?}");
        }
    }
}

/// Writes a small model of the llama kind whose rows are whole blocks of 256 values, twice as [`write_quantised`] does.
fn write_wide(ty: GgmlType, to: [&Path; 2]) {
    const N_EMBD: usize = 256;
    let golden = GgufFile::open(&Golden::load("llama-a").model("f32")).expect("a golden file is sound");
    let mut writers = [GgufWriter::new(), GgufWriter::new()];
    for writer in &mut writers {
        let metadata = writer.metadata_mut();
        *metadata = golden.metadata().clone();
        let sizes = [
            ("embedding_length", N_EMBD),
            ("feed_forward_length", 512),
            ("block_count", 2),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 64),
            ("attention.value_length", 64),
            ("rope.dimension_count", 64),
        ];
        sizes.iter().for_each(|(key, n)| metadata.set(format!("llama.{key}"), *n as u32));
    }
    let n_vocab = golden.tensor("token_embd.weight").expect("a table").shape[1];
    let mut seed = 0;
    let mut noise = |n: usize, size: f32| -> Vec<f32> {
        seed += 1;
        // Sums of sines have no period here and many small values, as weights do.
        let value = |i: usize| ((i * 37 + seed * 101) as f32 * 0.613).sin() * ((i * 11 + seed * 7) as f32 * 1.37).cos();
        (0..n).map(|i| size * value(i)).collect()
    };
    let mut matrices = vec![("token_embd".to_owned(), n_vocab, N_EMBD), ("output".to_owned(), n_vocab, N_EMBD)];
    let mut norms = vec!["output_norm".to_owned()];
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let parts = [
            ("attn_q", 256, 256),
            ("attn_k", 128, 256),
            ("attn_v", 128, 256),
            ("attn_output", 256, 256),
            ("ffn_gate", 512, 256),
            ("ffn_up", 512, 256),
            ("ffn_down", 256, 512),
        ];
        matrices.extend(parts.map(|(part, n_out, n_in)| (name(part), n_out, n_in)));
        norms.extend(["attn_norm", "ffn_norm"].map(name));
    }
    for (name, n_out, n_in) in matrices {
        let values = noise(n_out * n_in, if name.starts_with("blk") { 0.12 } else { 0.4 });
        add_quantised(&mut writers, &format!("{name}.weight"), ty, &[n_in, n_out], &values);
    }
    for name in norms {
        let values: Vec<f32> = noise(N_EMBD, 0.2).iter().map(|x| 1.0 + x).collect();
        for writer in &mut writers {
            let added = writer.add_tensor(format!("{name}.weight"), GgmlType::F32, &[N_EMBD], float_bytes(&values));
            added.expect("a vector");
        }
    }
    for (writer, to) in writers.into_iter().zip(to) {
        writer.write_file(to).expect("it can be written");
    }
}

/// Types with blocks of 256 values, against the floats that they stand for on candle's tensors; two of them have no kernel and
/// become f16.
#[test]
fn quantised_blocks_of_256_agree_with_their_floats_elsewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let [quantised, floats] = ["quantised.gguf", "floats.gguf"].map(|name| folder.path().join(name));
    let tokens: Vec<u32> = (0..48).map(|i| (i * 7 + 3) % 61).collect();
    let own = [GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K, GgmlType::IQ4_XS];
    for ty in own.into_iter().chain([GgmlType::Q3_K, GgmlType::Q2_K]) {
        write_wide(ty, [&quantised, &floats]);
        let mut model = load(&quantised, &options(64));
        let n_vocab = model.info().n_vocab;
        let found = logits(&mut model, &tokens);
        let options = CandleOptions { n_ctx: Some(64), weights: CandleWeights::F32, ..CandleOptions::default() };
        let mut exact = CandleBackend::load(&floats, &options, &mut |_| {}).expect("it loads");
        let expected = logits(&mut exact, &tokens);
        let comparison = compare_logits(&expected, &found, n_vocab);
        let kl_max = if own.contains(&ty) { 1e-6 } else { 1e-3 };
        let is_same = same_best(&expected, &found, n_vocab, 0.05);
        println!("{ty}: {comparison:?}");
        assert!(comparison.max_kl <= kl_max && is_same, "{ty}: {comparison:?}");
        // Row by row through the kernels of few rows.
        let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
        for (row, token) in tokens.iter().enumerate() {
            let segment = Segment { seq, tokens: &[*token], logits: LogitRows::Last };
            let found = model.forward(&[segment]).expect("it fits").logits.to_vec();
            let comparison = compare_logits(&expected[row * n_vocab..][..n_vocab], &found, n_vocab);
            assert!(comparison.max_kl <= kl_max, "{ty}, row {row}: {comparison:?}");
        }
    }
}
