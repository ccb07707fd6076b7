//! Bits of products and panels, for which [`NUMERICS_VERSION`](crate::NUMERICS_VERSION) stands.

use ruvllm_testkit::RecordedBits;

use super::*;
use crate::NUMERICS_VERSION;

/// FNV-1a, 64 bits.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Hashes the panels of a matrix and its products with one and with nine rows.
fn fingerprint(table: &'static MatmulKernels, threads: &ThreadPool, ty: GgmlType) -> String {
    let (mut rng, n_rows, n_cols) = (Rng(7 + ty as u64), 80, 512);
    let bytes = blocks(&mut rng, ty, n_rows, n_cols, Fill::Random);
    let pages = &mut LargePages::default();
    let packing = &mut Packing { table, threads, pages, sink: None, part_bytes: 1 << 20 };
    let Ok(w) = Matrix::pack(packing, ty, n_rows, n_cols, &mut |range| Ok::<_, Infallible>(bytes.slice(range)));
    let mut products = 0;
    for n in [1, 9] {
        let x = rng.floats(n * n_cols);
        let x = acts(table, threads, &x, n, n_cols, w.act_format());
        let mut out = vec![0.0; n * n_rows];
        matmul(threads, &w, &x, &mut out);
        products ^= hash(bytemuck::cast_slice(&out)).rotate_left(n as u32);
    }
    format!("{products:016x} {:016x}", hash(w.bytes()))
}

/// A change of these lines is a change of numbers or of the form of packed weights: raise [`NUMERICS_VERSION`] with it, so that
/// caches of other builds are not read.
#[test]
fn the_version_stands_for_these_bits() {
    let (threads, mut recorded) =
        (ThreadPool::new(1), RecordedBits::of_version(include_str!("numerics.txt"), NUMERICS_VERSION));
    for table in rows() {
        if !recorded.covers(table.name()) {
            continue;
        }
        for ty in GgmlType::ALL.iter().copied().filter(|&ty| Matrix::supports(ty)) {
            recorded.check(format!("{} {ty} {}", table.name(), fingerprint(table, &threads, ty)));
        }
    }
    recorded.finish();
}
