//! Weights in parts, and passes of several dispatches.

use half::f16;
use ruvllm_gpu::{Gpu, GpuBuffer, GpuErrorKind, GpuOptions, PassInput, Step, WeightMatrix, WeightSource, WordCopy};
use ruvllm_shaders::{
    AddParams, Extent, Kernel, LinearParams, NormParams, RowRecord, RowTile, SoftmaxParams, WeightFormat, flags,
};

use crate::open_all;

/// Numbers within ±1 that repeat after a long time.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(next).collect()
}

pub(crate) fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn filled(gpu: &Gpu, name: &str, values: &[f32]) -> GpuBuffer {
    let buffer = gpu.buffer(name, values.len()).expect("it fits");
    gpu.write(&buffer, 0, &words(values)).expect("it fits");
    buffer
}

/// Values that f16 has.
pub(crate) fn halves(n: usize, seed: u32) -> Vec<f32> {
    numbers(n, seed).into_iter().map(|x| f16::from_f32(x).to_f32()).collect()
}

pub(crate) fn upload(gpu: &Gpu, k: usize, rows_together: usize, values: &[f32]) -> WeightMatrix {
    let bytes: Vec<u8> = values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
    let source = WeightSource { name: "w", format: WeightFormat::F16, k, rows_together, bytes: &bytes };
    gpu.upload(&source).expect("the parts fit")
}

/// A step for each part of a matrix.
fn products<'a>(
    w: &'a WeightMatrix,
    x: &'a GpuBuffer,
    bias: &'a GpuBuffer,
    y: &'a GpuBuffer,
    gpu: &Gpu,
) -> Vec<Step<'a>> {
    let step = |part: &'a ruvllm_gpu::WeightPart| Step {
        kernel: Kernel::MatVec { format: w.format, rows: RowTile::Four, reduction: gpu.reduction() },
        params: LinearParams {
            n_units: w.format.n_units(w.k) as u32,
            n_quads: w.k as u32 / 4,
            row_words: w.format.row_words(w.k) as u32,
            n_out: part.n_rows as u32,
            bias_offset: part.first_row as u32,
            x_stride: w.k as u32,
            y_offset: part.first_row as u32,
            y_stride: w.n_rows as u32,
            flags: flags::HAS_BIAS,
            ..LinearParams::default()
        }
        .words(),
        buffers: vec![&part.buffer, x, bias, y],
        n: part.n_rows as u32,
        slots: 1,
        count: 0,
    };
    w.parts.iter().map(step).collect()
}

#[test]
fn a_matrix_over_the_limit_is_split_by_rows() {
    let (k, n_out, n_rows) = (64, 100, 3);
    // 128 bytes a row: 32 rows in a part.
    for gpu in open_all(&GpuOptions { binding_bytes_max: Some(4100), ..GpuOptions::default() }) {
        let (weights, x, bias) = (halves(k * n_out, 1), numbers(n_rows * k, 2), numbers(n_out, 3));
        let w = upload(&gpu, k, 1, &weights);
        let parts: Vec<(usize, usize)> = w.parts.iter().map(|part| (part.first_row, part.n_rows)).collect();
        assert_eq!(parts, [(0, 32), (32, 32), (64, 32), (96, 4)]);
        let (x_on, bias_on) = (filled(&gpu, "x", &x), filled(&gpu, "bias", &bias));
        let y = gpu.buffer("y", n_rows * n_out).expect("it fits");
        let plan = gpu.plan(&products(&w, &x_on, &bias_on, &y, &gpu)).expect("it is valid");
        let (pass, read) = (gpu.pass_buffers(n_rows, 1).expect("they fit"), gpu.read_back(&y).expect("it fits"));
        let input = PassInput { counts: [n_rows as u32, 0, 0, 0], rows: &[], tables: &[] };
        let got = gpu.run(&plan, &pass, input, &[&read]).expect("it runs");
        for (i, got) in got[0].iter().enumerate() {
            let (row, out) = (i / n_out, i % n_out);
            let terms = || (0..k).map(|j| f64::from(weights[out * k + j]) * f64::from(x[row * k + j]));
            let expected = f64::from(bias[out]) + terms().sum::<f64>();
            let bound = (k + 2) as f64 * f64::from(f32::EPSILON) * (1.0 + terms().map(f64::abs).sum::<f64>());
            assert!((f64::from(f32::from_bits(*got)) - expected).abs() <= bound, "{}: {row}, {out}", gpu.info().name);
        }
    }
}

#[test]
fn rows_of_an_expert_stay_together() {
    for gpu in open_all(&GpuOptions { binding_bytes_max: Some(4100), ..GpuOptions::default() }) {
        let w = upload(&gpu, 64, 10, &halves(64 * 70, 1));
        let parts: Vec<(usize, usize)> = w.parts.iter().map(|part| (part.first_row, part.n_rows)).collect();
        assert_eq!(parts, [(0, 30), (30, 30), (60, 10)]);
    }
}

