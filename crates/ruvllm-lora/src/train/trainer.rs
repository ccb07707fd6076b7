//! The loop: which examples a step takes, and what it does with them.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::checkpoint::Checkpoint;
use super::data::{Example, order};
use super::factors::{FactorOptions, Factors};
use super::loss::{self, Loss, With};
use super::model::TrainModel;
use super::optimizer::{Adam, AdamOptions, Schedule};
use super::spec::TargetSet;
use crate::adapter::Adapter;
use crate::error::{LoraError, invalid};

/// Options that decide the course of a training. With the same data, model and machine, the same options give the same bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainOptions {
    /// Layers that are adapted.
    pub targets: TargetSet,
    /// Blocks before this one are left as they are, see [`TrainModel::hold_frozen`].
    pub first_block: usize,
    /// Rank of the factors.
    pub rank: usize,
    /// `alpha / rank` multiplies what they add.
    pub alpha: f32,
    /// Loss of the training.
    pub loss: Loss,
    /// Steps in all; schedules end with them.
    pub n_steps: u64,
    /// Examples that are run together.
    pub n_batch: usize,
    /// So many runs make a step.
    pub n_accumulate: usize,
    /// The highest rate.
    pub rate: f64,
    /// Its course.
    pub schedule: Schedule,
    /// The share of all steps in which it rises.
    pub warm_up: f64,
    /// The optimiser.
    pub adam: AdamOptions,
    /// Decides how factors begin and in which order examples come.
    pub seed: u64,
}

impl Default for TrainOptions {
    fn default() -> TrainOptions {
        TrainOptions {
            targets: TargetSet::All,
            first_block: 0,
            rank: 8,
            alpha: 16.0,
            loss: Loss::NextToken,
            n_steps: 100,
            n_batch: 8,
            n_accumulate: 1,
            rate: 5e-4,
            schedule: Schedule::Cosine,
            warm_up: 0.05,
            adam: AdamOptions::default(),
            seed: 0,
        }
    }
}

impl TrainOptions {
    /// Returns what the products of factors are multiplied with.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank.max(1) as f32
    }

    /// Returns the steps of so many passes over `n_examples`.
    pub fn steps_of(&self, n_epochs: f64, n_examples: usize) -> u64 {
        let n_step = (self.n_batch * self.n_accumulate).max(1) as f64;
        ((n_epochs * n_examples as f64 / n_step).ceil() as u64).max(1)
    }

    /// Returns them as JSON, as reports and checkpoints have them.
    pub fn json(&self) -> Value {
        let loss = match self.loss {
            Loss::NextToken => json!({}),
            Loss::Triplet { margin } => json!({ "margin": margin }),
            Loss::InfoNce { temperature } => json!({ "temperature": temperature }),
            Loss::Dpo { beta } => json!({ "beta": beta }),
            Loss::Grpo { clip, beta } => json!({ "clip": clip, "beta": beta }),
        };
        let AdamOptions { beta1, beta2, epsilon, decay, clip } = self.adam;
        let mut all = json!({
            "targets": self.targets.name(), "rank": self.rank, "alpha": self.alpha, "loss": self.loss.name(),
            "loss_options": loss, "steps": self.n_steps, "batch": self.n_batch, "accumulate": self.n_accumulate,
            "lr": self.rate, "schedule": self.schedule.name(), "warm_up": self.warm_up,
            "beta1": beta1, "beta2": beta2, "epsilon": epsilon, "decay": decay, "clip": clip, "seed": self.seed,
        });
        if self.first_block > 0 {
            all["first_block"] = json!(self.first_block);
        }
        all
    }

    /// Checks the numbers, before there is a model.
    ///
    /// # Errors
    /// One of them is out of range; the line names it.
    pub fn check(&self) -> Result<(), LoraError> {
        let fail = |line: String| Err(invalid(line));
        if self.n_steps == 0 || self.n_batch == 0 || self.n_accumulate == 0 {
            return fail(format!("{} steps of {} x {} examples", self.n_steps, self.n_accumulate, self.n_batch));
        }
        if !(self.rate.is_finite() && self.rate > 0.0 && self.rate <= 1.0) {
            return fail(format!("a rate of {}; use one from 1e-5 to 1e-2", self.rate));
        }
        if !(0.0..1.0).contains(&self.warm_up)
            || (self.adam.clip.is_nan() || self.adam.clip <= 0.0)
            || !(0.0..=1.0).contains(&self.adam.decay)
        {
            let AdamOptions { clip, decay, .. } = self.adam;
            return fail(format!("a warm-up of {}, a clip of {clip} and a decay of {decay}", self.warm_up));
        }
        let parts = match self.loss {
            Loss::NextToken => vec![],
            Loss::Triplet { margin } => vec![margin],
            Loss::InfoNce { temperature } => vec![temperature],
            Loss::Dpo { beta } => vec![beta],
            Loss::Grpo { clip, beta } => vec![clip, beta + f64::MIN_POSITIVE],
        };
        match parts.iter().all(|x| x.is_finite() && *x > 0.0) {
            true => Ok(()),
            false => fail(format!("the loss {} with {parts:?}; its numbers must be positive", self.loss.name())),
        }
    }
}

