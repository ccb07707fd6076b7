//! Golden models: the contract, logits against transformers', formats of weights, encoders.

use std::path::Path;

use ruvllm_backend::conformance::{Case, Tolerances, check};
use ruvllm_backend::{Embeddings, Pooling};
use ruvllm_ggml::{GgmlType, quantize_row};
use ruvllm_gguf::{GgufFile, GgufWriter};
use ruvllm_kernels::dequant::dequantize;
use ruvllm_kvcache::KvPolicy;
use ruvllm_lora::AdapterSet;
use ruvllm_testkit::{Golden, GoldenKind, compare_logits, cosine, max_abs_diff};

use super::{load, logits, options, supported};
use crate::WgpuOptions;

#[test]
fn every_architecture_keeps_the_contract() {
    let tolerances = Tolerances { chunks: 5e-4, batch: 5e-4, reuse: 5e-4 };
    let mut n = 0;
    for golden in supported() {
        let mut model = load(&golden.model("f32"), &WgpuOptions { n_seq_max: 4, ..options(64) });
        let tokens: Vec<u32> = (0..40).map(|i| (i * 7 + 3) % 61).collect();
        check(&mut model, &Case { tokens: &tokens, tolerances });
        n += 1;
    }
    assert!(n >= 25, "{n} models");
}

/// The cache in f16 rounds keys and values the same way however a text is cut.
#[test]
fn a_cache_in_f16_keeps_the_contract() {
    let path = Golden::load("llama-a").model("f32");
    let mut model = load(&path, &WgpuOptions { n_seq_max: 4, kv: KvPolicy::F16, ..options(64) });
    let tokens: Vec<u32> = (0..40).collect();
    let tolerances = Tolerances { chunks: 2e-2, batch: 2e-2, reuse: 2e-2 };
    check(&mut model, &Case { tokens: &tokens, tolerances });
}

/// Returns whether both rows have the same largest value, wherever the first one's leads by at least `margin`.
fn same_best(expected: &[f32], found: &[f32], n_vocab: usize, margin: f32) -> bool {
    expected.chunks_exact(n_vocab).zip(found.chunks_exact(n_vocab)).all(|(expected, found)| {
        let best = ruvllm_testkit::argmax(expected);
        let next = (0..n_vocab).filter(|i| *i != best).map(|i| expected[i]).fold(f32::NEG_INFINITY, f32::max);
        expected[best] - next < margin || ruvllm_testkit::argmax(found) == best
    })
}

#[test]
fn logits_agree_with_transformers() {
    for golden in supported() {
        let expected = golden.logits();
        for dtype in golden.dtypes() {
            let mut model = load(&golden.model(dtype), &options(golden.n_ctx));
            let found = logits(&mut model, &golden.tokens);
            let comparison = compare_logits(&expected, &found, golden.n_vocab);
            let is_same = same_best(&expected, &found, golden.n_vocab, 0.05);
            assert!(comparison.max_kl <= 1e-6 && is_same, "{} {dtype}: {comparison:?}", golden.name);
        }
    }
}

/// Matrices in several parts, because bindings are small.
#[test]
fn split_matrices_give_the_same_logits() {
    for name in ["llama-a", "olmoe-a", "gpt2-a"] {
        let golden = Golden::load(name);
        let path = golden.model("f32");
        let whole = logits(&mut load(&path, &options(golden.n_ctx)), &golden.tokens);
        let small = WgpuOptions { binding_bytes_max: Some(200_000), ..options(golden.n_ctx) };
        let mut model = load(&path, &small);
        assert!(model.model.rows.n_outputs <= 97, "logits come in parts");
        let split = logits(&mut model, &golden.tokens);
        let comparison = compare_logits(&whole, &split, golden.n_vocab);
        assert!(comparison.max_kl <= 1e-7, "{name}: {comparison:?}");
    }
}

/// Writes a model twice with the matrices of its layers and tables in another type: as that type, and as the floats that it
/// stands for.
fn write_quantised(path: &Path, ty: GgmlType, to: [&Path; 2]) {
    let file = GgufFile::open(path).expect("a golden file is sound");
    let mut writers = [GgufWriter::new(), GgufWriter::new()];
    writers.iter_mut().for_each(|writer| *writer.metadata_mut() = file.metadata().clone());
    for tensor in file.tensors() {
        let data = file.data(tensor);
        let n_cols = tensor.shape[0];
        let is_matrix =
            tensor.shape.len() > 1 && n_cols.is_multiple_of(ty.block_len()) && !tensor.name.contains("norm");
        if !is_matrix {
            for writer in &mut writers {
                writer.add_tensor(&*tensor.name, tensor.ty, &tensor.shape, data.clone()).expect("it is the same");
            }
            continue;
        }
        let values: Vec<f32> = data.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        let row_bytes = ty.row_bytes(n_cols).expect("whole blocks");
        let mut bytes = vec![0; values.len() / n_cols * row_bytes];
        for (row, out) in values.chunks_exact(n_cols).zip(bytes.chunks_exact_mut(row_bytes)) {
            quantize_row(ty, row, None, out);
        }
        let mut again = vec![0.0; values.len()];
        dequantize(ty, &bytes, &mut again);
        let floats: Vec<u8> = again.iter().flat_map(|x| x.to_le_bytes()).collect();
        writers[0].add_tensor(&*tensor.name, ty, &tensor.shape, bytes).expect("the shape is the same");
        writers[1].add_tensor(&*tensor.name, GgmlType::F32, &tensor.shape, floats).expect("the shape is the same");
    }
    for (writer, to) in writers.into_iter().zip(to) {
        writer.write_file(to).expect("it can be written");
    }
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
    for (name, types) in [("llama-a", &types[..]), ("olmoe-a", &[GgmlType::Q4_0, GgmlType::Q8_0])] {
        let golden = Golden::load(name);
        for ty in types {
            write_quantised(&golden.model("f32"), *ty, [&quantised, &floats]);
            let of = |path: &Path| logits(&mut load(path, &options(golden.n_ctx)), &golden.tokens);
            let comparison = compare_logits(&of(&floats), &of(&quantised), golden.n_vocab);
            assert!(comparison.max_kl <= 1e-6, "{name} in {ty}: {comparison:?}");
        }
    }
}

#[test]
fn embeddings_agree_with_transformers() {
    let mut n_models = 0;
    for golden in Golden::all().into_iter().filter(|golden| golden.kind == GoldenKind::Embedding) {
        let mut model = load(&golden.model("f32"), &options(golden.n_ctx));
        let adapters = AdapterSet::default();
        let pooled = model.embed(&golden.tokens, None, &adapters).expect("the tokens fit");
        let expected = golden.pooled();
        assert!(cosine(&expected, &pooled) >= 0.999_999, "{}: cosine {}", golden.name, cosine(&expected, &pooled));
        assert!(max_abs_diff(&expected, &pooled) <= 5e-4, "{}", golden.name);
        let hidden = model.embed(&golden.tokens, Some(Pooling::None), &adapters).expect("the tokens fit");
        assert!(cosine(&golden.hidden(), &hidden) >= 0.999_99, "{}", golden.name);
        let error = model.score(&golden.tokens, 3, &adapters).expect_err("it is no cross-encoder");
        assert!(error.to_string().contains("scores no pairs of texts"), "{error}");
        n_models += 1;
    }
    assert!(n_models >= 1, "no encoder was compared");
}
