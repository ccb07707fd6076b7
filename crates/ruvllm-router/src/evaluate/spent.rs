//! Quality and cost of any number of models.

use crate::error::{RouterError, shape, value};
use crate::rows::Rows;
use crate::select::{Model, Weighing, pick};

/// Quality and cost of models' answers, one row a query: as they were, or as they are expected to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// `[n, n_models]`, 0 to 1.
    pub qualities: Rows,
    /// `[n, n_models]`, 0 or more, in any unit.
    pub costs: Rows,
}

impl Answers {
    /// Answers of which every one of a model costs the same.
    ///
    /// # Errors
    /// There are not as many models as qualities of a query; kind `Shape`.
    pub fn of_models(models: &[Model], qualities: Rows) -> Result<Answers, RouterError> {
        if qualities.width() != models.len() {
            return Err(shape(format!("{} qualities of {} models", qualities.width(), models.len())));
        }
        let (mut costs, row) = (Rows::new(models.len()), models.iter().map(|model| model.cost).collect::<Vec<f32>>());
        (0..qualities.len()).try_for_each(|_| costs.push(&row))?;
        Ok(Answers { qualities, costs })
    }

    /// Returns the answers to the queries of these indices.
    ///
    /// # Panics
    /// There is no such query.
    pub fn pick(&self, indices: &[usize]) -> Answers {
        Answers { qualities: self.qualities.pick(indices), costs: self.costs.pick(indices) }
    }

    /// Returns the single model of the best mean quality; of equal ones, the cheapest.
    ///
    /// # Errors
    /// The tables do not fit each other, or are empty (kind `Shape`); a cost is below 0 (kind `Value`).
    pub fn best_single(&self) -> Result<Single, RouterError> {
        self.check()?;
        let n = self.qualities.len() as f64;
        let mean_of = |rows: &Rows, model: usize| rows.iter().map(|row| f64::from(row[model])).sum::<f64>() / n;
        let single = |model: usize| Single {
            model,
            quality: mean_of(&self.qualities, model),
            cost: mean_of(&self.costs, model),
        };
        let order = |a: &Single, b: &Single| {
            a.quality.total_cmp(&b.quality).then(b.cost.total_cmp(&a.cost)).then(b.model.cmp(&a.model))
        };
        let best = (0..self.qualities.width()).map(single).max_by(order);
        Ok(best.expect("rows of no models are of width 0, which none are"))
    }

    fn check(&self) -> Result<(), RouterError> {
        let (qualities, costs) = (&self.qualities, &self.costs);
        if qualities.is_empty() || qualities.len() != costs.len() || qualities.width() != costs.width() {
            let [n, m] = [qualities, costs].map(|rows| format!("{} x {}", rows.len(), rows.width()));
            return Err(shape(format!("{n} qualities with {m} costs; there must be as many of both, and some")));
        }
        match costs.iter().flatten().all(|cost| *cost >= 0.0) {
            true => Ok(()),
            false => Err(value("a cost is below 0")),
        }
    }
}

/// One model for all queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Single {
    /// Its index.
    pub model: usize,
    /// Mean quality of its answers.
    pub quality: f64,
    /// Mean cost of its answers.
    pub cost: f64,
}

/// Quality and cost that a weighing reached over a set of queries.
#[derive(Clone, Debug, PartialEq)]
pub struct Spent {
    /// Weighing of quality and cost.
    pub weighing: Weighing,
    /// Mean quality of the chosen models' answers.
    pub quality: f64,
    /// Mean cost of the chosen models' answers.
    pub cost: f64,
    /// The share of queries that each model was chosen for.
    pub shares: Vec<f64>,
    /// The share of the best single model's quality that was reached.
    pub quality_of_best: f64,
    /// The share of the best single model's cost that was saved; below 0 if more was spent.
    pub saved_of_best: f64,
}

