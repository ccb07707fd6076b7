//! State of a tenant: the log of one that is kept, and what can be done with it.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ruvllm_engine::{EngineError, ErrorKind};
use ruvllm_sona::bank::Removal;
use ruvllm_sona::history::{self, Generation, History, HistoryLimits, Overview, Setup, Span, TrainingItem};
use ruvllm_sona::publish::Judgement;
use ruvllm_sona::{Learned, PublicKey, SigningKey};

use crate::error::of_sona;
use crate::file;
use crate::kept::{Kept, STORE_FILE};
use crate::learning::{LearningOptions, Shared, name_of};
use crate::maintenance::Maintenance;
use crate::reading::{Passes, ReadSums, ReadWatch, Reader};
use crate::tenant::TenantLearning;

/// State of a tenant.
pub(crate) enum TenantState {
    /// A log in the store.
    Kept(Box<History>, Option<Maintenance>),
    /// Nothing: so many things were ingested, which is all that is known of them.
    Transient(u64),
}

impl TenantState {
    /// Opens a tenant's log, where there is a folder; what an older program left there becomes its first generation.
    pub(crate) fn open(name: &str, shared: &Arc<Shared>, passes: &mut dyn Passes) -> Result<TenantState, EngineError> {
        let Some(folder) = shared.folder() else { return Ok(TenantState::Transient(0)) };
        let store = shared.store(name)?.expect("there is a folder");
        let unreadable = |error: EngineError| match error.kind() {
            ErrorKind::Cancelled | ErrorKind::Stopped => error,
            _ => {
                let line = format!("what tenant '{name}' has learned cannot be read: {error}");
                EngineError::new(ErrorKind::Learning, line).with_source(error)
            }
        };
        let setup = Setup {
            calibration: Arc::clone(&shared.calibration),
            options: shared.options.learn,
            compute: shared.compute.clone(),
            limits: HistoryLimits::default(),
        };
        let mut watch = |_| ControlFlow::Continue(());
        let mut reader = Reader::new(passes, shared, name, &mut watch, false);
        let opened = History::open(store, name, setup, &mut reader);
        let mut history = opened.map_err(|error| unreadable(reader.cause_of(error)))?;
        let old = folder.join("tenants").join(format!("{name}.learned"));
        if let Some(bytes) = file::read(&old)? {
            // Once it is in the log, the file says nothing new.
            if history.next_item() == 1 {
                let (calibration, learn) = (Arc::clone(&shared.calibration), shared.options.learn);
                let learned =
                    Learned::restore(&bytes, calibration, learn, shared.compute.clone()).map_err(|error| {
                        let line = format!("{error} (in {}; remove it to begin anew)", old.display());
                        unreadable(EngineError::new(ErrorKind::Learning, line))
                    })?;
                history.replace(learned, "learned by an older version").map_err(of_sona)?;
            }
            file::remove(&old)?;
        }
        let maintenance = shared.options.maintenance.as_ref().map(|options| Maintenance::new(options, &history));
        Ok(TenantState::Kept(Box::new(history), maintenance))
    }

    /// Returns what is known, and the generation that it came from; none where nobody keeps it.
    pub(crate) fn known(&self) -> Option<(Arc<Learned>, u64)> {
        match self {
            TenantState::Kept(history, _) => Some((history.known(), history.generation())),
            TenantState::Transient(_) => None,
        }
    }

    /// Ingests a training item; `learned` is what is known where nobody keeps it.
    pub(crate) fn ingest(
        &mut self,
        learned: &mut Arc<Learned>,
        item: TrainingItem,
    ) -> Result<Option<u64>, EngineError> {
        match self {
            TenantState::Kept(history, _) => history.ingest_item(item).map_err(of_sona),
            TenantState::Transient(n) => {
                let is_taken = item.apply_to(Arc::make_mut(learned)).map_err(of_sona)?;
                *n += 1;
                Ok(is_taken.then_some(*n))
            }
        }
    }

    /// Returns the log with the state of its maintenance, where there is one.
    pub(crate) fn kept(&mut self) -> Option<(&mut History, &mut Option<Maintenance>)> {
        match self {
            TenantState::Kept(history, maintenance) => Some((history, maintenance)),
            TenantState::Transient(_) => None,
        }
    }

    fn history(&mut self) -> Result<&mut History, EngineError> {
        match self {
            TenantState::Kept(history, _) => Ok(history),
            TenantState::Transient(_) => {
                let line = "what this tenant learns is kept nowhere, so there is no log; give it a folder";
                Err(EngineError::new(ErrorKind::Learning, line))
            }
        }
    }
}

/// State of a tenant's log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantLog {
    /// The generation that what is known came from; 0 is the model alone.
    pub generation: u64,
    /// The generations that are kept.
    pub generations: Vec<Generation>,
    /// The newest items, the newest first: id, Unix milliseconds, item.
    pub items: Vec<(u64, u64, history::Item)>,
}

impl From<Overview> for TenantLog {
    fn from(Overview { generation, generations, items }: Overview) -> TenantLog {
        TenantLog { generation, generations, items }
    }
}

