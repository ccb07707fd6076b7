//! Repacking: rows of file blocks into panels of 16 rows.

use super::format::{
    BLOCK, Format, Iq4Nl, Iq4Xs, Mxfp4, PANEL_ROWS, Q2K, Q3K, Q4K, Q5K, Q6K, Q40, Q41, Q50, Q51, Q80, panel_bytes,
    panel_rows,
};
use super::matrix::Packing;
use super::{INT_TYPES, int_index};
use crate::block::GgmlType;
use bytes::Bytes;
use ruvllm_cpu::SharedSlice;
use ruvllm_cpu::prefetch::{CacheLevel, LINE_BYTES};
use std::ops::Range;

/// Bytes of rows after which the packing's owner hears that they are done.
const DONE_BYTES: usize = 16 << 20;

/// How matrices of one type are repacked.
pub(super) struct Repacker {
    /// Returns the bytes of a panel with so many blocks of 32.
    pub(super) panel_bytes: fn(usize) -> usize,
    /// [`pack`].
    pub(super) pack: fn(&mut Packing<'_>, usize, usize, &[u8]) -> Bytes,
}

/// In the order of [`INT_TYPES`].
pub(super) static REPACKERS: [Repacker; INT_TYPES.len()] = [
    Repacker::new::<Q40>(),
    Repacker::new::<Q41>(),
    Repacker::new::<Q50>(),
    Repacker::new::<Q51>(),
    Repacker::new::<Q80>(),
    Repacker::new::<Q4K>(),
    Repacker::new::<Q5K>(),
    Repacker::new::<Q6K>(),
    Repacker::new::<Q2K>(),
    Repacker::new::<Q3K>(),
    Repacker::new::<Iq4Nl>(),
    Repacker::new::<Iq4Xs>(),
    Repacker::new::<Mxfp4>(),
];

impl Repacker {
    const fn new<F: Format>() -> Repacker {
        Repacker { panel_bytes: panel_bytes::<F>, pack: pack::<F> }
    }

    /// Returns the repacker of a type, if it is one of the integer path.
    pub(super) fn of(ty: GgmlType) -> Option<&'static Repacker> {
        int_index(ty).map(|index| &REPACKERS[index])
    }

    /// Returns the bytes of all panels of a matrix.
    pub(super) fn bytes(&self, n_rows: usize, n_cols: usize) -> usize {
        n_rows.div_ceil(PANEL_ROWS) * (self.panel_bytes)(n_cols / BLOCK)
    }
}

/// About so many bytes of panels are made at once.
const CLAIM_BYTES: usize = 256 * 1024;

/// Repacks a matrix, in parallel over its panels. Rows past the last are zeros.
///
/// # Panics
/// If `bytes` is not `n_rows` rows of `n_cols / block_len` blocks.
pub(super) fn pack<F: Format>(packing: &mut Packing<'_>, n_rows: usize, n_cols: usize, bytes: &[u8]) -> Bytes {
    let source = Source::new::<F>(bytes, n_rows, n_cols);
    let (n_panels, panel_bytes) = (n_rows.div_ceil(PANEL_ROWS), source.panel_bytes);
    let n_bytes = n_panels * panel_bytes;
    let grain = (CLAIM_BYTES / panel_bytes.max(1)).clamp(1, n_panels.div_ceil(packing.threads.n_threads()).max(1));
    if let Some((sink, start)) = packing.sink.and_then(|sink| Some((sink, sink.room(n_bytes)?))) {
        source.in_parts(packing, grain, &|panels| {
            let mut made = vec![0; grain * panel_bytes];
            for first in panels.clone().step_by(grain) {
                let panels = first..panels.end.min(first + grain);
                let made = &mut made[..panels.len() * panel_bytes];
                made.fill(0);
                panels.zip(made.chunks_exact_mut(panel_bytes)).for_each(|(panel, to)| source.pack::<F>(panel, to));
                sink.put(start + first * panel_bytes, made);
            }
        });
        return sink.panels(start..start + n_bytes);
    }
    let mut made = packing.pages.take_with(packing.threads, n_bytes);
    let shared = SharedSlice::new(&mut made);
    source.in_parts(packing, grain, &|panels| {
        for panel in panels {
            // SAFETY: every panel comes once, and panels do not overlap.
            source.pack::<F>(panel, unsafe { shared.slice(panel * panel_bytes..(panel + 1) * panel_bytes) });
        }
    });
    Bytes::from_owner(made)
}

