//! Learning from outcomes: Adam, early stopping, iterative hard thresholding.

use std::ops::{ControlFlow, Range};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::network::{Network, Pass, TEMPERATURE_MAX, context_bucket};
use crate::error::{RouterError, data, shape, stopped, value};
use crate::math::{dot, unit};

/// Outcome of one answered query.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The query as a vector: its features, then its embedding.
    pub query: Vec<f32>,
    /// Group (a subject, a session): groups are never divided between learning and calibrating.
    pub group: u64,
    /// Quality of each model's answer, 0 to 1; `None` where it did not answer.
    pub qualities: Vec<Option<f32>>,
    /// With what settings the best answer was given, if that is known.
    pub settings: Option<Settings>,
}

/// The settings that an answer was given with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Tokens of prompt and answer together.
    pub n_context_tokens: u32,
    /// 0 to [`TEMPERATURE_MAX`](super::TEMPERATURE_MAX).
    pub temperature: f32,
    /// 0 to 1.
    pub top_p: f32,
    /// Quality of the answer, 0 to 1: how much these settings are worth imitating.
    pub quality: f32,
}

/// Options of training a selector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainOptions {
    /// Values of the recurrent state.
    pub n_hidden: usize,
    /// Rank of the recurrent matrices.
    pub rank: usize,
    /// The share of the recurrent matrices' values that is not zero in the end, 0 to 1.
    pub keep: f32,
    /// Members of the committee, at least 2; each leaves out its part of the groups.
    pub n_members: usize,
    /// Trees of each member's forest; none if 0.
    pub n_trees: usize,
    /// The most passes over the outcomes.
    pub n_epochs: usize,
    /// Outcomes a step.
    pub batch: usize,
    /// The learning rate at the start; it falls to 0 along a cosine.
    pub rate: f32,
    /// The weight of half the sum of squares of the heads' weights on the query.
    pub l2: f32,
    /// L2 penalty of all other weights.
    pub l2_recurrent: f32,
    /// Everything random comes from it.
    pub seed: u64,
}

impl Default for TrainOptions {
    /// What did best in the measurements of docs/lab/routing.md.
    fn default() -> TrainOptions {
        TrainOptions {
            n_hidden: 16,
            rank: 8,
            keep: 0.5,
            n_members: 4,
            n_trees: 64,
            n_epochs: 24,
            batch: 32,
            rate: 2e-3,
            l2: 0.3,
            l2_recurrent: 0.003,
            seed: 1,
        }
    }
}

/// Progress of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The member that learns, from 0.
    pub member: usize,
    /// Number of members.
    pub n_members: usize,
    /// Passes over the outcomes that are done.
    pub epoch: usize,
    /// The most there will be.
    pub n_epochs: usize,
    /// Mean loss of the qualities on the outcomes that this member leaves out.
    pub loss_left_out: f32,
}

/// What [`fit`] learns from.
pub(super) struct Fold<'a> {
    pub queries: &'a crate::Rows,
    pub outcomes: &'a [Outcome],
    /// Indices to learn from.
    pub learned: Vec<usize>,
    /// Indices that are left out.
    pub left_out: Vec<usize>,
}

/// Checks outcomes against the number of models, and each other.
pub(super) fn check(outcomes: &[Outcome], n_models: usize, options: &TrainOptions) -> Result<(), RouterError> {
    const N_MIN: usize = 16;
    if outcomes.len() < N_MIN {
        return Err(data(format!("{} outcomes; at least {N_MIN} are needed to learn from", outcomes.len())));
    }
    let sizes = [options.n_hidden, options.rank, options.batch, options.n_epochs, options.n_members.saturating_sub(1)];
    let weights = [options.rate, options.l2, options.l2_recurrent];
    let sound = sizes.iter().all(|&size| size > 0) && weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0);
    if !(sound && options.keep > 0.0 && options.keep <= 1.0) {
        return Err(value(format!(
            "no training with {options:?}: sizes are 1 or more, members 2 or more, shares 0 to 1"
        )));
    }
    let unit = |x: f32| (0.0..=1.0).contains(&x);
    for (i, outcome) in outcomes.iter().enumerate() {
        if outcome.qualities.len() != n_models {
            let n = outcome.qualities.len();
            return Err(shape(format!("outcome {i} knows {n} models; there are {n_models}")));
        }
        let settings = outcome.settings.is_none_or(|settings| {
            let temperature = (0.0..=TEMPERATURE_MAX).contains(&settings.temperature);
            unit(settings.quality) && unit(settings.top_p) && temperature
        });
        if !settings || !outcome.qualities.iter().flatten().all(|&quality| unit(quality)) {
            return Err(value(format!(
                "outcome {i} has a quality, top-p (0 to 1) or temperature (0 to 2) out of range"
            )));
        }
    }
    Ok(())
}

