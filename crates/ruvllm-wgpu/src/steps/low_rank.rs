//! Low-rank products of adapters: two behind the product of the model's own weights, for all rows of a pass at once.

use std::ops::Range;

use ruvllm_gpu::GpuBuffer;
use ruvllm_shaders::{Kernel, LowRankParams, flags};

use super::{ExpertRows, LinearRef, RowPart, StepList, Target};

/// Buffers of adapters that a list of dispatches names.
#[derive(Clone, Copy)]
pub(crate) struct AdapterSteps<'a> {
    /// Places and factors of all adapters on the device.
    pub bank: &'a GpuBuffer,
    /// Adapters of each row, with their strengths.
    pub members: &'a GpuBuffer,
    /// Results of the first products.
    pub t: &'a GpuBuffer,
    /// A product before it is added to the stream.
    pub added: &'a GpuBuffer,
    /// By the number of a linear layer, whether an adapter changes it.
    pub touched: &'a [bool],
    /// Room for the ranks of a row's adapters.
    pub t_len: usize,
}

/// A layer, or experts, that adapters change.
pub(crate) struct LowRankLayer<'a> {
    /// Number of the layer, or of the first expert.
    pub first: usize,
    pub n_in: usize,
    pub n_out: usize,
    pub bias: Option<&'a GpuBuffer>,
    /// Inputs and outputs; one slot if they are no experts.
    pub rows: ExpertRows<'a>,
}

impl AdapterSteps<'_> {
    /// Returns whether an adapter changes one of these layers.
    pub(crate) fn touches(&self, mut layers: Range<usize>) -> bool {
        layers.any(|layer| self.touched.get(layer) == Some(&true))
    }
}

impl<'a> StepList<'a> {
    /// Adds a product that adapters change. It gets to a buffer of its own before it is added to others, and its bias last.
    pub(super) fn adapted_product(
        &mut self,
        linear: LinearRef<'a>,
        x: &'a GpuBuffer,
        y: Target<'a>,
        adapters: AdapterSteps<'a>,
    ) {
        let (n_in, n_out, first, bias) = (linear.matrix.k, linear.matrix.n_rows, linear.id, linear.bias);
        let to = if y.adds { Target::write(adapters.added) } else { y };
        self.product(LinearRef { bias: None, ..linear }, x, to);
        let x_stride = n_in.next_multiple_of(4);
        let rows = ExpertRows { x, x_stride, x_slot_stride: 0, experts: None, y: to.buffer, n_slots: 1 };
        self.low_rank(adapters, LowRankLayer { first, n_in, n_out, bias, rows }, to.place(n_out));
        if y.adds {
            self.add(adapters.added, None, y.buffer, n_out, 1.0);
        }
    }

    /// Adds both low-rank products of a layer, whose results are at `y`.
    pub(super) fn low_rank(&mut self, adapters: AdapterSteps<'a>, layer: LowRankLayer<'a>, y: RowPart) {
        let LowRankLayer { first, n_in, n_out, bias, rows } = layer;
        let ExpertRows { n_slots, .. } = rows;
        let of_slots = match rows.experts {
            Some(_) => flags::HAS_EXPERTS,
            None if n_slots > 1 => flags::SLOT_IS_EXPERT,
            None => 0,
        };
        let params = LowRankParams {
            n_in: n_in as u32,
            n_out: n_out as u32,
            n_layers: adapters.touched.len() as u32,
            layer: first as u32,
            n_slots: n_slots as u32,
            t_len: adapters.t_len as u32,
            x_offset: 0,
            x_stride: rows.x_stride as u32,
            x_slot_stride: rows.x_slot_stride as u32,
            y_offset: y.offset as u32,
            y_stride: y.stride as u32,
            count: self.count as u32,
            flags: of_slots | if bias.is_some() { flags::HAS_BIAS } else { 0 },
        };
        let (AdapterSteps { bank, members, t, t_len, .. }, words) = (adapters, params.words());
        let experts = rows.experts.unwrap_or(self.none);
        let shrink = Kernel::LowRankShrink { reduction: self.reduction };
        self.push_slots(shrink, words, vec![rows.x, bank, members, experts, t], t_len, n_slots);
        let expand = vec![t, bank, members, experts, bias.unwrap_or(self.none), rows.y];
        self.push_slots(Kernel::LowRankExpand, words, expand, n_out, n_slots);
    }
}