/// Chooses for every query by what is expected under each weighing, and returns what that reached by what was: the
/// quality and the cost of the very answers that were chosen. The best single model is that of the greatest mean
/// quality; of equal ones, the cheapest.
///
/// ```
/// use ruvllm_router::evaluate::{Answers, spent};
/// use ruvllm_router::{Model, Rows, Weighing};
///
/// let models = [("small", 1.0), ("large", 4.0)].map(|(name, cost)| Model { name: name.into(), cost });
/// let (mut expected, mut actual) = (Rows::new(2), Rows::new(2));
/// for (small, large) in [(0.9, 0.9), (0.2, 0.9)] {
///     expected.push(&[small, large])?;
///     actual.push(&[f32::from(small > 0.5), 1.0])?;
/// }
/// let [expected, actual] = [expected, actual].map(|qualities| Answers::of_models(&models, qualities));
/// let reached = &spent(&expected?, &actual?, &[Weighing::Within(0.05)])?[0];
/// assert_eq!((reached.quality, reached.cost, reached.saved_of_best), (1.0, 2.5, 0.375));
/// # Ok::<(), ruvllm_router::RouterError>(())
/// ```
///
/// # Errors
/// The tables do not fit each other, or are empty (kind `Shape`); a cost or a weighing is no number of 0 or more (kind
/// `Value`).
pub fn spent(expected: &Answers, actual: &Answers, weighings: &[Weighing]) -> Result<Vec<Spent>, RouterError> {
    expected.check()?;
    let best = actual.best_single()?;
    let (n_models, n) = (actual.qualities.width(), actual.qualities.len() as f64);
    if expected.qualities.len() != actual.qualities.len() || expected.qualities.width() != n_models {
        let (n_expected, width) = (expected.qualities.len(), expected.qualities.width());
        return Err(shape(format!("{n_expected} rows of {width} expected, {n} of {n_models} found")));
    }
    let reached = |&weighing: &Weighing| {
        let (mut quality, mut cost, mut shares) = (0.0, 0.0, vec![0.0; n_models]);
        for i in 0..actual.qualities.len() {
            let model = pick(expected.qualities.row(i), expected.costs.row(i), weighing)?;
            quality += f64::from(actual.qualities.row(i)[model]);
            cost += f64::from(actual.costs.row(i)[model]);
            shares[model] += 1.0;
        }
        // Divided once, like the means they are compared with: the best model alone keeps exactly all.
        (quality, cost) = (quality / n, cost / n);
        shares.iter_mut().for_each(|share| *share /= n);
        let (quality_of_best, saved_of_best) = (quality / best.quality, 1.0 - cost / best.cost);
        Ok(Spent { weighing, quality, cost, shares, quality_of_best, saved_of_best })
    };
    weighings.iter().map(reached).collect()
}

/// Returns the weighing that saved most of those that kept at least `share` of the best single model's quality: on
/// queries that what is expected was not learned from, it says what to weigh by. Prices are tried; if none kept that
/// much, the best quality is taken whatever it costs.
///
/// # Errors
/// As [`spent`]; also kind `Value` if `share` is not from 0 to 1.
pub fn weighing_that_keeps(expected: &Answers, actual: &Answers, share: f64) -> Result<Weighing, RouterError> {
    /// How much quality the mean cost of the dearest model is worth at most, and in how many steps up to there.
    const WORTH_MAX: f64 = 2.0;
    const N_STEPS: usize = 200;
    if !(0.0..=1.0).contains(&share) {
        return Err(value(format!("{share} of the best quality cannot be kept; say 0 to 1")));
    }
    expected.check()?;
    let (costs, n) = (&expected.costs, expected.costs.len() as f64);
    let mean = |model: usize| costs.iter().map(|row| f64::from(row[model])).sum::<f64>() / n;
    let dearest = (0..costs.width()).map(mean).fold(f64::MIN_POSITIVE, f64::max);
    // Squared, since what matters lies near 0.
    let worth = |step: usize| WORTH_MAX * (step as f64 / N_STEPS as f64).powi(2);
    let prices: Vec<Weighing> = (0..=N_STEPS).map(|step| Weighing::Price((worth(step) / dearest) as f32)).collect();
    let all = spent(expected, actual, &prices)?;
    let good = all.iter().filter(|reached| reached.quality_of_best >= share);
    let best = good.max_by(|a, b| a.saved_of_best.total_cmp(&b.saved_of_best));
    Ok(best.map_or(Weighing::Price(0.0), |reached| reached.weighing))
}
