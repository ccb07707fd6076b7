//! Dispatches of a pass, in order: each method adds one operation to a list, as one dispatch or one for each part of its weights.

mod buffers;
mod low_rank;
mod recurrent;

use ruvllm_gpu::{GpuBuffer, Step, WeightMatrix};
use ruvllm_kernels::activation::Activation;
use ruvllm_model::NormKind;
use ruvllm_shaders::{
    ActivateParams, AddParams, AttentionMergeParams, AttentionParams, CombineParams, ConvParams, CopyHeadsParams,
    EmbedParams, ExpertLinearParams, HeadTile, HeadWidth, Kernel, KvAppendParams, KvType, LinearParams, NormParams,
    Reduction, RopeParams, RouteParams, RowTile, ShaderActivation, TileType, TopKParams, TopKPartsParams, WeightFormat,
    flags,
};

pub(crate) use buffers::{AttentionBuffers, ConvBuffers, ExpertRows, Function, Gated, HeadPart, RotatedHeads};
pub(crate) use low_rank::AdapterSteps;
use low_rank::LowRankLayer;
pub(crate) use recurrent::{RecurrentConv, Scan};

use crate::scratch::LOGITS_OF_PART;
use crate::weights::{Experts, Linear, Norm};

/// Class of the number of rows of a pass: kernels of products are chosen by it when the model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowClass {
    /// One row: decoding of one sequence.
    One,
    /// Up to four.
    Few,
    /// Up to sixteen.
    Some,
    /// More: prompts.
    Many,
}

impl RowClass {
    pub(crate) const ALL: [RowClass; 4] = [RowClass::One, RowClass::Few, RowClass::Some, RowClass::Many];

    pub(crate) fn of(n_rows: usize) -> RowClass {
        match n_rows {
            0 | 1 => RowClass::One,
            2..=4 => RowClass::Few,
            5..=16 => RowClass::Some,
            _ => RowClass::Many,
        }
    }

    fn kernel(self, format: WeightFormat, reduction: Reduction) -> Kernel {
        let matvec = |rows| Kernel::MatVec { format, rows, reduction };
        match self {
            RowClass::One => matvec(RowTile::One),
            RowClass::Few => matvec(RowTile::Four),
            RowClass::Some => matvec(RowTile::Sixteen),
            RowClass::Many => Kernel::MatMul { format, tile: TileType::F32 },
        }
    }
}

/// Buffer that an operation writes to, or adds to.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub buffer: &'a GpuBuffer,
    pub adds: bool,
    /// Place of the results in wider rows, if they are not all of a row.
    part: Option<RowPart>,
}

/// A part of each row of a buffer.
#[derive(Clone, Copy)]
struct RowPart {
    offset: usize,
    /// Distance of the rows.
    stride: usize,
}

impl<'a> Target<'a> {
    pub(crate) fn write(buffer: &'a GpuBuffer) -> Target<'a> {
        Target { buffer, adds: false, part: None }
    }

    /// Returns the values from `offset` on of rows of `stride` values.
    pub(crate) fn part(buffer: &'a GpuBuffer, offset: usize, stride: usize) -> Target<'a> {
        Target { buffer, adds: false, part: Some(RowPart { offset, stride }) }
    }

    pub(crate) fn add(buffer: &'a GpuBuffer) -> Target<'a> {
        Target { buffer, adds: true, part: None }
    }

    /// Returns where rows of `n_out` values go.
    fn place(self, n_out: usize) -> RowPart {
        self.part.unwrap_or(RowPart { offset: 0, stride: n_out })
    }

    fn flags(self) -> u32 {
        if self.adds { flags::ACCUMULATE } else { 0 }
    }
}

/// A linear layer, or the table of tokens as one.
#[derive(Clone, Copy)]
pub(crate) struct LinearRef<'a> {
    /// Its number among the model's linear layers.
    pub id: usize,
    pub matrix: &'a WeightMatrix,
    pub bias: Option<&'a GpuBuffer>,
}

impl<'a> From<&'a Linear> for LinearRef<'a> {
    fn from(linear: &'a Linear) -> LinearRef<'a> {
        LinearRef { id: linear.id, matrix: &linear.matrix, bias: linear.bias.as_ref() }
    }
}

/// The dispatches so far.
pub(crate) struct StepList<'a> {
    pub class: RowClass,
    pub reduction: Reduction,
    /// Stands where a kernel has a buffer that it does not read.
    pub none: &'a GpuBuffer,
    /// Count of the pass that is the number of rows.
    pub count: usize,
    /// Adapters of the rows, if any may have some.
    pub adapters: Option<AdapterSteps<'a>>,
    pub steps: Vec<Step<'a>>,
}

impl<'a> StepList<'a> {
    fn push(&mut self, kernel: Kernel, params: [u32; 16], buffers: Vec<&'a GpuBuffer>, n: usize) {
        self.push_slots(kernel, params, buffers, n, 1);
    }

