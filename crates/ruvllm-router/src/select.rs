//! From expected qualities to a choice: what a model costs, and what quality is worth.

use serde::{Deserialize, Serialize};

use crate::error::{RouterError, RouterErrorKind, shape, value};
use crate::fastgrnn::Prediction;

/// A model that can be chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Its name, as the selector and the caller know it.
    pub name: String,
    /// Cost of an answer, in any unit that is the same for all models (seconds, weight bytes read, money).
    pub cost: f32,
}

/// Weighing of quality and cost. As JSON: `{"within": 0.02}` or `{"price": 0.01}`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weighing {
    /// The cheapest model whose expected quality is at most this much below the best one's: 0.02 or so.
    Within(f32),
    /// The greatest `quality - price·cost`.
    Price(f32),
}

impl Weighing {
    /// Returns whether one can choose by it: its number is finite, 0 or more.
    pub fn is_sound(self) -> bool {
        let (Weighing::Within(weight) | Weighing::Price(weight)) = self;
        is_sound(weight)
    }
}

fn is_sound(x: f32) -> bool {
    x.is_finite() && x >= 0.0
}

/// The model that was chosen, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Its index among the models.
    pub model: usize,
    /// The quality that is expected of it.
    pub quality: f32,
    /// Its cost.
    pub cost: f32,
    /// The share of the dearest model's cost that is saved.
    pub saved: f32,
    /// One line for people.
    pub reason: String,
}

/// Chooses among models, which are in the order of the prediction's qualities. Of equal ones the cheaper is taken, then
/// the first.
///
/// ```
/// use ruvllm_router::{Model, Weighing, choose};
///
/// let model = |name: &str, cost| Model { name: name.into(), cost };
/// let models = [model("small", 1.0), model("large", 5.0)];
/// assert_eq!(choose(&models, &[0.71, 0.72], Weighing::Within(0.02))?.model, 0);
/// assert_eq!(choose(&models, &[0.31, 0.72], Weighing::Within(0.02))?.model, 1);
/// assert_eq!(choose(&models, &[0.31, 0.72], Weighing::Price(0.2))?.model, 0);
/// # Ok::<(), ruvllm_router::RouterError>(())
/// ```
///
/// # Errors
/// There are no models, or not as many as qualities (kind `Shape`); a cost or the weighing is below 0 or not finite
/// (kind `Value`).
pub fn choose(models: &[Model], qualities: &[f32], weighing: Weighing) -> Result<Choice, RouterError> {
    if models.is_empty() || models.len() != qualities.len() {
        return Err(shape(format!("{} models with {} qualities to choose from", models.len(), qualities.len())));
    }
    let costs: Vec<f32> = models.iter().map(|model| model.cost).collect();
    choose_at(models, &costs, qualities, weighing)
}

/// Chooses among models whose answers cost this much.
fn choose_at(models: &[Model], costs: &[f32], qualities: &[f32], weighing: Weighing) -> Result<Choice, RouterError> {
    let model = pick(qualities, costs, weighing)?;
    let best = qualities.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let dearest = costs.iter().copied().fold(0.0, f32::max);
    let (name, cost, quality) = (&models[model].name, costs[model], qualities[model]);
    let saved = if dearest > 0.0 { 1.0 - cost / dearest } else { 0.0 };
    let why = match weighing {
        Weighing::Within(drop) => format!("the cheapest within {drop} of the best ({best:.2})"),
        Weighing::Price(price) => format!("the most quality less {price} times the cost"),
    };
    // Three digits behind the point and no more: costs may be expected ones.
    let told = (1e3 * f64::from(cost)).round() / 1e3;
    let reason = format!("{name}: expected quality {quality:.2}, cost {told}; {why}");
    Ok(Choice { model, quality, cost, saved, reason })
}

