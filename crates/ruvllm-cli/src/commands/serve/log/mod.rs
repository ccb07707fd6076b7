//! The log of a server: lines or JSON on standard error, and spans to a collector where there is one.

#[cfg(any(test, feature = "otlp"))]
mod genai;
use ruvllm_cli_tools::error::Result;
use tracing_subscriber::Layer as _;
pub use tracing_subscriber::filter::Targets as Levels;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Format of the log.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A line for each event.
    Text,
    /// A JSON object on a line of its own.
    Json,
}

/// Keeps the log going; what is not sent yet is sent when this is dropped.
#[must_use = "spans are sent while this lives"]
#[derive(Debug)]
pub struct Log {
    /// Levels that are let through.
    pub levels: LevelsHandle,
    #[cfg(feature = "otlp")]
    _exporter: Option<otlp::Exporter>,
}

/// The levels of a log that runs.
#[derive(Clone, Debug)]
pub struct LevelsHandle(reload::Handle<Levels, tracing_subscriber::Registry>);

impl LevelsHandle {
    /// Lets other levels through from now on.
    pub fn set(&self, levels: Levels) {
        // The log ends with the process, so there is one.
        let _ = self.0.reload(levels);
    }
}

/// Writes what `levels` let through of a server's log to standard error, and sends its spans to the collector at `otlp`, if there is one. Call
/// once.
///
/// # Errors
/// The collector's address is none.
pub fn start(format: LogFormat, levels: Levels, #[cfg(feature = "otlp")] otlp: Option<&str>) -> Result<Log> {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = match format {
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
        LogFormat::Text => lines.with_ansi(false).compact().boxed(),
    };
    let (levels, handle) = reload::Layer::new(levels);
    let levels_handle = LevelsHandle(handle);
    let log = tracing_subscriber::registry().with(levels).with(lines);
    #[cfg(feature = "otlp")]
    if let Some(url) = otlp {
        let exporter = otlp::Exporter::new(url)?;
        log.with(exporter.layer()).init();
        return Ok(Log { levels: levels_handle, _exporter: Some(exporter) });
    }
    log.init();
    Ok(Log {
        levels: levels_handle,
        #[cfg(feature = "otlp")]
        _exporter: None,
    })
}

#[cfg(feature = "otlp")]
mod otlp {
    use opentelemetry::trace::{SpanKind, TracerProvider as _};
    use opentelemetry::{Array, KeyValue, Value};
    use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter as _};
    use tracing::Subscriber;
    use tracing_subscriber::Layer;
    use tracing_subscriber::registry::LookupSpan;

    use super::genai;
    use ruvllm_cli_tools::error::{Error, Result};

    /// Sends spans to a collector, by HTTP with protobuf, from a thread of its own.
    #[derive(Debug)]
    pub(super) struct Exporter(SdkTracerProvider);

    impl Exporter {
        pub(super) fn new(url: &str) -> Result<Exporter> {
            let exporter = SpanExporter::builder().with_http().with_endpoint(url).build();
            let exporter = exporter
                .map_err(|error| Error::usage(format_args!("--otlp-endpoint {url} cannot be used: {error}")))?;
            let resource = Resource::builder().with_service_name("ruvllm").build();
            Ok(Exporter(
                SdkTracerProvider::builder()
                    .with_batch_exporter(Conventional(exporter))
                    .with_resource(resource)
                    .build(),
            ))
        }

        pub(super) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
            tracing_opentelemetry::layer().with_tracer(self.0.tracer("ruvllm"))
        }
    }

    /// Exports spans of requests under the names of OpenTelemetry's conventions for generative AI.
    #[derive(Debug)]
    struct Conventional(SpanExporter);

    impl opentelemetry_sdk::trace::SpanExporter for Conventional {
        fn export(&self, mut batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
            batch.iter_mut().filter(|span| span.name == "request").for_each(rename);
            self.0.export(batch)
        }

        fn shutdown_with_timeout(&self, timeout: std::time::Duration) -> OTelSdkResult {
            self.0.shutdown_with_timeout(timeout)
        }

        fn force_flush(&self) -> OTelSdkResult {
            self.0.force_flush()
        }

        fn set_resource(&mut self, resource: &Resource) {
            self.0.set_resource(resource);
        }
    }

    fn rename(span: &mut SpanData) {
        let value = |name: &str| {
            let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
            found.map(|attribute| attribute.value.as_str().into_owned())
        };
        let (path, model) = (value("path").unwrap_or_default(), value("model"));
        span.name = genai::span_name(&path, model.as_deref()).into();
        span.span_kind = SpanKind::Server;
        for attribute in &mut span.attributes {
            let Some(name) = genai::attribute(attribute.key.as_str()) else { continue };
            if attribute.key.as_str() == "finish" {
                let reason = attribute.value.as_str().into_owned();
                attribute.value = Value::Array(Array::String(vec![reason.into()]));
            }
            attribute.key = name.into();
        }
        if let Some(operation) = genai::operation(&path) {
            span.attributes.push(KeyValue::new("gen_ai.operation.name", operation));
            span.attributes.push(KeyValue::new("gen_ai.provider.name", genai::PROVIDER));
            span.attributes.extend(model.map(|model| KeyValue::new("gen_ai.response.model", model)));
        }
    }

    impl Drop for Exporter {
        fn drop(&mut self) {
            // A collector that is gone gets nothing.
            let _ = self.0.shutdown();
        }
    }
}