/// The first weights: small random ones for the recurrence and its head, none for the query's.
pub(super) fn first_parameters(network: &Network, random: &mut ChaCha8Rng) -> Vec<f32> {
    let mut parameters = vec![0.0; network.n_parameters()];
    let (at, cell) = (network.cell.blocks(), &network.cell);
    let [on_state, ..] = network.heads();
    let fans = [(at.w1, cell.n_in), (at.w2, cell.rank_w), (at.u1, cell.n_hidden), (at.u2, cell.rank_u)];
    for (block, fan_in) in fans.into_iter().chain([(on_state, 16 * cell.n_hidden)]) {
        let width = (3.0 / fan_in as f32).sqrt();
        parameters[block].iter_mut().for_each(|x| *x = width * (2.0 * unit(random) - 1.0));
    }
    // As in the authors' code: ζ at 1, ν at -4 before their sigmoid; gates open at 1.
    parameters[at.scalars.start] = 1.0;
    parameters[at.scalars.start + 1] = -4.0;
    parameters[at.b_z].fill(1.0);
    parameters
}

/// Starts the heads' biases at what is right on average: small sets of outcomes have too few steps to get there.
fn start_biases(network: &Network, parameters: &mut [f32], outcomes: &[&Outcome]) {
    let (mut sums, mut counts) = (vec![0.0f32; network.n_out()], vec![0.0f32; network.n_out()]);
    let mut add = |at: usize, value: f32, weight: f32| {
        sums[at] += weight * value;
        counts[at] += weight;
    };
    for outcome in outcomes {
        for (model, quality) in outcome.qualities.iter().enumerate() {
            quality.iter().for_each(|&quality| add(model, quality, 1.0));
        }
        if let Some(settings) = &outcome.settings {
            let own = network.n_models + context_bucket(settings.n_context_tokens);
            network.buckets().for_each(|bucket| add(bucket, f32::from(bucket == own), settings.quality));
            add(network.buckets().end, settings.temperature / TEMPERATURE_MAX, settings.quality);
            add(network.buckets().end + 1, settings.top_p, settings.quality);
        }
    }
    let [.., biases] = network.heads();
    for (at, bias) in parameters[biases].iter_mut().enumerate() {
        // As if half a right and half a wrong case had been seen before: finite, whatever was seen.
        let mean = (sums[at] + 0.5) / (counts[at] + 1.0);
        *bias = match network.buckets().contains(&at) {
            true => mean.ln(),
            false => (mean / (1.0 - mean)).ln(),
        };
    }
}

/// Returns the logit of the mean of values from 0 to 1, as if half a 1 and half a 0 had been seen before.
pub(super) fn logit_of_mean(values: impl Iterator<Item = f32>) -> f32 {
    let (sum, n) = values.fold((0.5f64, 1.0f64), |(sum, n), x| (sum + f64::from(x), n + 1.0));
    (sum / (n - sum)).ln() as f32
}

/// Puts values in random order (Fisher and Yates).
pub(crate) fn shuffle<T>(values: &mut [T], random: &mut ChaCha8Rng) {
    for i in (1..values.len()).rev() {
        values.swap(i, (random.next_u64() % (i as u64 + 1)) as usize);
    }
}