/// Returns the index of the model that is chosen by expected qualities and costs, as [`choose`] says.
///
/// # Errors
/// A cost or the weighing is below 0 or not finite; kind `Value`.
pub(crate) fn pick(qualities: &[f32], costs: &[f32], weighing: Weighing) -> Result<usize, RouterError> {
    if !weighing.is_sound() || !costs.iter().all(|&cost| is_sound(cost)) {
        return Err(value("costs and their weight are finite numbers, 0 or more"));
    }
    let best = qualities.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let worth = |i: usize| match weighing {
        Weighing::Within(drop) if qualities[i] + drop >= best => -costs[i],
        Weighing::Within(_) => f32::NEG_INFINITY,
        Weighing::Price(price) => qualities[i] - price * costs[i],
    };
    let better = |&a: &usize, &b: &usize| {
        let by_cost = || costs[b].total_cmp(&costs[a]);
        worth(a).total_cmp(&worth(b)).then_with(by_cost).then(qualities[a].total_cmp(&qualities[b])).then(b.cmp(&a))
    };
    Ok((0..qualities.len().min(costs.len())).max_by(better).expect("there is at least one model"))
}

/// Chooses by the prediction of a selector, and for what answers to this query are expected to cost
/// ([`expected_costs`](crate::expected_costs)), a number each model.
///
/// # Errors
/// As [`choose`]; also kind `Name` if the models are not those of the selector, in its order, and kind `Shape` if there are
/// not as many costs.
pub fn choose_by(
    selector: &crate::Selector,
    models: &[Model],
    costs: &[f32],
    prediction: &Prediction,
    weighing: Weighing,
) -> Result<Choice, RouterError> {
    if !models.iter().map(|model| &model.name).eq(selector.models()) {
        let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
        let message = format!("the selector knows the models {:?}, not {names:?}; train it anew", selector.models());
        return Err(RouterError::new(RouterErrorKind::Name, message));
    }
    if costs.len() != models.len() {
        return Err(shape(format!("{} costs of {} models", costs.len(), models.len())));
    }
    choose_at(models, costs, &prediction.qualities, weighing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(costs: &[f32]) -> Vec<Model> {
        costs.iter().enumerate().map(|(i, &cost)| Model { name: format!("m{i}"), cost }).collect()
    }

    #[test]
    fn choices_by_quality_and_cost() {
        let check = |costs: &[f32], qualities: &[f32], weighing, expected| {
            let found = choose(&models(costs), qualities, weighing).unwrap();
            assert_eq!(found.model, expected, "{costs:?} {qualities:?} {weighing:?}: {}", found.reason);
        };
        check(&[1.0, 2.0, 9.0], &[0.5, 0.88, 0.9], Weighing::Within(0.05), 1);
        check(&[1.0, 2.0, 9.0], &[0.5, 0.88, 0.9], Weighing::Within(0.0), 2);
        check(&[1.0, 2.0, 9.0], &[0.5, 0.88, 0.9], Weighing::Within(1.0), 0);
        check(&[1.0, 2.0, 9.0], &[0.5, 0.88, 0.9], Weighing::Price(0.0), 2);
        check(&[1.0, 2.0, 9.0], &[0.5, 0.88, 0.9], Weighing::Price(1.0), 0);
        // The dearest need not be the best; equal ones: the better, then the first.
        check(&[9.0, 1.0], &[0.3, 0.6], Weighing::Within(0.02), 1);
        check(&[2.0, 2.0], &[0.5, 0.51], Weighing::Within(0.02), 1);
        check(&[2.0, 2.0], &[0.5, 0.5], Weighing::Price(0.1), 0);
    }

    #[test]
    fn what_cannot_be_weighed_is_refused() {
        let check = |costs: &[f32], qualities: &[f32], weighing, kind| {
            assert_eq!(choose(&models(costs), qualities, weighing).unwrap_err().kind(), kind);
        };
        check(&[], &[], Weighing::Within(0.1), RouterErrorKind::Shape);
        check(&[1.0], &[0.1, 0.2], Weighing::Within(0.1), RouterErrorKind::Shape);
        check(&[-1.0], &[0.1], Weighing::Within(0.1), RouterErrorKind::Value);
        check(&[1.0], &[0.1], Weighing::Price(f32::NAN), RouterErrorKind::Value);
    }
}
