//! A model on the device: weights, cache, buffers, and every dispatch of its passes, made once.

mod plans;

use ruvllm_backend::{BackendError, ModelSpec};
use ruvllm_gpu::{Gpu, GpuBuffer, PassBuffers, PassInput, PassPlan, ReadBack, StepTime, WeightMatrix, WordCopy};
use ruvllm_kernels::attention::BLOCK_TOKENS;
use ruvllm_kernels::rope::Rope;
use ruvllm_kvcache::KvFormat;
use ruvllm_model::{FfnSpec, LayerSpec, MixerSpec};
use ruvllm_shaders::RowRecord;

use crate::adapters::{AdapterBank, BankLimits, WantedAdapters};
use crate::cache_shape::{CacheShape, cache_shapes};
use crate::error::failed;
use crate::layers::{Layer, LayerCache, split_words};
use crate::scratch::{RowLimits, Scratch, pairs_max};
use crate::steps::{LinearRef, RowClass};
use crate::weights::{Linear, Norm, Weights};
use plans::{AdaptedPlans, Plans};

/// Sizes of the cache and of passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSizes {
    pub n_ctx: usize,
    pub n_seq_max: usize,
    pub n_blocks: usize,
    pub format: KvFormat,
    pub rows: RowLimits,
    /// Another backend computes the layers before those of the device.
    pub has_first: bool,
}

/// A model on the device.
pub(crate) struct DeviceModel {
    pub gpu: Gpu,
    pub rows: RowLimits,
    sizes: DeviceSizes,
    limits: BankLimits,
    n_vocab: usize,
    n_embd: usize,
    /// The table of tokens; none if nothing on the device reads it.
    tokens: Option<WeightMatrix>,
    input_norm: Option<Norm>,
    layers: Vec<Layer>,
    output_norm: Option<Norm>,
    head: Option<Head>,
    caches: Vec<LayerCache>,
    /// A block, or a sequence's state, passes through it when it is copied.
    copied: GpuBuffer,
    scratch: Scratch,
    plans: Plans,
    /// Adapters on the device, and the plans with them.
    adapted: Option<AdaptedPlans>,
    pass: PassBuffers,
    read: Reads,
}

enum Head {
    /// The table of tokens, as a linear layer of a number with a bias.
    Tied(usize, Option<GpuBuffer>),
    Own(Linear),
}

struct Reads {
    logits: ReadBack,
    ids: ReadBack,
    values: ReadBack,
    pairs: ReadBack,
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
    /// Adapters of the rows with their strengths; empty if no row has any.
    pub members: Vec<u32>,
}