/// Report of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Steps taken so far.
    pub n_steps: u64,
    /// The mean loss of the step's examples, before it.
    pub loss: f64,
    /// The rate.
    pub rate: f64,
    /// The gradient's length before it was clipped.
    pub norm: f64,
    /// Tokens that were run.
    pub n_tokens: usize,
    /// Time of the step.
    pub seconds: f64,
}

/// Adds to gradients what else factors are to make small: it gets the values of all factors and the gradients.
pub type Extra<'a> = dyn FnMut(&[Vec<f32>], &mut [Vec<f32>]) + 'a;

/// A training under way.
#[derive(Debug)]
pub struct Trainer {
    model: Arc<TrainModel>,
    factors: Factors,
    adam: Adam,
    examples: Vec<Example>,
    options: TrainOptions,
    /// Of everything that decides the result beside the options.
    content: Value,
    losses: Vec<f32>,
    seconds: f64,
    /// The order of the pass over the examples that is under way, and its number.
    pass: (u64, Vec<usize>),
}

impl Trainer {
    /// Begins one, of a frozen model that others may share. `content` tells data and model apart from others, for checkpoints.
    ///
    /// # Errors
    /// An option makes no sense, or an example is of another kind than the loss compares.
    pub fn new(
        model: impl Into<Arc<TrainModel>>,
        examples: Vec<Example>,
        options: TrainOptions,
        content: &[u8; 32],
    ) -> Result<Trainer, LoraError> {
        let model = model.into();
        options.check()?;
        if examples.is_empty() {
            return Err(invalid("there is nothing to train on"));
        }
        examples.iter().try_for_each(|example| options.loss.check(example))?;
        let factors = FactorOptions {
            set: options.targets,
            first_block: options.first_block,
            rank: options.rank,
            scale: options.scale(),
            seed: options.seed,
        };
        let factors = Factors::new(model.spec(), model.targets(), &factors)?;
        let adam = Adam::new(factors.vars().map(|var| var.elem_count()));
        let content = Value::from(hex::encode(content));
        let pass = (0, order(examples.len(), options.seed, 1));
        Ok(Trainer { model, factors, adam, examples, options, content, losses: Vec::new(), seconds: 0.0, pass })
    }

    /// Returns the number of steps taken.
    pub fn n_steps(&self) -> u64 {
        self.adam.n_steps
    }

    /// Returns the options.
    pub fn options(&self) -> &TrainOptions {
        &self.options
    }

    /// Returns the frozen model.
    pub fn model(&self) -> &TrainModel {
        &self.model
    }

    /// Returns the factors.
    pub fn factors(&self) -> &Factors {
        &self.factors
    }