    fn push_slots(&mut self, kernel: Kernel, params: [u32; 16], buffers: Vec<&'a GpuBuffer>, n: usize, n_slots: usize) {
        self.steps.push(Step { kernel, params, buffers, n: n as u32, slots: n_slots as u32, count: self.count });
    }

    /// Adds a look-up of the rows' tokens.
    pub(crate) fn embed(&mut self, table: &'a WeightMatrix, scale: f32, y: &'a GpuBuffer) {
        let (format, k) = (table.format, table.k);
        for part in &table.parts {
            let params = EmbedParams {
                n_units: format.n_units(k) as u32,
                n_quads: k as u32 / 4,
                row_words: format.row_words(k) as u32,
                n_out: part.n_rows as u32,
                first_token: part.first_row as u32,
                y_stride: k as u32,
                scale,
                count: self.count as u32,
                ..EmbedParams::default()
            };
            self.push(Kernel::Embed { format }, params.words(), vec![&part.buffer, y], k);
        }
    }

    /// Adds a norm of rows of `row_len` values, each as one group or as several.
    pub(crate) fn norm(&mut self, norm: &'a Norm, x: &'a GpuBuffer, y: &'a GpuBuffer, row_len: usize) {
        self.norm_padded(norm, [x, y], row_len, row_len);
    }

    /// Adds a norm of rows of `row_len` values that lie `stride` values apart.
    pub(crate) fn norm_padded(&mut self, norm: &'a Norm, [x, y]: [&'a GpuBuffer; 2], row_len: usize, stride: usize) {
        let bias = norm.bias.as_ref();
        let params = NormParams {
            n: norm.width as u32,
            x_stride: stride as u32,
            y_stride: stride as u32,
            eps: norm.eps,
            count: self.count as u32,
            flags: flags::HAS_WEIGHT | if bias.is_some() { flags::HAS_BIAS } else { 0 },
            n_sets: norm.n_sets as u32,
            ..NormParams::default()
        };
        let kernel = Kernel::Norm { is_centred: norm.kind == NormKind::Layer, reduction: self.reduction };
        let buffers = vec![x, &norm.weight, bias.unwrap_or(self.none), y];
        self.push(kernel, params.words(), buffers, row_len / norm.width);
    }

    /// Adds a product, and what adapters add to it.
    pub(crate) fn linear(&mut self, linear: impl Into<LinearRef<'a>>, x: &'a GpuBuffer, y: Target<'a>) {
        let linear = linear.into();
        match self.adapters.filter(|adapters| adapters.touches(linear.id..linear.id + 1)) {
            None => self.product(linear, x, y),
            Some(adapters) => self.adapted_product(linear, x, y, adapters),
        }
    }

