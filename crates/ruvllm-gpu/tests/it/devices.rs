//! Opening, memory, limits, loss.

use ruvllm_gpu::{Gpu, GpuChoice, GpuErrorKind, GpuOptions, PassInput, Step, WeightSource, gpus};
use ruvllm_shaders::{Kernel, SoftmaxParams, WeightFormat};

use crate::open_all;

#[test]
fn a_missing_gpu_is_told() {
    let choice = GpuChoice::parse("no such GPU");
    let error = Gpu::open(&GpuOptions { choice, ..GpuOptions::default() }).err().expect("there is none");
    assert_eq!(error.kind(), GpuErrorKind::NoAdapter);
    assert!(error.to_string().starts_with("no GPU is called 'no such gpu' (0: "), "{error}");
}

#[test]
fn adapters_say_what_they_have() {
    for (gpu, info) in open_all(&GpuOptions::default()).iter().zip(gpus()) {
        assert_eq!(*gpu.info(), info);
        assert!(info.binding_bytes_max >= 128 << 20 && info.buffer_bytes_max >= 256 << 20, "{info}");
        assert!(!info.name.is_empty() && !info.to_string().contains('\n'));
    }
}

#[test]
fn memory_ends_at_the_budget_and_comes_back() {
    for gpu in open_all(&GpuOptions { memory_bytes_max: Some(10_000), ..GpuOptions::default() }) {
        let first = gpu.buffer("first", 2000).expect("8,000 bytes fit");
        let error = gpu.buffer("second", 1000).err().expect("4,000 more do not");
        assert_eq!(error.kind(), GpuErrorKind::OutOfMemory);
        let expected =
            format!("no memory for second (4000 bytes) on {}: 8000 bytes are used of 10000", gpu.info().name);
        assert_eq!(error.to_string(), expected);
        assert_eq!(gpu.stats().allocated_bytes, 8000);
        drop(first);
        assert_eq!(gpu.stats().allocated_bytes, 0);
        assert_eq!(gpu.buffer("second", 1000).expect("there is room again").n_words(), 1000);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for gpu in open_all(&GpuOptions { binding_bytes_max: Some(1024), ..GpuOptions::default() }) {
        let error = gpu.buffer("large", 257).err().expect("a binding has 256 words");
        assert_eq!(error.kind(), GpuErrorKind::Unsupported);
        let buffer = gpu.buffer("small", 256).expect("it fits");
        let error = gpu.write(&buffer, 250, &[0; 7]).expect_err("seven words reach past the end");
        assert_eq!(error.to_string(), "7 words at word 250 do not fit into a buffer of 256 words");
        assert_eq!(error.kind(), GpuErrorKind::InvalidInput);
        gpu.write(&buffer, usize::MAX, &[0]).expect_err("the sum would overflow");

        for (k, rows_together, n_bytes, kind) in [
            (64, 1, 255, GpuErrorKind::InvalidInput),
            (64, 3, 1024, GpuErrorKind::InvalidInput),
            (64, 0, 1024, GpuErrorKind::InvalidInput),
            (64, 1, 0, GpuErrorKind::InvalidInput),
            (0, 1, 1024, GpuErrorKind::InvalidInput),
            (usize::MAX, 1, 1024, GpuErrorKind::InvalidInput),
            (64, usize::MAX, 1024, GpuErrorKind::InvalidInput),
            (512, 1, 2048, GpuErrorKind::Unsupported),
            (64, 5, 1280, GpuErrorKind::Unsupported),
        ] {
            let bytes = vec![0; n_bytes];
            let source = WeightSource { name: "w", format: WeightFormat::F32, k, rows_together, bytes: &bytes };
            let error = gpu.upload(&source).err().expect("it is refused");
            assert_eq!(error.kind(), kind, "{k}, {rows_together}, {n_bytes}: {error}");
        }
    }
}

#[test]
fn a_lost_device_fails_every_call() {
    for gpu in open_all(&GpuOptions::default()) {
        let (x, y) = (gpu.buffer("x", 4).expect("it fits"), gpu.buffer("y", 4).expect("it fits"));
        let kernel = Kernel::Softmax { reduction: gpu.reduction() };
        let step = || Step {
            kernel,
            params: SoftmaxParams { n: 4, scale: 1.0, ..SoftmaxParams::default() }.words(),
            buffers: vec![&x, &y],
            n: 1,
            slots: 1,
            count: 0,
        };
        let plan = gpu.plan(&[step()]).expect("it is valid");
        let pass = gpu.pass_buffers(1, 1).expect("they fit");
        let read = gpu.read_back(&y).expect("it fits");
        let input = PassInput { counts: [1, 0, 0, 0], rows: &[], tables: &[] };
        assert_eq!(gpu.run(&plan, &pass, input, &[&read]).expect("it runs"), [vec![0.25f32.to_bits(); 4]]);
        gpu.destroy();
        let lost = |error: ruvllm_gpu::GpuError| {
            assert_eq!(error.kind(), GpuErrorKind::DeviceLost, "{error}");
            assert!(error.to_string().contains("the model must be loaded again"), "{error}");
        };
        lost(gpu.run(&plan, &pass, input, &[&read]).expect_err("it is lost"));
        lost(gpu.buffer("z", 4).err().expect("it is lost"));
        lost(gpu.plan(&[step()]).err().expect("it is lost"));
        lost(gpu.wait().expect_err("it is lost"));
    }
}
