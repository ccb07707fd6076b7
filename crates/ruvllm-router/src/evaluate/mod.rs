//! Evaluation of a router: what it gains for what it costs, whether its probabilities are true, and how sure that is.
//!
//! [`cost_quality`] gives the curve of quality over the share of queries that go to the strong model, with its mean
//! ([`Curve::apgr`]) and the share that recovers half of the difference ([`Curve::cpt`]); both as in RouteLLM (Ong et
//! al. 2024, arXiv:2406.18665). [`spent`] does it for any number of models and the costs of
//! their answers, and [`weighing_that_keeps`] finds how to weigh by that. [`calibration_error`]
//! compares probabilities with what happened, [`wilson`] bounds a share, [`Confusion`] counts classes.
//! [`grouped_folds`] divides rows so that no group is on both sides, and [`bootstrap`] draws groups, since rows of one
//! group are not independent.
//!
//! ```
//! use ruvllm_router::evaluate::cost_quality;
//!
//! // Four queries: the weak model fails the first and the third, the strong one only the third.
//! let (weak, strong) = ([0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0]);
//! let knowing = cost_quality(&[1.0, 0.0, 0.0, 0.0], &weak, &strong);
//! assert_eq!(knowing.apgr(), 0.875);
//! assert_eq!(knowing.cpt(0.5), Some(0.125));
//! // A score that tells nothing apart is worth what chance is.
//! assert_eq!(cost_quality(&[0.3; 4], &weak, &strong).apgr(), 0.5);
//! ```

mod calibration;
mod counts;
mod curve;
mod folds;
mod spent;
#[cfg(test)]
mod tests;

pub use calibration::{Bin, calibration_bins, calibration_error};
pub(crate) use calibration::{softmax_temperature_of, temperature_of};
pub use counts::{Confusion, wilson};
pub use curve::{Curve, cost_quality};
pub use folds::{bootstrap, grouped_folds};
pub use spent::{Answers, Single, Spent, spent, weighing_that_keeps};
