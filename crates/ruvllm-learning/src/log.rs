//! What is behind a tenant: the log of one that is kept, and what can be done with it.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ruvllm_engine::{EngineError, ErrorKind};
use ruvllm_sona::bank::Removal;
use ruvllm_sona::history::{self, Generation, History, HistoryLimits, Overview, Passage, Setup, Taught};
use ruvllm_sona::publish::Judgement;
use ruvllm_sona::{Learned, PublicKey, SigningKey};

use crate::error::of_sona;
use crate::file;
use crate::kept::{Kept, STORE_FILE};
use crate::learning::{LearningOptions, Shared, name_of};
use crate::reading::{Passes, ReadSums, Reader, Watch};
use crate::tenant::Tenant;
use crate::upkeep::Upkeep;

/// What is behind a tenant.
pub(crate) enum Mind {
    /// A log in the store.
    Kept(Box<History>, Option<Upkeep>),
    /// Nothing: so many things were taken in, which is all that is known of them.
    Transient(u64),
}

impl Mind {
    /// Opens a tenant's log, where there is a folder; what an older program left there becomes its first generation.
    pub(crate) fn open(name: &str, shared: &Arc<Shared>, passes: &mut dyn Passes) -> Result<Mind, EngineError> {
        let Some(folder) = shared.folder() else { return Ok(Mind::Transient(0)) };
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
        let mut reader = Reader::new(passes, (shared, name), &mut watch, false);
        let opened = History::open(store, name, setup, &mut reader);
        let mut history = opened.map_err(|error| unreadable(reader.told(error)))?;
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
        let upkeep = shared.options.upkeep.as_ref().map(|options| Upkeep::new(options, &history));
        Ok(Mind::Kept(Box::new(history), upkeep))
    }

    /// Returns what is known, and the generation that it came from; none where nobody keeps it.
    pub(crate) fn known(&self) -> Option<(Arc<Learned>, u64)> {
        match self {
            Mind::Kept(history, _) => Some((history.known(), history.generation())),
            Mind::Transient(_) => None,
        }
    }

    /// Takes in what was taught; `learned` is what is known where nobody keeps it.
    pub(crate) fn take_in(&mut self, learned: &mut Arc<Learned>, taught: Taught) -> Result<Option<u64>, EngineError> {
        match self {
            Mind::Kept(history, _) => history.take(taught).map_err(of_sona),
            Mind::Transient(n) => {
                let is_taken = taught.teach(Arc::make_mut(learned)).map_err(of_sona)?;
                *n += 1;
                Ok(is_taken.then_some(*n))
            }
        }
    }

    /// Returns the log with what its upkeep remembers, where there is one.
    pub(crate) fn kept(&mut self) -> Option<(&mut History, &mut Option<Upkeep>)> {
        match self {
            Mind::Kept(history, upkeep) => Some((history, upkeep)),
            Mind::Transient(_) => None,
        }
    }

