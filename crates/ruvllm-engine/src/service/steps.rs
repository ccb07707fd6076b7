//! A service without a thread: its caller takes the steps. WebAssembly has one thread, which also has to answer its page.

use std::sync::Arc;

use super::owner::Owner;
use super::{Service, ServiceOptions};
use crate::{Engine, EngineError, Scheduler};

/// The owner of an engine that its caller drives, step by step.
///
/// ```
/// use std::sync::{Arc, mpsc};
/// use bytes::Bytes;
/// use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, Service, ServiceEvent, ServiceOptions};
///
/// // Any GGUF file; here a tiny one of the test data.
/// let bytes = std::fs::read(ruvllm_testkit::Golden::load("llama-a").model("f32"))?;
/// let engine = Engine::load_source("llama-a", Arc::new(Bytes::from(bytes)), &LoadOptions::default(), &mut |_| {})?;
/// let (service, mut steps) = Service::stepped(engine, ServiceOptions::default())?;
///
/// let (sender, receiver) = mpsc::channel();
/// let request = GenerateRequest { prompt: vec![7, 8, 9], max_tokens: Some(4), ..Default::default() };
/// let _ticket = service.submit(request, Box::new(move |event| sender.send(event).is_ok()))?;
/// while steps.step() {}
/// let n_tokens = receiver.iter().filter(|event| matches!(event, ServiceEvent::Token(_))).count();
/// assert!((1..=4).contains(&n_tokens));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ServiceSteps(Owner<'static>);

impl ServiceSteps {
    /// Takes what was asked for and computes one step of it. Returns false if there was nothing to do.
    pub fn step(&mut self) -> bool {
        self.0.step_once()
    }
}

impl std::fmt::Debug for ServiceSteps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServiceSteps")
    }
}

impl Service {
    /// Makes a service that computes when its caller takes a step, and not otherwise. What waits for the owner would wait for ever:
    /// [`Service::run`], [`Service::embed_now`] and [`Service::share_memory`].
    ///
    /// # Errors
    /// As [`Service::start`].
    pub fn stepped(engine: Engine, options: ServiceOptions) -> Result<(Service, ServiceSteps), EngineError> {
        let ServiceOptions { scheduler, queue_max, observer, tuner } = options;
        let (service, inbox) = Service::of(&engine, &scheduler, queue_max)?;
        let mut scheduler = Scheduler::owning(engine.runner, &scheduler)?;
        tuner.into_iter().for_each(|tuner| scheduler.set_tuner(tuner));
        let owner = Owner::new(scheduler, inbox, Arc::clone(&service.shared), observer);
        Ok((service, ServiceSteps(owner)))
    }
}