/// Trains one member and returns its parameters at the least loss on what it leaves out.
pub(super) fn fit(
    network: &Network,
    fold: &Fold,
    options: &TrainOptions,
    member: usize,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Vec<f32>, RouterError> {
    let mut random = ChaCha8Rng::seed_from_u64(options.seed.wrapping_add(member as u64));
    let mut parameters = first_parameters(network, &mut random);
    let learned: Vec<&Outcome> = fold.learned.iter().map(|&i| &fold.outcomes[i]).collect();
    start_biases(network, &mut parameters, &learned);
    let mut adam = Adam::new(network, options);
    let mut sparsity = Sparsity::new(network, options);
    let mut order = fold.learned.clone();
    let n_steps = (order.len().div_ceil(options.batch) * options.n_epochs) as f32;
    let (mut best, mut least, mut n_worse, mut step) = (parameters.clone(), f32::INFINITY, 0, 0.0);
    for epoch in 1..=options.n_epochs {
        shuffle(&mut order, &mut random);
        for batch in order.chunks(options.batch) {
            let gradient = gradient(network, &parameters, fold, batch);
            let rate = options.rate * 0.5 * (1.0 + (std::f32::consts::PI * step / n_steps).cos());
            adam.step(&mut parameters, gradient, rate);
            sparsity.hold(&mut parameters);
            step += 1.0;
        }
        sparsity.end_epoch(&mut parameters, epoch, options.n_epochs);
        let loss = mean_loss(network, &parameters, fold);
        let told =
            Progress { member, n_members: options.n_members, epoch, n_epochs: options.n_epochs, loss_left_out: loss };
        if progress(&told).is_break() {
            return Err(stopped());
        }
        if !sparsity.settled() {
            continue;
        }
        if loss < least {
            (best, least, n_worse) = (parameters.clone(), loss, 0);
        } else {
            n_worse += 1;
            if n_worse >= PATIENCE {
                break;
            }
        }
    }
    Ok(best)
}

/// Epochs without a lesser loss after which training ends.
const PATIENCE: usize = 5;

/// Returns the gradient of the mean loss of a batch.
pub(super) fn gradient(network: &Network, parameters: &[f32], fold: &Fold, batch: &[usize]) -> Vec<f32> {
    let mut gradient = vec![0.0; parameters.len()];
    let (mut pass, mut d_logits) = (Pass::default(), Vec::new());
    for &i in batch {
        let x = fold.queries.row(i);
        network.forward(parameters, x, &mut pass);
        network.loss(&pass.logits, &fold.outcomes[i], &mut d_logits);
        d_logits.iter_mut().for_each(|d| *d /= batch.len() as f32);
        network.backward(parameters, x, &pass, &d_logits, &mut gradient);
    }
    gradient
}

/// The mean loss of the qualities on what is left out.
fn mean_loss(network: &Network, parameters: &[f32], fold: &Fold) -> f32 {
    let mut pass = Pass::default();
    let (mut sum, mut n) = (0.0f64, 0);
    for &i in &fold.left_out {
        network.forward(parameters, fold.queries.row(i), &mut pass);
        for (&logit, quality) in pass.logits.iter().zip(&fold.outcomes[i].qualities) {
            if let Some(quality) = quality {
                sum += f64::from(crate::math::cross_entropy(logit, *quality));
                n += 1;
            }
        }
    }
    (sum / f64::from(n.max(1))) as f32
}

/// Adam (Kingma & Ba 2015, arXiv:1412.6980) with L2 penalties in the gradient, which is shortened to length 1.
struct Adam {
    first: Vec<f32>,
    second: Vec<f32>,
    n_steps: i32,
    /// The penalty on the heads' weights on the query, and where these are.
    on_query: (f32, Range<usize>),
    /// The penalty on other weights, up to where biases begin.
    other: (f32, [Range<usize>; 2]),
}

impl Adam {
    fn new(network: &Network, options: &TrainOptions) -> Adam {
        let n = network.n_parameters();
        let [on_state, on_query, _] = network.heads();
        let other = (options.l2_recurrent, [0..network.cell.blocks().b_z.start, on_state]);
        Adam { first: vec![0.0; n], second: vec![0.0; n], n_steps: 0, on_query: (options.l2, on_query), other }
    }

    fn step(&mut self, parameters: &mut [f32], mut gradient: Vec<f32>, rate: f32) {
        const BETA_1: f32 = 0.9;
        const BETA_2: f32 = 0.999;
        const EPSILON: f32 = 1e-8;
        let length = dot(&gradient, &gradient).sqrt();
        if length > 1.0 {
            gradient.iter_mut().for_each(|d| *d /= length);
        }
        let penalties =
            [(self.on_query.0, &self.on_query.1), (self.other.0, &self.other.1[0]), (self.other.0, &self.other.1[1])];
        for (l2, range) in penalties {
            crate::math::add_scaled(&mut gradient[range.clone()], l2, &parameters[range.clone()]);
        }
        self.n_steps += 1;
        let (bias_1, bias_2) = (1.0 - BETA_1.powi(self.n_steps), 1.0 - BETA_2.powi(self.n_steps));
        for (((x, d), m), v) in parameters.iter_mut().zip(&gradient).zip(&mut self.first).zip(&mut self.second) {
            *m = BETA_1 * *m + (1.0 - BETA_1) * d;
            *v = BETA_2 * *v + (1.0 - BETA_2) * d * d;
            *x -= rate * (*m / bias_1) / ((*v / bias_2).sqrt() + EPSILON);
        }
    }
}

/// Iterative hard thresholding in three phases of a third of the epochs each: all values learn; the smallest of each
/// matrix are set to zero after every epoch, and may come back; those at zero stay there.
struct Sparsity {
    keep: f32,
    matrices: [Range<usize>; 4],
    /// What stays zero, once that is settled.
    zeros: Option<Vec<usize>>,
}

impl Sparsity {
    fn new(network: &Network, options: &TrainOptions) -> Sparsity {
        let at = network.cell.blocks();
        Sparsity { keep: options.keep, matrices: [at.w1, at.w2, at.u1, at.u2], zeros: None }
    }

    fn settled(&self) -> bool {
        self.keep >= 1.0 || self.zeros.is_some()
    }

    fn hold(&self, parameters: &mut [f32]) {
        self.zeros.iter().flatten().for_each(|&i| parameters[i] = 0.0);
    }

    fn end_epoch(&mut self, parameters: &mut [f32], epoch: usize, n_epochs: usize) {
        if self.settled() || epoch * 3 < n_epochs {
            return;
        }
        let mut zeros = Vec::new();
        for matrix in &self.matrices {
            let mut order: Vec<usize> = matrix.clone().collect();
            order.sort_by(|&a, &b| parameters[a].abs().total_cmp(&parameters[b].abs()).then(a.cmp(&b)));
            let n_kept = (self.keep * order.len() as f32).ceil() as usize;
            zeros.extend_from_slice(&order[..order.len() - n_kept]);
        }
        zeros.iter().for_each(|&i| parameters[i] = 0.0);
        if epoch * 3 >= 2 * n_epochs {
            self.zeros = Some(zeros);
        }
    }
}
