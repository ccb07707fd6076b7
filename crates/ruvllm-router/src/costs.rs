//! Expected cost of each model's answer to a query.

use serde_json::json;

use crate::error::{RouterError, data, invalid, shape, value};
use crate::features::N_FEATURES;
use crate::linear::{Link, Logistic};
use crate::rows::{Rows, Scaler};
use crate::select::Model;
use crate::state::{Reader, Writer};

/// Expects the cost of each model's answer from a query's vector: how long a prompt is and what it asks for tell much of
/// that, so a cheap model that says more than a dear one is not taken for cheap.
///
/// ```
/// use ruvllm_router::{AnswerCosts, HashedWords, Rows, query_vector};
///
/// // Both models write long answers when they are asked to explain; the large one costs five times as much a token.
/// let (mut embedder, mut queries, mut costs) = (HashedWords::new(64), None, Rows::new(2));
/// for i in 0..60u8 {
///     let (text, n_tokens) = if i % 2 == 0 { (format!("add {i}"), 10.0) } else { (format!("explain why {i}"), 90.0) };
///     let query = query_vector(&text, &mut embedder)?;
///     queries.get_or_insert_with(|| Rows::new(query.len())).push(&query)?;
///     costs.push(&[n_tokens, 5.0 * n_tokens])?;
/// }
/// let expected = AnswerCosts::fit(&queries.expect("there are some"), &costs)?;
/// let of = |text: &str, embedder: &mut HashedWords| expected.predict(&query_vector(text, embedder)?);
/// let (short, long) = (of("add 77", &mut embedder)?, of("explain why 78", &mut embedder)?);
/// assert!(short[1] < 100.0 && long[1] > 350.0 && long[0] < 100.0, "{short:?} {long:?}");
/// # Ok::<(), ruvllm_router::RouterError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerCosts {
    scaler: Scaler,
    /// Gives each model's cost as a share of its greatest.
    model: Logistic,
    /// `[n_models]`
    greatest: Vec<f32>,
}

const KIND: &str = "costs";
const N_MODELS_MAX: usize = 256;
const N_QUERY_MAX: usize = 1 << 14;

/// The spreads of features and values of embeddings after scaling, and the penalty on the squares of their weights.
const FEATURE_SPREAD: f32 = 0.5;
const EMBEDDING_SPREAD: f32 = 0.35;
const L2: f32 = 3e-3;

/// How far above the greatest known cost the greatest expected one can be.
const HEADROOM: f32 = 1.25;

impl AnswerCosts {
    /// Fits the costs (`[n, n_models]`) of answers to queries (`[n, n_query]`).
    ///
    /// # Errors
    /// There are none, or not as many of both (kind `Data`); a cost is below 0 (kind `Value`).
    pub fn fit(queries: &Rows, costs: &Rows) -> Result<AnswerCosts, RouterError> {
        if costs.iter().flatten().any(|cost| *cost < 0.0) {
            return Err(value("a cost is below 0"));
        }
        if queries.width() > N_QUERY_MAX || costs.width() > N_MODELS_MAX {
            return Err(data(format!(
                "queries of {} values and {} models are too many",
                queries.width(),
                costs.width()
            )));
        }
        let spread = |i: usize| if i < N_FEATURES { FEATURE_SPREAD } else { EMBEDDING_SPREAD };
        let scaler = Scaler::fit(queries, spread);
        let greatest_of = |model: usize| HEADROOM * costs.iter().map(|row| row[model]).fold(0.0, f32::max);
        let greatest: Vec<f32> = (0..costs.width()).map(greatest_of).collect();
        let mut shares = Rows::new(costs.width());
        for row in costs.iter() {
            let share = |(cost, greatest): (&f32, &f32)| if *greatest > 0.0 { cost / greatest } else { 0.0 };
            shares.push(&row.iter().zip(&greatest).map(share).collect::<Vec<f32>>())?;
        }
        let model = Logistic::fit(&scaler.apply_all(queries), &shares, Link::Sigmoid, L2)?;
        Ok(AnswerCosts { scaler, model, greatest })
    }

    /// Returns the length of the queries' vectors.
    pub fn n_query(&self) -> usize {
        self.model.n_in
    }

    /// Returns how many models there are.
    pub fn n_models(&self) -> usize {
        self.greatest.len()
    }