    /// Adds the product of the model's own weights. Rows of inputs are padded to a multiple of 4 values.
    fn product(&mut self, linear: LinearRef<'a>, x: &'a GpuBuffer, y: Target<'a>) {
        let LinearRef { matrix, bias, .. } = linear;
        let (format, k, place) = (matrix.format, matrix.k, y.place(matrix.n_rows));
        for part in &matrix.parts {
            let params = LinearParams {
                n_units: format.n_units(k) as u32,
                n_quads: k.div_ceil(4) as u32,
                row_words: format.row_words(k) as u32,
                n_out: part.n_rows as u32,
                bias_offset: part.first_row as u32,
                x_stride: k.next_multiple_of(4) as u32,
                y_offset: (place.offset + part.first_row) as u32,
                y_stride: place.stride as u32,
                count: self.count as u32,
                flags: y.flags() | if bias.is_some() { flags::HAS_BIAS } else { 0 },
                ..LinearParams::default()
            };
            let buffers = vec![&part.buffer, x, bias.unwrap_or(self.none), y.buffer];
            self.push(self.class.kernel(format, self.reduction), params.words(), buffers, part.n_rows);
        }
    }

    /// Adds a product with the experts of each row, and what adapters add to it.
    pub(crate) fn experts(&mut self, experts: &'a Experts, rows: ExpertRows<'a>) {
        let (first, bias) = (experts.linear.id, experts.linear.bias.as_ref());
        match self.adapters.filter(|adapters| adapters.touches(first..first + experts.n_experts)) {
            None => self.expert_product(experts, bias, rows),
            Some(adapters) => {
                self.expert_product(experts, None, rows);
                let matrix = &experts.linear.matrix;
                let n_out = matrix.n_rows / experts.n_experts;
                let y = Target::write(rows.y).place(rows.n_slots * n_out);
                self.low_rank(adapters, LowRankLayer { first, n_in: matrix.k, n_out, bias, rows }, y);
            }
        }
    }

    fn expert_product(&mut self, experts: &'a Experts, bias: Option<&'a GpuBuffer>, rows: ExpertRows<'a>) {
        let matrix = &experts.linear.matrix;
        let (format, k, n_slots) = (matrix.format, matrix.k, rows.n_slots);
        let n_out = matrix.n_rows / experts.n_experts;
        let by_slot = if rows.experts.is_none() { flags::SLOT_IS_EXPERT } else { 0 };
        for part in &matrix.parts {
            let params = ExpertLinearParams {
                n_units: format.n_units(k) as u32,
                n_quads: k as u32 / 4,
                row_words: format.row_words(k) as u32,
                n_out: n_out as u32,
                x_stride: rows.x_stride as u32,
                x_slot_stride: rows.x_slot_stride as u32,
                y_stride: (n_slots * n_out) as u32,
                n_slots: n_slots as u32,
                first_expert: (part.first_row / n_out) as u32,
                n_experts: (part.n_rows / n_out) as u32,
                count: self.count as u32,
                flags: by_slot | if bias.is_some() { flags::HAS_BIAS } else { 0 },
                ..ExpertLinearParams::default()
            };
            let kernel = Kernel::ExpertMatVec { format, reduction: self.reduction };
            let chosen = rows.experts.unwrap_or(self.none);
            let buffers = vec![&part.buffer, rows.x, bias.unwrap_or(self.none), chosen, rows.y];
            self.push_slots(kernel, params.words(), buffers, n_out, n_slots);
        }
    }

    /// Adds an activation of rows with `n_slots` runs of `n` values each.
    pub(crate) fn activate(&mut self, function: Function, x: Gated<'a>, y: &'a GpuBuffer, n: usize, n_slots: usize) {
        let (function, alpha, limit) = match function {
            Function::Plain(activation) => (shader_activation(activation), 0.0, 0.0),
            Function::Clamped { alpha, limit } => (ShaderActivation::ClampedSwiglu, alpha, limit),
        };
        let stride = (n * n_slots) as u32;
        let params = ActivateParams {
            n: n as u32,
            a_stride: stride,
            b_stride: stride,
            y_stride: stride,
            slot_stride: n as u32,
            alpha,
            limit,
            count: self.count as u32,
            ..ActivateParams::default()
        };
        let kernel = Kernel::Activate { function, is_gated: x.b.is_some() };
        self.push_slots(kernel, params.words(), vec![x.a, x.b.unwrap_or(self.none), y], n, n_slots);
    }

