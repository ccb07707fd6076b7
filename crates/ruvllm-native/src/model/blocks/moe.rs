//! Mixture of experts: a router, experts that see only their rows, and an optional shared expert.

use std::ops::Range;

use ruvllm_kernels::matmul::{Chunking, MAX_GROUPED, MadeRows};
use ruvllm_model::{ExpertActivation, ExpertGroups, Gating, MoeSpec};

use super::buffers::{GROUP_ROWS, MlpBuffers, MoeBuffers};
use super::linear::{ExpertRun, ExpertStack};
use super::{Linear, Mlp, Operand};
use crate::kernels::Compute;

/// An expert every row visits, with an optional sigmoid gate (qwen2moe).
pub(crate) struct SharedExpert {
    pub mlp: Mlp,
    pub gate: Option<Linear>,
}

/// A mixture-of-experts block.
pub(crate) struct Moe {
    pub router: Linear,
    /// Added to the scores for choosing only (DeepSeek-V3).
    pub choice_bias: Option<Vec<f32>>,
    pub gate: Vec<Linear>,
    pub up: Vec<Linear>,
    pub down: Vec<Linear>,
    pub spec: MoeSpec,
    pub shared: Option<SharedExpert>,
}

impl Moe {
    pub(crate) fn n_ff(&self) -> usize {
        self.up[0].n_out()
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        let shared = self.shared.iter().flat_map(|shared| shared.mlp.linears().chain(&shared.gate));
        [&self.router].into_iter().chain(&self.gate).chain(&self.up).chain(&self.down).chain(shared)
    }

    pub(crate) fn experts(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain(&self.up).chain(&self.down)
    }

    /// Returns the share of the experts' weights that one token reads.
    pub(crate) fn read_share(&self) -> f64 {
        self.spec.n_used as f64 / self.up.len() as f64
    }

    /// Writes the block's output for the operand's rows to `out`: `[n, n_embd]`. The shared expert uses `mlp`.
    pub(crate) fn forward(
        &self,
        compute: &Compute,
        mut operand: Operand<'_>,
        buffers: &mut MoeBuffers,
        mlp: &mut MlpBuffers,
        out: &mut [f32],
    ) {
        let (n, n_experts) = (operand.n_rows(), self.up.len());
        let n_embd = out.len() / n;
        operand.apply(compute, &self.router, &mut buffers.scores[..n * n_experts]);
        for row in 0..n {
            let scores = &mut buffers.scores[row * n_experts..(row + 1) * n_experts];
            let slots = row * self.spec.n_used..(row + 1) * self.spec.n_used;
            self.route(compute, scores, &mut buffers.chosen[slots.clone()], &mut buffers.weights[slots]);
        }
        let n_slots = n * self.spec.n_used;
        buffers.sort_slots(n_slots, self.spec.n_used);
        let mut start = 0;
        while start < n_slots {
            let end = buffers.group_end(start, n_slots);
            self.run_group(compute, start..end, &mut operand, buffers);
            start = end;
        }
        // Combined in the order of the router's choice, so that a row's result does not depend on its batch.
        out.fill(0.0);
        for (slot, &weight) in buffers.weights[..n_slots].iter().enumerate() {
            let row = slot / self.spec.n_used;
            let result = &buffers.outputs[slot * n_embd..(slot + 1) * n_embd];
            out[row * n_embd..(row + 1) * n_embd].iter_mut().zip(result).for_each(|(y, r)| *y += weight * r);
        }
        if let Some(shared) = &self.shared {
            shared.add(compute, operand, buffers, mlp, out);
        }
    }

