//! The deep loop's model: an adapter of the last blocks, trained by `ruvllm-lora`.

use std::sync::Arc;

use ruvllm_engine::{CancelToken, Engine, EngineError};
use ruvllm_lora::train::{
    AdamOptions, Example, ReadProgress, Schedule, ScoredSequence, TrainModel, TrainOptions, Trainer,
};
use ruvllm_lora::{Adapter, LoraError};
use ruvllm_sona::SonaError;
use ruvllm_sona::deep::{AdapterValues, DeepModel, Penalty, TrainingSequence};

/// Bytes of streams that are held behind the frozen blocks.
const HELD_BYTES_MAX: usize = 1 << 30;

/// Options of a [`DeepTrainer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeepTrainerOptions {
    /// Rank of the adapter.
    pub rank: usize,
    /// Blocks at the end of the model whose linear layers are adapted.
    pub n_blocks: usize,
    /// The highest learning rate.
    pub rate: f64,
}

/// Trains adapters of a model's last blocks for [`DeepState::run`](ruvllm_sona::deep::DeepState::run).
#[derive(Debug)]
pub struct DeepTrainer {
    model: Arc<TrainModel>,
    options: TrainOptions,
    cancel: CancelToken,
}

impl DeepTrainer {
    /// Reads the model's weights in f32. Training ends with an error when `cancel` says so.
    ///
    /// # Errors
    /// As [`Engine::train_model`].
    pub fn new(
        engine: &Engine,
        options: &DeepTrainerOptions,
        cancel: CancelToken,
        progress: &mut dyn FnMut(ReadProgress),
    ) -> Result<DeepTrainer, EngineError> {
        let DeepTrainerOptions { rank, n_blocks, rate } = *options;
        let adam = AdamOptions { decay: 0.0, ..AdamOptions::default() };
        let mut options =
            TrainOptions { rank, alpha: 2.0 * rank as f32, n_batch: 4, rate, adam, ..TrainOptions::default() };
        options.schedule = Schedule::Cosine;
        let mut model = engine.train_model(options.scale(), progress)?;
        options.first_block = model.spec().layers.len().saturating_sub(n_blocks);
        model.hold_frozen(options.first_block, HELD_BYTES_MAX);
        Ok(DeepTrainer { model: Arc::new(model), options, cancel })
    }

    /// Returns values as an adapter, for [`AdapterLoader`](ruvllm_engine::AdapterLoader) or a file.
    ///
    /// # Errors
    /// They are of another shape, or a value is no finite number.
    pub fn adapter(&self, name: &str, values: &AdapterValues) -> Result<Adapter, EngineError> {
        let one = [TrainingSequence { tokens: vec![0; 2], n_read: 1 }];
        Ok(self.trainer(values, &one, 1).map_err(EngineError::from)?.adapter(name)?)
    }

    /// Begins a training whose factors have these values.
    fn trainer(
        &self,
        values: &AdapterValues,
        sequences: &[TrainingSequence],
        n_steps: u64,
    ) -> Result<Trainer, LoraError> {
        let options = TrainOptions { n_steps, ..self.options };
        let mut trainer = Trainer::new(Arc::clone(&self.model), examples(sequences), options, &[0; 32])?;
        if !values.is_empty() {
            trainer.start_from(values.clone())?;
        }
        Ok(trainer)
    }

    fn check(&self) -> Result<(), SonaError> {
        match self.cancel.is_cancelled() {
            true => Err(SonaError::new(ruvllm_sona::SonaErrorKind::Io, "the training was stopped")),
            false => Ok(()),
        }
    }
}

fn examples(sequences: &[TrainingSequence]) -> Vec<Example> {
    let one = |sequence: &TrainingSequence| {
        let is_scored = (0..sequence.tokens.len()).map(|i| i >= sequence.n_read.max(1)).collect();
        Example { sequences: vec![ScoredSequence { tokens: sequence.tokens.clone(), is_scored }], scores: Vec::new() }
    };
    sequences.iter().map(one).collect()
}

impl DeepModel for DeepTrainer {
    fn fresh(&mut self) -> Result<AdapterValues, SonaError> {
        let one = [TrainingSequence { tokens: vec![0; 2], n_read: 1 }];
        Ok(self.trainer(&AdapterValues::new(), &one, 1)?.values()?)
    }

    fn train(
        &mut self,
        start: &AdapterValues,
        sequences: &[TrainingSequence],
        n_epochs: f64,
        penalty: &mut Penalty<'_>,
    ) -> Result<AdapterValues, SonaError> {
        let n_steps = self.options.steps_of(n_epochs, sequences.len());
        let mut trainer = self.trainer(start, sequences, n_steps)?;
        for _ in 0..n_steps {
            self.check()?;
            trainer.step_with(None, penalty)?;
        }
        Ok(trainer.values()?)
    }

    fn gradients(
        &mut self,
        values: &AdapterValues,
        sequences: &[TrainingSequence],
        each: &mut dyn FnMut(&[Vec<f32>]),
    ) -> Result<(), SonaError> {
        let trainer = self.trainer(values, sequences, 1)?;
        for example in examples(sequences) {
            self.check()?;
            each(&trainer.gradient(&example)?);
        }
        Ok(())
    }

    fn losses(&mut self, values: &AdapterValues, sequences: &[TrainingSequence]) -> Result<Vec<f64>, SonaError> {
        if sequences.is_empty() {
            return Ok(Vec::new());
        }
        let trainer = self.trainer(values, sequences, 1)?;
        let mut losses = Vec::with_capacity(sequences.len());
        for example in examples(sequences) {
            self.check()?;
            losses.extend(trainer.losses_of(std::slice::from_ref(&example), true)?);
        }
        Ok(losses)
    }
}