    /// Adds `scale·x` to `y`, in rows of `n` values; with a gate, times the sigmoid of its value of the row.
    pub(crate) fn add(
        &mut self,
        x: &'a GpuBuffer,
        gate: Option<&'a GpuBuffer>,
        y: &'a GpuBuffer,
        n: usize,
        scale: f32,
    ) {
        let params = AddParams {
            n: n as u32,
            x_stride: n as u32,
            y_stride: n as u32,
            scale,
            count: self.count as u32,
            flags: if gate.is_some() { flags::HAS_GATE } else { 0 },
            ..AddParams::default()
        };
        self.push(Kernel::Add, params.words(), vec![x, gate.unwrap_or(self.none), y], n);
    }

    /// Adds copies of the rows that the pass names, of `n` values each.
    pub(crate) fn gather(&mut self, x: &'a GpuBuffer, y: &'a GpuBuffer, n: usize) {
        let (n_values, count) = (n as u32, self.count as u32);
        let params = AddParams { n: n_values, x_stride: n_values, y_stride: n_values, count, ..AddParams::default() };
        self.push(Kernel::Gather, params.words(), vec![x, y], n);
    }

    /// Adds a rotation of heads in place.
    pub(crate) fn rope(&mut self, angles: &'a GpuBuffer, is_neox: bool, x: &'a GpuBuffer, heads: RotatedHeads) {
        let RotatedHeads { n_heads, head_dim, first, n_pairs } = heads;
        let params = RopeParams {
            n_heads: n_heads as u32,
            head_dim: head_dim as u32,
            n_pairs: n_pairs as u32,
            x_offset: first as u32,
            x_stride: (n_heads * head_dim) as u32,
            angle_stride: n_pairs as u32,
            count: self.count as u32,
        };
        self.push(Kernel::Rope { is_neox }, params.words(), vec![angles, x], n_heads * n_pairs);
    }

    /// Adds copies of `n` values of each of `n_heads` heads.
    pub(crate) fn copy_heads(&mut self, from: HeadPart<'a>, to: HeadPart<'a>, n: usize, n_heads: usize) {
        let params = CopyHeadsParams {
            n: n as u32,
            n_heads: n_heads as u32,
            x_offset: from.offset as u32,
            x_stride: from.stride as u32,
            x_head_stride: from.head_stride as u32,
            y_offset: to.offset as u32,
            y_stride: to.stride as u32,
            y_head_stride: to.head_stride as u32,
            count: self.count as u32,
        };
        self.push(Kernel::CopyHeads, params.words(), vec![from.rows, to.rows], n * n_heads);
    }