    /// Returns the cost to expect of each model's answer to a query.
    ///
    /// # Errors
    /// The vector has another length than those of the fit; kind `Shape`.
    pub fn predict(&self, query: &[f32]) -> Result<Vec<f32>, RouterError> {
        if query.len() != self.n_query() {
            let (n, needed) = (query.len(), self.n_query());
            return Err(shape(format!("a query of {n} values; the costs were learned from {needed}")));
        }
        let shares = self.model.predict(&self.scaler.apply(query));
        Ok(shares.iter().zip(&self.greatest).map(|(share, greatest)| share * greatest).collect())
    }

    /// Returns the estimator as bytes in the safetensors format.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (mut writer, n_query, n_models) = (Writer::default(), self.n_query(), self.n_models());
        writer.table("means", &[n_query], &self.scaler.means);
        writer.table("gains", &[n_query], &self.scaler.gains);
        writer.table("weights", &[n_models, n_query], &self.model.weights);
        writer.table("biases", &[n_models], &self.model.biases);
        writer.table("greatest", &[n_models], &self.greatest);
        writer.finish(&json!({ "kind": KIND, "version": 1, "n_query": n_query, "n_models": n_models }))
    }

    /// Reads what [`AnswerCosts::to_bytes`] wrote. The bytes may come from anywhere.
    ///
    /// # Errors
    /// They are no costs, contradict themselves, or hold a value that is not finite; kinds `Invalid` and `Limit`.
    pub fn from_bytes(bytes: &[u8]) -> Result<AnswerCosts, RouterError> {
        let reader = Reader::new(bytes, KIND)?;
        let (n_in, n) = (reader.number("n_query", 1, N_QUERY_MAX)?, reader.number("n_models", 1, N_MODELS_MAX)?);
        let scaler = Scaler { means: reader.table("means", &[n_in])?, gains: reader.table("gains", &[n_in])? };
        let weights = reader.table("weights", &[n, n_in])?;
        let model = Logistic { link: Link::Sigmoid, n_in, weights, biases: reader.table("biases", &[n])? };
        let greatest = reader.table("greatest", &[n])?;
        if greatest.iter().any(|cost| *cost < 0.0) {
            return Err(invalid("saved costs have a greatest one below 0"));
        }
        Ok(AnswerCosts { scaler, model, greatest })
    }
}

/// Returns what each model's answer to a query is expected to cost: as was learned, or what the models' answers cost in
/// the mean where nothing was.
///
/// # Errors
/// As [`AnswerCosts::predict`].
pub fn expected_costs(learned: Option<&AnswerCosts>, models: &[Model], query: &[f32]) -> Result<Vec<f32>, RouterError> {
    match learned {
        Some(learned) => learned.predict(query),
        None => Ok(models.iter().map(|model| model.cost).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RouterErrorKind;

    fn fitted() -> AnswerCosts {
        let (mut queries, mut costs) = (Rows::new(3), Rows::new(2));
        for i in 0..40u8 {
            let long = f32::from(i % 2);
            queries.push(&[long, f32::from(i % 5), 1.0]).unwrap();
            costs.push(&[10.0 + 80.0 * long, 0.0]).unwrap();
        }
        AnswerCosts::fit(&queries, &costs).unwrap()
    }

    #[test]
    fn costs_come_back_and_differ_by_query() {
        let costs = fitted();
        let (short, long) = (costs.predict(&[0.0, 2.0, 1.0]).unwrap(), costs.predict(&[1.0, 2.0, 1.0]).unwrap());
        assert!(short[0] < 25.0 && long[0] > 70.0 && short[1] == 0.0, "{short:?} {long:?}");
        let bytes = costs.to_bytes();
        assert_eq!(AnswerCosts::from_bytes(&bytes).unwrap(), costs);
        assert!((0..bytes.len()).step_by(7).all(|n| AnswerCosts::from_bytes(&bytes[..n]).is_err()));
        assert_eq!(costs.predict(&[1.0]).unwrap_err().kind(), RouterErrorKind::Shape);
    }

    #[test]
    fn costs_that_cannot_be_are_refused() {
        let (mut queries, mut costs) = (Rows::new(1), Rows::new(1));
        assert_eq!(AnswerCosts::fit(&queries, &costs).unwrap_err().kind(), RouterErrorKind::Data);
        queries.push(&[1.0]).unwrap();
        costs.push(&[-1.0]).unwrap();
        assert_eq!(AnswerCosts::fit(&queries, &costs).unwrap_err().kind(), RouterErrorKind::Value);
    }
}
