//! Spans with the OpenTelemetry library.

use super::{Done, Outcome, Tally, TraceError, TraceSettings};
use crate::engine::Engine;
use opentelemetry::{
    Context, KeyValue,
    trace::{
        Span, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags,
        TraceId, TraceState, TracerProvider,
    },
};
use opentelemetry_otlp::{SpanExporter as Otlp, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{Sampler, SdkTracer, SdkTracerProvider, SpanData, SpanExporter},
};
use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};
use tollgate::Tick;

/// How long the collector has to take a batch of spans.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the last spans may take at shutdown.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The sender of spans, if it is set.
#[derive(Debug, Default)]
pub(super) struct Slot(OnceLock<Sender>);

#[derive(Debug)]
struct Sender {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// A request is sampled if its shuffled number is below this.
    threshold: u64,
    turn: AtomicU64,
}

/// The caller, from its `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller(Option<Remote>);

impl Caller {
    /// A request without a trace.
    pub(crate) const NOBODY: Self = Self(None);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remote {
    trace: TraceId,
    span: SpanId,
    is_sampled: bool,
}

/// A sampled request.
#[derive(Debug)]
pub(crate) struct Begun(Caller);

impl Slot {
    pub(super) fn start(&self, settings: &TraceSettings) -> Result<(), TraceError> {
        let mut resource = Resource::builder();
        if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
            resource = resource.with_service_name("tollgate");
        }
        let resource = resource
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let otlp = Otlp::builder()
            .with_tonic()
            .with_endpoint(&settings.endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|error| TraceError(error.to_string()))?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            // The span processor receives only spans that are to be sampled.
            .with_sampler(Sampler::AlwaysOn)
            .with_batch_exporter(Heard { otlp, is_failing: AtomicBool::new(false) })
            .build();
        let tracer = provider.tracer("tollgate");
        // The cast saturates, so 1.0 samples every request.
        let threshold = (settings.sample * 2_f64.powi(64)) as u64;
        let sender = Sender { provider, tracer, threshold, turn: AtomicU64::new(0) };
        self.0.set(sender).map_err(|_| TraceError("traces are already being sent".into()))
    }

    #[inline]
    pub(super) fn caller<'a>(&self, header: impl FnOnce() -> Option<&'a [u8]>) -> Caller {
        if self.0.get().is_none() {
            return Caller::NOBODY;
        }
        Caller(header().and_then(Remote::read))
    }

    #[inline]
    pub(super) fn begin(&self, caller: Caller) -> Option<Begun> {
        let sender = self.0.get()?;
        let is_sampled = match caller.0 {
            Some(remote) => remote.is_sampled,
            None => sender.is_due(),
        };
        is_sampled.then_some(Begun(caller))
    }

    pub(super) fn end(&self, Begun(caller): Begun, engine: &Engine, done: Done) {
        let Some(sender) = self.0.get() else { return };
        let Done { name, protocol, begun, tally, outcome } = done;
        let parent = caller.0.map_or_else(Context::new, |remote| {
            let flags = TraceFlags::SAMPLED;
            let state = TraceState::default();
            let context = SpanContext::new(remote.trace, remote.span, flags, true, state);
            Context::new().with_remote_span_context(context)
        });
        let wall = |tick: Tick| SystemTime::UNIX_EPOCH + engine.clock().to_wall(tick);
        let mut span = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Server)
            .with_start_time(wall(begun))
            .with_attributes(attributes(protocol, &tally, outcome))
            .start_with_context(&sender.tracer, &parent);
        if matches!(outcome, Outcome::Http(500..) | Outcome::Grpc(2 | 4 | 13 | 14)) {
            span.set_status(Status::error(""));
        }
        span.end_with_timestamp(wall(engine.now()));
    }

    pub(super) fn finish(&self) {
        if let Some(sender) = self.0.get()
            && let Err(error) = sender.provider.shutdown_with_timeout(FINISH_TIMEOUT)
        {
            tracing::warn!("the final traces were not sent: {error}");
        }
    }
}

impl Sender {
    fn is_due(&self) -> bool {
        // ORDERING: Relaxed. Each number is used once.
        let turn = self.turn.fetch_add(1, Relaxed);
        self.threshold == u64::MAX || shuffled(turn) < self.threshold
    }
}

