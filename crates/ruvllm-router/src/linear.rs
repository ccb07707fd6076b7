//! Logistic regression: what every other way of learning here has to beat.

use crate::error::{RouterError, data};
use crate::math::{add_outer, add_scaled, cross_entropy, dot, sigmoid, softmax};
use crate::rows::Rows;

/// Link by which outputs become probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Each by itself: a row's targets are any numbers from 0 to 1.
    Sigmoid,
    /// Together: they add up to 1, and so do a row's targets.
    Softmax,
}

/// A linear model with a probability for every output, fitted to the minimum of its convex loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Logistic {
    pub(crate) link: Link,
    pub(crate) n_in: usize,
    /// `[n_out, n_in]`, row-major
    pub(crate) weights: Vec<f32>,
    /// `[n_out]`
    pub(crate) biases: Vec<f32>,
}

/// Steps of the minimiser after which a fit counts as done.
const N_STEPS_MAX: usize = 150;

impl Logistic {
    /// Fits weights and biases to `targets` (`[n, n_out]`, 0 to 1) given `inputs` (`[n, n_in]`): the least mean
    /// cross-entropy plus `l2/2` times the sum of the squared weights.
    ///
    /// # Errors
    /// There are no rows, or not as many of both; kind `Data`.
    pub fn fit(inputs: &Rows, targets: &Rows, link: Link, l2: f32) -> Result<Logistic, RouterError> {
        if inputs.is_empty() || inputs.len() != targets.len() {
            return Err(data(format!(
                "{} inputs with {} targets; a fit needs as many of both",
                inputs.len(),
                targets.len()
            )));
        }
        let (n_in, n_out) = (inputs.width(), targets.width());
        let mut parameters = vec![0.0; (n_in + 1) * n_out];
        let mut logits = vec![0.0; n_out];
        minimise(&mut parameters, N_STEPS_MAX, |parameters, gradient| {
            let (weights, biases) = parameters.split_at(n_in * n_out);
            let (d_weights, d_biases) = gradient.split_at_mut(n_in * n_out);
            d_weights.fill(0.0);
            d_biases.fill(0.0);
            let mut loss = 0.0f64;
            for (x, y) in inputs.iter().zip(targets.iter()) {
                write_logits(weights, biases, x, &mut logits);
                loss += f64::from(difference(link, &mut logits, y));
                add_outer(d_weights, &logits, x);
                add_scaled(d_biases, 1.0, &logits);
            }
            let scale = 1.0 / inputs.len() as f32;
            d_weights.iter_mut().zip(weights).for_each(|(d, w)| *d = *d * scale + l2 * w);
            d_biases.iter_mut().for_each(|d| *d *= scale);
            loss * f64::from(scale) + 0.5 * f64::from(l2) * f64::from(dot(weights, weights))
        });
        let biases = parameters.split_off(n_in * n_out);
        Ok(Logistic { link, n_in, weights: parameters, biases })
    }

    /// Returns the outputs before they become probabilities: `[n_out]`.
    ///
    /// # Panics
    /// `x` has another length than the inputs of the fit.
    pub fn logits(&self, x: &[f32]) -> Vec<f32> {
        assert_eq!(x.len(), self.n_in, "a vector of another length than those of the fit");
        let mut logits = vec![0.0; self.biases.len()];
        write_logits(&self.weights, &self.biases, x, &mut logits);
        logits
    }

    /// Returns the probabilities: `[n_out]`.
    ///
    /// # Panics
    /// `x` has another length than the inputs of the fit.
    pub fn predict(&self, x: &[f32]) -> Vec<f32> {
        let mut values = self.logits(x);
        match self.link {
            Link::Sigmoid => values.iter_mut().for_each(|value| *value = sigmoid(*value)),
            Link::Softmax => {
                softmax(&mut values);
            }
        }
        values
    }
}

fn write_logits(weights: &[f32], biases: &[f32], x: &[f32], logits: &mut [f32]) {
    for ((logit, row), bias) in logits.iter_mut().zip(weights.chunks_exact(x.len())).zip(biases) {
        *logit = bias + dot(row, x);
    }
}

/// Returns the loss of a row and leaves its gradient, probability minus target, in `logits`.
fn difference(link: Link, logits: &mut [f32], y: &[f32]) -> f32 {
    match link {
        Link::Sigmoid => (logits.iter_mut().zip(y))
            .map(|(z, &y)| {
                let loss = cross_entropy(*z, y);
                *z = sigmoid(*z) - y;
                loss
            })
            .sum(),
        Link::Softmax => {
            let expected = dot(logits, y);
            let loss = softmax(logits) - expected;
            logits.iter_mut().zip(y).for_each(|(p, y)| *p -= y);
            loss
        }
    }
}

/// Steps that are remembered of the curvature.
const N_PAIRS: usize = 10;