/// Returns how a tenant's log stands, with the newest `n` items, without loading the model; `None` if it was taught nothing. `options`
/// say where, and with which key.
///
/// # Errors
/// The model's file cannot be read, another process has the folder, or the store cannot be read.
pub fn look(model: &Path, options: &LearningOptions, tenant: &str, n: usize) -> Result<Option<TenantLog>, EngineError> {
    let Some(store) = written(model, options, tenant)? else { return Ok(None) };
    Ok(history::look(store.store.as_ref(), tenant, n).map_err(of_sona)?.map(TenantLog::from))
}

/// Returns the tenants that taught a model something, sorted, without loading it.
///
/// # Errors
/// As [`look`].
pub fn tenants(model: &Path, options: &LearningOptions) -> Result<Vec<String>, EngineError> {
    let Some(store) = written(model, options, "all")? else { return Ok(Vec::new()) };
    history::tenants(store.store.as_ref()).map_err(of_sona)
}

/// Opens the store of a model, if there is one.
fn written(model: &Path, options: &LearningOptions, tenant: &str) -> Result<Option<Kept>, EngineError> {
    let Some(folder) = &options.folder else { return Ok(None) };
    let folder = folder.join(name_of(&ruvllm_backend::identity::identity_of(model)?));
    match folder.join(STORE_FILE).exists() {
        true => Kept::open(&folder, tenant, options).map(Some),
        false => Ok(None),
    }
}

/// Position in a log: the generation that the state came from, and the first item since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPosition {
    pub generation: u64,
    pub first_item: u64,
}

impl LogPosition {
    /// Returns where a history stands.
    pub(crate) fn of(history: &History) -> LogPosition {
        LogPosition { generation: history.generation(), first_item: history.first_item() }
    }
}

impl TenantLearning {
    /// Does something with the log when all that waits is ingested, and lets requests see what came of it.
    fn with_log<T>(
        &self,
        passes: &mut dyn Passes,
        watch: &mut ReadWatch<'_>,
        change: impl FnOnce(&mut History, &mut Reader<'_>) -> Result<T, ruvllm_sona::SonaError>,
    ) -> Result<T, EngineError> {
        self.settle();
        let mut state = self.lock_state();
        let mut reader = Reader::new(passes, &self.shared, self.name(), watch, false);
        let changed = change(state.history()?, &mut reader).map_err(|error| reader.cause_of(error));
        drop(reader);
        self.show(&state);
        changed
    }

    /// Takes items back, with the patterns that came from them: what is known then is byte for byte what would be known if they had
    /// never been. The model reads again what came since the generation before them; `watch` gets how far that is.
    ///
    /// # Errors
    /// There is no such item, it was let go or taught nothing; the model cannot read the others again; it cannot be written. Nothing is
    /// undone then.
    pub fn undo(&self, passes: &mut dyn Passes, items: &[u64], watch: &mut ReadWatch<'_>) -> Result<(), EngineError> {
        let bank = self.is_kept.then(|| self.patterns()).transpose()?;
        self.with_log(passes, watch, |history, reader| {
            let patterns = bank.as_ref().map(|bank| bank.removal_of(items));
            history.undo_with(items, reader, &mut |change| {
                patterns.as_ref().map_or(Ok(()), |patterns| patterns.write(change))
            })?;
            patterns.map(Removal::committed);
            Ok(())
        })
    }

    /// Goes back to a generation, or to the model alone with 0. What came since the last one is published first.
    ///
    /// # Errors
    /// The generation is not kept, the model cannot read again what it needs, or it cannot be written.
    pub fn rollback(&self, passes: &mut dyn Passes, number: u64, watch: &mut ReadWatch<'_>) -> Result<(), EngineError> {
        self.with_log(passes, watch, |history, reader| history.rollback(number, reader))
    }

    /// Publishes what is known as a generation, or takes back what was read since the last one, as the gate says; returns the
    /// generation's number. Nothing is done, and the outer `None` returned, if the generation and the first item since then are no
    /// longer those that were judged.
    ///
    /// # Errors
    /// As [`TenantLearning::undo`].
    pub(crate) fn decide(
        &self,
        passes: &mut dyn Passes,
        judgement: &Judgement,
        evaluated_at: LogPosition,
    ) -> Result<Option<Option<u64>>, EngineError> {
        let mut watch = |_| ControlFlow::Continue(());
        self.with_log(passes, &mut watch, |history, reader| match LogPosition::of(history) == evaluated_at {
            true => history.decide(judgement, reader).map(Some),
            false => Ok(None),
        })
    }

    /// Publishes what is known as a generation, and returns its number.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn publish(&self, why: &str, figures: &[(String, f64)]) -> Result<u64, EngineError> {
        self.settle();
        let mut state = self.lock_state();
        let number = state.history()?.publish(why, figures).map_err(of_sona)?;
        self.show(&state);
        Ok(number)
    }