/// Distributes numbers evenly, so that regular requests are not sampled regularly: the finaliser of
/// SplitMix64.
const fn shuffled(number: u64) -> u64 {
    // OVERFLOW: wraps on purpose.
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Remote {
    /// Reads `00-TRACE-SPAN-FLAGS`. A later version may append more.
    fn read(header: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(header).ok()?.trim_ascii();
        let mut parts = text.split('-');
        let mut next = |length: usize| {
            let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            parts.next().filter(|part| part.len() == length && part.bytes().all(is_hex))
        };
        let version = next(2)?;
        let (trace, span, flags) = (next(32)?, next(16)?, next(2)?);
        if version == "ff" || (version == "00" && text.len() != 55) {
            return None;
        }
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        let flags = u8::from_str_radix(flags, 16).ok()?;
        let is_valid = trace != TraceId::INVALID && span != SpanId::INVALID;
        is_valid.then_some(Self { trace, span, is_sampled: flags & 1 == 1 })
    }
}

fn attributes(protocol: &'static str, tally: &Tally, outcome: Outcome) -> Vec<KeyValue> {
    let number = |name: &'static str, number: u64| {
        KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX))
    };
    let mut all = vec![
        KeyValue::new("tollgate.protocol", protocol),
        number("tollgate.decisions", tally.decisions),
        number("tollgate.allowed", tally.decisions - tally.denied),
        number("tollgate.denied", tally.denied),
        match outcome {
            Outcome::Http(status) => number("http.response.status_code", status.into()),
            Outcome::Grpc(status) => number("rpc.grpc.status_code", status.into()),
            Outcome::Commands(count) => number("tollgate.commands", count),
        },
    ];
    all.extend(tally.policy.clone().map(|policy| KeyValue::new("tollgate.policy", policy)));
    all
}

/// Logs when the collector stops taking spans, and when it takes them again.
#[derive(Debug)]
struct Heard {
    otlp: Otlp,
    is_failing: AtomicBool,
}

impl SpanExporter for Heard {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exported = self.otlp.export(batch).await;
        // ORDERING: Relaxed. One export at a time.
        match (self.is_failing.swap(exported.is_err(), Relaxed), &exported) {
            (false, Err(error)) => tracing::warn!("traces are being dropped: {error}"),
            (true, Ok(())) => tracing::info!("traces are sent again"),
            _ => {}
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.otlp.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_its_standard_says() {
        const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        const SPAN: &str = "00f067aa0ba902b7";
        for (text, expected) in [
            (format!("00-{TRACE}-{SPAN}-01"), Some(true)),
            (format!("00-{TRACE}-{SPAN}-00"), Some(false)),
            (format!("00-{TRACE}-{SPAN}-03"), Some(true)),
            (format!(" 00-{TRACE}-{SPAN}-01 "), Some(true)),
            // A later version may append more.
            (format!("01-{TRACE}-{SPAN}-01-more"), Some(true)),
            (format!("00-{TRACE}-{SPAN}-01-more"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None),
            (format!("00-{}-{SPAN}-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("00-{TRACE}-{SPAN}"), None),
            (format!("00-{TRACE}-{SPAN}-1"), None),
            (String::new(), None),
        ] {
            let read = Remote::read(text.as_bytes());
            assert_eq!(read.map(|remote| remote.is_sampled), expected, "{text}");
            assert!(read.is_none_or(|remote| remote.trace.to_string() == TRACE), "{text}");
        }
        assert_eq!(Remote::read(&[0xff; 55]), None);
    }

    #[test]
    fn as_many_are_sampled_as_was_asked_for() {
        for (sample, least, most) in [(0.0, 0, 0), (0.01, 900, 1100), (0.5, 49_000, 51_000)] {
            let threshold = (sample * 2_f64.powi(64)) as u64;
            let sampled = (0..100_000).filter(|turn| shuffled(*turn) < threshold).count();
            assert!((least..=most).contains(&sampled), "{sample}: {sampled}");
        }
        assert_eq!((1.0 * 2_f64.powi(64)) as u64, u64::MAX);
    }
}
