//! What a router expects of queries, and how it is made from outcomes.

use std::ops::ControlFlow;

use ruvllm_router::evaluate::{Answers, grouped_folds};
use ruvllm_router::{AnswerCosts, Model, Outcome, Progress, Rows, Selector, TrainOptions, expected_costs};

use crate::error::{Error, Result};
use crate::routing::outcomes::Outcomes;

/// Outcomes as vectors, to learn from.
pub struct Lesson<'a> {
    /// Where they come from.
    pub outcomes: &'a Outcomes,
    /// Outcomes with vectors of the queries.
    pub all: Vec<Outcome>,
}

impl Lesson<'_> {
    /// Learns how good answers will be from the outcomes of these indices.
    ///
    /// # Errors
    /// There is too little to learn from.
    pub fn selector(
        &self,
        indices: &[usize],
        options: &TrainOptions,
        each: &mut dyn FnMut(&Progress),
    ) -> Result<Selector> {
        let some: Vec<Outcome> = indices.iter().map(|&i| self.all[i].clone()).collect();
        let told = |progress: &Progress| {
            each(progress);
            ControlFlow::Continue(())
        };
        Selector::train(&self.outcomes.names(), &some, options, told).map_err(Error::failure)
    }

    /// Learns what answers will cost, unless all of a model cost the same.
    ///
    /// # Errors
    /// There is nothing to learn from.
    pub fn costs(&self, indices: &[usize]) -> Result<Option<AnswerCosts>> {
        let rows = &self.outcomes.costs;
        if !indices.windows(2).any(|pair| rows[pair[0]] != rows[pair[1]]) {
            return Ok(None);
        }
        let (mut queries, mut costs) = (Rows::new(self.all[indices[0]].query.len()), Rows::new(rows[0].len()));
        for &i in indices {
            queries.push(&self.all[i].query).and_then(|()| costs.push(&rows[i])).map_err(Error::failure)?;
        }
        AnswerCosts::fit(&queries, &costs).map(Some).map_err(Error::failure)
    }

    /// Returns what is expected of every outcome by what learned from the groups that are not in its part.
    ///
    /// # Errors
    /// There is too little to learn from.
    pub fn left_out(&self, n_parts: usize, options: &TrainOptions, each: &mut dyn FnMut(&Progress)) -> Result<Answers> {
        let (models, n) = (&self.outcomes.models, self.all.len());
        let parts = grouped_folds(&self.outcomes.groups, n_parts, options.seed);
        let mut rows = vec![(vec![], vec![]); n];
        for part in 0..n_parts {
            let (asked, learned): (Vec<usize>, Vec<usize>) = (0..n).partition(|&i| parts[i] == part);
            let (selector, costs) = (self.selector(&learned, options, each)?, self.costs(&learned)?);
            for i in asked {
                rows[i] = expect(&selector, costs.as_ref(), models, &self.all[i].query)?;
            }
        }
        let (mut qualities, mut costs) = (Rows::new(models.len()), Rows::new(models.len()));
        for (quality, cost) in rows {
            qualities.push(&quality).and_then(|()| costs.push(&cost)).map_err(Error::failure)?;
        }
        Ok(Answers { qualities, costs })
    }
}

/// Returns the quality and the cost to expect of each model's answer to a query.
///
/// # Errors
/// The vector has another length than those that were learned from.
pub fn expect(
    selector: &Selector,
    costs: Option<&AnswerCosts>,
    models: &[Model],
    query: &[f32],
) -> Result<(Vec<f32>, Vec<f32>)> {
    let qualities = selector.predict(query).map_err(Error::failure)?.qualities;
    Ok((qualities, expected_costs(costs, models, query).map_err(Error::failure)?))
}