    /// Returns the values of all factors, `A` and `B` of each pair in order.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn values(&self) -> Result<Vec<Vec<f32>>, LoraError> {
        self.factors.values()
    }

    /// Begins with these values instead of factors that change nothing: what [`Trainer::values`] gave for the same options.
    ///
    /// # Errors
    /// They have other shapes, or a step was taken already.
    pub fn start_from(&mut self, values: Vec<Vec<f32>>) -> Result<(), LoraError> {
        let fits = values.iter().map(Vec::len).eq(self.factors.vars().map(|var| var.elem_count()));
        if !fits || self.n_steps() > 0 {
            let n: usize = values.iter().map(Vec::len).sum();
            let line = format!(
                "{n} values to begin with, {} are trained, {} steps were taken",
                self.factors.n_params(),
                self.n_steps()
            );
            return Err(invalid(line));
        }
        self.factors.set(values)
    }

    /// Returns the gradient of an example's mean loss in all factors.
    ///
    /// # Errors
    /// The example is of another kind than the loss compares.
    pub fn gradient(&self, example: &Example) -> Result<Vec<Vec<f32>>, LoraError> {
        let loss = self.options.loss;
        loss.check(example)?;
        let sum = loss::sum(&self.model, With::Trained(&self.factors), loss, &[example])?;
        let mut grads = self.zeros();
        self.factors.add_gradients(&sum.affine(1.0 / loss.units(example) as f64, 0.0)?.backward()?, &mut grads)?;
        Ok(grads)
    }

    /// Returns the mean loss of each example, with the factors as they are or with the base alone.
    ///
    /// # Errors
    /// An example is of another kind than the loss compares.
    pub fn losses_of(&self, examples: &[Example], with_factors: bool) -> Result<Vec<f64>, LoraError> {
        let with = if with_factors { With::Fixed(&self.factors) } else { With::Base };
        let one = |example: &Example| {
            let loss = self.options.loss;
            loss.check(example)?;
            Ok(loss::value(&loss::sum(&self.model, with, loss, &[example])?)? / loss.units(example) as f64)
        };
        examples.iter().map(one).collect()
    }

    fn zeros(&self) -> Vec<Vec<f32>> {
        self.factors.vars().map(|var| vec![0.0; var.elem_count()]).collect()
    }

    /// Returns the loss of every step so far.
    pub fn losses(&self) -> &[f32] {
        &self.losses
    }

    /// Returns the seconds that all steps took.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Returns which example is number `at` in the endless row of all passes.
    fn example(&mut self, at: u64) -> usize {
        let n = self.examples.len() as u64;
        let (pass, place) = (at / n, (at % n) as usize);
        if self.pass.0 != pass {
            self.pass = (pass, order(self.examples.len(), self.options.seed, pass + 1));
        }
        self.pass.1[place]
    }

    /// Takes a step. `done` is how much of the training is over, 0 to 1, where it ends by the clock; otherwise the number of
    /// steps says it.
    ///
    /// # Errors
    /// The gradient is no number.
    pub fn step(&mut self, done: Option<f64>) -> Result<StepReport, LoraError> {
        self.step_with(done, &mut |_, _| {})
    }

    /// Takes a step as [`Trainer::step`]; `extra` gets the values of all factors and adds to their gradients what else they are to
    /// make small, such as a penalty.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn step_with(&mut self, done: Option<f64>, extra: &mut Extra<'_>) -> Result<StepReport, LoraError> {
        let start = Instant::now();
        let (options, n_batch) = (self.options, self.options.n_batch);
        let n_step = (n_batch * options.n_accumulate) as u64;
        let first = self.n_steps() * n_step;
        let picked: Vec<usize> = (first..first + n_step).map(|at| self.example(at)).collect();
        let examples: Vec<&Example> = picked.iter().map(|&i| &self.examples[i]).collect();
        let n_units: usize = examples.iter().map(|example| options.loss.units(example)).sum();
        let mut grads = self.zeros();
        let mut total = 0.0;
        for part in examples.chunks(n_batch) {
            let sum = loss::sum(&self.model, With::Trained(&self.factors), options.loss, part)?;
            let mean = sum.affine(1.0 / n_units as f64, 0.0)?;
            total += loss::value(&mean)?;
            self.factors.add_gradients(&mean.backward()?, &mut grads)?;
        }
        let done = done.unwrap_or((self.n_steps() as f64 + 0.5) / options.n_steps as f64);
        let rate = options.rate * options.schedule.share(done, options.warm_up);
        let n_tokens = examples.iter().map(|example| example.n_tokens()).sum();
        let mut values = self.factors.values()?;
        extra(&values, &mut grads);
        let norm = self.adam.step(&options.adam, rate, &mut values, &grads);
        if !norm.is_finite() || !total.is_finite() {
            let line = format!("step {}: loss {total}, gradient {norm}; train with a lower rate", self.n_steps() + 1);
            return Err(invalid(line));
        }
        self.factors.set(values)?;
        self.losses.push(total as f32);
        let seconds = start.elapsed().as_secs_f64();
        self.seconds += seconds;
        Ok(StepReport { n_steps: self.n_steps(), loss: total, rate, norm, n_tokens, seconds })
    }

    /// Returns the mean loss over examples, with the factors as they are or with the base alone. `each` is told how many are
    /// done, and ends it by returning `false`.
    ///
    /// # Errors
    /// An example is of another kind than the loss compares.
    pub fn evaluate(
        &self,
        examples: &[Example],
        with_factors: bool,
        each: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Option<f64>, LoraError> {
        examples.iter().try_for_each(|example| self.options.loss.check(example))?;
        let with = if with_factors { With::Fixed(&self.factors) } else { With::Base };
        let (mut total, mut n_units, mut n_done) = (0.0, 0, 0);
        let all: Vec<&Example> = examples.iter().collect();
        for part in all.chunks(self.options.n_batch) {
            total += loss::value(&loss::sum(&self.model, with, self.options.loss, part)?)?;
            n_units += part.iter().map(|example| self.options.loss.units(example)).sum::<usize>();
            n_done += part.len();
            if !each(n_done) {
                return Ok(None);
            }
        }
        Ok((n_units > 0).then(|| total / n_units as f64))
    }

    /// Returns what was trained so far as an adapter.
    ///
    /// # Errors
    /// A value is no finite number.
    pub fn adapter(&self, name: &str) -> Result<Adapter, LoraError> {
        self.factors.adapter(name, self.model.targets())
    }

    /// Returns what must be equal for a training to go on.
    fn identity(&self) -> Value {
        let mut options = self.options.json();
        options["content"] = self.content.clone();
        options
    }

    /// Writes where the training stands; the file appears when it is complete.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), LoraError> {
        let checkpoint = Checkpoint {
            options: self.identity(),
            names: self.factors.names().map(str::to_owned).collect(),
            values: self.factors.values()?,
            adam: self.adam.clone(),
            losses: self.losses.clone(),
            seconds: self.seconds,
        };
        checkpoint.write(path)
    }

    /// Goes on from a file that [`Trainer::save`] wrote, to the same bits as if there had been no interruption.
    ///
    /// # Errors
    /// The file is damaged, or of a training with other options, data or model.
    pub fn resume(&mut self, path: &Path) -> Result<(), LoraError> {
        let checkpoint = Checkpoint::read(path)?;
        let (own, other) = (self.identity(), &checkpoint.options);
        let within = |line: String| invalid(line).within(path.display());
        if let Some((key, value)) =
            own.as_object().into_iter().flatten().find(|(key, value)| other[key.as_str()] != **value)
        {
            let what = match key.as_str() {
                "content" => "other data or another model".to_owned(),
                key => format!("{key} {} instead of {value}", other[key]),
            };
            return Err(within(format!("the training that was interrupted has {what}; use the same, or start anew")));
        }
        let fits = |all: &[Vec<f32>]| {
            all.len() == self.adam.m.len() && all.iter().zip(&self.adam.m).all(|(x, y)| x.len() == y.len())
        };
        let is_sound = checkpoint.names.iter().map(String::as_str).eq(self.factors.names())
            && [&checkpoint.values, &checkpoint.adam.m, &checkpoint.adam.v].into_iter().all(|all| fits(all))
            && checkpoint.losses.len() as u64 == checkpoint.adam.n_steps;
        if !is_sound {
            return Err(within("its factors have other shapes; start without --resume".to_owned()));
        }
        self.factors.set(checkpoint.values)?;
        (self.adam, self.losses, self.seconds) = (checkpoint.adam, checkpoint.losses, checkpoint.seconds);
        Ok(())
    }
}
