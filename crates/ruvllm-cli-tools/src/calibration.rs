//! A loaded model as calibration asks it: inputs of products, and divergences with other weights.

use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_backend::{BackendError, ForwardHooks, InputObserver};
use ruvllm_convert::{CalibrationModel, ConvertError, ImatrixCollector, ReplacedTensor};
use ruvllm_engine::{AdapterSet, Engine, PackedPrediction, Pooling};

use crate::error::{Error, Result};

/// Tokens that predictions have seen before they count.
const FROM: usize = 16;

/// A model that is calibrated with.
pub struct EngineCalibration {
    engine: Engine,
    /// Number of the head's linear layer, if its inputs are wanted.
    head: Option<usize>,
    /// Windows that divergences are measured on, and the predictions of the model as it is.
    probes: Vec<Vec<u32>>,
    reference: Vec<u8>,
}

impl EngineCalibration {
    /// Takes a model.
    pub fn new(engine: Engine) -> EngineCalibration {
        EngineCalibration { engine, head: None, probes: Vec::new(), reference: Vec::new() }
    }

    /// Makes a collector for the model's tensors; the head is among them if that is wanted.
    ///
    /// # Errors
    /// A failure if the backend does not say what the model is made of.
    pub fn collector(&mut self, with_head: bool) -> Result<ImatrixCollector> {
        let file = Arc::clone(self.engine.runner().vocabulary().file());
        let spec = self.engine.runner().model().model_spec();
        let spec = spec.ok_or_else(|| Error::failure("this backend does not say what the model is made of"))?;
        let head = spec.output.head.as_ref().map(|head| head.id);
        let mut collector = ImatrixCollector::default();
        for linear in spec.linears().into_iter().filter(|linear| with_head || Some(linear.id) != head) {
            if let Some(tensor) = file.tensor(&linear.weight.tensor) {
                collector.watch(linear.id, tensor, linear.weight.rows.start);
            }
        }
        self.head = head.filter(|_| with_head);
        Ok(collector)
    }

    /// Takes the windows that divergences are measured on, and computes what the model predicts for them.
    ///
    /// # Errors
    /// The engine's.
    pub fn set_probes(&mut self, probes: Vec<Vec<u32>>) -> Result<()> {
        self.reference.clear();
        for window in &probes {
            let reference = &mut self.reference;
            self.engine.predictions(window, FROM, &mut |logits, _| PackedPrediction::pack(logits, reference))?;
        }
        self.probes = probes;
        Ok(())
    }

    fn hooks(&mut self) -> std::result::Result<&mut dyn ForwardHooks, ConvertError> {
        let hooks = self.engine.runner_mut().model_mut().forward_hooks();
        hooks.ok_or_else(|| ConvertError::of_model("this backend has no hooks for calibration; use native"))
    }

    /// Reads a window and returns what its final norm left of every token.
    fn read(&mut self, window: &[u32]) -> std::result::Result<Vec<f32>, ConvertError> {
        let model = self.engine.runner_mut().model_mut();
        let embeddings = model.embeddings();
        let embeddings = embeddings.ok_or_else(|| BackendError::unsupported("this backend gives no vectors of tokens"));
        let vectors = embeddings.and_then(|model| model.embed(window, Some(Pooling::None), &AdapterSet::default()));
        vectors.map_err(ConvertError::of_model)
    }

    /// Returns the mean divergence of the predictions for the probes from the reference.
    fn mean_divergence(&mut self) -> Result<f64> {
        let row = self.engine.info().n_vocab * PackedPrediction::BYTES;
        let mut reference = self.reference.chunks_exact(row);
        let (mut sum, mut n) = (0.0, 0);
        for window in &self.probes {
            self.engine.predictions(window, FROM, &mut |logits, _| {
                if let Some(packed) = reference.next() {
                    sum += PackedPrediction::new(packed).divergence_to(logits).kl;
                    n += 1;
                }
            })?;
        }
        Ok(sum / f64::from(n.max(1)))
    }
}

/// A collector that is told by a model.
struct Shared(Mutex<ImatrixCollector>);

impl InputObserver for Shared {
    fn input(&self, linear: usize, x: &[f32]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(linear, x);
    }
}

impl CalibrationModel for EngineCalibration {
    fn observe(&mut self, window: &[u32], collector: &mut ImatrixCollector) -> std::result::Result<(), ConvertError> {
        let shared = Arc::new(Shared(Mutex::new(std::mem::take(collector))));
        self.hooks()?.set_input_observer(Some(shared.clone()));
        let vectors = self.read(window);
        self.hooks()?.set_input_observer(None);
        *collector = std::mem::take(&mut *shared.0.lock().unwrap_or_else(PoisonError::into_inner));
        let vectors = vectors?;
        if let Some(head) = self.head {
            collector.add(head, &vectors);
        }
        Ok(())
    }

    fn divergence(&mut self, replaced: ReplacedTensor<'_>) -> std::result::Result<f64, ConvertError> {
        let ReplacedTensor { name, ty, weights } = replaced;
        self.hooks()?.replace_weights(name, ty, weights).map_err(ConvertError::of_model)?;
        let mean = self.mean_divergence();
        self.hooks()?.restore_weights();
        mean.map_err(|error| ConvertError::of_model(error.line().unwrap_or_default()))
    }
}