/// Norm, product, softmax of the product, and the norm added to it: each reads what the one before wrote.
#[test]
fn steps_see_each_others_results_and_nothing_is_made_while_running() {
    let (k, n_rows_max) = (64, 4);
    for gpu in open_all(&GpuOptions::default()) {
        let (weights, bias) = (halves(k * k, 1), vec![0.0; k]);
        let w = upload(&gpu, k, 1, &weights);
        let bias_on = filled(&gpu, "bias", &bias);
        let make = |name| gpu.buffer(name, n_rows_max * k).expect("it fits");
        let (x, normed, product, y) = (make("x"), make("normed"), make("product"), make("y"));
        let row = (k as u32, k as u32);
        let reduction = gpu.reduction();
        let norm = NormParams { n: row.0, x_stride: row.1, y_stride: row.1, eps: 1e-5, ..NormParams::default() };
        let softmax =
            SoftmaxParams { n: row.0, x_stride: row.1, y_stride: row.1, scale: 0.5, ..SoftmaxParams::default() };
        let add = AddParams { n: row.0, x_stride: row.1, y_stride: row.1, scale: 1.0, ..AddParams::default() };
        let step = |kernel, params, buffers, n| Step { kernel, params, buffers, n, slots: 1, count: 0 };
        let mut steps = vec![step(
            Kernel::Norm { is_centred: false, reduction },
            norm.words(),
            vec![&x, &bias_on, &bias_on, &normed],
            1,
        )];
        steps.extend(products(&w, &normed, &bias_on, &product, &gpu));
        steps.push(step(Kernel::Softmax { reduction }, softmax.words(), vec![&product, &y], 1));
        steps.push(step(Kernel::Add, add.words(), vec![&normed, &bias_on, &y], k as u32));
        let plan = gpu.plan(&steps).expect("it is valid");
        let (pass, read) = (gpu.pass_buffers(n_rows_max, 1).expect("they fit"), gpu.read_back(&y).expect("it fits"));
        let before = gpu.stats();
        for (seed, n_rows) in (10..).zip([1, 4, 2, 1, 3]) {
            let input = numbers(n_rows * k, seed);
            gpu.write(&x, 0, &words(&input)).expect("it fits");
            let records = vec![RowRecord::default(); n_rows];
            let changed = PassInput { counts: [n_rows as u32, 0, 0, 0], rows: &records, tables: &[] };
            let got = gpu.run(&plan, &pass, changed, &[&read]).expect("it runs");
            for (row, input) in input.chunks_exact(k).enumerate() {
                let expected = expected_row(input, &weights);
                for (i, expected) in expected.iter().enumerate() {
                    let got = f64::from(f32::from_bits(got[0][row * k + i]));
                    assert!((got - expected).abs() <= 1e-4, "{}: {got} instead of {expected}", gpu.info().name);
                }
            }
        }
        let after = gpu.stats();
        assert_eq!(after.n_command_buffers - before.n_command_buffers, 5);
        assert_eq!(after.n_dispatches - before.n_dispatches, 5 * plan.n_steps() as u64);
        let made = |stats: ruvllm_gpu::GpuStats| {
            (stats.n_buffers, stats.n_bind_groups, stats.n_pipelines, stats.allocated_bytes)
        };
        assert_eq!(made(after), made(before), "a pass makes neither buffers, bind groups nor pipelines");
    }
}