/// Result that is read back of the wanted rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readout {
    /// Logits of all tokens, then final hidden states.
    Logits,
    /// The most likely tokens, then their logits.
    Best,
    /// This many tokens of each row with their logits in pairs, the largest logits first, as many as
    /// [`DeviceModel::pairs_max`] says at most.
    Largest(usize),
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
        let caches = make_caches(&gpu, spec, sizes)?;
        let most_words = |cache: &LayerCache| {
            let [keys, values] = cache.block_words(sizes.format);
            keys.max(values).max(cache.shape.n_state)
        };
        let n_copied = caches.iter().map(most_words).max().unwrap_or(0);
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
            pairs: read(&scratch.pairs)?,
            hidden: read(&scratch.hidden)?,
        };
        let DeviceWeights { tokens, input_norm, layers, output_norm, head } = upload(&gpu)?;
        let mut model = DeviceModel {
            gpu,
            rows: sizes.rows,
            sizes,
            limits: bank_limits(spec, sizes),
            n_vocab: spec.n_vocab,
            n_embd: spec.n_embd,
            tokens,
            input_norm,
            layers,
            output_norm,
            head,
            caches,
            copied,
            scratch,
            plans: Plans::default(),
            adapted: None,
            pass,
            read,
        };
        model.plans = model.make_plans(spec)?;
        model.gpu.wait().map_err(failed)?;
        Ok(model)
    }

    fn head(&self) -> Option<LinearRef<'_>> {
        Some(match self.head.as_ref()? {
            Head::Tied(id, bias) => LinearRef { id: *id, matrix: self.tokens.as_ref()?, bias: bias.as_ref() },
            Head::Own(linear) => linear.into(),
        })
    }

    /// Returns the number of its layers.
    pub(crate) fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Returns whether it gives logits.
    pub(crate) fn has_head(&self) -> bool {
        self.head.is_some()
    }

    /// Brings adapters to the device that are not there, for the passes that follow.
    ///
    /// # Errors
    /// They are too many for a binding or the memory, or the device is lost.
    pub(crate) fn ready_adapters(&mut self, spec: &ModelSpec, wanted: &WantedAdapters) -> Result<(), BackendError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let kept = self.adapted.take().filter(|adapted| adapted.bank.has_room(wanted));
        let (mut bank, plans) = match kept {
            Some(AdaptedPlans { bank, body, head }) => (bank, Some((body, head))),
            None => {
                wanted.check(&self.gpu, self.limits)?;
                (AdapterBank::new(&self.gpu, self.limits, wanted)?, None)
            }
        };
        let changes_more = bank.upload(&self.gpu, wanted)?;
        let (body, head) = match plans.filter(|_| !changes_more) {
            Some(plans) => plans,
            None => {
                let (body, _) = self.body_plans(spec, Some(bank.steps(false)))?;
                (body, self.head_plans(Some(bank.steps(true)))?)
            }
        };
        self.adapted = Some(AdaptedPlans { bank, body, head });
        Ok(())
    }

    /// Checks that adapters can be brought to the device.
    ///
    /// # Errors
    /// One line: they are larger than a binding.
    pub(crate) fn check_adapters(&self, wanted: &WantedAdapters) -> Result<(), BackendError> {
        wanted.check(&self.gpu, self.limits)
    }

    /// Returns the adapters on the device, if there are any.
    pub(crate) fn adapters(&self) -> Option<&AdapterBank> {
        self.adapted.as_ref().map(|adapted| &adapted.bank)
    }

    /// Returns how many of the largest logits of a row are read back by themselves at most.
    pub(crate) fn pairs_max(&self) -> usize {
        pairs_max(self.n_vocab)
    }

    /// Returns whether sequences have a recurrent state.
    pub(crate) fn has_state(&self) -> bool {
        self.caches.iter().any(|cache| cache.shape.n_state > 0)
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
        let adapted = self.adapted.as_ref().filter(|_| !pass.members.is_empty());
        let bodies = adapted.map_or(&self.plans.body, |adapted| &adapted.body);
        let body = &bodies[RowClass::of(n_rows) as usize];
        let PassRows { rows, tables, wanted, members, .. } = pass;
        if let Some(adapted) = adapted {
            adapted.bank.write_rows(&self.gpu, members)?;
        }
        if wanted.is_empty() {
            let input = PassInput { counts: [n_rows as u32, 0, 0, 0], rows, tables };
            return self.gpu.run_all(&[body], &self.pass, input, &[]).map(drop).map_err(failed);
        }
        for (i, part) in wanted.chunks(n_outputs).enumerate() {
            rows.iter_mut().zip(part).for_each(|(row, source)| row.source = *source);
            if let Some(adapted) = adapted.filter(|_| readout != Readout::States) {
                adapted.bank.write_outputs(&self.gpu, members, part)?;
            }
            let n_pairs = if let Readout::Largest(n_pairs) = readout { n_pairs } else { 0 };
            let input = PassInput { counts: [n_rows as u32, part.len() as u32, n_pairs as u32, 0], rows, tables };
            let mut plans: Vec<&PassPlan> = Vec::with_capacity(4);
            plans.extend((i == 0).then_some(body));
            plans.extend(&self.plans.states);
            if readout != Readout::States {
                let heads = adapted.map_or(&self.plans.head, |adapted| &adapted.head);
                plans.extend(heads.get(RowClass::of(part.len()) as usize));
            }
            plans.extend(self.plans.best.iter().filter(|_| readout == Readout::Best));
            plans.extend(self.plans.largest.iter().filter(|_| n_pairs > 0));
            let states = self.read.hidden.first(part.len() * self.n_embd);
            let read = match readout {
                Readout::Logits => vec![self.read.logits.first(part.len() * self.n_vocab), states],
                Readout::Best => vec![self.read.ids.first(part.len()), self.read.values.first(part.len())],
                Readout::Largest(_) => vec![self.read.pairs.first(2 * n_pairs * part.len())],
                Readout::States => vec![states],
            };
            take(self.gpu.run_all(&plans, &self.pass, input, &read).map_err(failed)?);
        }
        Ok(())
    }

    /// Reads back the logits of the first `n` of the rows that the last pass gave some of.
    pub(crate) fn logits_again(&self, n: usize) -> Result<Vec<u32>, BackendError> {
        let input = PassInput { counts: [0; 4], rows: &[], tables: &[] };
        let read = [self.read.logits.first(n * self.n_vocab)];
        Ok(self.gpu.run_all(&[], &self.pass, input, &read).map_err(failed)?.remove(0))
    }

    /// Multiplies final hidden states with the head, and hands the logits to `take`, in order. With a pass and the rows of it that
    /// the states are of, by the adapters of those rows.
    pub(crate) fn head_of(
        &self,
        hidden: &[f32],
        of: Option<(&PassRows, &[u32])>,
        take: &mut dyn FnMut(Vec<Vec<u32>>),
    ) -> Result<(), BackendError> {
        let of = of.filter(|(pass, _)| !pass.members.is_empty());
        let adapted = self.adapted.as_ref().zip(of);
        let heads = adapted.map_or(&self.plans.head, |(adapted, _)| &adapted.head);
        for (i, part) in hidden.chunks(self.rows.n_outputs * self.n_embd).enumerate() {
            let n = part.len() / self.n_embd;
            self.gpu.write(&self.scratch.hidden, 0, bytemuck::cast_slice(part)).map_err(failed)?;
            if let Some((adapted, (pass, rows))) = adapted {
                let rows = &rows[i * self.rows.n_outputs..][..n];
                adapted.bank.write_outputs(&self.gpu, &pass.members, rows)?;
            }
            let input = PassInput { counts: [0, n as u32, 0, 0], rows: &[], tables: &[] };
            let plans: Vec<&PassPlan> = heads.get(RowClass::of(n) as usize).into_iter().collect();
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

    /// Writes the residual stream behind the first layers, which another backend computed, of the rows of a pass.
    pub(crate) fn write_stream(&self, rows: &[f32]) -> Result<(), BackendError> {
        self.gpu.write(&self.scratch.stream[0], 0, bytemuck::cast_slice(rows)).map_err(failed)
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
            for cache in &self.caches {
                let words = cache.block_words(self.sizes.format);
                let buffers = [&cache.keys, &cache.values].into_iter().zip(words);
                for (buffer, n_words) in buffers.filter(|(_, n_words)| *n_words > 0) {
                    all.push(WordCopy { buffer, from: from * n_words, to: to * n_words, n_words });
                }
            }
        }
        self.gpu.copy(&all, &self.copied).map_err(failed)
    }

    /// Copies the recurrent state of a sequence to the place of another.
    pub(crate) fn copy_state(&self, from: usize, to: usize) -> Result<(), BackendError> {
        let with_state = self.caches.iter().filter(|cache| cache.shape.n_state > 0);
        let all: Vec<WordCopy<'_>> = with_state
            .map(|cache| {
                let n_words = cache.shape.n_state;
                WordCopy { buffer: &cache.state, from: n_words * from, to: n_words * to, n_words }
            })
            .collect();
        if all.is_empty() { Ok(()) } else { self.gpu.copy(&all, &self.copied).map_err(failed) }
    }
}