/// A matrix as the file has it.
struct Source<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
    n_rows: usize,
    n_blocks: usize,
    panel_bytes: usize,
}

impl<'a> Source<'a> {
    fn new<F: Format>(bytes: &'a [u8], n_rows: usize, n_cols: usize) -> Source<'a> {
        let row_bytes = F::TY.row_bytes(n_cols).expect("the caller checked that rows are whole blocks");
        assert_eq!(bytes.len(), n_rows * row_bytes, "{}: a matrix of {n_rows} x {n_cols} has another size", F::TY);
        let n_blocks = n_cols / BLOCK;
        Source { bytes, row_bytes, n_rows, n_blocks, panel_bytes: panel_bytes::<F>(n_blocks) }
    }

    /// Runs `f` on all panels, each once, shared out in multiples of `grain`, and tells the packing's owner of what is done.
    fn in_parts(&self, packing: &mut Packing<'_>, grain: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
        let n_panels = self.n_rows.div_ceil(PANEL_ROWS);
        let n_part = (DONE_BYTES / (PANEL_ROWS * self.row_bytes).max(1)).max(1);
        for first in (0..n_panels).step_by(n_part) {
            let n = n_part.min(n_panels - first);
            let rows = first * PANEL_ROWS..self.n_rows.min((first + n) * PANEL_ROWS);
            packing.threads.for_each(n, grain, &|panels, _| f(first + panels.start..first + panels.end));
            (packing.done)(rows.start * self.row_bytes..rows.end * self.row_bytes);
        }
    }

    /// Repacks the rows of a panel into zeros.
    fn pack<F: Format>(&self, panel: usize, to: &mut [u8]) {
        // Sixteen rows beside each other are too many streams for a core to read ahead by itself.
        self.rows(panel + 1).iter().step_by(LINE_BYTES).for_each(|line| CacheLevel::L2.prefetch(line));
        pack_panel::<F>(self.rows(panel), self.row_bytes, self.n_blocks, to);
    }

    /// Returns the rows of a panel; behind the last none.
    fn rows(&self, panel: usize) -> &'a [u8] {
        let rows = panel_rows(panel.min(self.n_rows.div_ceil(PANEL_ROWS)), self.n_rows);
        &self.bytes[rows.start.min(rows.end) * self.row_bytes..rows.end * self.row_bytes]
    }
}

/// Repacks up to 16 rows (`rows`: whole rows of `row_bytes`) into one zeroed panel.
fn pack_panel<F: Format>(rows: &[u8], row_bytes: usize, n_blocks: usize, panel: &mut [u8]) {
    let subs = F::TY.block_len() / BLOCK;
    let block_bytes = F::TY.block_bytes();
    for file_block in 0..n_blocks / subs {
        let first = file_block * subs;
        let blocks = || rows.chunks_exact(row_bytes).map(|row| &row[file_block * block_bytes..][..block_bytes]);
        let record = &mut panel[F::record_at(first)..][..F::SCALE_BYTES];
        blocks().enumerate().for_each(|(lane, block)| F::scales(block, record, lane));
        for sub in 0..subs {
            let mut words = [[0; 8]; PANEL_ROWS];
            words.iter_mut().zip(blocks()).for_each(|(words, block)| *words = F::words(block, sub));
            let quants = &mut panel[F::quants_at(first + sub)..][..F::QUANT_BYTES];
            for (v, vector) in quants.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                let lanes = vector.as_chunks_mut::<4>().0.iter_mut();
                lanes.zip(&words).for_each(|(lane, words)| *lane = words[v].to_le_bytes());
            }
        }
    }
}
