//! A model on the device: weights, cache, buffers, and every dispatch of its passes, made once.

use ruvllm_backend::{BackendError, ModelSpec};
use ruvllm_gpu::{Gpu, GpuBuffer, PassBuffers, PassInput, PassPlan, ReadBack, StepTime, WeightMatrix, WordCopy};
use ruvllm_kernels::attention::BLOCK_TOKENS;
use ruvllm_kernels::rope::{Rope, RopeStyle};
use ruvllm_kvcache::KvFormat;
use ruvllm_model::{AttentionSpec, MixerSpec};
use ruvllm_shaders::{KvType, RowRecord};

use crate::error::failed;
use crate::layers::{Layer, LayerCache, LayerSteps, RopeShape, split_words};
use crate::scratch::{RowLimits, Scratch};
use crate::steps::{LinearRef, RowClass, StepList, Target};
use crate::weights::{Linear, Norm, Weights};

/// Count of the pass that is all its rows, and the one that is the rows whose logits or states are wanted.
const ROWS: usize = 0;
const OUTPUTS: usize = 1;

/// Sizes of the cache and of passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSizes {
    pub n_ctx: usize,
    pub n_seq_max: usize,
    pub n_blocks: usize,
    pub format: KvFormat,
    pub rows: RowLimits,
}

/// A model on the device.
pub(crate) struct DeviceModel {
    pub gpu: Gpu,
    pub rows: RowLimits,
    n_vocab: usize,
    n_embd: usize,
    tokens: WeightMatrix,
    input_norm: Option<Norm>,
    layers: Vec<Layer>,
    output_norm: Option<Norm>,
    head: Option<Head>,
    caches: Vec<LayerCache>,
    /// Words of a block's keys and values, by layer.
    block_words: Vec<[usize; 2]>,
    /// A block passes through it when it is copied.
    copied: GpuBuffer,
    scratch: Scratch,
    plans: Plans,
    pass: PassBuffers,
    read: Reads,
}

enum Head {
    /// The table of tokens.
    Tied(Option<GpuBuffer>),
    Own(Linear),
}

/// The dispatches.
#[derive(Default)]
struct Plans {
    /// From tokens through all layers, by class of the number of rows.
    body: Vec<PassPlan>,
    /// From the stream to final hidden states of the wanted rows.
    states: Option<PassPlan>,
    /// From those to logits, by class of their number; none of an encoder.
    head: Vec<PassPlan>,
    /// The most likely token of each.
    best: Option<PassPlan>,
}

struct Reads {
    logits: ReadBack,
    ids: ReadBack,
    values: ReadBack,
    hidden: ReadBack,
}

/// Rows of a pass, and what the host computes of them.
#[derive(Default)]
pub(crate) struct PassRows {
    pub rows: Vec<RowRecord>,
    pub tables: Vec<u32>,
    /// Cosine and sine of each pair of each row, by rope.
    pub angles: Vec<Vec<f32>>,
    /// Learned positions of the rows, if the model has such.
    pub positions: Vec<f32>,
    /// Rows that are wanted.
    pub wanted: Vec<u32>,
}

/// Result that is read back of the wanted rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readout {
    /// Logits of all tokens, then final hidden states.
    Logits,
    /// The most likely tokens, then their logits.
    Best,
    /// Final hidden states.
    States,
}