/// Weights on the device.
pub(crate) struct DeviceWeights {
    tokens: Option<WeightMatrix>,
    input_norm: Option<Norm>,
    layers: Vec<Layer>,
    output_norm: Option<Norm>,
    head: Option<Head>,
}

impl DeviceWeights {
    /// Uploads all weights of a model; where it `has_first` layers elsewhere, not what these begin with.
    pub(crate) fn upload(
        spec: &ModelSpec,
        weights: &Weights<'_>,
        has_first: bool,
    ) -> Result<DeviceWeights, BackendError> {
        let head = spec.output.head.as_ref().map(|head| match head.weight == spec.input.tokens {
            true => {
                let bias = head.bias.as_ref().map(|bias| weights.vector(bias)).transpose()?;
                Ok::<_, BackendError>(Head::Tied(head.id, bias))
            }
            false => Ok(Head::Own(weights.linear(head)?)),
        });
        let head = head.transpose()?;
        let needs_tokens = !has_first || matches!(head, Some(Head::Tied(..)));
        Ok(DeviceWeights {
            head,
            tokens: needs_tokens.then(|| weights.matrix(&spec.input.tokens)).transpose()?,
            input_norm: weights.norm_if_any(spec.input.norm.as_ref().filter(|_| !has_first))?,
            layers: spec.layers.iter().map(|layer| Layer::upload(layer, weights)).collect::<Result<_, _>>()?,
            output_norm: weights.norm_if_any(spec.output.norm.as_ref())?,
        })
    }
}

impl LayerCache {
    /// Words of a block's keys and values.
    fn block_words(&self, format: KvFormat) -> [usize; 2] {
        self.shape.block_bytes(format).map(|bytes| bytes / 4)
    }
}

fn make_caches(gpu: &Gpu, spec: &ModelSpec, sizes: DeviceSizes) -> Result<Vec<LayerCache>, BackendError> {
    let buffer = |name: &str, n_words: usize| gpu.buffer(name, n_words).map_err(failed);
    let cache = |shape: CacheShape| {
        let [keys, values] = shape.block_bytes(sizes.format).map(|bytes| sizes.n_blocks * bytes / 4);
        Ok(LayerCache {
            keys: buffer("KV cache (keys)", keys)?,
            values: buffer("KV cache (values)", values)?,
            state: buffer("recurrent states", sizes.n_seq_max * shape.n_state)?,
            shape,
        })
    };
    cache_shapes(spec).into_iter().map(cache).collect()
}

/// Returns what a bank of adapters is sized by.
fn bank_limits(spec: &ModelSpec, sizes: DeviceSizes) -> BankLimits {
    let slots = |layer: &LayerSpec| {
        let of_mixer = match &layer.mixer {
            MixerSpec::LatentAttention(own) => own.n_heads,
            _ => 1,
        };
        let of_ffn = match &layer.ffn {
            Some(FfnSpec::Moe(moe)) => moe.n_used,
            _ => 1,
        };
        of_mixer.max(of_ffn)
    };
    BankLimits {
        n_layers: spec.linears().len(),
        n_rows: sizes.rows.n_rows,
        n_outputs: sizes.rows.n_outputs,
        n_slots: spec.layers.iter().map(slots).max().unwrap_or(1),
        n_added: spec.n_embd,
    }
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
