//! The deep loop's model: an adapter of the last blocks, trained by `ruvllm-lora`.

use std::sync::Arc;

use ruvllm_engine::{CancelToken, Engine, EngineError};
use ruvllm_lora::train::{AdamOptions, Example, ReadProgress, Schedule, Sequence, TrainModel, TrainOptions, Trainer};
use ruvllm_lora::{Adapter, LoraError};
use ruvllm_sona::SonaError;
use ruvllm_sona::deep::{DeepModel, Lesson, Penalty, Values};

/// Bytes of streams that are held behind the frozen blocks.
const HELD_BYTES_MAX: usize = 1 << 30;

/// Trains adapters of a model's last blocks for [`DeepState::run`](ruvllm_sona::deep::DeepState::run).
#[derive(Debug)]
pub struct DeepTrainer {
    model: Arc<TrainModel>,
    options: TrainOptions,
    cancel: CancelToken,
}

impl DeepTrainer {
    /// Reads the model's weights in f32. The adapter has this rank and sits beside all linear layers of the last `n_blocks` blocks;
    /// `rate` is the highest of its training. Training ends with an error when `cancel` says so.
    ///
    /// # Errors
    /// As [`Engine::train_model`].
    pub fn new(
        engine: &Engine,
        (rank, n_blocks): (usize, usize),
        rate: f64,
        cancel: CancelToken,
        progress: &mut dyn FnMut(ReadProgress),
    ) -> Result<DeepTrainer, EngineError> {
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
    pub fn adapter(&self, name: &str, values: &Values) -> Result<Adapter, EngineError> {
        let one = [Lesson { tokens: vec![0; 2], n_read: 1 }];
        Ok(self.trainer(values, &one, 1).map_err(EngineError::from)?.adapter(name)?)
    }

    /// Begins a training whose factors have these values.
    fn trainer(&self, values: &Values, lessons: &[Lesson], n_steps: u64) -> Result<Trainer, LoraError> {
        let options = TrainOptions { n_steps, ..self.options };
        let mut trainer = Trainer::new(Arc::clone(&self.model), examples(lessons), options, &[0; 32])?;
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

fn examples(lessons: &[Lesson]) -> Vec<Example> {
    let one = |lesson: &Lesson| {
        let is_scored = (0..lesson.tokens.len()).map(|i| i >= lesson.n_read.max(1)).collect();
        Example { sequences: vec![Sequence { tokens: lesson.tokens.clone(), is_scored }], scores: Vec::new() }
    };
    lessons.iter().map(one).collect()
}

impl DeepModel for DeepTrainer {
    fn fresh(&mut self) -> Result<Values, SonaError> {
        let one = [Lesson { tokens: vec![0; 2], n_read: 1 }];
        Ok(self.trainer(&Values::new(), &one, 1)?.values()?)
    }

    fn train(
        &mut self,
        start: &Values,
        lessons: &[Lesson],
        n_epochs: f64,
        penalty: &mut Penalty<'_>,
    ) -> Result<Values, SonaError> {
        let n_steps = self.options.steps_of(n_epochs, lessons.len());
        let mut trainer = self.trainer(start, lessons, n_steps)?;
        for _ in 0..n_steps {
            self.check()?;
            trainer.step_with(None, penalty)?;
        }
        Ok(trainer.values()?)
    }

    fn gradients(
        &mut self,
        values: &Values,
        lessons: &[Lesson],
        each: &mut dyn FnMut(&[Vec<f32>]),
    ) -> Result<(), SonaError> {
        let trainer = self.trainer(values, lessons, 1)?;
        for example in examples(lessons) {
            self.check()?;
            each(&trainer.gradient(&example)?);
        }
        Ok(())
    }

    fn losses(&mut self, values: &Values, lessons: &[Lesson]) -> Result<Vec<f64>, SonaError> {
        if lessons.is_empty() {
            return Ok(Vec::new());
        }
        let trainer = self.trainer(values, lessons, 1)?;
        let mut losses = Vec::with_capacity(lessons.len());
        for example in examples(lessons) {
            self.check()?;
            losses.extend(trainer.losses_of(std::slice::from_ref(&example), true)?);
        }
        Ok(losses)
    }
}
