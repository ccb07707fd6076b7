//! What one model can be taught: calibration, head and folder for all of its tenants.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_engine::{Engine, EngineError, ErrorKind, HeadWeights};
use ruvllm_kernels::Compute;
use ruvllm_lora::micro::HeadRows;
use ruvllm_sona::history::Span;
use ruvllm_sona::store::Store;
use ruvllm_sona::{Calibration, LearnOptions, Learned};

use crate::calibrate::{self, CalibrationProgress};
use crate::error::of_sona;
use crate::kept::Kept;
use crate::maintenance::{self, MaintenanceOptions};
use crate::reading::Passes;
use crate::tenant::TenantLearning;

/// Options of learning.
#[derive(Clone, Debug, PartialEq)]
pub struct LearningOptions {
    /// The mechanisms. A model whose logits are bent has no MicroLoRA whatever this says.
    pub learn: LearnOptions,
    /// Whether the datastore learns prompts: for the price of a key a token, and of the last layer's rows.
    pub prompts: bool,
    /// Quality, 0 to 1, of an answer that nobody judges; 0 learns nothing of it.
    pub unjudged: f32,
    /// Answers of a tenant that wait for a judgement; of more the oldest count as unjudged.
    pub n_waiting_max: usize,
    /// Where calibration and tenants are kept, in a folder of the model's identity; `None` keeps nothing.
    pub folder: Option<PathBuf>,
    /// A file with the key that what tenants taught is encrypted with, 32 bytes or 64 hexadecimal digits.
    pub key: Option<PathBuf>,
    /// Maintenance of a tenant while nobody asks, see [`TenantLearning::maintain`]; `None` does nothing, and holds nothing back.
    pub maintenance: Option<MaintenanceOptions>,
    /// Name of this process for others that find the folder taken: `ruvllm serve`.
    pub process: String,
}

impl Default for LearningOptions {
    /// All mechanisms, prompts too; answers wait to be judged, 64 of them; nothing is kept.
    fn default() -> LearningOptions {
        LearningOptions {
            learn: LearnOptions::default(),
            prompts: true,
            unjudged: 0.0,
            n_waiting_max: 64,
            folder: None,
            key: None,
            maintenance: None,
            process: String::new(),
        }
    }
}

/// Learned state of a model, tenant by tenant. Any thread may use it while the engine computes.
pub struct Learning {
    shared: Arc<Shared>,
    tenants: Mutex<HashMap<String, Arc<Slot>>>,
}

/// Slot of a tenant: filled once it is open. Threads that ask for the tenant wait for the one that opens it, others do not.
type Slot = Mutex<Option<Arc<TenantLearning>>>;

/// What all tenants of a model have in common: nothing of it is learned.
pub(crate) struct Shared {
    pub calibration: Arc<Calibration>,
    pub options: LearningOptions,
    /// `None`: a MicroLoRA cannot learn with this model.
    head: Option<HeadWeights>,
    /// Threads and kernels for work between passes.
    pub compute: Compute,
    /// Identity of the model.
    pub identity: [u8; 32],
    /// Controls: texts that learning must not harm.
    pub controls: Vec<(&'static str, Span)>,
    /// The store, once somebody has asked for what lies there.
    kept: Mutex<Option<Kept>>,
}

impl HeadRows for Shared {
    /// # Panics
    /// If there is no such token.
    fn row(&self, token: u32, out: &mut [f32]) {
        if let Some(head) = &self.head {
            head.row(token, out);
        }
    }

    fn expect(&self, token: u32) {
        self.head.iter().for_each(|head| head.expect(token));
    }
}

impl Shared {
    /// Returns what a tenant knows that was taught nothing.
    pub(crate) fn empty(&self) -> Result<Learned, EngineError> {
        Learned::new(Arc::clone(&self.calibration), self.options.learn, self.compute.clone()).map_err(of_sona)
    }

    /// Returns the folder of this model's tenants.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.options.folder.as_deref()
    }

    /// Returns the store, opening it if nobody has yet; `None` if nothing is kept. `tenant` is named in errors.
    pub(crate) fn store(&self, tenant: &str) -> Result<Option<Arc<dyn Store>>, EngineError> {
        let Some(folder) = self.folder() else { return Ok(None) };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_none() {
            *kept = Some(Kept::open(folder, tenant, &self.options)?);
        }
        Ok(kept.as_ref().map(|kept| Arc::clone(&kept.store)))
    }
}

impl Learning {
    /// Makes a model ready to learn: reads its calibration from [`LearningOptions::folder`], or makes it and keeps it there.
    /// `on_progress` gets how far that is.
    ///
    /// # Errors
    /// An option is out of range, the folder cannot be written, the model makes no text; as [`calibrate()`](crate::calibrate()).
    pub fn open(
        engine: &mut Engine,
        options: LearningOptions,
        on_progress: &mut dyn FnMut(CalibrationProgress) -> std::ops::ControlFlow<()>,
    ) -> Result<Learning, EngineError> {
        Learning::open_with(engine, options, None, on_progress)
    }

