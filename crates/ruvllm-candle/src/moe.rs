//! Mixture of experts: each expert sees the rows that chose it.

use candle_core::{Result, Tensor};
use ruvllm_backend::BackendError;
use ruvllm_model::{ExpertActivation, ExpertGroups, Gating, LinearSpec, MoeSpec};

use crate::ffn::{Mlp, activated};
use crate::weights::{Linear, Weights, softmax};

/// Sums of weights below it count as it (llama.cpp clamps at the smallest f16).
const SUM_MIN: f32 = 6.103_515_6e-5;

/// A mixture of experts.
pub(crate) struct Moe {
    router: Linear,
    /// `[n_experts]`
    choice_bias: Option<Vec<f32>>,
    experts: Vec<Expert>,
    shared: Option<(Mlp, Option<Linear>)>,
    spec: MoeSpec,
}

struct Expert {
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// The rows that chose an expert, and with which weight.
type Visits = (Vec<u32>, Vec<f32>);

impl Moe {
    pub(crate) fn make(spec: &MoeSpec, weights: &Weights<'_>) -> std::result::Result<Moe, BackendError> {
        let expert = |(gate, (up, down)): (&LinearSpec, (&LinearSpec, &LinearSpec))| {
            Ok(Expert { gate: weights.linear(gate)?, up: weights.linear(up)?, down: weights.linear(down)? })
        };
        let experts = spec.gate.iter().zip(spec.up.iter().zip(&spec.down)).map(expert);
        let shared = spec.shared.as_ref().map(|shared| {
            let gate = shared.gate.as_ref().map(|gate| weights.linear(gate)).transpose()?;
            Ok::<_, BackendError>((Mlp::make(&shared.mlp, weights)?, gate))
        });
        Ok(Moe {
            router: weights.linear(&spec.router)?,
            choice_bias: spec.choice_bias.as_ref().map(|bias| weights.values(bias)).transpose()?,
            experts: experts.collect::<std::result::Result<_, BackendError>>()?,
            shared: shared.transpose()?,
            spec: spec.clone(),
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut sum = x.zeros_like()?;
        for (expert, (rows, weights)) in self.experts.iter().zip(self.choose(x)?) {
            if rows.is_empty() {
                continue;
            }
            let n = rows.len();
            let rows = Tensor::from_vec(rows, n, x.device())?;
            let y = self.run(expert, &x.index_select(&rows, 0)?)?;
            let weights = Tensor::from_vec(weights, (n, 1), x.device())?;
            sum = sum.index_add(&rows, &y.broadcast_mul(&weights)?, 0)?;
        }
        match &self.shared {
            None => Ok(sum),
            Some((mlp, None)) => sum + mlp.forward(x)?,
            Some((mlp, Some(gate))) => sum + mlp.forward(x)?.broadcast_mul(&sigmoid(&gate.forward(x)?)?)?,
        }
    }

    fn run(&self, expert: &Expert, x: &Tensor) -> Result<Tensor> {
        let (gate, up) = (expert.gate.forward(x)?, expert.up.forward(x)?);
        let inner = match self.spec.activation {
            ExpertActivation::Gated(activation) => (activated(&gate, activation)? * up)?,
            ExpertActivation::ClampedSwiglu { alpha, limit } => {
                let gate = gate.minimum(limit)?;
                let opened = (&gate * sigmoid(&(&gate * f64::from(alpha))?)?)?;
                (opened * (up.clamp(-limit, limit)? + 1.0)?)?
            }
        };
        expert.down.forward(&inner)
    }

    /// Returns which rows visit each expert.
    fn choose(&self, x: &Tensor) -> Result<Vec<Visits>> {
        let logits = self.router.forward(x)?;
        let scores = match self.spec.gating {
            Gating::Softmax => softmax(&logits)?,
            Gating::Sigmoid => sigmoid(&logits)?,
            Gating::SoftmaxOfChosen => logits,
        };
        let mut visits: Vec<Visits> = vec![Visits::default(); self.experts.len()];
        for (row, scores) in scores.to_vec2::<f32>()?.into_iter().enumerate() {
            let rank = |expert: usize| scores[expert] + self.choice_bias.as_ref().map_or(0.0, |bias| bias[expert]);
            let mut order = self.open(scores.len(), rank);
            order.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)));
            order.truncate(self.spec.n_used);
            let weights = self.weights(order.iter().map(|&expert| scores[expert]).collect());
            for (expert, weight) in order.into_iter().zip(weights) {
                visits[expert].0.push(row as u32);
                visits[expert].1.push(weight);
            }
        }
        Ok(visits)
    }

    /// Returns the experts of the groups that a row chooses from.
    fn open(&self, n_experts: usize, rank: impl Fn(usize) -> f32) -> Vec<usize> {
        let Some(ExpertGroups { n_groups, n_used }) = self.spec.groups else { return (0..n_experts).collect() };
        let experts: Vec<usize> = (0..n_experts).collect();
        let mut groups: Vec<(f32, &[usize])> = experts
            .chunks(n_experts / n_groups)
            .map(|members| {
                let mut ranks: Vec<f32> = members.iter().map(|&expert| rank(expert)).collect();
                ranks.sort_by(|a, b| b.total_cmp(a));
                (ranks[0] + ranks[1], members)
            })
            .collect();
        groups.sort_by(|a, b| b.0.total_cmp(&a.0));
        groups[..n_used].iter().flat_map(|(_, members)| members.iter().copied()).collect()
    }

    /// Returns the weights of the chosen experts of a row.
    fn weights(&self, mut scores: Vec<f32>) -> Vec<f32> {
        if self.spec.gating == Gating::SoftmaxOfChosen {
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
            let sum: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score /= sum);
        }
        let sum = if self.spec.normalize { scores.iter().sum::<f32>().max(SUM_MIN) } else { 1.0 };
        scores.into_iter().map(|score| score / sum * self.spec.weight_scale).collect()
    }
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}
