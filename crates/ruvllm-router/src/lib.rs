//! Routing of RuvLLM: vectors in, decisions out.
//!
//! A query becomes a vector: [`features`] tells 128 numbers of its text, an [`Embedder`] (somebody with a model, above
//! this crate) the rest. From vectors come decisions: a [`Selector`] expects the quality of each model's answer, and
//! the settings to ask with, by a FastGRNN ([`mod@fastgrnn`]) and trees trained on outcomes; [`choose`] weighs quality and cost;
//! [`routes`] finds the named route that a query belongs to, by examples; [`roles`] finds the role, of thirteen, that
//! should take a task. [`evaluate`] tells how good all of that is, beside [`Logistic`] regression and nearest
//! [`Neighbours`].
//!
//! This crate does not know how a model runs, what a request is, or where anything is stored: states are bytes.
//! Training is seeded and repeats bit for bit.
//!
//! ```
//! use std::ops::ControlFlow;
//! use ruvllm_router::{HashedWords, Model, Outcome, Selector, TrainOptions, Weighing, choose, query_vector};
//!
//! // Outcomes: the small model answers short questions well and long ones badly, the large one both.
//! let mut embedder = HashedWords::new(64);
//! let mut outcomes = Vec::new();
//! for i in 0..64u16 {
//!     let text = if i % 2 == 0 { format!("what is {i}?") } else { "explain step by step, ".repeat(9) + &i.to_string() };
//!     let qualities = vec![Some(f32::from(i % 2 == 0)), Some(1.0)];
//!     outcomes.push(Outcome { query: query_vector(&text, &mut embedder)?, group: i.into(), qualities, settings: None });
//! }
//! let selector =
//!     Selector::train(&["small", "large"], &outcomes, &TrainOptions::default(), |_| ControlFlow::Continue(()))?;
//!
//! let models = [("small", 1.0), ("large", 8.0)].map(|(name, cost)| Model { name: name.into(), cost });
//! let prediction = selector.predict(&query_vector("what is 77?", &mut embedder)?)?;
//! let choice = choose(&models, &prediction.qualities, Weighing::Within(0.2))?;
//! assert_eq!(models[choice.model].name, "small");
//! # Ok::<(), ruvllm_router::RouterError>(())
//! ```

#![forbid(unsafe_code)]

mod costs;
mod embed;
mod error;
pub mod evaluate;
pub mod fastgrnn;
pub mod features;
mod forest;
mod knn;
mod linear;
mod math;
pub mod roles;
pub mod routes;
mod rows;
mod select;
mod state;

pub use costs::{AnswerCosts, expected_costs};
pub use embed::{Embedder, HashedWords};
pub use error::{RouterError, RouterErrorKind};
pub use fastgrnn::{Outcome, Prediction, Progress, Selector, Settings, TrainOptions};
pub use knn::Neighbours;
pub use linear::{Link, Logistic};
pub use rows::Rows;
pub use select::{Choice, Model, Weighing, choose, choose_by};
pub use state::N_STATE_BYTES_MAX;

/// Returns a query as a vector: its 128 [`features`], then its embedding.
///
/// # Errors
/// The text cannot be embedded; kind `Embed`.
pub fn query_vector(text: &str, embedder: &mut dyn Embedder) -> Result<Vec<f32>, RouterError> {
    let mut query = features::of(text).to_vec();
    query.extend(embedder.embed(text)?);
    Ok(query)
}
