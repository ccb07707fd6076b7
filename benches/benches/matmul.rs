//! Matrix products, per instruction set, on the matrices of the three reference models, and on those of 8B models and of experts.
//!
//! One row (decode) reads every weight once, on one thread and on two: its throughput is weight bytes per second, to be
//! held against the machine's read bandwidth of as many bytes as the model has (`read`, measured just before). The matrices are copied until they are as large together
//! as the model (of the wide ones as [`WIDE_BYTES`]), and taken in turn, so that they come from where the model's would. Eight and 16 rows (serving) and 512
//! (prefill) run on one thread and count multiply-adds. Only a head's last row is ever wanted of a prompt, so heads have
//! no 512.
//!
//! `float` is the path of types that are not repacked. Quantising the input and packing have groups of their own.

use std::cell::LazyCell;
use std::hint::black_box;

use bytes::Bytes;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_benches::shapes::{MODELS, Model, Product, WIDE_SHAPES, WIDE_TYPES, WideShape};
use ruvllm_benches::{blocks, criterion, read, runs_as_test, values};
use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::matmul::{self, ActFormat, Acts, MatmulKernels, Matrix};
use ruvllm_kernels::{GgmlType, Isa};

/// Most weights of a product that the scalar row is measured on. Arithmetic bounds it, so a slice of a matrix has the
/// rate of the whole.
const SCALAR_WEIGHTS: usize = 1 << 20;

/// Copies of a wide matrix have as many bytes together, more than caches hold.
const WIDE_BYTES: usize = 256 << 20;

/// Rows of a wide matrix that a test run multiplies.
const WIDE_TEST_ROWS: usize = 256;

/// Pools of one and of two threads.
fn pools() -> [ThreadPool; 2] {
    [ThreadPool::new(1), ThreadPool::new(2)]
}

/// Equal copies of a product's matrices.
struct Weights {
    copies: Vec<Vec<Matrix>>,
    turn: usize,
}

impl Weights {
    /// Copies `parts` (type and rows of each matrix) until `n_bytes` are there.
    fn new(
        table: &'static MatmulKernels,
        threads: &ThreadPool,
        parts: &[(GgmlType, usize)],
        n_cols: usize,
        n_bytes: usize,
    ) -> Weights {
        let parts: Vec<_> = parts
            .iter()
            .map(|&(ty, n_rows)| (ty, n_rows, Bytes::from(blocks(n_rows * row_bytes(ty, n_cols)))))
            .collect();
        let size: usize = parts.iter().map(|(.., bytes)| bytes.len()).sum();
        let copy = || {
            let matrix =
                |(ty, n_rows, bytes): &(_, _, Bytes)| Matrix::new(table, threads, *ty, *n_rows, n_cols, bytes.clone());
            parts.iter().map(matrix).collect()
        };
        Weights { copies: (0..n_bytes.div_ceil(size).max(1)).map(|_| copy()).collect(), turn: 0 }
    }

    /// Multiplies with the next copy.
    fn multiply(&mut self, threads: &ThreadPool, acts: &Acts, out: &mut [Vec<f32>]) {
        self.turn = (self.turn + 1) % self.copies.len();
        match (&self.copies[self.turn][..], out) {
            ([a], [x]) => matmul::matmul(threads, a, acts, x),
            ([a, b], [x, y]) => matmul::matmul_many(threads, acts, &mut [(a, x), (b, y)]),
            ([a, b, c], [x, y, z]) => matmul::matmul_many(threads, acts, &mut [(a, x), (b, y), (c, z)]),
            (matrices, _) => panic!("a product has one to three matrices, not {}", matrices.len()),
        }
    }
}

/// The cases of one product on one row of the table.
struct Cases<'a> {
    /// `matmul/<model>/<role>/<types>`.
    name: &'a str,
    table: &'static MatmulKernels,
    n_cols: usize,
    parts: &'a [(GgmlType, usize)],
    /// Copied until they are this large.
    n_bytes: usize,
}

impl Cases<'_> {
    /// Measures with `n` activation rows on `n_threads`, for each pair of `loads`.
    fn run(&self, group: &mut BenchmarkGroup<'_, WallTime>, pools: &[ThreadPool; 2], loads: &[(usize, usize)]) {
        let &Cases { name, table, n_cols, parts, n_bytes } = self;
        let n_rows: usize = parts.iter().map(|(_, n_rows)| n_rows).sum();
        // Made when first asked for: a filter may drop every case.
        let mut weights = LazyCell::new(|| Weights::new(table, &pools[1], parts, n_cols, n_bytes));
        for &(n, n_threads) in loads {
            let threads = &pools[n_threads - 1];
            group.throughput(match n {
                1 => Throughput::Bytes(parts.iter().map(|&(ty, n_rows)| (n_rows * row_bytes(ty, n_cols)) as u64).sum()),
                _ => Throughput::Elements((n * n_cols * n_rows) as u64),
            });
            let mut buffers = LazyCell::new(|| (Acts::new(n_cols, n), Vec::new()));
            group.bench_function(BenchmarkId::new(format!("{name}/n{n}/t{n_threads}"), table.name()), |b| {
                let (acts, out) = &mut *buffers;
                if out.is_empty() {
                    let format = weights.copies[0][0].act_format();
                    acts.set(table, threads, &values(n * n_cols, 2), n, n_cols, format);
                    out.extend(parts.iter().map(|(_, n_rows)| vec![0.0; n * n_rows]));
                }
                b.iter(|| weights.multiply(threads, black_box(acts), out));
            });
        }
    }
}

