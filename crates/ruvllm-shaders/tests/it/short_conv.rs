//! Short convolutions over pages: what is written, and what is read of it.

use ruvllm_shaders::{ConvParams, Extent, KV_BLOCK, Kernel, RowRecord};

use crate::device::{Dispatch, Pass, floats, on_all};
use crate::random::Random;

const N: usize = 270;
const N_ROWS: usize = 3;
const N_BLOCKS: usize = 4;
const BLOCK: usize = KV_BLOCK as usize;

/// Rows at positions 0 and 1 of one sequence, and at 17 of another, whose blocks lie apart.
fn pass() -> Pass {
    let row = |block: usize, position: usize, table| RowRecord {
        slot: (block * BLOCK + position % BLOCK) as u32,
        table,
        n_keys: position as u32 + 1,
        ..RowRecord::default()
    };
    Pass { rows: vec![row(2, 0, 0), row(2, 1, 0), row(1, 17, 1)], tables: vec![2, 3, 1], ..Pass::default() }
}

fn params(n_taps: usize) -> ConvParams {
    let (n, n_taps) = (N as u32, n_taps as u32);
    ConvParams { n, n_taps, x_offset: 2, x_stride: 3 * n + 1, y_offset: 1, y_stride: n + 2, count: 1 }
}

#[test]
fn inputs_are_written_to_their_slots() {
    let mut random = Random::new(1);
    let (x, before) = (random.floats(2 + N_ROWS * (3 * N + 1)), random.floats(N_BLOCKS * BLOCK * N));
    let dispatch = Dispatch {
        kernel: Kernel::ConvAppend,
        params: params(3).words(),
        extent: Extent { n: N as u32, rows: N_ROWS as u32, slots: 1 },
        buffers: vec![x.clone().into(), before.clone().into()],
        pass: pass(),
    };
    let mut expected = before;
    for (row, record) in pass().rows.iter().enumerate() {
        let x = &x[2 + row * (3 * N + 1)..][..3 * N];
        let slot = &mut expected[record.slot as usize * N..][..N];
        slot.iter_mut().enumerate().for_each(|(i, to)| *to = x[i] * x[2 * N + i]);
    }
    on_all(&dispatch, |name, written| assert!(floats(&written[0]) == expected, "{name}"));
}

#[test]
fn convolutions_read_the_positions_before() {
    for n_taps in [2, 3, 4, 20] {
        let mut random = Random::new(n_taps as u64);
        let (x, inputs) = (random.floats(2 + N_ROWS * (3 * N + 1)), random.floats(N_BLOCKS * BLOCK * N));
        let (taps, y) = (random.floats(N * n_taps), random.floats(1 + N_ROWS * (N + 2)));
        let dispatch = Dispatch {
            kernel: Kernel::ShortConv,
            params: params(n_taps).words(),
            extent: Extent { n: N as u32, rows: N_ROWS as u32, slots: 1 },
            buffers: vec![x.clone().into(), inputs.clone().into(), taps.clone().into(), y.clone().into()],
            pass: pass(),
        };
        let Pass { rows, tables, .. } = pass();
        on_all(&dispatch, |name, written| {
            let got = floats(&written[0]);
            for (row, record) in rows.iter().enumerate() {
                for i in 0..N {
                    let c = f64::from(x[2 + row * (3 * N + 1) + N + i]);
                    let terms = (0..n_taps.min(record.n_keys as usize)).map(|back| {
                        let position = record.n_keys as usize - 1 - back;
                        let slot = tables[record.table as usize + position / BLOCK] as usize * BLOCK + position % BLOCK;
                        f64::from(taps[i * n_taps + n_taps - 1 - back]) * f64::from(inputs[slot * N + i])
                    });
                    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                    // Each term is rounded once, and in up to n_taps sums, and the product once.
                    let bound = (n_taps + 2) as f64 * f64::from(f32::EPSILON) * c.abs() * size;
                    let value = f64::from(got[1 + row * (N + 2) + i]);
                    assert!((value - c * sum).abs() <= bound, "{name}, {n_taps} taps: {value} instead of {}", c * sum);
                }
            }
        });
    }
}