    /// Makes a model ready to learn as [`Learning::open`] does, by a calibration that was made before for the same model: the
    /// bytes of [`Calibration::snapshot`]. It is for who keeps them elsewhere than in a folder. Bytes that cannot be read, and
    /// those of a model of another width, are made anew.
    ///
    /// # Errors
    /// As [`Learning::open`].
    pub fn open_with(
        engine: &mut Engine,
        options: LearningOptions,
        calibration: Option<&[u8]>,
        on_progress: &mut dyn FnMut(CalibrationProgress) -> std::ops::ControlFlow<()>,
    ) -> Result<Learning, EngineError> {
        let mut options = options;
        if !(0.0..=1.0).contains(&options.unjudged) {
            let line = format!("a quality of {} for unjudged answers; choose 0 to 1", options.unjudged);
            return Err(EngineError::new(ErrorKind::Options, line));
        }
        // Nothing is calibrated or learned without them.
        engine.runner().hidden_states()?;
        let identity = engine.identity()?;
        options.folder = options.folder.map(|folder| folder.join(name_of(&identity)));
        let given = calibration.and_then(|bytes| calibrate::restored(bytes, engine.info().n_embd));
        let mut calibration = match given {
            Some(calibration) => calibration,
            None => calibrate::load_or_make(engine, options.folder.as_deref(), on_progress)?,
        };
        let (head, compute) = (engine.head_weights().ok(), engine.compute());
        match &head {
            Some(head) if options.learn.micro.is_some() => {
                calibration = calibrate::with_basis(calibration, head, options.folder.as_deref(), compute.isa)?;
                if let Some(block) = engine.last_block()? {
                    calibration = calibration.with_block(block).map_err(of_sona)?;
                }
            }
            _ => options.learn.micro = None,
        }
        // Requests that learn decode with it from the first token on.
        engine.prepare_shortlist(calibration.whitener().mean());
        // Without evaluations there is no holdout.
        let judges = options.maintenance.as_ref().is_some_and(|maintenance| maintenance.evaluate_every.is_some());
        let controls =
            if judges { maintenance::controls(engine.tokenizer()?, engine.info().n_ctx)? } else { Vec::new() };
        let (calibration, kept) = (Arc::new(calibration), Mutex::default());
        let shared = Shared { calibration, options, head, compute, identity, controls, kept };
        // What is wrong with the options shows here, not at the first request.
        shared.empty()?;
        Ok(Learning { shared: Arc::new(shared), tenants: Mutex::default() })
    }

    /// Returns the options in force, the folder with the model's name behind it.
    pub fn options(&self) -> &LearningOptions {
        &self.shared.options
    }

    /// Returns what keys are made with.
    pub fn calibration(&self) -> &Arc<Calibration> {
        &self.shared.calibration
    }

    /// Returns the rows of the model's head, of zeros where no MicroLoRA can learn.
    pub fn head(&self) -> &dyn HeadRows {
        &*self.shared
    }

    /// Takes the folder, so that no other process has it: a later call for a tenant finds it free. Without this the first tenant
    /// does.
    ///
    /// # Errors
    /// Another process has it, the key is not its key, or it cannot be read.
    pub fn claim(&self, tenant: &str) -> Result<(), EngineError> {
        self.shared.store(tenant).map(drop)
    }

    /// Returns a tenant and what it has learned, reading it where that is kept; the model reads again what a process that died had
    /// learned last. One process at a time has the tenants that are kept.
    ///
    /// # Errors
    /// The name is none, what is kept is damaged or of another model, or another process has it.
    pub fn tenant(&self, passes: &mut dyn Passes, name: &str) -> Result<Arc<TenantLearning>, EngineError> {
        let slot = {
            let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(tenants.entry(name.to_owned()).or_default())
        };
        let mut tenant = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tenant) = &*tenant {
            return Ok(Arc::clone(tenant));
        }
        let opened = Arc::new(TenantLearning::open(name, Arc::clone(&self.shared), passes)?);
        *tenant = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Returns a tenant that is open already.
    pub fn opened(&self, name: &str) -> Option<Arc<TenantLearning>> {
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is being opened is not open.
        tenants.get(name)?.try_lock().ok()?.clone()
    }

    /// Returns a tenant that knows nothing, and that is kept nowhere.
    ///
    /// # Errors
    /// None that [`Learning::open`] did not return.
    pub fn transient(&self) -> Result<Arc<TenantLearning>, EngineError> {
        Ok(Arc::new(TenantLearning::transient(Arc::clone(&self.shared))?))
    }

    /// Returns the tenants that are open, by name.
    pub fn tenants(&self) -> Vec<Arc<TenantLearning>> {
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = tenants.values().filter_map(|slot| slot.try_lock().ok()?.clone()).collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    /// Waits until everything is ingested, and keeps it.
    ///
    /// # Errors
    /// A file cannot be written; the others are.
    pub fn save(&self) -> Result<(), EngineError> {
        self.tenants().iter().map(|tenant| tenant.save()).fold(Ok(()), Result::and)
    }
}

impl std::fmt::Debug for Learning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Learning").field("options", &self.shared.options).field("tenants", &self.tenants()).finish()
    }
}

/// Returns what the folder of a model is called.
pub(crate) fn name_of(identity: &[u8; 32]) -> String {
    identity[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