    /// Publishes as [`Self::publish`] does, if something was taught since the last time.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn publish_new(&self, why: &str, figures: &[(String, f64)]) -> Result<Option<u64>, EngineError> {
        self.settle();
        let has_news = self.lock_state().history()?.has_news().map_err(of_sona)?;
        match has_news {
            true => self.publish(why, figures).map(Some),
            false => Ok(None),
        }
    }

    /// Reads a span of a document and learns it; returns how it was read. Each is an item of the log.
    ///
    /// # Errors
    /// The model cannot read it, `watch` breaks off, or it cannot be written.
    pub fn learn_span(
        &self,
        passes: &mut dyn Passes,
        span: Span,
        watch: &mut ReadWatch<'_>,
    ) -> Result<ReadSums, EngineError> {
        self.settle();
        let mut state = self.lock_state();
        let mut reader = Reader::new(passes, &self.shared, self.name(), watch, true);
        let history = state.history()?;
        let result = history.learn_document(span, 1.0, &mut reader).and_then(|_| history.rehearse(usize::MAX));
        let result = result.map_err(|error| reader.cause_of(error)).map(|_| reader.sums);
        drop(reader);
        if result.is_err() {
            // What is in memory may be half of it: only the log says what was learned.
            *state = TenantState::open(self.name(), &self.shared, passes)?;
        }
        self.show(&state);
        result
    }

    /// Takes back all that was read since an item, that one too, and says why in the log.
    ///
    /// # Errors
    /// As [`TenantLearning::undo`].
    pub fn discard_since(&self, passes: &mut dyn Passes, first: u64, why: &str) -> Result<(), EngineError> {
        let mut watch = |_| ControlFlow::Continue(());
        self.with_log(passes, &mut watch, |history, reader| history.discard_since(first, why, reader))
    }

    /// Puts what was learned elsewhere in place of what it knows. In a log it is a generation, before which there is nothing.
    ///
    /// # Errors
    /// It is of another model or learned with other options, or it cannot be written.
    pub fn replace(&self, learned: Learned, why: &str) -> Result<(), EngineError> {
        self.settle();
        let mut state = self.lock_state();
        match &mut *state {
            TenantState::Kept(history, _) => {
                history.replace(learned, why).map_err(of_sona)?;
                self.show(&state);
            }
            TenantState::Transient(_) => self.set(Arc::new(learned)),
        }
        Ok(())
    }

    /// Returns all that is known as a signed file for another node; nothing of the log is in it.
    ///
    /// # Errors
    /// Nothing is kept of this tenant.
    pub fn export(&self, key: &SigningKey) -> Result<Vec<u8>, EngineError> {
        self.settle();
        self.lock_state().history()?.export(key).map_err(of_sona)
    }

    /// Puts what a signed file of another node says in the place of all that is known, as a generation before which there is nothing;
    /// returns its number and who signed the file.
    ///
    /// # Errors
    /// Nobody of `trusted` has signed it, it was changed since, it is of another model or of other options; it cannot be written.
    pub fn import(&self, file: &[u8], trusted: &[PublicKey]) -> Result<(u64, PublicKey), EngineError> {
        self.settle();
        let mut state = self.lock_state();
        let imported = state.history()?.import(file, trusted).map_err(of_sona)?;
        self.show(&state);
        Ok(imported)
    }

    /// Forgets everything, on the disk as well.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn forget(&self) -> Result<(), EngineError> {
        self.settle();
        let mut state = self.lock_state();
        self.drop_answers();
        match &mut *state {
            TenantState::Kept(history, _) => {
                self.forget_patterns()?;
                // Where it is still in the file it is forgotten all the same.
                let forgotten = history.forget();
                self.show(&state);
                forgotten.map_err(of_sona)?;
            }
            TenantState::Transient(_) => self.set(Arc::new(self.shared.empty()?)),
        }
        Ok(())
    }

    /// Waits until everything is ingested, and keeps the state in addition to the log, so that it is there at once the next time.
    ///
    /// # Errors
    /// It cannot be written, or something could not be ingested since the last call.
    pub fn save(&self) -> Result<(), EngineError> {
        self.settle();
        let failure = self.take_failure();
        if let TenantState::Kept(history, _) = &mut *self.lock_state() {
            history.keep().map_err(of_sona)?;
        }
        let bank = self.bank().clone();
        if let Some(bank) = bank {
            bank.maintain(&mut |_, _| {}).map_err(of_sona)?;
        }
        failure
    }

    /// Returns how its log stands, with the newest `n` items; it is empty where nothing is kept. Nobody waits for it.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn log(&self, n: usize) -> Result<TenantLog, EngineError> {
        let Some(store) = self.shared.store(self.name())? else { return Ok(TenantLog::default()) };
        let looked = history::look(store.as_ref(), self.name(), n).map_err(of_sona)?;
        Ok(looked.map_or_else(TenantLog::default, TenantLog::from))
    }

    /// Returns a digest of all that is known: that of any tenant that learned the same, whatever was undone on the way.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.learned().snapshot()).as_bytes()
    }
}
