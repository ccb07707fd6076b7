//! The memory of one format: its units in a range of addresses.

use ruvllm_cpu::arena::PageRange;
use ruvllm_kernels::attention::KvUnits;

use super::layout::KvLayout;
use crate::block::SpaceSize;

/// The units of one format.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) range: PageRange,
    /// Bytes of all units.
    pub(super) n_bytes: usize,
    pub(super) stride: usize,
    pub(super) unit_bytes: usize,
    /// Offsets of each layer's K and V in a unit.
    pub(super) parts: Vec<(usize, usize)>,
}

impl Store {
    pub(super) fn new(layout: &KvLayout, size: SpaceSize) -> Option<Store> {
        let mut at = 0;
        let parts = layout.layers.iter().map(|&shape| {
            let (k_at, v_at) = (at, at + size.format.k_bytes(shape));
            at = v_at + size.format.v_bytes(shape);
            (k_at, v_at)
        });
        let parts = parts.collect();
        let n_bytes = size.stride.checked_mul(size.n_units)?;
        let range = PageRange::reserve(n_bytes)?;
        Some(Store { range, n_bytes, stride: size.stride, unit_bytes: layout.unit_bytes(size.format), parts })
    }

    pub(super) fn units(&self, layer: usize) -> KvUnits<'_> {
        let (k_at, v_at) = self.parts[layer];
        KvUnits { bytes: self.bytes(), stride: self.stride, k_at, v_at }
    }

    /// Returns the bytes of all units, as far as they are there.
    fn bytes(&self) -> &[u8] {
        &self.range[..self.n_bytes.min(self.range.len())]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let n_bytes = self.n_bytes.min(self.range.len());
        &mut self.range[..n_bytes]
    }

    /// Has the units up to this one be there; returns false if there is not so much memory.
    pub(super) fn grow_to(&mut self, unit: usize) -> bool {
        self.range.grow_to((unit + 1) * self.stride)
    }

    pub(super) fn unit(&self, unit: usize) -> &[u8] {
        &self.range[unit * self.stride..][..self.unit_bytes]
    }

    pub(super) fn unit_mut(&mut self, unit: usize) -> &mut [u8] {
        &mut self.range[unit * self.stride..][..self.unit_bytes]
    }
}
