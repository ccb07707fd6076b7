//! Panels: what packing makes of blocks, sinks, kept panels and next shares.

use super::*;

/// A sink in memory, with room for so many bytes.
struct Room(std::sync::Mutex<AlignedVec<u8>>, usize);

impl PanelSink for Room {
    fn room(&self, n_bytes: usize) -> Option<usize> {
        (n_bytes <= self.1).then_some(64)
    }

    fn put(&self, at: usize, panels: &[u8]) {
        self.0.lock().expect("no worker falls")[at..at + panels.len()].copy_from_slice(panels);
    }

    fn panels(&self, room: Range<usize>) -> Bytes {
        Bytes::copy_from_slice(&self.0.lock().expect("no worker falls")[room])
    }
}

/// What goes into a sink is what would go into memory, as long as there is room.
fn check_sink<F: Format>() {
    let (n_rows, k) = (1000, whole::<F>(900));
    let bytes = blocks(&mut Rng(4), F::TY, n_rows, k, Fill::Random);
    let expected = packed::<F>(&ThreadPool::new(1), n_rows, k, &bytes);
    for (n_threads, n_room) in [(1, expected.len()), (3, expected.len()), (2, expected.len() - 1)] {
        let sink = Room(AlignedVec::new(64 + expected.len()).into(), n_room);
        let (threads, pages) = (&ThreadPool::new(n_threads), &mut LargePages::default());
        assert_eq!(packed_to::<F>(&mut packing_of(threads, pages, Some(&sink)), n_rows, k, &bytes), expected);
        assert_eq!(sink.panels(64..64 + expected.len()) == expected, n_room == expected.len());
    }
}

#[test]
fn sinks_get_the_panels_that_memory_gets() {
    each_format!(check_sink());
}

/// The panels hold exactly what the file's blocks mean: up to the rounding of one product and one sum.
fn check_pack<F: Format>(n_rows: usize, k: usize) {
    let (k, n_blocks) = (whole::<F>(k), whole::<F>(k) / BLOCK);
    for fill in FILLS {
        let bytes = blocks(&mut Rng(1), F::TY, n_rows, k, fill);
        let packed = packed::<F>(&ThreadPool::new(2), n_rows, k, &bytes);
        let mut expected = vec![0.0; k];
        let size = panel_bytes::<F>(n_blocks);
        for row in 0..n_rows.next_multiple_of(PANEL_ROWS) {
            let (panel, lane) = (&packed[row / PANEL_ROWS * size..][..size], row % PANEL_ROWS);
            if row < n_rows {
                let row_bytes = bytes.len() / n_rows;
                dequant::dequantize(F::TY, &bytes[row * row_bytes..][..row_bytes], &mut expected);
            } else {
                expected.fill(0.0);
            }
            for b in 0..n_blocks {
                let weights = scalar::lane::<F>(&panel[F::quants_at(b)..], lane);
                let (scale, min) = scalar::scales::<F>(panel, b, lane);
                for i in 0..BLOCK {
                    let (product, min) = (scale[i / 16] * weights[i] as f32, min[i / 16]);
                    let (want, bound) = (expected[b * BLOCK + i], 2.0 * f32::EPSILON * (product.abs() + min.abs()));
                    assert!((product + min - want).abs() <= bound, "{} row {row} block {b} value {i}", F::TY);
                }
            }
        }
    }
}

#[test]
fn panels_hold_the_blocks() {
    for (n_rows, k) in [(1, 32), (15, 96), (16, 256), (17, 576), (40, 512)] {
        each_format!(check_pack(n_rows, k));
    }
}

/// A row of a matrix has the bits of the row in the file, whatever kernels dequantise that.
fn check_row<F: Format>(fill: Fill) {
    let (n_rows, k, threads) = (35, whole::<F>(500), ThreadPool::new(1));
    let bytes = blocks(&mut Rng(6), F::TY, n_rows, k, fill);
    let w = Matrix::new(pick(Isa::Scalar), &threads, F::TY, n_rows, k, bytes.clone());
    for table in dequant::available() {
        let [mut a, mut b] = [(); 2].map(|()| vec![f32::NAN; k]);
        for (row, blocks) in bytes.chunks_exact(bytes.len() / n_rows).enumerate() {
            w.row(table, row, &mut a);
            table.dequantize(F::TY, blocks, &mut b);
            let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            assert!(a.iter().zip(&b).all(is_same), "{} {} row {row}: {a:?} {b:?}", F::TY, table.isa());
        }
    }
}

