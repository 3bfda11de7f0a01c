//! Collects the lines that are written into the log.
#![allow(dead_code, reason = "each test uses some of it")]

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
};
use tracing::field::{Field, Visit};
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt, registry::LookupSpan};

/// All events of the target `tollgate`, as lines: level, span, fields in their order.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    /// Runs `with` and returns the lines that were logged on this thread.
    pub(crate) fn during(with: impl FnOnce()) -> Vec<String> {
        let heard = Self::default();
        let subscriber = tracing_subscriber::registry().with(heard.clone());
        tracing::subscriber::with_default(subscriber, with);
        std::mem::take(&mut *heard.0.lock().unwrap())
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Heard {
    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        if event.metadata().target() != "tollgate" {
            return;
        }
        let span = context.event_span(event).map(|span| format!(" in {}", span.name()));
        let mut line = Line(format!("{}{}", event.metadata().level(), span.unwrap_or_default()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, " {}={value}", field.name());
    }
}
