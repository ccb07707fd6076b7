//! A committee of networks and forests over one scaling: what is trained, saved and asked.

use std::ops::ControlFlow;

use serde_json::json;

use super::network::{CONTEXT_BUCKETS, Network, Pass, TEMPERATURE_MAX};
use super::train::{self, Fold, Outcome, Progress, TrainOptions};
use crate::error::{RouterError, RouterErrorKind, data, invalid, shape};
use crate::evaluate::{grouped_folds, temperature_of};
use crate::features::N_FEATURES;
use crate::forest::Forest;
use crate::math::{argmax, sigmoid, softmax};
use crate::rows::{Rows, Scaler};
use crate::state::{Reader, Writer};

/// Expected quality and cost of each model for a query.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The quality to expect of each model, 0 to 1, in the order of [`Selector::models`].
    pub qualities: Vec<f32>,
    /// The share of each of [`CONTEXT_BUCKETS`]; they add up to 1.
    pub buckets: [f32; CONTEXT_BUCKETS.len()],
    /// The temperature to sample with.
    pub temperature: f32,
    /// The top-p to sample with.
    pub top_p: f32,
    /// The probability that no other model would answer better than the one of the best expected quality.
    pub confidence: f32,
}

impl Prediction {
    /// Returns the most tokens of the most likely context bucket.
    pub fn n_context_tokens(&self) -> u32 {
        CONTEXT_BUCKETS[argmax(&self.buckets)]
    }
}

/// Expects the quality of each model's answer from a query's vector; see [`mod@crate::fastgrnn`].
#[derive(Clone, Debug, PartialEq)]
pub struct Selector {
    models: Vec<String>,
    network: Network,
    scaler: Scaler,
    /// The logit of each model's mean quality.
    bases: Vec<f32>,
    /// What the distance of each model's logits from there is divided by.
    temperatures: Vec<f32>,
    /// The parameters of every member's network.
    members: Vec<Vec<f32>>,
    /// The forests of the members, and how much of each model's quality is theirs.
    forests: Vec<Forest>,
    shares: Vec<f32>,
}

/// The spread that features and values of embeddings have after scaling: the penalty on their weights is the same, so
/// this says how much each is trusted.
const FEATURE_SPREAD: f32 = 0.5;
const EMBEDDING_SPREAD: f32 = 0.35;

/// Shares of a forest that are weighed against each other, and how close to 0 and 1 an expectation is taken for certain.
const SHARES: [f32; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];
const UNSURE: f32 = 0.01;

const KIND: &str = "selector";
const N_MODELS_MAX: usize = 256;
const N_QUERY_MAX: usize = 1 << 14;

/// How wide a value of a query is spread after scaling.
fn spread_of(i: usize) -> f32 {
    if i < N_FEATURES { FEATURE_SPREAD } else { EMBEDDING_SPREAD }
}

/// Returns the quality that a network's logit stands for, by a model's base and temperature.
fn calibrated(logit: f32, base: f32, temperature: f32) -> f32 {
    sigmoid(base + (logit - base) / temperature)
}

/// Returns how much of a quality is the forest's: of some shares the one of the least loss, where a case is what the
/// network and the forest expected of what they had not seen, and what it was.
fn share_of(cases: &[[f32; 3]]) -> f32 {
    let loss = |share: f32| -> f64 {
        let of_one = |&[network, forest, quality]: &[f32; 3]| {
            let expected = (network + share * (forest - network)).clamp(UNSURE, 1.0 - UNSURE);
            f64::from(-quality * expected.ln() - (1.0 - quality) * (1.0 - expected).ln())
        };
        cases.iter().map(of_one).sum()
    };
    let losses = SHARES.map(|share| (share, loss(share)));
    losses.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0.0, |(share, _)| share)
}