#[test]
fn rows_of_panels_are_the_rows_of_the_file() {
    for fill in FILLS {
        each_format!(check_row(fill));
    }
    let (threads, bytes) = (ThreadPool::new(1), Bytes::from_static(&[0, 60, 0, 64, 0, 66, 0, 68]));
    let w = Matrix::new(pick(Isa::Scalar), &threads, GgmlType::F16, 2, 2, bytes);
    let mut row = [0.0; 2];
    w.row(dequant::pick(Isa::Scalar), 1, &mut row);
    assert_eq!(row, [3.0, 4.0], "other types have the rows themselves");
}

#[test]
fn a_part_that_cannot_be_read_is_no_matrix() {
    let (threads, bytes) = (ThreadPool::new(2), blocks(&mut Rng(8), GgmlType::Q8_0, 2000, 64, Fill::Random));
    for ends in [0, 30_000, bytes.len() - 1] {
        let read = &mut |part: Range<usize>| if part.end > ends { Err(part.start) } else { Ok(bytes.slice(part)) };
        let pages = &mut LargePages::default();
        let error = Matrix::pack(&mut packing_of(&threads, pages, None), GgmlType::Q8_0, 2000, 64, read);
        assert!(error.is_err_and(|start| start <= ends));
    }
}

#[test]
fn panels_take_little_more_than_the_file() {
    let threads = ThreadPool::new(1);
    for ty in INT_TYPES {
        let bytes = blocks(&mut Rng(2), ty, 64, 1024, Fill::Random);
        let (n_bytes, w) = (bytes.len(), Matrix::new(pick(Isa::Scalar), &threads, ty, 64, 1024, bytes));
        // Scales of six bits are bytes in a panel.
        let most = if ty == GgmlType::Q3_K { 1.06 } else { 1.03 };
        assert!(w.weight_bytes() as f64 <= most * n_bytes as f64, "{ty}: {} from {n_bytes}", w.weight_bytes());
    }
}

#[test]
fn panels_that_were_kept_multiply_as_those_that_are_made() {
    let (threads, table) = (ThreadPool::new(1), pick(Isa::best()));
    for ty in INT_TYPES {
        let made = Matrix::new(table, &threads, ty, 40, 512, blocks(&mut Rng(4), ty, 40, 512, Fill::Random));
        assert_eq!(Matrix::packed_bytes(ty, 40, 512), Some(made.bytes().len()));
        let kept = Bytes::from_owner(AlignedVec::from_slice(made.bytes()));
        let kept = Matrix::from_packed(table, ty, 40, 512, kept);
        let x = acts(table, &threads, &Rng(5).floats(3 * 512), 3, 512, ActFormat::Q16);
        let [mut a, mut b] = [(); 2].map(|()| vec![f32::NAN; 3 * 40]);
        matmul(&threads, &made, &x, &mut a);
        matmul(&threads, &kept, &x, &mut b);
        assert_eq!(a, b, "{ty}");
    }
    assert_eq!(Matrix::packed_bytes(GgmlType::F16, 40, 512), None, "it stays as it is");
    assert_eq!(Matrix::packed_bytes(GgmlType::Q4_K, 40, 128), None, "half a block");
}

#[test]
#[should_panic(expected = "matrix: 16 x 32 of Q8_0 in 576 bytes of panels")]
fn kept_panels_of_another_size_are_refused() {
    let bytes = Bytes::from_owner(AlignedVec::<u8>::new(576));
    Matrix::from_packed(pick(Isa::Scalar), GgmlType::Q8_0, 16, 32, bytes);
}

/// Matrices follow each other in memory only where the system has maps.
#[cfg(any(unix, windows))]
#[test]
fn next_shares_cover_the_panels_in_order() {
    let (table, threads, mut pages) = (pick(Isa::Scalar), ThreadPool::new(1), LargePages::default());
    let mut matrix = |n_rows| {
        let bytes = blocks(&mut Rng(3), GgmlType::Q8_0, n_rows, 64, Fill::Random);
        let packing = &mut Packing { table, threads: &threads, pages: &mut pages, sink: None, part_bytes: 1 << 20 };
        let read = &mut |range| Ok::<_, Infallible>(bytes.slice(range));
        let Ok(matrix) = Matrix::pack(packing, GgmlType::Q8_0, n_rows, 64, read);
        matrix
    };
    let matrices = [matrix(640), matrix(64), matrix(80)];
    let address = |w: &Matrix| w.bytes().as_ptr_range().start as usize..w.bytes().as_ptr_range().end as usize;
    for n_threads in [1, 2, 3, 7] {
        let next = next_shares(n_threads, &matrices.each_ref());
        let shares = next.shares();
        assert_eq!(shares.len(), n_threads);
        assert_eq!(shares[0].start, address(&matrices[0]).start);
        assert_eq!(shares[n_threads - 1].end, address(&matrices[2]).end);
        assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start), "{n_threads} threads: {shares:?}");
    }
}