impl DeviceModel {
    /// Uploads a model and makes its passes.
    ///
    /// # Errors
    /// The device's memory is used up or its bindings are too small, it is lost, or a tensor has no kernel.
    pub(crate) fn make(
        gpu: Gpu,
        spec: &ModelSpec,
        sizes: DeviceSizes,
        upload: &mut dyn FnMut(&Gpu) -> Result<DeviceWeights, BackendError>,
    ) -> Result<DeviceModel, BackendError> {
        // The cache first: it is what the sizes were chosen for, and it costs nothing if it does not fit.
        let (caches, block_words) = make_caches(&gpu, spec, sizes)?;
        let n_copied = block_words.iter().flatten().copied().max().unwrap_or(0);
        let buffer = |name: &str, n: usize| gpu.buffer(name, n).map_err(failed);
        let copied = buffer("copies of blocks", n_copied)?;
        let scratch = Scratch::new(&gpu, spec, sizes.rows, split_words(&spec.layers, sizes.n_ctx))?;
        let n_table_words = sizes.n_seq_max * sizes.n_ctx.div_ceil(BLOCK_TOKENS);
        let pass = gpu.pass_buffers(sizes.rows.n_rows, n_table_words).map_err(failed)?;
        let read = |of: &GpuBuffer| gpu.read_back(of).map_err(failed);
        let read = Reads {
            logits: read(&scratch.logits)?,
            ids: read(&scratch.ids)?,
            values: read(&scratch.values)?,
            hidden: read(&scratch.hidden)?,
        };
        let DeviceWeights { tokens, input_norm, layers, output_norm, head } = upload(&gpu)?;
        let mut model = DeviceModel {
            gpu,
            rows: sizes.rows,
            n_vocab: spec.n_vocab,
            n_embd: spec.n_embd,
            tokens,
            input_norm,
            layers,
            output_norm,
            head,
            caches,
            block_words,
            copied,
            scratch,
            plans: Plans::default(),
            pass,
            read,
        };
        model.plans = model.make_plans(spec, sizes)?;
        model.gpu.wait().map_err(failed)?;
        Ok(model)
    }

    fn make_plans(&self, spec: &ModelSpec, sizes: DeviceSizes) -> Result<Plans, BackendError> {
        let (on, gpu) = (&self.scratch, &self.gpu);
        let shape = |rope: &ruvllm_model::RopeSpec| RopeShape {
            is_neox: rope.style == RopeStyle::Neox,
            n_pairs: rope.n_rot / 2,
        };
        let ropes: Vec<RopeShape> = spec.ropes.iter().map(shape).collect();
        let list =
            |class, count| StepList { class, reduction: gpu.reduction(), none: &on.none, count, steps: Vec::new() };
        let mut plans = Plans::default();
        let mut place = 0;
        for class in RowClass::ALL {
            let mut steps = LayerSteps {
                list: list(class, ROWS),
                on,
                ropes: &ropes,
                n_embd: self.n_embd,
                n_ctx: sizes.n_ctx,
                kv: kv_type(sizes.format),
                residual_scale: spec.residual_scale,
                place: 0,
            };
            steps.list.embed(&self.tokens, spec.input.scale, &on.stream[0]);
            if spec.input.positions.is_some() || spec.input.types.is_some() {
                steps.list.add(&on.positions, None, &on.stream[0], self.n_embd, 1.0);
            }
            steps.norm_stream(self.input_norm.as_ref());
            for (layer, cache) in self.layers.iter().zip(&self.caches) {
                steps.layer(layer, cache);
            }
            place = steps.place;
            plans.body.push(gpu.plan(&steps.list.steps).map_err(failed)?);
        }
        let mut states = list(RowClass::One, OUTPUTS);
        match &self.output_norm {
            None => states.gather(&on.stream[place], &on.hidden, self.n_embd),
            Some(norm) => {
                states.gather(&on.stream[place], &on.outputs, self.n_embd);
                states.norm(norm, &on.outputs, &on.hidden, self.n_embd);
            }
        }
        plans.states = Some(gpu.plan(&states.steps).map_err(failed)?);
        let Some(head) = self.head() else { return Ok(plans) };
        for class in RowClass::ALL {
            let mut steps = list(class, OUTPUTS);
            steps.linear(head, &on.hidden, Target::write(&on.logits));
            plans.head.push(gpu.plan(&steps.steps).map_err(failed)?);
        }
        let mut best = list(RowClass::One, OUTPUTS);
        best.most_likely(&on.logits, [&on.ids, &on.values], self.n_vocab);
        plans.best = Some(gpu.plan(&best.steps).map_err(failed)?);
        Ok(plans)
    }

