//! The bits of products and panels: what [`NUMERICS_VERSION`](crate::NUMERICS_VERSION) stands for.

use std::fmt::Write;

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
    let packing = &mut Packing { table, threads, pages, sink: None, done: &mut |_| {} };
    let w = Matrix::pack(packing, ty, n_rows, n_cols, bytes);
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
/// caches of other builds are not read. The file also names the rows that no machine of ours can run, which are not looked at.
#[test]
fn the_version_stands_for_these_bits() {
    let recorded = include_str!("numerics.txt");
    let version = format!("version {NUMERICS_VERSION}");
    assert_eq!(recorded.lines().next(), Some(version.as_str()), "numerics.txt is of another version");
    let (threads, mut found) = (ThreadPool::new(1), String::new());
    let unrecorded = recorded.lines().find_map(|line| line.strip_prefix("unrecorded ")).unwrap_or_default();
    let is_unrecorded = |name: &str| unrecorded.split(' ').any(|other| other == name);
    for table in rows().filter(|table| !is_unrecorded(table.name())) {
        for ty in GgmlType::ALL.iter().copied().filter(|&ty| Matrix::supports(ty)) {
            let line = format!("{} {ty} {}", table.name(), fingerprint(table, &threads, ty));
            if !recorded.lines().any(|known| known == line) {
                writeln!(found, "{line}").expect("a string takes all");
            }
        }
    }
    assert!(found.is_empty(), "these bits are not recorded in numerics.txt for version {NUMERICS_VERSION}:\n{found}");
}
