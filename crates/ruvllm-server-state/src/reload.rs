//! Options that a running server takes: they hold from the next request on, and none that runs is touched.

use super::models::ModelUpdate;
use super::options::ServerOptions;
use super::server::Server;

/// Source of new options, such as a settings file.
pub trait Reload: Send + Sync {
    /// Returns new options, if there are some since the last call; looks whether or not it is time if somebody `asked`. It is called
    /// twice a second, from one thread at a time.
    fn look(&self, asked: bool) -> Option<Update>;
}

/// New options of a running server.
#[derive(Clone, Debug)]
pub struct Update {
    /// Options as they would be after a restart. Those that need one stay as they are.
    pub options: ServerOptions,
    /// Options of the models, in the order in which they are served.
    pub models: Vec<ModelUpdate>,
}

impl Server {
    /// Takes new options. Returns a line for each thing that cannot be used and is left as it was.
    pub fn update(&self, update: Update) -> Vec<String> {
        let mut lines = Vec::new();
        let (new, old) = (update.options, self.options());
        if let Err(error) = new.sampling.validate() {
            return vec![error.to_string()];
        }
        lines.extend(self.keys.set_options(new.keys.clone()).err());
        if let Some(name) = new.metrics_key.as_deref().filter(|name| !self.keys.has(name)) {
            lines.push(format!("no key is called '{name}', which alone may read the metrics"));
            return lines;
        }
        match self.models.update(&update.models) {
            Ok(more) => lines.extend(more),
            Err(line) => lines.push(line),
        }
        self.models.set_queue_max(new.queue_max);
        self.set_options(ServerOptions {
            sampling: new.sampling,
            speculation: new.speculation,
            queue_max: new.queue_max,
            any_model_name: new.any_model_name,
            is_verbose: new.is_verbose,
            has_slots: new.has_slots,
            truncates: new.truncates,
            loads_models: new.loads_models,
            models_max: new.models_max,
            idle_timeout: new.idle_timeout,
            keys: new.keys,
            metrics_key: new.metrics_key,
            body_bytes_max: new.body_bytes_max,
            request_timeout: new.request_timeout,
            drain_timeout: new.drain_timeout,
            ..(*old).clone()
        });
        lines
    }
}