/// The steps of the test above in f64.
fn expected_row(x: &[f32], weights: &[f32]) -> Vec<f64> {
    let k = x.len();
    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let normed: Vec<f64> = x.iter().map(|x| f64::from(*x) / (squares / k as f64 + 1e-5).sqrt()).collect();
    let product = |out: usize| (0..k).map(|j| f64::from(weights[out * k + j]) * normed[j]).sum::<f64>();
    let weights: Vec<f64> = (0..k).map(|out| (0.5 * product(out)).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().zip(normed).map(|(weight, normed)| weight / total + normed).collect()
}

#[test]
fn a_pass_without_rows_dispatches_nothing() {
    for gpu in open_all(&GpuOptions::default()) {
        let (x, y) = (filled(&gpu, "x", &[1.0; 4]), filled(&gpu, "y", &[7.0; 4]));
        let kernel = Kernel::Softmax { reduction: gpu.reduction() };
        let params = SoftmaxParams { n: 4, count: 1, ..SoftmaxParams::default() }.words();
        assert_eq!(kernel.grid(Extent { n: 1, rows: 0, slots: 1 })[1], 0);
        let plan =
            gpu.plan(&[Step { kernel, params, buffers: vec![&x, &y], n: 1, slots: 1, count: 1 }]).expect("valid");
        let (pass, read) = (gpu.pass_buffers(2, 2).expect("they fit"), gpu.read_back(&y).expect("it fits"));
        let input = PassInput { counts: [1, 0, 0, 0], rows: &[], tables: &[] };
        assert_eq!(gpu.run(&plan, &pass, input, &[&read]).expect("it runs"), [words(&[7.0; 4])]);
        assert_eq!(gpu.stats().n_dispatches, 0);
    }
}

#[test]
fn steps_are_timed_where_the_device_has_a_clock() {
    for gpu in open_all(&GpuOptions::default()) {
        let n = 1 << 16;
        let (x, y) = (filled(&gpu, "x", &numbers(n, 1)), gpu.buffer("y", n).expect("it fits"));
        let params = SoftmaxParams { n: n as u32, scale: 1.0, ..SoftmaxParams::default() };
        let step = |count| Step {
            kernel: Kernel::Softmax { reduction: gpu.reduction() },
            params: SoftmaxParams { count: count as u32, ..params }.words(),
            buffers: vec![&x, &y],
            n: 1,
            slots: 1,
            count,
        };
        let plan = gpu.plan(&[step(0), step(1)]).expect("it is valid");
        let pass = gpu.pass_buffers(1, 1).expect("they fit");
        let input = PassInput { counts: [1, 0, 0, 0], rows: &[], tables: &[] };
        match gpu.time(&plan, &pass, input) {
            Ok(times) => {
                assert_eq!(times.len(), 2);
                assert!(times.iter().all(|time| time.kernel.starts_with("softmax")));
                assert!(times[0].ns > 0.0 && times[0].ns < 1e10, "{times:?}");
                assert_eq!(times[1].ns, 0.0, "it has no rows");
            }
            Err(error) => assert_eq!(error.to_string(), format!("{} has no timestamps", gpu.info().name)),
        }
    }
}

#[test]
fn steps_and_passes_that_do_not_fit_are_refused() {
    for gpu in open_all(&GpuOptions::default()) {
        let x = filled(&gpu, "x", &[1.0; 4]);
        let kernel = Kernel::Softmax { reduction: gpu.reduction() };
        for (n_buffers, count) in [(1, 0), (3, 0), (2, 4)] {
            let step = Step { kernel, params: [0; 16], buffers: vec![&x; n_buffers], n: 1, slots: 1, count };
            let error = gpu.plan(&[step]).err().expect("it is refused");
            assert_eq!(error.kind(), GpuErrorKind::InvalidInput, "{error}");
        }
        let (plan, pass) = (gpu.plan(&[]).expect("nothing is valid"), gpu.pass_buffers(2, 4).expect("they fit"));
        let rows = vec![RowRecord::default(); 3];
        for input in [
            PassInput { counts: [0; 4], rows: &rows, tables: &[] },
            PassInput { counts: [0; 4], rows: &[], tables: &[0; 5] },
        ] {
            let error = gpu.run(&plan, &pass, input, &[]).expect_err("it is refused");
            assert_eq!(error.kind(), GpuErrorKind::InvalidInput, "{error}");
        }
    }
}

#[test]
fn copies_are_measured() {
    for gpu in open_all(&GpuOptions::default()) {
        let before = gpu.stats().allocated_bytes;
        let gbps = gpu.copy_gbps().expect("the buffers fit");
        assert!(gbps.is_finite() && gbps > 0.01, "{gbps}");
        assert_eq!(gpu.stats().allocated_bytes, before);
    }
}

#[test]
fn words_are_copied_within_a_buffer() {
    for gpu in open_all(&GpuOptions::default()) {
        let (x, scratch) = (filled(&gpu, "x", &numbers(12, 1)), gpu.buffer("scratch", 4).expect("it fits"));
        let copy = |from, to, n_words| WordCopy { buffer: &x, from, to, n_words };
        gpu.copy(&[copy(0, 8, 4), copy(8, 4, 2)], &scratch).expect("they are inside");
        let read = gpu.read_back(&x).expect("it fits");
        let (pass, plan) = (gpu.pass_buffers(1, 1).expect("they fit"), gpu.plan(&[]).expect("it is empty"));
        let input = PassInput { counts: [0; 4], rows: &[], tables: &[] };
        let before = gpu.stats().n_bytes_read;
        let got = gpu.run_all(&[&plan], &pass, input, &[read.first(10)]).expect("it runs");
        let old = words(&numbers(12, 1));
        let expected = [&old[..4], &old[..2], &old[6..8], &old[..2]].concat();
        assert_eq!(got, [expected]);
        assert_eq!(gpu.stats().n_bytes_read - before, 40);
        for bad in [copy(0, 9, 4), copy(9, 0, 4), copy(0, 6, 5), copy(usize::MAX, 0, 2)] {
            assert_eq!(gpu.copy(&[bad], &scratch).expect_err("outside").kind(), GpuErrorKind::InvalidInput);
        }
    }
}