    fn head(&self) -> Option<LinearRef<'_>> {
        Some(match self.head.as_ref()? {
            Head::Tied(bias) => LinearRef { matrix: &self.tokens, bias: bias.as_ref() },
            Head::Own(linear) => linear.into(),
        })
    }

    /// Returns whether it gives logits.
    pub(crate) fn has_head(&self) -> bool {
        self.head.is_some()
    }

    /// Computes the rows of a pass, and hands what is read of the wanted ones to `take`, in order. All of it is one command
    /// buffer, unless more rows give logits than the device has a buffer for.
    pub(crate) fn run(
        &self,
        pass: &mut PassRows,
        readout: Readout,
        take: &mut dyn FnMut(Vec<Vec<u32>>),
    ) -> Result<(), BackendError> {
        self.write_inputs(pass)?;
        let n_rows = pass.rows.len();
        let n_outputs = if readout == Readout::States { self.rows.n_rows } else { self.rows.n_outputs };
        let body = &self.plans.body[RowClass::of(n_rows) as usize];
        let PassRows { rows, tables, wanted, .. } = pass;
        if wanted.is_empty() {
            let input = PassInput { counts: [n_rows as u32, 0, 0, 0], rows, tables };
            return self.gpu.run_all(&[body], &self.pass, input, &[]).map(drop).map_err(failed);
        }
        for (i, part) in wanted.chunks(n_outputs).enumerate() {
            rows.iter_mut().zip(part).for_each(|(row, source)| row.source = *source);
            let input = PassInput { counts: [n_rows as u32, part.len() as u32, 0, 0], rows, tables };
            let mut plans: Vec<&PassPlan> = Vec::with_capacity(4);
            plans.extend((i == 0).then_some(body));
            plans.extend(&self.plans.states);
            if readout != Readout::States {
                plans.extend(self.plans.head.get(RowClass::of(part.len()) as usize));
            }
            plans.extend(self.plans.best.iter().filter(|_| readout == Readout::Best));
            let states = self.read.hidden.first(part.len() * self.n_embd);
            let read = match readout {
                Readout::Logits => vec![self.read.logits.first(part.len() * self.n_vocab), states],
                Readout::Best => vec![self.read.ids.first(part.len()), self.read.values.first(part.len())],
                Readout::States => vec![states],
            };
            take(self.gpu.run_all(&plans, &self.pass, input, &read).map_err(failed)?);
        }
        Ok(())
    }

    /// Multiplies final hidden states with the head, and hands the logits to `take`, in order.
    pub(crate) fn head_of(&self, hidden: &[f32], take: &mut dyn FnMut(Vec<Vec<u32>>)) -> Result<(), BackendError> {
        for part in hidden.chunks(self.rows.n_outputs * self.n_embd) {
            let n = part.len() / self.n_embd;
            self.gpu.write(&self.scratch.hidden, 0, bytemuck::cast_slice(part)).map_err(failed)?;
            let input = PassInput { counts: [0, n as u32, 0, 0], rows: &[], tables: &[] };
            let plan = self.plans.head.get(RowClass::of(n) as usize);
            let plans: Vec<&PassPlan> = plan.into_iter().collect();
            let read = [self.read.logits.first(n * self.n_vocab)];
            take(self.gpu.run_all(&plans, &self.pass, input, &read).map_err(failed)?);
        }
        Ok(())
    }

    /// Times each dispatch of a pass whose last row chooses a token.
    pub(crate) fn time(&self, pass: &mut PassRows) -> Result<Vec<StepTime>, BackendError> {
        self.write_inputs(pass)?;
        let PassRows { rows, tables, wanted, .. } = pass;
        rows.iter_mut().zip(&*wanted).for_each(|(row, source)| row.source = *source);
        let input = PassInput { counts: [rows.len() as u32, wanted.len() as u32, 0, 0], rows, tables };
        let body = &self.plans.body[RowClass::of(rows.len()) as usize];
        let head = self.plans.head.get(RowClass::of(wanted.len()) as usize);
        let plans = std::iter::once(body).chain(&self.plans.states).chain(head).chain(&self.plans.best);
        let mut times = Vec::new();
        for plan in plans {
            times.extend(self.gpu.time(plan, &self.pass, input).map_err(failed)?);
        }
        Ok(times)
    }

    fn write_inputs(&self, pass: &PassRows) -> Result<(), BackendError> {
        for (angles, buffer) in pass.angles.iter().zip(&self.scratch.angles) {
            self.gpu.write(buffer, 0, bytemuck::cast_slice(angles)).map_err(failed)?;
        }
        self.gpu.write(&self.scratch.positions, 0, bytemuck::cast_slice(&pass.positions)).map_err(failed)
    }

    /// Copies blocks of the cache, each from a number to another.
    pub(crate) fn copy_blocks(&self, copies: &[[usize; 2]]) -> Result<(), BackendError> {
        if copies.is_empty() {
            return Ok(());
        }
        let mut all = Vec::with_capacity(2 * copies.len() * self.caches.len());
        for [from, to] in copies {
            for (cache, words) in self.caches.iter().zip(&self.block_words) {
                let buffers = [&cache.keys, &cache.values].into_iter().zip(*words);
                for (buffer, n_words) in buffers.filter(|(_, n_words)| *n_words > 0) {
                    all.push(WordCopy { buffer, from: from * n_words, to: to * n_words, n_words });
                }
            }
        }
        self.gpu.copy(&all, &self.copied).map_err(failed)
    }
}