impl Selector {
    /// Trains a selector among `models` on outcomes, telling `progress` after each pass over them and each tree; it may break.
    ///
    /// The same outcomes, options and machine give the same bits.
    ///
    /// # Errors
    /// Too few outcomes, or ones that do not fit each other or the models (kinds `Data`, `Shape`, `Value`); `progress`
    /// asked to stop (kind `Stopped`).
    pub fn train(
        models: &[&str],
        outcomes: &[Outcome],
        options: &TrainOptions,
        mut progress: impl FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Selector, RouterError> {
        if models.is_empty() || models.len() > N_MODELS_MAX {
            return Err(data(format!("{} models to choose from; 1 to {N_MODELS_MAX} can be", models.len())));
        }
        train::check(outcomes, models.len(), options)?;
        let mut queries = Rows::new(outcomes[0].query.len().max(1));
        outcomes.iter().try_for_each(|outcome| queries.push(&outcome.query))?;
        if queries.width() > N_QUERY_MAX {
            return Err(shape(format!("queries of {} values; at most {N_QUERY_MAX} are taken", queries.width())));
        }
        let scaler = Scaler::fit(&queries, spread_of);
        let queries = scaler.apply_all(&queries);
        let network = Network::new(queries.width(), models.len(), options.n_hidden, options.rank);

        let groups: Vec<u64> = outcomes.iter().map(|outcome| outcome.group).collect();
        let folds = grouped_folds(&groups, options.n_members, options.seed);
        let mut logits = Rows::zeros(outcomes.len(), models.len());
        let mut expected = Rows::zeros(outcomes.len(), models.len());
        let (mut members, mut forests) = (Vec::with_capacity(options.n_members), Vec::new());
        let targets: Vec<&[Option<f32>]> = outcomes.iter().map(|outcome| &outcome.qualities[..]).collect();
        for member in 0..options.n_members {
            let (left_out, learned) = (0..outcomes.len()).partition(|&i| folds[i] == member);
            let fold = Fold { queries: &queries, outcomes, learned, left_out };
            let mut last = None;
            let parameters = train::fit(&network, &fold, options, member, &mut |told| {
                last = Some(*told);
                progress(told)
            })?;
            let mut pass = Pass::default();
            for &i in &fold.left_out {
                network.forward(&parameters, queries.row(i), &mut pass);
                logits.row_mut(i).copy_from_slice(&pass.logits[..models.len()]);
            }
            members.push(parameters);
            if options.n_trees > 0 {
                let seed = options.seed.wrapping_add((member * options.n_trees) as u64);
                let mut go_on = || last.as_ref().map_or(ControlFlow::Continue(()), &mut progress);
                let forest = Forest::grow(&queries, &targets, &fold.learned, options.n_trees, seed, &mut go_on)?;
                fold.left_out.iter().for_each(|&i| forest.add(queries.row(i), 1.0, expected.row_mut(i)));
                forests.push(forest);
            }
        }
        let base = |model: usize| train::logit_of_mean(outcomes.iter().filter_map(|outcome| outcome.qualities[model]));
        let bases: Vec<f32> = (0..models.len()).map(base).collect();
        let known = |model: usize| {
            outcomes.iter().enumerate().filter_map(move |(i, outcome)| Some((i, outcome.qualities[model]?)))
        };
        let temperature = |model: usize| {
            let pairs: Vec<(f32, f32)> = known(model).map(|(i, quality)| (logits.row(i)[model], quality)).collect();
            temperature_of(&pairs, bases[model])
        };
        let temperatures: Vec<f32> = (0..models.len()).map(temperature).collect();
        let share = |model: usize| {
            let of_network = |i: usize| calibrated(logits.row(i)[model], bases[model], temperatures[model]);
            let cases = known(model).map(|(i, quality)| [of_network(i), expected.row(i)[model], quality]);
            share_of(&cases.collect::<Vec<_>>())
        };
        let shares = if forests.is_empty() { vec![0.0; models.len()] } else { (0..models.len()).map(share).collect() };
        let models = models.iter().map(|&name| name.to_owned()).collect();
        Ok(Selector { models, network, scaler, bases, temperatures, members, forests, shares })
    }

    /// Returns the names of the models, in the order of the qualities.
    pub fn models(&self) -> &[String] {
        &self.models
    }

    /// Returns the length of the queries' vectors.
    pub fn n_query(&self) -> usize {
        self.network.n_query
    }

    /// Returns the number of values that were learned, and how many of them are not zero.
    pub fn n_parameters(&self) -> (usize, usize) {
        let all = self.members.iter().flatten();
        let of_forests: usize = self.forests.iter().map(Forest::n_parameters).sum();
        (all.clone().count() + of_forests, all.filter(|&&x| x != 0.0).count() + of_forests)
    }

    /// Returns what is expected of a query: its features, then its embedding.
    ///
    /// # Errors
    /// The vector has another length than those of the training; kind `Shape`.
    pub fn predict(&self, query: &[f32]) -> Result<Prediction, RouterError> {
        if query.len() != self.network.n_query {
            let (n, needed) = (query.len(), self.network.n_query);
            return Err(shape(format!("a query of {n} values; the selector was trained on {needed}: train it anew")));
        }
        let x = self.scaler.apply(query);
        let (mut pass, mut logits) = (Pass::default(), vec![0.0; self.network.n_out()]);
        let mut qualities = vec![0.0; self.models.len()];
        let share = 1.0 / self.members.len() as f32;
        for parameters in &self.members {
            self.network.forward(parameters, &x, &mut pass);
            logits.iter_mut().zip(&pass.logits).for_each(|(sum, logit)| *sum += share * logit);
            let scales = self.bases.iter().zip(&self.temperatures);
            for ((quality, &logit), (&base, &temperature)) in qualities.iter_mut().zip(&pass.logits).zip(scales) {
                *quality += share * calibrated(logit, base, temperature);
            }
        }
        let mut expected = vec![0.0; self.models.len()];
        self.forests.iter().for_each(|forest| forest.add(&x, share, &mut expected));
        for ((quality, expected), share) in qualities.iter_mut().zip(expected).zip(&self.shares) {
            *quality += share * (expected - *quality);
        }
        let at = self.network.buckets();
        let mut buckets = [0.0; CONTEXT_BUCKETS.len()];
        buckets.copy_from_slice(&logits[at.clone()]);
        softmax(&mut buckets);
        Ok(Prediction {
            qualities,
            buckets,
            temperature: TEMPERATURE_MAX * sigmoid(logits[at.end]),
            top_p: sigmoid(logits[at.end + 1]),
            confidence: sigmoid(logits[at.end + 2]),
        })
    }

    /// Returns the selector as bytes in the safetensors format.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let n_query = self.network.n_query;
        writer.table("means", &[n_query], &self.scaler.means);
        writer.table("gains", &[n_query], &self.scaler.gains);
        writer.table("bases", &[self.models.len()], &self.bases);
        writer.table("temperatures", &[self.models.len()], &self.temperatures);
        for (member, parameters) in self.members.iter().enumerate() {
            writer.table(&format!("member.{member}"), &[parameters.len()], parameters);
        }
        for (member, forest) in self.forests.iter().enumerate() {
            forest.write(&mut writer, &format!("forest.{member}"));
        }
        writer.table("shares", &[self.models.len()], &self.shares);
        let cell = &self.network.cell;
        writer.finish(&json!({
            "kind": KIND, "version": 1, "models": self.models, "n_query": n_query, "n_hidden": cell.n_hidden,
            "rank": cell.rank_w.max(cell.rank_u), "n_members": self.members.len(), "n_forests": self.forests.len(),
        }))
    }

