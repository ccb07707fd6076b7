//! Recipes of a size: they keep it, and spend it where it wins most.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use ruvllm_convert::{
    Budget, CalibrationModel, ConvertError, ConvertErrorKind, ImatrixCollector, ImportanceMatrix, ImportanceSums,
    KeepRule, QuantizeOptions, QuantizeSummary, Recipe, ReplacedTensor, measure_sensitivities, quantize,
};
use ruvllm_gguf::{GgmlType, GgufFile};

use crate::models::SHAPES;

fn quantized(folder: &Path, options: &QuantizeOptions) -> (QuantizeSummary, BTreeMap<String, GgmlType>) {
    let output = folder.join("out.gguf");
    let summary = quantize(&folder.join("in.gguf"), &output, options, &mut |_| ControlFlow::Continue(()));
    let file = GgufFile::open(&output).expect("a file");
    let types = file.tensors().map(|tensor| (tensor.name.clone(), tensor.ty)).collect();
    (summary.expect("it can be quantised"), types)
}

#[test]
fn sizes_are_kept_by_every_model_and_number_of_threads() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    for shape in &SHAPES {
        shape.write(&folder.join("in.gguf"));
        shape.write_imatrix(&folder.join("imatrix.gguf"));
        let imatrix = ImportanceMatrix::open(&folder.join("imatrix.gguf")).expect("it is sound");
        for (bits, imatrix) in [(7.5, None), (8.0, Some(imatrix))] {
            if shape.name == "odd" || shape.name == "shared" {
                // Rows of 80 stay in F16, and norms in F32 are a large share.
                continue;
            }
            let mut options = QuantizeOptions { imatrix, ..QuantizeOptions::of_budget(Budget::BitsPerWeight(bits)) };
            let (summary, types) = quantized(folder, &options);
            let got = summary.bits_per_weight();
            assert!(got <= bits && got > bits - 0.6, "{}: {got} of {bits}", shape.name);
            options.n_threads = NonZeroUsize::new(3);
            assert_eq!(quantized(folder, &options).1, types, "{}", shape.name);
            let n_bytes = summary.output_bytes - 1;
            let options = QuantizeOptions { budget: Some(Budget::FileBytes(n_bytes)), ..options };
            assert!(quantized(folder, &options).0.output_bytes <= n_bytes, "{}", shape.name);
        }
    }
}

#[test]
fn rules_go_before_budgets_and_too_small_ones_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    SHAPES[0].write(&folder.join("in.gguf"));
    let keep = vec![KeepRule::parse("attn_q=Q8_0").expect("a rule")];
    let options = QuantizeOptions { keep, ..QuantizeOptions::of_budget(Budget::BitsPerWeight(7.0)) };
    let (summary, types) = quantized(folder, &options);
    assert!(types.iter().filter(|(name, _)| name.contains("attn_q")).all(|(_, ty)| *ty == GgmlType::Q8_0));
    assert!(summary.bits_per_weight() <= 7.0 && types.values().all(|ty| *ty != GgmlType::Q2_K));
    let small = QuantizeOptions::of_budget(Budget::BitsPerWeight(2.0));
    let error = quantize(&folder.join("in.gguf"), &folder.join("no.gguf"), &small, &mut |_| ControlFlow::Continue(()));
    let error = error.expect_err("it is too small");
    assert!(error.kind() == ConvertErrorKind::Usage && error.to_string().contains("the smallest file"), "{error}");
    assert!(!folder.join("no.gguf").exists());
}

/// A model whose predictions depend on one tensor alone.
struct OneTensor(&'static str);

impl CalibrationModel for OneTensor {
    fn observe(&mut self, _: &[u32], _: &mut ImatrixCollector) -> Result<(), ConvertError> {
        Err(ConvertError::of_model("nobody reads here"))
    }

    fn divergence(&mut self, replaced: ReplacedTensor<'_>) -> Result<f64, ConvertError> {
        assert_eq!((replaced.ty, replaced.weights.len() % 110), (GgmlType::Q3_K, 0));
        Ok(if replaced.name == self.0 { 1.0 } else { 1e-6 })
    }
}

#[test]
fn bits_go_where_they_were_measured_to_matter() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    SHAPES[0].write(&folder.join("in.gguf"));
    SHAPES[0].write_imatrix(&folder.join("imatrix.gguf"));
    let mut sums = ImportanceSums::open(&folder.join("imatrix.gguf")).expect("it is sound");
    let mut model = OneTensor("blk.4.ffn_up.weight");
    let mut n_told = 0;
    measure_sensitivities(&mut model, &folder.join("in.gguf"), &mut sums, 2, &mut |progress, _| {
        n_told += 1;
        assert_eq!(progress.n_done, n_told);
        ControlFlow::Continue(())
    })
    .expect("it is measured");
    assert_eq!(n_told, sums.n_sensitivities());
    let imatrix = Some(ImportanceMatrix::from(sums));
    let budget = QuantizeOptions::of_budget(Budget::BitsPerWeight(5.0));
    let (summary, types) = quantized(folder, &QuantizeOptions { imatrix, ..budget });
    assert_eq!(types["blk.4.ffn_up.weight"], GgmlType::Q8_0);
    assert!(summary.expected_kl.is_some_and(|kl| kl > 0.0 && kl < 0.01), "{summary:?}");
    assert_eq!(quantized(folder, &QuantizeOptions::new(Recipe::Q4_K_M)).0.expected_kl, None);
}
