//! Repacking: rows of file blocks into panels of 16 rows.

use super::format::{BLOCK, Format, PANEL_ROWS, Q4K, Q5K, Q6K, Q40, Q41, Q50, Q51, Q80, panel_bytes, panel_rows};
use super::matrix::Packing;
use super::{INT_TYPES, int_index};
use crate::arena::AlignedVec;
use crate::block::GgmlType;
use crate::team::Shared;

/// Bytes of rows after which the packing's owner hears that they are done.
const DONE_BYTES: usize = 16 << 20;

/// How matrices of one type are repacked.
pub(super) struct Repacker {
    /// Returns the bytes of a panel with so many blocks of 32.
    pub(super) panel_bytes: fn(usize) -> usize,
    /// [`pack`].
    pub(super) pack: fn(&mut Packing<'_>, usize, usize, &[u8]) -> AlignedVec<u8>,
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

/// Repacks a matrix, in parallel over its panels. Rows past the last are zeros.
///
/// # Panics
/// If `bytes` is not `n_rows` rows of `n_cols / block_len` blocks.
pub(super) fn pack<F: Format>(packing: &mut Packing<'_>, n_rows: usize, n_cols: usize, bytes: &[u8]) -> AlignedVec<u8> {
    let team = packing.team;
    let row_bytes = F::TY.row_bytes(n_cols).expect("the caller checked that rows are whole blocks");
    assert_eq!(bytes.len(), n_rows * row_bytes, "{}: a matrix of {n_rows} x {n_cols} has another size", F::TY);
    let n_panels = n_rows.div_ceil(PANEL_ROWS);
    let panel_bytes = panel_bytes::<F>(n_cols / BLOCK);
    let mut packed = packing.pages.take_with(team, n_panels * panel_bytes);
    let shared = Shared::new(&mut packed);
    // About 256 KiB a claim.
    let grain = (256 * 1024 / panel_bytes.max(1)).clamp(1, n_panels.div_ceil(team.n_threads()).max(1));
    let n_part = (DONE_BYTES / (PANEL_ROWS * row_bytes).max(1)).max(1);
    for first in (0..n_panels).step_by(n_part) {
        let n = n_part.min(n_panels - first);
        let part = first * PANEL_ROWS..n_rows.min((first + n) * PANEL_ROWS);
        team.for_each(n, grain, &|range, _| {
            for panel in first + range.start..first + range.end {
                let rows = panel_rows(panel, n_rows);
                let from = &bytes[rows.start * row_bytes..rows.end * row_bytes];
                // SAFETY: `for_each` hands out every panel once, and panels do not overlap.
                let to = unsafe { shared.slice(panel * panel_bytes..(panel + 1) * panel_bytes) };
                pack_panel::<F>(from, row_bytes, n_cols / BLOCK, to);
            }
        });
        (packing.done)(part.start * row_bytes..part.end * row_bytes);
    }
    packed
}

/// Repacks up to 16 rows (`rows`: whole rows of `row_bytes`) into one zeroed panel.
fn pack_panel<F: Format>(rows: &[u8], row_bytes: usize, n_blocks: usize, panel: &mut [u8]) {
    let subs = F::TY.block_len() / BLOCK;
    let block_bytes = F::TY.block_bytes();
    for file_block in 0..n_blocks / subs {
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            let block = &row[file_block * block_bytes..][..block_bytes];
            let first = file_block * subs;
            F::scales(block, &mut panel[F::record_at(first)..][..F::SCALE_BYTES], lane);
            for sub in 0..subs {
                let vectors = &mut panel[F::quants_at(first + sub)..][..F::QUANT_BYTES];
                let words = F::words(block, sub);
                for (vector, word) in vectors.as_chunks_mut::<64>().0.iter_mut().zip(words) {
                    vector[4 * lane..4 * lane + 4].copy_from_slice(&word.to_le_bytes());
                }
            }
        }
    }
}
