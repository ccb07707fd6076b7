//! Quality and cost of any number of models.

use crate::error::{RouterError, shape};
use crate::rows::Rows;
use crate::select::{Model, Weighing, choose};

/// What a way of weighing reached over a set of queries.
#[derive(Clone, Debug, PartialEq)]
pub struct Spent {
    /// How quality and cost were weighed.
    pub weighing: Weighing,
    /// Mean quality of the chosen models' answers.
    pub quality: f64,
    /// Mean cost of the chosen models.
    pub cost: f64,
    /// The share of queries that each model was chosen for.
    pub shares: Vec<f64>,
    /// The share of the best single model's quality that was reached.
    pub quality_of_best: f64,
    /// The share of the best single model's cost that was saved; below 0 if more was spent.
    pub saved_of_best: f64,
}

/// Chooses for every query by its expected qualities (`[n, n_models]`) under each weighing, and returns what that
/// reached by the actual ones (`[n, n_models]`). The best single model is that of the greatest mean quality; of equal
/// ones, the cheapest.
///
/// ```
/// use ruvllm_router::evaluate::spent;
/// use ruvllm_router::{Model, Rows, Weighing};
///
/// let models = [("small", 1.0), ("large", 4.0)].map(|(name, cost)| Model { name: name.into(), cost });
/// let (mut expected, mut actual) = (Rows::new(2), Rows::new(2));
/// for (small, large) in [(0.9, 0.9), (0.2, 0.9)] {
///     expected.push(&[small, large])?;
///     actual.push(&[f32::from(small > 0.5), 1.0])?;
/// }
/// let reached = &spent(&models, &expected, &actual, &[Weighing::Within(0.05)])?[0];
/// assert_eq!((reached.quality, reached.cost, reached.saved_of_best), (1.0, 2.5, 0.375));
/// # Ok::<(), ruvllm_router::RouterError>(())
/// ```
///
/// # Errors
/// The tables do not fit each other or the models, or are empty (kind `Shape`); a cost or a weighing is no number of 0
/// or more (kind `Value`).
pub fn spent(
    models: &[Model],
    expected: &Rows,
    actual: &Rows,
    weighings: &[Weighing],
) -> Result<Vec<Spent>, RouterError> {
    if expected.is_empty() || expected.len() != actual.len() || actual.width() != models.len() {
        let (n, m, width) = (expected.len(), actual.len(), actual.width());
        return Err(shape(format!("{n} expected and {m} actual rows of {width} for {} models", models.len())));
    }
    let n = actual.len() as f64;
    let mean_of = |model: usize| actual.iter().map(|row| f64::from(row[model])).sum::<f64>() / n;
    let order = |&a: &usize, &b: &usize| {
        mean_of(a).total_cmp(&mean_of(b)).then(models[b].cost.total_cmp(&models[a].cost)).then(b.cmp(&a))
    };
    let best = (0..models.len()).max_by(order).expect("rows of no models are of width 0, which none are");
    let reached = |&weighing: &Weighing| {
        let (mut quality, mut cost, mut shares) = (0.0, 0.0, vec![0.0; models.len()]);
        for (expected, actual) in expected.iter().zip(actual.iter()) {
            let model = choose(models, expected, weighing)?.model;
            quality += f64::from(actual[model]) / n;
            cost += f64::from(models[model].cost) / n;
            shares[model] += 1.0 / n;
        }
        let quality_of_best = quality / mean_of(best);
        let saved_of_best = 1.0 - cost / f64::from(models[best].cost);
        Ok(Spent { weighing, quality, cost, shares, quality_of_best, saved_of_best })
    };
    weighings.iter().map(reached).collect()
}
