//! Repacking: rows of file blocks into panels of 16 rows.

use super::format::{
    BLOCK, Format, Iq4Nl, Iq4Xs, Mxfp4, PANEL_ROWS, Q2K, Q3K, Q4K, Q5K, Q6K, Q40, Q41, Q50, Q51, Q80, panel_bytes,
};
use super::int::scalar;
use super::matrix::{Packing, PanelSink};
use super::{INT_TYPES, int_index};
use crate::block::GgmlType;
use bytes::Bytes;
use ruvllm_cpu::SharedSlice;
use ruvllm_cpu::arena::AlignedVec;
use ruvllm_cpu::prefetch::{CacheLevel, LINE_BYTES};
use std::ops::Range;

/// How matrices of one type are repacked.
pub(super) struct Repacker {
    /// Returns the bytes of a panel with so many blocks of 32.
    pub(super) panel_bytes: fn(usize) -> usize,
    /// [`pack`].
    pub(super) pack: fn(&Packing<'_>, &mut Room<'_>, usize, Rows<'_>),
    /// [`unpack`].
    pub(super) unpack: fn(&[u8], usize, &mut [f32]),
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
        Repacker { panel_bytes: panel_bytes::<F>, pack: pack::<F>, unpack: unpack::<F> }
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

/// Where the panels of a matrix go.
pub(super) enum Room<'a> {
    Pages(AlignedVec<u8>),
    /// The sink, and where the room in it lies.
    Sink(&'a dyn PanelSink, Range<usize>),
}

impl<'a> Room<'a> {
    /// Takes room for `n_bytes` of panels.
    pub(super) fn take(packing: &mut Packing<'a>, n_bytes: usize) -> Room<'a> {
        match packing.sink.and_then(|sink| Some((sink, sink.room(n_bytes)?))) {
            Some((sink, start)) => Room::Sink(sink, start..start + n_bytes),
            None => Room::Pages(packing.pages.take_with(packing.threads, n_bytes)),
        }
    }

    /// Returns the panels once all are there.
    pub(super) fn into_bytes(self) -> Bytes {
        match self {
            Room::Pages(made) => Bytes::from_owner(made),
            Room::Sink(sink, room) => sink.panels(room),
        }
    }
}

/// Rows of a matrix as the file has them.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) row_bytes: usize,
    /// Blocks of 32 in a row.
    pub(super) n_blocks: usize,
}

/// Repacks rows into the panels from `first` on, in parallel. Those of the last panel that are missing are zeros.
pub(super) fn pack<F: Format>(packing: &Packing<'_>, room: &mut Room<'_>, first: usize, rows: Rows<'_>) {
    let n_panels = (rows.bytes.len() / rows.row_bytes).div_ceil(PANEL_ROWS);
    let (threads, panel_bytes) = (packing.threads, panel_bytes::<F>(rows.n_blocks));
    let grain = (CLAIM_BYTES / panel_bytes.max(1)).clamp(1, n_panels.div_ceil(threads.n_threads()).max(1));
    match room {
        Room::Sink(sink, room) => threads.for_each(n_panels, grain, &|panels, _| {
            let mut made = vec![0; grain * panel_bytes];
            for start in panels.clone().step_by(grain) {
                let panels = start..panels.end.min(start + grain);
                let made = &mut made[..panels.len() * panel_bytes];
                made.fill(0);
                panels.zip(made.chunks_exact_mut(panel_bytes)).for_each(|(panel, to)| rows.pack::<F>(panel, to));
                sink.put(room.start + (first + start) * panel_bytes, made);
            }
        }),
        Room::Pages(made) => {
            let shared = SharedSlice::new(&mut made[first * panel_bytes..][..n_panels * panel_bytes]);
            threads.for_each(n_panels, grain, &|panels, _| {
                for panel in panels {
                    // SAFETY: every panel comes once, and panels do not overlap.
                    rows.pack::<F>(panel, unsafe { shared.slice(panel * panel_bytes..(panel + 1) * panel_bytes) });
                }
            });
        }
    }
}

impl<'a> Rows<'a> {
    /// Repacks the rows of a panel into zeros.
    fn pack<F: Format>(self, panel: usize, to: &mut [u8]) {
        // Sixteen rows beside each other are too many streams for a core to read ahead by itself.
        self.of_panel(panel + 1).iter().step_by(LINE_BYTES).for_each(|line| CacheLevel::L2.prefetch(line));
        pack_panel::<F>(self.of_panel(panel), self.row_bytes, self.n_blocks, to);
    }

    /// Returns the rows of a panel; behind the last none.
    fn of_panel(self, panel: usize) -> &'a [u8] {
        let panel_bytes = PANEL_ROWS * self.row_bytes;
        let start = (panel * panel_bytes).min(self.bytes.len());
        &self.bytes[start..(start + panel_bytes).min(self.bytes.len())]
    }
}

/// Writes the values of lane `row` of a panel: the bits that [`dequantize`](crate::dequant::dequantize) makes of the row's blocks.
pub(super) fn unpack<F: Format>(panel: &[u8], row: usize, out: &mut [f32]) {
    for (b, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let weights = scalar::lane::<F>(&panel[F::quants_at(b)..], row);
        let (scale, min) = scalar::scales::<F>(panel, b, row);
        for (i, (x, weight)) in out.iter_mut().zip(weights).enumerate() {
            let product = scale[2 * i / BLOCK] * weight as f32;
            *x = if F::MIN { product + min[2 * i / BLOCK] } else { product };
        }
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