    fn history(&mut self) -> Result<&mut History, EngineError> {
        match self {
            Mind::Kept(history, _) => Ok(history),
            Mind::Transient(_) => {
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

impl Tenant {
    /// Does something with the log when all that waits is taken in, and lets requests see what came of it.
    fn with_log<T>(
        &self,
        passes: &mut dyn Passes,
        watch: &mut Watch<'_>,
        change: impl FnOnce(&mut History, &mut Reader<'_>) -> Result<T, ruvllm_sona::SonaError>,
    ) -> Result<T, EngineError> {
        self.settle();
        let mut mind = self.mind();
        let mut reader = Reader::new(passes, (&self.shared, self.name()), watch, false);
        let changed = change(mind.history()?, &mut reader).map_err(|error| reader.told(error));
        drop(reader);
        self.show(&mind);
        changed
    }

    /// Takes items back, with the patterns that came from them: what is known then is byte for byte what would be known if they had
    /// never been. The model reads again what came since the generation before them; `watch` hears how far that is.
    ///
    /// # Errors
    /// There is no such item, it was let go or taught nothing; the model cannot read the others again; it cannot be written. Nothing is
    /// undone then.
    pub fn undo(&self, passes: &mut dyn Passes, items: &[u64], watch: &mut Watch<'_>) -> Result<(), EngineError> {
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
    pub fn rollback(&self, passes: &mut dyn Passes, number: u64, watch: &mut Watch<'_>) -> Result<(), EngineError> {
        self.with_log(passes, watch, |history, reader| history.rollback(number, reader))
    }

    /// Publishes what is known as a generation, or takes back what was read since the last one, as the gate says; returns the
    /// generation's number. Nothing is done, and the outer `None` returned, if the generation and the first item since then are no
    /// longer those that were judged.
    ///
    /// # Errors
    /// As [`Tenant::undo`].
    pub(crate) fn decide(
        &self,
        passes: &mut dyn Passes,
        judgement: &Judgement,
        judged_at: (u64, u64),
    ) -> Result<Option<Option<u64>>, EngineError> {
        let mut watch = |_| ControlFlow::Continue(());
        self.with_log(passes, &mut watch, |history, reader| match (history.generation(), history.first_item()) {
            now if now == judged_at => history.decide(judgement, reader).map(Some),
            _ => Ok(None),
        })
    }

    /// Publishes what is known as a generation, and returns its number.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn publish(&self, why: &str, figures: &[(String, f64)]) -> Result<u64, EngineError> {
        self.settle();
        let mut mind = self.mind();
        let number = mind.history()?.publish(why, figures).map_err(of_sona)?;
        self.show(&mind);
        Ok(number)
    }

    /// Publishes as [`Self::publish`] does, if something was taught since the last time.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn publish_new(&self, why: &str, figures: &[(String, f64)]) -> Result<Option<u64>, EngineError> {
        self.settle();
        let has_news = self.mind().history()?.has_news().map_err(of_sona)?;
        match has_news {
            true => self.publish(why, figures).map(Some),
            false => Ok(None),
        }
    }

    /// Reads a passage of a document and learns it; returns how it was read. Each is an item of the log.
    ///
    /// # Errors
    /// The model cannot read it, `watch` breaks off, or it cannot be written.
    pub fn study(
        &self,
        passes: &mut dyn Passes,
        passage: Passage,
        watch: &mut Watch<'_>,
    ) -> Result<ReadSums, EngineError> {
        self.settle();
        let mut mind = self.mind();
        let mut reader = Reader::new(passes, (&self.shared, self.name()), watch, true);
        let history = mind.history()?;
        let studied = history.study(passage, 1.0, &mut reader).and_then(|_| history.rehearse(usize::MAX));
        let studied = studied.map_err(|error| reader.told(error)).map(|_| reader.sums);
        drop(reader);
        if studied.is_err() {
            // What is in memory may be half of it: only the log says what was learned.
            *mind = Mind::open(self.name(), &self.shared, passes)?;
        }
        self.show(&mind);
        studied
    }

    /// Takes back all that was read since an item, that one too, and says why in the log.
    ///
    /// # Errors
    /// As [`Tenant::undo`].
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
        let mut mind = self.mind();
        match &mut *mind {
            Mind::Kept(history, _) => {
                history.replace(learned, why).map_err(of_sona)?;
                self.show(&mind);
            }
            Mind::Transient(_) => self.set(Arc::new(learned)),
        }
        Ok(())
    }

    /// Returns all that is known as a signed file for another node; nothing of the log is in it.
    ///
    /// # Errors
    /// Nothing is kept of this tenant.
    pub fn export(&self, key: &SigningKey) -> Result<Vec<u8>, EngineError> {
        self.settle();
        self.mind().history()?.export(key).map_err(of_sona)
    }

    /// Puts what a signed file of another node says in the place of all that is known, as a generation before which there is nothing;
    /// returns its number and who signed the file.
    ///
    /// # Errors
    /// Nobody of `trusted` has signed it, it was changed since, it is of another model or of other options; it cannot be written.
    pub fn import(&self, file: &[u8], trusted: &[PublicKey]) -> Result<(u64, PublicKey), EngineError> {
        self.settle();
        let mut mind = self.mind();
        let imported = mind.history()?.import(file, trusted).map_err(of_sona)?;
        self.show(&mind);
        Ok(imported)
    }

    /// Forgets everything, on the disk as well.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn forget(&self) -> Result<(), EngineError> {
        self.settle();
        let mut mind = self.mind();
        self.drop_answers();
        match &mut *mind {
            Mind::Kept(history, _) => {
                self.forget_patterns()?;
                // Where it is still in the file it is forgotten all the same.
                let forgotten = history.forget();
                self.show(&mind);
                forgotten.map_err(of_sona)?;
            }
            Mind::Transient(_) => self.set(Arc::new(self.shared.empty()?)),
        }
        Ok(())
    }

    /// Waits until everything is taken in, and puts what is known beside the log, so that it is there at once the next time.
    ///
    /// # Errors
    /// It cannot be written, or something could not be taken in since the last call.
    pub fn save(&self) -> Result<(), EngineError> {
        self.settle();
        let failure = self.take_failure();
        if let Mind::Kept(history, _) = &mut *self.mind() {
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

    /// Returns a digest of all that is known: that of one who learned the same, whatever was undone on the way.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.learned().snapshot()).as_bytes()
    }
}