    /// Adds the writing of keys and values to the cache.
    pub(crate) fn append(
        &mut self,
        kv: KvType,
        params: KvAppendParams,
        [k, v]: [&'a GpuBuffer; 2],
        [keys, values]: [&'a GpuBuffer; 2],
    ) {
        let n = Kernel::kv_words(kv, &params) as usize;
        self.push(Kernel::KvAppend { kv }, params.words(), vec![k, v, keys, values], n);
    }

    /// Adds attention; where the keys of a row are split, with the putting together.
    pub(crate) fn attention(&mut self, kv: KvType, params: AttentionParams, buffers: AttentionBuffers<'a>) {
        let AttentionBuffers { q, keys, values, sinks, splits, y } = buffers;
        let (is_split, n_splits) = (params.n_splits > 1, params.n_splits);
        let width = HeadWidth::of(params.k_dim.max(params.v_dim) as usize).expect("heads were checked before");
        let is_shared = params.n_heads > params.n_kv_heads || width == HeadWidth::Wide;
        let heads = if is_shared { HeadTile::Four } else { HeadTile::One };
        let params = AttentionParams { flags: if sinks.is_some() { flags::HAS_SINKS } else { 0 }, ..params };
        let kernel = Kernel::Attention { kv, heads, is_split, width, reduction: self.reduction };
        let tiles = Kernel::attention_tiles(heads, &params) as usize;
        let read = vec![q, keys, values, sinks.unwrap_or(self.none), if is_split { splits } else { y }];
        self.push_slots(kernel, params.words(), read, tiles, n_splits as usize);
        if is_split {
            let AttentionParams { n_heads, v_dim, y_stride, count, .. } = params;
            let merge =
                AttentionMergeParams { n_heads, v_dim, n_splits, y_stride, count, ..AttentionMergeParams::default() };
            self.push(Kernel::AttentionMerge, merge.words(), vec![splits, y], n_heads as usize);
        }
    }

    /// Adds a short convolution of `n` channels.
    pub(crate) fn short_conv(&mut self, buffers: ConvBuffers<'a>, n: usize, n_taps: usize) {
        let ConvBuffers { x, inputs, taps, y } = buffers;
        let params = ConvParams {
            n: n as u32,
            n_taps: n_taps as u32,
            x_stride: 3 * n as u32,
            y_stride: n as u32,
            count: self.count as u32,
            ..ConvParams::default()
        };
        self.push(Kernel::ConvAppend, params.words(), vec![x, inputs], n);
        self.push(Kernel::ShortConv, params.words(), vec![x, inputs, taps, y], n);
    }

    /// Adds the choice of experts.
    pub(crate) fn route(
        &mut self,
        params: RouteParams,
        choice_bias: Option<&'a GpuBuffer>,
        logits: &'a GpuBuffer,
        [experts, weights]: [&'a GpuBuffer; 2],
    ) {
        let bias = if choice_bias.is_some() { flags::HAS_BIAS } else { 0 };
        let params = RouteParams { x_stride: params.n, flags: params.flags | bias, count: self.count as u32, ..params };
        let kernel = Kernel::RouteExperts { reduction: self.reduction };
        self.push(kernel, params.words(), vec![logits, choice_bias.unwrap_or(self.none), experts, weights], 1);
    }

    /// Adds the weighted sum of what the experts of each row gave, `n` values each.
    pub(crate) fn combine(
        &mut self,
        x: &'a GpuBuffer,
        weights: &'a GpuBuffer,
        y: Target<'a>,
        n: usize,
        n_slots: usize,
    ) {
        let params = CombineParams {
            n: n as u32,
            n_slots: n_slots as u32,
            x_stride: (n * n_slots) as u32,
            y_stride: n as u32,
            count: self.count as u32,
            flags: y.flags(),
            ..CombineParams::default()
        };
        self.push(Kernel::CombineExperts, params.words(), vec![x, weights, y.buffer], n);
    }

    /// Adds the search for the largest of `n` values of each row.
    pub(crate) fn most_likely(&mut self, x: &'a GpuBuffer, [ids, values]: [&'a GpuBuffer; 2], n: usize) {
        let params =
            TopKParams { n: n as u32, k: 1, x_stride: n as u32, count: self.count as u32, ..Default::default() };
        let kernel = Kernel::TopK { reduction: self.reduction };
        self.push(kernel, params.words(), vec![x, ids, values], 1);
    }

    /// Adds the search for the largest of `n` values of each row, as many as the pass's count `k_count` says.
    pub(crate) fn largest(
        &mut self,
        x: &'a GpuBuffer,
        [part_ids, pairs]: [&'a GpuBuffer; 2],
        n: usize,
        k_count: usize,
    ) {
        let n_parts = n.div_ceil(LOGITS_OF_PART);
        let params = TopKPartsParams {
            n: n as u32,
            part_len: LOGITS_OF_PART as u32,
            n_parts: n_parts as u32,
            x_stride: n as u32,
            count: self.count as u32,
            k_count: k_count as u32,
            ..TopKPartsParams::default()
        };
        self.push(Kernel::TopKParts, params.words(), vec![x, part_ids], n_parts);
        self.push(Kernel::TopKMerge, params.words(), vec![x, part_ids, pairs], 1);
    }
}

fn shader_activation(activation: Activation) -> ShaderActivation {
    match activation {
        Activation::Silu => ShaderActivation::Silu,
        Activation::GeluTanh => ShaderActivation::GeluTanh,
        Activation::GeluErf => ShaderActivation::GeluErf,
        Activation::Relu => ShaderActivation::Relu,
        Activation::ReluSqr => ShaderActivation::ReluSqr,
    }
}