/// Weights on the device.
pub(crate) struct DeviceWeights {
    tokens: WeightMatrix,
    input_norm: Option<Norm>,
    layers: Vec<Layer>,
    output_norm: Option<Norm>,
    head: Option<Head>,
}

impl DeviceWeights {
    /// Uploads all weights of a model.
    pub(crate) fn upload(spec: &ModelSpec, weights: &Weights<'_>) -> Result<DeviceWeights, BackendError> {
        let head = spec.output.head.as_ref().map(|head| match head.weight == spec.input.tokens {
            true => Ok::<_, BackendError>(Head::Tied(head.bias.as_ref().map(|bias| weights.vector(bias)).transpose()?)),
            false => Ok(Head::Own(weights.linear(head)?)),
        });
        Ok(DeviceWeights {
            head: head.transpose()?,
            tokens: weights.matrix(&spec.input.tokens)?,
            input_norm: weights.norm_if_any(spec.input.norm.as_ref())?,
            layers: spec.layers.iter().map(|layer| Layer::upload(layer, weights)).collect::<Result<_, _>>()?,
            output_norm: weights.norm_if_any(spec.output.norm.as_ref())?,
        })
    }
}

/// Bytes that each layer has in a block: keys and values, or inputs of a convolution and nothing.
pub(crate) fn block_bytes(spec: &ModelSpec, format: KvFormat) -> impl Iterator<Item = [usize; 2]> {
    let (bytes, n_embd) = (if format == KvFormat::F32 { 4 } else { 2 }, spec.n_embd);
    let of_mixer = move |mixer: &MixerSpec| match mixer.attention() {
        Some(AttentionSpec { n_kv_heads, k_dim, v_dim, .. }) => {
            [k_dim, v_dim].map(|dim| n_kv_heads * dim * BLOCK_TOKENS * bytes)
        }
        None => [n_embd * BLOCK_TOKENS * 4, 0],
    };
    spec.layers.iter().map(move |layer| of_mixer(&layer.mixer))
}

fn make_caches(
    gpu: &Gpu,
    spec: &ModelSpec,
    sizes: DeviceSizes,
) -> Result<(Vec<LayerCache>, Vec<[usize; 2]>), BackendError> {
    let words: Vec<[usize; 2]> = block_bytes(spec, sizes.format).map(|bytes| bytes.map(|n| n / 4)).collect();
    let cache = |[keys, values]: &[usize; 2]| {
        let buffer = |name: &str, n: usize| gpu.buffer(name, sizes.n_blocks * n).map_err(failed);
        Ok(LayerCache { keys: buffer("KV cache (keys)", *keys)?, values: buffer("KV cache (values)", *values)? })
    };
    let caches = words.iter().map(cache).collect::<Result<_, BackendError>>()?;
    Ok((caches, words))
}

fn kv_type(format: KvFormat) -> KvType {
    if format == KvFormat::F32 { KvType::F32 } else { KvType::F16 }
}

/// Adds the angles of a position to those of a pass.
pub(crate) fn push_angles(rope: &Rope, position: usize, scratch: &mut [Vec<f32>; 2], angles: &mut Vec<f32>) {
    let [cos, sin] = scratch;
    let n_pairs = rope.n_rot() / 2;
    cos.resize(n_pairs, 0.0);
    sin.resize(n_pairs, 0.0);
    rope.angles(u32::try_from(position).unwrap_or(u32::MAX), cos, sin);
    angles.extend(cos.iter().zip(sin.iter()).flat_map(|(cos, sin)| [*cos, *sin]));
}