/// Returns the bytes of a row.
fn row_bytes(ty: GgmlType, n_cols: usize) -> usize {
    ty.row_bytes(n_cols).expect("rows are whole blocks")
}

fn bench_models(c: &mut Criterion) {
    let (mut group, pools) = (c.benchmark_group("matmul"), pools());
    for model in &MODELS {
        read::bench(&mut group, &format!("{}/read", model.name), model.weight_bytes());
        for product in model.products {
            bench_product(&mut group, &pools, model, product);
        }
    }
    group.finish();
}

fn bench_product(group: &mut BenchmarkGroup<'_, WallTime>, pools: &[ThreadPool; 2], model: &Model, product: &Product) {
    let &Product { role, parts, n_cols, .. } = product;
    let name = format!("{}/{role}/{}", model.name, product.types());
    for table in matmul::available() {
        if table.isa() == Isa::Scalar {
            let n_rows = |n_rows: usize| n_rows.min(SCALAR_WEIGHTS / n_cols / parts.len());
            let parts: Vec<_> = parts.iter().map(|&(ty, n)| (ty, n_rows(n))).collect();
            Cases { name: &name, table, n_cols, parts: &parts, n_bytes: 0 }.run(group, pools, &[(1, 1), (8, 1)]);
            continue;
        }
        let n_bytes = if runs_as_test() { 0 } else { model.weight_bytes() };
        let loads = [(1, 1), (1, 2), (8, 1), (16, 1), (512, 1)];
        let n_loads = if role == "head" { 4 } else { 5 };
        Cases { name: &name, table, n_cols, parts, n_bytes }.run(group, pools, &loads[..n_loads]);
    }
}

fn bench_wide(c: &mut Criterion) {
    let (mut group, pools) = (c.benchmark_group("matmul"), pools());
    let mut model = "";
    for shape in &WIDE_SHAPES {
        if model != shape.model {
            model = shape.model;
            read::bench(&mut group, &format!("{model}/read"), WIDE_BYTES);
        }
        for ty in WIDE_TYPES {
            bench_wide_matrix(&mut group, &pools, shape, ty);
        }
    }
    group.finish();
}

fn bench_wide_matrix(
    group: &mut BenchmarkGroup<'_, WallTime>,
    pools: &[ThreadPool; 2],
    shape: &WideShape,
    ty: GgmlType,
) {
    let &WideShape { model, role, n_rows, n_cols } = shape;
    let name = format!("{model}/{role}/{ty}");
    let (n_rows, n_bytes) = if runs_as_test() { (n_rows.min(WIDE_TEST_ROWS), 0) } else { (n_rows, WIDE_BYTES) };
    let loads = [(1, 1), (1, 2), (2, 1), (4, 1), (8, 1), (16, 1), (512, 1)];
    let n_loads = if role == "head" { loads.len() - 1 } else { loads.len() };
    for table in matmul::available().filter(|table| table.isa() != Isa::Scalar) {
        Cases { name: &name, table, n_cols, parts: &[(ty, n_rows)], n_bytes }.run(group, pools, &loads[..n_loads]);
    }
}

fn bench_float(c: &mut Criterion) {
    let (mut group, pools) = (c.benchmark_group("matmul"), pools());
    for (ty, n_cols) in [(GgmlType::F16, 576), (GgmlType::IQ3_XXS, 1024)] {
        for table in matmul::available() {
            let name = format!("float/{ty}");
            let parts = [(ty, 2048)];
            Cases { name: &name, table, n_cols, parts: &parts, n_bytes: 0 }.run(&mut group, &pools, &[(1, 1), (8, 1)]);
        }
    }
    group.finish();
}

fn bench_quantize(c: &mut Criterion) {
    let mut group = c.benchmark_group("quantize_activations");
    let (x, threads) = (values(4864, 1), ThreadPool::new(1));
    group.throughput(Throughput::Bytes((x.len() * size_of::<f32>()) as u64));
    for table in matmul::available() {
        let mut acts = Acts::new(x.len(), 1);
        group.bench_function(BenchmarkId::new("k4864", table.name()), |b| {
            b.iter(|| acts.set(table, &threads, black_box(&x), 1, x.len(), ActFormat::Q16));
        });
    }
    group.finish();
}

fn bench_pack(c: &mut Criterion) {
    let mut group = c.benchmark_group("pack");
    let (threads, table) = (ThreadPool::new(1), matmul::pick(Isa::best()));
    for ty in [GgmlType::Q4_1, GgmlType::Q5_0, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q6_K] {
        let bytes = Bytes::from(blocks(2048 * row_bytes(ty, 1024)));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(ty.name(), |b| b.iter(|| Matrix::new(table, &threads, ty, 2048, 1024, bytes.clone())));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = criterion();
    targets = bench_models, bench_wide, bench_float, bench_quantize, bench_pack
}
criterion_main!(benches);