    /// Reads what [`Selector::to_bytes`] wrote. The bytes may come from anywhere.
    ///
    /// # Errors
    /// They are no selector, contradict themselves, or hold a value that is not finite; kinds `Invalid` and `Limit`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Selector, RouterError> {
        let reader = Reader::new(bytes, KIND)?;
        let models = reader.names("models")?;
        if models.is_empty() || models.len() > N_MODELS_MAX {
            let message = format!("a saved selector of {} models; 1 to {N_MODELS_MAX} are read", models.len());
            return Err(RouterError::new(RouterErrorKind::Limit, message));
        }
        let n_query = reader.number("n_query", 1, N_QUERY_MAX)?;
        let (n_hidden, rank) = (reader.number("n_hidden", 1, 4096)?, reader.number("rank", 1, 4096)?);
        let network = Network::new(n_query, models.len(), n_hidden, rank);
        let scaler = Scaler { means: reader.table("means", &[n_query])?, gains: reader.table("gains", &[n_query])? };
        let bases = reader.table("bases", &[models.len()])?;
        let temperatures = reader.table("temperatures", &[models.len()])?;
        if temperatures.iter().any(|&temperature| temperature <= 0.0) {
            return Err(invalid("a saved selector has a temperature that is not above 0"));
        }
        let n_members = reader.number("n_members", 1, 1024)?;
        let member = |i: usize| reader.table(&format!("member.{i}"), &[network.n_parameters()]);
        let members = (0..n_members).map(member).collect::<Result<_, _>>()?;
        // Those that were trained before there were forests have none.
        let has_forests = !reader.about()["n_forests"].is_null();
        let n_forests = if has_forests { reader.number("n_forests", 0, n_members)? } else { 0 };
        let forest = |i: usize| Forest::read(&reader, &format!("forest.{i}"), n_query, models.len());
        let forests: Vec<Forest> = (0..n_forests).map(forest).collect::<Result<_, _>>()?;
        let shares = if has_forests { reader.table("shares", &[models.len()])? } else { vec![0.0; models.len()] };
        if shares.iter().any(|share| !(0.0..=1.0).contains(share)) {
            return Err(invalid("a saved selector has a share that is not 0 to 1"));
        }
        Ok(Selector { models, network, scaler, bases, temperatures, members, forests, shares })
    }
}
