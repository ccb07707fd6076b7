//! Loading of models, which can be ended from outside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use napi_derive::napi;
use ruvllm_cli::{EmbeddedModels, Error};
use ruvllm_hub::ProgressCalls;
use ruvllm_server::Embedded;
use tokio::task::spawn_blocking;

use crate::engine::NativeEngine;
use crate::error::{internal, of_command, of_server};
use crate::progress::{OnProgress, listener};

/// Models that are being loaded.
#[napi]
pub struct NativeLoading(Arc<Loading>);

struct Loading {
    is_cancelled: Arc<AtomicBool>,
    /// Arguments and listener of the loading, until it is begun.
    order: Mutex<Option<(Vec<String>, ProgressCalls)>>,
    /// The server once it is there: it may have to be made ready to learn.
    embedded: Mutex<Option<Arc<Embedded>>>,
}

/// Makes a loading of models as `ruvllm serve` with these arguments has them; [`NativeLoading::engine`] begins it. Progress is told to
/// `on_progress`.
#[napi]
pub fn load(args: Vec<String>, on_progress: OnProgress) -> NativeLoading {
    let is_cancelled = Arc::<AtomicBool>::default();
    let calls = listener(on_progress).until(Arc::clone(&is_cancelled));
    NativeLoading(Arc::new(Loading {
        is_cancelled,
        order: Mutex::new(Some((args, calls))),
        embedded: Mutex::default(),
    }))
}

#[napi]
impl NativeLoading {
    /// Brings and loads the models.
    ///
    /// # Errors
    /// As the command's; it was begun before, or cancelled.
    #[napi]
    pub async fn engine(&self) -> napi::Result<NativeEngine> {
        let loading = Arc::clone(&self.0);
        let run = move || loading.run();
        spawn_blocking(run).await.map_err(|_| internal("loading broke off by an internal error"))?
    }

    /// Ends it: a download at its next bytes, learning's calibration at its next window, and reading a file when it is read.
    #[napi]
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::SeqCst);
        self.0.embedded.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|embedded| embedded.give_up());
    }
}

impl Loading {
    fn run(&self) -> napi::Result<NativeEngine> {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (args, calls) = order.ok_or_else(|| internal("the loading was begun before"))?;
        let models = EmbeddedModels::load(&args, Arc::new(calls)).map_err(|error| of_command(&error))?;
        let EmbeddedModels { names, models, options, home } = models;
        let embedded = Arc::new(Embedded::start(models, options).map_err(|error| of_server(&error))?);
        *self.embedded.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&embedded));
        // One that is cancelled from here on sees the server.
        if self.is_cancelled.load(Ordering::SeqCst) {
            return Err(of_command(&Error::Interrupted));
        }
        let prepared = embedded.prepare();
        self.embedded.lock().unwrap_or_else(PoisonError::into_inner).take();
        prepared.map_err(|error| of_server(&error))?;
        Ok(NativeEngine::new(embedded, names, home))
    }
}
