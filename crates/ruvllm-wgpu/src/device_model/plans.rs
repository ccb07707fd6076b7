//! The dispatches of passes, by class of the number of rows: without adapters at load, with them when the first ones come.

use ruvllm_backend::{BackendError, ModelSpec};
use ruvllm_gpu::PassPlan;
use ruvllm_kernels::rope::RopeStyle;
use ruvllm_kvcache::KvFormat;
use ruvllm_model::RopeSpec;
use ruvllm_shaders::KvType;

use super::DeviceModel;
use crate::adapters::AdapterBank;
use crate::error::failed;
use crate::layers::{LayerSteps, RopeShape};
use crate::steps::{AdapterSteps, RowClass, StepList, Target};

/// Count of the pass that is all its rows, the one that is the rows whose logits or states are wanted, and the one that is how
/// many of the largest logits of each are.
const ROWS: usize = 0;
const OUTPUTS: usize = 1;
const LARGEST: usize = 2;

/// The dispatches.
#[derive(Default)]
pub(super) struct Plans {
    /// From tokens through all layers, by class of the number of rows.
    pub body: Vec<PassPlan>,
    /// From the stream to final hidden states of the wanted rows.
    pub states: Option<PassPlan>,
    /// From those to logits, by class of their number; none of an encoder.
    pub head: Vec<PassPlan>,
    /// The most likely token of each.
    pub best: Option<PassPlan>,
    /// The largest logits of each.
    pub largest: Option<PassPlan>,
}

/// Adapters on the device, and the dispatches that apply them.
pub(super) struct AdaptedPlans {
    pub bank: AdapterBank,
    pub body: Vec<PassPlan>,
    pub head: Vec<PassPlan>,
}

impl DeviceModel {
    pub(super) fn make_plans(&self, spec: &ModelSpec) -> Result<Plans, BackendError> {
        let (on, gpu) = (&self.scratch, &self.gpu);
        let (body, place) = self.body_plans(spec, None)?;
        let mut states = self.list(RowClass::One, OUTPUTS, None);
        match &self.output_norm {
            None => states.gather(&on.stream[place], &on.hidden, self.n_embd),
            Some(norm) => {
                states.gather(&on.stream[place], &on.outputs, self.n_embd);
                states.norm(norm, &on.outputs, &on.hidden, self.n_embd);
            }
        }
        let states = Some(gpu.plan(&states.steps).map_err(failed)?);
        let head = self.head_plans(None)?;
        let mut best = self.list(RowClass::One, OUTPUTS, None);
        best.most_likely(&on.logits, [&on.ids, &on.values], self.n_vocab);
        let best = self.has_head().then(|| gpu.plan(&best.steps).map_err(failed)).transpose()?;
        let mut largest = self.list(RowClass::One, OUTPUTS, None);
        largest.largest(&on.logits, [&on.part_ids, &on.pairs], self.n_vocab, LARGEST);
        let largest = self.has_head().then(|| gpu.plan(&largest.steps).map_err(failed)).transpose()?;
        Ok(Plans { body, states, head, best, largest })
    }

    fn list<'a>(&'a self, class: RowClass, count: usize, adapters: Option<AdapterSteps<'a>>) -> StepList<'a> {
        let (reduction, none) = (self.gpu.reduction(), &self.scratch.none);
        StepList { class, reduction, none, count, adapters, steps: Vec::new() }
    }

    /// Makes the plans from tokens through all layers. Returns the place of the residual stream after them as well.
    pub(super) fn body_plans(
        &self,
        spec: &ModelSpec,
        adapters: Option<AdapterSteps<'_>>,
    ) -> Result<(Vec<PassPlan>, usize), BackendError> {
        let on = &self.scratch;
        let shape = |rope: &RopeSpec| RopeShape { is_neox: rope.style == RopeStyle::Neox, n_pairs: rope.n_rot / 2 };
        let ropes: Vec<RopeShape> = spec.ropes.iter().map(shape).collect();
        let (mut plans, mut place) = (Vec::new(), 0);
        for class in RowClass::ALL {
            let mut steps = LayerSteps {
                list: self.list(class, ROWS, adapters),
                on,
                ropes: &ropes,
                n_embd: self.n_embd,
                n_ctx: self.sizes.n_ctx,
                kv: if self.sizes.format == KvFormat::F32 { KvType::F32 } else { KvType::F16 },
                residual_scale: spec.residual_scale,
                place: 0,
            };
            if let Some(tokens) = self.tokens.as_ref().filter(|_| !self.sizes.has_first) {
                steps.list.embed(tokens, spec.input.scale, &on.stream[0]);
                if spec.input.positions.is_some() || spec.input.types.is_some() {
                    steps.list.add(&on.positions, None, &on.stream[0], self.n_embd, 1.0);
                }
                steps.norm_stream(self.input_norm.as_ref());
            }
            for (layer, cache) in self.layers.iter().zip(&self.caches) {
                steps.layer(layer, cache);
            }
            place = steps.place;
            plans.push(self.gpu.plan(&steps.list.steps).map_err(failed)?);
        }
        Ok((plans, place))
    }

    /// Makes the plans from final hidden states to logits; none of an encoder.
    pub(super) fn head_plans(&self, adapters: Option<AdapterSteps<'_>>) -> Result<Vec<PassPlan>, BackendError> {
        let Some(head) = self.head() else { return Ok(Vec::new()) };
        let plan = |class: RowClass| {
            let mut steps = self.list(class, OUTPUTS, adapters);
            steps.linear(head, &self.scratch.hidden, Target::write(&self.scratch.logits));
            self.gpu.plan(&steps.steps).map_err(failed)
        };
        RowClass::ALL.into_iter().map(plan).collect()
    }
}
