//! Traces to an OpenTelemetry collector: of a sample of requests, one span each.
//!
//! A span has the protocol, the number of decisions, the number of denials, and the policy that
//! bound. It never has a key. An HTTP request and a call of Envoy are one span each and continue
//! the caller's trace; for the Redis protocol, a span is a batch.
//!
//! ```text
//! caller   who asks, by `traceparent`    begin   is it sampled?    end   the span, made at once
//! ```
//!
//! Requests that are not sampled leave no record. Unless tracing was [started](Trace::start), all
//! of this is one pointer check per request or batch; without the feature `otel` it is nothing.

#[cfg(feature = "otel")]
mod otel;
#[cfg(not(feature = "otel"))]
#[path = "trace/off.rs"]
mod otel;
mod tally;

pub(crate) use otel::{Begun, Caller};
pub(crate) use tally::Tally;

use crate::engine::Engine;
use std::{borrow::Cow, fmt};
use tollgate::Tick;

/// Where traces go, and how many.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSettings {
    /// The collector, for example `http://127.0.0.1:4317`. OTLP over gRPC, without TLS.
    pub endpoint: String,
    /// The part of the requests that are sampled, from 0 to 1. It does not count for requests that
    /// continue a trace: those are sampled as their caller is.
    pub sample: f64,
}

impl TraceSettings {
    fn judge(&self) -> Result<(), TraceError> {
        if !(0.0..=1.0).contains(&self.sample) {
            let text = format!("{} is not a fraction of all requests; give 0 to 1", self.sample);
            return Err(TraceError(text));
        }
        if !self.endpoint.starts_with("http://") {
            let shown = crate::config::without_secret(&self.endpoint);
            let shown: String = shown.chars().take(80).collect();
            return Err(TraceError(format!(
                "\"{shown}\" is not the address of a collector; give http://HOST:PORT of one that \
                 accepts OTLP over gRPC without TLS (usually port 4317)"
            )));
        }
        Ok(())
    }
}

/// Why there are no traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError(String);

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "traces: {}", self.0)
    }
}

impl std::error::Error for TraceError {}

/// Sends traces, once it is started.
#[derive(Debug, Default)]
pub struct Trace {
    sender: otel::Slot,
}

impl Trace {
    /// Starts to send traces. Must be called where tokio runs.
    ///
    /// # Errors
    ///
    /// When the settings are invalid, tracing was started already, or the program was built without
    /// the feature `otel`.
    pub fn start(&self, settings: &TraceSettings) -> Result<(), TraceError> {
        settings.judge()?;
        self.sender.start(settings)
    }

    /// Reads who asks from a `traceparent`, if traces are on.
    pub(crate) fn caller<'a>(&self, header: impl FnOnce() -> Option<&'a [u8]>) -> Caller {
        self.sender.caller(header)
    }

    /// Decides whether a request is sampled.
    #[inline]
    pub(crate) fn begin(&self, caller: Caller) -> Option<Begun> {
        self.sender.begin(caller)
    }

    /// Sends the span of a request that was sampled. It ends now.
    #[cold]
    pub(crate) fn end(&self, begun: Begun, engine: &Engine, done: Done) {
        self.sender.end(begun, engine, done);
    }

    /// Sends what is not sent yet. Blocks, for two seconds at most.
    pub(crate) fn finish(&self) {
        self.sender.finish();
    }
}

/// A request that was answered.
#[derive(Debug)]
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "nobody reads it"))]
pub(crate) struct Done {
    /// The name of the span: one of few names.
    pub(crate) name: Cow<'static, str>,
    pub(crate) protocol: &'static str,
    pub(crate) begun: Tick,
    pub(crate) tally: Tally,
    pub(crate) outcome: Outcome,
}

/// The status by the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "otel"), allow(dead_code, reason = "nobody reads it"))]
pub(crate) enum Outcome {
    /// A status of HTTP.
    Http(u16),
    /// A status of gRPC; none if it is fine.
    Grpc(u16),
    /// Commands of a batch.
    Commands(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        for (endpoint, sample, complaint) in [
            ("http://127.0.0.1:4317", 1.5, "1.5 is not a fraction"),
            ("http://127.0.0.1:4317", -0.1, "-0.1 is not a fraction"),
            ("http://127.0.0.1:4317", f64::NAN, "NaN is not a fraction"),
            ("https://127.0.0.1:4317", 1.0, "without TLS"),
            ("127.0.0.1:4317", 1.0, "give http://HOST:PORT"),
        ] {
            let settings = TraceSettings { endpoint: endpoint.into(), sample };
            let error = Trace::default().start(&settings).unwrap_err().to_string();
            assert!(error.contains(complaint), "{error}");
        }
    }

    #[cfg(not(feature = "otel"))]
    #[test]
    fn a_program_without_the_feature_says_so() {
        let settings = TraceSettings { endpoint: "http://127.0.0.1:4317".into(), sample: 1.0 };
        let error = Trace::default().start(&settings).unwrap_err().to_string();
        assert!(error.contains("feature `otel`"), "{error}");
    }
}
