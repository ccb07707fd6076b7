//! Runs over a text that are broken off, with a model that only looks like one.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use ruvllm_convert::{
    CalibrationModel, ConvertError, ConvertErrorKind, ImatrixCollector, ImatrixRun, ImportanceSums, ReplacedTensor,
    compute_imatrix,
};
use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, GgufWriter};

/// Columns of the model's one matrix.
const N_COLUMNS: usize = 8;
const N_WINDOWS: usize = 7;

/// A model whose inputs are made of the tokens alone. It fails at a window if it is told so.
#[derive(Default)]
struct Fake {
    n_seen: usize,
    fails_at: Option<usize>,
}

impl CalibrationModel for Fake {
    fn observe(&mut self, window: &[u32], collector: &mut ImatrixCollector) -> Result<(), ConvertError> {
        // Sums of thirds are rounded: another order would give other bits.
        let row = |&token: &u32| (0..N_COLUMNS as u32).map(move |i| (token * 7 + i * i + 1) as f32 / 3.0);
        collector.add(0, &window.iter().flat_map(row).collect::<Vec<_>>());
        if self.fails_at == Some(self.n_seen) {
            return Err(ConvertError::of_model("the model is gone"));
        }
        self.n_seen += 1;
        Ok(())
    }

    fn divergence(&mut self, _: ReplacedTensor<'_>) -> Result<f64, ConvertError> {
        Ok(0.0)
    }
}

/// Returns a collector for the model's matrix.
fn collector(dir: &Path) -> ImatrixCollector {
    let path = dir.join("model.gguf");
    let mut writer = GgufWriter::new();
    let zeros = vec![0u8; N_COLUMNS * 2 * size_of::<f32>()];
    writer.add_tensor("blk.0.attn_q.weight", GgmlType::F32, &[N_COLUMNS, 2], zeros).expect("a sound tensor");
    writer.write_file(&path).expect("a temporary folder is writable");
    let mut collector = ImatrixCollector::default();
    let file = GgufFile::open(&path).expect("the file");
    collector.watch(0, file.tensors().next().expect("its tensor"), 0);
    collector
}

/// Runs until `n_max` windows are done.
fn run(dir: &Path, run: &ImatrixRun<'_>, model: &mut Fake, n_max: usize) -> Result<ImportanceSums, ConvertError> {
    compute_imatrix(model, collector(dir), run, &mut |told| match told.n_done < n_max {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    })
}

fn windows() -> Vec<Vec<u32>> {
    (0..N_WINDOWS as u32).map(|i| (i * 5..i * 5 + 4).collect()).collect()
}

fn options<'a>(dir: &Path, windows: &'a [Vec<u32>]) -> ImatrixRun<'a> {
    ImatrixRun {
        windows,
        dataset: "text.txt".to_owned(),
        source: 1,
        checkpoint: dir.join("m.resume"),
        resume: true,
        checkpoint_after: Duration::from_secs(3600),
    }
}

fn written(sums: &ImportanceSums, dir: &Path) -> Vec<u8> {
    let path = dir.join("sums.gguf");
    sums.write(&path).expect("a temporary folder is writable");
    std::fs::read(path).expect("the file")
}

#[test]
fn a_run_that_is_broken_off_anywhere_goes_on_to_the_same_bits() {
    let (dir, windows) = (tempfile::tempdir().expect("a temporary folder"), windows());
    let (dir, options) = (dir.path(), options(dir.path(), &windows));
    let whole = run(dir, &options, &mut Fake::default(), usize::MAX).expect("nothing breaks it");
    assert_eq!((whole.n_chunks as usize, whole.source), (N_WINDOWS, None));
    let whole = written(&whole, dir);
    for n_done in 1..N_WINDOWS {
        let error = run(dir, &options, &mut Fake::default(), n_done).expect_err("it is broken off");
        assert_eq!(error.kind(), ConvertErrorKind::Cancelled);
        assert!(error.to_string().contains(&format!("stopped after {n_done} of {N_WINDOWS} windows")), "{error}");
        let kept = ImportanceSums::open(&options.checkpoint).expect("what was done");
        assert_eq!((kept.n_chunks as usize, kept.source), (n_done, Some(1)));
        let mut model = Fake::default();
        let resumed = run(dir, &options, &mut model, usize::MAX).expect("it goes on");
        assert_eq!(model.n_seen, N_WINDOWS - n_done, "windows that were read are not read again");
        assert!(written(&resumed, dir) == whole, "broken off after {n_done}");
        std::fs::remove_file(&options.checkpoint).expect("the checkpoint");
    }
}

#[test]
fn checkpoints_between_have_whole_windows_alone() {
    let (dir, windows) = (tempfile::tempdir().expect("a temporary folder"), windows());
    let dir = dir.path();
    let options = ImatrixRun { checkpoint_after: Duration::ZERO, ..options(dir, &windows) };
    let whole = run(dir, &options, &mut Fake::default(), usize::MAX).expect("nothing breaks it");
    std::fs::remove_file(&options.checkpoint).expect("the last checkpoint");
    // The model fails in the middle of a window.
    let error = run(dir, &options, &mut Fake { fails_at: Some(3), ..Fake::default() }, usize::MAX);
    assert!(error.expect_err("it fails").to_string().contains("the model is gone"));
    let mut model = Fake::default();
    let resumed = run(dir, &options, &mut model, usize::MAX).expect("it goes on");
    assert_eq!((model.n_seen, written(&resumed, dir) == written(&whole, dir)), (N_WINDOWS - 3, true));
}

#[test]
fn checkpoints_of_other_runs_are_refused() {
    let (dir, all) = (tempfile::tempdir().expect("a temporary folder"), windows());
    let dir = dir.path();
    run(dir, &options(dir, &all), &mut Fake::default(), 3).expect_err("it is broken off");
    let longer: Vec<Vec<u32>> = all.iter().map(|window| window.repeat(2)).collect();
    let own = || options(dir, &all);
    for other in [
        ImatrixRun { source: 2, ..own() },
        ImatrixRun { windows: &longer, ..own() },
        ImatrixRun { windows: &all[..2], ..own() },
    ] {
        let mut model = Fake::default();
        let error = run(dir, &other, &mut model, usize::MAX).expect_err("it is of another run");
        assert_eq!((error.kind(), model.n_seen), (ConvertErrorKind::Usage, 0));
        assert!(error.to_string().contains("m.resume: it is of another model, text or --ctx"), "{error}");
    }
    // Without --resume a run begins anew.
    let mut model = Fake::default();
    let anew = run(dir, &ImatrixRun { source: 2, resume: false, ..own() }, &mut model, usize::MAX);
    assert_eq!((anew.expect("nothing breaks it").n_chunks as usize, model.n_seen), (N_WINDOWS, N_WINDOWS));
}