/// Finds a minimum of a smooth function by L-BFGS (Nocedal & Wright 2006, alg. 7.5) with steps that are halved until
/// they bring enough. `f` writes the gradient and returns the value.
fn minimise(x: &mut Vec<f32>, n_steps_max: usize, mut f: impl FnMut(&[f32], &mut [f32]) -> f64) {
    let mut gradient = vec![0.0; x.len()];
    let mut loss = f(x, &mut gradient);
    let mut pairs: Vec<(Vec<f32>, Vec<f32>, f32)> = Vec::new();
    for _ in 0..n_steps_max {
        let length = dot(&gradient, &gradient).sqrt();
        if length < 1e-5 {
            return;
        }
        let mut direction = descent(&gradient, &pairs);
        let mut slope = dot(&direction, &gradient);
        if slope >= 0.0 {
            pairs.clear();
            direction = gradient.iter().map(|d| -d).collect();
            slope = -length * length;
        }
        let mut step = if pairs.is_empty() { 1.0 / length.max(1.0) } else { 1.0 };
        let (next, next_loss, next_gradient) = loop {
            let next: Vec<f32> = x.iter().zip(&direction).map(|(x, d)| x + step * d).collect();
            let mut next_gradient = vec![0.0; x.len()];
            let next_loss = f(&next, &mut next_gradient);
            if next_loss <= loss + 1e-4 * f64::from(step * slope) {
                break (next, next_loss, next_gradient);
            }
            step *= 0.5;
            if step < 1e-6 {
                return;
            }
        };
        let s: Vec<f32> = next.iter().zip(&*x).map(|(a, b)| a - b).collect();
        let y: Vec<f32> = next_gradient.iter().zip(&gradient).map(|(a, b)| a - b).collect();
        let curvature = dot(&s, &y);
        if curvature > 1e-12 {
            pairs.push((s, y, 1.0 / curvature));
            if pairs.len() > N_PAIRS {
                pairs.remove(0);
            }
        }
        let gained = loss - next_loss;
        (*x, loss, gradient) = (next, next_loss, next_gradient);
        if gained < 1e-7 * loss.abs() {
            return;
        }
    }
}

/// The direction of the next step: the gradient through the remembered curvature.
fn descent(gradient: &[f32], pairs: &[(Vec<f32>, Vec<f32>, f32)]) -> Vec<f32> {
    let mut q: Vec<f32> = gradient.iter().map(|d| -d).collect();
    let mut alphas = Vec::with_capacity(pairs.len());
    for (s, y, rho) in pairs.iter().rev() {
        let alpha = rho * dot(s, &q);
        add_scaled(&mut q, -alpha, y);
        alphas.push(alpha);
    }
    if let Some((_, y, rho)) = pairs.last() {
        let scale = 1.0 / (rho * dot(y, y));
        q.iter_mut().for_each(|q| *q *= scale);
    }
    for ((s, y, rho), alpha) in pairs.iter().zip(alphas.into_iter().rev()) {
        let beta = rho * dot(y, &q);
        add_scaled(&mut q, alpha - beta, s);
    }
    q
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fit on one value, 0 or 1, has the frequencies as probabilities: known in closed form.
    #[test]
    fn frequencies_are_found() {
        let (mut inputs, mut targets) = (Rows::new(1), Rows::new(1));
        for i in 0..100 {
            let (x, y) = (f32::from(i < 40), f32::from(!(10..55).contains(&i)));
            inputs.push(&[x]).unwrap();
            targets.push(&[y]).unwrap();
        }
        let fit = Logistic::fit(&inputs, &targets, Link::Sigmoid, 0.0).unwrap();
        assert!((fit.predict(&[1.0])[0] - 0.25).abs() < 1e-3, "{:?}", fit.predict(&[1.0]));
        assert!((fit.predict(&[0.0])[0] - 0.75).abs() < 1e-3, "{:?}", fit.predict(&[0.0]));
    }

    /// At the minimum the gradient of the penalised loss is zero; here it is computed anew, by differences.
    #[test]
    fn softmax_fit_is_a_minimum() {
        let (mut inputs, mut targets) = (Rows::new(3), Rows::new(3));
        for i in 0..60usize {
            let x = [(i % 7) as f32 / 3.0 - 1.0, (i % 5) as f32 / 2.0 - 1.0, (i % 3) as f32 - 1.0];
            inputs.push(&x).unwrap();
            let mut y = [0.0; 3];
            y[(i * i + i / 4) % 3] = 1.0;
            targets.push(&y).unwrap();
        }
        let fit = Logistic::fit(&inputs, &targets, Link::Softmax, 0.01).unwrap();
        let loss = |fit: &Logistic| {
            let rows = inputs.iter().zip(targets.iter());
            let terms = rows.map(|(x, y)| -fit.predict(x).iter().zip(y).map(|(p, y)| y * p.ln()).sum::<f32>());
            f64::from(terms.sum::<f32>()) / 60.0 + 0.005 * f64::from(dot(&fit.weights, &fit.weights))
        };
        for i in 0..9 {
            let (mut up, mut down) = (fit.clone(), fit.clone());
            up.weights[i] += 0.02;
            down.weights[i] -= 0.02;
            let slope = (loss(&up) - loss(&down)) / 0.04;
            assert!(slope.abs() < 1e-3, "weight {i}: {slope}");
        }
    }
}