    /// Chooses experts for one row; `scores`: `[n_experts]` router logits, overwritten.
    fn route(&self, compute: &Compute, scores: &mut [f32], chosen: &mut [u32], weights: &mut [f32]) {
        match self.spec.gating {
            Gating::Softmax => compute.kernels.softmax.softmax(scores),
            Gating::Sigmoid => scores.iter_mut().for_each(|s| *s = 1.0 / (1.0 + (-*s).exp())),
            Gating::SoftmaxOfChosen => {}
        }
        let rank = |e: usize| scores[e] + self.choice_bias.as_ref().map_or(0.0, |bias| bias[e]);
        let (open, n_members) = self.open_groups(scores.len(), rank);
        for slot in 0..chosen.len() {
            let taken = &chosen[..slot];
            let free = (0..scores.len()).filter(|&e| open >> (e / n_members) & 1 == 1 && !taken.contains(&(e as u32)));
            chosen[slot] = best(free, rank).expect("groups that are open have n_used experts") as u32;
            weights[slot] = scores[chosen[slot] as usize];
        }
        if self.spec.gating == Gating::SoftmaxOfChosen {
            compute.kernels.softmax.softmax(weights);
        }
        if self.spec.normalize {
            // The bound keeps a row of underflowed scores finite (llama.cpp clamps at the smallest f16).
            let sum = weights.iter().sum::<f32>().max(6.103_515_6e-5);
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        weights.iter_mut().for_each(|w| *w *= self.spec.weight_scale);
    }

    /// Returns the groups that a row chooses experts from, as bits, and the experts of each.
    fn open_groups(&self, n_experts: usize, rank: impl Fn(usize) -> f32 + Copy) -> (u64, usize) {
        let Some(ExpertGroups { n_groups, n_used }) = self.spec.groups else { return (1, n_experts) };
        let n_members = n_experts / n_groups;
        let of_two_best = |group: usize| {
            let members = group * n_members..(group + 1) * n_members;
            let first = best(members.clone(), rank).expect("groups have members");
            let second = best(members.filter(|&e| e != first), rank).expect("groups have two members");
            rank(first) + rank(second)
        };
        let mut open = 0;
        for _ in 0..n_used {
            let free = (0..n_groups).filter(|group| open >> group & 1 == 0);
            open |= 1 << best(free, of_two_best).expect("n_used is at most n_groups");
        }
        (open, n_members)
    }

    /// Runs some experts on the rows that chose them, `group` of the slots, and leaves the results in their slots.
    fn run_group(&self, compute: &Compute, group: Range<usize>, operand: &mut Operand<'_>, buffers: &mut MoeBuffers) {
        let (n, n_ff, n_embd) = (group.len(), self.n_ff(), self.down[0].n_out());
        let (slots, rows, chosen) = (&buffers.slots[group.clone()], &buffers.rows[group], &buffers.chosen);
        let runs = expert_runs(slots, chosen);
        let (gate, up) = (&mut buffers.gate[..n * n_ff], &mut buffers.up[..n * n_ff]);
        let gates = ExpertStack { linears: &self.gate, out: gate };
        operand.apply_experts(compute, runs.clone(), rows, [gates, ExpertStack { linears: &self.up, out: up }]);
        let (table, activation) = (compute.kernels.activation, self.spec.activation);
        let format = self.down[chosen[slots[0] as usize] as usize].format();
        let made = MadeRows { rows: gate, n, format, chunking: Chunking::Anywhere };
        let adapted = operand.adapted().of_rows(rows);
        let mut hidden = Operand::made(compute, &mut buffers.acts, adapted, made, [], &|range, gate, []| {
            let up = &up[range];
            match activation {
                ExpertActivation::Gated(activation) => table.gated(activation, gate, up),
                ExpertActivation::ClampedSwiglu { alpha, limit } => {
                    for (g, &u) in gate.iter_mut().zip(up) {
                        let clamped = g.min(limit);
                        *g = clamped / (1.0 + (-alpha * clamped).exp()) * (u.clamp(-limit, limit) + 1.0);
                    }
                }
            }
        });
        let results = &mut buffers.expert[..n * n_embd];
        let downs = ExpertStack { linears: &self.down, out: results };
        hidden.apply_experts(compute, runs, &buffers.order[..n], [downs]);
        for (result, &slot) in results.chunks_exact(n_embd).zip(slots) {
            buffers.outputs[slot as usize * n_embd..(slot as usize + 1) * n_embd].copy_from_slice(result);
        }
    }
}

impl MoeBuffers {
    /// Orders the slots by the expert that they chose, and within an expert by row.
    fn sort_slots(&mut self, n_slots: usize, n_used: usize) {
        let (slots, chosen) = (&mut self.slots[..n_slots], &self.chosen);
        slots.iter_mut().zip(0..).for_each(|(slot, i)| *slot = i);
        slots.sort_unstable_by_key(|&slot| (chosen[slot as usize], slot));
        self.rows.iter_mut().zip(slots).for_each(|(row, slot)| *row = *slot / n_used as u32);
    }

    /// Returns the end of the group that begins at slot `start`: whole experts, as many as have [`GROUP_ROWS`] rows together, and
    /// one at least.
    fn group_end(&self, start: usize, n_slots: usize) -> usize {
        let mut runs = expert_runs(&self.slots[start..n_slots], &self.chosen).map(|run| start + run.rows.end);
        let first = runs.next().unwrap_or(n_slots);
        runs.take(GROUP_EXPERTS - 1).take_while(|end| end - start <= GROUP_ROWS).last().unwrap_or(first)
    }
}

/// Most experts of a group: two products of each are one call.
const GROUP_EXPERTS: usize = MAX_GROUPED / 2;

/// Iterates over the experts of slots that are ordered by expert.
fn expert_runs<'a>(slots: &'a [u32], chosen: &'a [u32]) -> impl Iterator<Item = ExpertRun> + Clone + 'a {
    let expert = |slot: &u32| chosen[*slot as usize] as usize;
    slots.chunk_by(move |a, b| expert(a) == expert(b)).scan(0, move |end, run| {
        let start = std::mem::replace(end, *end + run.len());
        Some(ExpertRun { expert: expert(&run[0]), rows: start..*end })
    })
}

/// Returns the one with the largest rank. Ties go to the lower number, as a stable sort would have it; NaN never wins against a number.
fn best(all: impl Iterator<Item = usize>, rank: impl Fn(usize) -> f32) -> Option<usize> {
    all.reduce(|a, b| if rank(b) > rank(a) || rank(a).is_nan() { b } else { a })
}

impl SharedExpert {
    /// Adds the shared expert's output for the operand's rows to `out`.
    fn add(
        &self,
        compute: &Compute,
        mut operand: Operand<'_>,
        buffers: &mut MoeBuffers,
        mlp: &mut MlpBuffers,
        out: &mut [f32],
    ) {
        let n = operand.n_rows();
        let (result, scores) = (&mut buffers.expert[..out.len()], &mut buffers.scores[..n]);
        if let Some(gate) = &self.gate {
            operand.apply(compute, gate, scores);
        }
        self.mlp.forward(compute, operand, mlp, result);
        if self.gate.is_some() {
            for (row, score) in result.chunks_exact_mut(out.len() / n).zip(scores) {
                let weight = 1.0 / (1.0 + (-*score).exp());
                row.iter_mut().for_each(|y| *y *= weight);
            }
        }
        out.iter_mut().zip(result).for_each(|(y, r)| *y += *r);
    }
}
