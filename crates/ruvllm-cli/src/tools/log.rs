//! The log of a server: lines or JSON on standard error, and spans to a collector where there is one.

use tracing_subscriber::Layer as _;
pub use tracing_subscriber::filter::Targets as Levels;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::tools::error::Result;

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
    #[cfg(feature = "otlp")]
    _exporter: Option<otlp::Exporter>,
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
    let log = tracing_subscriber::registry().with(levels).with(lines);
    #[cfg(feature = "otlp")]
    if let Some(url) = otlp {
        let exporter = otlp::Exporter::new(url)?;
        log.with(exporter.layer()).init();
        return Ok(Log { _exporter: Some(exporter) });
    }
    log.init();
    Ok(Log {
        #[cfg(feature = "otlp")]
        _exporter: None,
    })
}

#[cfg(feature = "otlp")]
mod otlp {
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing::Subscriber;
    use tracing_subscriber::Layer;
    use tracing_subscriber::registry::LookupSpan;

    use crate::tools::error::Error;
    use crate::tools::error::Result;

    /// Sends spans to a collector, by HTTP with protobuf, from a thread of its own.
    #[derive(Debug)]
    pub(super) struct Exporter(SdkTracerProvider);

    impl Exporter {
        pub(super) fn new(url: &str) -> Result<Exporter> {
            let exporter = SpanExporter::builder().with_http().with_endpoint(url).build();
            let exporter = exporter
                .map_err(|error| Error::usage(format_args!("--otlp-endpoint {url} cannot be used: {error}")))?;
            let resource = Resource::builder().with_service_name("ruvllm").build();
            Ok(Exporter(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build()))
        }

        pub(super) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
            tracing_opentelemetry::layer().with_tracer(self.0.tracer("ruvllm"))
        }
    }

    impl Drop for Exporter {
        fn drop(&mut self) {
            // A collector that is gone gets nothing.
            let _ = self.0.shutdown();
        }
    }
}
